"""What decides on a change's partition, in the grammar of Canal's `canal.mq.partitionHash`.

The grammar comes from `MQMessageUtils` (getPartitionHashColumns, HashMode). Entries have commas or semicolons between;
the first whose pattern matches `schema.table` counts:

- `schema.table:id^name`: the hash of these columns;
- `schema.table:$pk$`: the hash of the primary key's columns;
- `schema.table`: the hash of the table's name, so that a table stays together.

A pattern is a plain name, compared as it is, or a regex. A table that no entry names goes whole to one partition (in
Canal 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.rules.patterns import Pattern, compile_table, first_match, split_patterns, top_level

KeyKind = Literal["columns", "primary_key", "table"]


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What a table's changes are spread by; `columns` as the rule names them, for kind "columns" only; `rule` is its
    text."""

    kind: KeyKind
    columns: tuple[str, ...]
    rule: str


@dataclass(frozen=True, slots=True)
class KeyRules:
    """The entries of a partition hash, in order."""

    _entries: tuple[tuple[Pattern, KeyRule], ...]

    @classmethod
    def parse(cls, text: str, key: str = "route.partition_hash") -> KeyRules:
        """Raises ValueError with the rule's number and position."""
        parts = split_patterns(text, ",;")
        return cls(tuple(_entry(part, at, f"rule {number}", key) for number, (at, part) in enumerate(parts, 1)))

    @property
    def rules(self) -> tuple[str, ...]:
        """The text of each entry, in order."""
        return tuple(rule.rule for _, rule in self._entries)

    def choose(self, schema: str, table: str) -> KeyRule | None:
        """The first rule that matches; None: the table has one fixed partition. Not cached. Raises PatternTooSlow."""
        return first_match(self._entries, f"{schema}.{table}")


def _entry(text: str, at: int, what: str, key: str) -> tuple[Pattern, KeyRule]:
    where = f"{what}, from character {at + 1},"
    colons = list(top_level(text, ":"))
    if len(colons) > 1:
        raise ValueError(f"{where} has a second colon at character {at + colons[1] + 1} (write `\\:` within a regex)")
    pattern = text[: colons[0]].strip() if colons else text
    if not pattern:
        raise ValueError(f"{where} should have a table before its colon")
    rule = _rule(text, text[colons[0] + 1 :].strip(), where) if colons else KeyRule("table", (), text)
    return compile_table(pattern, at, what, key), rule


def _rule(text: str, columns: str, where: str) -> KeyRule:
    if columns.lower() == "$pk$":
        return KeyRule("primary_key", (), text)
    names = tuple(name.strip() for name in columns.split("^"))
    if not all(names):
        raise ValueError(f"{where} should have columns behind its colon, as in id^name, or $pk$")
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise ValueError(f"{where} names the column {name} twice")
        seen.add(name.lower())
    return KeyRule("columns", names, text)
