"""Decodes rows events into changes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from headrace import runtime
from headrace.large_values import LARGE_VALUE, PIECE, LargeValue, numbered
from headrace.model import ABSENT, POS_LIMIT, POS_SHIFT, Operation, Origin, Row, RowsChange
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.event_types import Handler, RowsKind
from headrace.mysql.events.inner import mapped, new_file
from headrace.mysql.events.partial_update import MissingBase, PartialUpdates
from headrace.mysql.events.splitter import BROKEN, InSlices, Slices
from headrace.mysql.events.table_map import RowSchema
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.heartbeat import SIGNAL_TABLE
from headrace.mysql.schema.follower import StatementFollower
from headrace.mysql.table_maps import Table, TableMaps
from headrace.mysql.undecodable import Undecodable
from headrace.mysql.values.large import TakesLong, large_again, least_of
from headrace.mysql.values.mariadb import decompressed_event, decompressed_size, event_pieces
from headrace.mysql.values.rowcode import RowDecoder, StepDecoder, make_decoder, make_step
from headrace.ports.source import Heartbeat, Receiver, Signal

log = structlog.get_logger(__name__)

_NAMED = 5
"""Columns that a message names."""
NUMBERS_LIMIT = POS_LIMIT - (1 << 40)
"""Numbers up to here leave enough numbers for any event's rows."""
_AT_ONCE = LARGE_VALUE
"""Maximum bytes of an event whose rows are decoded at once, so that the event loop is not blocked."""
PART_BYTES, PART_ROWS = 512 * 1024, 5_000
"""Maximum of one part of an event with more than one row; the rest is published in further messages, so that an event
of any size passes in bounded memory. Native code makes the same parts."""
_PART_VALUES = 100_000
"""The same in values: rows of NULLs take few bytes, and are long when printed."""
_LARGEST_CHANGE = 16 << 20
"""Maximum bytes of an event with changes of JSON documents, which needs many times as much memory."""
_SOME = 256
"""Rows that are decoded at a time."""
_MOST_DECODERS = 100
"""Decoders of one table, whose images may lack columns in many ways."""
_from_bytes = int.from_bytes
_Made = TypeVar("_Made")


class NativePart(Protocol):
    """Rows of an event that native code has published."""

    @property
    def rows(self) -> int: ...

    @property
    def size(self) -> int:
        """Returns their bytes in the event."""


class PartMaker(Protocol):
    """Publishes parts of large events by native code."""

    def part(
        self, table: Table, kind: RowsKind, number: bytes, data: bytes, at: int, stop: int, first: int
    ) -> Generator[Future[Any] | None, None, NativePart | None]:
        """Publishes the part of an event that begins at `at`, after `first` rows. The event's images have all columns
        and end at `stop`; `number` is that of the table in the binlog. Returns None if Python must read the part; then
        nothing was done."""


class RowsReader:
    """Makes the handlers of rows events, which are the hot path: every event pays for what they do."""

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
        self.native: PartMaker | None = None

    def handler(self, kind: RowsKind) -> Handler:
        """Returns the handler of one kind of rows events."""
        cursor, transactions, statements = self._cursor, self._transactions, self._statements
        tables, older = self._maps.tables, self._maps.older
        emit, marked = self._receiver.rows, self._receiver.mark is not None
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
            if table is None and (table := older(data[at : at + 6])) is None:
                if not transactions.passing:
                    raise self._not_described()
                transactions.events_done = ordinal
                return
            row_schema = table.row_schema
            if row_schema is None or ordinal <= transactions.skip_events:
                transactions.events_done = ordinal
                if ordinal > transactions.skip_events:
                    transactions.skip_rows = 0  # they were of this event, when its table was still captured
                if row_schema is not None:
                    statements.text = None  # it was published before the confirmed rows
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
            if count != table.count:
                raise self._other_columns(table, count)
            if stop - at > _AT_ONCE:
                raise InSlices(
                    self._slices(data[at : at + 6], table, row_schema, bitmaps, kind, data, q, stop), stop - at
                )
            decode = table.decoders.get(b"P" + bitmaps if diffs else bitmaps)
            if decode is None:
                decode = self._new_decoder(table, row_schema, bitmaps, images, diffs)
            try:
                try:
                    rows = decode(data, q, stop)
                except UnicodeDecodeError:
                    decode = self._new_decoder(table, row_schema, bitmaps, images, diffs, any_text=True)
                    rows = decode(data, q, stop)
            except TakesLong as long:
                raise InSlices(
                    self._slices(data[at : at + 6], table, row_schema, bitmaps, kind, data, q, stop), long.size
                ) from None
            except MissingBase as error:
                raise self._lacks_base(table, error) from error
            except BROKEN as error:
                self._refuse(table, error)
                transactions.events_done = ordinal
                return
            before = None
            if update:
                before, rows = rows[0::2], rows[1::2]
                if len(before) != len(rows):
                    raise self._odd(table)
            transactions.events_done = ordinal
            try:
                transactions.captured_rows = True
                if marked:
                    transactions.mark_begin()
                if statements.text is not None:
                    statements.give_text(row_schema.schema)
                when, numbers = transactions.commit_time_us, numbers_each * len(rows)
                pos = when << POS_SHIFT
                if pos <= transactions.last_pos or pos >= NUMBERS_LIMIT:
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
                    cursor.length,
                    cursor.time,
                    _from_bytes(data[at : at + 6], "little"),
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
            table = tables.get(data[at : at + 6]) or older(data[at : at + 6])
            if table is None or table.row_schema is None:
                on_rows(data, at, stop)
                return
            p = at + 8 + (_from_bytes(data[at + 8 : at + 10], "little") if extra else 0)
            p += (1 if table.count < 251 else 3) + (table.count + 7) // 8 * images
            if (size := decompressed_size(data[p : p + 5], stop - p)) > PART_BYTES:
                raise InSlices(self._inflated(data, at, p, stop, on_rows), size)
            plain = data[at:p] + decompressed_event(data, p, stop, largest)
            on_rows(plain, 0, len(plain))

        return on_compressed if kind.compressed else on_rows

    def _inflated(self, data: bytes, at: int, p: int, stop: int, on_rows: Handler) -> Slices:
        """Handles a large compressed event, whose compressed part begins at `p`."""
        with new_file(self._options.spool) as file:
            file.write(data[at:p])
            for piece in event_pieces(data, p, stop, self._options.max_event, PIECE):
                file.write(piece)
                yield None
            plain = mapped(file)
        try:
            on_rows(plain, 0, len(plain))
        except InSlices as work:
            yield from work.slices

    def _slices(
        self,
        number: bytes,
        table: Table,
        row_schema: RowSchema,
        bitmaps: bytes,
        kind: RowsKind,
        data: bytes,
        at: int,
        stop: int,
    ) -> Slices:
        """Gives the rows of a large event, which are from `at` to `stop`, some at each next(). More than one row is
        published in parts of PART_BYTES or PART_ROWS; a position has the number of published rows."""
        transactions = self._transactions
        if kind.diffs:
            images, least = (yield from self._updated(table, row_schema, bitmaps, data, at, stop)), least_of(stop - at)
            for i in range(0, len(images), 2):
                before, after = (tuple(large_again(value, least) for value in row) for row in images[i : i + 2])
                images[i : i + 2] = before, (yield from _compared(before, after))
            if images:
                yield from self._part(number, row_schema, table, bitmaps, kind, images, 0, whole=True)
            transactions.events_done += 1
            transactions.end_part(0)
            return
        update = kind.operation is Operation.UPDATE
        step, passed = self._step(table, row_schema, bitmaps, 2 if update else 1), transactions.skip_rows
        transactions.skip_rows, transactions.rows_done = 0, passed
        if passed:
            self._statements.text = None  # it was published before the confirmed rows
        native = self.native if _are_whole(bitmaps, table.count, 2 if update else 1) else None
        count, images, begin = 0, list[Row](), at
        while at < stop:
            if native is not None and not images and count >= passed:
                part = yield from native.part(table, kind, number, data, at, stop, count)
                if part is not None:
                    at, count = at + part.size, count + part.rows
                    begin = at
                    if at < stop:
                        transactions.end_part(count)
                        yield None
                    continue
            try:
                row, at = step(data, at, stop)
            except BROKEN as error:
                self._refuse(table, error)
                break
            if update and len(row) != 2:
                raise self._odd(table)
            count += 1
            if count > passed:
                if update:
                    row[1] = yield from _compared(row[0], row[1])
                images += row
            else:
                begin = at
            made = len(images) // len(row)
            full = at - begin >= PART_BYTES or made >= PART_ROWS or len(images) * table.count >= _PART_VALUES
            if made and at < stop and full:
                yield from self._part(number, row_schema, table, bitmaps, kind, images, count - made, whole=False)
                images, begin = [], at
                transactions.end_part(count)
                yield None
            elif not count % _SOME:
                yield None
        if images:
            first = count - len(images) // (2 if update else 1)
            yield from self._part(number, row_schema, table, bitmaps, kind, images, first, whole=not first)
        transactions.events_done += 1
        transactions.end_part(0)

    def _updated(
        self, table: Table, row_schema: RowSchema, bitmaps: bytes, data: bytes, at: int, stop: int
    ) -> Generator[Future[Any], None, list[Row]]:
        """Decodes, in a thread, the rows of a large event that changes JSON documents in part."""
        if stop - at > _LARGEST_CHANGE:
            raise self._cursor.not_understood(
                f"an update of {table.name} has {stop - at} bytes, and changes a document in part: then it may have "
                f"{_LARGEST_CHANGE}",
                "SET PERSIST binlog_row_value_options = ''; and let old sessions reconnect",
            )
        decode = self._new_decoder(table, row_schema, bitmaps, 2, diffs=True, any_text=True)
        try:
            return (yield from in_thread(partial(decode, data, at, stop)))
        except MissingBase as error:
            raise self._lacks_base(table, error) from error
        except BROKEN as error:
            self._refuse(table, error)
            return []

    def _part(
        self,
        number: bytes,
        row_schema: RowSchema,
        table: Table,
        bitmaps: bytes,
        kind: RowsKind,
        images: list[Row],
        first: int,
        *,
        whole: bool,
    ) -> Iterator[None]:
        """Gives some rows of an event, of which `first` came before; `whole`: all of it."""
        transactions = self._transactions
        update = kind.operation is Operation.UPDATE
        before, rows = (images[0::2], images[1::2]) if update else (None, images)
        transactions.begin_part()
        transactions.captured_rows = True
        transactions.events_done += 1  # as it is while rows of a small event are given
        try:
            if self._receiver.mark is not None:
                transactions.mark_begin()
            self._statements.give_text(row_schema.schema)
            pos = transactions.next_pos(len(rows) * (2 if update and self._options.two_numbers else 1))
            origin = replace(transactions.origin(), table_id=_from_bytes(number, "little"))
            large = numbered(images)
            change = RowsChange(
                row_schema.schema,
                kind.operation,
                rows,
                before,
                pos,
                transactions.commit_time_us,
                transactions.gtid,
                table.partial is not False and bitmaps in table.partial,
                origin,
                None if whole else range(first, first + len(rows)),
                large=large,
            )
        finally:
            transactions.events_done -= 1
        try:
            if large and self._receiver.large is not None:
                yield from self._receiver.large(change)
                return
            change.settle()
        except BROKEN as error:
            self._refuse(table, error)
            return
        self._receiver.rows(change)

    def _step(self, table: Table, row_schema: RowSchema, bitmaps: bytes, images: int) -> StepDecoder:
        """Returns the decoder of one row with the columns of `bitmaps`."""
        step = table.steps.get(bitmaps)
        if step is None:
            sets = self._sets(table, row_schema, bitmaps, images)
            fields = self._options.undecodable.fields(row_schema.schema, row_schema.fields)
            step = make_step(fields, *sets, visible=len(row_schema.schema.columns))
            if len(table.steps) > _MOST_DECODERS:
                table.steps.clear()
            table.steps[bitmaps] = step
        return step

    def _refuse(self, table: Table, error: Exception) -> None:
        """Raises the error for rows of a table that can't be published, unless the operator chose to skip such rows."""
        if not isinstance(error, Undecodable):
            raise self._misfit(table, error) from error
        text = f"rows of {table.name}: {error}"
        if not self._options.skip_broken_tables:
            raise self._cursor.not_understood(text, error.remedy) from error
        self._cursor.skipped += 1
        log.warning("rows left out", reason=text, position=self._cursor.position)

    def _lacks_base(self, table: Table, error: Exception) -> Exception:
        return self._cursor.not_understood(
            f"an update of {table.name}: {error}",
            "SET PERSIST binlog_row_image = 'FULL'; or SET PERSIST binlog_row_value_options = '';",
        )

    def _misfit(self, table: Table, error: Exception) -> Exception:
        return self._cursor.not_understood(f"rows of {table.name} do not fit its columns: {error}")

    def _odd(self, table: Table) -> Exception:
        return self._cursor.not_understood(f"an update of {table.name} has an odd number of row images")

    def _not_described(self) -> Exception:
        return self._cursor.not_understood("rows of a table that was not described before them")

    def _hold(self, number: int, data: bytes, at: int, stop: int) -> None:
        """Keeps rows that may still be undone until their group ends. Of rows that are not captured only the table's id
        is kept: they are counted."""
        number_of_table = data[at : at + 6]
        table = self._maps.tables.get(number_of_table) or self._maps.older(number_of_table)
        if table is None:
            raise self._not_described()
        stop = stop if table.row_schema is not None else at + 8
        if stop - at > PART_BYTES:
            raise InSlices(self._transactions.hold_large(number, data, at, stop), 0)
        self._transactions.hold(number, data[at:stop])

    def _new_decoder(
        self,
        table: Table,
        row_schema: RowSchema,
        bitmaps: bytes,
        images: int,
        diffs: bool,
        *,
        any_text: bool = False,
    ) -> RowDecoder:
        """Returns the decoder of row images that have the columns of `bitmaps`. Without `any_text` it raises
        UnicodeDecodeError for a code that has no Unicode character, and is faster."""
        sets, fields = self._sets(table, row_schema, bitmaps, images), row_schema.fields
        if any_text:
            fields = self._options.undecodable.fields(row_schema.schema, fields)
        if diffs:
            decoder: RowDecoder = PartialUpdates(fields, row_schema.kinds, *sets)
        else:
            shown = sets if images > 1 or (table.partial and bitmaps in table.partial) else ()
            decoder = make_decoder(fields, *shown, visible=len(row_schema.schema.columns))
        if len(table.decoders) > _MOST_DECODERS:
            table.decoders.clear()
        table.decoders[b"P" + bitmaps if diffs else bitmaps] = decoder
        return decoder

    def _sets(self, table: Table, row_schema: RowSchema, bitmaps: bytes, images: int) -> list[int]:
        """Returns the columns that images have, as bit sets. Raises NotUnderstood if they may not lack any."""
        width = (table.count + 7) // 8
        if len(bitmaps) != width * images:
            raise self._cursor.not_understood(f"rows of {table.name} end within their head")
        whole = (1 << table.count) - 1
        sets = [_from_bytes(bitmaps[i * width : (i + 1) * width], "little") & whole for i in range(images)]
        if any(columns != whole for columns in sets):
            if not self._options.partial_images:
                raise self._lack(table, row_schema, sets)
            table.partial = (table.partial or set()) | {bitmaps}
        return sets

    def _other_columns(self, table: Table, count: int) -> Exception:
        return self._cursor.not_understood(f"rows of {table.name} have {count} columns, its description {table.count}")

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
        if table.reported is None or seen or kind.operation is Operation.DELETE:
            return
        signals_table = table.reported.schema.table == SIGNAL_TABLE
        if not signals_table and data.find(self._options.destination, at, stop) < 0:
            return
        try:
            rows = _own_rows(table, table.reported, kind, data, at, stop)
            if signals_table:
                signals = [Signal.of(row) for row in rows] if kind.operation is Operation.INSERT else []
                reported = [partial(receiver.signal, one) for one in signals] if receiver.signal is not None else []
            else:
                heartbeats = [Heartbeat.of(row) for row in rows]
                reported = (
                    [partial(receiver.heartbeat, one) for one in heartbeats] if receiver.heartbeat is not None else []
                )
        except BROKEN:
            return  # a table that was created in another way, for example in another character set
        for report in reported:
            report()


def in_thread(work: Callable[[], _Made]) -> Generator[Future[Any], None, _Made]:
    """Runs work in a thread of its own, and yields its future until it is done; see Slices. Raises what it raises."""
    thread = runtime.worker("rows")
    done = thread.submit(work)
    thread.shutdown(wait=False)  # it ends with that
    while not done.done():
        yield done
    return done.result()


def _are_whole(bitmaps: bytes, count: int, images: int) -> bool:
    """Returns whether images have all of `count` columns."""
    width, whole = (count + 7) // 8, (1 << count) - 1
    sets = [_from_bytes(bitmaps[i * width : (i + 1) * width], "little") & whole for i in range(images)]
    return all(columns == whole for columns in sets)


def _compared(before: Row, after: Row) -> Generator[None, None, Row]:
    """Returns the row after, with the same objects as the row before where large values are equal: a format that
    searches for changes need not compare them."""
    values = list(after)
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        if a is b or a is None or b is None or a is ABSENT or b is ABSENT:
            continue
        large, other = (a, b) if type(a) is LargeValue else (b, a)
        if type(large) is LargeValue and (yield from large.same_as(other)):
            values[i] = a
    return tuple(values)


def _own_rows(table: Table, row_schema: RowSchema, kind: RowsKind, data: bytes, at: int, stop: int) -> list[Row]:
    """Returns the rows after the event. None of an image that lacks columns (binlog_row_image other than FULL). Raises
    reading errors for invalid bytes."""
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
