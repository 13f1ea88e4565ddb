"""The base of sinks: batches go in, in order; each batch is confirmed as a whole, or the sink has failed."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from headrace import runtime
from headrace.errors import HeadraceError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch, Unit
from headrace.ports.finding import Finding
from headrace.ports.measures import Measure
from headrace.ports.nodes import LockedNodes
from headrace.ports.parking import ParkedMessage, ParkingStore
from headrace.ports.replay import Replay
from headrace.ports.state import StateStore
from headrace.settings.adapters import SinkSettings


class Parking(ABC):
    """Where a sink parks messages that the broker refuses permanently, so that others can continue: with on_failure =
    "park". Calls are fast and don't wait; parked messages are stored before the position moves past them.

    `scope` is the topic or exchange within which the order of messages is kept."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Returns whether nothing is parked, so that blocked() need not be called."""

    @abstractmethod
    def blocked(self, scope: str, unit: Unit) -> bool:
        """Returns whether an earlier message of the same unit is parked. Then this message must be parked too."""

    @abstractmethod
    def park(self, scope: str, batch: MessageBatch, index: int, reason: str, attempts: int) -> None:
        """Parks one message of a batch, after those before it. `attempts`: how many times it was sent; 0 for one that
        only waits for earlier messages. Raises SinkRejected if no more may be parked."""

    def unstored(self) -> Sequence[ParkedMessage]:
        """Returns the messages that are not stored yet, for a sink that writes them together with the position."""
        return ()

    def stored(self, messages: Sequence[ParkedMessage]) -> None:  # noqa: B027 - for such sinks only
        """Marks those messages as stored."""


class MessageRefused(SinkRejected):
    """The broker refuses one parked message that was sent again; nothing else is wrong."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """What shows that a topic was truncated, and when it was last written to before, in microseconds since 1970 UTC."""

    text: str
    since_us: int


class TopicEnds:
    """The last offsets of a destination's topics, over all of its sinks, and the topics that were truncated: deleted
    and recreated, or shortened."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        """Offset and time, by topic and partition."""
        self.emptied: dict[str, Emptied] = {}
        """By topic; removed once the messages are sent again."""

    def confirmed(self, topic: str, partition: int, offset: int) -> None:
        """Records that a message was written at an offset, after all that was confirmed for this partition before. A
        negative offset is unknown."""
        if offset < 0:
            return
        last, _ = self._last.get((topic, partition), (-1, 0))
        if offset <= last:
            since_us = max(at for place, (_, at) in self._last.items() if place[0] == topic)
            text = f"partition {partition} goes on at offset {offset}, and had come to {last}"
            self.emptied[topic] = Emptied(text, since_us)
            self._last = {place: end for place, end in self._last.items() if place[0] != topic}
        self._last[topic, partition] = offset, runtime.now_us()


class Sink(ABC):
    """The destination of messages. A sink object lives from start to the first failure: it never repairs itself,
    because only the confirmed position determines what must be sent again.

    The lease is checked right before each hand-over to a client library or the system. Messages that were handed over
    may leave at any later time, so at most `max_in_flight_bytes` of them may be unconfirmed."""

    keeps_position: bool = False
    """Whether publish() stores each batch's position and schema entries itself, in one transaction with the messages.
    Then batches without messages are published too, and nobody else writes the position while the sink is open."""
    version: int = 0
    """The version of the stored position, with `keeps_position`."""
    store: StateStore | None = None
    """The store of the position, with `keeps_position`; usable once start() has returned."""
    rests_until: float = 0.0
    """The time on the monotonic clock before which it confirms nothing. What is read earlier only waits."""
    failure: HeadraceError | None = None
    """The error that ended the sink, if it has one. Nothing can be published any more, and the run must end."""

    def __init__(self, lease: Lease, parking: Parking | None = None) -> None:
        self._lease, self._parking = lease, parking

    @abstractmethod
    async def start(self) -> None:
        """Connects, within a time limit. Raises SinkError."""

    @abstractmethod
    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Sends the batch, in the order of the calls, and returns its confirmation. The future is done when every
        message is confirmed or parked, or fails with SinkError. Waits while the sink has too much in flight. Raises
        what Lease.check() raises."""

    async def resend(self, batch: MessageBatch) -> None:
        """Sends one parked message again, alongside publish(), and returns when it is confirmed. Raises MessageRefused
        if the broker refuses it, which does not end the sink; other errors are as for publish() and its
        confirmation."""
        raise SinkRejected("this sink parks no messages")

    async def problem(self) -> str:
        """Returns why nothing is confirmed, by a check made now: a sentence that names the server; "" if it finds
        nothing wrong. Takes some seconds at most, changes nothing, and never raises."""
        return ""

    def measures(self) -> Sequence[Measure]:
        """Returns metrics of its own; must be fast."""
        return ()

    def hurry(self) -> None:  # noqa: B027 - most sinks delay nothing
        """Confirms what was published without further delay: a stop waits for it."""

    def flush(self) -> None:  # noqa: B027 - the same
        """Confirms some messages without further delay: nothing more is published until then."""

    @abstractmethod
    async def abort(self) -> None:
        """Aborts the connections and ends the tasks: after it returns nothing more leaves. Never raises."""

    @abstractmethod
    async def close(self) -> None:
        """Ends in order after the last confirmation. Safe after abort."""

    @abstractmethod
    async def check(self) -> list[Finding]:
        """Returns findings about the sink; a finding that is wrong prevents publishing; empty if all is well. Creates
        nothing and sends no message."""


@dataclass(frozen=True, slots=True)
class SinkRouting:
    """Facts from other sections that a sink needs. Without this, it knows only its own section."""

    topics: tuple[str, ...] = ()
    """The topics that are known before any table is."""
    partitions: Callable[[str], int] = lambda _: 1
    """How many partitions a topic needs at least."""
    split: Callable[[bytes, int], list[tuple[int, bytes]]] = lambda _value, _room: []
    """See Format.split."""


@dataclass(frozen=True, slots=True)
class SinkUse:
    """The purpose and dependencies of one sink object."""

    destination: str
    lease: Lease
    routing: SinkRouting = SinkRouting()
    parking: Parking | None = None
    """Where it may park messages."""
    parked: ParkingStore | None = None
    """The store of `parking`, as parking_store() has made it."""
    ends: TopicEnds = field(default_factory=TopicEnds)
    """The last offsets of the destination, for a sink whose topics have offsets."""
    spool: Path | None = None
    """A folder for what it keeps on disk while it is open; None: the system's."""
    nodes: LockedNodes | None = None
    """Where it may write for clients of another system, under the lock that `lease` belongs to; None if daemons share
    no service, or one that such clients do not read."""
    source: tuple[str, int] = ("", 0)
    """The first address of the source."""


class SinkAdapter(ABC):
    """A kind of sink: its section of the configuration and its objects. Registered under its type. Its methods import
    whatever takes long to import."""

    section: ClassVar[type[SinkSettings]]

    @abstractmethod
    def sink(self, settings: Any, use: SinkUse) -> Sink:
        """Returns a new sink, not started. `settings` are of type `section`."""

    def probe(self, settings: Any, use: SinkUse) -> Sink:
        """Returns a sink for check() only. It disturbs no other sink of the destination."""
        return self.sink(settings, use)

    def state_store(self, settings: Any, destination: str, lease: Lease | None = None) -> StateStore:
        """Returns the store of the position, for a sink with exactly-once delivery: to be used while no run is open. A
        write is refused once `lease` has lapsed."""
        raise LookupError(f"a {settings.type} sink keeps no position")

    def parking_store(self, settings: Any, destination: str) -> ParkingStore:
        """Returns the store of parked messages, for a sink with exactly-once delivery."""
        raise LookupError(f"a {settings.type} sink keeps no parked messages")

    def replay(self, settings: Any, topic: str, since_ms: int = 0) -> Replay:
        """Reads back what was published to a topic, if the sink has topics. `since_ms` limits this to messages
        published then or later, in milliseconds since 1970, if the sink can tell. Raises LookupError for a sink whose
        messages can't be read again."""
        raise LookupError(f"what a {settings.type} sink was given can't be read back")
