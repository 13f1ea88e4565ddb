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
    """The stored state of a destination. `position` is None before the first checkpoint, and after an operator has
    removed it; `version` is 0 before the first write."""

    position: Position | None
    epoch: int
    version: int
    last_pos: int = 0
    """The highest `_pos` given out, also if no position is stored: later numbers are above it."""


VOID = {"kind": "back", "pos": -1}
"""The keys of a schema history entry that begins the history again."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """One atomic write: the position, and entries of the schema history."""

    position: Position | None
    """None removes the stored one, so that the destination begins at [source] start; its `last_pos` is kept."""
    schema_entries: tuple[dict[str, Any], ...] = ()
    """A `VOID` entry among them voids all entries before it: the stored ones, and those before it here."""
    actor: str = "checkpoint"
    """Who moved the position: checkpoint, operator or policy."""
    details: dict[str, Any] = field(default_factory=dict)

    def in_force(self) -> tuple[bool, tuple[dict[str, Any], ...]]:
        """Returns whether the stored entries are void from here on, and the entries of this change that are valid."""
        for number in range(len(self.schema_entries) - 1, -1, -1):
            if VOID.items() <= self.schema_entries[number].items():
                return True, self.schema_entries[number:]
        return False, self.schema_entries


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One change of a position. The store keeps the last ones of each actor."""

    actor: str
    epoch: int
    version: int
    position: Position | None
    """None: it was removed."""
    details: dict[str, Any]
    changed_us: int
    """Microseconds since 1970 UTC."""


WHOLE_HISTORY = 1_000_000
"""A limit for StateStore.history() that no history reaches."""


class StateStore(ABC):
    """Positions and schema history, shared by all adapters. Every call has a time limit and raises StateStoreError."""

    async def open(self) -> None:  # noqa: B027 - some hold nothing open
        """Opens or creates the store. Refuses a damaged one, with a remedy."""

    @abstractmethod
    async def load(self, destination: str) -> Stored:
        """Returns what is stored; never fails for an unknown destination."""

    @abstractmethod
    async def begin_epoch(self, destination: str, *, above: int = 0, term: Term = NO_TERM) -> Guard:
        """Takes the destination over. Earlier guards become void.

        The epoch is that of `term`; without one, a new epoch above the stored one and above `above`. Raises Fenced if
        the term is over, or its epoch is lower than one of the two. It may equal them: a run that begins again under
        its term finds its own epoch and its own heartbeats stored."""

    @abstractmethod
    async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
        """Writes all of `change` or nothing; returns the guard for the next write. Raises Fenced if another epoch or
        version is stored. Void entries of the schema history are removed, at the latest with the next that become
        void."""

    @abstractmethod
    async def history(self, destination: str, limit: int = 100) -> list[HistoryEntry]:
        """Returns the last changes of the position, newest first."""

    @abstractmethod
    async def schema_entries(self, destination: str) -> list[dict[str, Any]]:
        """Returns the schema history in the order it was written, as StateChange.in_force() gave it, from the last
        `VOID` entry on."""

    @abstractmethod
    async def problems(self, destination: str, *, must_exist: bool = False) -> list[str]:
        """Returns what is wrong with the store, a sentence each. May be called before open(); creates and changes
        nothing. `must_exist`: a store that was never written is a problem too."""

    @abstractmethod
    def describe(self) -> str:
        """Returns the store's name for people."""

    async def close(self) -> None:  # noqa: B027 - some hold nothing open
        """Releases all resources; safe to call twice."""


class StateAdapter(ABC):
    """A kind of state store that [state] names. Registered under its name."""

    section: ClassVar[type[StateSettings]] = StateSettings
    """The section [state] for this `store`. An adapter of another package may add keys."""

    @abstractmethod
    def store(self, settings: Any) -> StateStore:
        """Returns a new store, not opened. `settings` are of type `section`."""

    def parking(self, store: Any, destination: str) -> ParkingStore | None:
        """Returns the store of parked messages within a state store; None if it has none. `store` was returned by
        store()."""
        return None
