"""Turns changes into message batches, and holds them in a queue bounded by bytes until they are confirmed."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from headrace.formats.base import Format
from headrace.model import MessageBatch, Position, RowsChange
from headrace.mysql.decoder import Decoder

_MESSAGE_OVERHEAD = 400
"""Bytes that a message costs besides its value: headers and the objects that hold it."""
_BATCH_BYTES = 512 * 1024
_BATCH_MESSAGES = 5_000


class Outlet:
    """Collects what the decoder emits. One batch grows until somebody takes it."""

    def __init__(self, fmt: Format, topic: str, partition: int, rows_per_message: int, server_uuid: str) -> None:
        self._format, self._topic, self._partition = fmt, topic, partition
        self._rows_per_message = rows_per_message
        self._server_uuid = server_uuid
        self._now_ms = 0
        self.batch = MessageBatch(topic, partition)
        self._decoder: Decoder

    def bind(self, decoder: Decoder) -> None:
        """The decoder says where a change stands: its transaction's start, and its number within it."""
        self._decoder = decoder

    def full(self) -> bool:
        """Whether the batch should be taken before more goes in."""
        batch = self.batch
        return batch.size >= _BATCH_BYTES or len(batch.values) >= _BATCH_MESSAGES

    def tick(self) -> None:
        """Sets the time that the next messages carry; called a chunk, not a message."""
        self._now_ms = time.time_ns() // 1_000_000

    def emit(self, change: RowsChange) -> None:
        """Formats one change into the batch."""
        decoder, batch = self._decoder, self.batch
        position = f"{decoder.file}:{decoder.tx_start}"
        base = f"{change.gtid or f'{self._server_uuid}/{position}'}#{decoder.events_done}"
        where = ("headrace-position", position.encode())
        size, count = self._rows_per_message, len(change.rows)
        batch.rows += count
        if not size or count == 1:
            value = self._format.encode(change, self._now_ms)
            batch.values.append(value)
            batch.headers.append([("headrace-id", base.encode()), ("headrace-pos", b"%d" % change.pos), where])
            batch.size += len(value) + _MESSAGE_OVERHEAD
            return
        pos = change.pos
        if size == 1:
            values = self._format.encode_each(change, self._now_ms)
        else:
            values = [self._format.encode(part, self._now_ms) for part in change.parts(size)]
        batch.values += values
        batch.headers += [
            [("headrace-id", b"%b.%d" % (base.encode(), i)), ("headrace-pos", b"%d" % (pos + i)), where]
            for i in range(0, count, size)
        ]
        batch.size += sum(map(len, values)) + _MESSAGE_OVERHEAD * len(values)

    def take(self, position: Position, received: float) -> MessageBatch:
        """The batch so far, with the position that its confirmation makes true."""
        batch, self.batch = self.batch, MessageBatch(self._topic, self._partition)
        batch.position, batch.received = position, received
        return batch


class ByteQueue:
    """Batches in order, charged from put() to release(): what waits and what is in flight share one budget."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.used = self._outstanding = 0
        self._items: deque[MessageBatch] = deque()
        self._changed = asyncio.Condition()

    async def put(self, batch: MessageBatch) -> None:
        """Waits until the batch fits; one that is larger than the budget passes alone."""
        async with self._changed:
            while self.used and self.used + batch.size > self._budget:
                await self._changed.wait()
            self.used += batch.size
            self._outstanding += 1
            self._items.append(batch)
            self._changed.notify_all()

    async def get(self) -> MessageBatch:
        """The oldest batch that nobody has taken."""
        async with self._changed:
            while not self._items:
                await self._changed.wait()
            return self._items.popleft()

    async def release(self, size: int) -> None:
        """Gives back what a confirmed batch was charged."""
        async with self._changed:
            self.used -= size
            self._outstanding -= 1
            self._changed.notify_all()

    async def empty(self) -> None:
        """Returns once everything that was put in is released."""
        async with self._changed:
            while self.used or self._outstanding:
                await self._changed.wait()

    def __len__(self) -> int:
        return len(self._items)
