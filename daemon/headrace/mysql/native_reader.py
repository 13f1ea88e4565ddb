"""Reads a dump in native code: passes tables to it, and takes its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.errors import NotUnderstood
from headrace.model import TableSchema
from headrace.mysql import heartbeat
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

_MOST_TABLES = 8_000
"""Maximum number of TABLE_MAPs that native code has; beyond it all are passed again."""
_USED_UP, _PYTHON = 0, 1


def panicked(error: BaseException, cursor: EventCursor) -> NotUnderstood:
    """Returns the error for a fault of native code at the present event. Raises any other error again."""
    if type(error).__name__ != PANIC:
        raise error
    return cursor.not_understood(f"native code fails after this position ({error})", PANIC_REMEDY)


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
        self._destination = options.destination
        self._reader = rows.new_reader(numbers, splitter.SLICE_SECONDS)
        self._known: list[Table] = []
        """The TABLE_MAPs that native code has, by their numbers there."""
        self._watched = frozenset[tuple[str, str]]()
        self.learned: Callable[[Sequence[bytes], Sequence[Table]], None] = lambda numbers, tables: None
        """Called with table ids that native code has given to tables that it knows, and these tables."""

    # -- tables ---------------------------------------------------------------------------------------------------

    def note(self, number: bytes, body: bytes, table: Table, until: int) -> None:
        if len(self._known) >= _MOST_TABLES:
            self.clear()
        at = len(self._known)
        self._known.append(table)
        row_schema = table.row_schema
        if table.own and table.reported is None:
            self._reader.own(number, body, None, at, until)
        elif table.reported is not None and table.reported.schema.table == heartbeat.TABLE and self._destination:
            self._reader.own(number, body, self._destination, at, until)  # Python reads those of this destination
        elif table.own or (row_schema is not None and self._is_watched(row_schema.schema)):
            self._reader.leave(number, body, at, until)
        elif row_schema is None:
            self._reader.know(number, body, None, at, until)
        else:
            if not table.native_made:
                table.native_made = True
                layouts = [field.layout and for_native_code(field.layout) for field in row_schema.fields]
                table.native = self._rows.table(row_schema.schema, layouts)
            if table.native is None:
                self._reader.leave(number, body, at, until)
            else:
                self._reader.know(number, body, table.native, at, until)

    def _is_watched(self, schema: TableSchema) -> bool:
        return (schema.schema, schema.table) in self._watched

    def forget(self, number: bytes) -> None:
        self._reader.forget(number)

    def forget_ids(self) -> None:
        self._reader.forget_ids()

    def clear(self) -> None:
        self._reader.clear()
        self._known = []

    def makes(self, table: Table) -> bool:
        """Returns whether native code may make rows of a table at present."""
        row_schema = table.row_schema
        if not self.ready() or table.native is None or row_schema is None:
            return False
        return not self._is_watched(row_schema.schema)

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
            (at, why, need), place, group, gtid, (events, count, executed, learned) = self._reader.run(
                *(data, at, cursor.file, cursor.checksums, cursor.start if inner else None),
                *(eager, most, *given, rows.output, rows.open),
            )
        except BaseException as error:
            raise panicked(error, cursor) from error
        finally:
            rows.end()
        if events:
            transactions.taken_back(place, group, gtid, executed, count)
        if learned:
            self._learn()
        return at, events, need if why == _USED_UP else 0, why == _PYTHON

    def _learn(self) -> None:
        ids, numbers = self._reader.learned()
        self.learned(ids, [self._known[number] for number in numbers])
