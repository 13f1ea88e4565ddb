"""What lies between the stream and a client: entries in order, in memory and behind that on disk, until they are
acknowledged."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from headrace.errors import SinkError, SinkRejected
from headrace.model import MessageBatch
from headrace.tasks import settle

_SEGMENT = 64 << 20
"""Bytes of one file."""
_ANSWER = 32 << 20
"""Bytes of one batch, unless one entry alone is larger."""
_GIVEN = 4 * _ANSWER
"""Bytes of entries that may be given and not acknowledged: they are in memory."""


class Segment:
    """A file without a name, which goes with the last batch that is in it."""

    def __init__(self, folder: Path | None) -> None:
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            self.file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the last reference
        except OSError as error:
            raise _disk(error) from error
        self.size = 0

    def write(self, values: Sequence[bytes]) -> int:
        """Where they begin. Others may read meanwhile."""
        at, rest = self.size, memoryview(b"".join(values))
        try:
            while rest:
                written = os.pwrite(self.file.fileno(), rest, self.size)
                self.size, rest = self.size + written, rest[written:]
        except OSError as error:
            raise _disk(error) from error
        return at

    def read(self, at: int, size: int) -> bytes:
        """What was written there."""
        return os.pread(self.file.fileno(), size, at)


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
    """A batch of the stream that is not acknowledged. `end` is the number of the entry behind its last."""

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
        self._given_bytes = 0
        self.given = self.acknowledged = self.end = 0
        """The numbers behind the last entry that was given to the client, that it has acknowledged, that came."""
        self.grown, self._room = asyncio.Event(), asyncio.Event()
        """Set by each append()."""

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

    async def take(self, most: int) -> list[bytes]:
        """The next entries, `most` of them and 32 MiB at most unless one alone is larger; they are given then. No
        entries while 128 MiB are given that are not acknowledged."""
        taken: list[bytes] = []
        if self._given_bytes > _GIVEN:
            return taken
        size = 0
        for held in list(self._held):
            if held.end <= self.given:
                continue
            if not held.read:
                values: Any = held.batch.values
                held.read = await asyncio.to_thread(list, values) if isinstance(values, OnDisk) else list(values)
            begin = held.end - len(held.read)
            for value in held.read[self.given - begin :]:
                if len(taken) >= most or (taken and size + len(value) > _ANSWER):
                    return taken
                taken.append(value)
                size += len(value)
                self.given += 1
                self._given_bytes += len(value)
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
        if not self._held:
            self._segment = None
        self._count_given()
        self._room.set()

    def back(self, number: int) -> None:
        """What was given from `number` on is given again."""
        self.given = number
        self._count_given()
        for held in self._held:
            if held.end - len(held.read) >= number and isinstance(held.batch.values, OnDisk):
                held.read = []

    def _count_given(self) -> None:
        """By batches, of which the first may be acknowledged in part."""
        self._given_bytes = sum(held.batch.value_bytes for held in self._held if held.end - len(held.read) < self.given)

    def fail(self, error: BaseException) -> None:
        """Nothing more is acknowledged."""
        for held in self._held:
            settle(held.done, error)
            held.done.exception()  # nobody may wait for it any more
        self._held.clear()
        self._segment = None
        self._room.set()
