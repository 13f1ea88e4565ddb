"""Ends Spark within a time limit, whatever it waits for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import structlog
from pyspark.sql import SparkSession

from headrace_spark.status.outages import Outages

log = structlog.get_logger("headrace_spark")

IN_OUTAGE = 10.0
"""Seconds from the signal to the end, while a server is unavailable and nothing can be drained."""
AFTER_DRAIN = 20.0
"""Seconds beyond `drain_timeout`."""
STOP_LIMIT = 10.0


class Ending:
    """Supervises the end. A thread ends the process if what it waits for, for example a broker that does not answer,
    prevents that. The checkpoint has what is done, so nothing is lost."""

    def __init__(
        self,
        spark: SparkSession,
        process: subprocess.Popen[bytes] | None,
        stop: threading.Event,
        outages: Outages,
        drain: float,
    ) -> None:
        """`process` is the JVM's."""
        self._spark, self._process, self._stop, self._outages, self._drain = spark, process, stop, outages, drain
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="ending", daemon=True).start()

    def end(self) -> None:
        """Ends Spark, by force if it takes too long."""
        thread = threading.Thread(target=self._stop_spark, name="stop Spark", daemon=True)
        thread.start()
        thread.join(STOP_LIMIT)
        if thread.is_alive():
            self._kill()
        self._ended.set()

    def _stop_spark(self) -> None:
        try:
            self._spark.stop()
        except Exception as error:
            # Signalled as a group (Ctrl-C, systemd's control group) the JVM may have ended before us.
            log.debug("Spark was gone already", reason=str(error))

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _watch(self) -> None:
        self._stop.wait()
        began = time.monotonic()
        while not self._ended.wait(0.25):
            passed = time.monotonic() - began
            if passed >= (IN_OUTAGE if self._outages.current() else self._drain + AFTER_DRAIN):
                log.warning("ended without waiting for Spark")
                self._kill()
                sys.stderr.flush()
                os._exit(0)
