"""The lock in ZooKeeper: one holder at a time, taken over in order, and lost before anybody else can have it."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from headrace.cluster.lock import SharedLock
from headrace.cluster.session import NodeNameTaken, Session
from headrace.errors import Fenced, LeaseLapsed
from tests.proxy import Proxy
from tests.zookeeper_bench import TIMEOUT, Ensemble, nothing_known, until, within

pytestmark = pytest.mark.server


async def test_only_one_holds_it_and_the_next_has_it_at_once_when_it_is_released(zoo: Ensemble) -> None:
    first, second = await zoo.lock("a"), await zoo.lock("b")
    await within(5, first.acquire(nothing_known))
    first.lease.check()
    assert first.term.epoch == 1
    assert not await second.try_acquire(nothing_known)
    assert second.holder == "a (a:9180)"
    waiting = asyncio.create_task(second.acquire(nothing_known))
    await until(lambda: zoo.operator.exists(zoo.node("destinations/shop/cluster/b")) is not None)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    released = time.monotonic()
    await first.release()
    await within(5, waiting)
    assert time.monotonic() - released < 1.0
    assert second.term.epoch == 2
    assert second.term.fence > first.term.fence
    assert second.lease.check() is None
    with pytest.raises(Fenced):
        first.lease.check()


async def test_the_nodes_say_who_runs_it(zoo: Ensemble) -> None:
    lock = await zoo.lock("a")
    await lock.acquire(nothing_known)
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
    async def known_epoch() -> int:
        return 41

    lock = await zoo.lock("a")
    await lock.acquire(known_epoch)
    assert lock.term.epoch == 42
    await lock.release()
    await lock.acquire(nothing_known)
    assert lock.term.epoch == 43


async def test_a_partitioned_holder_knows_before_the_next_has_it(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        cut_off, other = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}"), await zoo.lock("b")
        await cut_off.acquire(nothing_known)
        lapsed_at = 0.0

        async def note() -> None:
            nonlocal lapsed_at
            await cut_off.lease.lapsed()
            lapsed_at = time.monotonic()

        noting = asyncio.create_task(note())
        waiting = asyncio.create_task(other.acquire(nothing_known))
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
        assert other.term.epoch == 2
        proxy.thaw()
        await until(lambda: cut_off.lease.lost != "")
        assert "session" in cut_off.lease.lost


async def test_a_short_partition_is_survived_in_place(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=3)
        await lock.acquire(nothing_known)
        term = lock.term
        for _ in range(2):
            proxy.close_all()
            await asyncio.sleep(0.3)
        await asyncio.sleep(2.2)  # longer than the lease: it has been proved again since
        await within(3, lock.lease.proved())
        assert lock.lease.check() is None
        assert lock.term == term


async def test_a_lease_that_lapsed_is_proved_again_when_the_session_lives(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=4)
        await lock.acquire(nothing_known)
        proxy.freeze()
        await within(4, lock.lease.lapsed())
        proxy.thaw()
        await within(5, lock.lease.proved())
        assert lock.lease.lost == ""


async def test_a_node_deleted_by_hand_ends_the_holding(zoo: Ensemble) -> None:
    lock = await zoo.lock("a")
    await lock.acquire(nothing_known)
    zoo.operator.delete(zoo.node("destinations/shop/running"))
    await within(1, lock.lease.lapsed())
    assert "shop" in lock.lease.lost
    await lock.release()
    await lock.acquire(nothing_known)
    assert lock.term.epoch == 2


async def test_a_node_deleted_by_hand_is_noticed_before_the_next_proof(zoo: Ensemble) -> None:
    lock = await zoo.lock("a", session_timeout=10)
    await lock.acquire(nothing_known)
    await lock._session.proofs.now()
    zoo.operator.delete(zoo.node("destinations/shop/running"))
    await within(1, lock.lease.lapsed())
    assert lock.lease.lost == "the lock of shop was taken away in ZooKeeper"


async def test_an_epoch_node_made_anew_by_hand_does_not_pass_for_ours(zoo: Ensemble) -> None:
    session = await zoo.session("a")
    shop, stock = (SharedLock(session, name, "a", "a:9180") for name in ("shop", "stock"))
    await shop.acquire(nothing_known)
    await stock.acquire(nothing_known)
    zoo.operator.delete(zoo.node("destinations/shop/epoch"))
    zoo.operator.create(zoo.node("destinations/shop/epoch"), b"1")
    await within(TIMEOUT, shop.lease.lapsed())
    assert "shop" in shop.lease.lost
    await session.proofs.now()
    assert stock.lease.check() is None


async def test_a_release_after_the_session_was_closed_ends(zoo: Ensemble) -> None:
    lock, other = await zoo.lock("a"), await zoo.lock("b")
    await lock.acquire(nothing_known)
    await lock._session.close()
    assert lock.lease.lost
    await within(1, other.acquire(nothing_known))
    await within(1, lock.release())
    assert not lock._session._tasks


async def test_a_release_that_could_not_be_sent_is_made_up_for(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock, other = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8), await zoo.lock("b")
        await lock.acquire(nothing_known)
        proxy.freeze()
        await within(5, lock.release())
        assert not await other.try_acquire(nothing_known)
        proxy.thaw()
        await within(5, other.acquire(nothing_known))


async def test_a_lock_whose_release_is_under_way_is_taken_again_in_place(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        lock = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        await lock.acquire(nothing_known)
        proxy.freeze()
        await within(5, lock.release())
        again = asyncio.create_task(lock.acquire(nothing_known))
        proxy.thaw()
        await within(10, again)
        assert lock.term.epoch == 2
        await within(3, lock.lease.proved())
        await lock._session.proofs.now()
        assert lock.lease.check() is None


async def test_two_daemons_with_one_name_are_told_apart(zoo: Ensemble) -> None:
    await zoo.session("a")
    twin = Session(zoo.service(), "a", {"address": "elsewhere:9180"})
    with pytest.raises(NodeNameTaken, match="a:9180"):
        await twin.start()


async def test_a_daemon_follows_its_own_crashed_predecessor(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        await zoo.session("a", hosts=f"127.0.0.1:{proxy.port}")
        proxy.blackhole()
        successor = await within(10, zoo.session("a"))
        assert list(await successor.members()) == ["a"]


async def test_a_destination_that_is_set_up_anew_waits_until_its_former_self_has_released(zoo: Ensemble) -> None:
    """After a reload two locks of one process share a session."""
    former = await zoo.lock("a")
    await former.acquire(nothing_known)
    anew = SharedLock(former._session, "shop", "a", "a:9180")
    task = asyncio.create_task(anew.acquire(nothing_known))
    await asyncio.sleep(1.2)
    assert not task.done()
    assert not await SharedLock(former._session, "shop", "a", "a:9180").try_acquire(nothing_known)
    await former.release()
    await within(5, task)
    await anew._session.proofs.now()
    assert anew.lease.check() is None
    assert anew.term.epoch == 2


async def test_a_late_release_takes_nothing_from_the_destination_that_was_set_up_anew(zoo: Ensemble) -> None:
    with Proxy(zoo.server.host, zoo.server.port) as proxy:
        former = await zoo.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        await former.acquire(nothing_known)
        proxy.freeze()
        await within(5, former.release())
        late, former._clearing = former._clearing, None
        assert late is not None
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        proxy.thaw()
        anew = SharedLock(former._session, "shop", "a", "a:9180")
        await within(10, anew.acquire(nothing_known))
        await within(5, former._take_away(former._session.generation, running=True, leave=True))
        await anew._session.proofs.now()
        assert anew.lease.check() is None
        assert json.loads(zoo.operator.get(zoo.node("destinations/shop/running"))[0])["epoch"] == 2


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
