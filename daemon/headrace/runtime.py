"""Gives the daemon everything that differs from run to run: clocks, random numbers, threads, the end of the process,
the sync of files to the disk, and sockets that listen. No other module gets these from Python's libraries.

Each process has one `Runtime`. A real process has one that uses the operating system. The simulator gives each
simulated process its own: it puts it into the context of the first task, and each further task inherits the context. In
all other modules, Ruff forbids the calls that this module replaces."""

from __future__ import annotations

import asyncio
import os
import random as _random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")
_LAST_WORDS = 0.5
"""Maximum time in seconds to print why the process ends."""


class Runtime:
    """Uses the operating system. The simulator has a subclass that replaces it."""

    monotonic: Callable[[], float] = staticmethod(time.monotonic)
    """The monotonic clock, in seconds. asyncio's own timers use the clock of the event loop instead."""
    wall_ns: Callable[[], int] = staticmethod(time.time_ns)
    """The wall clock, in nanoseconds since 1970."""
    cpu: Callable[[], float] = staticmethod(time.thread_time)
    """CPU time of the present thread, in seconds."""
    busy: Callable[[], float] = staticmethod(time.monotonic)
    """The clock that limits work without an await, in seconds. It advances while code runs. In the simulator it
    advances by random amounts, and `monotonic` does not advance while code runs."""

    def __init__(self) -> None:
        self.random: _random.Random = _random.SystemRandom()
        self.number = self.random.getrandbits(64)
        """A random number of 64 bits that identifies this process."""
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

    def watch(self, interval: float, check: Callable[[float], None], name: str) -> None:
        """Calls `check` every `interval` seconds until the process ends. The argument is the time in seconds since the
        previous call. The calls are made in a thread, so they continue if the event loop hangs."""

        def run() -> None:
            before = time.monotonic()
            while True:
                time.sleep(interval)
                now = time.monotonic()
                check(now - before)
                before = now

        threading.Thread(target=run, name=name, daemon=True).start()

    def end(self, status: int, last_words: Callable[[], None]) -> None:
        """Calls `last_words`, waits for it for at most half a second, and ends the process."""
        # In another thread, because the call may hang: perhaps the event loop hangs because nobody reads standard
        # error.
        telling = threading.Thread(target=last_words, daemon=True)
        telling.start()
        telling.join(_LAST_WORDS)
        os._exit(status)

    def listen(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
        """Returns a socket that accepts connections at an address, for loop.sock_accept(). Raises OSError."""
        both = family == socket.AF_INET6
        listening = socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both)
        listening.setblocking(False)
        return listening

    def sync(self, descriptor: int, *, metadata: bool = True) -> None:
        """Returns once a file's data is on the disk. With `metadata`, the file's metadata is on the disk too, even what
        is not needed to read the data. Raises OSError."""
        (os.fsync if metadata else os.fdatasync)(descriptor)


CURRENT: ContextVar[Runtime] = ContextVar("runtime", default=Runtime())  # noqa: B039 - one for all is meant


def current() -> Runtime:
    """Returns the process's runtime. Code that needs a clock very often calls this once and keeps the clock."""
    return CURRENT.get()


def monotonic() -> float:
    """Returns the monotonic clock, in seconds."""
    return CURRENT.get().monotonic()


def timeout_at(deadline: float | None) -> asyncio.Timeout:
    """Returns a time limit that ends at `deadline`, a time of the monotonic clock in seconds; None means no limit.
    asyncio.timeout_at() is not used, because it takes a time of the event loop's clock, which may differ."""
    return asyncio.timeout(None if deadline is None else max(0.0, deadline - monotonic()))


def cpu() -> float:
    """Returns the CPU time of the present thread, in seconds."""
    return CURRENT.get().cpu()


def now() -> float:
    """Returns the wall clock, in seconds since 1970."""
    return CURRENT.get().wall_ns() / 1e9


def now_us() -> int:
    """Returns the wall clock, in microseconds since 1970."""
    return CURRENT.get().wall_ns() // 1000


def random() -> _random.Random:
    """Returns the source of random numbers: that of the operating system, or that of the simulator."""
    return CURRENT.get().random


def new_id(digits: int = 12) -> str:
    """Returns a random identifier of hexadecimal digits."""
    return f"{random().getrandbits(4 * digits):0{digits}x}"


def process_number() -> int:
    """Returns a random number of 64 bits, which is the same until the process ends."""
    return CURRENT.get().number


def only(kind: type[_T]) -> _T:
    """Returns the process's only instance of a class, which is created without arguments at the first call."""
    return CURRENT.get().only(kind)


async def in_thread(call: Callable[..., _T], *given: Any) -> _T:
    """Runs a call in a thread, while other tasks run."""
    return await CURRENT.get().in_thread(call, *given)


def sync(descriptor: int, *, metadata: bool = True) -> None:
    """Returns once a file's data is on the disk. With `metadata`, the file's metadata is on the disk too, even what is
    not needed to read the data. Raises OSError."""
    CURRENT.get().sync(descriptor, metadata=metadata)


def worker(name: str) -> Executor:
    """Returns a new executor of one thread, which runs its calls in order."""
    return CURRENT.get().worker(name)
