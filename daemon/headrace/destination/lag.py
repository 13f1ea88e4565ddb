"""How far a destination is behind its source, from commit to confirmation; in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Flow(Protocol):
    """One run, as far as lag is concerned."""

    def reading_waits(self) -> bool:
        """Whether everything that the source has was read."""

    def confirming_waits(self) -> bool:
        """Whether everything that was read is confirmed."""


class Lag:
    """Over all runs of a destination. Commit times are the source's clock, in microseconds since 1970.

    While changes wait, the lag is now less the commit time of the newest one that is done, or less the last moment at
    which nothing waited, when that is later: a source that rests for an hour does not make its next change an hour old.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._flow: Flow | None = None
        self._read, self._confirmed = _Done(), _Done()
        self._reading_at_end = 0.0
        self._sink_away = False
        """Whether the last run ended because of the sink: what waits since then waits for it."""

    def stored(self, commit_time_us: int) -> None:
        """A position is stored behind the change of this commit time; 0 where there was none."""
        self._read.commit = self._confirmed.commit = commit_time_us / 1e6

    def begin(self, flow: Flow) -> None:
        """A run streams from there."""
        self._flow, self._sink_away = flow, False

    def end(self) -> None:
        """The run is over. What the source gets from here on is not known: the lag grows until the next run knows."""
        self.look()
        self._flow, self._reading_at_end = None, self._read.behind(self._wall())

    def note_failure(self, *, sink: bool) -> None:
        """The run failed, because of the sink or not."""
        self._sink_away = sink

    def forget(self) -> None:
        """Somebody else runs the destination."""
        self._flow, self._read, self._confirmed = None, _Done(), _Done()

    def read(self, commit_time_us: int) -> None:
        """A change was read, as all before it were."""
        self._read.commit = commit_time_us / 1e6

    def confirmed(self, commit_time_us: int) -> None:
        """A change is confirmed, as all before it are."""
        self._confirmed.commit = commit_time_us / 1e6

    def look(self) -> None:
        """Notes the moment when nothing waits; to be called each second."""
        flow, now = self._flow, self._wall()
        if flow is not None and flow.reading_waits():
            self._read.rested = now
            if flow.confirming_waits():
                self._confirmed.rested = now

    @property
    def seconds(self) -> float:
        """From the source's commit to our confirmation; 0 when nothing is to be confirmed, or nothing is known."""
        self.look()
        return self._confirmed.behind(self._wall())

    @property
    def reading(self) -> float:
        """The part of it that reading is behind."""
        behind = self._read.behind(self._wall())
        if self._flow is None and self._sink_away:
            behind = min(behind, self._reading_at_end)
        return min(self.seconds, behind)

    @property
    def publishing(self) -> float:
        """The other part, that confirmations are behind reading."""
        return max(0.0, self.seconds - self.reading)


@dataclass(slots=True)
class _Done:
    """Up to where all is done; seconds since 1970, 0 when that is not known."""

    commit: float = 0.0
    """Of the newest change."""
    rested: float = 0.0
    """When nothing waited last."""

    def behind(self, now: float) -> float:
        since = max(min(self.commit, now), self.rested)  # a statement may set its own time, be it in the future
        return max(0.0, now - since) if since else 0.0
