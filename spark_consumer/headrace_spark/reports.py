"""What a task says to the driver while it runs: that it waits and why, and that it goes on. Accumulators come only
with a task's end.

A report is an event in the log of the task, which reaches the driver through the pipe of the JVM's standard error. On
a cluster it stays in the executor's log, and the driver knows less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import structlog

from headrace_spark.outages import ELASTICSEARCH, Outages

LOGGER = "headrace_spark.reports"
_EVERY = 1.0
"""Seconds between two reports of progress of one task."""

log = structlog.get_logger(LOGGER)


class Reporter:
    """The side of the task."""

    def __init__(self) -> None:
        self._source = f"task {os.getpid()}"
        self._last = time.monotonic()

    def waiting(self, cause: str, *, seconds: float, documents: int) -> None:
        """A try to write failed; all tries have failed for `seconds`."""
        waits = f"{documents} documents of a task, and what is behind them"
        log.info("waiting", source=self._source, cause=cause, seconds=round(seconds, 3), waits=waits)

    def goes_on(self, *, waited: bool) -> None:
        """A bulk request was answered."""
        now = time.monotonic()
        if waited or now - self._last >= _EVERY:
            self._last = now
            log.info("progress", source=self._source)


def receiver(outages: Outages, progress: Callable[[], None]) -> Callable[[dict[str, Any]], bool]:
    """The side of the driver: takes events of workers, and says whether one was a report."""

    def take(event: dict[str, Any]) -> bool:
        if event.get("logger") != LOGGER:
            return False
        source = str(event.get("source", ""))
        if event["event"] == "waiting":
            seconds = float(event.get("seconds", 0))
            cause, waits = str(event.get("cause", "")), str(event.get("waits", ""))
            outages.waiting(ELASTICSEARCH, source, cause, waits=waits, seconds=seconds)
        else:
            outages.over(ELASTICSEARCH, source)
            progress()
        return True

    return take
