"""What every cluster service promises (cluster.Cluster), tried with each of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.cluster.rebalance import choose, rebalance
from headrace.cluster.view import BALANCE
from headrace.errors import Fenced, LockServiceError
from headrace.ports.lock_service import Check
from headrace.ports.state import VOID, StateChange
from headrace.tasks import alongside
from tests.positions import POSITION


async def nothing_known() -> int:
    return 0


async def until(condition: Any, limit: float = 20) -> None:
    async with asyncio.timeout(limit):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_members_are_seen_as_long_as_they_live(make_cluster: Any) -> None:
    one, two = await make_cluster("one"), await make_cluster("two")
    assert sorted((await one.view()).members) == ["one", "two"]
    assert (await one.view()).members["two"]["address"] == "two:9180"
    await two.close()
    await two.close()
    assert sorted((await one.view()).members) == ["one"]


async def test_who_runs_a_destination_and_who_waits_is_seen(make_cluster: Any) -> None:
    one, two = await make_cluster("one"), await make_cluster("two")
    held, waiting = one.lock("shop"), two.lock("shop")
    assert await held.try_acquire(nothing_known)
    async with alongside({"wait": waiting.acquire(nothing_known)}):

        async def seen() -> bool:
            assignment = (await one.view()).assignments["shop"]
            return (assignment.holder, assignment.epoch, assignment.ready) == (
                "one",
                held.term.epoch,
                frozenset({"two"}),
            )

        await until(seen)
        await waiting.set_ready(False)

        async def not_ready() -> bool:
            assignment = (await one.view()).assignments["shop"]
            return (assignment.waiting, assignment.ready) == (("two",), frozenset())

        await until(not_ready)


async def test_a_destination_goes_to_the_daemon_that_it_is_asked_for(make_cluster: Any) -> None:
    one, two = await make_cluster("one"), await make_cluster("two")
    held, waiting = one.lock("shop"), two.lock("shop")
    assert await held.try_acquire(nothing_known)
    async with alongside({"wait": waiting.acquire(nothing_known), "asked": held.hand_over_asked()}) as tasks:
        await asyncio.sleep(0.1)
        assert not tasks["asked"].done()
        await one.ask_to_move("shop", "two", "somebody")
        async with asyncio.timeout(20):
            assert "two" in await tasks["asked"]
            await held.release()
            await tasks["wait"]
        assignment = (await one.view()).assignments["shop"]
        assert (assignment.holder, assignment.move_to, assignment.by_hand) == ("two", "", True)


async def test_the_balance_does_not_replace_what_an_operator_asks_for(make_cluster: Any) -> None:
    one = await make_cluster("one")
    held = one.lock("shop")
    assert await held.try_acquire(nothing_known)
    await one.ask_to_move("shop", "two", "the balance")
    await one.ask_to_move("shop", "three", "somebody")
    await one.ask_to_move("shop", "two", BALANCE)
    assert (await one.view()).assignments["shop"].move_to == "three"


async def test_a_drained_daemon_takes_no_lock_until_it_may_again(make_cluster: Any) -> None:
    one, two = await make_cluster("one"), await make_cluster("two")
    lock = two.lock("shop")
    for _ in range(2):
        await one.drain("two", "somebody")

    async def declined() -> bool:
        return bool(lock.declined)

    await until(declined)
    assert not await lock.try_acquire(nothing_known)
    assert (await one.view()).drained == {"two"}
    for _ in range(2):
        await one.undrain("two")

    async def taken() -> bool:
        return bool(await lock.try_acquire(nothing_known))

    await until(taken)


async def test_a_write_under_a_lock_that_somebody_else_has_is_refused(make_cluster: Any) -> None:
    one, two = await make_cluster("one"), await make_cluster("two")
    held, next_ = one.lock("shop"), two.lock("shop")
    assert await held.try_acquire(nothing_known)
    await one.store.open()
    await two.store.open()
    guard = await one.store.begin_epoch("shop", term=held.term)
    guard = await one.store.commit("shop", guard, StateChange(POSITION, ({"kind": "x"},)))
    await held.release()
    async with asyncio.timeout(20):
        await next_.acquire(nothing_known)
    newer = await two.store.begin_epoch("shop", term=next_.term)
    with pytest.raises(Fenced):
        await one.store.commit("shop", guard, StateChange(POSITION))
    stored = await two.store.load("shop")
    assert (stored.position, stored.epoch) == (POSITION, newer.epoch)
    assert await two.store.schema_entries("shop") == [{"kind": "x"}]
    newer = await two.store.commit("shop", newer, StateChange(POSITION, actor="operator"))
    assert (await two.store.history("shop"))[0].actor == "operator"
    for number in range(2):  # what is void is gone with the write that makes it void
        change = StateChange(POSITION, ({"n": number}, {**VOID, "at": "x"}, {"m": number}))
        newer = await two.store.commit("shop", newer, change)
        newer = await two.store.commit("shop", newer, StateChange(POSITION, ({"later": number},)))
        entries = [{**VOID, "at": "x"}, {"m": number}, {"later": number}]
        assert await one.store.schema_entries("shop") == await two.store.schema_entries("shop") == entries


async def test_a_daemon_that_runs_more_than_its_share_hands_some_over(make_cluster: Any) -> None:
    one, two = await make_cluster("one"), await make_cluster("two")
    locks = {name: one.lock(name) for name in ("a", "b", "c", "d")}
    others = {name: two.lock(name) for name in locks}
    for lock in locks.values():
        assert await lock.try_acquire(nothing_known)
    async with alongside({name: lock.acquire(nothing_known) for name, lock in others.items()}):

        async def all_wait() -> bool:
            return all(assignment.ready for assignment in (await one.view()).assignments.values())

        await until(all_wait)
        view = await one.view()
        later = max(assignment.since_us for assignment in view.assignments.values()) + 60_000_000
        chosen = choose(view, "one", later)
        assert chosen is not None
        assert chosen[1] == "two"
        await one.ask_to_move(*chosen, "the balance")
        async with asyncio.timeout(20):
            assert await locks[chosen[0]].hand_over_asked()


def asked_of(cluster: Any) -> asyncio.Queue[None]:
    """Returns what gets an item each time that somebody asks what runs where."""
    asked, view = asyncio.Queue[None](), cluster.view

    async def counted() -> Any:
        asked.put_nowait(None)
        return await view()

    cluster.view = counted
    return asked


async def test_rebalancing_outlives_a_service_that_does_not_answer(make_cluster: Any) -> None:
    one = await make_cluster("one")
    await one.close()
    for name in ("a", "b"):
        one.session.proofs.hold(name, ())
    asked = asked_of(one)
    async with asyncio.timeout(20), alongside({"balance": rebalance(one, "one", interval=0.02)}):
        for _ in range(3):
            await asked.get()


async def test_a_daemon_that_runs_one_destination_does_not_ask_who_runs_what(make_cluster: Any) -> None:
    one = await make_cluster("one")
    asked = asked_of(one)
    one.session.proofs.hold("a", ())
    async with asyncio.timeout(20), alongside({"balance": rebalance(one, "one", interval=0.02)}):
        await asyncio.sleep(0.2)  # ten intervals
        assert asked.empty()
        one.session.proofs.hold("b", ())
        await asked.get()


async def test_a_closed_service_refuses_reads_and_writes(make_cluster: Any) -> None:
    one = await make_cluster("one")
    service = one.lock("shop")._session.service
    await one.close()
    for call in (
        lambda: service.get("/x", 1),
        lambda: service.children("/x", 1),
        lambda: service.multi([Check("/x", 0)], 1),
        lambda: service.prove([Check("/x", 0)], 1),
    ):
        with pytest.raises(LockServiceError):
            await call()
