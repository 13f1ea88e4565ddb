"""Outages: what waits for which system, since when and why; logged at the beginning, once a minute, and at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

log = structlog.get_logger(__name__)

ELASTICSEARCH, KAFKA, SPARK, QUERY = "elasticsearch", "kafka", "spark", "query"
"""The systems that may be unavailable. `spark` is a cluster without executors; `query`: the query fails for another
cause."""
REPORT_AFTER = 2.0
"""Seconds: a failure that is over sooner is a retry and no outage."""
EVERY = 60.0
"""Seconds between two lines about the same outage."""


@dataclass(slots=True)
class Outage:
    """The outage of one system. `since` is on the monotonic clock; `sources` are those that wait, by name."""

    system: str
    cause: str
    waits: str
    since: float
    tries: int = 0
    reported: float = 0.0
    sources: set[str] = field(default_factory=set)


class Outages:
    """Takes reports from threads and tasks. tick() writes the lines, so that each is written once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, Outage] = {}
        self._ended: list[Outage] = []
        self.retries = 0
        """All failed attempts since the process began."""
        self.count = 0
        """Outages that were reported."""

    def waiting(self, system: str, source: str, cause: str, *, waits: str, seconds: float = 0.0) -> None:
        """Records a failed attempt of `source`, which has already waited for `seconds`."""
        with self._lock:
            since = self._clock() - seconds
            outage = self._open.setdefault(system, Outage(system, cause, waits, since))
            outage.since, outage.cause, outage.waits = min(outage.since, since), cause, waits
            outage.tries += 1
            outage.sources.add(source)
            self.retries += 1

    def over(self, system: str, source: str = "") -> None:
        """Records that `source` continues; "" means all of the system."""
        with self._lock:
            outage = self._open.get(system)
            if outage is None:
                return
            outage.sources.discard(source)
            if source and outage.sources:
                return
            self._ended.append(self._open.pop(system))

    def current(self) -> list[Outage]:
        """Returns the present ones, the oldest first."""
        with self._lock:
            return sorted(self._open.values(), key=lambda outage: outage.since)

    def seconds(self, outage: Outage) -> float:
        """Returns how long it has lasted."""
        return self._clock() - outage.since

    def tick(self) -> None:
        """Writes the due lines."""
        now = self._clock()
        with self._lock:
            ended, self._ended = self._ended, []
            ended = [one for one in ended if one.reported]
            due = [
                one
                for one in self._open.values()
                if (one.reported and now - one.reported >= EVERY)
                or (not one.reported and now - one.since >= REPORT_AFTER)
            ]
            first = {id(one) for one in due if not one.reported}
            for one in due:
                one.reported = now
            self.count += len(first)
            lines = [(id(one) in first, self._fields(one)) for one in due]
        for new, fields in lines:
            log.warning("outage begins" if new else "outage goes on", **fields)
        for one in ended:
            log.warning("outage ends", system=one.system, seconds=round(now - one.since), tries=one.tries)

    def _fields(self, one: Outage) -> dict[str, Any]:
        return {
            "system": one.system,
            "cause": one.cause,
            "tries": one.tries,
            "seconds": round(self._clock() - one.since),
            "waits": one.waits,
        }
