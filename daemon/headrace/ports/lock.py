"""The base of locks: the right to run one destination."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from headrace.lease import NO_TERM, KnownEpoch, Lease, Term
from headrace.ports.nodes import LockedNodes


@dataclass(frozen=True, slots=True)
class Hang:
    """An event on which an event loop hung until the watchdog ended its process."""

    place: str
    """`file:offset` of the event, or of one shortly before it."""
    position: str
    """The position that was stored at that time."""
    program: str
    """Version and kind of the code that hung: other code may not hang."""
    times: int = 1
    """How many times in a row, on any daemon."""


class Lock(ABC):
    """The exclusive right to run one destination. An object may be acquired again after it was released."""

    shared: bool = False
    """Whether daemons of other machines take part, so that a successor may be waiting for it."""
    term: Term = NO_TERM
    """The present term; NO_TERM while the lock isn't held, and if the state store counts the epochs."""
    lease: Lease
    """The present lease. A lease that can be lost is replaced at each acquire()."""

    @abstractmethod
    async def acquire(self, known_epoch: KnownEpoch) -> None:
        """Waits until the lock is held, under an epoch above `known_epoch`: while another daemon holds it, or is
        preferred. Raises LockServiceError or StateStoreError."""

    @abstractmethod
    async def try_acquire(self, known_epoch: KnownEpoch) -> bool:
        """Takes the lock if it is free and no other daemon is preferred; never waits for another holder."""

    @abstractmethod
    async def find_holder(self) -> str:
        """Returns the present holder, "" if there is none. Changes nothing."""

    @abstractmethod
    async def release(self) -> None:
        """Releases the lock; safe if it isn't held. Never raises: if the lock service is unavailable, the lock is
        released as soon as it can be, or ends with the session."""

    async def hand_over_asked(self) -> str:
        """Waits until the holder is asked to hand over the destination, and returns the reason as a sentence. Never
        returns for a lock that no other daemon waits for."""
        await asyncio.Event().wait()
        raise AssertionError

    async def set_ready(self, ready: bool) -> None:  # noqa: B027  (nobody to tell is no fault)
        """Publishes, while acquire() waits, whether our source and sink answer. Daemons that are ready are
        preferred."""

    async def recovered(self) -> None:
        """Waits until a lock service that was unreachable can be reached again; otherwise never returns."""
        await asyncio.Event().wait()

    def note_hang(self, hang: Hang) -> None:  # noqa: B027  (a lock that is not shared has no successor to tell)
        """Records a hang for the next holder. Called in another thread while the event loop hangs, right before the
        process ends. Waits for nothing and never raises."""

    async def hang(self) -> Hang | None:
        """Returns the hang that note_hang() of a former holder has recorded. Raises LockServiceError."""
        return None

    def nodes(self) -> LockedNodes | None:
        """Returns the nodes that the holder may write for clients of other systems while it is the holder; None for a
        service that such clients do not read."""
        return None

    @property
    def declined(self) -> str:
        """Returns why this daemon would not take the lock although it is free, as part of a sentence; "" if it
        would."""
        return ""

    @property
    @abstractmethod
    def holder(self) -> str:
        """Returns the holder as far as it is known; "" if there is none."""


@dataclass(slots=True)
class ClusterCounts:
    """Counters of a process about its cluster service, since the process began, for /metrics."""

    service: str
    """The service's name, as in `ClusterSettings.service`."""
    sessions: int = 0
    """Sessions opened: the first, and one after each that was lost."""
    suspensions: int = 0
    """Connections that broke."""
    attempts: int = 0
    """Attempts to take a lock that looked free."""
    fenced_writes: dict[str, int] = field(default_factory=dict)
    """Writes of the state store that were refused because another daemon holds the destination, by destination."""
