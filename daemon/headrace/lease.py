"""Epochs and the lease: what a lock's holder proves, and until when it may hand anything to a client library."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.errors import Fenced, LeaseLapsed

KnownEpoch = Callable[[], Awaitable[int]]
"""The highest epoch that is known outside the lock: that of the stored position, and of the heartbeat row."""

_JUMP = 0.5
"""Seconds that wall and monotonic clock may move against each other before that counts as a jump; slewing is far less
between two proofs."""


@dataclass(frozen=True, slots=True)
class Term:
    """What comes with a lock. `epoch` is the one that it was taken under, 0 when the state store counts them; `fence`
    is the version of the epoch node that every guarded write checks, -1 without one."""

    epoch: int = 0
    fence: int = -1


NO_TERM = Term()


@dataclass(frozen=True, slots=True)
class Guard:
    """What a writer of the state store proves: the epoch it holds the destination under, and the version that it read
    or wrote last."""

    epoch: int
    version: int
    fence: int = -1
    """What the cluster service compares beside the epoch, such as the version of its node; -1 without a service."""


class Lease:
    """Good for `holds` seconds after each proof of the lock; without a limit for a lock that can't be lost.

    A proof is an answer of the lock service that can only be given while the lock is ours; it counts from when it was
    asked for, not from when it came. The clocks can be replaced in tests.
    """

    def __init__(
        self,
        holds: float = math.inf,
        *,
        margin: float = 2.0,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._holds, self._monotonic, self._wall = holds, monotonic, wall
        self.margin = margin
        """Seconds between the deadline and the moment when somebody else may hold the lock: for cutting transports."""
        self._proved_at = self._monotonic() if holds == math.inf else -math.inf
        self._drift = self._wall() - self._monotonic()
        self._not_before = -math.inf
        """Proofs asked for before this moment don't count: the clocks jumped then."""
        self._lost = ""
        self._changed = asyncio.Event()

    @property
    def limited(self) -> bool:
        """Whether it can lapse at all."""
        return self._holds != math.inf

    @property
    def lost(self) -> str:
        """Why the lock is lost for good; "" while it is not."""
        return self._lost

    @property
    def remaining(self) -> float:
        """Seconds until it lapses; infinite for a lock that can't be lost, 0 when it has lapsed or is lost."""
        if self._lost:
            return 0.0
        if not self.limited:
            return math.inf
        self._notice_jump()
        return max(0.0, self._proved_at + self._holds - self._monotonic())

    @property
    def deadline(self) -> float:
        """On the monotonic clock; for another thread, which changes nothing here. -inf when it is lost."""
        return -math.inf if self._lost else self._proved_at + self._holds

    def check(self) -> None:
        """Before every hand-over: raises Fenced when the lock is lost, LeaseLapsed when it has to be proved first."""
        if not self._lost and (not self.limited or self.remaining > 0):
            return
        if self._lost:
            raise Fenced(self._lost)
        raise LeaseLapsed(
            "the lock has not been proved in time, so nothing is published until it is",
            remedy="look whether the lock service can be reached",
        )

    def prove(self, asked_at: float) -> None:
        """The lock was ours at some moment after `asked_at`, on the monotonic clock."""
        self._notice_jump()
        if asked_at > max(self._proved_at, self._not_before) and not self._lost:
            self._proved_at = asked_at
            self._wake()

    def lose(self, reason: str) -> None:
        """For good: somebody else may hold the lock from now on. `reason` is a sentence."""
        self._lost = self._lost or reason
        self._wake()

    async def lapsed(self) -> None:
        """Returns once check() would raise."""
        while (rest := self.remaining) > 0:
            try:
                async with asyncio.timeout(min(rest, 1.0) if self.limited else None):  # a jump wakes nobody
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def ended(self) -> None:
        """Raises Fenced once the lock is lost; never returns."""
        while not self._lost:
            await self._changed.wait()
        raise Fenced(self._lost)

    async def proved(self) -> None:
        """Returns once check() passes again. Raises Fenced when the lock is lost."""
        while not self.remaining:
            if self._lost:
                raise Fenced(self._lost)
            await self._changed.wait()

    def _notice_jump(self) -> None:
        """After SIGSTOP the deadline has passed by itself; a paused machine's monotonic clock may have stood still."""
        drift = self._wall() - self._monotonic()
        if abs(drift - self._drift) > _JUMP and self.limited:
            self._not_before = self._monotonic()
            self._proved_at = -math.inf
        self._drift = drift

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
