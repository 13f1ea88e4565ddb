"""The log of the consumers."""

from __future__ import annotations

import logging
import os

from headrace_common import logs

_FORMAT_VARIABLE = "HEADRACE_LOG_FORMAT"
_CHATTY = ("elastic_transport", "py4j")
"""Libraries that tell of every request, or of every end of a connection."""


def configure(form: str | None = None) -> None:
    """Sets the log up. `form` is "json", "console" or "auto"; it is left in the environment for Spark's workers, which
    give none."""
    if form is not None:
        os.environ[_FORMAT_VARIABLE] = form
    logs.configure(os.environ.get(_FORMAT_VARIABLE) or "auto")
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
