"""Counts the rows of each table that were confirmed. However many tables there are, their number here is bounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.model import TableRows

OTHERS: Final = "(others)"
"""Stands for all tables beyond the limit. Its database is "", which no table has, so it is never a table's own name."""


@dataclass(slots=True)
class TableTotals:
    """Since the daemon was started. The first `limit` tables are counted each by itself, all others together."""

    limit: int = 200
    _tables: dict[tuple[str, str], TableRows] = field(default_factory=dict)
    _others: TableRows = field(default_factory=lambda: TableRows("", OTHERS))

    def add(self, rows: TableRows) -> None:
        """Rows of one table are confirmed, or of several that nobody has told apart, without a name."""
        name = rows.schema, rows.table
        total = self._tables.get(name)
        if total is None:
            total = self._others
            if rows.schema and len(self._tables) < self.limit:
                total = self._tables[name] = TableRows(*name)
        total.add(rows)

    def all(self) -> Sequence[TableRows]:
        """Each table of which rows were confirmed, in the order in which they came, and at the end the others."""
        return [*self._tables.values(), *([self._others] if self._others.total else [])]
