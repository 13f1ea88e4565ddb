"""Which columns of a table are published, in the grammar of Canal's `canal.instance.filter.field` and `.black.field`.

The grammar comes from `AbstractEventParser.parseFieldFilterMap` and `LogEventConvert.needField`: entries
`schema.table:column/column` with commas between, names in any case. Here the table may also be a regex, as in the table
filter, and the first entry that matches counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.rules.patterns import Pattern, compile_table, first_match, is_plain, split_patterns, top_level


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """The columns that a rule names, in lower case, and its text."""

    columns: frozenset[str]
    rule: str


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """The entries of a column filter, in order."""

    _entries: tuple[tuple[Pattern, ColumnRule], ...]

    @classmethod
    def parse(cls, text: str, key: str = "filter.include_columns") -> ColumnRules:
        """Raises ValueError with the rule's number and position."""
        entries = []
        plain_names: set[str] = set()
        for number, (at, part) in enumerate(split_patterns(text), 1):
            pattern, rule = _entry(part, at, f"rule {number}", key)
            if is_plain(pattern.pattern):
                if pattern.pattern.lower() in plain_names:
                    raise ValueError(f"rule {number}, from character {at + 1}, is a second one for {pattern.pattern}")
                plain_names.add(pattern.pattern.lower())
            entries.append((pattern, rule))
        return cls(tuple(entries))

    @property
    def rules(self) -> tuple[str, ...]:
        """The text of each entry, in order."""
        return tuple(rule.rule for _, rule in self._entries)

    def choose(self, schema: str, table: str) -> frozenset[str] | None:
        """The columns that the first matching rule names, in lower case; None: no rule names the table. Not cached.
        Raises PatternTooSlow."""
        rule = self.choose_rule(schema, table)
        return rule.columns if rule else None

    def choose_rule(self, schema: str, table: str) -> ColumnRule | None:
        """The same with the rule's text."""
        return first_match(self._entries, f"{schema}.{table}")


def _entry(text: str, at: int, what: str, key: str) -> tuple[Pattern, ColumnRule]:
    where = f"{what}, from character {at + 1},"
    colons = list(top_level(text, ":"))
    pattern = text[: colons[0]].strip() if len(colons) == 1 else ""
    columns = [name.strip() for name in text[colons[0] + 1 :].split("/")] if pattern else []
    if not columns or not all(columns):
        raise ValueError(f'{where} should be a table and its columns, as in "shop.items:id/name"')
    return compile_table(pattern, at, what, key), ColumnRule(frozenset(name.lower() for name in columns), text)
