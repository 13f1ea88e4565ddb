"""Which columns of a table are published, in the grammar of Canal's `canal.instance.filter.field` and `.black.field`.

The grammar comes from `AbstractEventParser.parseFieldFilterMap` and `LogEventConvert.needField`: entries
`schema.table:column/column` separated by commas, names in any case. Here the table may also be a regex, as in the table
filter, and the first entry that matches counts."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.rules.patterns import Pattern, Rules, compile_table, is_plain, split_patterns, top_level


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """The columns that a rule names, in lower case, and its text."""

    columns: frozenset[str]
    rule: str


def parse_columns(text: str, key: str = "filter.include_columns") -> Rules[ColumnRule]:
    """Returns the entries of a column filter. Raises ValueError with the rule's number and position."""
    entries = []
    plain_names: set[str] = set()
    for number, (at, part) in enumerate(split_patterns(text), 1):
        pattern, rule = _entry(part, at, f"rule {number}", key)
        if is_plain(pattern.pattern):
            if pattern.pattern.lower() in plain_names:
                raise ValueError(f"rule {number}, from character {at + 1}, is a second one for {pattern.pattern}")
            plain_names.add(pattern.pattern.lower())
        entries.append((pattern, rule))
    return Rules(tuple(entries))


def _entry(text: str, at: int, what: str, key: str) -> tuple[Pattern, ColumnRule]:
    colons = list(top_level(text, ":"))
    pattern = text[: colons[0]].strip() if len(colons) == 1 else ""
    columns = [name.strip() for name in text[colons[0] + 1 :].split("/")] if pattern else []
    if not columns or not all(columns):
        raise ValueError(
            f'{what}, from character {at + 1}, should be a table and its columns, as in "shop.items:id/name"'
        )
    rule = ColumnRule(frozenset(name.lower() for name in columns), text)
    return compile_table(pattern, at, what, key), rule
