"""The event splitter: splits the packets of a binlog dump into events and checks each: length, CRC32, kind."""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, NoReturn, Protocol
from zlib import crc32

from headrace import runtime
from headrace.errors import BinlogCorrupt, NotUnderstood, SourceEnded, SpoolError, WrongChecksum
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import WRAP, EventCursor
from headrace.mysql.events.event_types import Handler
from headrace.mysql.events.inner import LARGEST_EVENT, InnerEvents, LargeEvent, open_payload, too_large
from headrace.mysql.sql.dialect import Dialect, dialect_of
from headrace.mysql.wire.dump_errors import dump_error
from headrace.mysql.wire.stream import Packets

_PACKET = struct.Struct("<IBIB4xIIH").unpack_from
"""Packet length and sequence, status byte, then the event header: time, type, (server id), size, end position,
flags."""
WHOLE_CRC = crc32(crc32(b"").to_bytes(4, "little"))
"""The CRC32 of any bytes followed by their own CRC32, so that the latter need not be removed."""
_HEAD = 24
_HEADER = struct.Struct("<IBIIIH").unpack_from
_LARGE = 0xFFFFFF
_MORE_ROOM = "raise [source] max_event, when there is memory for four times as much"
SLICE_SECONDS = 0.008
"""Seconds for which events are read without a pause, so that the event loop is not blocked."""
_PIECE = 1 << 20
_ASKS = 16
"""Number of events between two calls of `enough`."""
_FEW = 4
"""Number of events read by the fast path below which the attempt was not worth it."""
_MOST_TURNS = 64
_FORMAT, _ROTATE, _PAYLOAD = ev.FORMAT_DESCRIPTION, ev.ROTATE, ev.TRANSACTION_PAYLOAD
_UNREAD = -1
"""The kind of an event of which nothing was read."""
_from_bytes = int.from_bytes
_ALL_OR_NOTHING = frozenset({ev.TABLE_MAP, *ev.ROWS})
"""Events whose handlers, when they fail, change nothing that a position consists of."""
BROKEN = (ValueError, LookupError, struct.error, OverflowError, TypeError)
"""Errors when reading bytes with wrong lengths or contents."""


class EnterInner(Exception):
    """Raised by a handler whose event contains others: they are read before what follows, and then `done` is called."""

    def __init__(self, events: InnerEvents, done: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.events, self.done, self.length = events, done, 0


class _NewFile(Exception):
    """Raised by the splitter's own handlers: the cursor has moved, or events end differently from here on."""


class FastPath(Protocol):
    """Reads most events faster than one by one, and leaves those that it does not know."""

    def ready(self) -> bool:
        """Returns whether run() may be called."""

    def run(self, data: bytes, at: int, *, eager: bool, inner: bool = False) -> tuple[int, int, int, bool]:
        """Reads packets from `at` on, or the events of a compressed transaction if `inner`. Returns where it stopped;
        how many events it read; the minimum size of the next packet, 0 if a whole one may be there; and whether the
        splitter must read that one."""


Slices = Iterator[Future[Any] | None]
"""Work in pieces: some milliseconds at each next(). It yields what a thread does meanwhile, until that is done."""


class InSlices(Exception):
    """Raised by a handler whose event takes long: `slices` does its work before what follows is read. `size`: bytes of
    what is decoded."""

    def __init__(self, slices: Slices, size: int) -> None:
        super().__init__()
        self.slices, self.size = slices, size


@dataclass(slots=True)
class _Work:
    """The remaining work of an event: its slices, then `done`. `kind` and `body` are those of the event."""

    slices: Slices
    size: int
    kind: int
    body: tuple[bytes, int, int]
    done: Callable[[], None]


class SchemaNeeded(Exception):
    """Raised by a handler that can't read its event before the schema of a table is known; the event is given again."""


def enter_payload(data: bytes, at: int, stop: int) -> NoReturn:
    """Handles compressed transactions for readers that read their events."""
    raise EnterInner(open_payload(io.BytesIO(data[at:stop]), stop - at))


def rotated_to(data: bytes, at: int, stop: int) -> tuple[str, int]:
    """Returns the file and offset that a ROTATE event leads to."""
    (offset,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : stop].decode(), offset


def format_of(data: bytes, at: int, stop: int) -> tuple[Dialect, int]:
    """Returns the dialect of the server that wrote a FORMAT_DESCRIPTION event, and the checksum algorithm of the events
    after it: 0 for none, 1 for CRC32."""
    written_by = data[at + 2 : at + 52].rstrip(b"\0").decode("latin-1")
    dialect = dialect_of(written_by, mariadb="MariaDB" in written_by)
    return dialect, data[stop - 1] if dialect.has_checksums else 0


class EventSplitter:
    """Moves a cursor from event to event and calls the handler of each.

    The handler of ROTATE is called before the cursor goes to the next file, that of FORMAT_DESCRIPTION once its format
    is in effect. `other` takes events without a handler; without it they are refused. `skipped` is called for an event
    that was skipped at the operator's request: with its number, and where its body is, which has no bytes if it can't
    be trusted. Unless `keep_large`, handlers get only the header of an event of 16 MB and more; one that contains
    others waits in the folder `spool`. An event of more than `largest` bytes that must be in memory is refused, and so
    is the event at `hung`, unread.

    Readable between two calls of feed(): `need` (the minimum size of the next packet), `events` (handled so far),
    `thread` (what a thread does for the present event; until it is done, feed() only waits), `whole` (after an error:
    all before it was given out, and nothing of the failed event, so the position is valid)."""

    def __init__(
        self,
        cursor: EventCursor,
        handlers: Mapping[int, Handler],
        *,
        other: Handler | None = None,
        skipped: Callable[[int, bytes, int, int], None] | None = None,
        keep_large: bool = True,
        spool: Path | None = None,
        largest: int = LARGEST_EVENT,
        hung: str = "",
    ) -> None:
        self._busy = runtime.current().busy
        self._largest = largest
        self._enters, self._hung = handlers.get(_PAYLOAD) is enter_payload, hung
        if hung:
            handlers = {number: self._guarded(handler) for number, handler in handlers.items()}
        self._cursor, self._other, self._skipped = cursor, other, skipped
        self._handlers = {**handlers, _ROTATE: self._on_rotate, _FORMAT: self._on_format}
        self._rotate_reported, self._format_reported = handlers.get(_ROTATE), handlers.get(_FORMAT)
        self._keep_large, self._spool = keep_large, spool
        self.events, self.need, self.whole = 0, 4, False
        self.eager = False
        """Whether feed() calls `enough` after each event."""
        self.fast: FastPath | None = None
        self._turns = 1
        """Number of events that are read one by one before the fast path is tried again."""
        self._rests = 0
        """Inner events that are read one by one before it is tried again."""
        self._inner: list[EnterInner] = []
        """What is read instead of the stream, innermost last: a compressed transaction may end in rows that waited."""
        self._large: LargeEvent | None = None
        self._work: _Work | None = None
        self.thread: Future[Any] | None = None

    def feed(self, data: bytes, at: int, enough: Callable[[], bool]) -> tuple[int, bool]:
        """Takes whole packets from `at` on; returns where it stopped and whether more can be done at once.

        Stops when the data ends (`need` then has the minimum size of the next packet), when a handler needs a table
        schema, when `enough()` returns true, or after 8 ms, so that the event loop is not blocked. `enough` is called
        after each 16 events, and after each one while `eager`. Raises NotUnderstood, BinlogCorrupt, SpoolError, and
        what the server sends instead of an event."""
        deadline = self._busy() + SLICE_SECONDS
        try:
            while True:
                at, more = self._feed_some(data, at, enough, deadline)
                entered = more and bool(self._inner) and self._work is None
                if not entered or enough() or self._busy() > deadline:
                    return at, more
        except BROKEN as error:  # a part of an event with a wrong length, or invalid text
            raise self._cursor.not_understood(f"an event can't be read: {error}") from error
        except OSError as error:
            if self._large is not None and len(self._large.head) == 19:
                self._place(self._large)
            raise SpoolError(
                f"the event at {self._cursor.position} has to wait in the folder {self._spool or gettempdir()}, which "
                f"can't be used: {error.strerror}",
                remedy="make room on its disk, or check its owner and rights, and [daemon] spool",
            ) from error

    def _feed_some(self, data: bytes, at: int, enough: Callable[[], bool], deadline: float) -> tuple[int, bool]:
        """Does what feed() does, but stops after an event that contains others, before it reads these."""
        if self._work is not None and not self._go_on(self._work, enough, deadline):
            return at, True
        if self._inner:
            done, more = self._feed_inner(enough, deadline)
            if not done:
                return at, more
        if self._large is not None:
            return self._continue_large(self._large, data, at)
        if self.fast is not None:
            return self._feed_fast(self.fast, data, at, enough, deadline)
        return self._feed(data, at, enough, deadline)

    @property
    def work_size(self) -> int:
        """Returns the bytes of what is being decoded in slices; 0 if nothing is."""
        return self._work.size if self._work is not None else 0

    async def feed_from(self, stream: Packets, data: bytes, limit: float, enough: Callable[[], bool]) -> bytes:
        """Feeds `data` and what a stream gives next, in turns with other tasks; returns what is left for the next call.
        `limit`: seconds until the stream counts as silent. Raises what feed() and the stream raise."""
        data = await stream.read(data, self.need, limit)
        at, more = 0, True
        while more and not enough():
            at, more = self.feed(data, at, enough)
            await asyncio.sleep(0)
        return data[at:]

    def close(self) -> None:
        """Closes open files; nothing can be fed afterwards."""
        self._work = None
        for entered in self._inner:
            entered.events.close()
        if self._large is not None:
            self._large.close()

    def _feed_fast(
        self, fast: FastPath, data: bytes, at: int, enough: Callable[[], bool], deadline: float
    ) -> tuple[int, bool]:
        """Reads events by the fast path, and singly those that it leaves; if it leaves every one, it is tried less
        often."""
        while fast.ready():
            at, count, need, stopped = fast.run(data, at, eager=self.eager)
            self.events += count
            if need:
                self.need = need
                return at, False
            if not stopped:
                self.need = 4
                return at, len(data) - at >= 4
            self._turns = min(_MOST_TURNS, 2 * self._turns) if count < _FEW else 1
            start = at
            at, more = self._feed(data, at, enough, deadline, self._turns)
            if not more or at == start or self._inner or self._large is not None or self._work is not None:
                return at, more
            if enough() or self._busy() > deadline:
                return at, more
        return self._feed(data, at, enough, deadline)

    def _feed(
        self, data: bytes, at: int, enough: Callable[[], bool], deadline: float, most: int = 0
    ) -> tuple[int, bool]:
        """Feeds events one by one. `most`: maximum number of events, a power of two; 0 for no limit."""
        size, handlers, other, view = len(data), self._handlers, self._other, memoryview(data)
        cursor, busy = self._cursor, self._busy
        count, asks = 0, 0 if self.eager else min(most or _ASKS, _ASKS) - 1
        while True:
            high, checked = cursor.high, cursor.checksums
            try:
                while size - at >= _HEAD:
                    head, status, when, kind, length, log_pos, flags = _PACKET(data, at)
                    head &= _LARGE
                    end = at + 4 + head
                    if status or head == _LARGE or head < _HEAD - 4:
                        self.events += count
                        return self._unusual(data, at, status, head)
                    if end > size:
                        self.need = 4 + head
                        self.events += count
                        return at, False
                    if log_pos:
                        start = high + log_pos - length
                        if start < cursor.end:
                            start = self._behind(kind, start)
                            high = cursor.high
                    else:
                        start = self._unplaced(kind, flags)
                    cursor.start = start
                    if length != head - 1:
                        raise cursor.not_understood(f"an event says it has {length} bytes, its packet {head - 1}")
                    if checked or kind == _FORMAT:
                        stop = end - 4
                        if crc32(view[at + 5 : end]) != WHOLE_CRC and kind != _FORMAT:
                            raise self._corrupt(kind)
                    else:
                        stop = end
                    cursor.time, cursor.length = when, length
                    handler = handlers.get(kind, other)
                    if handler is None:
                        self._refuse(kind, flags)
                    else:
                        handler(data, at + _HEAD, stop)
                    if start >= 0:
                        cursor.end = start + length
                    at = end
                    count += 1
                    if not count & asks and (count >= most > 0 or enough() or busy() > deadline):
                        self.events += count
                        self.need = 4  # that of the previous packet is not that of the next one
                        return at, size - at >= 4
                self.events += count
                if size - at >= 5 and data[at + 4]:
                    return self._unusual(data, at, data[at + 4], _from_bytes(data[at : at + 3], "little"))
                self.need = 4 + _from_bytes(data[at : at + 3], "little") if size - at >= 4 else 4
                return at, False
            except _NewFile:
                if kind == _FORMAT and start >= 0:
                    cursor.end = start + length
                at = end
                count += 1
            except SchemaNeeded:
                self.events += count
                return at, False
            except EnterInner as entered:
                if start >= 0:
                    cursor.end = start + length
                self.events += count
                self._enter(entered)
                return end, True
            except InSlices as work:
                self.events += count
                behind = start + length if start >= 0 else cursor.end
                stop = end - 4 if checked else end
                done = partial(setattr, cursor, "end", behind)
                self._work = _Work(work.slices, work.size, kind, (data, at + _HEAD, stop), done)
                return end, True
            except (NotUnderstood, *BROKEN) as error:
                self._pass_over(error, kind, data, at + _HEAD, end - 4 if checked else end)
                if start >= 0 and kind != _ROTATE:
                    cursor.end = start + length
                at = end

    def _go_on(self, work: _Work, enough: Callable[[], bool], deadline: float) -> bool:
        """Continues an event's work; returns whether it is done."""
        if self.thread is not None and not wait((self.thread,), SLICE_SECONDS).done:
            return False
        self.thread = None
        try:
            for thread in work.slices:
                self.thread = thread
                if thread is not None or self._busy() > deadline or enough():
                    return False
        except (NotUnderstood, *BROKEN) as error:
            self._pass_over(error, work.kind, *work.body)
        self._work = None
        work.done()
        self.events += 1
        return True

    def _behind(self, kind: int, start: int) -> int:
        """Handles an event whose position is before the last one's end: the 32 bits of its position wrapped around, or
        it is a heartbeat, which only repeats the source's position, or the first of a file that a dump by GTID begins
        with."""
        cursor = self._cursor
        if kind in ev.HEARTBEATS:
            return -1
        if kind == _FORMAT:
            start, cursor.high = start - cursor.high, 0
            return start
        if cursor.end - start > WRAP // 2:
            cursor.high += WRAP
            start += WRAP
        return start

    def _unplaced(self, kind: int, flags: int) -> int:
        """Handles an event without a position: made for the dump, or written so (MariaDB since 11.4, within a
        transaction), and then it follows the one before."""
        if kind in ev.MADE_UP or flags & ev.ARTIFICIAL_FLAG:
            return -1
        return self._cursor.end

    def _pass_over(self, error: Exception, kind: int, data: bytes = b"", at: int = 0, stop: int = 0) -> None:
        """Raises the error, unless the operator has named exactly this position."""
        cursor = self._cursor
        if not cursor.may_skip:
            handled = kind != _UNREAD and self._handlers.get(kind, self._other) is not None
            unread = not handled or cursor.position == self._hung
            self.whole = unread or kind in _ALL_OR_NOTHING or isinstance(error, BinlogCorrupt)
            if isinstance(error, NotUnderstood):
                raise error
            raise cursor.not_understood(f"an event can't be read: {error}") from error
        cursor.skipped += 1
        entered, self._inner = self._inner, []
        for one in entered:  # the position is that of the enclosing event: all of it is skipped
            one.events.close()
        if entered and entered[-1].done is not None:
            entered[-1].done()
        elif self._skipped is not None:
            kind = _PAYLOAD if entered else kind
            self._skipped(kind, data, at, at if isinstance(error, BinlogCorrupt) else max(at, stop))

    # -- files ----------------------------------------------------------------------------------------------------

    def _on_rotate(self, data: bytes, at: int, stop: int) -> None:
        """Moves to another file; the event that opens a dump only repeats where we are."""
        if self._rotate_reported is not None:
            self._rotate_reported(data, at, stop)
        file, offset = rotated_to(data, at, stop)
        cursor = self._cursor
        if file != cursor.file:
            cursor.file, cursor.end, cursor.high = file, offset, offset & -WRAP
        raise _NewFile

    def _on_format(self, data: bytes, at: int, stop: int) -> None:
        cursor = self._cursor
        version, header = _from_bytes(data[at : at + 2], "little"), data[at + 56]
        if version != 4 or header != 19:
            raise cursor.not_understood(f"binlog version {version} with headers of {header} bytes")
        cursor.dialect, algorithm = format_of(data, at, stop)
        if algorithm > 1:
            raise cursor.not_understood(f"checksum algorithm {algorithm} is unknown")
        cursor.checksums = algorithm == 1
        if self._format_reported is not None:
            self._format_reported(data, at, stop)
        raise _NewFile

    # -- events within events, and events in several packets ------------------------------------------------------

    def _enter(self, entered: EnterInner) -> None:
        entered.events.largest, entered.events.spool = self._largest, self._spool
        entered.length = self._cursor.length
        self._inner.append(entered)

    def _feed_inner(self, enough: Callable[[], bool], deadline: float) -> tuple[bool, bool]:
        """Returns whether all inner events are done and, if not, whether more can be done at once."""
        cursor, handlers, busy = self._cursor, self._handlers, self._busy
        while self._inner:
            entered = self._inner[-1]
            inner = entered.events
            kind = _UNREAD
            try:
                while inner.fill():
                    if busy() > deadline:
                        return False, True
                while event := inner.peek():
                    kind = _PAYLOAD  # native code may fail after it has given something
                    if self._runs_inner(inner):
                        kind = _UNREAD
                        if enough() or busy() > deadline:
                            return False, True
                        continue
                    cursor.time, kind, flags, data, at, stop = event
                    cursor.length = _HEAD - 5 + stop - at
                    handler = handlers.get(kind, self._other)
                    if handler is None:
                        self._refuse(kind, flags)
                    else:
                        handler(data, at, stop)
                    inner.advance()
                    kind = _UNREAD
                    self.events += 1
                    if enough() or busy() > deadline:
                        return False, True
            except SchemaNeeded:
                return False, False
            except InSlices as work:
                self._work = _Work(work.slices, work.size, kind, (b"", 0, 0), inner.advance)
                return False, True
            except EnterInner as further:
                if further.done is None:
                    further.events.close()
                    self._pass_over(ValueError("a compressed transaction holds another one"), _PAYLOAD)
                    return True, False
                inner.advance()
                self.events += 1
                self._enter(further)
                continue
            except _NewFile:
                self._pass_over(ValueError("a compressed transaction holds the beginning of a file"), _PAYLOAD)
                return True, False
            except (NotUnderstood, *BROKEN) as error:
                self._pass_over(error, kind)
                return True, False
            inner.close()
            self._inner.pop()
            if entered.done is not None:
                cursor.length = entered.length  # what ends now is the event that was entered
                entered.done()
                if enough():
                    return False, True
        return True, False

    def _runs_inner(self, inner: InnerEvents) -> bool:
        """Reads inner events by the fast path; returns whether it took any. If it takes none, it is tried less
        often."""
        fast = self.fast
        if fast is None or not fast.ready():
            return False
        if self._rests:
            self._rests -= 1
            return False
        if (buffered := inner.buffered) is None:
            return False
        after, count, _, _ = fast.run(*buffered, eager=self.eager, inner=True)
        if not count:
            self._turns = self._rests = min(_MOST_TURNS, 2 * self._turns)
            return False
        self._turns = 1
        self.events += count
        inner.advance(after)
        return True

    def _unusual(self, data: bytes, at: int, status: int, head: int) -> tuple[int, bool]:
        """Handles a packet that is no ordinary event: an error, the end, or an event of 16 MB and more in several
        packets."""
        cursor = self._cursor
        if status == 0 and head == _LARGE:  # the caller has read the event's header
            enters = self._enters and data[at + 9] == _PAYLOAD
            self._large = LargeEvent(
                enters, self._spool, cursor.checksums, head - 1, keep=self._keep_large, largest=self._largest
            )
            return at + 5, True
        if len(data) < at + 4 + head:
            self.need = 4 + head
            return at, False
        payload = data[at + 4 : at + 4 + head]
        if status in (0xFE, 0xFF):
            self.whole = True
        if status == 0xFF:
            raise dump_error(payload, f"{cursor.file}:{cursor.end}", cursor.source)
        if status == 0xFE:
            raise SourceEnded(f"{cursor.source} ended the binlog dump after {cursor.file}:{cursor.end}")
        raise cursor.not_understood(f"a packet of {head} bytes with status {status:#x} is no event")

    def _continue_large(self, large: LargeEvent, data: bytes, at: int) -> tuple[int, bool]:
        """Reads more of an event in several packets, in pieces, so that neither memory nor the loop waits for a whole
        one. A packet that is not full is the last."""
        if not large.left:
            if len(data) - at < 4:
                self.need = 4
                return at, False
            large.left = _from_bytes(data[at : at + 3], "little")
            large.last = large.left < _LARGE
            at += 4
        piece = data[at : at + min(large.left, _PIECE)]
        if piece:
            large.add(piece)
            at += len(piece)
        if large.goes_on:  # it may never end, so it is not waited for
            self._place(large)
            large.close()
            raise self._cursor.not_understood(
                "an event continues after the bytes that it says it has",
                "set the position after it: headrace position set DESTINATION WHERE",
            )
        if large.left or not large.last:
            self.need = 1 if large.left else 4
            return at, at < len(data)
        self.need = 4
        return at, self._finish_large(large)

    def _place(self, large: LargeEvent) -> tuple[int, int, int]:
        """Moves the cursor to the event; returns its number, its stated length, and its flags."""
        cursor = self._cursor
        when, kind, _, length, log_pos, flags = _HEADER(large.head, 0)
        start = cursor.high + log_pos - length if log_pos else self._unplaced(kind, flags)
        if log_pos and start < cursor.end:
            start = self._behind(kind, start)
        cursor.start, cursor.time, cursor.length = start, when, length
        return kind, length, flags

    def _finish_large(self, large: LargeEvent) -> bool:
        cursor = self._cursor
        kind, length, flags = self._place(large)
        start = cursor.start
        stop = large.size - 4 if cursor.checksums else large.size
        try:
            if length != large.size:
                raise cursor.not_understood(f"an event says it has {length} bytes and has {large.size}")
            if not large.sound:
                raise self._corrupt(kind)
            if large.too_large and self._keep_large:
                raise cursor.not_understood(too_large(large.size, self._largest), _MORE_ROOM)
            if large.payload and large.file is not None:
                self._refuse_hung()
                large.file.seek(19)
                raise EnterInner(open_payload(large.file, stop - 19))
            data = large.whole()
            handler = self._handlers.get(kind, self._other)
            if handler is None:
                self._refuse(kind, flags)
            else:
                handler(data, 19, stop)
        except EnterInner as entered:
            self._enter(entered)
        except InSlices as work:
            behind = start + length if start >= 0 else cursor.end
            done = partial(setattr, cursor, "end", behind)
            self._work = _Work(work.slices, work.size, kind, (data, 19, stop), done)
            self._large = None
            return True
        except _NewFile:
            raise cursor.not_understood("an event of 16 MB and more begins a file") from None
        except SchemaNeeded:
            raise cursor.not_understood("an event of 16 MB and more describes a table") from None
        except (NotUnderstood, *BROKEN) as error:
            self._pass_over(error, kind)
            large.close()
        self._large = None
        cursor.end = start + length if start >= 0 else cursor.end
        self.events += 1
        return True

    # -- what can't be read, or is not to be -------------------------------------------------------------------------

    def _refuse(self, kind: int, flags: int) -> None:
        known = ev.BY_NUMBER.get(kind)
        if known is not None and known.ignorable and flags & ev.IGNORABLE_FLAG:
            return
        remedy = "it may hold rows: compare the tables, then name the position in [source] skip_event"
        name, remedy = (known.name, known.remedy) if known is not None else ("unknown", remedy)
        raise self._cursor.not_understood(f"event type {kind} ({name}) is not supported", remedy)

    def _guarded(self, handler: Handler) -> Handler:
        def run(data: bytes, at: int, stop: int) -> None:
            self._refuse_hung()
            handler(data, at, stop)

        return run

    def _refuse_hung(self) -> None:
        if self._hung and self._cursor.position == self._hung:
            raise self._cursor.not_understood("event loops have hung on this event")

    def _corrupt(self, kind: int) -> BinlogCorrupt:
        return WrongChecksum(
            f"at {self._cursor.position}: the CRC32 of an event of type {kind} is wrong",
            remedy="check the binlog with mysqlbinlog --verify-binlog-checksum, on the source and on a replica",
        )
