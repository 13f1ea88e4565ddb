"""The lock in ZooKeeper: one holder at a time, taken over in order, and lost before anybody else can have it."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from devstack import Stack
from devstack.servers.zookeeper import four_letters
from headrace.errors import Fenced, LeaseLapsed
from headrace.lock.zookeeper import ZooKeeperLock
from headrace.zookeeper.errors import NodeNameTaken
from headrace.zookeeper.session import Session
from tests.proxy import Proxy
from tests.zookeeper_bench import TIMEOUT, Ensemble, no_floor, until, within

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(stack: Stack) -> Any:
    return stack.zookeeper()


@pytest.fixture
async def zoo(server: Any) -> AsyncIterator[Ensemble]:
    ensemble = Ensemble(server)
    yield ensemble
    await ensemble.close()


async def test_only_one_holds_it_and_the_next_has_it_at_once_when_it_is_released(zoo: Ensemble) -> None:
    first, second = await zoo.lock("a"), await zoo.lock("b")
    await within(5, first.acquire(no_floor))
    first.lease.check()
    assert first.tenure.epoch == 1
    assert not await second.try_acquire(no_floor)
    assert second.holder == "a (a:9180)"
    waiting = asyncio.create_task(second.acquire(no_floor))
    await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/cluster/b")) is not None)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    released = time.monotonic()
    await first.release()
    await within(5, waiting)
    assert time.monotonic() - released < 1.0
    assert second.tenure.epoch == 2
    assert second.tenure.fence > first.tenure.fence
    assert second.lease.check() is None
    with pytest.raises(Fenced):
        first.lease.check()


async def test_the_nodes_say_who_runs_it(zoo: Ensemble) -> None:
    lock = await zoo.lock("a")
    await lock.acquire(no_floor)
    data, stat = zoo.operator.get(zoo.node("destinations/shop/running"))
    running = json.loads(data)
    assert {key: running[key] for key in ("node", "address", "epoch")} == {
        "node": "a",
        "address": "a:9180",
        "epoch": 1,
    }
    assert abs(running["since"] / 1e6 - time.time()) < 60
    assert stat.ephemeralOwner != 0
    assert zoo.operator.get(zoo.node("destinations/shop/epoch"))[0] == b"1"
    assert json.loads(zoo.operator.get(zoo.node("cluster/a"))[0])["address"] == "a:9180"
    await lock.release()
    assert zoo.operator.exists(zoo.node("destinations/shop/running")) is None
    assert zoo.operator.get_children(zoo.node("destinations/shop/cluster")) == []


async def test_the_epoch_is_above_all_that_is_known_elsewhere(zoo: Ensemble) -> None:
    async def floor() -> int:
        return 41

    lock = await zoo.lock("a")
    await lock.acquire(floor)
    assert lock.tenure.epoch == 42
    await lock.release()
    await lock.acquire(no_floor)
    assert lock.tenure.epoch == 43


async def test_a_partitioned_holder_knows_before_the_next_has_it(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        cut_off, other = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}"), await zoo.lock("b")
        await cut_off.acquire(no_floor)
        lapsed_at = 0.0

        async def note() -> None:
            nonlocal lapsed_at
            await cut_off.lease.lapsed()
            lapsed_at = time.monotonic()

        noting = asyncio.create_task(note())
        waiting = asyncio.create_task(other.acquire(no_floor))
        await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/cluster/b")) is not None)
        await asyncio.sleep(TIMEOUT)  # longer than a lease: proofs go on
        cut_off.lease.check()
        assert not noting.done()
        proxy.blackhole()
        blocked = time.monotonic()
        await within(TIMEOUT, noting)
        with pytest.raises(LeaseLapsed):
            cut_off.lease.check()
        assert not waiting.done()
        await within(10, waiting)
        taken_at = time.monotonic()
        assert blocked < lapsed_at < taken_at
        assert other.tenure.epoch == 2
        proxy.thaw()
        await until(lambda: cut_off.lease.lost != "")
        assert "session" in cut_off.lease.lost


async def test_a_short_partition_is_survived_in_place(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=3)
        await lock.acquire(no_floor)
        tenure = lock.tenure
        for _ in range(2):
            proxy.close_all()
            await asyncio.sleep(0.3)
        await asyncio.sleep(2.2)  # longer than the lease: it has been proved again since
        await within(3, lock.lease.proved())
        assert lock.lease.check() is None
        assert lock.tenure == tenure


async def test_a_lease_that_lapsed_is_proved_again_when_the_session_lives(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=4)
        await lock.acquire(no_floor)
        proxy.freeze()
        await within(4, lock.lease.lapsed())
        proxy.thaw()
        await within(5, lock.lease.proved())
        assert lock.lease.lost == ""


async def test_a_node_deleted_by_hand_ends_the_holding(zoo: Ensemble) -> None:
    lock = await zoo.lock("a")
    await lock.acquire(no_floor)
    zoo.operator.delete(zoo.node("destinations/shop/running"))
    await within(1, lock.lease.lapsed())
    assert "shop" in lock.lease.lost
    await lock.release()
    await lock.acquire(no_floor)
    assert lock.tenure.epoch == 2


async def test_an_epoch_node_made_anew_by_hand_does_not_pass_for_ours(zoo: Ensemble) -> None:
    session = await zoo.session("a")
    shop, stock = (ZooKeeperLock(session, name, "a", "a:9180") for name in ("shop", "stock"))
    await shop.acquire(no_floor)
    await stock.acquire(no_floor)
    zoo.operator.delete(zoo.node("destinations/shop/epoch"))
    zoo.operator.create(zoo.node("destinations/shop/epoch"), b"1")
    await within(TIMEOUT, shop.lease.lapsed())
    assert "shop" in shop.lease.lost
    await session.prove_now()
    assert stock.lease.check() is None


def _watchers(zoo: Ensemble, path: str) -> set[int]:
    """Sessions that the server will tell of a change of that node."""
    lines = four_letters(zoo.server.host, zoo.server.port, "wchp").splitlines()
    start = lines.index(path) + 1 if path in lines else len(lines)
    return {int(line.strip(), 16) for line in itertools.takewhile(lambda line: line.startswith("\t"), lines[start:])}


async def test_a_release_wakes_one_of_ten(zoo: Ensemble) -> None:
    holder = await zoo.lock("holder")
    await holder.acquire(no_floor)
    locks = [await zoo.lock(f"n{number}") for number in range(10)]
    tasks = []
    for number, lock in enumerate(locks):
        tasks.append(asyncio.create_task(lock.acquire(no_floor)))
        path = zoo.node(f"destinations/shop/cluster/n{number}")
        await until(lambda path=path: zoo.operator.exists(path) is not None)
    running = zoo.node("destinations/shop/running")
    await until(lambda: len(_watchers(zoo, running)) == 2)  # the holder itself, and the first in line
    await asyncio.sleep(0.5)
    assert _watchers(zoo, running) == {holder._session.session_id, locks[0]._session.session_id}
    assert sum(lock._session.counts.attempts for lock in locks) == 0
    released = time.monotonic()
    await holder.release()
    await within(5, tasks[0])
    assert time.monotonic() - released < 1.0
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


async def test_a_frozen_first_in_line_holds_nobody_up_for_long(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        holder = await zoo.lock("holder")
        frozen = await zoo.lock("frozen", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        second = await zoo.lock("second")
        await holder.acquire(no_floor)
        first_task = asyncio.create_task(frozen.acquire(no_floor))
        await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/cluster/frozen")) is not None)
        second_task = asyncio.create_task(second.acquire(no_floor))
        await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/cluster/second")) is not None)
        await asyncio.sleep(0.2)
        proxy.freeze()
        await holder.release()
        await within(5, second_task)
        proxy.thaw()
        await asyncio.sleep(0.5)
        assert not first_task.done()
        first_task.cancel()
        await asyncio.gather(first_task, return_exceptions=True)


async def test_who_is_not_ready_stands_behind_who_is(zoo: Ensemble) -> None:
    holder, poor, fit = await zoo.lock("holder"), await zoo.lock("poor"), await zoo.lock("fit")
    await holder.acquire(no_floor)
    await poor.set_ready(False)
    poor_task = asyncio.create_task(poor.acquire(no_floor))
    await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/cluster/poor")) is not None)
    fit_task = asyncio.create_task(fit.acquire(no_floor))
    await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/cluster/fit")) is not None)
    await asyncio.sleep(1.2)
    await holder.release()
    await within(5, fit_task)
    assert not poor_task.done()
    await fit.release()
    await within(5, poor_task)


async def test_a_wish_is_told_to_the_holder_and_kept_by_those_who_wait(zoo: Ensemble) -> None:
    holder, first, wanted = await zoo.lock("holder"), await zoo.lock("first"), await zoo.lock("wanted")
    await holder.acquire(no_floor)
    asked = asyncio.create_task(holder.asked_away())
    tasks = {}
    for name, lock in (("first", first), ("wanted", wanted)):
        tasks[name] = asyncio.create_task(lock.acquire(no_floor))
        path = zoo.node(f"destinations/shop/cluster/{name}")
        await until(lambda path=path: zoo.operator.exists(path) is not None)
    assert not asked.done()
    wish = json.dumps({"to": "wanted", "by": "ann", "at": 0}).encode()
    zoo.operator.create(zoo.node("destinations/shop/move"), wish)
    assert await within(3, asked) == "shop is to move to wanted (asked for by ann)"
    released = time.monotonic()
    await holder.release()
    assert not await holder.try_acquire(no_floor)
    await within(5, tasks["wanted"])
    assert time.monotonic() - released < 1.5
    assert zoo.operator.exists(zoo.node("destinations/shop/move")) is None
    assert not tasks["first"].done()
    await wanted.release()
    await within(5, tasks["first"])


async def test_a_wish_for_a_daemon_that_is_away_holds_nobody_up(zoo: Ensemble) -> None:
    holder, other = await zoo.lock("holder"), await zoo.lock("other")
    await holder.acquire(no_floor)
    asked = asyncio.create_task(holder.asked_away())
    zoo.operator.create(zoo.node("destinations/shop/move"), b'{"to": "away", "by": "ann", "at": 0}')
    task = asyncio.create_task(other.acquire(no_floor))
    await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/cluster/other")) is not None)
    await asyncio.sleep(0.3)
    assert not asked.done(), "nobody would take it"
    asked.cancel()
    await holder.release()
    await within(5, task)


async def test_a_wish_for_the_holder_itself_is_granted_already(zoo: Ensemble) -> None:
    lock = await zoo.lock("a")
    await lock.acquire(no_floor)
    zoo.operator.create(zoo.node("destinations/shop/move"), b'{"to": "a", "by": "ann", "at": 0}')
    await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/move")) is None)
    assert lock.lease.check() is None


async def test_a_release_after_the_session_was_closed_ends(zoo: Ensemble) -> None:
    lock, other = await zoo.lock("a"), await zoo.lock("b")
    await lock.acquire(no_floor)
    await lock._session.close()
    assert lock.lease.lost
    await within(1, other.acquire(no_floor))
    await within(1, lock.release())
    assert not lock._session._tasks


async def test_a_drained_daemon_takes_nothing_until_it_may_again(zoo: Ensemble) -> None:
    lock, other = await zoo.lock("a"), await zoo.lock("b")
    await lock.acquire(no_floor)
    asked = asyncio.create_task(lock.asked_away())
    zoo.operator.create(zoo.node("drain/a"), b"{}")
    await until(lambda: lock._session.drained)
    await asyncio.sleep(0.3)
    assert not asked.done()  # nobody else could run it
    others = asyncio.create_task(other.acquire(no_floor))
    assert "drain" in await within(5, asked)
    await lock.release()
    await within(5, others)
    assert not await lock.try_acquire(no_floor)
    task = asyncio.create_task(lock.acquire(no_floor))
    await other.release()
    await asyncio.sleep(1.2)
    assert zoo.operator.get_children(zoo.node("destinations/shop/cluster")) == []
    assert not task.done()
    zoo.operator.delete(zoo.node("drain/a"))
    await within(5, task)


async def test_a_daemon_takes_no_more_than_it_may(zoo: Ensemble) -> None:
    session = Session(zoo.settings(), "a", {}, capacity=2)
    await session.start()
    try:
        locks = [ZooKeeperLock(session, f"d{number}", "a", "") for number in range(4)]
        tasks = [asyncio.create_task(lock.acquire(no_floor)) for lock in locks]
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


async def test_a_release_that_could_not_be_sent_is_made_up_for(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock, other = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8), await zoo.lock("b")
        await lock.acquire(no_floor)
        proxy.freeze()
        await within(5, lock.release())
        assert not await other.try_acquire(no_floor)
        proxy.thaw()
        await within(5, other.acquire(no_floor))


async def test_a_lock_whose_release_is_under_way_is_taken_again_in_place(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        await lock.acquire(no_floor)
        proxy.freeze()
        await within(5, lock.release())
        again = asyncio.create_task(lock.acquire(no_floor))
        proxy.thaw()
        await within(10, again)
        assert lock.tenure.epoch == 2
        await within(3, lock.lease.proved())
        await lock._session.prove_now()
        assert lock.lease.check() is None


async def test_two_daemons_with_one_name_are_told_apart(zoo: Ensemble) -> None:
    await zoo.session("a")
    twin = Session(zoo.settings(), "a", {"address": "elsewhere:9180"})
    with pytest.raises(NodeNameTaken, match="a:9180"):
        await twin.start()


async def test_a_daemon_follows_its_own_crashed_predecessor(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        await zoo.session("a", hosts=f"127.0.0.1:{proxy.port}")
        proxy.blackhole()
        successor = await within(10, zoo.session("a"))
        assert list(await successor.members()) == ["a"]


async def test_a_place_in_the_line_that_was_deleted_is_taken_again(zoo: Ensemble) -> None:
    holder, other = await zoo.lock("holder"), await zoo.lock("other")
    await holder.acquire(no_floor)
    task = asyncio.create_task(other.acquire(no_floor))
    place = zoo.node("destinations/shop/cluster/other")
    await until(lambda: zoo.operator.exists(place) is not None)
    await asyncio.sleep(1.2)
    zoo.operator.delete(place)
    await holder.release()
    await within(5, task)


async def test_a_destination_that_is_set_up_anew_waits_until_its_former_self_has_released(zoo: Ensemble) -> None:
    """After a reload two locks of one process share a session."""
    former = await zoo.lock("a")
    await former.acquire(no_floor)
    anew = ZooKeeperLock(former._session, "shop", "a", "a:9180")
    task = asyncio.create_task(anew.acquire(no_floor))
    await asyncio.sleep(1.2)
    assert not task.done()
    assert not await ZooKeeperLock(former._session, "shop", "a", "a:9180").try_acquire(no_floor)
    await former.release()
    await within(5, task)
    await anew._session.prove_now()
    assert anew.lease.check() is None
    assert anew.tenure.epoch == 2


async def test_a_late_release_takes_nothing_from_the_destination_that_was_set_up_anew(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        former = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        await former.acquire(no_floor)
        proxy.freeze()
        await within(5, former.release())
        late, former._clearing = former._clearing, None
        assert late is not None
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        proxy.thaw()
        anew = ZooKeeperLock(former._session, "shop", "a", "a:9180")
        await within(10, anew.acquire(no_floor))
        await within(5, former._take_away(former._session.generation, running=True, leave=True))
        await anew._session.prove_now()
        assert anew.lease.check() is None
        assert json.loads(zoo.operator.get(zoo.node("destinations/shop/running"))[0])["epoch"] == 2


async def test_readiness_that_could_not_be_told_is_told_by_the_next_call(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        holder = await zoo.lock("holder")
        await holder.acquire(no_floor)
        lock = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        task = asyncio.create_task(lock.acquire(no_floor))
        place = zoo.node("destinations/shop/cluster/a")
        await until(lambda: zoo.operator.exists(place) is not None)
        proxy.close_all()
        await until(lambda: not lock._session.connected)
        await lock.set_ready(False)
        await within(5, lock._session.wait_connected(5))
        await lock.set_ready(False)
        assert json.loads(zoo.operator.get(place)[0])["ready"] is False
        version = zoo.operator.exists(place).version
        await lock.set_ready(False)
        assert zoo.operator.exists(place).version == version, "told already"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_drained_daemon_still_sees_who_runs_it(zoo: Ensemble) -> None:
    first, drained = await zoo.lock("first"), await zoo.lock("drained")
    await first.acquire(no_floor)
    zoo.operator.create(zoo.node("drain/drained"), b"{}")
    await until(lambda: drained._session.drained)
    assert not await drained.try_acquire(no_floor)
    assert (drained.holder, "headrace drain" in drained.declined) == ("first (first:9180)", True)
    task = asyncio.create_task(drained.acquire(no_floor))
    await first.release()
    await until(lambda: drained.holder == "")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_recovered_returns_when_zookeeper_is_back_and_not_before(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=4)
        before = asyncio.create_task(lock.recovered())
        await asyncio.sleep(0.3)
        assert not before.done(), "it was never away"
        proxy.freeze()
        proxy.close_all()
        await until(lambda: not lock._session.connected)
        during = asyncio.create_task(lock.recovered())
        await asyncio.sleep(1.2)
        assert not before.done()
        assert not during.done()
        proxy.thaw()
        await within(10, asyncio.gather(before, during))
