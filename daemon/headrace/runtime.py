"""The daemon's only access to what differs from run to run: clocks, random numbers, threads, the end of the process and
what is on the disk.

Each process has one `Runtime`, usually the operating system's. The simulator gives each simulated process its own: it
is in the context of the process's first task, and every task that is started there inherits it. Ruff forbids the calls
that this module replaces in all others."""

from __future__ import annotations

import asyncio
import os
import random as _random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")
_LAST_WORDS = 0.5
"""Maximum seconds to print the reason of an end."""


class Runtime:
    """The operating system: what a simulated process replaces."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """The monotonic clock, in seconds. Deadlines of asyncio's own timers are on the loop's clock instead."""
    wall_ns: Callable[[], int] = staticmethod(time.time_ns)
    """The wall clock: nanoseconds since 1970."""
    cpu: Callable[[], float] = staticmethod(time.thread_time)
    """CPU time of the present thread, in seconds."""
    busy: Callable[[], float] = staticmethod(time.monotonic)
    """The clock by which work without an await is limited, in seconds. It advances while code runs; in the simulator by
    random amounts, while `monotonic` does not."""

    def __init__(self) -> None:
        self.random: _random.Random = _random.SystemRandom()
        self.number = self.random.getrandbits(64)
        """A random number of this process."""
        self._only = dict[type, Any]()

    def only(self, kind: type[_T]) -> _T:
        """Returns the process's only instance of a class, which is created without arguments at the first call."""
        known = self._only.get(kind)
        if known is None:
            known = self._only[kind] = kind()
        return known

    async def in_thread(self, call: Callable[..., _T], *given: Any) -> _T:
        """Runs a call in a thread, while other tasks run."""
        return await asyncio.to_thread(call, *given)

    def worker(self, name: str) -> Executor:
        """Returns a new executor of one thread, which runs its calls in order."""
        return ThreadPoolExecutor(1, name)

    def watch(self, interval: float, look: Callable[[float], None], name: str) -> None:
        """Calls `look` every `interval` seconds until the process ends, with the seconds since the call before; in a
        thread, so that a loop that hangs does not stop it."""

        def run() -> None:
            before = time.monotonic()
            while True:
                time.sleep(interval)
                now = time.monotonic()
                look(now - before)
                before = now

        threading.Thread(target=run, name=name, daemon=True).start()

    def end(self, status: int, last_words: Callable[[], None]) -> None:
        """Ends the process at once, after `last_words`, which may take half a second."""
        # In another thread, which may hang: standard error may be the pipe on which the loop hangs.
        telling = threading.Thread(target=last_words, daemon=True)
        telling.start()
        telling.join(_LAST_WORDS)
        os._exit(status)

    def sync(self, descriptor: int, *, metadata: bool = True) -> None:
        """Returns once a file's data is on the disk; `metadata`: also what is not needed to read it. Raises OSError."""
        (os.fsync if metadata else os.fdatasync)(descriptor)


CURRENT: ContextVar[Runtime] = ContextVar("runtime", default=Runtime())  # noqa: B039 - one for all is meant


def current() -> Runtime:
    """Returns the process's runtime. A hot path keeps its clocks."""
    return CURRENT.get()


def monotonic() -> float:
    """Returns the monotonic clock, in seconds."""
    return CURRENT.get().monotonic()


def timeout_at(deadline: float | None) -> asyncio.Timeout:
    """Returns a time limit that ends at a moment of the monotonic clock; None: no limit. asyncio.timeout_at() takes the
    loop's clock, which may be another."""
    return asyncio.timeout(None if deadline is None else max(0.0, deadline - monotonic()))


def cpu() -> float:
    """Returns the CPU time of the present thread, in seconds."""
    return CURRENT.get().cpu()


def now() -> float:
    """Returns the wall clock: seconds since 1970."""
    return CURRENT.get().wall_ns() / 1e9


def now_us() -> int:
    """Returns the wall clock: microseconds since 1970."""
    return CURRENT.get().wall_ns() // 1000


def random() -> _random.Random:
    """Returns the source of random numbers; the operating system's unless it is simulated."""
    return CURRENT.get().random


def new_id(digits: int = 12) -> str:
    """Returns a random identifier of hexadecimal digits."""
    return f"{random().getrandbits(4 * digits):0{digits}x}"


def process_number() -> int:
    """Returns a random number of 64 bits that this process keeps until its end."""
    return CURRENT.get().number


def only(kind: type[_T]) -> _T:
    """Returns the process's only instance of a class, which is created without arguments at the first call."""
    return CURRENT.get().only(kind)


async def in_thread(call: Callable[..., _T], *given: Any) -> _T:
    """Runs a call in a thread, while other tasks run."""
    return await CURRENT.get().in_thread(call, *given)


def sync(descriptor: int, *, metadata: bool = True) -> None:
    """Returns once a file's data is on the disk; `metadata`: also what is not needed to read it. Raises OSError."""
    CURRENT.get().sync(descriptor, metadata=metadata)


def worker(name: str) -> Executor:
    """Returns a new executor of one thread, which runs its calls in order."""
    return CURRENT.get().worker(name)
