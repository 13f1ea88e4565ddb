"""What a checkpoint writes when an earlier one failed: nothing of the schema history is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.destination.run import Stream
from headrace.destination.status import DestinationStatus
from headrace.errors import StateStoreError
from headrace.model import Position
from headrace.ports.state import Guard, StateChange

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
    stream: Any = Stream.__new__(Stream)
    store = FullDisk()
    stream._delivery = SimpleNamespace(store=store, parking=None, sink=SimpleNamespace(keeps_position=False))
    stream._name, stream.guard = "shop", Guard(1, 1)
    stream._status, stream._saved = DestinationStatus("shop"), None
    stream._confirmed, stream._entries = Position("server", "b.000001", 400, last_pos=2), [ENTRY]
    with pytest.raises(StateStoreError):
        await stream._checkpoint()
    await stream._checkpoint()
    assert [change.schema_entries for change in store.tried] == [(ENTRY,), (ENTRY,)]
    await stream._checkpoint()
    assert len(store.tried) == 2, "what is written is not written again"
