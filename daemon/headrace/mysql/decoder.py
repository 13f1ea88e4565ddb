"""What the events mean: decodes the rows of captured tables, follows the transactions and keeps the place."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from headrace.model import POS_LIMIT, POS_SHIFT, Operation, Position, RowsChange, TableSchema
from headrace.mysql import event_types as ev
from headrace.mysql.gtid import GtidSet
from headrace.mysql.packets import EventCutter, Handler
from headrace.mysql.rowcode import RowDecoder, make_decoder
from headrace.mysql.statements import Statement, classify
from headrace.mysql.table_map import MissingMetadata, parse, table_name

_GTID = struct.Struct("<Q").unpack_from
_MAP_CACHE = 2_000
"""TABLE_MAPs kept by their bytes; a layout takes about 20 kB."""
_from_bytes = int.from_bytes
_ROW_ERRORS = (ValueError, IndexError, KeyError, struct.error, TypeError, LookupError)


@dataclass(slots=True)
class _Table:
    """One TABLE_MAP by its bytes. `decode` is None for a table that the filter drops."""

    name: str
    schema: TableSchema | None = None
    decode: RowDecoder | None = None
    count: int = 0
    full: frozenset[bytes] = frozenset()
    """Column bitmaps seen that have all columns (spare bits may be either way)."""


_OPERATIONS = {
    ev.WRITE_ROWS: Operation.INSERT,
    ev.UPDATE_ROWS: Operation.UPDATE,
    ev.DELETE_ROWS: Operation.DELETE,
    ev.WRITE_ROWS_V1: Operation.INSERT,
    ev.UPDATE_ROWS_V1: Operation.UPDATE,
    ev.DELETE_ROWS_V1: Operation.DELETE,
}


class Decoder(EventCutter):
    """One per stream. feed() and the handlers are the hot path: everything there is paid for every event.

    `captures` says of a schema and table whether its rows are wanted; `emit` takes each change. The place is
    readable between two calls of feed(): `file`, `end` (offset behind the last event), `position()`.
    """

    def __init__(
        self,
        start: Position,
        *,
        captures: Callable[[str, str], bool],
        emit: Callable[[RowsChange], None],
        checksums: bool,
        skip_before: int = 0,
        skip_until_us: int = 0,
    ) -> None:
        super().__init__(start.file, start.offset, checksums=checksums)
        self.server_uuid = start.server_uuid
        self.gtids: GtidSet | None = GtidSet(start.gtid_set) if start.gtid_set else None
        self.last_pos, self.commit_time_us = start.last_pos, start.commit_time_us
        self.transactions = 0
        self.gtid = ""
        self.events_done = 0
        self.tx_start = start.offset
        self._last_commit_us = start.commit_time_us
        self._captures, self._emit = captures, emit
        self._begin = start
        self._skip_before, self._skip_until_us = skip_before, skip_until_us
        self._resume: Position | None = start if start.events_done or start.rows_done else None
        self._skip_events = self._skip_rows = 0
        self._gtid_key: tuple[str, int] | None = None
        self._in_transaction = self._in_xa = self._captured_rows = self._grouped = False
        self._tables: dict[bytes, _Table] = {}
        self._maps: dict[bytes, _Table] = {}
        self._sids: dict[bytes, str] = {}
        self._handlers = {
            ev.TABLE_MAP: self._on_table_map,
            ev.GTID: self._on_gtid,
            ev.ANONYMOUS_GTID: self._on_gtid,
            ev.MARIADB_GTID: self._on_mariadb_gtid,
            ev.XID: self._on_commit,
            ev.XA_PREPARE: self._on_commit,
            ev.QUERY: self._on_query,
            ev.ROTATE: self._on_rotate,
            ev.FORMAT_DESCRIPTION: self._on_format,
            ev.PREVIOUS_GTIDS: self._on_previous_gtids,
            **dict.fromkeys(ev.HARMLESS, self._on_nothing),
        }
        for kind, operation in _OPERATIONS.items():
            self._handlers[kind] = self._rows_handler(operation, kind >= ev.WRITE_ROWS)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _on_table_map(self, data: bytes, at: int, stop: int) -> None:
        body = data[at + 6 : stop]
        table = self._maps.get(body)
        if table is None:
            table = self._new_table(body)
        self._tables[data[at : at + 6]] = table

    def _new_table(self, body: bytes) -> _Table:
        """Kept by its bytes without the table id, which changes with every reopening of the table."""
        try:
            schema, name, _ = table_name(body)
            table = _Table(f"{schema}.{name}")
            if self._captures(schema, name):
                layout = parse(body)
                table.schema, table.decode = layout.schema, make_decoder(layout.fields)
                table.count = len(layout.fields)
        except MissingMetadata as error:
            raise self._not_understood(str(error), "SET PERSIST binlog_row_metadata = 'FULL';") from error
        except _ROW_ERRORS as error:
            raise self._not_understood(f"a table layout is not understood: {error}") from error
        if len(self._maps) >= _MAP_CACHE:
            del self._maps[next(iter(self._maps))]
        self._maps[body] = table
        return table

    def _rows_handler(self, operation: Operation, extra: bool) -> Handler:
        """The handler of one rows event type; `extra`: version 2, with a block of extra data before the columns."""
        update = operation is Operation.UPDATE

        def on_rows(data: bytes, at: int, stop: int) -> None:
            self.events_done += 1
            table = self._tables.get(data[at : at + 6])
            if table is None:
                raise self._not_understood("rows of a table that was not described before them")
            if table.decode is None or self.events_done <= self._skip_events or self._skipping():
                return
            if self._in_xa:
                raise self._not_understood(
                    f"an XA transaction changes {table.name}, and XA is not supported yet",
                    "leave the table out of [filter] include, or use plain transactions",
                )
            p = at + 8 + (_from_bytes(data[at + 8 : at + 10], "little") if extra else 0)
            p = self._present(table, data, p, update)
            try:
                images = table.decode(data, p, stop)
            except _ROW_ERRORS as error:
                raise self._not_understood(f"rows of {table.name} do not fit its columns: {error}") from error
            before = None
            if update:
                before, images = images[0::2], images[1::2]
                if len(before) != len(images):
                    raise self._not_understood(f"an update of {table.name} has an odd number of row images")
            self._captured_rows = True
            self._give(table, operation, images, before)

        return on_rows

    def _give(
        self,
        table: _Table,
        operation: Operation,
        rows: list[tuple[object, ...]],
        before: list[tuple[object, ...]] | None,
    ) -> None:
        if self._skip_rows:  # confirmed before a restart in the middle of this event; the numbers go on behind them
            n, self._skip_rows = self._skip_rows, 0
            rows, before = rows[n:], before[n:] if before is not None else None
        pos = self.commit_time_us << POS_SHIFT
        if pos <= self.last_pos:
            pos = self.last_pos + 1
        self.last_pos = pos + len(rows) - 1
        if self.last_pos >= POS_LIMIT:
            raise self._not_understood(f"the commit time {self.commit_time_us} us is beyond what _pos can hold")
        assert table.schema is not None
        self._emit(RowsChange(table.schema, operation, rows, before, pos, self.commit_time_us, self.gtid))

    def _present(self, table: _Table, data: bytes, p: int, update: bool) -> int:
        """Checks that the row images have all columns; returns where the rows begin."""
        width = (table.count + 7) // 8
        if table.count < 251:
            count, p = data[p], p + 1
        else:
            count, p = _from_bytes(data[p + 1 : p + 3], "little"), p + 3
        if count != table.count:
            raise self._not_understood(f"rows of {table.name} have {count} columns, its description {table.count}")
        stop = p + width * (2 if update else 1)
        bitmaps = data[p:stop]
        if bitmaps not in table.full:
            mask = (1 << table.count) - 1
            for i in range(0, len(bitmaps), width):
                if _from_bytes(bitmaps[i : i + width], "little") & mask != mask:
                    raise self._not_understood(
                        f"rows of {table.name} lack columns: the row image is not FULL",
                        "SET PERSIST binlog_row_image = 'FULL'; and let old sessions reconnect",
                    )
            table.full |= {bitmaps}
        return stop

    # -- transactions -------------------------------------------------------------------------------------------

    def _on_gtid(self, data: bytes, at: int, stop: int) -> None:
        self._begin_group()
        if stop - at >= 49:
            # The 55th bit says that the original commit time follows; the low bits are the immediate one.
            self.commit_time_us = _from_bytes(data[at + 42 : at + 49], "little") & 0x7FFFFFFFFFFFFF
        else:
            self.commit_time_us = self._time * 1_000_000
        raw = data[at + 1 : at + 17]
        (gno,) = _GTID(data, at + 17)
        if gno:
            sid = self._sids.get(raw)
            if sid is None:
                h = raw.hex()
                sid = self._sids[raw] = f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
            self.gtid = f"{sid}:{gno}"
            self._gtid_key = (sid, gno)
        else:
            self.gtid, self._gtid_key = "", None

    def _on_mariadb_gtid(self, data: bytes, at: int, stop: int) -> None:
        self._begin_group()
        sequence, domain, flags = struct.unpack_from("<QIB", data, at)
        self.commit_time_us = self._time * 1_000_000
        (server,) = struct.unpack_from("<I", data, at - 14)
        self.gtid = f"{domain}-{server}-{sequence}"
        self._in_transaction = not flags & 1  # 1: a statement that is a group by itself
        if flags & 0x40:  # FL_PREPARED_XA: the group ends in XA PREPARE
            self._in_xa = True

    def _begin_group(self) -> None:
        if self._in_transaction:
            raise self._not_understood(f"a transaction begins before the one at {self.tx_start} has ended")
        self.tx_start, self.events_done = self._start, 0
        self._grouped, self._captured_rows, self._in_xa = True, False, False
        self._skip_events = self._skip_rows = 0
        if self._resume is not None:
            # Only the very transaction that was under way is resumed inside; any other begins at its start.
            if (self.file, self.tx_start) == (self._resume.file, self._resume.offset):
                self._skip_events, self._skip_rows = self._resume.events_done, self._resume.rows_done
            self._resume = None

    def _skipping(self) -> bool:
        if self._skip_before and self.tx_start < self._skip_before:
            return True
        return bool(self._skip_until_us) and self.commit_time_us < self._skip_until_us

    def _on_commit(self, data: bytes = b"", at: int = 0, stop: int = 0) -> None:
        if self._gtid_key is not None:
            if self.gtids is None:
                self.gtids = GtidSet()
            self.gtids.add(*self._gtid_key)
            self._gtid_key = None
        self._in_transaction = self._grouped = self._in_xa = self._captured_rows = False
        self._last_commit_us = self.commit_time_us
        self.events_done = 0
        self.transactions += 1
        if len(self._tables) > _MAP_CACHE:  # every transaction describes its tables anew
            self._tables.clear()

    def _on_query(self, data: bytes, at: int, stop: int) -> None:
        if data[stop - 6 : stop] == b"\0BEGIN":
            if not self._grouped:
                self._begin_group()
                self.commit_time_us, self.gtid = self._time * 1_000_000, ""
            self._in_transaction = True
            return
        schema_length, _, variables = struct.unpack_from("<BHH", data, at + 8)
        schema_at = at + 13 + variables
        text = data[schema_at + schema_length + 1 : stop]
        if not self._grouped:
            self._begin_group()
            self.commit_time_us, self.gtid = self._time * 1_000_000, ""
        kind = classify(text)
        if kind is Statement.XA_START:
            self._in_transaction = self._in_xa = True
        elif kind is Statement.INSIDE or (kind is Statement.OTHER and self._in_transaction):
            pass  # SAVEPOINT; DDL of a temporary table within a transaction
        elif kind is Statement.ROLLBACK and self._captured_rows:
            raise self._not_understood("a transaction that changed captured tables ends in a ROLLBACK")
        elif kind is Statement.DML and not self._skipping():
            schema = data[schema_at : schema_at + schema_length].decode("utf-8", "replace")
            raise self._not_understood(
                f"a statement in schema '{schema}' was written as text, its rows are not in the binlog",
                "SET PERSIST binlog_format = 'ROW'; and let old sessions reconnect",
            )
        elif kind is Statement.ATOMIC_DDL:
            self._in_transaction = True  # CREATE TABLE ... SELECT: its rows follow in the same group
        else:
            self._on_commit()

    # -- the place ----------------------------------------------------------------------------------------------

    def _on_rotate(self, data: bytes, at: int, stop: int) -> None:
        (offset,) = struct.unpack_from("<Q", data, at)
        file = data[at + 8 : stop].decode()
        if file != self.file:  # the one that opens a dump only repeats where we are
            self.file, self.end = file, offset
        if self._skip_before and self._time:
            self._skip_before = 0
        if not self._grouped:
            self.tx_start = self.end

    def _on_format(self, data: bytes, at: int, stop: int) -> None:
        version, header = _from_bytes(data[at : at + 2], "little"), data[at + 56]
        if version != 4 or header != 19:
            raise self._not_understood(f"binlog version {version} with headers of {header} bytes")
        algorithm = data[stop - 1]
        if algorithm > 1:
            raise self._not_understood(f"checksum algorithm {algorithm} is unknown")
        self._crc = algorithm == 1

    def _on_previous_gtids(self, data: bytes, at: int, stop: int) -> None:
        if self.gtids is None:
            try:
                self.gtids = GtidSet.unpack(data[at:stop])
            except (ValueError, struct.error) as error:
                raise self._not_understood(f"the executed GTIDs are not understood: {error}") from error

    def _on_nothing(self, data: bytes, at: int, stop: int) -> None:
        """An event that changes no rows."""

    def position(self) -> Position:
        """From where reading would go on if everything given out so far were confirmed."""
        if self._resume is not None:
            return self._resume  # nothing came yet: what was done of the transaction under way still holds
        if self.end < self._skip_before:
            return self._begin  # on the way to where we are to begin
        gtids = str(self.gtids) if self.gtids else ""
        if self._grouped:
            offset, done, when = self.tx_start, self.events_done, self._last_commit_us
            if done < self._skip_events:
                done = self._skip_events
        else:
            offset, done, when = self.end, 0, self.commit_time_us
        return Position(self.server_uuid, self.file, offset, gtids, done, 0, (), self.last_pos, when)
