"""Finds the schemas of the tables that a stream describes: in the stream if it has them, else in the history."""

from __future__ import annotations

from headrace.model import Column, TableSchema
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.splitter import SchemaNeeded
from headrace.mysql.events.table_map import TableMap
from headrace.mysql.schema.comparison import SchemaComparison
from headrace.mysql.schema.fit import misfit
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.states import ALWAYS
from headrace.mysql.values.mariadb import FIXED_BINARY


class DescribedTables:
    """The columns of tables. If `wanted` is set, that table's schema must be found, or compared if it is known, and
    learned() called, before the stream continues. Without a `comparison` nothing is compared. With `positional` the
    columns of a table with an unknown schema are @1, @2 and so on."""

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
        """Returns the columns of the table that an event describes. Raises SchemaNeeded if `wanted` must be found
        first, NotUnderstood or ValueError if they can't be known."""
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
            # A schema that is only likely must not change a value.
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
            self._mistrusted.add(table)  # the server's present schema may fit, if no DDL came since
            history.mistrust(*table, why)
            self.wanted = table
            raise SchemaNeeded
        return known

    def compared(self, table: tuple[str, str]) -> bool:
        """Returns whether a known table whose rows have a new id here needs no comparison any more. If it does, the
        question is repeated later. Raises SchemaNeeded if the comparison must come first."""
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

    def agreed_until(self, table: tuple[str, str]) -> int:
        """Returns up to which offset of the present file the rows of a table agree, whatever its id; 0 if this is not
        known."""
        return self._comparison.agreed_until(table, self._cursor.file) if self._comparison is not None else ALWAYS

    @property
    def _here(self) -> tuple[str, int]:
        """Returns file and offset after the last event."""
        return self._cursor.file, self._cursor.end

    def learned(self, why_not: str = "") -> None:
        """Continues after `wanted`: its schema is in the history now, or can't be found because of `why_not`."""
        if self.wanted is not None and why_not:
            self._unknowable[self.wanted] = why_not
            if self._history is not None:
                self._history.forget_likely(*self.wanted)
        elif self.wanted is not None and self._comparison is not None:
            self._comparison.examined(self.wanted, self._here)
        self.wanted = None

    def known(self) -> set[str]:
        """Returns the captured tables that the history knows, each as schema.table."""
        return {".".join(name) for name in self._history.known()} if self._history is not None else set()

    def forget(self) -> None:
        """Forgets schemas: tables have changed."""
        self._unknowable.clear()
        self._mistrusted.clear()


def _decides(column: Column) -> bool:
    """Returns whether the declared type changes a value compared to the binlog's own description: bytes become text,
    and a number loses the digits beyond those of its FLOAT(m,d)."""
    return column.kind in FIXED_BINARY or (column.kind in ("float", "double") and "," in column.mysql_type)


def _declared(described: TableSchema, known: TableSchema) -> TableSchema:
    """Returns the stream's description, with what the history knows in addition if both are about the same columns."""
    pairs = zip(described.columns, known.columns, strict=True)
    same = all(
        (a.name, a.unsigned, a.labels) == (b.name, b.unsigned, b.labels)
        and (a.charset in ("", b.charset) or b.kind in FIXED_BINARY)  # these are sent as BINARY
        for a, b in pairs
    )
    promoted = known.promoted and described.keys == known.keys
    columns = known.columns if same else described.columns
    return TableSchema(described.schema, described.table, columns, described.keys, promoted=promoted)
