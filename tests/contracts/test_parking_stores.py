"""What every parking store promises (ports.parking), tried with each of them that the daemon writes to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import Fenced
from headrace.lease import Guard
from headrace.model import Unit
from headrace.ports.parking import ParkingState
from tests.parked import batch, new_parking, unit

EVERY = bytes(range(256))


async def parked(store: Any, guard: Guard, *units: Unit) -> Any:
    """Parks a message a unit, and stores them."""
    lot = new_parking(store)
    await lot.open(guard)
    messages = batch(*units)
    for index in range(len(units)):
        lot.park("shop", messages, index, "refused", 3)
    await lot.flush(guard)
    return lot


async def test_messages_come_back_as_they_were_and_in_their_order(make_parking: Any) -> None:
    store = await make_parking()
    one = await make_parking.epoch()
    lot = new_parking(store)
    await lot.open(one)
    messages = batch(unit("1", "家庭"), Unit(("shop.*",)), Unit(()), topic="路由")
    messages.values = [EVERY * 3, None, "%s' 家庭保洁\\".encode()]
    messages.keys, messages.tags = [EVERY, None, b""], ["标签", "", "x"]
    messages.headers[0].append(("名", EVERY))
    for index in range(3):
        lot.park("ex", messages, index, "returned: NO_ROUTE 'x'", 4)
    await lot.flush(one)
    entries = await (await make_parking()).entries()
    assert entries == lot.waiting()
    assert [entry.unit for entry in entries] == messages.units
    found = await store.contents([entry.number for entry in entries])
    contents = [found[entry.number] for entry in entries]
    assert [content.body for content in contents] == messages.values
    assert [content.key for content in contents] == messages.keys
    assert [list(content.headers) for content in contents] == messages.headers
    assert [content.tag for content in contents] == messages.tags


async def test_what_is_stored_again_replaces_itself(make_parking: Any) -> None:
    store = await make_parking()
    one = await make_parking.epoch()
    for _ in range(2):
        lot = new_parking(store)
        await lot.open(one)
        lot._numbers.clear()  # as after a crash between the two writes
        lot.park("shop", batch(unit("1")), 0, "refused", 1)
        await lot.flush(one)
    assert len(await store.entries()) == 1


async def test_nothing_is_written_under_a_former_epoch(make_parking: Any) -> None:
    store = await make_parking()
    one = await make_parking.epoch()
    lot = await parked(store, one, unit("1"))
    await (await make_parking()).begin(await make_parking.epoch())
    lot.park("shop", batch(unit("2"), first=2), 0, "refused", 1)
    with pytest.raises(Fenced):
        await lot.flush(one)
    with pytest.raises(Fenced):
        await store.remove(one, [1])
    with pytest.raises(Fenced):
        await store.update(one, lot.waiting())
    assert len(await store.entries()) == 1


async def test_an_operators_changes_are_counted_and_the_daemons_are_not(make_parking: Any) -> None:
    store = await make_parking()
    one = await make_parking.epoch()
    await parked(store, one, unit("1"), unit("2"))
    before, entries = await store.changes(), await store.entries()
    tried = replace(entries[0], state=ParkingState.NEEDS_OPERATOR, attempts=9, reason="still")
    assert await store.update(one, [tried, replace(tried, number=99)]) == 1
    assert await store.changes() == before
    assert await store.update(None, [replace(tried, state=ParkingState.PENDING)]) == 1
    assert await store.remove(None, [entries[1].number]) == 1
    assert await store.changes() > before
    assert [entry.number for entry in await store.entries()] == [entries[0].number]
    assert await store.contents([entries[1].number]) == {}
    assert await store.remove(one, [entries[0].number]) == 1


async def test_it_names_what_prevents_it(make_parking: Any) -> None:
    store = await make_parking()
    assert await store.problems() == []
    await store.open()
    await store.close()
    await store.close()
