"""How far a destination is behind its source, from commit to confirmation, in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace import runtime


class Flow(Protocol):
    """One run, as the lag sees it."""

    def reading_waits(self) -> bool:
        """Returns whether everything that the source has was read."""

    def confirming_waits(self) -> bool:
        """Returns whether everything that was read is confirmed."""


class Lag:
    """The lag over all runs of a destination. Commit times are the source's clock, in microseconds since 1970.

    While changes wait, the lag is the present time minus the commit time of the newest change that is done, or minus
    the last moment at which nothing waited, if that is later: after an hour without changes, the next change does not
    count as an hour old."""

    def __init__(self, wall: Callable[[], float] = runtime.now) -> None:
        self._wall = wall
        self._flow: Flow | None = None
        self._read, self._confirmed = _Done(), _Done()
        self._reading_at_end = 0.0
        self._sink_away = False
        """Whether the last run ended because of the sink: what waits since then waits for it."""

    def stored(self, commit_time_us: int) -> None:
        """Records that a position is stored after the change of this commit time; 0 if there was none."""
        self._read.commit = self._confirmed.commit = commit_time_us / 1e6

    def begin(self, flow: Flow) -> None:
        """Records that a run streams from there."""
        self._flow, self._sink_away = flow, False

    def end(self) -> None:
        """Records the end of the run. What the source gets from now on is unknown: the lag grows until the next run
        knows."""
        self.update()
        self._flow, self._reading_at_end = None, self._read.behind(self._wall())

    def note_failure(self, *, sink: bool) -> None:
        """Records that the run failed, because of the sink or not."""
        self._sink_away = sink

    def forget(self) -> None:
        """Forgets all: another daemon runs the destination."""
        self._flow, self._read, self._confirmed = None, _Done(), _Done()

    def read(self, commit_time_us: int) -> None:
        """Records that a change was read; all before it were."""
        self._read.commit = commit_time_us / 1e6

    def confirmed(self, commit_time_us: int) -> None:
        """Records that a change is confirmed; all before it are."""
        self._confirmed.commit = commit_time_us / 1e6

    def update(self) -> None:
        """Records the time if nothing waits; called each second."""
        flow, now = self._flow, self._wall()
        if flow is not None and flow.reading_waits():
            self._read.rested = now
            if flow.confirming_waits():
                self._confirmed.rested = now

    @property
    def seconds(self) -> float:
        """Returns the seconds from the source's commit to our confirmation; 0 if nothing waits for confirmation, or
        nothing is known."""
        self.update()
        return self._confirmed.behind(self._wall())

    @property
    def reading(self) -> float:
        """Returns the part of it by which reading is behind."""
        behind = self._read.behind(self._wall())
        if self._flow is None and self._sink_away:
            behind = min(behind, self._reading_at_end)
        return min(self.seconds, behind)

    @property
    def publishing(self) -> float:
        """Returns the other part, by which confirmations are behind reading."""
        return max(0.0, self.seconds - self.reading)


@dataclass(slots=True)
class _Done:
    """Up to where all is done; seconds since 1970, 0 if unknown."""

    commit: float = 0.0
    """Commit time of the newest change."""
    rested: float = 0.0
    """When nothing waited last."""

    def behind(self, now: float) -> float:
        since = max(min(self.commit, now), self.rested)  # a statement may set its own time, even in the future
        return max(0.0, now - since) if since else 0.0
