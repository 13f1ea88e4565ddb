"""Waits that grow with each failure in a row."""

from __future__ import annotations

import random

FIRST = 0.25


class Backoff:
    """The waits: a quarter of a second, then twice as long each time up to a limit, a little shorter at random, so that
    many consumers do not come back in the same moment."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._wait = FIRST

    def next(self) -> float:
        """The next wait in seconds."""
        wait = min(self._wait, self._longest)
        self._wait = min(self._wait * 2, self._longest)
        return wait * random.uniform(0.75, 1.0)

    def reset(self) -> None:
        """Something has worked."""
        self._wait = FIRST
