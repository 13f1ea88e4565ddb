"""What is kept of a message that the sink refuses, and the base of the stores that keep it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from headrace.lease import Guard
from headrace.model import Unit
from headrace.settings.adapters import ParkingSettings


class ParkingState(StrEnum):
    """Who sends a parked message again."""

    PENDING = "PENDING"
    """The redelivery loop, once the message is due and the first of its unit."""
    NEEDS_OPERATOR = "NEEDS_OPERATOR"
    """Nobody, until an operator requests it."""


@dataclass(frozen=True, slots=True)
class ParkedEntry:
    """The facts of a parked message, without its content. Times are microseconds since 1970 UTC."""

    number: int
    """Increases in the order of parking, within a destination; 0 before it is stored."""
    id: str
    """Its headrace-id. `id`, `topic` and `partition` identify the message."""
    scope: str
    """The topic or exchange within which order is kept."""
    topic: str
    """The topic, or the routing key."""
    partition: int
    unit: Unit
    reason: str
    """Why the broker refuses it, or which message it waits for."""
    attempts: int
    """How many times it was sent, the first time included; 0 while it only waits for earlier messages."""
    state: ParkingState
    created_us: int
    tried_us: int
    """When it was last sent; 0 for never."""
    due_us: int
    """When it is sent again, if it is the first of its unit by then."""
    size: int
    """Bytes of body, key and headers."""


@dataclass(frozen=True, slots=True)
class ParkedContent:
    """The message itself."""

    body: bytes | None
    """None is a tombstone."""
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    tag: str = ""
    commit_time_us: int = 0


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """An entry with its content."""

    entry: ParkedEntry
    content: ParkedContent
    replaces: int = 0
    """The number under which the same message is already stored; 0: none."""


class ParkingStore(ABC):
    """The parked messages of one destination. Every call has a time limit and raises StateStoreError. Calls with a
    guard raise Fenced if a later epoch has begun."""

    @abstractmethod
    async def open(self) -> None:
        """Opens the store, and creates what is missing. May be called again."""

    @abstractmethod
    async def begin(self, guard: Guard) -> None:
        """Takes the store over: from now on nothing can be written under an earlier epoch."""

    @abstractmethod
    async def entries(self) -> list[ParkedEntry]:
        """Returns all entries, in the order they were parked."""

    @abstractmethod
    async def contents(self, numbers: Sequence[int]) -> dict[int, ParkedContent]:
        """Returns the content by number, without messages that were removed meanwhile."""

    @abstractmethod
    async def add(self, guard: Guard, messages: Sequence[ParkedMessage]) -> None:
        """Stores messages. They are durable when it returns, which is before the position moves past them. A message
        that is already stored, by id, topic and partition, is replaced, number included."""

    @abstractmethod
    async def remove(self, guard: Guard | None, numbers: Sequence[int]) -> int:
        """Removes delivered messages or, for an operator (without a guard), discarded ones. Returns how many were
        removed."""

    @abstractmethod
    async def update(self, guard: Guard | None, entries: Sequence[ParkedEntry]) -> int:
        """Stores reason, attempts, state and times of entries that still exist. Returns how many there were."""

    @abstractmethod
    async def changes(self) -> int:
        """Returns a number that increases whenever somebody without a guard has changed something."""

    @abstractmethod
    async def problems(self) -> list[str]:
        """Returns why the store can't be used, a sentence each. Creates and changes nothing."""

    async def close(self) -> None:  # noqa: B027 - some hold nothing open
        """Releases all resources; safe to call twice."""


class ParkingAdapter:
    """A kind of parking store: its section of the configuration and its store. Registered under its name. The base
    class itself serves store = "state", whose store comes from the state store."""

    section: ClassVar[type[ParkingSettings]] = ParkingSettings

    def store(self, settings: Any, destination: str) -> ParkingStore:
        """Returns a new store, not opened. `settings` are of type `section`."""
        raise LookupError(f"[parking] store = {settings.store!r} is no store of its own")
