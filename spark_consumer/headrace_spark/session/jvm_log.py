"""Handles the output of Spark's JVM and its workers: our own events go to our log, everything else to a file or
nowhere."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import orjson
import structlog

MARK = "headrace-java"
"""Begins each line that log4j writes for us; other output of the JVM has none."""
SEPARATOR = "|"
"""Between the parts of such a line: mark, logger, text. No logger's name contains it."""

# Their ERROR lines are about a failed batch, with stack traces in the text. The query's failure has the cause.
# (PythonGatewayServer has the root's level: Spark treats it as that of a shell, and would filter all lines by it.)
_REPORTED_BY_US = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
    "org.apache.spark.util.TaskCompletionListenerImpl",
    "org.apache.spark.SparkContext",
    "py4j",
)

_CONFIG = """\
<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="OFF">
  <Appenders>
    <Console name="short" target="SYSTEM_OUT">
      <ThresholdFilter level="ERROR"/>
      <PatternLayout alwaysWriteExceptions="false" pattern={pattern}/>
    </Console>
{file}  </Appenders>
  <Loggers>
    <Logger name="org.apache.spark.api.python.PythonGatewayServer" level={level}/>
{quiet}    <Root level={level}>
      <AppenderRef ref="short"/>
{reference}    </Root>
  </Loggers>
</Configuration>
"""
_FILE = """\
    <RollingFile name="all" fileName={name} filePattern={rolled}>
      <PatternLayout pattern="%d{{yyyy-MM-dd'T'HH:mm:ss.SSSXXX}} %p %c: %m%n"/>
      <SizeBasedTriggeringPolicy size="20MB"/>
      <DefaultRolloverStrategy max="5"/>
    </RollingFile>
"""


def log4j_config(file: str) -> str:
    """Returns the configuration of log4j 2, for Spark 3.5 and 4. `file` is the rolling file, "" for none."""
    pattern = SEPARATOR.join((MARK, "%c{1}", "%replace{%m}{[\\r\\n][\\s\\S]*}{}")) + "%n"
    reference = '      <AppenderRef ref="all"/>\n' if file else ""
    level = "INFO" if file else "ERROR"
    quiet = ""
    for name in _REPORTED_BY_US:
        own = reference.replace("      <", "<").strip()
        quiet += f'    <Logger name="{name}" level="{level if file else "OFF"}" additivity="false">{own}</Logger>\n'
    return _CONFIG.format(
        pattern=quoteattr(pattern),
        file=_FILE.format(name=quoteattr(file), rolled=quoteattr(f"{file}.%i")) if file else "",
        quiet=quiet,
        level=quoteattr(level),
        reference=reference,
    )


def java_options(scratch: Path, file: str) -> str:
    """Writes the configuration into `scratch`; returns the option of the JVM that names it. Raises OSError."""
    config = scratch / "log4j2.xml"
    config.write_text(log4j_config(file), encoding="utf-8")
    return f'"-Dlog4j2.configurationFile={config.as_uri()}"'


log = structlog.get_logger("headrace_spark.java")

MAX_LINE = 1 << 20
"""Bytes; a longer line is read in parts."""
_AGAIN = 60.0
"""Seconds until the same error of Java is logged again."""
_OURS = ("event", "level", "logger", "timestamp")

Take = Callable[[dict[str, Any]], bool]
"""Takes an event of a worker; returns true if it is no line for the log."""


class JvmOutput:
    """Gives the JVM two pipes instead of our standard output and error, and reads them in threads.

    A worker's events are JSON lines on standard error; log4j writes to standard output, so that the two never mix
    within a line. `file` gets all other output, for example tracebacks of workers; "" drops it."""

    def __init__(self, file: str = "", take: Take | None = None) -> None:
        self._take = take
        self._file = _rolling(file) if file else None
        self._reported: dict[str, float] = {}
        self.last: deque[str] = deque(maxlen=40)
        """The last lines that are not ours."""
        (read_out, self.stdout), (read_error, self.stderr) = os.pipe(), os.pipe()
        self._threads = [
            threading.Thread(target=self._read, args=(end,), name=f"java {name}", daemon=True)
            for name, end in (("stdout", read_out), ("stderr", read_error))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Closes our copies of the JVM's ends, so that the threads end with the JVM."""
        os.close(self.stdout)
        os.close(self.stderr)

    def wait(self, seconds: float) -> None:
        """Waits for the last lines of a JVM that ends, and closes the file."""
        for thread in self._threads:
            thread.join(seconds)
        if self._file is not None:
            self._file.close()

    def _read(self, end: int) -> None:
        with os.fdopen(end, "rb") as pipe:
            while line := pipe.readline(MAX_LINE):
                try:
                    self.line(line)
                except Exception as error:
                    # If the thread ended here, the JVM would block as soon as the pipe is full.
                    log.debug("a line of the JVM can't be read", reason=repr(error))

    def line(self, line: bytes) -> None:
        """Takes one line."""
        if line.startswith(b"{") and (event := _event(line)) is not None:
            if self._take is None or not self._take(event):
                _report(event)
            return
        text = line.decode("utf-8", "replace").rstrip()
        if text.startswith(MARK + SEPARATOR):
            _, logger, reason = text.split(SEPARATOR, 2)
            self._java(logger, reason)
        elif text:
            self.last.append(text)
            if self._file is not None:
                self._file.emit(logging.makeLogRecord({"msg": text}))

    def _java(self, logger: str, reason: str) -> None:
        now, key = time.monotonic(), f"{logger} {reason[:60]}"
        if now - self._reported.get(key, -_AGAIN) < _AGAIN:
            return
        if len(self._reported) > 1000:
            self._reported.clear()
        self._reported[key] = now
        log.error("Java", java_logger=logger, reason=reason[:1000])


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    ours = isinstance(event, dict) and "event" in event and str(event.get("logger", "")).startswith("headrace")
    return event if ours else None


def _report(event: dict[str, Any]) -> None:
    level = logging.getLevelNamesMapping().get(str(event.get("level", "info")).upper(), logging.INFO)
    fields = {name: value for name, value in event.items() if name not in _OURS}
    structlog.get_logger(event["logger"]).log(level, event["event"], **fields)


def _rolling(file: str) -> RotatingFileHandler:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    handler = RotatingFileHandler(f"{file}.workers", maxBytes=20_000_000, backupCount=2, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler
