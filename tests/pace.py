"""A machine that is slow for a while runs fewer tests at once: with all of them, each would be slower than its limits.

The limits of tests are seconds, and a machine shared with others can be four times as slow as it was an hour before.
Before a file, all workers but two wait until the machine has room for them. No test is changed by that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

NEVER_WAIT = 2
"""So many workers go on whatever the machine does: two for two cores."""
SLOW = 0.1
"""Seconds for `seconds_of_work` at which the third worker waits; alone it takes 0.015, and 0.04 amid five workers."""
LESS_EACH = 0.015
"""By so much the next worker waits earlier, so that they do not all go on at the same moment."""
LONGEST = 300.0
"""Seconds to wait at most before one file: what makes the machine slow may be something else, and may stay."""


def seconds_of_work() -> float:
    """How long a small and always equal piece of work takes now, the mean of three of them half a second apart."""
    spent = 0.0
    for _ in range(3):
        begun = time.perf_counter()
        sum(range(1_000_000))
        spent += time.perf_counter() - begun
        time.sleep(0.5)
    return spent / 3


def wait_for_room(worker: str, work: Callable[[], float] = seconds_of_work, longest: float = LONGEST) -> None:
    """Returns once the machine is fast enough for this worker (`w0` and so on; "" alone) to begin a file."""
    number = int(worker[1:] or 0)
    enough = SLOW - LESS_EACH * (number - NEVER_WAIT)
    deadline = time.monotonic() + longest
    while number >= NEVER_WAIT and work() > enough and time.monotonic() < deadline:
        pass
