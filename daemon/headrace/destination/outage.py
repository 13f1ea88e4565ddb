"""A sink that confirms nothing: why, since when, told once at its beginning, each minute, and at its end."""

from __future__ import annotations

import asyncio
import time

from headrace.destination.parts import Context
from headrace.destination.publisher import Publisher
from headrace.destination.unconfirmed import Unconfirmed

SINK = "sink"
"""The reason of the trouble."""
_QUIET = 2.0
"""After so long without a confirmation, in seconds, the sink is asked why."""
_LOOK = 0.5
_EACH = 60.0
"""Seconds between two lines of the log."""


class SinkOutage:
    """Lives as long as its destination, because an outage may last over several runs."""

    def __init__(self, context: Context, unconfirmed: Unconfirmed) -> None:
        self._status, self._log, self._unconfirmed = context.status, context.log, unconfirmed
        self._since = self._told_at = 0.0

    async def watch(self, publisher: Publisher) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            if not self.look() and not publisher.suspended and (problem := await publisher.sink.problem()):
                self._note(self._waits_since(time.monotonic()), problem)

    def look(self) -> bool:
        """Whether the sink confirms what it is given; an outage is over then."""
        now = time.monotonic()
        if now - self._waits_since(now) > _QUIET:
            return False
        if self._since:
            self._end(now)
        return True

    def _waits_since(self, now: float) -> float:
        oldest = self._unconfirmed.oldest
        return max(oldest, self._unconfirmed.confirmed_at) if oldest else now

    def goes_on(self, problem: str) -> None:
        """The same between two runs, which end soon when the sink is away. Why the last one ended was told already."""
        if self._since:
            self._note(self._since, problem)
        else:
            self._told_at = time.monotonic()
            self._since = self._unconfirmed.oldest or self._told_at

    def _note(self, since: float, problem: str) -> None:
        now = time.monotonic()
        self._status.trouble(SINK, f"{problem}; reading waits once its buffer is full, and nothing is lost")
        if self._since and now - self._told_at < _EACH:
            return
        self._since, self._told_at = self._since or since, now
        self._log.warning(
            "the sink confirms nothing",
            cause=problem,
            seconds=round(now - self._since, 1),
            unconfirmed_bytes=self._status.published.queue_bytes,
        )

    def _end(self, now: float) -> None:
        self._status.clear(SINK)
        if self._unconfirmed.confirmed_at:  # else what waited was given up: somebody else has the destination
            self._log.info("the sink confirms again", seconds=round(now - self._since, 1))
        self._since = 0.0
