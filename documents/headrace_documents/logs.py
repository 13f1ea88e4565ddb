"""Logging: one line an event on stderr, readable at a terminal and JSON elsewhere."""

from __future__ import annotations

import os
import sys

import structlog

FORMAT_VARIABLE = "HEADRACE_LOG_FORMAT"


def configure(form: str | None = None) -> None:
    """Sets structlog up. `form` is "json" or "console"; it is left in the environment for Spark's worker processes."""
    if form is not None:
        os.environ[FORMAT_VARIABLE] = form
    form = os.environ.get(FORMAT_VARIABLE) or ("console" if sys.stderr.isatty() else "json")
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if form == "console" else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        # Asked anew for each line: whoever replaces sys.stderr (a test, a supervisor) gets the lines from then on.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
