"""What a destination has still to work off: bytes of binlog, at what rate it becomes less, and when it is done."""

from __future__ import annotations

import time
from collections import deque

from headrace.destination.outage import SINK
from headrace.destination.parts import Context
from headrace.model import State

_BEHIND = 10.0
"""From this lag on, in seconds, a destination that streams is catching up."""
_CAUGHT_UP = 1.0
"""Below this lag it has caught up."""
_EACH = 10.0
"""Seconds between two lines of the log."""
_SPAN = 10.0
"""Seconds that rates are measured over: an outage that has just ended should not be among them for long."""
_STREAMING = frozenset({State.STREAMING, State.DEGRADED, State.SNAPSHOTTING})


class Backlog:
    """Lives as long as its destination. look() is called each second, measured() with what the source said."""

    def __init__(self, context: Context) -> None:
        self._status, self._log = context.status, context.log
        self._seen: deque[tuple[float, int, int]] = deque()
        """When, bytes behind, and bytes received by then."""
        self._since = self._told_at = 0.0

    @property
    def catching_up(self) -> bool:
        return bool(self._since)

    def measured(self, behind: int | None) -> None:
        """How many bytes of binlog lie between the stored position and the end, None when that is not known."""
        status, now, seen = self._status, time.monotonic(), self._seen
        if behind is None:
            seen.clear()
        else:
            seen.append((now, behind, status.received.bytes))
        while len(seen) > 2 and now - seen[0][0] > _SPAN:
            seen.popleft()
        rate = eta = None
        if len(seen) > 1 and behind is not None:
            (_, before, received), seconds = seen[0], now - seen[0][0]
            rate = (status.received.bytes - received) / seconds
            shrinks = (before - behind) / seconds
            if not behind:
                eta = 0.0
            elif shrinks > 0 and self.catching_up:  # else it is what was written since the last checkpoint
                eta = behind / shrinks
        status.backlog.note(behind, rate, eta)

    def look(self) -> None:
        """Tells the beginning, the course and the end of catching up."""
        now, lag = time.monotonic(), self._status.lag.seconds
        if not self._since:
            if lag >= _BEHIND and self._flows:
                self._since = self._told_at = now
                self._seen.clear()
                self._tell("catching up", lag)
        elif lag < _CAUGHT_UP:
            self._log.info("caught up", seconds=round(now - self._since, 1))
            self._since = 0.0
        elif now - self._told_at >= _EACH and self._flows:
            self._told_at = now
            self._tell("catching up", lag)

    @property
    def _flows(self) -> bool:
        """Whether the backlog can become less. A sink that confirms nothing is an outage, which is told by itself."""
        return self._status.state in _STREAMING and SINK not in self._status.troubles

    def forget(self) -> None:
        """Somebody else runs the destination."""
        self._since = 0.0
        self._seen.clear()

    def _tell(self, event: str, lag: float) -> None:
        status = self._status
        facts = {
            "bytes_behind": status.backlog.bytes,
            "bytes_per_second": None if status.backlog.rate is None else round(status.backlog.rate),
            "eta_seconds": None if status.backlog.eta is None else round(status.backlog.eta, 1),
        }
        self._log.info(event, lag_seconds=round(lag, 1), **{key: one for key, one in facts.items() if one is not None})
