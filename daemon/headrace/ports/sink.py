"""The base of sinks: batches go in, in order; each is confirmed as a whole or the sink is finished."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

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
    """Where a sink parks what the broker refuses for good, so that others go on: with on_failure = "park". Both
    calls are quick and don't wait; what is parked is stored before the position moves past it.

    `scope` is the topic or exchange: the order of messages holds within it.
    """

    @abstractmethod
    def blocked(self, scope: str, unit: Unit) -> bool:
        """Whether an earlier message that this one has to stand behind is parked. Then it has to be, too."""

    @abstractmethod
    def park(self, scope: str, batch: MessageBatch, index: int, reason: str, attempts: int) -> None:
        """Parks one message of a batch, behind those before it. `attempts`: how often it was sent; 0 for one that
        only stands behind others. Raises SinkRejected when no more may be parked."""

    def unstored(self) -> Sequence[ParkedMessage]:
        """What is not stored yet, for a sink that writes it together with the position."""
        return ()

    def stored(self, messages: Sequence[ParkedMessage]) -> None:  # noqa: B027 - for such sinks only
        """Those are stored now."""


class MessageRefused(SinkRejected):
    """The broker refuses one message that was sent again from where it was parked; nothing else is wrong."""


@dataclass(frozen=True, slots=True)
class Emptied:
    """What shows that a topic was emptied, and when it was last written to before, in microseconds since 1970 UTC."""

    text: str
    since_us: int


class TopicEnds:
    """How far the topics of a destination were written, over all of its sinks, and which of them were emptied: deleted
    and made again, or cut off."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        """Offset and time, by topic and partition."""
        self.emptied: dict[str, Emptied] = {}
        """By topic; whoever makes them good takes them out."""

    def confirmed(self, topic: str, partition: int, offset: int) -> None:
        """Something was written at an offset, after all that was confirmed for this partition before. A negative one is
        not known."""
        if offset < 0:
            return
        last, _ = self._last.get((topic, partition), (-1, 0))
        if offset <= last:
            since_us = max(at for place, (_, at) in self._last.items() if place[0] == topic)
            text = f"partition {partition} goes on at offset {offset}, and had come to {last}"
            self.emptied[topic] = Emptied(text, since_us)
            self._last = {place: end for place, end in self._last.items() if place[0] != topic}
        self._last[topic, partition] = offset, time.time_ns() // 1000


class Sink(ABC):
    """Where the messages go. One sink object lives from start to the first failure: it never repairs itself, because
    only the confirmed position says what has to be sent again.

    The lease is asked right before each hand-over to a client library or the system: what is handed over may leave
    at any later time, so at most `max_in_flight_bytes` of it may be unconfirmed.
    """

    keeps_position: bool = False
    """Whether publish() stores each batch's position and schema entries itself, in one transaction with the messages:
    then batches without messages are published too, and nobody else writes the position while the sink is open."""
    version: int = 0
    """Of the stored position, where `keeps_position`."""
    store: StateStore | None = None
    """The store of the position, where `keeps_position`; it can be used once start() has returned."""
    failure: HeadraceError | None = None
    """What has ended the sink, where it knows: nothing goes through it any more, and the run has to end."""

    def __init__(self, lease: Lease, parking: Parking | None = None) -> None:
        self._lease, self._parking = lease, parking

    @abstractmethod
    async def start(self) -> None:
        """Connects, within a time limit. Raises SinkError."""

    @abstractmethod
    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Hands the batch over in the order of the calls and returns its confirmation: done when every message is
        confirmed or parked, or with SinkError. Waits while the sink has too much in flight. Raises what
        Lease.check() raises."""

    async def resend(self, batch: MessageBatch) -> None:
        """Sends one message that was parked once more, beside what publish() does, and returns when it is confirmed.
        Raises MessageRefused when the broker refuses it, which ends nothing; else as publish() and its confirmation."""
        raise SinkRejected("this sink parks no messages")

    async def problem(self) -> str:
        """Why nothing is confirmed, as far as a look just now tells: a sentence that names the server; "" when it finds
        nothing wrong. Takes some seconds at most, changes nothing, and never raises."""
        return ""

    def measures(self) -> Sequence[Measure]:
        """Figures of its own, for whoever asks for metrics; must be quick."""
        return ()

    def hurry(self) -> None:  # noqa: B027 - most sinks delay nothing
        """A stop waits for what was published: it is to be confirmed without further delay."""

    def flush(self) -> None:  # noqa: B027 - the same
        """Nothing more is published before some of what was is confirmed: this is to happen without further delay."""

    @abstractmethod
    async def abort(self) -> None:
        """Aborts the connections and ends the tasks: after it returns nothing more leaves. Never raises."""

    @abstractmethod
    async def close(self) -> None:
        """Ends in order after the last confirmation. Safe after abort."""

    @abstractmethod
    async def check(self) -> list[Finding]:
        """What is not as it should be: what is wrong stands in the way of publishing; empty when all is well. Nothing
        is made, and nobody gets a message."""


@dataclass(frozen=True, slots=True)
class SinkRouting:
    """What a sink has to know of sections other than its own; without one it knows its own only."""

    topics: tuple[str, ...] = ()
    """Those that are known before any table is."""
    partitions: Callable[[str], int] = lambda _: 1
    """How many a topic needs at least."""
    split: Callable[[bytes, int], list[tuple[int, bytes]]] = lambda _value, _room: []
    """See Format.split."""


@dataclass(frozen=True, slots=True)
class SinkUse:
    """What one sink object is made for."""

    destination: str
    lease: Lease
    routing: SinkRouting = SinkRouting()
    parking: Parking | None = None
    """Where it may park messages."""
    parked: ParkingStore | None = None
    """The store behind `parking`, as parking_store() has made it."""
    ends: TopicEnds = field(default_factory=TopicEnds)
    """Of the destination, for a sink whose topics have offsets."""
    spool: Path | None = None
    """A folder for what it keeps on disk while it is open; None: the system's."""
    nodes: LockedNodes | None = None
    """Where it may write for the clients of another system, under the lock that `lease` is of; None where daemons share
    no service, or one that such clients do not read."""
    source: tuple[str, int] = ("", 0)
    """The first address of the source."""


class SinkAdapter(ABC):
    """A kind of sink: its section of the configuration, and what is made of it. Registered under its type; whatever
    takes long to import is imported by its methods."""

    section: ClassVar[type[SinkSettings]]

    @abstractmethod
    def sink(self, settings: Any, use: SinkUse) -> Sink:
        """A new sink, not started. `settings` are of `section`."""

    def probe(self, settings: Any, use: SinkUse) -> Sink:
        """A sink for check() alone, which disturbs no other sink of the destination."""
        return self.sink(settings, use)

    def state_store(self, settings: Any, destination: str, lease: Lease | None = None) -> StateStore:
        """Where the position is, for a sink that is capable of exactly once: to be used while no run is open. A write
        is refused once `lease` has lapsed."""
        raise LookupError(f"a {settings.type} sink keeps no position")

    def parking_store(self, settings: Any, destination: str) -> ParkingStore:
        """Where its parked messages are, for a sink that is capable of exactly once."""
        raise LookupError(f"a {settings.type} sink keeps no parked messages")

    def replay(self, settings: Any, topic: str, since_ms: int = 0) -> Replay:
        """Reads back what was published to a topic, where the sink has topics; with `since_ms` only what was published
        then or later, in milliseconds since 1970, as far as the sink can say so. Raises LookupError for a sink whose
        messages can't be read a second time."""
        raise LookupError(f"what a {settings.type} sink was given can't be read back")
