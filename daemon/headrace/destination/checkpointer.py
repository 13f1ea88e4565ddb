"""Stores the confirmed position of a destination. Only this module changes the destination's guard and the version of
the stored state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headrace.destination.dependencies import Context
from headrace.destination.publisher import Publisher
from headrace.errors import Fenced
from headrace.lease import Guard, Term
from headrace.model import MessageBatch, Position
from headrace.ports.source import Confirmed
from headrace.ports.state import StateChange, StateStore, Stored
from headrace.tasks import finish, set_within

_NO_GUARD = Guard(0, 0)
_POLL = 0.02
"""Seconds between two checks of the stored position."""


class Checkpointer:
    """Makes the checkpoints of one destination, for as long as the destination exists. Before each run, call
    begin_run()."""

    def __init__(self, context: Context) -> None:
        self._name, self._status, self._daemon = context.name, context.status, context.daemon
        self.guard = _NO_GUARD
        """The newest guard: each write to the store needs it."""
        self.version = 0
        """The version of the stored state that this daemon last read or wrote."""
        self.loaded = False
        """Whether the present run has read the stored state."""
        self.due = asyncio.Event()
        """Set when a checkpoint is needed before the interval has passed."""
        self._fresh = asyncio.Event()
        """Set when something was confirmed since the last checkpoint: without that nothing wakes up."""
        self.confirmed = Confirmed()
        """With parked messages only what is stored, because messages are parked when the position is stored."""
        self._urgent = context.settings.source.semi_sync == "sink"
        self._confirmed: Position | None = None
        self._saved: Position | None = None
        self._entries: list[dict[str, Any]] = []
        """Entries of the schema history that belong to confirmed positions and are not stored yet."""
        self._transactions = 0
        """Transactions confirmed since the last checkpoint."""
        self._publisher: Publisher

    # -- before a run ---------------------------------------------------------------------------------------------

    async def load(self, store: StateStore) -> tuple[Stored, bool]:
        """Reads the stored state. The second value is whether somebody else has changed it since this daemon last read
        or wrote it. Raises StateStoreError."""
        stored = await store.load(self._name)
        moved = stored.version != self.version
        self.version, self.loaded = stored.version, True
        self._status.stored.note(stored.position)
        if stored.position is not None:
            self._status.lag.stored(stored.position.commit_time_us)
        return stored, moved

    async def begin_epoch(self, store: StateStore, term: Term, *, above: int = 0, meanwhile: str) -> int:
        """Begins a new epoch of the destination and returns it. Raises StateStoreError. Raises Fenced if the stored
        state has changed since load(); `meanwhile` is text for this error and says what happened in between."""
        guard = await store.begin_epoch(self._name, above=above, term=term)
        if guard.version != self.version:
            raise Fenced(f"the position of {self._name} was moved while {meanwhile}")
        self._take(guard)
        self._status.holding.begin(guard.epoch)
        return guard.epoch

    async def store_now(self, store: StateStore, change: StateChange) -> None:
        """Writes a change at once, without waiting for a checkpoint. Raises Fenced or StateStoreError."""
        self._take(await store.commit(self._name, self.guard, change))
        self._status.stored.note(change.position)
        if change.position is not None:
            self._status.lag.stored(change.position.commit_time_us)

    def begin_run(self, publisher: Publisher, position: Position) -> None:
        """Prepares for a run from a stored position, whose messages `publisher` sends."""
        self._publisher = publisher
        self._confirmed = self._saved = None
        self.confirmed.note(position)
        self._entries.clear()
        self._transactions = 0
        self.due.clear()
        self._fresh.clear()

    # -- within a run ---------------------------------------------------------------------------------------------

    def confirm(self, batch: MessageBatch) -> None:
        """Records a confirmed batch. All earlier batches must be confirmed."""
        if batch.position is not None:  # of the batches that are taken together, only the last one has a position
            self._confirmed = batch.position
            if self._publisher.parking is None:
                self.confirmed.note(batch.position)
            elif self._urgent:
                self.due.set()
            self._entries += batch.schema_entries
        self._transactions += batch.transactions
        self._fresh.set()
        if self._transactions >= self._daemon.checkpoint_transactions:
            self.due.set()

    async def run(self) -> None:
        """Stores the position at most a checkpoint_interval after something was confirmed, and after
        checkpoint_transactions transactions, until it is cancelled. Raises Fenced or StateStoreError."""
        interval = self._daemon.checkpoint_interval
        while True:
            await self._fresh.wait()
            await set_within(self.due, interval)
            self._fresh.clear()
            self.due.clear()
            self._transactions = 0
            await self.checkpoint()

    async def until(self, holds: Callable[[Position], bool]) -> None:
        """Waits until `holds` is true for the stored position. Meanwhile, each confirmed position is stored at once."""
        while (position := self._status.stored.position) is None or not holds(position):
            self.due.set()
            await asyncio.sleep(_POLL)  # a sink that stores the position itself does not signal it

    async def checkpoint(self) -> None:
        """Stores the confirmed position, if it is newer than the stored one. Raises Fenced or StateStoreError. If this
        is cancelled, everything or nothing is stored, and the guard is correct in both cases."""
        publisher, position = self._publisher, self._confirmed
        if publisher.parking is not None and not publisher.sink.keeps_position:
            # Parked messages are stored before the position. If a crash comes between the two, the message is read
            # again and is already parked.
            await publisher.parking.flush(self.guard)
        if position is None or (position == self._saved and not self._entries):
            return
        if publisher.sink.keeps_position:  # the sink has stored both with the messages that it confirmed
            self._note_saved(replace(self.guard, version=publisher.sink.version), position, self._entries)
            return
        entries = tuple(self._entries)  # kept until they are written: a position must not be stored without its entries
        change = StateChange(position, entries)
        commit = asyncio.ensure_future(publisher.store.commit(self._name, self.guard, change))
        try:
            # If this task is cancelled, a write that has begun continues. It makes the present guard invalid, so its
            # result is awaited.
            await finish(commit)
        except Fenced:
            self._confirmed = None  # nothing more may be written, not even at the end of the run
            raise
        finally:
            if commit.done() and not commit.cancelled() and commit.exception() is None:
                self._note_saved(commit.result(), position, entries)

    def _note_saved(self, guard: Guard, position: Position, entries: Sequence[dict[str, Any]]) -> None:
        self._take(guard)
        del self._entries[: len(entries)]
        self._saved = position
        self._status.stored.checkpoint(position)
        self.confirmed.note(position)

    def _take(self, guard: Guard) -> None:
        self.guard, self.version = guard, guard.version
