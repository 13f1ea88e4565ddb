"""Decodes rows events into changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from headrace.model import POS_LIMIT, POS_SHIFT, Operation, Origin, Row, RowsChange
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.cutter import BROKEN
from headrace.mysql.events.event_types import Handler, RowsKind
from headrace.mysql.events.partial_update import MissingBase, PartialUpdates
from headrace.mysql.events.table_map import RowSchema
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.heartbeat import SIGNAL_TABLE
from headrace.mysql.schema.follower import StatementFollower
from headrace.mysql.table_maps import Table, TableMaps
from headrace.mysql.values.mariadb import decompressed_event
from headrace.mysql.values.rowcode import RowDecoder, make_decoder
from headrace.ports.source import Heartbeat, Receiver, Signal

_NAMED = 5
"""Columns that a message names."""
_LIMIT = POS_LIMIT - (1 << 40)
"""Numbers up to here have room for any event's rows behind them."""
_from_bytes = int.from_bytes


class RowsReader:
    """Makes the handlers of rows events, which are the hot path: what they do is paid for every event."""

    def __init__(
        self,
        cursor: EventCursor,
        transactions: Transactions,
        maps: TableMaps,
        statements: StatementFollower,
        receiver: Receiver,
        options: DecoderOptions,
    ) -> None:
        self._cursor, self._transactions, self._maps, self._statements = cursor, transactions, maps, statements
        self._receiver, self._options = receiver, options

    def handler(self, kind: RowsKind) -> Handler:
        """The handler of one kind of rows events."""
        cursor, transactions, statements = self._cursor, self._transactions, self._statements
        tables, emit, marked = self._maps.tables, self._receiver.rows, self._receiver.mark is not None
        largest = self._options.max_event
        operation, extra, diffs = kind.operation, kind.extra, kind.diffs
        update = operation is Operation.UPDATE
        images, numbers_each = 2 if update else 1, 2 if update and self._options.two_numbers else 1

        def on_rows(data: bytes, at: int, stop: int) -> None:
            if transactions.holding:
                self._hold(kind.number, data, at, stop)
                return
            ordinal = transactions.events_done + 1
            table = tables.get(data[at : at + 6])
            if table is None:
                if not transactions.passing:
                    raise self._not_described()
                transactions.events_done = ordinal
                return
            row_schema = table.row_schema
            if row_schema is None or ordinal <= transactions.skip_events:
                transactions.events_done = ordinal
                if row_schema is not None:
                    statements.text = None  # it was told before the rows that are confirmed
                if table.own:
                    self._on_own(table, kind, data, at, stop)
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
                decode = self._new_decoder(table, row_schema, bitmaps, count, images, diffs)
            try:
                rows = decode(data, q, stop)
            except MissingBase as error:
                raise cursor.not_understood(
                    f"an update of {table.name}: {error}",
                    "SET PERSIST binlog_row_image = 'FULL'; or SET PERSIST binlog_row_value_options = '';",
                ) from error
            except BROKEN as error:
                raise cursor.not_understood(f"rows of {table.name} do not fit its columns: {error}") from error
            before = None
            if update:
                before, rows = rows[0::2], rows[1::2]
                if len(before) != len(rows):
                    raise cursor.not_understood(f"an update of {table.name} has an odd number of row images")
            transactions.events_done = ordinal
            try:
                transactions.captured_rows = True
                if marked:
                    transactions.mark_begin()
                if statements.text is not None:
                    statements.give_text(row_schema.schema)
                when, numbers = transactions.commit_time_us, numbers_each * len(rows)
                pos = when << POS_SHIFT
                if pos <= transactions.last_pos or pos >= _LIMIT:
                    pos = transactions.next_pos(numbers)
                else:
                    transactions.last_pos = pos + numbers - 1
                start = cursor.start
                origin = Origin(
                    cursor.file,
                    transactions.start,
                    start if start >= 0 else cursor.end,
                    ordinal,
                    transactions.server_id,
                    transactions.thread_id,
                )
                partial = table.partial is not False and bitmaps in table.partial
                emit(
                    RowsChange(
                        row_schema.schema, operation, rows, before, pos, when, transactions.gtid, partial, origin
                    )
                )
            except BaseException:
                transactions.events_done -= 1  # what was read before it may still be given out
                raise

        def on_compressed(data: bytes, at: int, stop: int) -> None:
            table = tables.get(data[at : at + 6])
            if table is None or table.row_schema is None:
                on_rows(data, at, stop)
                return
            p = at + 8 + (_from_bytes(data[at + 8 : at + 10], "little") if extra else 0)
            p += (1 if table.count < 251 else 3) + (table.count + 7) // 8 * images
            plain = data[at:p] + decompressed_event(data, p, stop, largest)
            on_rows(plain, 0, len(plain))

        return on_compressed if kind.compressed else on_rows

    def _not_described(self) -> Exception:
        return self._cursor.not_understood("rows of a table that was not described before them")

    def _hold(self, number: int, data: bytes, at: int, stop: int) -> None:
        """Rows that may still be undone wait for the end of their group. Of those that nobody wants only the table's id
        waits: they are counted."""
        table = self._maps.tables.get(data[at : at + 6])
        if table is None:
            raise self._not_described()
        self._transactions.hold(number, data[at : stop if table.row_schema is not None else at + 8])

    def _new_decoder(
        self, table: Table, row_schema: RowSchema, bitmaps: bytes, count: int, images: int, diffs: bool
    ) -> RowDecoder:
        """The decoder of row images that have the columns of `bitmaps`."""
        cursor = self._cursor
        if count != table.count:
            raise cursor.not_understood(f"rows of {table.name} have {count} columns, its description {table.count}")
        width = (count + 7) // 8
        if len(bitmaps) != width * images:
            raise cursor.not_understood(f"rows of {table.name} end within their head")
        whole = (1 << count) - 1
        sets = [_from_bytes(bitmaps[i * width : (i + 1) * width], "little") & whole for i in range(images)]
        if any(columns != whole for columns in sets):
            if not self._options.partial_images:
                raise self._lack(table, row_schema, sets)
            table.partial = (table.partial or set()) | {bitmaps}
        if diffs:
            decoder: RowDecoder = PartialUpdates(row_schema.fields, row_schema.kinds, *sets)
        else:
            shown = sets if images > 1 or (table.partial and bitmaps in table.partial) else ()
            decoder = make_decoder(row_schema.fields, *shown, visible=len(row_schema.schema.columns))
        if len(table.decoders) > 100:
            table.decoders.clear()
        table.decoders[b"P" + bitmaps if diffs else bitmaps] = decoder
        return decoder

    def _lack(self, table: Table, row_schema: RowSchema, sets: Sequence[int]) -> Exception:
        columns = row_schema.schema.columns
        names = [one.name for at, one in enumerate(columns) if any(not has >> at & 1 for has in sets)]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        why = "the row image is not FULL"
        if self._cursor.dialect.mariadb:
            why += ", or they are generated: MariaDB 11.8.9 leaves those out of changed and deleted rows"
        return self._cursor.not_understood(
            f"rows of {table.name} lack columns ({', '.join(names[:_NAMED])}{more}): {why}",
            f"{self._cursor.dialect.setter} binlog_row_image = 'FULL'; and let old sessions reconnect; or take such "
            "rows with [source] row_image = 'any'",
        )

    # -- headrace's own tables ------------------------------------------------------------------------------------

    def _on_own(self, table: Table, kind: RowsKind, data: bytes, at: int, stop: int) -> None:
        transactions, receiver = self._transactions, self._receiver
        transactions.own_events += 1
        seen = transactions.events_done <= transactions.skip_events
        if table.told is None or seen or kind.operation is Operation.DELETE:
            return
        signals_table = table.told.schema.table == SIGNAL_TABLE
        if not signals_table and data.find(self._options.destination, at, stop) < 0:
            return
        try:
            rows = _own_rows(table, table.told, kind, data, at, stop)
            if signals_table:
                signals = [Signal.of(row) for row in rows] if kind.operation is Operation.INSERT else []
                told = [partial(receiver.signal, one) for one in signals] if receiver.signal is not None else []
            else:
                beats = [Heartbeat.of(row) for row in rows]
                told = [partial(receiver.heartbeat, one) for one in beats] if receiver.heartbeat is not None else []
        except BROKEN:
            return  # a table that somebody made in another way, such as in another character set
        for tell in told:
            tell()


def _own_rows(table: Table, row_schema: RowSchema, kind: RowsKind, data: bytes, at: int, stop: int) -> list[Row]:
    """The rows after the event. None of an image that lacks columns (binlog_row_image other than FULL). Raises what
    bytes that are no rows of the table raise."""
    images = 2 if kind.operation is Operation.UPDATE else 1
    p = at + 8 + (_from_bytes(data[at + 8 : at + 10], "little") if kind.extra else 0)
    count = len(row_schema.fields)
    bitmaps = data[p + 1 : p + 1 + images]
    full = (1 << count) - 1
    if data[p] != count or any(bits & full != full for bits in bitmaps):
        return []
    decode = table.decoders.get(bitmaps)
    if decode is None:
        decode = table.decoders[bitmaps] = make_decoder(row_schema.fields, visible=count)
    return decode(data, p + 1 + images, stop)[images - 1 :: images]
