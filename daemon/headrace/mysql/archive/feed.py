"""What an archiver receives, for the destinations of its source: one dump serves all that have caught up with it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from headrace import runtime
from headrace.errors import ContinuesElsewhere
from headrace.model import Position
from headrace.mysql.archive.archive import Frames
from headrace.mysql.archive.packets import checksums_of, opening, packets_of
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.events.cursor import WRAP

_KEPT = 16 << 20
"""Bytes for destinations that are slower: one that falls further behind reads the source itself."""
_FAILED = 150.0
"""Seconds for which a failure counts: as long as this daemon keeps the archive, it tries more often."""
_READ = 1 << 20
"""Bytes after which a read ends."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Whole events of a file from offset `start` on. `form` is the event that describes the file's format."""

    file: str
    start: int
    data: bytes
    form: bytes

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class Feed:
    """The newest events that the archiver of an archive has received. `native` is native code, or None."""

    def __init__(self, native: Any = None) -> None:
        self.native = native
        self.frames = Frames()
        """Shared by destinations that are far behind, and read the archive instead."""
        self.server = ""
        """The identity of the server whose binlog is received; "" while none is."""
        self.form = b""
        """The event that describes the format of the newest file; empty until the server has sent it."""
        self.line = 0
        """The number of the archive's line that is known to be what the server has; 0 if none is."""
        self.last_receive = 0.0
        """When the server sent something last, by the monotonic clock."""
        self.silence = 0.0
        """Seconds without anything after which the archiver takes its connection for dead."""
        self._failure, self._failed_at = "", 0.0
        self._parts: deque[_Part] = deque()
        self._size = 0
        self._first = 0
        """The number of the oldest part."""
        self._end = "", 0
        self._waiting: dict[FedPackets, None] = {}
        """In the order in which they are woken."""

    @property
    def failure(self) -> str:
        """Returns why the archive can't be written, as far as this daemon tries to; "" if it can."""
        return self._failure if runtime.monotonic() - self._failed_at < _FAILED else ""

    def fail(self, why: str) -> None:
        """Records why the archive can't be written; "" once something is written."""
        self._failure, self._failed_at = why, runtime.monotonic()

    def begin(self, server: str, file: str, offset: int, silence: float) -> None:
        """Begins with a dump from there, which is dead after `silence` seconds without anything."""
        self.finish()
        self.server, self._end, self.silence = server, (file, offset), silence

    def prove(self, line: int) -> None:
        """Notes that a line of the archive is what the server has."""
        if self.server:
            self.line = line

    def take(self, recorder: Recorder) -> None:
        """Adds what the archiver's recorder has read since the last time: something has come from the server."""
        self.form, self.last_receive = recorder.form, runtime.monotonic()
        if not recorder.shared or not recorder.whole:
            return
        file, end, size = recorder.file, recorder.end, sum(map(len, recorder.shared))
        start = end - size
        continues = (file, start) == self._end or (start == 4 and file != self._end[0])
        if size > _KEPT or not continues:  # a large event would be in memory once more for each reader
            self._restart(file, end)
        else:
            self._parts.append(_Part(file, start, b"".join(recorder.shared), self.form))
            self._end = file, end
            self._size += size
        recorder.shared.clear()
        while self._size > _KEPT and len(self._parts) > 1:
            self._size -= len(self._parts.popleft().data)
            self._first += 1
        self._wake()

    def finish(self) -> None:
        """Ends it: its readers continue at the source itself."""
        self.server, self.form, self.line = "", b"", 0
        self._restart("", 0)

    def _restart(self, file: str, offset: int) -> None:
        """Ends all readers. Others may join at this place and after it."""
        self._end = file, offset
        self._first += len(self._parts) + 1
        self._parts.clear()
        self._size = 0
        self._wake()

    def join(self, position: Position) -> FedPackets | None:
        """Returns a dump that continues at a position between two transactions; None if what follows is not here."""
        if not self.form or position.server_uuid != self.server or position.open_xa or position.offset >= WRAP:
            return None  # a decoder that begins beyond 4 GB begins with the file
        number = self._first + len(self._parts)
        if (position.file, position.offset) == self._end:
            return FedPackets(self, number, position.file, position.offset)
        for part in reversed(self._parts):
            number -= 1
            if part.file == position.file and part.start <= position.offset <= part.end:
                number += position.offset == part.end
                return FedPackets(self, number, position.file, position.offset)
        return None

    def part(self, number: int) -> _Part | None:
        """Returns a part; None if it is not here yet. Raises ContinuesElsewhere if it will not be."""
        at = number - self._first
        if at < 0:
            why = "the archiver has stopped"
            if self.server:
                why = "this destination is slower, or an event is too large"
            raise ContinuesElsewhere(f"the archiver's dump can't be read any more: {why}")
        return self._parts[at] if at < len(self._parts) else None

    def wait(self, reader: FedPackets) -> None:
        """Has a reader woken at the next change."""
        self._waiting[reader] = None

    def leave(self, reader: FedPackets) -> None:
        """Ends that."""
        self._waiting.pop(reader, None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for reader in waiting:
            reader.notify()


class FedPackets:
    """The dump of a feed, from one of its parts on; used as a PacketStream. It ends with ContinuesElsewhere."""

    def __init__(self, feed: Feed, number: int, file: str, offset: int) -> None:
        self._feed, self._number, self._file, self._offset = feed, number, file, offset
        self._checksums = True
        part = feed.part(number)
        form = part.form if part is not None and part.file == file else feed.form
        self._opening = self._open(file, offset, form)
        self._waiter: asyncio.Future[None] | None = None
        self._woken = False
        self.bytes_received = 0
        self.waiting_since = 0.0

    def _open(self, file: str, offset: int, form: bytes) -> bytes:
        made = opening(file, offset, form, self._checksums)
        self._checksums = checksums_of(form)
        return made

    @property
    def peer(self) -> str:
        """Returns what is read."""
        return "the archiver's dump"

    @property
    def last_receive(self) -> float:
        """See PacketStream."""
        return self._feed.last_receive

    def rest(self) -> None:
        """See PacketStream: what comes meanwhile is kept for others too."""

    def wake(self) -> None:
        """See PacketStream."""
        self._woken = True
        self.notify()

    def notify(self) -> None:
        """Wakes the waiting read()."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def read(self, rest: bytes, need: int, deadline: float) -> bytes:
        """See PacketStream. Raises ContinuesElsewhere."""
        chunks, size, wanted = [rest, self._opening], len(self._opening), max(need - len(rest), 1)
        self._opening = b""
        while True:
            part = self._feed.part(self._number) if size < max(wanted, _READ) else None
            if part is not None:
                chunks.append(self._packets(part))
                size += len(chunks[-1])
            elif size >= wanted or self._woken:
                break
            else:
                await self._wait(deadline)
        self.waiting_since, self._woken = 0.0, False
        self.bytes_received += size
        return b"".join(chunks)

    def _packets(self, part: _Part) -> bytes:
        opened = b""
        if part.file != self._file:
            opened, self._file, self._offset = self._open(part.file, part.start, part.form), part.file, part.start
        self._number += 1
        return opened + packets_of(self._feed.native, part.file, part.start, part.data, self._offset)

    async def _wait(self, deadline: float) -> None:
        deadline = max(deadline, self._feed.silence)
        self._waiter = asyncio.get_running_loop().create_future()
        self._feed.wait(self)
        self.waiting_since = self.waiting_since or runtime.monotonic()
        try:
            async with asyncio.timeout(deadline):
                await self._waiter
        except TimeoutError:
            if runtime.monotonic() - self.last_receive >= deadline:
                raise ContinuesElsewhere(f"nothing came from the archiver's dump for {deadline:.0f} s") from None
        finally:
            self._waiter = None

    async def close(self) -> None:
        """Ends it."""
        self.waiting_since = 0.0
        self._feed.leave(self)
