"""Cuts the packets of a binlog dump into events and checks each: length, CRC32, kind."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from zlib import crc32

from headrace.errors import NotUnderstood, SourceError
from headrace.mysql import event_types as ev
from headrace.mysql.dump_errors import dump_error

_PACKET = struct.Struct("<IBIBIIIH").unpack_from
"""Packet length and sequence, status byte, then the event header: time, type, server id, size, end position, flags."""
_HEAD = 24
_HEADER = struct.Struct("<IBIIIH").unpack_from
_LARGE = 0xFFFFFF
_SLICE_SECONDS = 0.008
_from_bytes = int.from_bytes
_BROKEN = (ValueError, LookupError, struct.error, OverflowError)

Handler = Callable[[bytes, int, int], None]
"""(bytes, start of the event's body, its end without the checksum)"""


class EventCutter:
    """The place in the binlog and the handlers of its events; what the events mean is the subclass's.

    Readable between two calls of feed(): `file`, `end` (offset behind the last event), `need`, `events`.
    """

    def __init__(self, file: str, end: int, *, checksums: bool) -> None:
        self.file, self.end = file, end
        self.events = 0
        self.need = 4
        self._crc = checksums
        self._time = self._flags = self._start = 0
        self._handlers: dict[int, Handler] = {}

    def feed(self, data: bytes, at: int, enough: Callable[[], bool]) -> tuple[int, bool]:
        """Takes whole packets from `at` on; returns where it stopped and whether there is more to do at once.

        Stops when the data ends (`need` then says how many bytes the next packet has at least), when `enough()`
        says so after an event, or after 8 ms, so that the event loop breathes.
        """
        try:
            return self._feed(data, at, enough)
        except _BROKEN as error:  # a part of an event that lies about its length, or text that is none
            raise self._not_understood(f"an event can't be read: {error}") from error

    def _feed(self, data: bytes, at: int, enough: Callable[[], bool]) -> tuple[int, bool]:
        size, handlers, view = len(data), self._handlers, memoryview(data)
        deadline = time.monotonic() + _SLICE_SECONDS
        count = 0
        while size - at >= _HEAD:
            head, status, when, kind, _, length, log_pos, flags = _PACKET(data, at)
            head &= _LARGE
            end = at + 4 + head
            if status or head == _LARGE or head < _HEAD - 4:
                at, done = self._unusual(data, at, status, head)
                if done:
                    return at, False
                continue
            if end > size:
                self.need = 4 + head
                return at, False
            if length != head - 1:
                raise self._not_understood(f"an event says it has {length} bytes and its packet has {head - 1}")
            body = at + _HEAD
            if self._crc or kind == ev.FORMAT_DESCRIPTION:
                stop = end - 4
                if (
                    crc32(view[at + 5 : stop]) != _from_bytes(data[stop:end], "little")
                    and kind != ev.FORMAT_DESCRIPTION
                ):
                    raise self._corrupt(kind, log_pos, length)
            else:
                stop = end
            at = end
            self._time, self._flags = when, flags
            if log_pos:
                self._start = log_pos - length
            handler = handlers.get(kind)
            if handler is None:
                self._on_unknown(kind, flags)
            else:
                handler(data, body, stop)
            if log_pos and kind != ev.ROTATE:
                self.end = log_pos
            count += 1
            if not count & 15 and (enough() or time.monotonic() > deadline):
                self.events += count
                return at, size - at >= 4
        self.events += count
        if size - at >= 5 and data[at + 4]:
            return self._unusual(data, at, data[at + 4], _from_bytes(data[at : at + 3], "little"))[0], False
        self.need = 4 + _from_bytes(data[at : at + 3], "little") if size - at >= 4 else 4
        return at, False

    def _unusual(self, data: bytes, at: int, status: int, head: int) -> tuple[int, bool]:
        """A packet that is no ordinary event: an error, the end, or an event of 16 MB and more in several packets."""
        if status == 0 and head == _LARGE:
            return self._large(data, at)
        if len(data) < at + 4 + head:
            self.need = 4 + head
            return at, True
        payload = data[at + 4 : at + 4 + head]
        if status == 0xFF:
            raise dump_error(payload, f"{self.file}:{self.end}")
        if status == 0xFE:
            raise SourceError(f"the source ended the binlog dump behind {self.file}:{self.end}")
        raise self._not_understood(f"a packet of {head} bytes with status {status:#x} is no event")

    def _large(self, data: bytes, at: int) -> tuple[int, bool]:
        parts, p = [], at
        while True:
            if len(data) - p < 4:
                self.need = p - at + 4
                return at, True
            head = _from_bytes(data[p : p + 3], "little")
            if len(data) - p < 4 + head:
                self.need = p - at + 4 + head
                return at, True
            parts.append(data[p + 4 : p + 4 + head])
            p += 4 + head
            if head < _LARGE:
                break
        event = b"".join(parts)[1:]
        when, kind, _, length, log_pos, flags = _HEADER(event, 0)
        if length != len(event):
            raise self._not_understood(f"an event says it has {length} bytes and has {len(event)}")
        stop = len(event) - 4 if self._crc else len(event)
        if self._crc and crc32(memoryview(event)[:stop]) != _from_bytes(event[stop:], "little"):
            raise self._corrupt(kind, log_pos, length)
        self._time, self._flags, self._start = when, flags, log_pos - length
        handler = self._handlers.get(kind)
        if handler is None:
            self._on_unknown(kind, flags)
        else:
            handler(event, _HEAD - 5, stop)
        self.end = log_pos or self.end
        self.events += 1
        return p, False

    def _on_unknown(self, kind: int, flags: int) -> None:
        if flags & ev.IGNORABLE_FLAG:
            return
        name = ev.NAMES.get(kind, "unknown")
        raise self._not_understood(f"event type {kind} ({name}) is not supported", ev.REMEDIES.get(kind, ""))

    def _where(self) -> str:
        return f"{self.file}:{self._start}"

    def _not_understood(self, what: str, remedy: str = "") -> NotUnderstood:
        return NotUnderstood(f"at {self._where()}: {what}", remedy=remedy or "see docs/operations.md, 'FAILED'")

    def _corrupt(self, kind: int, log_pos: int, length: int) -> NotUnderstood:
        return NotUnderstood(
            f"at {self.file}:{log_pos - length}: the CRC32 of an event of type {kind} is wrong",
            remedy="check the binlog with mysqlbinlog --verify-binlog-checksum, on the source and on a replica",
        )
