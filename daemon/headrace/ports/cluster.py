"""The ports of daemons that share destinations: the lock of a destination, and the service that keeps locks, state and
members."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.lease import NO_TERM, KnownEpoch, Lease, Term
from headrace.ports.nodes import LockedNodes
from headrace.ports.state import StateStore
from headrace.settings.adapters import ClusterSettings


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


BALANCE = "the balance"
"""What asks for a move that no operator has asked for."""


@dataclass(slots=True)
class Assignment:
    """One destination in the cluster."""

    name: str
    holder: str = ""
    """The node that runs it; "" when none does."""
    address: str = ""
    epoch: int = 0
    since_us: int = 0
    """Since when, in microseconds since 1970 UTC."""
    ready: frozenset[str] = frozenset()
    """Nodes that wait for it and could run it, the holder not among them."""
    waiting: tuple[str, ...] = ()
    """All nodes that wait for it."""
    move_to: str = ""
    """The node that it is to go to."""
    move_us: int = 0
    """Since when, in microseconds since 1970 UTC."""
    by_hand: bool = False
    """Whether an operator has given it to its node: it stays there."""


def number_of(info: dict[str, Any], key: str) -> int:
    """What some daemon, or a hand, wrote; 0 when it is no number."""
    value = info.get(key)
    return int(value) if isinstance(value, int | float) else 0


@dataclass(slots=True)
class View:
    """The cluster as it was at one look."""

    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The live daemons by name, as they describe themselves: address, since, version, max."""
    drained: frozenset[str] = frozenset()
    assignments: dict[str, Assignment] = field(default_factory=dict)

    @property
    def loads(self) -> dict[str, int]:
        """How many destinations each live daemon runs."""
        counts = dict.fromkeys(self.members, 0)
        for assignment in self.assignments.values():
            if assignment.holder in counts:
                counts[assignment.holder] += 1
        return counts

    def limit(self, node: str) -> float:
        """How many destinations it may run."""
        return float(number_of(self.members.get(node, {}), "max")) or float("inf")


class Cluster(ABC):
    """The service by which several daemons share destinations, as one process sees it. Every call has a time limit and
    raises LockServiceError when the service does not answer, or does not do what is asked."""

    counts: ClusterCounts
    store: StateStore
    """Holds the positions of all destinations."""

    @abstractmethod
    async def start(self) -> None:
        """Connects and joins the members. Raises LockServiceError; nothing is open then."""

    @abstractmethod
    async def close(self) -> None:
        """Gives up all locks and leaves the members; safe to call twice. Never raises."""

    @abstractmethod
    def lock(self, destination: str) -> Lock:
        """The lock of a destination, not taken."""

    @abstractmethod
    async def look(self) -> View:
        """Reads the members, and the node of each destination."""

    @abstractmethod
    async def ask_to_move(self, destination: str, node: str, by: str) -> None:
        """Says that `node` is to run a destination next; its holder hands it over in order. `by` names the asker."""

    @abstractmethod
    async def drain(self, node: str, by: str) -> None:
        """Says that a daemon is to run nothing, until undrain(). Safe when it is said already."""

    @abstractmethod
    async def undrain(self, node: str) -> None:
        """Lets a daemon run destinations again. Safe when it may."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process that takes part in a cluster."""

    node: str
    address: str
    """The address at which operators find the daemon: that of HTTP, or its host."""
    max_destinations: int = 0
    """How many it may run; 0: any number."""
    command: bool = False
    """A command of an operator: no member, seen by nobody, and it makes nothing."""


class ClusterAdapter(ABC):
    """A cluster service: its section of headrace.toml, and what is made of it. Registered under the section's name."""

    section: ClassVar[type[ClusterSettings]]

    @abstractmethod
    def cluster(self, settings: Any, member: Member) -> Cluster:
        """A new one, not started. `settings` are of `section`."""
