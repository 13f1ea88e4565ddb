"""Failed messages: what stands behind what, and how they are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.adapters.sqlite.parking import SqliteParkingStore
from headrace.adapters.sqlite.state import SqliteStore
from headrace.destination.status import DestinationStatus
from headrace.errors import Fenced, SinkRejected
from headrace.lease import Guard
from headrace.model import Unit
from headrace.parking.ordering import Blocks
from headrace.ports.parking import ParkingState
from tests.parked import batch, new_parking, unit

NOTHING = Unit(())
WHOLE = unit()
"""About a table as a whole, as a statement is, or a row without a key."""


@pytest.mark.parametrize(
    ("before", "message", "waits"),
    [
        (unit("1"), unit("1"), True),
        (unit("1"), unit("2"), False),
        (unit("1", "2"), unit("2"), True),
        (unit("2"), unit("1", "2"), True),
        (unit("1"), unit("1", table="shop.other"), True),
        (unit("1"), WHOLE, True),
        (WHOLE, unit("1"), True),
        (WHOLE, WHOLE, True),
        (WHOLE, unit("1", table="shop.other"), False),
        (unit("1"), unit(table="shop.other"), False),
        (Unit(("shop.*",)), unit("1"), True),
        (unit("1"), Unit(("shop.*",)), True),
        (Unit(("crm.*",)), unit("1"), False),
        (Unit(("shop.a", "shop.b")), unit("1", table="shop.b"), True),
        (unit("1", table="shop.b"), Unit(("shop.a", "shop.b")), True),
        (NOTHING, NOTHING, True),
        (NOTHING, unit("1"), False),
        (unit("1"), NOTHING, False),
    ],
)
def test_which_messages_wait_for_which(before: Unit, message: Unit, waits: bool) -> None:
    blocks = Blocks()
    assert not blocks.blocks("shop", message)
    blocks.add("shop", before)
    blocks.add("shop", before)
    assert blocks.blocks("shop", message) is waits
    assert not blocks.blocks("another topic", message)
    blocks.remove("shop", before)
    assert blocks.blocks("shop", message) is waits, "there is one more"
    blocks.remove("shop", before)
    assert not blocks.blocks("shop", message)
    assert not any((blocks._keys, blocks._tables, blocks._whole, +blocks._count)), "nothing is left behind"


async def test_what_is_parked_blocks_its_rows_and_is_stored_as_it_was(parked: SqliteParkingStore, guard: Guard) -> None:
    status = DestinationStatus("shop")
    parking = new_parking(parked, status)
    await parking.open(guard)
    messages = batch(unit("1"), unit("2", "3"), WHOLE)
    messages.keys, messages.tags = [None, b"\xff", None], ["a", "b", ""]
    messages.values[2] = None
    assert not parking.blocked("ex", unit("2"))
    parking.park("ex", messages, 1, "NO_ROUTE", 4)
    assert parking.blocked("ex", unit("3"))
    assert not parking.blocked("ex", unit("1"))
    parking.park("ex", messages, 2, "", 0)
    assert parking.blocked("ex", unit("1")), "a statement waits, and the rows behind it wait for it"
    assert await parked.entries() == []
    assert parking.unstored()
    await parking.flush(guard)
    assert not parking.unstored()
    first, second = await parked.entries()
    assert (first.id, first.scope, first.topic, first.unit) == ("g#2", "ex", "shop", unit("2", "3"))
    assert (first.reason, first.attempts, first.state) == ("NO_ROUTE", 4, ParkingState.PENDING)
    assert first.due_us > first.tried_us > 0
    assert (second.attempts, second.tried_us, second.due_us) == (0, 0, second.created_us)
    assert "waits for" in second.reason
    contents = await parked.contents([first.number, second.number, 99])
    assert contents[first.number].headers == tuple(messages.headers[1])
    assert (contents[first.number].body, contents[first.number].key, contents[first.number].tag) == (
        b"body 2",
        b"\xff",
        "b",
    )
    assert (contents[second.number].body, contents[second.number].commit_time_us) == (None, 5_000_000)
    assert (status.parked.messages, status.parked.bytes) == (2, first.size + second.size)
    assert "2 messages" in status.troubles["parked_messages"]
    assert "-> headrace parked list shop ->" in status.troubles["parked_messages"]


async def test_a_message_that_comes_again_is_parked_once(parked: SqliteParkingStore, guard: Guard) -> None:
    """After a crash between the parking's store and the position everything is read again."""
    parking = new_parking(parked)
    await parking.open(guard)
    for index in (0, 1):
        parking.park("ex", batch(unit("1"), unit("1")), index, "NO_ROUTE", 1)
    await parking.flush(guard)
    before = await parked.entries()
    again = new_parking(parked)
    await again.open(guard)
    assert again.blocked("ex", unit("1"))
    for index in (0, 1, 2):
        again.park("ex", batch(unit("1"), unit("1"), unit("1")), index, "", 0)
    await again.flush(guard)
    entries = await parked.entries()
    assert [entry.id for entry in entries] == ["g#1", "g#2", "g#3"]
    assert [entry.number for entry in entries] == [3, 4, 5]
    for old, new in zip(before, entries[:2], strict=True):
        assert replace(new, number=old.number) == old, "what was known of it stays"
    assert again.waiting() == entries
    await parked.add(guard, [])


async def test_a_replay_keeps_the_order_of_a_row(parked: SqliteParkingStore, guard: Guard) -> None:
    """The first message went out, the second was parked and stored; then both come again, be it after a crash or in
    the same run after a lapse of the lease."""
    first, second = batch(unit("7"), first=1), batch(unit("7"), first=2)
    parking = new_parking(parked)
    await parking.open(guard)
    parking.park("ex", second, 0, "NO_ROUTE", 1)
    await parking.flush(guard)
    again = new_parking(parked)
    await again.open(guard)
    for run in (again, again):
        for message in (first, second):
            assert run.blocked("ex", unit("7"))
            run.park("ex", message, 0, "", 0)
        await run.flush(guard)
        assert [entry.id for entry in await parked.entries()] == ["g#1", "g#2"]
        assert [entry.id for entry in run.waiting()] == ["g#1", "g#2"]


async def test_a_message_that_holds_more_rows_by_now_replaces_the_stored_one(
    parked: SqliteParkingStore, guard: Guard
) -> None:
    """With another rows_per_message the same id stands for other rows."""
    parking = new_parking(parked)
    await parking.open(guard)
    parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await parking.flush(guard)
    more = batch(unit("1", "2"))
    more.values = [b"both rows"]
    parking.park("ex", more, 0, "", 0)
    assert parking.blocked("ex", unit("2"))
    await parking.flush(guard)
    (entry,) = await parked.entries()
    assert entry.unit == unit("1", "2")
    assert (await parked.contents([entry.number]))[entry.number].body == b"both rows"


@pytest.mark.parametrize("seen", [False, True])
async def test_reading_again_keeps_messages_that_are_stored_meanwhile(
    parked: SqliteParkingStore, guard: Guard, seen: bool
) -> None:
    """Exactly once the sink stores messages by itself, while an operator's change is being read."""
    parking = new_parking(parked)
    await parking.open(guard)
    parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    read = parked.entries

    async def slowly() -> Any:
        before = await read()
        await parked.add(guard, parking.unstored())
        after = await read()
        if not seen:
            parking.stored(parking.unstored())
        return after if seen else before

    parked.entries = slowly  # type: ignore[method-assign]
    await parking.reload()
    assert parking.blocked("ex", unit("1"))
    parking.stored(parking.unstored())
    (entry,) = parking.waiting()
    parking.delivered([entry])
    assert not parking.blocked("ex", unit("1"))


async def test_reading_again_keeps_messages_that_are_parked_and_stored_meanwhile(
    parked: SqliteParkingStore, guard: Guard
) -> None:
    parking = new_parking(parked)
    await parking.open(guard)
    read = parked.entries

    async def slowly() -> Any:
        before = await read()
        parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
        await parked.add(guard, parking.unstored())
        parking.stored(parking.unstored())
        return before

    parked.entries = slowly  # type: ignore[method-assign]
    await parking.reload()
    assert parking.blocked("ex", unit("1"))
    assert [entry.id for entry in parking.waiting()] == ["g#1"]


@pytest.mark.parametrize("known", ["stored", "stored, and parked again before"])
async def test_what_takes_the_place_of_a_stored_message_says_under_which_number_it_was(
    parked: SqliteParkingStore, guard: Guard, known: str
) -> None:
    parking = new_parking(parked)
    await parking.open(guard)
    parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    assert [one.replaces for one in parking.unstored()] == [0]
    parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    assert [one.replaces for one in parking.unstored()] == [0], "it was never stored"
    await parking.flush(guard)
    (stored,) = parking.waiting()
    for _ in known.split(","):
        parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    assert [one.replaces for one in parking.unstored()] == [stored.number]


@pytest.mark.parametrize("limit", [{"max_messages": 2}, {"max_bytes": 1024}])
async def test_a_full_parking_stops_the_destination(parked: SqliteParkingStore, guard: Guard, limit: Any) -> None:
    parking = new_parking(parked, **limit)
    await parking.open(guard)
    messages = batch(*[unit(str(n)) for n in range(30)])

    def park_all() -> None:
        for index in range(30):
            parking.park("ex", messages, index, "NO_ROUTE", 1)

    with pytest.raises(SinkRejected, match=r"are parked, and no more may be.*NO_ROUTE.*max_messages"):
        park_all()
    if "max_messages" in limit:
        assert parking.blocked("ex", unit("1"))
        assert not parking.blocked("ex", unit("2"))


async def test_nothing_is_written_under_a_former_epoch(
    store: SqliteStore, parked: SqliteParkingStore, guard: Guard
) -> None:
    parking = new_parking(parked)
    await parking.open(guard)
    parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await store.begin_epoch("shop")
    with pytest.raises(Fenced, match="epoch 2, ours is 1"):
        await parking.flush(guard)
    with pytest.raises(Fenced):
        await parked.remove(guard, [1])
    with pytest.raises(Fenced):
        await parked.update(guard, [])
    assert await parked.entries() == []
