"""Makes large rows events in native code, part by part."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, cast

from headrace.model import Operation
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.event_types import RowsKind
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.native_reader import NativeReader, panicked
from headrace.mysql.rows import NUMBERS_LIMIT, NativePart, in_thread
from headrace.mysql.table_maps import Table
from headrace.ports.native_rows import NativeRows

_AT_ONCE = 1 << 20
"""Maximum bytes of a part that is made at once, which takes a few milliseconds."""
_IN_THREAD = 4 << 20, 16 << 20, 64 << 20
"""The same in a thread, tried one after the other. A larger part, which is a single row, is Python's, so that memory is
bounded."""
_PIECE = 1 << 20
_Make = Callable[[int], Any]


class NativeParts:
    """See PartMaker. `rows` makes the messages."""

    def __init__(
        self,
        reader: NativeReader,
        rows: NativeRows,
        cursor: EventCursor,
        transactions: Transactions,
        options: DecoderOptions,
    ) -> None:
        self._reader, self._rows, self._cursor, self._transactions = reader, rows, cursor, transactions
        self._largest_message, self._two_numbers = 2 * options.max_event, options.two_numbers

    def part(
        self, table: Table, kind: RowsKind, number: bytes, data: bytes, at: int, stop: int, first: int
    ) -> Generator[Future[Any] | None, None, NativePart | None]:
        if not self._reader.makes(table):
            return None
        change, place, making = self._change(kind, first), self._place(number), self._rows.making()[:2]
        if change[2] >= NUMBERS_LIMIT:
            return None

        def make(most: int) -> Any:
            end = min(stop, at + most)
            raw, begin = (data, at) if type(data) is bytes else (_copied(data, at, end), 0)
            limits = most, self._largest_message
            return table.native.part(raw, (begin, begin + end - at, end < stop), limits, making, change, place)

        try:
            part = make(_AT_ONCE) or (yield from _in_thread(make))
        except ValueError:
            return None
        except BaseException as error:
            raise panicked(error, self._cursor) from error
        # Nothing was changed so far, and other tasks may have had their turn.
        if part is None or not self._reader.makes(table) or self._change(kind, first) != change:
            return None
        self._publish(part, 2 if self._two_numbers and kind.operation is Operation.UPDATE else 1)
        return cast(NativePart, part)

    def _change(self, kind: RowsKind, first: int) -> tuple[Any, ...]:
        """Returns what `native/src/parts.rs` calls Change; `_place` returns Place."""
        transactions = self._transactions
        numbers = transactions.coming_pos, self._rows.making()[2] + transactions.begin_is_due
        return str(kind.operation), first, *numbers, transactions.commit_time_us, transactions.gtid

    def _place(self, number: bytes) -> tuple[Any, ...]:
        transactions, cursor = self._transactions, self._cursor
        return (
            *(cursor.file, transactions.start, transactions.events_done + 1),
            *(cursor.event_start, cursor.length, cursor.time),
            *(transactions.server_id, transactions.thread_id, int.from_bytes(number, "little")),
        )

    def _publish(self, part: Any, numbers_each: int) -> None:
        transactions, rows = self._transactions, self._rows
        transactions.captured_rows = True
        transactions.events_done += 1  # as it is while rows of a small event are given
        try:
            if transactions.begin_is_due:
                transactions.mark_begin()
            transactions.next_pos(part.rows * numbers_each)
            rows.begin()
            try:
                rows.output.put(part, rows.open)
            finally:
                rows.end()
        finally:
            transactions.events_done -= 1


def _copied(data: bytes, at: int, end: int) -> bytes:
    """Returns bytes of a file, which are taken into memory piece by piece: other threads have their turn meanwhile."""
    return b"".join([data[start : min(end, start + _PIECE)] for start in range(at, end, _PIECE)])


def _in_thread(make: _Make) -> Generator[Future[Any], None, Any]:
    """Makes a large part without blocking the event loop: native code does not hold Python's lock."""

    def made() -> Any:
        return next((part for most in _IN_THREAD if (part := make(most)) is not None), None)

    return in_thread(made)
