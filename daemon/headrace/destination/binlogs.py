"""The binlog that a destination needs: how long the source keeps it, and how much is left to read."""

from __future__ import annotations

import asyncio
from collections import deque

from headrace import runtime
from headrace.destination.dependencies import Context
from headrace.destination.outage import SINK
from headrace.errors import HeadraceError
from headrace.model import Position, State
from headrace.ports.source import Retention, Source

_BEHIND = 10.0
"""Lag in seconds above which a streaming destination is catching up."""
_CAUGHT_UP = 1.0
"""Lag in seconds below which it has caught up."""
_EACH = 10.0
"""Seconds between two log lines."""
_SPAN = 10.0
"""Seconds over which rates are measured: short, so that an outage that has just ended soon drops out."""
_STREAMING = frozenset({State.STREAMING, State.DEGRADED, State.SNAPSHOTTING})


class Backlog:
    """The backlog of a destination; lives as long as it. check() is called each second, measured() with what the source
    reports."""

    def __init__(self, context: Context) -> None:
        self._status, self._log = context.status, context.log
        self._seen: deque[tuple[float, int, int]] = deque()
        """Time, bytes behind, and bytes received so far."""
        self._since = self._reported_at = 0.0

    @property
    def catching_up(self) -> bool:
        return bool(self._since)

    def measured(self, behind: int | None) -> None:
        """Records the bytes of binlog between the stored position and the end, None if unknown."""
        status, now, seen = self._status, runtime.monotonic(), self._seen
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

    def check(self) -> None:
        """Logs the beginning, the progress and the end of catching up."""
        now, lag = runtime.monotonic(), self._status.lag.seconds
        if not self._since:
            if lag >= _BEHIND and self._flows:
                self._since = self._reported_at = now
                self._seen.clear()
                self._report("catching up", lag)
        elif lag < _CAUGHT_UP:
            self._log.info("caught up", seconds=round(now - self._since, 1))
            self._since = 0.0
        elif now - self._reported_at >= _EACH and self._flows:
            self._reported_at = now
            self._report("catching up", lag)

    @property
    def _flows(self) -> bool:
        """Returns whether the backlog can shrink. A sink that confirms nothing is an outage, which is reported
        separately."""
        return self._status.state in _STREAMING and SINK not in self._status.troubles

    def forget(self) -> None:
        """Forgets all: another daemon runs the destination."""
        self._since = 0.0
        self._seen.clear()

    def _report(self, event: str, lag: float) -> None:
        status = self._status
        facts = {
            "bytes_behind": status.backlog.bytes,
            "bytes_per_second": None if status.backlog.rate is None else round(status.backlog.rate),
            "eta_seconds": None if status.backlog.eta is None else round(status.backlog.eta, 1),
        }
        self._log.info(event, lag_seconds=round(lag, 1), **{key: one for key, one in facts.items() if one is not None})


_TROUBLE = "retention"
_POLL = 15.0
"""Seconds between two checks of what the source still has."""
_POLL_OFTEN = 3.0
"""The same while the destination catches up, or its position is close to being purged."""
_POLL_RARELY, _LITTLE = 60.0, 1 << 20
"""The same while the destination is STREAMING, and fewer bytes than that are left to read."""


class RetentionWarning:
    """Checks the retention when called, over its own connection: the stream may have none, and then it matters most."""

    def __init__(self, context: Context, source: Source) -> None:
        self._status, self._log, self._source = context.status, context.log, source
        self._limit = context.settings.source.retention_warning

    async def check(self, position: Position) -> int | None:
        """Writes the retention to the status. What can't be determined is None there, not an error. Returns the bytes
        of binlog from the position to the end."""
        try:
            found = await self._source.retention(position)
        except HeadraceError as error:
            self._log.debug("the source's binlogs can't be listed", error=str(error))
            self._status.retention.forget()
            return None  # a warning stays until a check clears it
        self._status.retention.note(found)
        self._warn(position, found)
        return found.behind

    def _warn(self, position: Position, found: Retention) -> None:
        text = found.warning(position, self._limit)
        if not text:
            if self._status.clear(_TROUBLE) and found.share is not None:
                self._log.info(
                    "the position is far enough from what the source purges again", share=round(found.share, 3)
                )
            return
        before = _TROUBLE in self._status.troubles
        self._status.trouble(_TROUBLE, text)
        if not before:
            reported = self._status.troubles[_TROUBLE]
            self._log.warning("retention is running out", warning=reported, seconds=found.seconds, bytes=found.bytes)


async def check_binlogs(context: Context, source: Source) -> None:
    """Checks until it is cancelled how long the source keeps the binlog that the destination needs, and how much that
    is."""
    status, watch, backlog = context.status, RetentionWarning(context, source), Backlog(context)
    checked = 0.0
    while True:
        await asyncio.sleep(1.0)
        position, now = status.stored.position, runtime.monotonic()
        if position is None or status.state is State.STANDBY:
            backlog.forget()
            continue
        behind = backlog.catching_up
        backlog.check()
        if behind and not backlog.catching_up:
            checked = 0.0  # the last measurement is no longer valid
        often = backlog.catching_up or _TROUBLE in status.troubles  # an operator may have moved the position
        left = status.backlog.bytes
        rarely = status.state is State.STREAMING and left is not None and left < _LITTLE
        if now - checked > (_POLL_OFTEN if often else _POLL_RARELY if rarely else _POLL):
            checked = now
            backlog.measured(await watch.check(position))
