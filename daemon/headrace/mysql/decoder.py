"""What rows events mean: finds the layouts of captured tables and decodes their rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import structlog

from headrace.model import (
    POS_LIMIT,
    POS_SHIFT,
    Operation,
    Position,
    RowsChange,
    SchemaChange,
    TableSchema,
    TransactionMark,
)
from headrace.mysql import heartbeat
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.compressed import decompress
from headrace.mysql.events.packets import BROKEN, Handler, SchemaNeeded
from headrace.mysql.events.partial_update import MissingBase, PartialUpdates
from headrace.mysql.events.table_map import TableLayout, TableMap, table_name
from headrace.mysql.heartbeat import Beat
from headrace.mysql.schema.history import SchemaHistory, misfit
from headrace.mysql.statement_follower import StatementFollower
from headrace.mysql.values.column_types import DEFAULTS
from headrace.mysql.values.mariadb import FIXED_BINARY
from headrace.mysql.values.rowcode import RowDecoder, make_decoder

log = structlog.get_logger(__name__)

_MAP_CACHE = 2_000
"""TABLE_MAPs kept by their bytes; a layout takes about 20 kB."""
_LIMIT = POS_LIMIT - (1 << 40)
"""Numbers up to here have room for any event's rows behind them."""
_from_bytes = int.from_bytes

_OPERATIONS = {
    ev.WRITE_ROWS: Operation.INSERT,
    ev.UPDATE_ROWS: Operation.UPDATE,
    ev.DELETE_ROWS: Operation.DELETE,
    ev.WRITE_ROWS_V1: Operation.INSERT,
    ev.UPDATE_ROWS_V1: Operation.UPDATE,
    ev.DELETE_ROWS_V1: Operation.DELETE,
    ev.PARTIAL_UPDATE_ROWS: Operation.UPDATE,
}


@dataclass(slots=True)
class _Table:
    """One TABLE_MAP by its bytes. `layout` is None for a table that the filter drops."""

    name: str
    layout: TableLayout | None = None
    count: int = 0
    decoders: dict[bytes, RowDecoder] = field(default_factory=dict)
    """By the bitmaps of columns that the images have."""
    partial: set[bytes] | Literal[False] = False
    """Those bitmaps that lack columns; False while there are none, as is the rule."""
    own: bool = False
    """One of headrace's own tables, whose rows are never published."""
    beats: TableLayout | None = None
    """Set for the heartbeat table."""


class Decoder(StatementFollower):
    """One per stream. feed() and the handlers are the hot path: everything there is paid for every event.

    `captures` says of a schema and table whether its rows are wanted; `emit` takes each change, `emit_schema` each
    statement that is published, `emit_mark` the begin and end of transactions with captured changes, `on_beat` each row
    of the heartbeat table that is inserted or updated. `history` knows
    layouts where the binlog does not describe them. When `wanted` is set after feed(), that table's layout has to be
    found, and learned() called, before the next call.
    """

    def __init__(
        self,
        start: Position,
        *,
        captures: Callable[[str, str], bool],
        emit: Callable[[RowsChange], None],
        checksums: bool,
        skip_before: int = 0,
        emit_schema: Callable[[SchemaChange], None] | None = None,
        emit_mark: Callable[[TransactionMark], None] | None = None,
        on_beat: Callable[[Beat], None] | None = None,
        history: SchemaHistory | None = None,
        options: DecoderOptions | None = None,
    ) -> None:
        super().__init__(
            start,
            captures=captures,
            checksums=checksums,
            skip_before=skip_before,
            emit_schema=emit_schema,
            emit_mark=emit_mark,
            history=history,
            options=options or DecoderOptions(),
        )
        self._emit, self._on_beat = emit, on_beat
        self.wanted: tuple[str, str] | None = None
        self._mariadb = False
        self._unknowable: dict[tuple[str, str], str] = {}
        self._mistrusted: set[tuple[str, str]] = set()
        """Tables whose rows did not fit what was known: they are read again once."""
        self._tables: dict[bytes, _Table] = {}
        self._maps: dict[bytes, _Table] = {}
        self._handlers[ev.TABLE_MAP] = self._on_table_map
        for kind, operation in _OPERATIONS.items():
            handler = self._handlers[kind] = self._rows_handler(kind, operation, kind >= ev.WRITE_ROWS)
            for compressed, plain in ev.MARIADB_COMPRESSED_ROWS.items():
                if plain == kind:
                    self._handlers[compressed] = self._decompressing(handler, kind)

    def _waits(self) -> bool:
        return self.wanted is not None

    def _on_format(self, data: bytes, at: int, stop: int) -> None:
        super()._on_format(data, at, stop)
        self._tables.clear()  # every transaction describes its tables anew
        self._mariadb = b"MariaDB" in data[at + 2 : at + 52]

    # -- tables ---------------------------------------------------------------------------------------------------

    def _on_table_map(self, data: bytes, at: int, stop: int) -> None:
        body = data[at + 6 : stop]
        table = self._maps.get(body)
        if table is None:
            if self._skipping() and not self._wants_xa():  # its rows are passed over, so its layout may be unknown
                table = _Table("")
            else:
                table = self._new_table(body)
        self._tables[data[at : at + 6]] = table
        if self._in_xa and table.layout is not None and self._wants_xa():
            self._spool.add(self._time, ev.TABLE_MAP, data[at:stop])

    def _new_table(self, body: bytes) -> _Table:
        """Kept by its bytes without the table id, which changes with every reopening of the table."""
        try:
            schema, name, _ = table_name(body)
        except BROKEN as error:
            raise self._not_understood(f"a table layout is not understood: {error}") from error
        table = _Table(f"{schema}.{name}", own=schema == heartbeat.SCHEMA)
        if table.own:
            if name == heartbeat.TABLE:
                table.beats = self._beats_layout(body)
        elif self._options.rows and self._captures(schema, name):
            try:
                event = TableMap(body, mariadb=self._mariadb)
                table.layout = event.layout(self._schema(event), self._options.values)
                table.count = len(table.layout.fields)
            except BROKEN as error:
                if not self._pass_table(f"table {table.name} is not understood: {error}", error):
                    return table
        if len(self._maps) >= _MAP_CACHE:
            del self._maps[next(iter(self._maps))]
        self._maps[body] = table
        return table

    def _beats_layout(self, body: bytes) -> TableLayout | None:
        """None when the table is not as headrace makes it: then beats are not seen, and the rows matter to nobody."""
        try:
            event = TableMap(body, mariadb=self._mariadb)
        except BROKEN:
            return None
        return None if misfit(heartbeat.LAYOUT, event.types, event.nulls) else event.layout(heartbeat.LAYOUT, DEFAULTS)

    def _on_beat_rows(
        self, table: _Table, layout: TableLayout, data: bytes, at: int, stop: int, *, extra: bool, images: int
    ) -> None:
        if self._on_beat is None or self._skipping() or self.events_done <= self._skip_events:
            return
        p = at + 8 + (_from_bytes(data[at + 8 : at + 10], "little") if extra else 0)
        count = len(layout.fields)
        bitmaps = data[p + 1 : p + 1 + images]
        full = (1 << count) - 1
        if data[p] != count or any(bits & full != full for bits in bitmaps):
            return  # an image that lacks columns (binlog_row_image other than FULL) tells of no beat
        decode = table.decoders.get(bitmaps)
        if decode is None:
            decode = table.decoders[bitmaps] = make_decoder(layout.fields, visible=count)
        try:
            beats = [heartbeat.Beat.of(row) for row in decode(data, p + 1 + images, stop)[images - 1 :: images]]
        except BROKEN:
            return  # a table that somebody made in another way, such as in another character set
        for beat in beats:
            self._on_beat(beat)

    def _pass_table(self, what: str, error: Exception) -> bool:
        """Raises unless a table that is not understood is to be passed over; whether that holds for good, rather than
        for this one event."""
        here = self._where() in self._skip_named
        if not here and not self._options.skip_broken_tables:
            raise self._not_understood(what, "see docs/schema-history.md and docs/operations.md, 'FAILED'") from error
        self.skipped += 1
        log.warning("table passed over", reason=what, place=self._where())
        return not here

    def _schema(self, event: TableMap) -> TableSchema:
        """What the columns are: from the stream where it says so, else from the history. Raises SchemaNeeded."""
        known = self.history.table(event.schema, event.table) if self.history is not None else None
        if event.has_names:
            described = event.described()
            if known is not None and not misfit(known, event.visible_types, event.nulls):
                return _declared(described, known)
            return described
        if self.history is None:
            raise self._not_understood(
                f"table {event.schema}.{event.table} comes without column names",
                "SET PERSIST binlog_row_metadata = 'FULL';",
            )
        if known is None:
            why = self._unknowable.get((event.schema, event.table))
            if why:
                raise ValueError(f"its layout at this place is not known: {why}")
            self.wanted = (event.schema, event.table)
            raise SchemaNeeded
        why = misfit(known, event.types, event.nulls)
        if why:
            table = (event.schema, event.table)
            if table in self._mistrusted:
                raise ValueError(f"its rows do not fit what is known of it: {why}")
            self._mistrusted.add(table)  # what the server shows now may fit, when no DDL came since
            self.history.mistrust(*table, why)
            self.wanted = table
            raise SchemaNeeded
        return known

    def learned(self, why_not: str = "") -> None:
        """Goes on after `wanted`: its layout is in the history now, or can't be found because of `why_not`."""
        assert self.wanted is not None
        if why_not:
            self._unknowable[self.wanted] = why_not
        self.wanted = None

    def _on_layouts_changed(self) -> None:
        self._maps.clear()
        self._unknowable.clear()
        self._mistrusted.clear()

    # -- rows -----------------------------------------------------------------------------------------------------

    def _rows_handler(self, kind: int, operation: Operation, extra: bool) -> Handler:
        """The handler of one rows event type; `extra`: version 2, with a block of extra data before the columns."""
        update = operation is Operation.UPDATE
        images = 2 if update else 1
        diffs = kind == ev.PARTIAL_UPDATE_ROWS

        def on_rows(data: bytes, at: int, stop: int) -> None:
            if self._in_xa:
                self._hold(kind, data, at, stop)
                return
            self.events_done += 1
            table = self._tables.get(data[at : at + 6])
            if table is None:
                raise self._not_understood("rows of a table that was not described before them")
            if table.layout is None or self.events_done <= self._skip_events:
                if table.own:
                    self._own_events += 1
                    if table.beats is not None and operation is not Operation.DELETE:
                        self._on_beat_rows(table, table.beats, data, at, stop, extra=extra, images=images)
                return
            if self._skip_to is not None:
                return
            p = at + 8 + (_from_bytes(data[at + 8 : at + 10], "little") if extra else 0)
            if table.count < 251:
                count, p = data[p], p + 1
            else:
                count, p = _from_bytes(data[p + 1 : p + 3], "little"), p + 3
            q = p + (table.count + 7) // 8 * images
            bitmaps = data[p:q]
            decode = table.decoders.get(b"P" + bitmaps if diffs else bitmaps)
            if decode is None or count != table.count:
                decode = self._new_decoder(table, bitmaps, count, images, diffs)
            try:
                rows = decode(data, q, stop)
            except MissingBase as error:
                raise self._not_understood(
                    f"an update of {table.name}: {error}",
                    "SET PERSIST binlog_row_image = 'FULL'; or SET PERSIST binlog_row_value_options = '';",
                ) from error
            except BROKEN as error:
                raise self._not_understood(f"rows of {table.name} do not fit its columns: {error}") from error
            before = None
            if update:
                before, rows = rows[0::2], rows[1::2]
                if len(before) != len(rows):
                    raise self._not_understood(f"an update of {table.name} has an odd number of row images")
            self._captured_rows = True
            self._give(table, operation, rows, before, table.partial is not False and bitmaps in table.partial)

        return on_rows

    def _hold(self, kind: int, data: bytes, at: int, stop: int) -> None:
        """Rows of an XA transaction wait for its COMMIT."""
        table = self._tables.get(data[at : at + 6])
        if table is None:
            raise self._not_understood("rows of a table that was not described before them")
        if table.layout is not None and self._wants_xa():
            self._spool.add(self._time, kind, data[at:stop])

    def _give(
        self,
        table: _Table,
        operation: Operation,
        rows: list[tuple[object, ...]],
        before: list[tuple[object, ...]] | None,
        partial: bool,
    ) -> None:
        if self._skip_rows:  # confirmed before a restart in the middle of this event; the numbers go on behind them
            n, self._skip_rows = self._skip_rows, 0
            rows, before = rows[n:], before[n:] if before is not None else None
        assert table.layout is not None
        if self._emit_mark is not None:
            self._count(table.name, len(rows))
        if self._statement is not None:
            self._give_statement(table.layout.schema)
        when, numbers = self.commit_time_us, len(rows)
        if before is not None and self._options.two_numbers:
            numbers *= 2
        pos = when << POS_SHIFT
        if pos <= self.last_pos or pos >= _LIMIT:
            pos = self._next_pos(numbers)
        else:
            self.last_pos = pos + numbers - 1
        self._emit(RowsChange(table.layout.schema, operation, rows, before, pos, when, self.gtid, partial))

    def _new_decoder(self, table: _Table, bitmaps: bytes, count: int, images: int, diffs: bool) -> RowDecoder:
        """The decoder of row images that have the columns of `bitmaps`."""
        assert table.layout is not None
        if count != table.count:
            raise self._not_understood(f"rows of {table.name} have {count} columns, its description {table.count}")
        width = (count + 7) // 8
        if len(bitmaps) != width * images:
            raise self._not_understood(f"rows of {table.name} end within their head")
        whole = (1 << count) - 1
        sets = [_from_bytes(bitmaps[i * width : (i + 1) * width], "little") & whole for i in range(images)]
        if any(columns != whole for columns in sets):
            if not self._options.partial_images:
                raise self._not_understood(
                    f"rows of {table.name} lack columns: the row image is not FULL",
                    "SET PERSIST binlog_row_image = 'FULL'; and let old sessions reconnect; or take such rows with "
                    "[source] row_image = 'any'",
                )
            table.partial = (table.partial or set()) | {bitmaps}
        layout = table.layout
        if diffs:
            decoder: RowDecoder = PartialUpdates(layout.fields, layout.kinds, *sets)
        else:
            shown = sets if table.partial and bitmaps in table.partial else ()
            decoder = make_decoder(layout.fields, *shown, visible=len(layout.schema.columns))
        if len(table.decoders) > 100:
            table.decoders.clear()
        table.decoders[b"P" + bitmaps if diffs else bitmaps] = decoder
        return decoder

    def _decompressing(self, handler: Handler, kind: int) -> Handler:
        """MariaDB's compressed rows: what follows the bitmaps is compressed (log_bin_compress)."""

        def on_compressed(data: bytes, at: int, stop: int) -> None:
            table = self._tables.get(data[at : at + 6])
            if table is None or table.layout is None:
                handler(data, at, stop)
                return
            p = at + 8 + (_from_bytes(data[at + 8 : at + 10], "little") if kind >= ev.WRITE_ROWS else 0)
            p += (1 if table.count < 251 else 3) + (table.count + 7) // 8 * (
                2 if _OPERATIONS[kind] is Operation.UPDATE else 1
            )
            plain = data[at:p] + decompress(data, p, stop)
            handler(plain, 0, len(plain))

        return on_compressed


def _declared(described: TableSchema, known: TableSchema) -> TableSchema:
    """The stream's description, with what the history knows besides where both are about the same columns."""
    pairs = zip(described.columns, known.columns, strict=True)
    same = all(
        (a.name, a.unsigned, a.labels) == (b.name, b.unsigned, b.labels)
        and (a.charset in ("", b.charset) or b.kind in FIXED_BINARY)  # these travel as BINARY
        for a, b in pairs
    )
    return TableSchema(described.schema, described.table, known.columns, described.keys) if same else described
