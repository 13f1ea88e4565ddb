"""Cuts the packets of a binlog dump into events and checks each: length, CRC32, kind."""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO
from zlib import crc32

from headrace.errors import BinlogCorrupt, NotUnderstood, SourceEnded
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.inner import InnerEvents, LargeEvent, open_payload
from headrace.mysql.wire.dump_errors import dump_error

_PACKET = struct.Struct("<IBIBIIIH").unpack_from
"""Packet length and sequence, status byte, then the event header: time, type, server id, size, end position, flags."""
_HEAD = 24
_HEADER = struct.Struct("<IBIIIH").unpack_from
_LARGE = 0xFFFFFF
_SLICE_SECONDS = 0.008
_PIECE = 1 << 20
_WRAP = 1 << 32
"""Event headers hold the low 32 bits of a position only; a large transaction leads a file beyond them."""
_FORMAT, _ROTATE = ev.FORMAT_DESCRIPTION, ev.ROTATE
_NEW_FILE = frozenset({_FORMAT, _ROTATE})
_from_bytes = int.from_bytes
BROKEN = (ValueError, LookupError, struct.error, OverflowError, TypeError)
"""What reading bytes that lie about themselves may raise."""

Handler = Callable[[bytes, int, int], None]
"""(bytes, start of the event's body, its end without the checksum)"""


class EnterInner(Exception):
    """The event holds others, which `_inner` gives; they come before what follows."""


class SchemaNeeded(Exception):
    """The event can't be read before the layout of a table is known; it is given again."""


class EventCutter:
    """The place in the binlog and the handlers of its events; what the events mean is the subclass's.

    Readable between two calls of feed(): `file`, `end` (offset behind the last event), `need`, `events`, `skipped`.
    `skip_events` are places (`file:offset`) whose events an operator has chosen to pass over when they can't be read.
    """

    def __init__(
        self,
        file: str,
        end: int,
        *,
        checksums: bool,
        spool: Path | None = None,
        skip_events: frozenset[str] = frozenset(),
    ) -> None:
        self.file, self.end = file, end
        self.events = self.skipped = 0
        self.refused = False
        """Whether the server's own error ended the stream: all before it was given out whole, and the place holds."""
        self.need = 4
        self._crc = checksums
        self._spool_folder, self._skip_named = spool, skip_events
        self._time = self._flags = self._start = 0
        self._high = end & -_WRAP
        self._inner: InnerEvents | None = None
        self._large: LargeEvent | None = None
        self._handlers: dict[int, Handler] = {
            ev.TRANSACTION_PAYLOAD: self._on_payload,
            ev.ROTATE: self._on_rotate,
            ev.FORMAT_DESCRIPTION: self._on_format,
        }

    def feed(self, data: bytes, at: int, enough: Callable[[], bool]) -> tuple[int, bool]:
        """Takes whole packets from `at` on; returns where it stopped and whether there is more to do at once.

        Stops when the data ends (`need` then says how many bytes the next packet has at least), when `enough()`
        says so after an event, or after 8 ms, so that the event loop breathes.
        """
        try:
            if self._inner is not None and not self._feed_inner(self._inner, enough):
                return at, not self._waits()
            if self._large is not None:
                return self._continue_large(self._large, data, at)
            return self._feed(data, at, enough)
        except BROKEN as error:  # a part of an event that lies about its length, or text that is none
            raise self._not_understood(f"an event can't be read: {error}") from error

    @property
    def event_start(self) -> int:
        """Where the present event begins."""
        return self._start if self._start >= 0 else self.end

    def close(self) -> None:
        """Gives back files that are open; nothing can be fed afterwards."""
        if self._inner is not None:
            self._inner.close()
        if self._large is not None:
            self._large.close()

    def _waits(self) -> bool:
        """Whether nothing goes on before somebody outside has done something."""
        return False

    def _feed(self, data: bytes, at: int, enough: Callable[[], bool]) -> tuple[int, bool]:
        size, handlers, view = len(data), self._handlers, memoryview(data)
        deadline = time.monotonic() + _SLICE_SECONDS
        count = 0
        while True:
            high, checked = self._high, self._crc
            try:
                while size - at >= _HEAD:
                    head, status, when, kind, _, length, log_pos, flags = _PACKET(data, at)
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
                        if start < self.end:
                            start = self._behind(kind, start)
                            high = self._high
                    else:
                        start = self._unplaced(kind, flags)
                    self._start = start
                    if length != head - 1:
                        raise self._not_understood(f"an event says it has {length} bytes, its packet {head - 1}")
                    if checked or kind == _FORMAT:
                        stop = end - 4
                        if crc32(view[at + 5 : stop]) != _from_bytes(data[stop:end], "little") and kind != _FORMAT:
                            raise self._corrupt(kind)
                    else:
                        stop = end
                    self._time, self._flags = when, flags
                    handler = handlers.get(kind)
                    if handler is None:
                        self._on_unknown(kind, flags)
                    else:
                        handler(data, at + _HEAD, stop)
                    if kind in _NEW_FILE:
                        high, checked = self._high, self._crc
                        if kind == _FORMAT and start >= 0:
                            self.end = start + length
                    elif start >= 0:
                        self.end = start + length
                    at = end
                    count += 1
                    if not count & 15 and (enough() or time.monotonic() > deadline):
                        self.events += count
                        return at, size - at >= 4
                self.events += count
                if size - at >= 5 and data[at + 4]:
                    return self._unusual(data, at, data[at + 4], _from_bytes(data[at : at + 3], "little"))
                self.need = 4 + _from_bytes(data[at : at + 3], "little") if size - at >= 4 else 4
                return at, False
            except SchemaNeeded:
                self.events += count
                return at, False
            except EnterInner:
                self.end = start + length if start >= 0 else self.end
                self.events += count
                return end, True
            except (NotUnderstood, *BROKEN) as error:
                self._pass_over(error)
                if start >= 0 and kind != _ROTATE:
                    self.end = start + length
                at = end

    def _behind(self, kind: int, start: int) -> int:
        """An event that says it begins before the last one's end: the 32 bits of its position began anew, or it is a
        heartbeat, which only repeats where the source is, or the first of a file that a dump by GTID begins with."""
        if kind in (ev.HEARTBEAT, ev.HEARTBEAT_V2):
            return -1
        if kind == _FORMAT:
            start, self._high = start - self._high, 0
            return start
        if self.end - start > _WRAP // 2:
            self._high += _WRAP
            start += _WRAP
        return start

    def _unplaced(self, kind: int, flags: int) -> int:
        """An event without a position: made up for the dump, or written so (MariaDB since 11.4, within a
        transaction), and then it stands behind the one before."""
        if kind in ev.MADE_UP or flags & ev.ARTIFICIAL_FLAG:
            return -1
        return self.end

    def _pass_over(self, error: Exception) -> None:
        """Raises, unless the operator has named this very place."""
        if self._where() not in self._skip_named:
            if isinstance(error, NotUnderstood):
                raise error
            raise self._not_understood(f"an event can't be read: {error}") from error
        self._on_skipped(str(error))

    def _on_skipped(self, why: str) -> None:
        """An event was passed over at the operator's word."""
        self.skipped += 1
        if self._inner is not None:  # the place is that of the event around it: all of it goes
            self._inner.close()
            self._inner = None

    # -- files ----------------------------------------------------------------------------------------------------

    def _on_rotate(self, data: bytes, at: int, stop: int) -> None:
        """What follows is in another file; the one that opens a dump only repeats where we are."""
        (offset,) = struct.unpack_from("<Q", data, at)
        file = data[at + 8 : stop].decode()
        if file != self.file:
            self.file, self.end, self._high = file, offset, offset & -_WRAP

    def _on_format(self, data: bytes, at: int, stop: int) -> None:
        version, header = _from_bytes(data[at : at + 2], "little"), data[at + 56]
        if version != 4 or header != 19:
            raise self._not_understood(f"binlog version {version} with headers of {header} bytes")
        algorithm = data[stop - 1]
        if algorithm > 1:
            raise self._not_understood(f"checksum algorithm {algorithm} is unknown")
        self._crc = algorithm == 1

    def _end_of(self, at: int, stop: int) -> int:
        """The offset behind the event whose body is from `at` to `stop`."""
        return self.event_start + 19 + stop - at + (4 if self._crc else 0)

    # -- events within events, and events in several packets ----------------------------------------------------

    def _on_payload(self, data: bytes, at: int, stop: int) -> None:
        self._enter(open_payload(io.BytesIO(data[at:stop]), stop - at))

    def _enter(self, inner: InnerEvents) -> None:
        if self._inner is not None:
            inner.close()
            raise ValueError("a compressed transaction holds another one")
        self._inner = inner
        raise EnterInner

    def _feed_inner(self, inner: InnerEvents, enough: Callable[[], bool]) -> bool:
        """Whether all inner events are done."""
        handlers, deadline = self._handlers, time.monotonic() + _SLICE_SECONDS
        try:
            while event := inner.peek():
                self._time, kind, self._flags, data, at, stop = event
                handler = handlers.get(kind)
                if handler is None:
                    self._on_unknown(kind, self._flags)
                else:
                    handler(data, at, stop)
                inner.advance()
                self.events += 1
                if enough() or time.monotonic() > deadline:
                    return False
        except SchemaNeeded:
            return False
        except (NotUnderstood, *BROKEN) as error:
            self._pass_over(error)
            return True
        inner.close()
        self._inner = None
        self._on_inner_end()
        return True

    def _on_inner_end(self) -> None:
        """All inner events were given."""

    def _unusual(self, data: bytes, at: int, status: int, head: int) -> tuple[int, bool]:
        """A packet that is no ordinary event: an error, the end, or an event of 16 MB and more in several packets."""
        if status == 0 and head == _LARGE:  # the caller saw the event's header
            self._large = LargeEvent(data[at + 9] == ev.TRANSACTION_PAYLOAD, self._spool_folder, self._crc, head - 1)
            return at + 5, True
        if len(data) < at + 4 + head:
            self.need = 4 + head
            return at, False
        payload = data[at + 4 : at + 4 + head]
        if status in (0xFE, 0xFF):
            self.refused = True
        if status == 0xFF:
            raise dump_error(payload, f"{self.file}:{self.end}")
        if status == 0xFE:
            raise SourceEnded(f"the source ended the binlog dump behind {self.file}:{self.end}")
        raise self._not_understood(f"a packet of {head} bytes with status {status:#x} is no event")

    def _continue_large(self, large: LargeEvent, data: bytes, at: int) -> tuple[int, bool]:
        """More of an event in several packets, in pieces, so that neither memory nor the loop waits for a whole one. A
        packet that is not full is the last."""
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
        if large.left or not large.last:
            self.need = 1 if large.left else 4
            return at, at < len(data)
        self.need = 4
        return at, self._finish_large(large)

    def _finish_large(self, large: LargeEvent) -> bool:
        when, kind, _, length, log_pos, flags = _HEADER(large.head, 0)
        start = self._high + log_pos - length if log_pos else self._unplaced(kind, flags)
        if log_pos and start < self.end:
            start = self._behind(kind, start)
        self._start, self._time, self._flags = start, when, flags
        stop = large.size - 4 if self._crc else large.size
        try:
            if length != large.size:
                raise self._not_understood(f"an event says it has {length} bytes and has {large.size}")
            if not large.sound:
                raise self._corrupt(kind)
            if large.file is not None:
                self._enter_file(large.file, stop - 19)
            data = large.whole()
            handler = self._handlers.get(kind)
            if handler is None:
                self._on_unknown(kind, flags)
            else:
                handler(data, 19, stop)
        except EnterInner:
            pass
        except SchemaNeeded:
            raise self._not_understood("an event of 16 MB and more describes a table") from None
        except (NotUnderstood, *BROKEN) as error:
            self._pass_over(error)
            large.close()
        self._large = None
        self.end = start + length if start >= 0 else self.end
        self.events += 1
        return True

    def _enter_file(self, file: IO[bytes], size: int) -> None:
        file.seek(19)
        self._enter(open_payload(file, size))

    # -- what can't be read ---------------------------------------------------------------------------------------

    def _on_unknown(self, kind: int, flags: int) -> None:
        if flags & ev.IGNORABLE_FLAG:
            return
        name = ev.NAMES.get(kind, "unknown")
        raise self._not_understood(f"event type {kind} ({name}) is not supported", ev.REMEDIES.get(kind, ""))

    def _where(self) -> str:
        return f"{self.file}:{self._start if self._start >= 0 else self.end}"

    def _not_understood(self, what: str, remedy: str = "") -> NotUnderstood:
        return NotUnderstood(f"at {self._where()}: {what}", remedy=remedy or "see docs/operations.md, 'FAILED'")

    def _corrupt(self, kind: int) -> BinlogCorrupt:
        return BinlogCorrupt(
            f"at {self._where()}: the CRC32 of an event of type {kind} is wrong",
            remedy="check the binlog with mysqlbinlog --verify-binlog-checksum, on the source and on a replica",
        )
