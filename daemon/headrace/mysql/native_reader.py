"""Reads a dump in native code: passes tables to it, and takes its results."""

from __future__ import annotations

from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events import splitter
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.event_types import TABLE, Does
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.schema.follower import StatementFollower
from headrace.mysql.table_maps import Table
from headrace.mysql.values.column_types import for_native_code
from headrace.native import PANIC, PANIC_REMEDY
from headrace.ports.native_rows import NativeRows

_MOST_TABLES = 4_000
"""Maximum number of table ids that native code has; beyond it all are passed again."""
_USED_UP, _PYTHON = 0, 1


class NativeReader:
    """See FastPath and KnownTables. `rows` makes the messages."""

    def __init__(
        self,
        rows: NativeRows,
        cursor: EventCursor,
        transactions: Transactions,
        statements: StatementFollower,
        options: DecoderOptions,
    ) -> None:
        self._rows, self._cursor, self._transactions, self._statements = rows, cursor, transactions, statements
        passed = {Does.PASS} if options.dml_queries else {Does.PASS, Does.TEXT, Does.ANNOTATION}
        numbers = bytes(one.number for one in TABLE if one.stream in passed and not one.made_up)
        self._reader = rows.new_reader(numbers, splitter.SLICE_SECONDS)
        self._known = 0
        self._watched = frozenset[tuple[str, str]]()

    # -- tables ---------------------------------------------------------------------------------------------------

    def note(self, number: bytes, body: bytes, table: Table) -> None:
        """Records a TABLE_MAP, which has been decoded: it gave a table this id."""
        self._known += 1
        if self._known > _MOST_TABLES:
            self.clear()
        row_schema = table.row_schema
        if table.own:
            self._reader.leave(number, body)
        elif row_schema is None:
            self._reader.know(number, body, None)
        elif (row_schema.schema.schema, row_schema.schema.table) in self._watched:
            self._reader.leave(number, body)
        else:
            if not table.native_made:
                table.native_made = True
                layouts = [field.layout and for_native_code(field.layout) for field in row_schema.fields]
                table.native = self._rows.table(row_schema.schema, layouts)
            if table.native is None:
                self._reader.leave(number, body)
            else:
                self._reader.know(number, body, table.native)

    def forget(self, number: bytes) -> None:
        """Forgets a table id: the table has another one now."""
        self._reader.forget(number)

    def clear(self) -> None:
        """Forgets all: tables, or their ids, may have changed."""
        self._reader.clear()
        self._known = 0

    # -- events ---------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        transactions = self._transactions
        if (watched := self._rows.watched()) != self._watched:
            self._watched = watched
            self.clear()
        plain = transactions.plain and (self._rows.marks or not transactions.marked)
        return plain and self._statements.text is None

    def run(self, data: bytes, at: int, *, eager: bool, inner: bool = False) -> tuple[int, int, int, bool]:
        transactions, cursor, rows = self._transactions, self._cursor, self._rows
        most, given = rows.begin(), transactions.given_over()
        try:
            (at, why, need), place, group, gtid, (events, count, executed) = self._reader.run(
                *(data, at, cursor.file, cursor.checksums, cursor.start if inner else None),
                *(eager, most, *given, rows.output, rows.open),
            )
        except BaseException as error:
            if type(error).__name__ != PANIC:
                raise
            raise cursor.not_understood(f"native code fails after this position ({error})", PANIC_REMEDY) from error
        finally:
            rows.end()
        if events:
            transactions.taken_back(place, group, gtid, executed, count)
        return at, events, need if why == _USED_UP else 0, why == _PYTHON
