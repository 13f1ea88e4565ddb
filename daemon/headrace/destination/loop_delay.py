"""How late the event loop is, which has to be measured all the time."""

from __future__ import annotations

import asyncio
import time
from collections import deque

WINDOW = 60.0


class LoopDelay:
    """How late the event loop is, in seconds: the last time, and at most in the last minute. A task sleeps, and looks
    how long it really took."""

    def __init__(self, interval: float = 0.1) -> None:
        self._interval = interval
        self._seen: deque[tuple[float, float]] = deque()
        self.last = 0.0

    @property
    def largest(self) -> float:
        """The largest delay of the last minute."""
        return max((delay for _, delay in self._seen), default=0.0)

    def note(self, delay: float, now: float) -> None:
        """Adds a measurement made at `now` on the monotonic clock."""
        self.last = max(0.0, delay)
        self._seen.append((now, self.last))
        while self._seen[0][0] < now - WINDOW:
            self._seen.popleft()

    async def run(self) -> None:
        """Measures until it is cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(self._interval)
            now = time.monotonic()
            self.note(now - before - self._interval, now)
