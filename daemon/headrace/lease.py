"""Epochs and the lease: what a lock's holder proves, and until when it may hand data to a client library."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace import runtime
from headrace.errors import Fenced, LeaseLapsed

KnownEpoch = Callable[[], Awaitable[int]]
"""Returns the highest epoch that is known outside the lock: that of the stored position, and of the heartbeat row."""

_JUMP = 0.5
"""Seconds by which wall and monotonic clock may diverge before that counts as a jump; slewing is far less between two
proofs."""


@dataclass(frozen=True, slots=True)
class Term:
    """The epoch and fence of a lock. `epoch` is the one that it was taken under, 0 if the state store counts them;
    `fence` is the version of the epoch node that every guarded write checks, -1 without one."""

    epoch: int = 0
    fence: int = -1


NO_TERM = Term()


@dataclass(frozen=True, slots=True)
class Guard:
    """What a writer of the state store proves: the epoch under which it holds the destination, and the version that it
    last read or wrote."""

    epoch: int
    version: int
    fence: int = -1
    """What the cluster service compares besides the epoch, such as the version of its node; -1 without a service."""


class Lease:
    """The right to publish, valid for `holds` seconds after each proof of the lock; without a limit for a lock that
    can't be lost.

    A proof is an answer of the lock service that is possible only while the lock is ours; it counts from when it was
    requested, not from when it came. The clocks can be replaced in tests."""

    def __init__(
        self,
        holds: float = math.inf,
        *,
        margin: float = 2.0,
        monotonic: Callable[[], float] = runtime.monotonic,
        wall: Callable[[], float] = runtime.now,
    ) -> None:
        self._holds, self._monotonic, self._wall = holds, monotonic, wall
        self.margin = margin
        """Seconds between the deadline and the moment when another daemon may hold the lock: for aborting
        transports."""
        self._proved_at = self._monotonic() if holds == math.inf else -math.inf
        self._drift = self._wall() - self._monotonic()
        self._not_before = -math.inf
        """Proofs that were requested before this moment don't count: the clocks jumped then."""
        self._lost = ""
        self._changed = asyncio.Event()

    @property
    def limited(self) -> bool:
        """Returns whether it can lapse at all."""
        return self._holds != math.inf

    @property
    def lost(self) -> str:
        """Returns why the lock is permanently lost; "" if it is not."""
        return self._lost

    @property
    def remaining(self) -> float:
        """Returns the seconds until it lapses; infinite for a lock that can't be lost, 0 if it has lapsed or is
        lost."""
        if self._lost:
            return 0.0
        if not self.limited:
            return math.inf
        self._notice_jump()
        return max(0.0, self._proved_at + self._holds - self._monotonic())

    @property
    def deadline(self) -> float:
        """Returns the deadline on the monotonic clock, without side effects, for another thread. -inf if it is lost."""
        return -math.inf if self._lost else self._proved_at + self._holds

    def check(self) -> None:
        """Checks the lease before every hand-over. Raises Fenced if the lock is lost, LeaseLapsed if it must be proved
        first."""
        if not self._lost and (not self.limited or self.remaining > 0):
            return
        if self._lost:
            raise Fenced(self._lost)
        raise LeaseLapsed(
            "the lock has not been proved in time, so nothing is published until it is",
            remedy="check whether the lock service can be reached",
        )

    def prove(self, asked_at: float) -> None:
        """Records that the lock was ours at some moment after `asked_at`, on the monotonic clock."""
        self._notice_jump()
        if asked_at > max(self._proved_at, self._not_before) and not self._lost:
            self._proved_at = asked_at
            self._wake()

    def lose(self, reason: str) -> None:
        """Ends the lease permanently: another daemon may hold the lock from now on. `reason` is a sentence."""
        self._lost = self._lost or reason
        self._wake()

    async def lapsed(self) -> None:
        """Waits until check() would raise."""
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
        """Waits until check() passes again. Raises Fenced if the lock is lost."""
        while not self.remaining:
            if self._lost:
                raise Fenced(self._lost)
            await self._changed.wait()

    def _notice_jump(self) -> None:
        """Detects a jump. After SIGSTOP the deadline has passed by itself; a paused machine's monotonic clock may have
        stopped."""
        drift = self._wall() - self._monotonic()
        if abs(drift - self._drift) > _JUMP and self.limited:
            self._not_before = self._monotonic()
            self._proved_at = -math.inf
        self._drift = drift

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
