"""The status of the process: its state, why, counts, and how they are published."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any

import structlog
from prometheus_client.core import Metric

from headrace_documents.http import Metrics, iso, state_rows

log = structlog.get_logger("headrace_consume")

COUNTS = {
    "received": "Messages that the broker has delivered.",
    "redelivered": "Those of them that it had delivered before.",
    "applied": "Messages whose documents are written.",
    "rows": "Rows in these messages.",
    "indexed": "Documents that were written.",
    "deleted": "Documents that were deleted.",
    "stale": "Changes that were older than their documents.",
    "ddl_ignored": "Statements about tables that were passed over.",
    "duplicates": "Messages that were dropped because their ids were known.",
    "retried": "Retries of messages that could not be applied.",
    "dead_letters": "Messages that became dead letters.",
    "resent": "Dead letters that the scan has sent again.",
    "connections": "Connections to RabbitMQ.",
}
GAUGES = {
    "in_hand": "Messages that are not acknowledged.",
    "held": "Those of them that wait for a retry or to become a dead letter.",
    "waiting_dead_letters": "Dead letters that wait for the scan, as of the last one.",
    "needs_operator": "Dead letters that need an operator, as of the last scan.",
}


class State(StrEnum):
    """WAITING: RabbitMQ or Elasticsearch is unavailable, and the messages stay in the queue."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    STOPPING = "STOPPING"


class Status:
    """The status of the process. The loop's thread writes it, and that of the HTTP server reads it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock, self._now = clock, now
        self.started_at = self._since = now()
        self._sign = clock()
        self._state, self._system, self._cause = State.STARTING, "", ""
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.gauges: dict[str, int] = dict.fromkeys(GAUGES, 0)
        self.troubles: dict[str, str] = {}
        """Problems that do not stop the work, by name."""

    def sign(self) -> None:
        """Records that the loop runs."""
        self._sign = self._clock()

    @property
    def silent(self) -> float:
        """Returns the seconds without a sign of life."""
        return self._clock() - self._sign

    @property
    def state(self) -> State:
        """Returns the present state."""
        return self._state

    def enter(self, state: State, system: str = "", cause: str = "") -> None:
        """Changes the state; WAITING has the unavailable system, and why. STOPPING is the last one."""
        if self._state is State.STOPPING:
            return
        if (state, system) != (self._state, self._system):
            self._since = self._now()
            level = log.warning if state is State.WAITING else log.info
            level("state", state=state.value, **({"system": system, "cause": cause} if system else {}))
        self._state, self._system, self._cause = state, system, cause

    def page(self) -> dict[str, Any]:
        """Returns the answer of /health."""
        seconds = round(self._now() - self._since, 1)
        waits = [{"system": self._system, "cause": self._cause, "seconds": seconds}] if self._system else []
        return {
            "state": self._state.value,
            "since": iso(self._since),
            "started": iso(self.started_at),
            "causes": waits,
            "troubles": {name: text for name, text in self.troubles.items() if text},
            **self.gauges,
            **self.counts,
        }


class ConsumeMetrics(Metrics):
    """The metrics for Prometheus."""

    def __init__(self, status: Status) -> None:
        self._status = status
        super().__init__("headrace_consume_")

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics."""
        yield self.states(self._status.state, State)
        yield self.gauge("start_time_seconds", "Start of the process, since 1970.", self._status.started_at)
        yield self.gauge("silent_seconds", "Time without a sign of life.", self._status.silent)
        for name, text in COUNTS.items():
            yield self.counter(name, text, self._status.counts[name])
        for name, text in GAUGES.items():
            yield self.gauge(name, text, self._status.gauges[name])


def rows(page: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields the answer of /health for people."""
    yield from state_rows(page)
    for name, text in page["troubles"].items():
        yield "trouble", f"{name}: {text}"
    for name in (*GAUGES, *COUNTS):
        yield name.replace("_", " "), str(page[name])
