"""Entries between the stream and a client, in order: in memory, and on disk when there are many, until they are
acknowledged."""

from __future__ import annotations

import asyncio
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

from headrace.errors import SinkError, SinkRejected
from headrace.model import MessageBatch, Position
from headrace.tasks import settle

_SEGMENT = 64 << 20
"""Bytes of one file."""
_ANSWER = 32 << 20
"""Bytes of one batch, unless one entry alone is larger."""


class Segment:
    """A file without a name, which goes with the last batch that is in it."""

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

    def write(self, values: Sequence[bytes]) -> int:
        """Where they begin. Others may read meanwhile."""
        at, rest = self.size, memoryview(b"".join(values))
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, self.size)
                self.size, rest = self.size + written, rest[written:]
        except OSError as error:
            raise _disk(error) from error
        return at

    def read(self, at: int, size: int) -> bytes:
        """What was written there."""
        return os.pread(self._descriptor, size, at)


def _disk(error: OSError) -> SinkError:
    return SinkError(
        f"entries for the client can't be kept on disk: {error.strerror}",
        remedy="make room in [daemon] spool, or lower [sink] max_store",
    )


class OnDisk:
    """The values of a batch, in a file: each look reads it."""

    def __init__(self, segment: Segment, values: Sequence[bytes]) -> None:
        self._segment, self._at = segment, segment.write(values)
        self._sizes = [len(value) for value in values]
        self.total, self.largest = sum(self._sizes), max(self._sizes, default=0)

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[bytes]:
        at = self._at
        for size in self._sizes:
            yield self._segment.read(at, size)
            at += size


@dataclass(slots=True, eq=False)
class _Held:
    """A batch of the stream that is not acknowledged. `end` is the number of the entry after its last."""

    batch: MessageBatch
    end: int
    done: asyncio.Future[None]
    read: list[bytes] = field(default_factory=list)
    """Its values once a client came to them."""


class EntryStore:
    """Entries are numbered as they come; a client gets them in order, and acknowledges them in order.

    Not more than `in_memory` bytes stay in memory, and `on_disk` bytes in files in `folder`; then append() waits.
    """

    def __init__(self, folder: Path | None, in_memory: int, on_disk: int) -> None:
        self._folder, self._in_memory, self._on_disk = folder, in_memory, on_disk
        self._held: deque[_Held] = deque()
        self._segment: Segment | None = None
        self.memory = self.disk = 0
        """Bytes of entries that are not acknowledged, by where they are."""
        self.given = self.acknowledged = self.end = 0
        """The number after the last entry that was given to the client, that it has acknowledged, and that came."""
        self.on_acknowledged: Callable[[Position, bytes], None] = lambda _position, _entry: None
        """Called with a position before which all is acknowledged, and the last entry of a batch before it."""
        self.grown, self._room = asyncio.Event(), asyncio.Event()
        """Set by each append(), and when somebody else is to look."""

    async def append(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Waits for room; the result is done once all entries of the batch are acknowledged. What goes to disk is
        charged no more. Raises SinkError, and SinkRejected for a tombstone."""
        if None in batch.values:
            raise SinkRejected("a message without a value can't be an entry")
        size = batch.value_bytes
        stored = isinstance(batch.values, OnDisk)
        if not stored and self._held and self.memory + size > self._in_memory:
            while self.disk and self.disk + size > self._on_disk:
                self._room.clear()
                await self._room.wait()
            if self._segment is None or self._segment.size > _SEGMENT:
                self._segment = await asyncio.to_thread(Segment, self._folder)
            values: Any = batch.values
            batch.values = cast(Any, await asyncio.to_thread(OnDisk, self._segment, values))
            batch.size, stored = 0, True
        if stored:
            self.disk += size
        else:
            self.memory += size
        self.end += len(batch.values)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append(_Held(batch, self.end, done))
        self.acknowledge(self.acknowledged)  # a batch without entries may be done
        self.grown.set()
        return done

    async def load(self, most: int) -> None:
        """Reads what of the next `most` entries is on disk, as far as take() gives it."""
        while (held := self._next_on_disk(most)) is not None:
            values: Any = held.batch.values
            held.read = await asyncio.to_thread(list, values)

    def _next_on_disk(self, most: int) -> _Held | None:
        count = size = 0
        for held in self._held:
            if held.end <= self.given:
                continue
            if count >= most or size > _ANSWER:
                return None
            if not held.read:
                if isinstance(held.batch.values, OnDisk):
                    return held
                held.read = cast(list[bytes], held.batch.values)
            count += min(len(held.read), held.end - self.given)
            size += held.batch.value_bytes
        return None

    def take(self, most: int) -> list[bytes]:
        """The next entries, as far as load() has read them: `most` of them, and 32 MiB at most unless one alone is
        larger. They are given then. Nobody else can come in between."""
        taken: list[bytes] = []
        size = 0
        for held in self._held:
            if held.end <= self.given:
                continue
            if not held.read:
                break
            for value in islice(held.read, self.given - (held.end - len(held.read)), None):
                if len(taken) >= most or (taken and size + len(value) > _ANSWER):
                    return taken
                taken.append(value)
                size += len(value)
                self.given += 1
        return taken

    def acknowledge(self, number: int) -> None:
        """All entries before `number` are done with."""
        self.acknowledged = number
        self.given = max(self.given, number)
        while self._held and self._held[0].end <= number:
            held = self._held.popleft()
            if isinstance(held.batch.values, OnDisk):
                self.disk -= held.batch.value_bytes
            else:
                self.memory -= held.batch.value_bytes
            settle(held.done)
            if held.batch.position is not None and held.read:
                self.on_acknowledged(held.batch.position, held.read[-1])
        if not self._held:
            self._segment = None
        self._room.set()

    def back(self, number: int) -> None:
        """What was given from `number` on is given again."""
        self.given = number
        for held in self._held:
            if held.end - len(held.read) >= number and isinstance(held.batch.values, OnDisk):
                held.read = []

    def fail(self, error: BaseException) -> None:
        """Nothing more is acknowledged."""
        for held in self._held:
            settle(held.done, error)
            held.done.exception()  # nobody may wait for it any more
        self._held.clear()
        self._segment = None
        self._room.set()
