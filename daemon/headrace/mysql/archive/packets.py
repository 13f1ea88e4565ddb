"""Reads archived binlog files as the packets that a server's dump of them would have."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from headrace import runtime, tasks
from headrace.errors import ArchiveError, ContinuesElsewhere
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.index import BinlogFile, Line
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import Key, group_of
from headrace.mysql.events.splitter import format_of
from headrace.mysql.wire.binlog_file import packet, rotate_packet

_HEADER = 19
_SMALL = 0xFFFFFF - 1
_OUTSIDE = frozenset({ev.STOP, ev.ROTATE, ev.FORMAT_DESCRIPTION, ev.PREVIOUS_GTIDS, ev.BINLOG_CHECKPOINT, ev.GTID_LIST})
"""Events that belong to no transaction."""
_size_of = struct.Struct("<I").unpack_from


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading begins: the number of a line, a file of it, and an offset in that. Transactions of the set
    `without` are passed over, and so are those that are not in `only`, if there is one; both only before `until` (file
    and offset), or anywhere without it."""

    line: int
    file: str
    offset: int
    without: GtidSet | None = None
    only: GtidSet | None = None
    until: tuple[str, int] | None = None

    def wants(self, key: Key | None) -> bool:
        """Returns whether a transaction is read."""
        if key is None:
            return True
        one = GtidSet()
        one.add(*key)
        return not (self.without is not None and self.without.contains(one)) and (
            self.only is None or self.only.contains(one)
        )


@dataclass(frozen=True, slots=True)
class OlderFiles:
    """Files of a line of an archive that precede all that the source has."""

    archive: Archive
    line: int
    names: frozenset[str]

    def file(self, name: str) -> BinlogFile | None:
        """Returns one of them."""
        return self.archive.file_and_next(self.line, name)[0] if name in self.names else None

    def dump(self, name: str, offset: int) -> ArchivedPackets | None:
        """Returns a dump from an offset of one of them on."""
        place = Place(self.line, name, offset)
        return ArchivedPackets(self.archive, place, checksums=True) if name in self.names else None


class ArchivedPackets:
    """A dump that comes from an archive; used as a PacketStream. It ends with ContinuesElsewhere where the archive
    does. The argument `server` is the identity of the server that continues it. `checksums`: whether the decoder
    expects a CRC32 at the end of the first event."""

    def __init__(self, archive: Archive, place: Place, server: str = "", *, checksums: bool) -> None:
        self._archive, self._place = archive, place
        self.checksums = self._checksums = checksums
        """Whether the first event ends in a CRC32."""
        line = archive.line(place.line)
        self.server, self.foreign = line.server, bool(server) and line.server != server
        """The identity of the server that wrote it, and whether that is another one than the one that continues it."""
        self.extent = _extent_of(line)
        """What there is of its line: number, files, and where it ends. Another value means that it has grown."""
        self.ended = False
        """Whether it was read to its end."""
        self.at = place.file, place.offset
        """File and offset up to which it was read."""
        self._filters = place.without is not None or place.only is not None
        self._pieces = self._read()
        self._next: asyncio.Task[bytes | None] | None = None
        """The next piece is read while the decoder has the present one."""
        self._woken = self._dropping = False
        self.bytes_received = 0
        self.last_receive = runtime.monotonic()
        self.waiting_since = 0.0

    @property
    def peer(self) -> str:
        """Returns where the archive is."""
        return self._archive.store.place

    async def executed(self) -> str:
        """Returns what of it the server had executed where the line ends, as a GTID set; "" if it has no GTIDs."""
        gtids = await self._archive.executed(self._archive.line(self._place.line))
        return str(gtids if self._place.only is None else gtids.common(self._place.only))

    def rest(self) -> None:
        """See PacketStream: nothing arrives by itself."""

    def wake(self) -> None:
        """See PacketStream."""
        self._woken = True

    async def read(self, rest: bytes, need: int, deadline: float) -> bytes:
        """See PacketStream. Raises ContinuesElsewhere and ArchiveError, also if nothing comes until the deadline."""
        chunks, size = [rest], len(rest)
        while size < max(need, len(rest) + 1) and not self._woken:
            self._next = self._next or asyncio.create_task(self._following(), name="archive")
            try:
                async with asyncio.timeout(deadline or None):
                    piece = await asyncio.shield(self._next)
            except TimeoutError:
                raise ArchiveError(f"nothing came from the archive at {self.peer} for {deadline:.0f} s") from None
            if piece is None:
                self.ended = True
                file, offset = self.at
                raise ContinuesElsewhere(f"the archive at {self.peer} ends at {file}:{offset}")
            self._next = asyncio.create_task(self._following(), name="archive")
            chunks.append(piece)
            size += len(piece)
            self.bytes_received += len(piece)
            self.last_receive = runtime.monotonic()
        self._woken = False
        return b"".join(chunks)

    async def close(self) -> None:
        """Ends it."""
        await tasks.cancel(self._next)
        await self._pieces.aclose()
        if self._archive.shared is not None:
            self._archive.shared.clear()

    async def _following(self) -> bytes | None:
        return await anext(self._pieces, None)

    async def _read(self) -> AsyncGenerator[bytes]:
        """Yields the packets of one frame after the other."""
        name, begin = self._place.file, True
        while True:
            file, following = self._archive.file_and_next(self._place.line, name)
            offset = self.at[1]
            if begin:
                begin = False
                async for frame in self._archive.frames(file):
                    form = frame.data[4 : 4 + _size_of(frame.data, 13)[0]]
                    yield opening(name, offset, form, self._checksums)
                    self._checksums = checksums_of(form)
                    break
            async for frame in self._archive.frames(file, offset):
                yield await runtime.in_thread(self._packets, frame.start, frame.data, offset)
                self.at = name, frame.start + len(frame.data)
            if self.at[1] < file.size:
                continue
            if following is not None:
                name, begin = following.name, True
                self.at = name, 4
            elif not await self._archive.refresh():
                file, following = self._archive.file_and_next(self._place.line, name)
                if self.at[1] >= file.size and following is None:  # else another task has refreshed it meanwhile
                    self.extent = _extent_of(self._archive.line(self._place.line))
                    return

    def _packets(self, start: int, data: bytes, offset: int) -> bytes:
        keeps = self._keeps if self._filters else None
        return packets_of(self._archive.native, self.at[0], start, data, offset, keeps)

    def _keeps(self, data: bytes, at: int, end: int, start: int) -> bool:
        """Returns whether an event is given: those of unwanted transactions are not."""
        place, kind = self._place, data[at + 4]
        if kind in ev.GTIDS:
            if place.until is not None and self.at[0] == place.until[0] and start + at >= place.until[1]:
                self._filters = self._dropping = False
                return True
            _, _, key, _ = group_of(kind, data, at + _HEADER, end - 4 if self._checksums else end)
            self._dropping = not place.wants(key)
        elif kind in _OUTSIDE:
            self._dropping = False
        return not self._dropping


def _extent_of(line: Line) -> tuple[int, int, str, int]:
    return line.number, len(line.files), *line.end


def opening(file: str, offset: int, form: bytes, checksums: bool) -> bytes:
    """Returns what a server sends before the events of a file from `offset` on. `form` is the event that describes its
    format. `checksums`: whether the decoder expects a CRC32 at the end of an event before that."""
    made_up = packet(form[:13] + bytes(4) + form[17:]) if offset > 4 else b""  # it is at no offset then
    return rotate_packet(file, offset, checksums) + made_up


def checksums_of(form: bytes) -> bool:
    """Returns whether the events after a FORMAT_DESCRIPTION event end in a CRC32."""
    return format_of(form, _HEADER, len(form) - 4)[1] == 1


def packets_of(
    native: Any,
    file: str,
    start: int,
    data: bytes,
    offset: int,
    keeps: Callable[[bytes, int, int, int], bool] | None = None,
) -> bytes:
    """Returns the packets of a part of a file, which is at `start` and consists of whole events, from `offset` of the
    file on. `native` is native code, or None. Leaves out events for which `keeps` returns False; it gets the part, the
    event's begin and end there, and `start`. Raises ArchiveError if no event begins at the offset."""
    if native is not None and keeps is None:
        with contextlib.suppress(ValueError):
            made_at_once: bytes = native.archive_packets(data, start, offset)
            return made_at_once
    at, size, made, begun = 4 if not start else 0, len(data), list[bytes](), start >= offset
    while at < size:
        length = _size_of(data, at + 9)[0] if at + _HEADER <= size else 0
        end = at + length
        if length < _HEADER or end > size:
            raise ArchiveError(f"the archive's frame at {file}:{start} does not consist of events")
        if start + at >= offset:
            if not begun and start + at > max(4, offset):
                raise ArchiveError(f"no event begins at {file}:{offset}")
            begun = True
            if keeps is None or keeps(data, at, end, start):
                if length < _SMALL:
                    made.append((length + 1).to_bytes(3, "little") + b"\0\0" + data[at:end])
                else:
                    made.append(packet(data[at:end]))
        at = end
    return b"".join(made)
