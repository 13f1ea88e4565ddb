"""Times as text, in UTC, as RFC 3339 writes them."""

from __future__ import annotations

import time


def time_text(micros: int) -> str:
    """Returns the time of `micros` microseconds since 1970, with all six digits."""
    seconds, rest = divmod(micros, 1_000_000)
    return f"{second_text(seconds)[:-1]}.{rest:06}Z"


def second_text(seconds: float) -> str:
    """Returns the time of `seconds` since 1970, without a fraction."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def duration_text(seconds: float) -> str:
    """Returns a duration for people: the largest unit that fits, with one decimal."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
