"""The log of the consumers."""

from __future__ import annotations

import logging
import os

from headrace_common import logs

_FORMAT_VARIABLE, _LEVEL_VARIABLE = "HEADRACE_LOG_FORMAT", "HEADRACE_LOG_LEVEL"
_OURS = ("headrace_consume", "headrace_documents", "headrace_spark")
_CHATTY = ("elastic_transport", "py4j")
"""Libraries that log every request, or every end of a connection."""


def configure(form: str | None = None, level: str | None = None) -> None:
    """Sets the log up. `form` is "json", "console" or "auto", `level` the lowest level; both are left in the
    environment for Spark's workers, which set none."""
    for name, value in ((_FORMAT_VARIABLE, form), (_LEVEL_VARIABLE, level)):
        if value is not None:
            os.environ[name] = value
    least = os.environ.get(_LEVEL_VARIABLE) or "info"
    logs.configure(os.environ.get(_FORMAT_VARIABLE) or "auto", least)
    for name in _OURS:
        logging.getLogger(name).setLevel(least.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
