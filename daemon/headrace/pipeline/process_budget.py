"""The budget that all queues of the process share, so that many destinations that catch up fit into its memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol

_AHEAD_MOST = 2 << 20
_AHEAD_LEAST = 256 << 10
ALONE = 30.0
"""Seconds that a large value waits for another destination's."""


class Queue(Protocol):
    """What the budget has to know of a queue."""

    used: int
    """Bytes that it holds now."""

    def look_again(self) -> None:
        """There may be room for what waits."""


class ProcessBudget:
    """Half of the budget is kept for all queues alike, whatever the others hold: so a destination whose sink is away
    can't stop another one. The other half goes to whoever comes first. `total` in bytes; 0 for no limit."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._queues: dict[Queue, None] = {}
        self._waiting: dict[Queue, None] = {}
        """Those that have no room, longest first."""
        self._alone: Queue | None = None
        """Whose destination has a large value under way."""
        self._none_alone = asyncio.Event()

    def join(self, queue: Queue) -> None:
        """Takes a queue in; from here on each has a smaller part."""
        self._queues[queue] = None

    def leave(self, queue: Queue) -> None:
        """Takes a queue out, with all that it holds."""
        self._queues.pop(queue, None)
        self.end_alone(queue)
        self.released()

    @property
    def _kept(self) -> int:
        """What each queue may always hold."""
        return self._total // (2 * max(1, len(self._queues)))

    def allows(self, queue: Queue, used: int) -> bool:
        """Whether a queue may hold so many bytes."""
        kept = self._kept
        if not self._total or used <= kept:
            return True
        return used + sum(max(one.used, kept) for one in self._queues if one is not queue) <= self._total

    async def alone(self, queue: Queue) -> None:
        """Waits while the destination of another queue has a large value in memory, ALONE seconds for each at most: a
        sink that takes nothing must not stop other destinations. Then it is the turn of this queue, until
        end_alone()."""
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
        """What the queue's destination had of large values is confirmed, or given up."""
        if self._alone is queue:
            self._alone = None
            self._none_alone.set()

    def ahead(self) -> int:
        """Bytes that one source may receive ahead of its decoder: fewer where many destinations run."""
        return max(_AHEAD_LEAST, min(_AHEAD_MOST, self._kept // 8)) if self._total else _AHEAD_MOST

    @contextlib.contextmanager
    def waiting(self, queue: Queue) -> Iterator[None]:
        """Within it the queue is told when another one releases something."""
        self._waiting.setdefault(queue)
        try:
            yield
        finally:
            self._waiting.pop(queue, None)

    def released(self) -> None:
        """A queue holds less than before."""
        for queue in self._waiting:
            queue.look_again()


NO_BUDGET = ProcessBudget(0)
"""For a queue that is bounded by itself alone."""
