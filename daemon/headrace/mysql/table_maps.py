"""The tables that a stream describes before their rows, by the ids in rows events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import structlog

from headrace.model import TableSchema
from headrace.mysql import heartbeat
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.splitter import BROKEN, SchemaNeeded
from headrace.mysql.events.table_map import RowSchema, TableMap, table_name
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.schema.described import DescribedTables
from headrace.mysql.schema.fit import misfit
from headrace.mysql.schema.states import ALWAYS
from headrace.mysql.values.column_types import DEFAULTS
from headrace.mysql.values.rowcode import RowDecoder, StepDecoder
from headrace.ports.source import Unprepared

log = structlog.get_logger(__name__)

_REPORTED = {heartbeat.TABLE: heartbeat.TABLE_SCHEMA, heartbeat.SIGNAL_TABLE: heartbeat.SIGNAL_SCHEMA}
"""Our own tables whose rows are handled."""
_MAPS, _NUMBERS = 8_000, 8_000
"""TABLE_MAPs by their bytes, and table ids, of one generation; what was not used for as many others is forgotten. The
objects of a TABLE_MAP take about 10 kB. The server gives a table another id whenever it opens it again, so that there
are always new ones, and one statement describes fewer tables."""


@dataclass(slots=True)
class Table:
    """One TABLE_MAP by its bytes. `row_schema` is None for a table that the filter drops."""

    name: str
    row_schema: RowSchema | None = None
    count: int = 0
    """Number of columns."""
    decoders: dict[bytes, RowDecoder] = field(default_factory=dict)
    """By the bitmaps of the columns in images."""
    steps: dict[bytes, StepDecoder] = field(default_factory=dict)
    """The same, for one row at a time."""
    partial: set[bytes] | Literal[False] = False
    """Those bitmaps that lack columns; False while there are none, as is usual."""
    own: bool = False
    """One of headrace's own tables, whose rows are never published."""
    nameless: bool = False
    """Whether its columns are known only from the schema history."""
    reported: RowSchema | None = None
    """Set for own tables whose rows are handled: heartbeats and signals."""
    native: Any = None
    """Native code's converter for its rows; None if it has none."""
    native_made: bool = False
    """Whether it was requested."""


class KnownTables(Protocol):
    """The tables that native code knows."""

    learned: Callable[[Sequence[bytes], Sequence[Table]], None]
    """Called with table ids that native code has given to tables that it knows, and these tables."""

    def note(self, number: bytes, body: bytes, table: Table, until: int) -> None:
        """Records a TABLE_MAP, which has been decoded: it gave a table this id. Up to the offset `until` of this file
        the same bytes may come with other ids."""

    def forget(self, number: bytes) -> None:
        """Forgets a table id and the TABLE_MAP that had it: the table has another one now."""

    def forget_ids(self) -> None:
        """Forgets all table ids, which the same TABLE_MAPs may get again."""

    def clear(self) -> None:
        """Forgets all: tables may have changed."""


class TableMaps:
    """Handlers of TABLE_MAP and of the event that begins a file. `tables` has the tables by id; it stays the same
    object. An id that it does not have may be that of an older() one."""

    def __init__(
        self,
        cursor: EventCursor,
        transactions: Transactions,
        described: DescribedTables,
        captures: Callable[[str, str], bool],
        options: DecoderOptions,
        seen: Callable[[str, str], None] | None = None,
        unprepared: Unprepared | None = None,
    ) -> None:
        """`seen`: see Receiver.table; `unprepared`: see Receiver.unprepared."""
        self._unprepared = unprepared
        self.awaited: Callable[[], Awaitable[None]] | None = None
        """Set if something must be awaited before the next event is read."""
        self._cursor, self._transactions, self._described = cursor, transactions, described
        self._captures, self._options, self._seen = captures, options, seen
        self.tables: dict[bytes, Table] = {}
        self._older: dict[bytes, Table] = {}
        """Those of the previous generation. They are forgotten when the next one begins: a table's rows come before as
        many other tables are described."""
        self._older_since = -1
        """The number of the transaction in which the present generation began."""
        self._ids: dict[str, bytes] = {}
        """For tables whose rows have no column names: the id that they had when they were last compared."""
        self._most_ids = _NUMBERS
        """Their maximum number; then names of dropped tables are searched for."""
        self._maps: dict[bytes, Table] = {}
        """By their bytes without the table id, which changes when the table is reopened."""
        self._older_maps: dict[bytes, Table] = {}
        self.native: KnownTables | None = None

    def on_format(self, data: bytes, at: int, stop: int) -> None:
        """Handles FORMAT_DESCRIPTION."""
        self.forget_numbers()  # every transaction describes its tables again
        self._ids.clear()  # the server may have restarted, and then ids begin again

    def clear(self) -> None:
        """Forgets all tables permanently."""
        self.forget_numbers()
        self._maps.clear()
        self._older_maps.clear()

    def forget_numbers(self) -> None:
        """Forgets table ids: rows belong to no table before it is described again."""
        self.tables.clear()
        self._older.clear()
        if self.native is not None:
            self.native.clear()

    def _begin_generation(self) -> None:
        self._older, self._older_since = dict(self.tables), self._transactions.count
        self.tables.clear()
        if self.native is not None:
            self.native.forget_ids()

    def older(self, number: bytes) -> Table | None:
        """Returns a table of the previous generation, which now belongs to the present one."""
        table = self._older.pop(number, None)
        if table is not None:
            self.tables[number] = table
        return table

    def on_table_map(self, data: bytes, at: int, stop: int) -> None:
        body, transactions = data[at + 6 : stop], self._transactions
        table = self._known(body)
        if table is None:
            if transactions.passing or (transactions.skipping and not transactions.holding):
                table = Table("")  # its rows are skipped, so its schema may be unknown
            else:
                table = self._new(body)
        number = data[at : at + 6]
        settled = not transactions.passing
        if table.nameless and settled and self._ids.get(table.name) != number:
            settled = self._compared(table, number)
        if number not in self.tables and len(self.tables) >= _NUMBERS:
            self._begin_generation()
        self.tables[number] = table
        if self.native is not None:
            if settled and self._maps.get(body) is table:
                self.native.note(number, body, table, self._until(table))
            else:  # it is valid for this event only
                self.native.forget(number)
        if transactions.holding:
            transactions.hold(ev.TABLE_MAP, data[at:stop])

    def _until(self, table: Table) -> int:
        """Returns up to which offset of this file a table may get other ids without being compared."""
        if not table.nameless or table.row_schema is None:
            return ALWAYS
        known = table.row_schema.schema
        return self._described.agreed_until((known.schema, known.table))

    def learned(self, numbers: Sequence[bytes], tables: Sequence[Table]) -> None:
        """Records table ids that native code has given to tables that it knows."""
        known, ids = self.tables, self._ids
        for number, table in zip(numbers, tables, strict=True):
            if len(known) >= _NUMBERS and number not in known:
                self._begin_generation()
            known[number] = table
            if table.nameless:
                ids[table.name] = number

    def again(self, body: bytes, number: bytes) -> bool:
        """Handles a TABLE_MAP that came before, by its body without the table id. Returns whether the table may have
        that id: not if it must be checked again."""
        table = self._known(body)
        if table is None or (table.nameless and self._ids.get(table.name) != number):
            return False
        if number not in self.tables and len(self.tables) >= _NUMBERS:
            self._begin_generation()
        self.tables[number] = table
        return True

    def _compared(self, table: Table, number: bytes) -> bool:
        """Returns whether a table whose rows have no column names may have a new id; until it may, the question is
        repeated. Raises SchemaNeeded."""
        assert table.row_schema is not None
        known = table.row_schema.schema
        if not self._described.compared((known.schema, known.table)):
            return False
        if self.native is not None and (former := self._ids.get(table.name)) is not None:
            self.native.forget(former)
        self._ids[table.name] = number
        return True

    def forget(self) -> None:
        """Forgets schemas: tables have changed."""
        self.refresh()
        self._described.forget()
        if len(self._ids) > self._most_ids:
            known = self._described.known()
            self._ids = {name: number for name, number in self._ids.items() if name in known}
            self._most_ids = _NUMBERS + 2 * len(self._ids)

    def refresh(self) -> None:
        """Takes tables from the history again. Tables that were already described may still have rows."""
        self._maps.clear()
        self._older_maps.clear()
        if self.native is not None:
            self.native.clear()
        kept = self._older if self._older_since == self._transactions.count else {}  # tables may be learned one by one
        self._begin_generation()
        self._older = {**kept, **self._older}

    def _new(self, body: bytes) -> Table:
        try:
            schema, name, _ = table_name(body)
        except BROKEN as error:
            raise self._cursor.not_understood(f"a table schema is not understood: {error}") from error
        table = Table(f"{schema}.{name}", own=schema == heartbeat.SCHEMA)
        if table.own:
            if (known := _REPORTED.get(name)) is not None:
                table.reported = self._own(body, known)
        elif self._options.rows and self._captures(schema, name):
            try:
                event = TableMap(body, mariadb=self._cursor.dialect.mariadb)
                described = self._described.of(event)
                if self._unprepared is not None and (awaited := self._unprepared(described)) is not None:
                    self.awaited = awaited
                    raise SchemaNeeded
                table.row_schema = event.row_schema(described, self._options.values)
                table.count, table.nameless = len(table.row_schema.fields), not event.has_names
                if self._seen is not None:
                    self._seen(schema, name)
            except BROKEN as error:
                if not self._pass_over(f"table {table.name} is not understood: {error}", error):
                    return table
        self._keep(body, table)
        return table

    def _keep(self, body: bytes, table: Table) -> None:
        if len(self._maps) >= _MAPS:
            self._older_maps, self._maps = self._maps, {}
        self._maps[body] = table

    def _known(self, body: bytes) -> Table | None:
        """Returns a table by its TABLE_MAP, if that came recently."""
        table = self._maps.get(body)
        if table is None and (table := self._older_maps.pop(body, None)) is not None:
            self._keep(body, table)
        return table

    def _own(self, body: bytes, known: TableSchema) -> RowSchema | None:
        """Returns None if the table is not as headrace creates it: then its rows are ignored."""
        try:
            event = TableMap(body, mariadb=self._cursor.dialect.mariadb)
        except BROKEN:
            return None
        return None if misfit(known, event.types, event.nulls) else event.row_schema(known, DEFAULTS)

    def _pass_over(self, what: str, error: Exception) -> bool:
        """Raises unless a table that is not understood must be skipped; returns whether that is permanent, rather than
        for this one event."""
        cursor = self._cursor
        if not cursor.may_skip and not self._options.skip_broken_tables:
            remedy = "docs/schema-history.md says how columns are known"
            raise cursor.not_understood(what, remedy) from error
        cursor.skipped += 1
        log.warning("table passed over", reason=what, position=cursor.position)
        return not cursor.may_skip
