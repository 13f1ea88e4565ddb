"""Failed messages: what stands behind what, how they are kept, and how they are sent again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from headrace.errors import Fenced, LeaseLapsed, SinkRejected
from headrace.failed.compensation import Compensation
from headrace.failed.parking import TROUBLE, Parking
from headrace.failed.sqlite_store import SqliteFailedStore
from headrace.lease import Guard
from headrace.model import Unit
from headrace.ordering import Blocks
from headrace.parked import FailedState
from headrace.settings import FailedSettings
from headrace.state.sqlite import SqliteStore
from headrace.status import DestinationStatus
from tests.failed import RefusingSink, batch, parking, unit, until

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
def test_what_waits_behind_what(before: Unit, message: Unit, waits: bool) -> None:
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
    assert len(blocks) == 0


@pytest.fixture
async def failed(store: SqliteStore) -> SqliteFailedStore:
    return SqliteFailedStore(store, "shop")


@pytest.fixture
async def guard(store: SqliteStore) -> Guard:
    return await store.begin_epoch("shop")


# -- setting aside --------------------------------------------------------------------------------------------------


async def test_what_is_set_aside_blocks_its_rows_and_is_stored_as_it_was(
    failed: SqliteFailedStore, guard: Guard
) -> None:
    status = DestinationStatus("shop")
    desk = parking(failed, status)
    await desk.open(guard)
    messages = batch(unit("1"), unit("2", "3"), WHOLE)
    messages.keys, messages.tags = [None, b"\xff", None], ["a", "b", ""]
    messages.values[2] = None
    assert not desk.blocked("ex", unit("2"))
    desk.park("ex", messages, 1, "NO_ROUTE", 4)
    assert desk.blocked("ex", unit("3"))
    assert not desk.blocked("ex", unit("1"))
    desk.park("ex", messages, 2, "", 0)
    assert desk.blocked("ex", unit("1")), "a statement waits, and the rows behind it wait for it"
    assert await failed.entries() == []
    assert desk.unstored()
    await desk.flush(guard)
    assert not desk.unstored()
    first, second = await failed.entries()
    assert (first.id, first.scope, first.topic, first.unit) == ("g#2", "ex", "shop", unit("2", "3"))
    assert (first.reason, first.attempts, first.state) == ("NO_ROUTE", 4, FailedState.PENDING)
    assert first.due_us > first.tried_us > 0
    assert (second.attempts, second.tried_us, second.due_us) == (0, 0, second.created_us)
    assert "behind" in second.reason
    contents = await failed.contents([first.number, second.number, 99])
    assert contents[first.number].headers == tuple(messages.headers[1])
    assert (contents[first.number].body, contents[first.number].key, contents[first.number].tag) == (
        b"body 2",
        b"\xff",
        "b",
    )
    assert (contents[second.number].body, contents[second.number].commit_time_us) == (None, 5_000_000)
    assert (status.failed_messages, status.failed_bytes) == (2, first.size + second.size)
    assert "2 messages" in status.troubles[TROUBLE]


async def test_a_message_that_comes_again_is_set_aside_once(failed: SqliteFailedStore, guard: Guard) -> None:
    """After a crash between the desk's store and the position everything is read again."""
    desk = parking(failed)
    await desk.open(guard)
    for index in (0, 1):
        desk.park("ex", batch(unit("1"), unit("1")), index, "NO_ROUTE", 1)
    await desk.flush(guard)
    before = await failed.entries()
    again = parking(failed)
    await again.open(guard)
    assert again.blocked("ex", unit("1"))
    for index in (0, 1, 2):
        again.park("ex", batch(unit("1"), unit("1"), unit("1")), index, "", 0)
    await again.flush(guard)
    entries = await failed.entries()
    assert [entry.id for entry in entries] == ["g#1", "g#2", "g#3"]
    assert [entry.number for entry in entries] == [3, 4, 5]
    for old, new in zip(before, entries[:2], strict=True):
        assert replace(new, number=old.number) == old, "what was known of it stays"
    assert again.waiting() == entries
    await failed.add(guard, [])


async def test_a_replay_keeps_the_order_of_a_row(failed: SqliteFailedStore, guard: Guard) -> None:
    """The first message went out, the second was set aside and stored; then both come again, be it after a crash or in
    the same run after a lapse of the lease."""
    first, second = batch(unit("7"), first=1), batch(unit("7"), first=2)
    desk = parking(failed)
    await desk.open(guard)
    desk.park("ex", second, 0, "NO_ROUTE", 1)
    await desk.flush(guard)
    again = parking(failed)
    await again.open(guard)
    for run in (again, again):
        for message in (first, second):
            assert run.blocked("ex", unit("7"))
            run.park("ex", message, 0, "", 0)
        await run.flush(guard)
        assert [entry.id for entry in await failed.entries()] == ["g#1", "g#2"]
        assert [entry.id for entry in run.waiting()] == ["g#1", "g#2"]


async def test_a_message_that_holds_more_rows_by_now_replaces_the_stored_one(
    failed: SqliteFailedStore, guard: Guard
) -> None:
    """With another rows_per_message the same id stands for other rows."""
    desk = parking(failed)
    await desk.open(guard)
    desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await desk.flush(guard)
    more = batch(unit("1", "2"))
    more.values = [b"both rows"]
    desk.park("ex", more, 0, "", 0)
    assert desk.blocked("ex", unit("2"))
    await desk.flush(guard)
    (entry,) = await failed.entries()
    assert entry.unit == unit("1", "2")
    assert (await failed.contents([entry.number]))[entry.number].body == b"both rows"


@pytest.mark.parametrize("seen", [False, True])
async def test_a_reading_anew_forgets_nothing_that_is_stored_meanwhile(
    failed: SqliteFailedStore, guard: Guard, seen: bool
) -> None:
    """Exactly once the sink stores messages by itself, while an operator's change is being read."""
    desk = parking(failed)
    await desk.open(guard)
    desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    read = failed.entries

    async def slowly() -> Any:
        before = await read()
        await failed.add(guard, desk.unstored())
        after = await read()
        if not seen:
            desk.stored(desk.unstored())
        return after if seen else before

    failed.entries = slowly  # type: ignore[method-assign]
    await desk.reload()
    assert desk.blocked("ex", unit("1"))
    desk.stored(desk.unstored())
    (entry,) = desk.waiting()
    desk.delivered([entry])
    assert not desk.blocked("ex", unit("1"))


async def test_a_reading_anew_forgets_nothing_that_is_set_aside_and_stored_meanwhile(
    failed: SqliteFailedStore, guard: Guard
) -> None:
    desk = parking(failed)
    await desk.open(guard)
    read = failed.entries

    async def slowly() -> Any:
        before = await read()
        desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
        await failed.add(guard, desk.unstored())
        desk.stored(desk.unstored())
        return before

    failed.entries = slowly  # type: ignore[method-assign]
    await desk.reload()
    assert desk.blocked("ex", unit("1"))
    assert [entry.id for entry in desk.waiting()] == ["g#1"]


@pytest.mark.parametrize("known", ["stored", "stored, and set aside again before"])
async def test_what_takes_the_place_of_a_stored_message_says_under_which_number_it_was(
    failed: SqliteFailedStore, guard: Guard, known: str
) -> None:
    desk = parking(failed)
    await desk.open(guard)
    desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    assert [one.replaces for one in desk.unstored()] == [0]
    desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    assert [one.replaces for one in desk.unstored()] == [0], "it was never stored"
    await desk.flush(guard)
    (stored,) = desk.waiting()
    for _ in known.split(","):
        desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    assert [one.replaces for one in desk.unstored()] == [stored.number]


@pytest.mark.parametrize("limit", [{"max_messages": 2}, {"max_bytes": 1024}])
async def test_a_full_desk_stops_the_destination(failed: SqliteFailedStore, guard: Guard, limit: Any) -> None:
    desk = parking(failed, **limit)
    await desk.open(guard)
    messages = batch(*[unit(str(n)) for n in range(30)])

    def park_all() -> None:
        for index in range(30):
            desk.park("ex", messages, index, "NO_ROUTE", 1)

    with pytest.raises(SinkRejected, match=r"are set aside, and no more may be.*NO_ROUTE.*max_messages"):
        park_all()
    if "max_messages" in limit:
        assert desk.blocked("ex", unit("1"))
        assert not desk.blocked("ex", unit("2"))


async def test_nothing_is_written_under_a_former_epoch(
    store: SqliteStore, failed: SqliteFailedStore, guard: Guard
) -> None:
    desk = parking(failed)
    await desk.open(guard)
    desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await store.begin_epoch("shop")
    with pytest.raises(Fenced, match="epoch 2, ours is 1"):
        await desk.flush(guard)
    with pytest.raises(Fenced):
        await failed.remove(guard, [1])
    with pytest.raises(Fenced):
        await failed.update(guard, [])
    assert await failed.entries() == []


# -- sending again --------------------------------------------------------------------------------------------------


class Loop:
    """A compensation loop under way, with its sink and desk."""

    def __init__(self, desk: Parking, guard: Guard, **settings: Any) -> None:
        made = FailedSettings.model_validate({"delay": 0.02, "max_delay": 0.05, **settings})
        self.sink, self.desk, self.guard = RefusingSink(), desk, guard
        log = structlog.get_logger()
        self._loop = Compensation(made, desk, lambda: self.sink, lambda: self.guard, log)
        self.task = asyncio.create_task(self._loop.run())

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def loop(failed: SqliteFailedStore, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Loop]:
    monkeypatch.setattr("headrace.failed.compensation._LOOK", 0.01)
    desk = parking(failed, attempts=3)
    await desk.open(guard)
    made = Loop(desk, guard, attempts=3)
    yield made
    await made.end()


def bodies(*numbers: int) -> list[bytes]:
    return [b"body %d" % n for n in numbers]


async def test_messages_are_delivered_in_the_order_of_their_rows(loop: Loop, failed: SqliteFailedStore) -> None:
    messages = batch(unit("1"), unit("2"), unit("1"), unit("1", "2"), unit("2"), unit("3"))
    for index, attempts in enumerate([2, 2, 0, 0, 0, 2]):
        loop.desk.park("ex", messages, index, "NO_ROUTE" if attempts else "", attempts)
    await loop.desk.flush(loop.guard)
    await until(lambda: not loop.desk.waiting())
    assert sorted(loop.sink.sent, key=str) == bodies(*range(1, 7))
    for rows in ([1, 3, 4], [2, 4, 5]):
        assert [body for body in loop.sink.sent if body in bodies(*rows)] == bodies(*rows)
    assert await failed.entries() == []
    assert not loop.desk.blocked("ex", unit("1"))


async def test_one_that_is_refused_holds_back_only_its_own_row(loop: Loop, failed: SqliteFailedStore) -> None:
    loop.sink.refuses = {b"body 1"}
    messages = batch(unit("1"), unit("2"), unit("1"), unit("2"))
    for index in range(4):
        loop.desk.park("ex", messages, index, "NO_ROUTE", 1)
    await loop.desk.flush(loop.guard)
    await until(lambda: loop.sink.sent == bodies(2, 4))
    await until(lambda: loop.desk.waiting()[0].state is FailedState.MANUAL)
    first, second = await failed.entries()
    assert (first.attempts, first.state, first.reason) == (3, FailedState.MANUAL, "NO_ROUTE")
    assert first.tried_us > first.created_us
    assert (second.id, second.state) == ("g#3", FailedState.PENDING)
    assert loop.sink.sent == bodies(2, 4)


async def test_what_people_have_mended_goes_on_in_order(loop: Loop, failed: SqliteFailedStore) -> None:
    loop.sink.refuses = {b"body 1"}
    for index in range(2):
        loop.desk.park("ex", batch(unit("1"), unit("1")), index, "NO_ROUTE", 2)
    await loop.desk.flush(loop.guard)
    await until(lambda: loop.desk.waiting()[0].state is FailedState.MANUAL)
    loop.sink.refuses = set()
    first, _ = await failed.entries()
    assert await failed.update(None, [_pending(first)]) == 1
    await until(lambda: loop.sink.sent == bodies(1, 2))


async def test_what_people_have_discarded_frees_those_behind_it(loop: Loop, failed: SqliteFailedStore) -> None:
    loop.sink.refuses = {b"body 1"}
    for index in range(2):
        loop.desk.park("ex", batch(unit("1"), unit("1")), index, "NO_ROUTE", 2)
    await loop.desk.flush(loop.guard)
    await until(lambda: loop.desk.waiting()[0].state is FailedState.MANUAL)
    assert await failed.remove(None, [1, 77]) == 1
    await until(lambda: loop.sink.sent == bodies(2))
    await until(lambda: not loop.desk.blocked("ex", unit("1")))


async def test_while_the_lease_has_lapsed_everything_stays(loop: Loop, failed: SqliteFailedStore) -> None:
    loop.sink.error = LeaseLapsed("not proved")
    loop.desk.park("ex", batch(unit("1")), 0, "NO_ROUTE", 1)
    await loop.desk.flush(loop.guard)
    await until(lambda: loop.sink.most > 0)
    assert [entry.attempts for entry in await failed.entries()] == [1]
    loop.sink.error = None
    await until(lambda: loop.sink.sent == bodies(1))


async def test_somebody_with_a_later_epoch_ends_it(loop: Loop, store: SqliteStore) -> None:
    loop.desk.park("ex", batch(unit("1")), 0, "", 0)
    await loop.desk.flush(loop.guard)
    await store.begin_epoch("shop")
    loop.desk.changed.set()
    with pytest.raises(Fenced):
        async with asyncio.timeout(5):
            await loop.task


async def test_many_rows_go_at_once_and_one_row_never_twice_at_once(loop: Loop) -> None:
    messages = batch(*[unit(str(n % 60)) for n in range(240)])
    for index in range(240):
        loop.desk.park("ex", messages, index, "", 0)
    await loop.desk.flush(loop.guard)
    await until(lambda: len(loop.sink.sent) == 240)
    assert loop.sink.most > 1
    for key in range(60):
        assert [n for n in map(_number, loop.sink.sent) if n % 60 == key] == list(range(key, 240, 60))


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_refused_meanwhile_each_row_keeps_its_order(
    loop: Loop, failed: SqliteFailedStore, seed: int
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
            loop.desk.park("ex", messages, index, "NO_ROUTE", dice.choice([0, 1]))
        await loop.desk.flush(loop.guard)
        loop.sink.refuses = {body for body in bodies(*expected) if dice.random() < 0.3}
        await asyncio.sleep(dice.random() * 0.03)
    loop.sink.refuses = set()

    async def mend() -> bool:
        manual = [entry for entry in await failed.entries() if entry.state is FailedState.MANUAL]
        await failed.update(None, [_pending(entry) for entry in manual])
        return not loop.desk.waiting()

    async with asyncio.timeout(20):
        while not await mend():  # noqa: ASYNC110 (the store has no event)
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
    return replace(entry, state=FailedState.PENDING, attempts=0, due_us=0)


def _number(body: bytes | None) -> int:
    assert body is not None
    return int(body.split()[1]) - 1
