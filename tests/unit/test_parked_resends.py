"""Failed messages are sent again: in the order of their rows, as people decide, and under the lease."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from headrace.adapters.sqlite.parking import SqliteParkingStore
from headrace.adapters.sqlite.state import SqliteStore
from headrace.errors import Fenced, LeaseLapsed
from headrace.lease import Guard
from headrace.model import Unit
from headrace.parking.ordering import Blocks
from headrace.parking.parking import OrderedParking
from headrace.parking.redelivery import Redelivery
from headrace.ports.parking import ParkingState
from headrace.settings.adapters import ParkingSettings
from tests.parked import RefusingSink, batch, new_parking, unit, until


class Loop:
    """A redelivery loop under way, with its sink and parking."""

    def __init__(self, parking: OrderedParking, guard: Guard, **settings: Any) -> None:
        made = ParkingSettings.model_validate({"delay": 0.02, "max_delay": 0.05, **settings})
        self.sink, self.parking, self.guard = RefusingSink(), parking, guard
        log = structlog.get_logger()
        self._loop = Redelivery(made, parking, lambda: self.sink, lambda: self.guard, log)
        self.task = asyncio.create_task(self._loop.run())

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def loop(parked: SqliteParkingStore, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Loop]:
    monkeypatch.setattr("headrace.parking.redelivery._POLL", 0.01)
    parking = new_parking(parked, attempts=3)
    await parking.open(guard)
    made = Loop(parking, guard, attempts=3)
    yield made
    await made.end()


def bodies(*numbers: int) -> list[bytes]:
    return [b"body %d" % n for n in numbers]


async def test_messages_are_delivered_in_the_order_of_their_rows(loop: Loop, parked: SqliteParkingStore) -> None:
    messages = batch(unit("1"), unit("2"), unit("1"), unit("1", "2"), unit("2"), unit("3"))
    for index, attempts in enumerate([2, 2, 0, 0, 0, 2]):
        loop.parking.park("ex", messages, index, "NO_ROUTE" if attempts else "", attempts)
    await loop.parking.flush(loop.guard)
    await until(lambda: not loop.parking.waiting())
    assert sorted(loop.sink.sent, key=str) == bodies(*range(1, 7))
    for rows in ([1, 3, 4], [2, 4, 5]):
        assert [body for body in loop.sink.sent if body in bodies(*rows)] == bodies(*rows)
    assert await parked.entries() == []
    assert not loop.parking.blocked("ex", unit("1"))


async def test_one_that_is_refused_holds_back_only_its_own_row(loop: Loop, parked: SqliteParkingStore) -> None:
    loop.sink.refuses = {b"body 1"}
    messages = batch(unit("1"), unit("2"), unit("1"), unit("2"))
    for index in range(4):
        loop.parking.park("ex", messages, index, "NO_ROUTE", 1)
    await loop.parking.flush(loop.guard)
    await until(lambda: loop.sink.sent == bodies(2, 4))
    await until(lambda: loop.parking.waiting()[0].state is ParkingState.NEEDS_OPERATOR)
    first, second = await parked.entries()
    assert (first.attempts, first.state, first.reason) == (3, ParkingState.NEEDS_OPERATOR, "NO_ROUTE")
    assert first.tried_us > first.created_us
    assert (second.id, second.state) == ("g#3", ParkingState.PENDING)
    assert loop.sink.sent == bodies(2, 4)


async def test_what_an_operator_has_repaired_continues_in_order(loop: Loop, parked: SqliteParkingStore) -> None:
    loop.sink.refuses = {b"body 1"}
    for index in range(2):
        loop.parking.park("ex", batch(unit("1"), unit("1")), index, "NO_ROUTE", 2)
    await loop.parking.flush(loop.guard)
    await until(lambda: loop.parking.waiting()[0].state is ParkingState.NEEDS_OPERATOR)
    loop.sink.refuses = set()
    first, _ = await parked.entries()
    assert await parked.update(None, [_pending(first)]) == 1
    await until(lambda: loop.sink.sent == bodies(1, 2))


async def test_what_an_operator_has_discarded_frees_those_after_it(loop: Loop, parked: SqliteParkingStore) -> None:
    loop.sink.refuses = {b"body 1"}
    for index in range(2):
        loop.parking.park("ex", batch(unit("1"), unit("1")), index, "NO_ROUTE", 2)
    await loop.parking.flush(loop.guard)
    await until(lambda: loop.parking.waiting()[0].state is ParkingState.NEEDS_OPERATOR)
    assert await parked.remove(None, [1, 77]) == 1
    await until(lambda: loop.sink.sent == bodies(2))
    await until(lambda: not loop.parking.blocked("ex", unit("1")))


async def test_while_the_lease_has_lapsed_everything_stays(loop: Loop, parked: SqliteParkingStore) -> None:
    loop.sink.error = LeaseLapsed("not proved")
    loop.parking.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await loop.parking.flush(loop.guard)
    await until(lambda: loop.sink.most > 0)
    assert [entry.attempts for entry in await parked.entries()] == [1]
    loop.sink.error = None
    await until(lambda: loop.sink.sent == bodies(1))


async def test_somebody_with_a_later_epoch_ends_it(loop: Loop, store: SqliteStore) -> None:
    loop.parking.park("ex", batch(unit("1")), 0, "", 0)
    await loop.parking.flush(loop.guard)
    await store.begin_epoch("shop")
    loop.parking.changed.set()
    with pytest.raises(Fenced):
        async with asyncio.timeout(5):
            await loop.task


async def test_many_rows_go_at_once_and_one_row_never_twice_at_once(loop: Loop) -> None:
    messages = batch(*[unit(str(n % 60)) for n in range(240)])
    for index in range(240):
        loop.parking.park("ex", messages, index, "", 0)
    await loop.parking.flush(loop.guard)
    await until(lambda: len(loop.sink.sent) == 240)
    assert loop.sink.most > 1
    for key in range(60):
        assert [n for n in map(_number, loop.sink.sent) if n % 60 == key] == list(range(key, 240, 60))


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_refused_meanwhile_each_row_keeps_its_order(
    loop: Loop, parked: SqliteParkingStore, seed: int
) -> None:
    """Messages come in while others are sent again, some refused for a while, some for good until people look."""
    dice, number = random.Random(seed), 0
    expected: dict[int, Unit] = {}
    for _ in range(12):
        units = [unit(*dice.sample("abcd", dice.choice([0, 1, 1, 1, 2]))) for _ in range(dice.randrange(1, 12))]
        messages = batch(*units, first=number + 1)
        for index, about in enumerate(units):
            number += 1
            expected[number] = about
            loop.parking.park("ex", messages, index, "NO_ROUTE", dice.choice([0, 1]))
        await loop.parking.flush(loop.guard)
        loop.sink.refuses = {body for body in bodies(*expected) if dice.random() < 0.3}
        await asyncio.sleep(dice.random() * 0.03)
    loop.sink.refuses = set()

    async def fix() -> bool:
        manual = [entry for entry in await parked.entries() if entry.state is ParkingState.NEEDS_OPERATOR]
        await parked.update(None, [_pending(entry) for entry in manual])
        return not loop.parking.waiting()

    async with asyncio.timeout(20):
        while not await fix():  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.01)
    sent = [_number(body) + 1 for body in loop.sink.sent]
    assert sorted(sent) == sorted(expected)
    for later, about in expected.items():
        for earlier in range(1, later):
            blocks = Blocks()
            blocks.add("ex", expected[earlier])
            if blocks.blocks("ex", about):
                assert sent.index(earlier) < sent.index(later), (seed, earlier, later)


def _pending(entry: Any) -> Any:
    return replace(entry, state=ParkingState.PENDING, attempts=0, due_us=0)


def _number(body: bytes | None) -> int:
    assert body is not None
    return int(body.split()[1]) - 1
