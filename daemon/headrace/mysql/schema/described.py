"""Finds the schemas of the tables that a stream describes: in the stream where it says so, else in the history."""

from __future__ import annotations

from headrace.model import Column, TableSchema
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.cutter import SchemaNeeded
from headrace.mysql.events.table_map import TableMap
from headrace.mysql.schema.comparison import SchemaComparison
from headrace.mysql.schema.fit import misfit
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.values.mariadb import FIXED_BINARY


class DescribedTables:
    """What the columns of tables are. When `wanted` is set, that table's schema has to be found, or compared when it is
    known, and learned() called, before the stream goes on. Without a `comparison` nothing is compared. With
    `positional` the columns of a table whose schema is not known are @1, @2 and so on."""

    def __init__(
        self,
        cursor: EventCursor,
        history: SchemaHistory | None,
        comparison: SchemaComparison | None = None,
        *,
        positional: bool = False,
    ) -> None:
        self._positional = positional
        self._cursor, self._history, self._comparison = cursor, history, comparison
        self.wanted: tuple[str, str] | None = None
        self._unknowable: dict[tuple[str, str], str] = {}
        self._mistrusted: set[tuple[str, str]] = set()
        """Tables whose rows did not fit what was known: they are read again once."""

    def of(self, event: TableMap) -> TableSchema:
        """The columns of the table that an event describes. Raises SchemaNeeded when `wanted` has to be found first,
        NotUnderstood or ValueError when they can't be known."""
        history = self._history
        known = history.table(event.schema, event.table) if history is not None else None
        if event.has_names:
            described, certain = event.described(), known is not None
            if known is None and history is not None:
                history.note_rows(event.schema, event.table)
                known = history.likely(event.schema, event.table)
            if known is None or misfit(known, event.visible_types, event.nulls):
                return described
            declared = _declared(described, known)
            if certain or declared.columns is described.columns or not any(map(_decides, declared.columns)):
                return declared
            # What is only likely must not make a value into another one.
            self.wanted = event.schema, event.table
            raise SchemaNeeded
        table = event.schema, event.table
        if history is None:
            raise self._cursor.not_understood(
                f"table {event.schema}.{event.table} comes without column names",
                "SET PERSIST binlog_row_metadata = 'FULL';",
            )
        if known is None and self._positional:
            return event.positional()
        if known is None:
            why = self._unknowable.get(table)
            if why:
                raise ValueError(f"its schema at this position is not known: {why}")
            self.wanted = table
            raise SchemaNeeded
        event.hide_hashes(len(known.columns))
        why = misfit(known, event.visible_types, event.nulls)
        if why:
            if table in self._mistrusted:
                raise ValueError(f"its rows do not fit what is known of it: {why}")
            self._mistrusted.add(table)  # what the server shows now may fit, when no DDL came since
            history.mistrust(*table, why)
            self.wanted = table
            raise SchemaNeeded
        return known

    def compared(self, table: tuple[str, str]) -> bool:
        """Whether a table that is known, and whose rows have a new id here, needs no comparison any more. When it does,
        it will be asked for again. Raises SchemaNeeded when it has to come first."""
        comparison = self._comparison
        if comparison is None:
            return True
        comparison.compare_often(table)
        if comparison.agreed(table, self._here):
            return True
        if comparison.may_run():
            self.wanted = table
            raise SchemaNeeded
        comparison.due.add(table)
        return False

    @property
    def _here(self) -> tuple[str, int]:
        """File and offset behind the last event."""
        return self._cursor.file, self._cursor.end

    def learned(self, why_not: str = "") -> None:
        """Goes on after `wanted`: its schema is in the history now, or can't be found because of `why_not`."""
        if self.wanted is not None and why_not:
            self._unknowable[self.wanted] = why_not
            if self._history is not None:
                self._history.forget_likely(*self.wanted)
        elif self.wanted is not None and self._comparison is not None:
            self._comparison.looked_at(self.wanted, self._here)
        self.wanted = None

    def known(self) -> set[str]:
        """The captured tables that the history knows, each as schema.table."""
        return {".".join(name) for name in self._history.known()} if self._history is not None else set()

    def forget(self) -> None:
        """Tables have other schemas now."""
        self._unknowable.clear()
        self._mistrusted.clear()


def _decides(column: Column) -> bool:
    """Whether the declared type makes of a value what the binlog's own description would not: bytes become text, and a
    number loses the digits beyond those of its FLOAT(m,d)."""
    return column.kind in FIXED_BINARY or (column.kind in ("float", "double") and "," in column.mysql_type)


def _declared(described: TableSchema, known: TableSchema) -> TableSchema:
    """The stream's description, with what the history knows besides where both are about the same columns."""
    pairs = zip(described.columns, known.columns, strict=True)
    same = all(
        (a.name, a.unsigned, a.labels) == (b.name, b.unsigned, b.labels)
        and (a.charset in ("", b.charset) or b.kind in FIXED_BINARY)  # these travel as BINARY
        for a, b in pairs
    )
    promoted = known.promoted and described.keys == known.keys
    columns = known.columns if same else described.columns
    return TableSchema(described.schema, described.table, columns, described.keys, promoted=promoted)
