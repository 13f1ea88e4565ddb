"""A task's reports to the driver while it runs: that it waits and why, and that it continues. Accumulators come only
with a task's end.

A report is an event in the log of the task, which reaches the driver through the pipe of the JVM's standard error. If
tasks run elsewhere it is a datagram, see report_socket.py."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import structlog

from headrace_spark.status.outages import ELASTICSEARCH, Outages
from headrace_spark.status.report_socket import Address, Sender

LOGGER = "headrace_spark.status.task_reports"
_EVERY = 1.0
"""Seconds between two progress reports of one task."""

log = structlog.get_logger(LOGGER)
_senders: list[Sender] = []
"""The one of this process, if it has one."""


class Reporter:
    """The task's side."""

    def __init__(self, driver: Address | None = None) -> None:
        """`driver` is where datagrams go; None: reports are lines of the log."""
        self._source = f"task {os.getpid()}"
        self._send = _sender(driver).send if driver is not None else None
        self._last = time.monotonic()

    def waiting(self, cause: str, *, seconds: float, documents: int) -> None:
        """Reports a failed attempt to write; all attempts have failed for `seconds`."""
        waits = f"{documents} documents of a task, and what comes after them"
        self._report("waiting", cause=cause[:1000], seconds=round(seconds, 3), waits=waits)

    def goes_on(self, *, waited: bool) -> None:
        """Reports that a bulk request was answered."""
        now = time.monotonic()
        if waited or now - self._last >= _EVERY:
            self._last = now
            self._report("progress")

    def _report(self, event: str, **fields: Any) -> None:
        if self._send is None:
            log.info(event, source=self._source, **fields)
        else:
            self._send({"logger": LOGGER, "event": event, "source": self._source, **fields})


class OfCommand(Reporter):
    """The side of a command that uses Elasticsearch itself, in the driver: nobody reads its reports, and its lines are
    for people."""

    def _report(self, event: str, **fields: Any) -> None:
        if event == "waiting":
            log.warning("Elasticsearch takes nothing; it is asked again", **fields)


def _sender(driver: Address) -> Sender:
    """Returns one sender for all tasks of a process."""
    if not _senders or _senders[0].address != driver:
        if _senders:
            _senders.pop().close()
        _senders.append(Sender(driver))
    return _senders[0]


def receiver(outages: Outages, progress: Callable[[], None]) -> Callable[[dict[str, Any]], bool]:
    """Returns the driver's side: it takes events of workers, and returns whether one was a report."""

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
