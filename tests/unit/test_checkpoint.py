"""What a checkpoint writes when an earlier one failed: nothing of the schema history is lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.destination.checkpointer import Checkpointer
from headrace.destination.dependencies import Context
from headrace.destination.status import DestinationStatus
from headrace.errors import Fenced, StateStoreError
from headrace.model import MessageBatch, Position
from headrace.ports.state import Guard, StateChange
from headrace.tasks import alongside, set_within
from tests.streams import daemon_settings, settings

ENTRY = {"kind": "listed", "pos": 1, "at": ""}


class FullDisk:
    """A store whose first write fails."""

    def __init__(self) -> None:
        self.tried: list[StateChange] = []

    async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
        self.tried.append(change)
        if len(self.tried) == 1:
            raise StateStoreError("no space left")
        return Guard(guard.epoch, guard.version + 1)


async def test_entries_of_the_schema_history_stay_with_their_position_when_a_write_fails() -> None:
    store: Any = FullDisk()
    publisher: Any = SimpleNamespace(store=store, parking=None, sink=SimpleNamespace(keeps_position=False))
    checkpointer = Checkpointer(Context(settings(), daemon_settings(), DestinationStatus("shop")))
    checkpointer.guard = Guard(1, 1)
    checkpointer.begin_run(publisher, Position("server", "b.000001", 4))
    checkpointer.confirm(
        MessageBatch("", 0, position=Position("server", "b.000001", 400, last_pos=2), schema_entries=(ENTRY,))
    )
    with pytest.raises(StateStoreError):
        await checkpointer.checkpoint()
    await checkpointer.checkpoint()
    assert [change.schema_entries for change in store.tried] == [(ENTRY,), (ENTRY,)]
    assert (checkpointer.guard, checkpointer.version) == (Guard(1, 2), 2)
    await checkpointer.checkpoint()
    assert len(store.tried) == 2, "what is written is not written again"


async def test_a_write_that_has_begun_is_finished_in_spite_of_a_cancellation_and_its_guard_counts() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(FullDisk):
        async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
            begun.set()
            await go.wait()
            return Guard(guard.epoch, guard.version + 1)

    publisher: Any = SimpleNamespace(store=Slow(), parking=None, sink=SimpleNamespace(keeps_position=False))
    status = DestinationStatus("shop")
    checkpointer = Checkpointer(Context(settings(), daemon_settings(), status))
    checkpointer.guard = Guard(1, 1)
    checkpointer.begin_run(publisher, Position("server", "b.000001", 4))
    position = Position("server", "b.000001", 400)
    checkpointer.confirm(MessageBatch("", 0, position=position))
    writing = asyncio.create_task(checkpointer.checkpoint())
    await begun.wait()
    writing.cancel()
    await asyncio.sleep(0.01)
    assert not writing.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert (checkpointer.guard, status.stored.position) == (Guard(1, 2), position)


async def test_nothing_is_written_any_more_once_somebody_else_has_the_destination() -> None:
    class Taken(FullDisk):
        async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
            self.tried.append(change)
            raise Fenced("somebody else")

    store: Any = Taken()
    publisher: Any = SimpleNamespace(store=store, parking=None, sink=SimpleNamespace(keeps_position=False))
    checkpointer = Checkpointer(Context(settings(), daemon_settings(), DestinationStatus("shop")))
    checkpointer.begin_run(publisher, Position("server", "b.000001", 4))
    checkpointer.confirm(MessageBatch("", 0, position=Position("server", "b.000001", 400)))
    with pytest.raises(Fenced):
        await checkpointer.checkpoint()
    await checkpointer.checkpoint()
    assert len(store.tried) == 1


async def test_a_confirmed_position_is_stored_within_the_interval_and_without_one_nothing_wakes_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []
    written = asyncio.Event()

    async def counted(event: asyncio.Event, limit: float | None) -> bool:
        waits.append(limit)
        return await set_within(event, limit)

    monkeypatch.setattr("headrace.destination.checkpointer.set_within", counted)

    class Disk(FullDisk):
        async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
            self.tried.append(change)
            written.set()
            return Guard(guard.epoch, guard.version + 1)

    store: Any = Disk()
    publisher: Any = SimpleNamespace(store=store, parking=None, sink=SimpleNamespace(keeps_position=False))
    checkpointer = Checkpointer(
        Context(settings(), daemon_settings(checkpoint_interval=0.01), DestinationStatus("shop"))
    )
    checkpointer.begin_run(publisher, Position("server", "b.000001", 4))
    async with alongside({"checkpoint": checkpointer.run()}):
        for offset in (400, 500):
            checkpointer.confirm(MessageBatch("", 0, position=Position("server", "b.000001", offset)))
            await written.wait()
            written.clear()
            assert store.tried[-1].position.offset == offset
        await asyncio.sleep(0.1)  # ten intervals
    assert waits == [0.01, 0.01]
