"""A cluster's executors as the driver sees them: whether there are any, and whether they work.

A task on another machine can reach the driver only by its reports. If the network blocks these, its stage is checked:
Spark hears of each executor every few seconds, and drops one that is silent."""

from __future__ import annotations

import threading
import time
from typing import Any

import structlog
from pyspark.sql import SparkSession

from headrace_spark.session.submitted import is_submitted
from headrace_spark.status.outages import SPARK
from headrace_spark.status.problems import NO_EXECUTOR
from headrace_spark.status.report_socket import Address, ReportSocket
from headrace_spark.status.status import Status
from headrace_spark.status.task_reports import receiver

log = structlog.get_logger(__name__)

POLL = 5.0
"""Seconds between two checks."""


class Executors:
    """The executors of a session. In local mode, with a JVM of ours, there is nothing to do."""

    def __init__(self, spark: SparkSession, status: Status, patience: float | None = None) -> None:
        """Receives reports, and begins to check. A batch without an executor for `patience` seconds is cancelled, None:
        never. Raises SessionError."""
        self._status, self._patience = status, patience
        self._context: Any = spark.sparkContext
        conf = self._context.getConf()
        self._elsewhere = not str(conf.get("spark.master")).startswith("local")
        self._socket: ReportSocket | None = None
        self._end = threading.Event()
        self._none_since: float | None = None
        if self._elsewhere or is_submitted():
            host = str(conf.get("spark.driver.host"))
            bind = str(conf.get("spark.driver.bindAddress") or host)
            self._socket = ReportSocket(host, bind, receiver(status.outages, status.sign))
            threading.Thread(target=self._run, name="check executors", daemon=True).start()

    @property
    def reports(self) -> Address | None:
        """Returns where tasks send their reports; None if they are read from the JVM's output."""
        return self._socket.address if self._socket is not None else None

    def close(self) -> None:
        """Ends the threads; does not wait for them."""
        self._end.set()
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        while not self._end.wait(POLL):
            try:
                self.check()
            except Exception as error:
                # For example because the JVM has ended, which the query reports.
                log.debug("the executors can't be read", reason=repr(error))

    def check(self) -> None:
        """Reports an outage if there is no executor, and counts running tasks as a sign of life if they do not report
        themselves."""
        tracker = self._context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        if any(one is not None and one.numActiveTasks for one in stages):
            if self._socket is not None and not self._socket.heard:
                self._status.sign()
            self._over()
            return
        # The driver itself counts as one.
        if not self._elsewhere or self._context._jsc.sc().getExecutorMemoryStatus().size() > 1:
            self._over()
        elif stages:
            self._missing()

    def _missing(self) -> None:
        now = time.monotonic()
        self._none_since = now if self._none_since is None else self._none_since
        waited = now - self._none_since
        self._status.outages.waiting(SPARK, "executors", NO_EXECUTOR, waits="the batch under way", seconds=waited)
        if self._patience is not None and waited >= self._patience:
            self._context.cancelAllJobs()

    def _over(self) -> None:
        self._none_since = None
        self._status.outages.over(SPARK)
