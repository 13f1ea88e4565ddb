"""Progress lines on stderr, so that stdout stays free for endpoints and JSON."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Prints one progress line at once, even if stderr is a pipe."""
    sys.stderr.write(f"devstack: {text}\n")
    sys.stderr.flush()
