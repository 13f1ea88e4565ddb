"""The runtime of a simulated process: clocks that jump and drift, and random numbers from the seed."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, cast

from headrace.runtime import CURRENT, Runtime
from sim.disk import Disk
from sim.loop import Process, SimLoop, Worker

_T = TypeVar("_T")
EPOCH_NS = 1_760_000_000_000_000_000
"""The wall clock at the begin of a simulation."""


class SimRuntime(Runtime):
    """What one process gets from its operating system."""

    def __init__(self, loop: SimLoop, rng: random.Random, process: Process, ended: Callable[[int], None]) -> None:
        super().__init__()
        self._loop, self._process, self._ended = loop, process, ended
        self.random = random.Random(rng.getrandbits(64))
        self._rng = random.Random(rng.getrandbits(64))
        """For what the process does not ask for, so that one more question does not change all that follows."""
        self.number = self.random.getrandbits(64)
        self.offset, self.drift = 0.0, 0.0
        """Seconds by which the wall clock is wrong, and by which it goes wrong each second."""
        self._drift_since = 0.0
        self._used = 0.0
        self.disk: Disk | None = None
        """It loses with the power what was not synced; None: nothing is lost."""
        self._hanging = self.hung = False
        self.monotonic = loop.time
        self.wall_ns = self._wall_ns
        self.busy, self.cpu = self._busy, self._cpu
        process.base.run(CURRENT.set, self)

    def _wall_ns(self) -> int:
        now = self._loop.time()
        return EPOCH_NS + int((now + self.offset + self.drift * (now - self._drift_since)) * 1e9)

    def set_drift(self, drift: float) -> None:
        """Lets the wall clock go wrong by this many seconds a second from now on."""
        now = self._loop.time()
        self.offset += self.drift * (now - self._drift_since)
        self.drift, self._drift_since = drift, now

    def hangs(self, hangs: bool) -> None:
        """Lets the watchdog's thread run although the process's loop does not."""
        self._hanging = hangs
        self.hung = self.hung or hangs

    def _busy(self) -> float:
        """Returns a clock of work: each reading may find that little or much was done since."""
        self._used += self._rng.random() ** 8 * 0.02
        return self._loop.time() + self._used

    def _cpu(self) -> float:
        """Returns the same for CPU time, of which less is used: some of its limits are of a whole configuration."""
        self._used += self._rng.random() ** 8 * 0.0005
        return self._used

    async def in_thread(self, call: Callable[..., _T], *given: Any) -> _T:
        await asyncio.sleep(self._rng.random() * 0.002)
        return call(*given)

    def worker(self, name: str) -> Executor:
        return Worker(self._loop, self._rng)

    def watch(self, interval: float, check: Callable[[float], None], name: str) -> None:
        """Calls `check` as a thread does: also while the loop hangs, but not while the process is frozen."""
        outside = self._loop.world.context()
        outside.run(CURRENT.set, self)
        before = self._loop.time()

        def tick() -> None:
            nonlocal before
            if not self._process.alive:
                return
            self._loop.call_later(interval, tick, context=outside)
            if self._process.frozen and not self._hanging:
                return
            now = self._loop.time()
            passed, before = now - before, now
            check(passed)

        self._loop.call_later(interval, tick, context=outside)

    def listen(self, family: socket.AddressFamily, address: tuple[Any, ...]) -> socket.socket:
        """Returns what the simulated loop accepts connections from."""
        assert self._loop.listen is not None
        return cast(socket.socket, self._loop.listen(self._process, *address))

    def end(self, status: int, last_words: Callable[[], None]) -> None:
        """Ends the process between two steps."""
        self._ended(status)

    def sync(self, descriptor: int, *, metadata: bool = True) -> None:
        """Syncs a file of an archive, or a folder; SQLite's files are seen below SQLite."""
        if self.disk is not None:
            self.disk.sync_plain(descriptor)
