"""The queue between reader and sink: batches in order, bounded by bytes until they are confirmed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headrace.model import MessageBatch
from headrace.pipeline.process_budget import NO_BUDGET, ProcessBudget


class ByteQueue:
    """A queue of batches in order. A batch counts from put() to release(): waiting batches and those in flight share
    one budget, and the process's budget once the queue has joined it. `starved` is called when all batches are taken
    and another one must wait until they are released: a task that gathers batches then stops waiting for more."""

    def __init__(
        self, budget: int, process: ProcessBudget = NO_BUDGET, starved: Callable[[], object] = lambda: None
    ) -> None:
        self._budget, self._process, self._starved = budget, process, starved
        self._held_up = 0
        """Number of callers waiting in put()."""
        self.used = self._outstanding = 0
        self._items: deque[MessageBatch] = deque()
        self._filled, self._room, self._emptied = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._emptied.set()

    def join(self) -> None:
        """Counts the queue in the process's budget from now on."""
        self._process.join(self)

    async def alone(self) -> None:
        """Waits for the turn to have a large value in memory. The turn lasts until all in the queue is confirmed and
        end_alone() is called."""
        await self._process.alone(self)

    def end_alone(self) -> None:
        """Ends the turn, once the queue is empty."""
        if not self._outstanding:
            self._process.end_alone(self)

    def leave(self) -> None:
        """Stops counting what is still in the queue: nobody will take it."""
        self._process.leave(self)

    def fits(self, batch: MessageBatch) -> bool:
        """Returns whether put() would not wait."""
        used = self.used + batch.size
        return not self.used or (used <= self._budget and self._process.allows(self, used))

    async def put(self, *batches: MessageBatch) -> None:
        """Waits until the batch fits, and adds it. A batch larger than the budget passes when the queue is empty.
        Batches that are confirmed only together go in together."""
        if not self.fits(batches[0]):
            self._held_up += 1
            try:
                with self._process.waiting(self):
                    while not self.fits(batches[0]):
                        if not self._items:
                            self._starved()
                        self._room.clear()
                        await self._room.wait()
            finally:
                self._held_up -= 1
        for batch in batches:
            self.used += batch.size
            self._outstanding += 1
            self._items.append(batch)
        self._emptied.clear()
        self._filled.set()

    async def get(self) -> MessageBatch:
        """Waits for and returns the oldest batch that nobody has taken."""
        while not self._items:
            if self._held_up:
                self._starved()
            self._filled.clear()
            await self._filled.wait()
        return self._items.popleft()

    def take_waiting(self) -> list[MessageBatch]:
        """Returns all batches that nobody has taken, in order."""
        taken = list(self._items)
        self._items.clear()
        return taken

    def release(self, size: int) -> None:
        """Subtracts a confirmed batch's size."""
        self.used -= size
        self._outstanding -= 1
        if not self._outstanding:
            self._emptied.set()
        self.check_again()
        self._process.released()

    def give_back(self, size: int) -> None:
        """Subtracts bytes that a batch which is not confirmed no longer needs."""
        if size:
            self.used -= size
            self.check_again()
            self._process.released()

    def check_again(self) -> None:
        """Lets waiting put() calls check the budget again."""
        self._room.set()

    def clear(self) -> None:
        """Drops what nobody will take any more."""
        self._items.clear()

    async def empty(self) -> None:
        """Waits until everything that was put in is released."""
        await self._emptied.wait()

    def __len__(self) -> int:
        return len(self._items)
