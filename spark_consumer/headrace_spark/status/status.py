"""What the process knows of itself: fed by the query, its listener and the check Kafka; read by HTTP and the log."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from headrace_documents.http import iso
from headrace_spark.status.counting import BATCH_BOUNDS, MAX_NAMES, Counts, Histogram
from headrace_spark.status.outages import QUERY, Outages

Offsets = Mapping[tuple[str, int], int]
"""By topic and partition."""
_WINDOW = 60.0
"""Seconds that rates are measured over."""


class State(StrEnum):
    """WAITING: Elasticsearch or Kafka is unavailable. FAILED: somebody must do something; it is retried
    nevertheless."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    CATCHING_UP = "CATCHING_UP"
    WAITING = "WAITING"
    FAILED = "FAILED"
    STOPPING = "STOPPING"


class Status:
    """The status of the process. All methods may be called from any thread."""

    def __init__(
        self,
        outages: Outages,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.outages = outages
        self.total = Counts()
        self.batch_seconds = Histogram(BATCH_BOUNDS)
        self.started_at = now()
        self.batches = 0
        self.failures = 0
        self.limit = 0
        """Maximum messages of a batch."""
        self.lost_messages = 0
        """Messages that Kafka deleted before they were read."""
        self.rebuilds: Callable[[], dict[str, dict[str, Any]]] = dict
        """By index: those that are filled again for a column that has changed its type, with their progress."""
        self._clock, self._now = clock, now
        self._lock = threading.RLock()
        self._query = self._stopping = False
        self._batch: dict[str, Any] = {}
        self._done: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._oldest_ms = 0
        self._error: dict[str, Any] | None = None
        self._recent: deque[tuple[float, int, int]] = deque()
        """When batches ended, with their messages and rows, for the rates."""
        self._sign = clock()
        self._state, self._since = State.STARTING, now()

    def sign(self) -> None:
        """Records a sign of life: something works, or there is nothing to do."""
        self._sign = self._clock()

    @property
    def silent(self) -> float:
        """Returns the seconds without a sign of life. A reported outage, a start and a stop count as one."""
        if self.state in (State.WAITING, State.FAILED, State.STARTING, State.STOPPING):
            return 0.0
        return self._clock() - self._sign

    @property
    def query(self) -> bool:
        """Returns whether the query runs."""
        return self._query

    def query_runs(self, runs: bool) -> None:
        """Records that the query was started, or has ended."""
        self.sign()
        self._query = runs

    def stopping(self) -> None:
        """Records the request to stop."""
        self._stopping = True

    def batch_done(self, batch: int, seconds: float, counts: Counts) -> None:
        """Records that a batch was completely written."""
        with self._lock:
            self.batches += 1
            self.total.add(counts)
            self.batch_seconds.observe(seconds)
            messages, rows = counts.numbers["messages"], counts.numbers["rows"]
            self._batch = {"id": batch, "seconds": round(seconds, 3), "messages": messages, "rows": rows}
            now = self._clock()
            self._recent.append((now, messages, rows))
            while self._recent and self._recent[0][0] < now - _WINDOW:
                self._recent.popleft()
            self._error = None
            self.sign()

    def counted(self, counts: Counts) -> None:
        """Records counts from outside of batches."""
        with self._lock:
            self.total.add(counts)

    def failed(self, reason: str, remedy: str = "") -> None:
        """Records that the query failed."""
        with self._lock:
            self.failures += 1
            self._error = {"reason": reason, "remedy": remedy, "at": iso(self._now())}

    def read_up_to(self, done: Offsets) -> None:
        """Records the written offsets, as the next ones to read."""
        with self._lock:
            self._done.update(done)

    def ends(self, ends: Offsets) -> None:
        """Records the ends of the topics' partitions."""
        with self._lock:
            self._ends = dict(ends)

    def oldest(self, committed_ms: int) -> None:
        """Records when the oldest unread message was committed; 0 if there is none, or it is unknown."""
        self._oldest_ms = committed_ms

    @property
    def done(self) -> dict[tuple[str, int], int]:
        """Returns the next offsets to read, as far as known."""
        with self._lock:
            return dict(self._done)

    @property
    def state(self) -> State:
        """Returns the present state."""
        with self._lock:
            state = self._find()
            if state is not self._state:
                self._state, self._since = state, self._now()
            return state

    def _find(self) -> State:
        if self._stopping:
            return State.STOPPING
        if open_ones := self.outages.current():
            return State.FAILED if all(one.system == QUERY for one in open_ones) else State.WAITING
        if not self._query:
            return State.STARTING
        lag = self.lag
        return State.CATCHING_UP if lag is not None and self.limit and lag > self.limit else State.RUNNING

    @property
    def lags(self) -> dict[tuple[str, int], int]:
        """Returns the waiting messages by partition, as far as known."""
        with self._lock:
            return {key: max(0, end - self._done[key]) for key, end in self._ends.items() if key in self._done}

    @property
    def lag(self) -> int | None:
        """Returns the waiting messages; None if unknown."""
        lags = self.lags
        return sum(lags.values()) if lags else None

    @property
    def lag_seconds(self) -> float | None:
        """Returns the age of the oldest waiting message; 0 if none waits, None if unknown."""
        if self.lag == 0:
            return 0.0
        return max(0.0, self._now() - self._oldest_ms / 1000) if self._oldest_ms else None

    @property
    def oldest_seconds(self) -> float | None:
        """Returns the commit time of the oldest waiting message, in seconds since 1970."""
        return self._oldest_ms / 1000 if self._oldest_ms and self.lag else None

    def rates(self) -> tuple[float, float]:
        """Returns messages and rows per second, of the last minute."""
        with self._lock:
            now = self._clock()
            recent = [one for one in self._recent if one[0] >= now - _WINDOW]
            if not recent:
                return 0.0, 0.0
            # A batch counts from its beginning, which is unknown for the first: so from the one before.
            first = self._recent[0]
            began = first[0] - self._batch["seconds"] if len(recent) == 1 else first[0]
            counted = recent if len(recent) == 1 else recent[1:]
            passed = max(now - began, 0.001)
            return sum(one[1] for one in counted) / passed, sum(one[2] for one in counted) / passed

    @property
    def eta_seconds(self) -> float | None:
        """Returns the seconds until all waiting messages are done, at the present rate; None if unknown."""
        lag, (rate, _) = self.lag, self.rates()
        return lag / rate if lag is not None and rate else (0.0 if lag == 0 else None)

    def page(self) -> dict[str, Any]:
        """Returns the answer of /health."""
        with self._lock:
            state, total = self.state, self.total
            messages, rows = self.rates()
            lag, seconds, eta, oldest = self.lag, self.lag_seconds, self.eta_seconds, self.oldest_seconds
            per_message = total.numbers["rows"] / total.numbers["messages"] if total.numbers["messages"] else None
            number = total.bulk.number
            return {
                "state": state.value,
                "since": iso(self._since),
                "started": iso(self.started_at),
                "causes": [
                    {
                        "system": one.system,
                        "cause": one.cause,
                        "seconds": round(self.outages.seconds(one), 1),
                        "tries": one.tries,
                        "waits": one.waits,
                    }
                    for one in self.outages.current()
                ],
                "batch": self._batch or None,
                "batches": self.batches,
                "batch_limit": self.limit,
                "messages_per_second": round(messages, 1),
                "rows_per_second": round(rows, 1),
                "lag": {
                    "messages": lag,
                    "rows": round(lag * per_message) if lag is not None and per_message is not None else None,
                    "seconds": None if seconds is None else round(seconds, 1),
                    "oldest_commit": iso(oldest) if oldest else None,
                    "caught_up_in_seconds": None if eta is None else round(eta),
                },
                "newest_commit": iso(total.newest_ms / 1000) if total.newest_ms else None,
                "messages": total.numbers["messages"],
                "rows": total.numbers["rows"],
                "dead_letters": total.numbers["dead_letters"],
                "held": total.held.total(),
                "rebuilds": self.rebuilds(),
                "lost_messages": self.lost_messages,
                "retries": self.outages.retries,
                "failures": self.failures,
                "bulk_seconds_mean": round(total.bulk.total / number, 4) if number else None,
                "last_error": self._error,
                "tables": dict(total.tables.most_common(MAX_NAMES)),
                "indexes": _nested(total),
            }


def _nested(total: Counts) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (index, what), count in sorted(total.indexes.items()):
        nested.setdefault(index, {})[what] = count
    return nested
