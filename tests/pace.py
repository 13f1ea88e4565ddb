"""A machine that is slow for a while runs fewer tests at once: with all of them, each would be slower than its limits.

The limits of tests are seconds, and a machine shared with others can be four times as slow as it was an hour before.
While it is, only two of pytest-xdist's workers begin files that need servers, whichever come first; the others finish
theirs and wait.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ALWAYS = 2
"""So many workers go on however slow the machine is: two, for two cores."""
SLOW = 0.08
"""Above this result of `seconds_of_work` the machine is slow: alone it is 0.015, and 0.045 amid five workers."""


def seconds_of_work() -> float:
    """How long a small piece of work, always the same, takes now: the mean of five times within about a second."""
    spent = 0.0
    for _ in range(5):
        time.sleep(0.2)
        begun = time.perf_counter()
        sum(range(1_000_000))
        spent += time.perf_counter() - begun
    return spent / 5


class Turns:
    """The turns of one worker. All workers of a run use the same folder. A turn ends with its process at the latest."""

    def __init__(self, folder: Path | None = None, work: Callable[[], float] = seconds_of_work) -> None:
        folder = folder or Path(tempfile.gettempdir())
        self._files = [folder / f"headrace-turn-{number}" for number in range(ALWAYS)]
        self._work = work
        self._locked = -1

    def next(self) -> None:
        """Ends this worker's turn, and returns when it has the next one, or when the machine is fast."""
        self.end()
        while not self._take() and self._work() > SLOW:
            pass

    def end(self) -> None:
        if self._locked >= 0:
            os.close(self._locked)
            self._locked = -1

    def _take(self) -> bool:
        for file in self._files:
            opened = os.open(file, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(opened)
                continue
            self._locked = opened
            return True
        return False
