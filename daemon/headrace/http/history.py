"""The data of the status page's charts: each destination's lag and rows per second, over the last hour."""

from __future__ import annotations

import asyncio
from collections import deque

from headrace import runtime
from headrace.http.facts import Facts

STEP = 10.0
"""Seconds between two samples."""
_SAMPLES = 360

Sample = tuple[int, float, float]
"""Time in seconds since 1970, lag in seconds, rows per second since the previous sample."""


class History:
    """The samples of the destinations; those that no longer exist are dropped."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._samples: dict[str, deque[Sample]] = {}
        self._rows: dict[str, tuple[float, int]] = {}

    def of(self, name: str) -> list[Sample]:
        """Returns the samples, oldest first."""
        return list(self._samples.get(name, ()))

    def take(self) -> None:
        """Adds a sample of each destination."""
        now, statuses = runtime.monotonic(), self._facts.statuses
        for name in self._samples.keys() - statuses.keys():
            del self._samples[name], self._rows[name]
        for name, status in statuses.items():
            since, before = self._rows.get(name, (now, status.published.rows))
            self._rows[name] = now, status.published.rows
            rate = (status.published.rows - before) / (now - since) if now > since else 0.0
            sample = int(runtime.now()), round(status.lag.seconds, 3), round(max(0.0, rate), 1)
            self._samples.setdefault(name, deque(maxlen=_SAMPLES)).append(sample)

    async def run(self) -> None:
        """Takes samples until it is cancelled."""
        while True:
            self.take()
            await asyncio.sleep(STEP)
