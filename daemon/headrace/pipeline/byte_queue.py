"""The queue between reader and sink: batches in order, bounded by bytes until they are confirmed."""

from __future__ import annotations

import asyncio
from collections import deque

from headrace.model import MessageBatch


class ByteQueue:
    """Batches in order, charged from put() to release(): what waits and what is in flight share one budget."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self.used = self._outstanding = 0
        self._items: deque[MessageBatch] = deque()
        self._changed = asyncio.Condition()

    def fits(self, batch: MessageBatch) -> bool:
        """Whether put() would not wait."""
        return not self.used or self.used + batch.size <= self._budget

    async def put(self, *batches: MessageBatch) -> None:
        """Waits until the batch fits; one that is larger than the budget passes alone. Several that are confirmed only
        together go in together."""
        async with self._changed:
            while not self.fits(batches[0]):
                await self._changed.wait()
            for batch in batches:
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

    def clear(self) -> None:
        """Lets go of what nobody will take any more."""
        self._items.clear()

    async def empty(self) -> None:
        """Returns once everything that was put in is released."""
        async with self._changed:
            while self.used or self._outstanding:
                await self._changed.wait()

    def __len__(self) -> int:
        return len(self._items)
