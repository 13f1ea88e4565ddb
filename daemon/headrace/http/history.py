"""What the status page draws: each destination's lag and rows in a second, over the last hour."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping

from headrace.destination.status import DestinationStatus

STEP = 10.0
"""Seconds between two samples."""
_SAMPLES = 360

Sample = tuple[int, float, float]
"""Time in seconds since 1970, lag in seconds, rows a second since the sample before."""


class History:
    """`statuses` may change meanwhile; what is gone is forgotten."""

    def __init__(self, statuses: Mapping[str, DestinationStatus]) -> None:
        self._statuses = statuses
        self._samples: dict[str, deque[Sample]] = {}
        self._rows: dict[str, tuple[float, int]] = {}

    def of(self, name: str) -> list[Sample]:
        """Oldest first."""
        return list(self._samples.get(name, ()))

    def take(self) -> None:
        """Adds a sample of each."""
        now = time.monotonic()
        for name in self._samples.keys() - self._statuses.keys():
            del self._samples[name], self._rows[name]
        for name, status in self._statuses.items():
            since, before = self._rows.get(name, (now, status.rows))
            self._rows[name] = now, status.rows
            rate = (status.rows - before) / (now - since) if now > since else 0.0
            sample = int(time.time()), round(status.lag.seconds, 3), round(max(0.0, rate), 1)
            self._samples.setdefault(name, deque(maxlen=_SAMPLES)).append(sample)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self.take()
            await asyncio.sleep(STEP)
