"""Sets up the log: one line for each event to standard error, for people or as JSON, from all libraries."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TextIO

import structlog

from headrace_common.printable import printable_lines

_KINDS = 1000
"""Kinds of lines that are remembered; beyond that all are forgotten."""


def configure(
    form: str, level: str = "info", stream: TextIO | None = None, *, more: Mapping[str, Any] | None = None
) -> None:
    """Sends structlog's and the standard library's records to `stream` (standard error). `form` is "console", "json",
    or "auto": console at a terminal. `more` is added to every line, from any thread.

    Secrets are not logged because settings keep them as SecretStr, and because tracebacks are written without local
    values."""
    stream = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        lambda _logger, _method, event: {**(more or {}), **event},
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if form == "json" or (form == "auto" and not stream.isatty()):
        last: list[Any] = [
            structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(ensure_ascii=False, default=str),
        ]
    else:
        last = [
            _printable,
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_traceback, pad_event_to=30),
        ]
    handler = logging.StreamHandler(stream)
    handler.addFilter(Repeats())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    least = logging.getLevelNamesMapping()[level.upper()]
    # The libraries' debug lines may contain rows and credentials, and are many: they stay at info.
    root.setLevel(max(logging.INFO, least))
    logging.getLogger("headrace").setLevel(least)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


def _printable(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Makes texts printable: a table's name or a server's text may contain control sequences of a terminal; JSON
    escapes them."""
    return {key: printable_lines(one) if isinstance(one, str) else one for key, one in event.items()}


def _traceback(out: TextIO, error: Any) -> None:
    text = io.StringIO()
    structlog.dev.plain_traceback(text, error)
    out.write(printable_lines(text.getvalue()))


class Repeats(logging.Filter):
    """Limits repeated lines of libraries, for example that a server is unavailable, to one a minute, with their number.
    Our own lines all pass."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds, self._clock = seconds, clock
        self._seen: dict[tuple[Any, ...], _Repeated] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0].startswith("headrace") or not isinstance(record.msg, str):
            return True  # lines of structlog are ours, whatever the logger's name
        now, key = self._clock(), (record.name, record.levelno, record.msg, _bound_destination())
        seen = self._seen.get(key)
        if seen is not None and now - seen.since < self._seconds:
            seen.count += 1
            return False
        if seen is not None and seen.count:
            record.msg = f"{record.getMessage()} ({seen.count} more like this in {now - seen.since:.0f} s)"
            record.args = ()
        if len(self._seen) >= _KINDS:
            self._seen.clear()
        self._seen[key] = _Repeated(now)
        return True


@dataclass(slots=True)
class _Repeated:
    since: float
    count: int = 0


def _bound_destination() -> Any:
    return structlog.contextvars.get_contextvars().get("destination")


@contextlib.contextmanager
def for_commands() -> Iterator[None]:
    """Sets the log up for a command with output for people or programs: our warnings go to standard error, and nothing
    below them is logged. Errors of libraries are reported in our own words; only those of asyncio, which are bugs of
    ours, are logged."""
    before, root = structlog.get_config(), logging.getLogger()
    silent, faults = logging.NullHandler(), logging.StreamHandler()
    # Without a handler Python writes the libraries' warnings to standard error.
    root.addHandler(silent)
    logging.getLogger("asyncio").addHandler(faults)
    structlog.configure(
        processors=[structlog.processors.add_log_level, _printable, structlog.dev.ConsoleRenderer(colors=False)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
        root.removeHandler(silent)
        logging.getLogger("asyncio").removeHandler(faults)
