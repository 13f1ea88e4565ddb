"""The memory budget that all queues of the process share, so that many destinations that catch up fit into memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol

_AHEAD_MOST = 2 << 20
_AHEAD_LEAST = 256 << 10
ALONE = 30.0
"""Maximum time in seconds that a large value waits for another destination's."""


class Queue(Protocol):
    """What the budget needs to know of a queue."""

    used: int
    """Bytes in it now."""

    def check_again(self) -> None:
        """Lets waiting callers check the budget again."""


class ProcessBudget:
    """Half of the budget is divided equally among all queues, so that a destination whose sink is unavailable can't
    stop another one. The other half is first come, first served. `total` is in bytes; 0 for no limit."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._queues: dict[Queue, None] = {}
        self._waiting: dict[Queue, None] = {}
        """The queues that wait for memory, longest first."""
        self._alone: Queue | None = None
        """The queue whose destination has a large value in memory."""
        self._none_alone = asyncio.Event()

    def join(self, queue: Queue) -> None:
        """Adds a queue; from now on each has a smaller share."""
        self._queues[queue] = None

    def leave(self, queue: Queue) -> None:
        """Removes a queue with all its bytes."""
        self._queues.pop(queue, None)
        self.end_alone(queue)
        self.released()

    @property
    def _kept(self) -> int:
        """Returns the bytes that each queue may always have."""
        return self._total // (2 * max(1, len(self._queues)))

    def allows(self, queue: Queue, used: int) -> bool:
        """Returns whether a queue may have this many bytes."""
        kept = self._kept
        if not self._total or used <= kept:
            return True
        return used + sum(max(one.used, kept) for one in self._queues if one is not queue) <= self._total

    async def alone(self, queue: Queue) -> None:
        """Waits while the destination of another queue has a large value in memory, at most ALONE seconds for each: a
        sink that accepts nothing must not stop other destinations. Then it is this queue's turn, until end_alone()."""
        while (other := self._alone) not in (None, queue):
            self._none_alone.clear()
            try:
                async with asyncio.timeout(ALONE):
                    await self._none_alone.wait()
            except TimeoutError:
                if self._alone is other:
                    break
        self._alone = queue

    def end_alone(self, queue: Queue) -> None:
        """Ends the turn: the large values of the queue's destination are confirmed or abandoned."""
        if self._alone is queue:
            self._alone = None
            self._none_alone.set()

    def ahead(self) -> int:
        """Returns the bytes that one source may receive ahead of its decoder: fewer with many destinations."""
        return max(_AHEAD_LEAST, min(_AHEAD_MOST, self._kept // 8)) if self._total else _AHEAD_MOST

    @contextlib.contextmanager
    def waiting(self, queue: Queue) -> Iterator[None]:
        """Notifies the queue, while the context lasts, when another one releases something."""
        self._waiting.setdefault(queue)
        try:
            yield
        finally:
            self._waiting.pop(queue, None)

    def released(self) -> None:
        """Notifies waiting queues that bytes were released."""
        for queue in self._waiting:
            queue.check_again()


NO_BUDGET = ProcessBudget(0)
"""For a queue with only its own limit."""
