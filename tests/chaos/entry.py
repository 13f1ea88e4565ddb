"""Starts a daemon for the chaos suite, on request a broken one: `python -m tests.chaos.entry BREAK run ...`.

The checker has to catch the broken ones. They are made by replacing functions in this process, so that nothing in the
product can be switched off.
"""

from __future__ import annotations

import asyncio
import math
import select
import sys
import time
from collections.abc import Callable
from typing import Any


def position_before_confirmation() -> None:
    """Every batch counts as confirmed as soon as it was handed over, so the position runs ahead of the brokers."""
    from headrace.adapters.kafka.sink import KafkaSink

    publish = KafkaSink.publish

    async def confirmed_at_once(self: Any, batch: Any) -> asyncio.Future[None]:
        await publish(self, batch)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    KafkaSink.publish = confirmed_at_once  # type: ignore[method-assign]


def no_lease() -> None:
    """Nobody asks before a hand-over whether the lock is still ours, and nobody notices that it is not."""
    from headrace.lease import Lease

    async def never(self: Lease) -> None:
        await asyncio.Event().wait()

    async def at_once(self: Lease) -> None:
        pass

    Lease.check = lambda self: None  # type: ignore[method-assign]
    Lease.lose = lambda self, reason: None  # type: ignore[method-assign]
    Lease.lapsed = never  # type: ignore[method-assign]
    Lease.proved = at_once  # type: ignore[method-assign]
    Lease.remaining = property(lambda self: 3600.0)  # type: ignore[method-assign, assignment]
    Lease.lost = property(lambda self: "")  # type: ignore[method-assign, assignment]
    Lease.deadline = property(lambda self: math.inf)  # type: ignore[method-assign, assignment]


BREAKS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "position_before_confirmation": position_before_confirmation,
    "no_lease": no_lease,
}


def main() -> int:
    # libfaketime 0.9.10 gives the absolute deadline of clock_nanosleep, which time.sleep waits for, back as invalid.
    time.sleep = lambda seconds: select.select([], [], [], seconds) and None  # type: ignore[assignment, misc]
    BREAKS[sys.argv[1]]()
    from headrace.cli.main import main as headrace

    return headrace(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
