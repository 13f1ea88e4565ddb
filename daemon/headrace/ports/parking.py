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
    """Who is to send a parked message again."""

    PENDING = "PENDING"
    """The compensation loop, once it is due and first of its unit."""
    NEEDS_OPERATOR = "NEEDS_OPERATOR"
    """Nobody, until an operator says so."""


@dataclass(frozen=True, slots=True)
class ParkedEntry:
    """What is known of a parked message besides its content. Times are microseconds since 1970 UTC."""

    number: int
    """Grows in the order of parking, within a destination; 0 before it is stored."""
    id: str
    """Its headrace-id. With `topic` and `partition` it tells the message from all others."""
    scope: str
    """The topic or exchange within which its order holds."""
    topic: str
    """The topic, or the routing key."""
    partition: int
    unit: Unit
    reason: str
    """Why the broker refuses it, or what it stands behind."""
    attempts: int
    """How often it was sent, the first time included; 0 while it only stands behind others."""
    state: ParkingState
    created_us: int
    tried_us: int
    """When it was last sent; 0 for never."""
    due_us: int
    """When it is to be sent again, if it is first of its unit by then."""
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
    """The number under which the same message is stored already; 0: none."""


class ParkingStore(ABC):
    """The parked messages of one destination. Every call has a time limit and raises StateStoreError; those with a
    guard raise Fenced when a later epoch has begun."""

    @abstractmethod
    async def open(self) -> None:
        """Opens it, and makes what is missing. May be called again."""

    @abstractmethod
    async def begin(self, guard: Guard) -> None:
        """Takes it over: nothing under an earlier epoch is written from here on."""

    @abstractmethod
    async def entries(self) -> list[ParkedEntry]:
        """All of them, in the order they were parked."""

    @abstractmethod
    async def contents(self, numbers: Sequence[int]) -> dict[int, ParkedContent]:
        """The content by number; what is gone meanwhile is left out."""

    @abstractmethod
    async def add(self, guard: Guard, messages: Sequence[ParkedMessage]) -> None:
        """Stores messages, durably when it returns, which is before the position moves past them; one that is stored
        already, by id, topic and partition, is replaced, number included."""

    @abstractmethod
    async def remove(self, guard: Guard | None, numbers: Sequence[int]) -> int:
        """Removes delivered messages or, for an operator (without a guard), discarded ones; how many there were."""

    @abstractmethod
    async def update(self, guard: Guard | None, entries: Sequence[ParkedEntry]) -> int:
        """Stores reason, attempts, state and times of entries that are still there; how many there were."""

    @abstractmethod
    async def changes(self) -> int:
        """A number that grows whenever somebody without a guard has changed something."""

    @abstractmethod
    async def problems(self) -> list[str]:
        """What stands in the way of using it, a sentence each; nothing is made or changed."""

    async def close(self) -> None:  # noqa: B027 - some hold nothing open
        """Gives everything back; safe to call twice."""


class ParkingAdapter:
    """A kind of parking store: its section of the configuration, and the store that is made of it. Registered under its
    name; the base itself is for store = "state", whose store comes from the state store."""

    section: ClassVar[type[ParkingSettings]] = ParkingSettings

    def store(self, settings: Any, destination: str) -> ParkingStore:
        """A new store, not opened. `settings` are of `section`."""
        raise LookupError(f"[parking] store = {settings.store!r} is no store of its own")
