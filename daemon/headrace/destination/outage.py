"""Unconfirmed messages over all runs of a destination, and outages of a sink that confirms nothing: cause and start are
logged at the beginning, each minute, and at the end."""

from __future__ import annotations

import asyncio
from collections import deque

from headrace import runtime
from headrace.destination.dependencies import Context
from headrace.destination.publisher import Publisher


class Unconfirmed:
    """The unconfirmed messages of a destination. Times are seconds on the monotonic clock."""

    def __init__(self) -> None:
        self._waiting: deque[float] = deque()
        """When each batch with messages was read by the present run, in order."""
        self._carried = 0.0
        """Since when the oldest message of earlier runs waits, while no run has had one confirmed; 0 for none."""
        self.confirmed_at = 0.0
        """When the present run last had messages confirmed; 0 for never."""

    @property
    def oldest(self) -> float:
        """Returns when the oldest unconfirmed message was read, possibly by an earlier run; 0 if all is confirmed."""
        return self._carried or (self._waiting[0] if self._waiting else 0.0)

    @property
    def any(self) -> bool:
        """Returns whether messages that the last run has read are unconfirmed, although it may have ended."""
        return bool(self._waiting)

    def begin_run(self) -> None:
        """Begins a run, which reads again what waited."""
        self._waiting.clear()
        self.confirmed_at = 0.0

    def end_run(self) -> None:
        """Ends a run; its messages count as waiting until a run has something confirmed."""
        self._carried = self.oldest

    def read(self, at: float, batches: int) -> None:
        """Records batches with messages that were read at a time."""
        self._waiting.extend([at] * batches)

    def confirm(self) -> None:
        """Records that the oldest batch with messages is confirmed."""
        self._waiting.popleft()
        self._carried, self.confirmed_at = 0.0, runtime.monotonic()

    def give_up(self) -> None:
        """Forgets what earlier runs left. It may not come again: another daemon runs the destination, or the position
        was moved."""
        self._waiting.clear()
        self._carried = 0.0


SINK = "sink"
"""The reason of the trouble."""
_QUIET = 2.0
"""Seconds without a confirmation after which the sink is asked for the cause."""
_POLL = 1.0
_EACH = 60.0
"""Seconds between two log lines."""


class SinkOutage:
    """The outage of a sink. Lives as long as its destination, because an outage may last over several runs."""

    def __init__(self, context: Context, unconfirmed: Unconfirmed) -> None:
        self._status, self._log, self._unconfirmed = context.status, context.log, unconfirmed
        self._since = self._reported_at = 0.0

    async def watch(self, publisher: Publisher) -> None:
        """Checks until it is cancelled."""
        while True:
            await asyncio.sleep(_POLL)
            if not self.check() and not publisher.suspended and (problem := await publisher.sink.problem()):
                self._note(self._waits_since(runtime.monotonic()), problem)

    def check(self) -> bool:
        """Returns whether the sink confirms what it is given; an outage is over then."""
        now = runtime.monotonic()
        if now - self._waits_since(now) > _QUIET:
            return False
        if self._since:
            self._end(now)
        return True

    def _waits_since(self, now: float) -> float:
        oldest = self._unconfirmed.oldest
        return max(oldest, self._unconfirmed.confirmed_at) if oldest else now

    def goes_on(self, problem: str) -> None:
        """Reports the outage between two runs, which end soon if the sink is unavailable. The error that ended the last
        run was already reported."""
        if self._since:
            self._note(self._since, problem)
        else:
            self._reported_at = runtime.monotonic()
            self._since = self._unconfirmed.oldest or self._reported_at

    def _note(self, since: float, problem: str) -> None:
        now = runtime.monotonic()
        self._status.trouble(SINK, f"{problem}; reading waits once its buffer is full, and nothing is lost")
        if self._since and now - self._reported_at < _EACH:
            return
        self._since, self._reported_at = self._since or since, now
        self._log.warning(
            "the sink confirms nothing",
            cause=problem,
            seconds=round(now - self._since, 1),
            unconfirmed_bytes=self._status.published.queue_bytes,
        )

    def _end(self, now: float) -> None:
        self._status.clear(SINK)
        if self._unconfirmed.confirmed_at:  # else what waited was abandoned: another daemon has the destination
            self._log.info("the sink confirms again", seconds=round(now - self._since, 1))
        self._since = 0.0
