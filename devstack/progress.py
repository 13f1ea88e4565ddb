"""Progress lines on stderr, so that stdout stays free for endpoints and JSON."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Print one progress line at once, even when stderr is a pipe."""
    sys.stderr.write(f"devstack: {text}\n")
    sys.stderr.flush()
