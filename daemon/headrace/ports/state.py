"""The base of state stores: one confirmed position a destination, written with compare-and-set under an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.lease import NO_TERM, Guard, Term
from headrace.model import Position
from headrace.ports.parking import ParkingStore
from headrace.settings.daemon import StateSettings

__all__ = ["NO_TERM", "Guard", "HistoryEntry", "StateChange", "StateStore", "Stored"]


@dataclass(frozen=True, slots=True)
class Stored:
    """What a store knows of a destination. `position` is None before the first checkpoint, and after an operator has
    taken it away; `version` is 0 before the first write."""

    position: Position | None
    epoch: int
    version: int
    last_pos: int = 0
    """The highest `_pos` given out, also when no position is stored: the numbers go on behind it."""


VOID = {"kind": "back", "pos": -1}
"""What an entry of the schema history has that begins the history again."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """One atomic write: the position, and entries of the schema history."""

    position: Position | None
    """None takes the stored one away, so that the destination begins by [source] start; its `last_pos` is kept."""
    schema_entries: tuple[dict[str, Any], ...] = ()
    """A `VOID` entry among them makes all before it void: the stored ones, and those before it here."""
    actor: str = "checkpoint"
    """Who moved the position: checkpoint, operator or policy."""
    details: dict[str, Any] = field(default_factory=dict)

    def in_force(self) -> tuple[bool, tuple[dict[str, Any], ...]]:
        """Whether the stored entries are void from here on, and the entries of this change that are not."""
        for number in range(len(self.schema_entries) - 1, -1, -1):
            if VOID.items() <= self.schema_entries[number].items():
                return True, self.schema_entries[number:]
        return False, self.schema_entries


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of a position, as the store keeps the last ones of each actor."""

    actor: str
    epoch: int
    version: int
    position: Position | None
    """None: it was taken away."""
    details: dict[str, Any]
    changed_us: int
    """Microseconds since 1970 UTC."""


WHOLE_HISTORY = 1_000_000
"""A limit of StateStore.history() that no history reaches."""


class StateStore(ABC):
    """Positions and schema history, shared by all adapters. Every call has a time limit and raises StateStoreError."""

    async def open(self) -> None:  # noqa: B027 - some hold nothing open
        """Opens or creates the store; a damaged one is refused with what to do."""

    @abstractmethod
    async def load(self, destination: str) -> Stored:
        """What is stored; never fails for an unknown destination."""

    @abstractmethod
    async def begin_epoch(self, destination: str, *, above: int = 0, term: Term = NO_TERM) -> Guard:
        """Takes the destination over. Earlier guards are void.

        The epoch is that of `term`; without one, a new epoch above the stored one and above `above`. Raises Fenced
        when the term is over, or its epoch is below one of the two. Either may equal it: a run that begins again
        under its term finds its own epoch stored, and its own heartbeats.
        """

    @abstractmethod
    async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
        """Writes all of `change` or nothing; returns the guard for the next write. Raises Fenced when another epoch
        or version is stored. Entries of the schema history that are void now are removed, at the latest with the next
        that are."""

    @abstractmethod
    async def history(self, destination: str, limit: int = 100) -> list[HistoryEntry]:
        """The last changes of the position, newest first."""

    @abstractmethod
    async def schema_entries(self, destination: str) -> list[dict[str, Any]]:
        """The schema history in the order it was written, as StateChange.in_force() gave it, from the last `VOID`
        entry on."""

    @abstractmethod
    async def problems(self, destination: str, *, must_exist: bool = False) -> list[str]:
        """What is wrong with the store, a sentence each; may be asked before open(), and makes or changes nothing.
        `must_exist`: a store that nobody has written yet is a problem too."""

    @abstractmethod
    def describe(self) -> str:
        """The store's name for people."""

    async def close(self) -> None:  # noqa: B027 - some hold nothing open
        """Gives everything back; safe to call twice."""


class StateAdapter(ABC):
    """A kind of store that [state] names by itself. Registered under its name."""

    section: ClassVar[type[StateSettings]] = StateSettings
    """The section [state] with this `store`; one of another package may have further keys."""

    @abstractmethod
    def store(self, settings: Any) -> StateStore:
        """A new store, not opened. `settings` are of `section`."""

    def parking(self, store: Any, destination: str) -> ParkingStore | None:
        """The store of parked messages that lies within a state store; None where there is no such thing. `store` is
        what store() has made."""
        return None
