"""Who waits for a shared lock: the line, who is preferred, and who may take nothing."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from devstack.servers.zookeeper import four_letters
from headrace.cluster.lock import SharedLock
from headrace.cluster.session import Session
from tests.lock_bench import Keeper, nothing_known, until, within
from tests.proxy import Proxy

pytestmark = pytest.mark.server


def _watchers(zoo: Keeper, path: str) -> set[int]:
    """Sessions that the server will tell of a change of that node."""
    lines = four_letters(zoo.server.host, zoo.server.port, "wchp").splitlines()
    start = lines.index(path) + 1 if path in lines else len(lines)
    return {
        int(queue.strip(), 16) for queue in itertools.takewhile(lambda queue: queue.startswith("\t"), lines[start:])
    }


async def test_a_release_wakes_one_of_ten(zoo: Keeper) -> None:
    holder = await zoo.lock("holder")
    await holder.acquire(nothing_known)
    locks = [await zoo.lock(f"n{number}") for number in range(10)]
    tasks = []
    for number, lock in enumerate(locks):
        tasks.append(asyncio.create_task(lock.acquire(nothing_known)))
        path = zoo.node(f"destinations/shop/cluster/n{number}")
        await until(lambda path=path: zoo.operator.exists(path) is not None)
    running = zoo.node("destinations/shop/running")
    await until(lambda: len(_watchers(zoo, running)) == 2)  # the holder itself, and the first in line
    await asyncio.sleep(0.5)
    assert _watchers(zoo, running) == {holder._session.session_id, locks[0]._session.session_id}
    assert sum(lock._session.counts.attempts for lock in locks) == 0
    await holder.release()
    await within(5, tasks[0])
    await asyncio.sleep(1.5)
    assert sum(lock._session.counts.attempts for lock in locks) == 1
    # And so on down the line, in the order in which they came.
    for number in range(1, 4):
        await locks[number - 1].release()
        await within(5, tasks[number])
    assert sum(lock._session.counts.attempts for lock in locks) == 4
    for task in tasks[4:]:
        task.cancel()
    await asyncio.gather(*tasks[4:], return_exceptions=True)


async def test_a_frozen_first_in_the_queue_holds_nobody_up_for_long(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        holder = await keeper.lock("holder")
        frozen = await keeper.lock("frozen", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        second = await keeper.lock("second")
        await holder.acquire(nothing_known)
        first_task = asyncio.create_task(frozen.acquire(nothing_known))
        await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/cluster/frozen")) is not None)
        second_task = asyncio.create_task(second.acquire(nothing_known))
        await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/cluster/second")) is not None)
        await asyncio.sleep(0.2)
        proxy.freeze()
        await holder.release()
        await within(5, second_task)
        proxy.thaw()
        await asyncio.sleep(0.5)
        assert not first_task.done()
        first_task.cancel()
        await asyncio.gather(first_task, return_exceptions=True)


async def test_daemons_that_are_not_ready_come_after_those_that_are(keeper: Keeper) -> None:
    holder, poor, fit = await keeper.lock("holder"), await keeper.lock("poor"), await keeper.lock("fit")
    await holder.acquire(nothing_known)
    await poor.set_ready(False)
    poor_task = asyncio.create_task(poor.acquire(nothing_known))
    await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/cluster/poor")) is not None)
    fit_task = asyncio.create_task(fit.acquire(nothing_known))
    await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/cluster/fit")) is not None)
    await asyncio.sleep(1.2)
    await holder.release()
    await within(5, fit_task)
    assert not poor_task.done()
    await fit.release()
    await within(5, poor_task)


async def test_a_request_reaches_the_holder_and_is_kept_by_those_who_wait(keeper: Keeper) -> None:
    holder, first, wanted = await keeper.lock("holder"), await keeper.lock("first"), await keeper.lock("wanted")
    await holder.acquire(nothing_known)
    asked = asyncio.create_task(holder.hand_over_asked())
    tasks = {}
    for name, lock in (("first", first), ("wanted", wanted)):
        tasks[name] = asyncio.create_task(lock.acquire(nothing_known))
        path = keeper.node(f"destinations/shop/cluster/{name}")
        await until(lambda path=path: keeper.operator.exists(path) is not None)
    assert not asked.done()
    request = json.dumps({"to": "wanted", "by": "ann", "at": 0}).encode()
    keeper.operator.create(keeper.node("destinations/shop/move"), request)
    assert await within(3, asked) == "shop is to move to wanted (asked for by ann)"
    await holder.release()
    assert not await holder.try_acquire(nothing_known)
    await within(5, tasks["wanted"])
    assert keeper.operator.exists(keeper.node("destinations/shop/move")) is None
    assert not tasks["first"].done()
    await wanted.release()
    await within(5, tasks["first"])


async def test_a_request_that_was_granted_is_forgotten_when_the_lock_comes_back(keeper: Keeper) -> None:
    holder, other = await keeper.lock("holder"), await keeper.lock("other")
    await holder.acquire(nothing_known)
    task = asyncio.create_task(other.acquire(nothing_known))
    await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/cluster/other")) is not None)
    keeper.operator.create(keeper.node("destinations/shop/move"), b'{"to": "other", "by": "ann", "at": 0}')
    await within(3, holder.hand_over_asked())
    await holder.release()
    await within(5, task)
    await other.release()
    await within(5, holder.acquire(nothing_known))
    asked = asyncio.create_task(holder.hand_over_asked())
    await asyncio.sleep(0.3)
    assert not asked.done()
    asked.cancel()


async def test_a_request_for_a_daemon_that_is_away_holds_nobody_up(keeper: Keeper) -> None:
    holder, other = await keeper.lock("holder"), await keeper.lock("other")
    await holder.acquire(nothing_known)
    asked = asyncio.create_task(holder.hand_over_asked())
    keeper.operator.create(keeper.node("destinations/shop/move"), b'{"to": "away", "by": "ann", "at": 0}')
    task = asyncio.create_task(other.acquire(nothing_known))
    await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/cluster/other")) is not None)
    await asyncio.sleep(0.3)
    assert not asked.done(), "nobody would take it"
    asked.cancel()
    await holder.release()
    await within(5, task)


async def test_a_request_for_the_holder_itself_is_granted_already(keeper: Keeper) -> None:
    lock = await keeper.lock("a")
    await lock.acquire(nothing_known)
    keeper.operator.create(keeper.node("destinations/shop/move"), b'{"to": "a", "by": "ann", "at": 0}')
    await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/move")) is None)
    assert lock.lease.check() is None


async def test_a_drained_daemon_takes_nothing_until_it_may_again(keeper: Keeper) -> None:
    lock, other = await keeper.lock("a"), await keeper.lock("b")
    await lock.acquire(nothing_known)
    asked = asyncio.create_task(lock.hand_over_asked())
    keeper.operator.create(keeper.node("drain/a"), b"{}", makepath=True)
    await until(lambda: lock._session.drained)
    await asyncio.sleep(0.3)
    assert not asked.done()  # nobody else could run it
    others = asyncio.create_task(other.acquire(nothing_known))
    assert "drain" in await within(5, asked)
    await lock.release()
    await within(5, others)
    assert not await lock.try_acquire(nothing_known)
    task = asyncio.create_task(lock.acquire(nothing_known))
    await other.release()
    await asyncio.sleep(1.2)
    assert keeper.operator.get_children(keeper.node("destinations/shop/cluster")) == []
    assert not task.done()
    keeper.operator.delete(keeper.node("drain/a"))
    await within(5, task)


async def test_a_daemon_takes_no_more_than_it_may(keeper: Keeper) -> None:
    session = Session(keeper.service(), "a", {}, capacity=2)
    await session.start()
    try:
        locks = [SharedLock(session, f"d{number}", "a", "") for number in range(4)]
        tasks = [asyncio.create_task(lock.acquire(nothing_known)) for lock in locks]
        await until(lambda: sum(task.done() for task in tasks) == 2)
        await asyncio.sleep(1.2)
        assert sum(task.done() for task in tasks) == 2
        await next(lock for lock, task in zip(locks, tasks, strict=True) if task.done()).release()
        await until(lambda: sum(task.done() for task in tasks) == 3, 5)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        await session.close()


async def test_a_turn_in_the_queue_that_was_deleted_is_taken_again(keeper: Keeper) -> None:
    holder, other = await keeper.lock("holder"), await keeper.lock("other")
    await holder.acquire(nothing_known)
    task = asyncio.create_task(other.acquire(nothing_known))
    place = keeper.node("destinations/shop/cluster/other")
    await until(lambda: keeper.operator.exists(place) is not None)
    await asyncio.sleep(1.2)
    keeper.operator.delete(place)
    await holder.release()
    await within(5, task)


async def test_readiness_that_could_not_be_reported_is_reported_by_the_next_call(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        holder = await keeper.lock("holder")
        await holder.acquire(nothing_known)
        lock = await keeper.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        task = asyncio.create_task(lock.acquire(nothing_known))
        place = keeper.node("destinations/shop/cluster/a")
        await until(lambda: keeper.operator.exists(place) is not None)
        proxy.close_all()
        await until(lambda: not lock._session.connected)
        await lock.set_ready(False)
        await within(5, lock._session.wait_connected(5))
        await lock.set_ready(False)
        assert json.loads(keeper.operator.get(place)[0])["ready"] is False
        version = keeper.operator.exists(place).version
        await lock.set_ready(False)
        assert keeper.operator.exists(place).version == version, "told already"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_drained_daemon_still_sees_who_runs_it(keeper: Keeper) -> None:
    first, drained = await keeper.lock("first"), await keeper.lock("drained")
    await first.acquire(nothing_known)
    keeper.operator.create(keeper.node("drain/drained"), b"{}", makepath=True)
    await until(lambda: drained._session.drained)
    assert not await drained.try_acquire(nothing_known)
    assert (drained.holder, "headrace drain" in drained.declined) == ("first (first:9180)", True)
    task = asyncio.create_task(drained.acquire(nothing_known))
    await first.release()
    await until(lambda: drained.holder == "")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
