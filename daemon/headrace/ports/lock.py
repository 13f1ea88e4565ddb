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
    """The stored position of that time."""
    program: str
    """Version and kind of the code that hung: other code may not."""
    times: int = 1
    """How often in a row, by whatever daemon."""


class Lock(ABC):
    """Exclusive right to run one destination. An object may be acquired again after it was released."""

    shared: bool = False
    """Whether daemons of other machines take part, so that a successor may be waiting for it."""
    term: Term = NO_TERM
    """Of the present holding; NO_TERM while it isn't held, and when the state store counts the epochs."""
    lease: Lease
    """Of the present holding; one that can be lost is new with each."""

    @abstractmethod
    async def acquire(self, known_epoch: KnownEpoch) -> None:
        """Returns once the lock is held, under an epoch above `known_epoch`; waits as long as another daemon holds it,
        or is preferred. Raises LockServiceError or StateStoreError."""

    @abstractmethod
    async def try_acquire(self, known_epoch: KnownEpoch) -> bool:
        """Takes the lock when it is free and nobody is preferred; never waits for another holder."""

    @abstractmethod
    async def look(self) -> str:
        """The present holder, "" without one; nothing is changed."""

    @abstractmethod
    async def release(self) -> None:
        """Gives the lock back; safe when it isn't held. Never raises: a lock that can't be given back now, because its
        service is away, is given back as soon as it can, or ends with the session."""

    async def hand_over_asked(self) -> str:
        """Returns once the holder is to give the destination away in order, with the reason as a sentence. Never, for a
        lock that nobody else waits for."""
        await asyncio.Event().wait()
        raise AssertionError

    async def set_ready(self, ready: bool) -> None:  # noqa: B027  (nobody to tell is no fault)
        """Tells the others, while waiting in acquire(), whether our source and sink answer: those that are ready come
        first."""

    async def recovered(self) -> None:
        """Returns once the lock service, which could not be reached, can be again; never otherwise."""
        await asyncio.Event().wait()

    def note_hang(self, hang: Hang) -> None:  # noqa: B027  (a lock that is not shared has no successor to tell)
        """Called in another thread while the event loop hangs, right before the process ends: leaves word for whoever
        runs the destination next. Waits for nothing and never raises."""

    async def hang(self) -> Hang | None:
        """What note_hang() of a former holder has left. Raises LockServiceError."""
        return None

    def nodes(self) -> LockedNodes | None:
        """What the holder may write for the clients of other systems, while it is the holder; None for a service that
        they do not read."""
        return None

    @property
    def declined(self) -> str:
        """Why this daemon would not take the lock although it is free, as a part of a sentence; "" when it would."""
        return ""

    @property
    @abstractmethod
    def holder(self) -> str:
        """The holder as far as it is known; empty without one."""


@dataclass(slots=True)
class ClusterCounts:
    """What a process has come to with its cluster service since it began, for /metrics."""

    service: str
    """Its name, as in `ClusterSettings.service`."""
    sessions: int = 0
    """The first, and one for each that was lost."""
    suspensions: int = 0
    """Connections that broke."""
    attempts: int = 0
    """To take a lock that looked free."""
    fenced_writes: dict[str, int] = field(default_factory=dict)
    """By destination: writes of the state store that were refused because the destination is somebody else's."""
