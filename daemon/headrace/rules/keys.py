"""What chooses a change's partition, in the grammar of Canal's `canal.mq.partitionHash`.

The grammar comes from `MQMessageUtils` (getPartitionHashColumns, HashMode). Entries are separated by commas or
semicolons; the first whose pattern matches `schema.table` counts:

- `schema.table:id^name`: the hash of these columns;
- `schema.table:$pk$`: the hash of the primary key's columns;
- `schema.table`: the hash of the table's name, so that a table stays together.

A pattern is a plain name, which must be equal, or a regex. A table that no entry names goes completely to one partition
(in Canal 0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.rules.patterns import Pattern, Rules, compile_table, only_colon, split_patterns

KeyKind = Literal["columns", "primary_key", "table"]


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The rule by which a table's changes are spread; `columns` as the rule names them, for kind "columns" only; `rule`
    is its text."""

    kind: KeyKind
    columns: tuple[str, ...]
    rule: str


def parse_keys(text: str, key: str = "route.partition_hash") -> Rules[KeyRule]:
    """Returns the entries of a partition hash. Raises ValueError with the rule's number and position."""
    parts = split_patterns(text, ",;")
    return Rules(tuple(_entry(part, at, f"rule {number}", key) for number, (at, part) in enumerate(parts, 1)))


def _entry(text: str, at: int, what: str, key: str) -> tuple[Pattern, KeyRule]:
    where = f"{what}, from character {at + 1},"
    colon = only_colon(text, at, where)
    pattern = text[:colon].strip()
    if not pattern:
        raise ValueError(f"{where} should have a table before its colon")
    rule = KeyRule("table", (), text) if colon is None else _rule(text, text[colon + 1 :].strip(), where)
    return compile_table(pattern, at, what, key), rule


def _rule(text: str, columns: str, where: str) -> KeyRule:
    if columns.lower() == "$pk$":
        return KeyRule("primary_key", (), text)
    names = tuple(name.strip() for name in columns.split("^"))
    if not all(names):
        raise ValueError(f"{where} should have columns after its colon, as in id^name, or $pk$")
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(f"{where} names the column {name} twice")
        seen.add(name.lower())
    return KeyRule("columns", names, text)
