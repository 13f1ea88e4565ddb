"""Entries between the stream and a client, in order: in memory, and on disk if there are many, until they are
acknowledged."""

from __future__ import annotations

import asyncio
import os
import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from headrace import runtime
from headrace.canal_wire.wire import entry_in, packet_head
from headrace.errors import SinkError, SinkRejected
from headrace.model import MessageBatch, Position
from headrace.tasks import settle

_SEGMENT = 64 << 20
"""Bytes of one file."""
_ANSWER = 32 << 20
"""Maximum bytes of one batch, unless one entry alone is larger."""


class Segment:
    """A file without a name, which is deleted with the last batch in it."""

    def __init__(self, folder: Path | None) -> None:
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise _disk(error) from error
        weakref.finalize(self, os.close, self._descriptor)
        self.size = 0

    def write(self, data: bytes) -> int:
        """Appends data; returns its offset. Others may read meanwhile."""
        at, rest = self.size, memoryview(data)
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, self.size)
                self.size, rest = self.size + written, rest[written:]
        except OSError as error:
            raise _disk(error) from error
        return at

    def read(self, at: int, size: int) -> bytes:
        """Returns the data at an offset."""
        return os.pread(self._descriptor, size, at)


def _disk(error: OSError) -> SinkError:
    return SinkError(
        f"entries for the client can't be kept on disk: {error.strerror}",
        remedy="make room in [daemon] spool, or lower [sink] max_store",
    )


class Entries:
    """The entries of a batch, as the fields of Messages one after the other; a client gets a piece of this. They
    replace the batch's values."""

    def __init__(self, data: bytes, ends: array[int]) -> None:
        """`ends`: the end of each."""
        self.data: bytes | None = data
        """None while they are on disk and not yet needed."""
        self.ends = ends
        self._segment: Segment | None = None
        self._at = 0

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Entries:
        """Returns the packets of messages. Raises SinkRejected for a tombstone."""
        native = getattr(values, "batch", None)  # set for a column that native code has filled
        try:
            if native is not None:
                data, raw = native.entries()
                return cls(data, array("Q", raw))
            fields = [entry_in(packet) for packet in cast(Sequence[bytes], values)]
        except (TypeError, ValueError) as error:
            raise SinkRejected("a message without a value can't be an entry") from error
        return cls(b"".join(fields), array("Q", accumulate(map(len, fields))))

    @property
    def on_disk(self) -> bool:
        """Returns whether they are in a file."""
        return self._segment is not None

    @property
    def total(self) -> int:
        """Returns the bytes of all."""
        return self.ends[-1] if self.ends else 0

    @property
    def largest(self) -> int:
        """Returns the bytes of the largest."""
        return max((end - begin for begin, end in zip([0, *self.ends], self.ends, strict=False)), default=0)

    @property
    def last(self) -> bytes:
        """Returns the last of them."""
        return self.read()[self.ends[-2] if len(self.ends) > 1 else 0 :]

    def moved(self, segment: Segment, at: int) -> None:
        """Drops them from memory: they were written to a file."""
        self._segment, self._at, self.data = segment, at, None

    def read(self) -> bytes:
        """Returns all of them, from memory or the file."""
        if self.data is not None:
            return self.data
        assert self._segment is not None
        return self._segment.read(self._at, self.total)

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[bytes]:
        """Yields the values of the messages, again as separate packets."""
        data, begin = self.read(), 0
        for end in self.ends:
            yield packet_head(0, end - begin) + data[begin:end]
            begin = end


@dataclass(slots=True, eq=False)
class _Held:
    """An unacknowledged batch of the stream. `begin` and `end` are the numbers of its first entry, and of the one after
    its last."""

    entries: Entries
    position: Position | None
    begin: int
    end: int
    done: asyncio.Future[None]


class EntryStore:
    """Numbers entries as they come; a client gets them in order, and acknowledges them in order.

    At most `in_memory` bytes stay in memory, and `on_disk` bytes in files in `folder`; beyond that append() waits."""

    def __init__(self, folder: Path | None, in_memory: int, on_disk: int) -> None:
        self._folder, self._in_memory, self._on_disk = folder, in_memory, on_disk
        self._held: deque[_Held] = deque()
        self._segment: Segment | None = None
        self.memory = self.disk = 0
        """Bytes of unacknowledged entries, in memory and on disk."""
        self.given = self.acknowledged = self.end = 0
        """The number after the last entry that was given to the client, was acknowledged by it, and was appended."""
        self.on_acknowledged: Callable[[Position, bytes], None] = lambda _position, _entry: None
        """Called with a position before which all is acknowledged, and the last entry of a batch before it, as a field
        of Messages."""
        self.grown, self._room = asyncio.Event(), asyncio.Event()
        """Set by each append(), and when a waiter must check again."""

    async def append(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Waits for space, then adds a batch. The future is done once all entries of the batch are acknowledged.
        Entries on disk no longer count in the queue. Raises SinkError, and SinkRejected for a tombstone."""
        values: Any = batch.values
        if not isinstance(values, Entries):
            # A batch of native code is one piece of memory with the headers, and is freed with them.
            batch.values, batch.headers = cast(Any, values := Entries.of(values)), []
        entries: Entries = values
        size = entries.total
        if not entries.on_disk and self._held and self.memory + size > self._in_memory:
            while self.disk and self.disk + size > self._on_disk:
                self._room.clear()
                await self._room.wait()
            if self._segment is None or self._segment.size > _SEGMENT:
                self._segment = await runtime.in_thread(Segment, self._folder)
            entries.moved(self._segment, await runtime.in_thread(self._segment.write, entries.read()))
            batch.size = 0
        if entries.on_disk:
            self.disk += size
        else:
            self.memory += size
        begin, self.end = self.end, self.end + len(entries)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append(_Held(entries, batch.position, begin, self.end, done))
        self.acknowledge(self.acknowledged)  # a batch without entries may be done
        self.grown.set()
        return done

    async def load(self, most: int) -> None:
        """Reads from disk what take() will give of the next `most` entries."""
        while (entries := self._next_on_disk(most)) is not None:
            entries.data = await runtime.in_thread(entries.read)

    def _next_on_disk(self, most: int) -> Entries | None:
        count = size = 0
        for held in self._held:
            if held.end <= self.given:
                continue
            if count >= most or size > _ANSWER:
                return None
            if held.entries.data is None:
                return held.entries
            count += min(len(held.entries), held.end - self.given)
            size += held.entries.total
        return None

    def take(self, most: int) -> tuple[list[memoryview], int]:
        """Returns the next entries that load() has read, in pieces of several, and their bytes: at most `most` of them,
        and 32 MiB unless one alone is larger. They count as given. No other task can run in between."""
        taken, size = list[memoryview](), 0
        for held in self._held:
            if held.end <= self.given:
                continue
            data, ends = held.entries.data, held.entries.ends
            if data is None or not most:
                break
            first = self.given - held.begin
            begin, last = ends[first - 1] if first else 0, min(first + most, len(ends))
            fits = bisect_right(ends, begin + _ANSWER - size, first, last)
            if not taken:
                fits = max(fits, first + 1)
            if fits > first:
                taken.append(memoryview(data)[begin : ends[fits - 1]])
                size += len(taken[-1])
                most -= fits - first
                self.given += fits - first
            if fits < last:
                break
        return taken, size

    def acknowledge(self, number: int) -> None:
        """Acknowledges all entries before `number`."""
        self.acknowledged = number
        self.given = max(self.given, number)
        while self._held and self._held[0].end <= number:
            held = self._held.popleft()
            if held.entries.on_disk:
                self.disk -= held.entries.total
            else:
                self.memory -= held.entries.total
            settle(held.done)
            if held.position is not None and held.entries.data is not None and len(held.entries):
                self.on_acknowledged(held.position, held.entries.last)
        if not self._held:
            self._segment = None
        self._room.set()

    def back(self, number: int) -> None:
        """Gives entries from `number` on again."""
        self.given = number
        for held in self._held:
            if held.begin >= number and held.entries.on_disk:
                held.entries.data = None

    def fail(self, error: BaseException) -> None:
        """Fails all waiting batches: nothing more is acknowledged."""
        for held in self._held:
            settle(held.done, error)
            held.done.exception()  # nobody may wait for it any more
        self._held.clear()
        self._segment = None
        self._room.set()
