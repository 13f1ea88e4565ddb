"""The shared lock: one holder at a time, taken over in order, and lost before anybody else can have it."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from headrace.cluster.lock import SharedLock
from headrace.cluster.session import NodeNameTaken, Session
from headrace.errors import Fenced, LeaseLapsed
from tests.lock_bench import BOTH, TIMEOUT, Keeper, nothing_known, until, within
from tests.proxy import Proxy

pytestmark = pytest.mark.server


async def test_only_one_holds_it_and_the_next_has_it_at_once_when_it_is_released(keeper: Keeper) -> None:
    first, second = await keeper.lock("a"), await keeper.lock("b")
    await within(5, first.acquire(nothing_known))
    first.lease.check()
    assert first.term.epoch == 1
    assert not await second.try_acquire(nothing_known)
    assert second.holder == "a (a:9180)"
    waiting = asyncio.create_task(second.acquire(nothing_known))
    await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/cluster/b")) is not None)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await first.release()
    await within(5, waiting)
    assert second.term.epoch == 2
    assert second.term.fence > first.term.fence
    assert second.lease.check() is None
    with pytest.raises(Fenced):
        first.lease.check()


async def test_the_nodes_say_who_runs_it(keeper: Keeper) -> None:
    lock = await keeper.lock("a")
    await lock.acquire(nothing_known)
    data, stat = keeper.operator.get(keeper.node("destinations/shop/running"))
    running = json.loads(data)
    assert {key: running[key] for key in ("node", "address", "epoch")} == {
        "node": "a",
        "address": "a:9180",
        "epoch": 1,
    }
    assert abs(running["since"] / 1e6 - time.time()) < 60
    assert stat.ephemeralOwner != 0
    assert keeper.operator.get(keeper.node("destinations/shop/epoch"))[0] == b"1"
    assert json.loads(keeper.operator.get(keeper.node("cluster/a"))[0])["address"] == "a:9180"
    await lock.release()
    assert keeper.operator.exists(keeper.node("destinations/shop/running")) is None
    assert keeper.operator.get_children(keeper.node("destinations/shop/cluster")) == []


async def test_the_epoch_is_above_all_that_is_known_elsewhere(keeper: Keeper) -> None:
    async def known_epoch() -> int:
        return 41

    lock = await keeper.lock("a")
    await lock.acquire(known_epoch)
    assert lock.term.epoch == 42
    await lock.release()
    await lock.acquire(nothing_known)
    assert lock.term.epoch == 43


@BOTH
async def test_a_partitioned_holder_knows_before_the_next_has_it(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        cut_off, other = await keeper.lock("a", hosts=f"127.0.0.1:{proxy.port}"), await keeper.lock("b")
        await cut_off.acquire(nothing_known)
        lapsed_at = 0.0

        async def note() -> None:
            nonlocal lapsed_at
            await cut_off.lease.lapsed()
            lapsed_at = time.monotonic()

        waiting = asyncio.create_task(other.acquire(nothing_known))
        await until(lambda: keeper.operator.exists(keeper.node("destinations/shop/cluster/b")) is not None)
        await asyncio.sleep(TIMEOUT)  # longer than a lease: proofs go on
        cut_off.lease.check()
        noting = asyncio.create_task(note())
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


async def test_a_short_partition_is_survived_in_place(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        lock = await keeper.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=3)
        await lock.acquire(nothing_known)
        term = lock.term
        for _ in range(2):
            proxy.close_all()
            await asyncio.sleep(0.3)
        await asyncio.sleep(2.2)  # longer than the lease: it has been proved again since
        await within(3, lock.lease.proved())
        assert lock.lease.check() is None
        assert lock.term == term


async def test_a_lease_that_lapsed_is_proved_again_when_the_session_lives(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        lock = await keeper.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=4)
        await lock.acquire(nothing_known)
        proxy.freeze()
        await within(4, lock.lease.lapsed())
        proxy.thaw()
        await within(5, lock.lease.proved())
        assert lock.lease.lost == ""


async def test_a_node_deleted_by_hand_ends_the_holding(keeper: Keeper) -> None:
    lock = await keeper.lock("a")
    await lock.acquire(nothing_known)
    keeper.operator.delete(keeper.node("destinations/shop/running"))
    await within(1, lock.lease.lapsed())
    assert "shop" in lock.lease.lost
    await lock.release()
    await lock.acquire(nothing_known)
    assert lock.term.epoch == 2


async def test_a_node_deleted_by_hand_is_noticed_before_the_next_proof(keeper: Keeper) -> None:
    lock = await keeper.lock("a", session_timeout=10)
    await lock.acquire(nothing_known)
    await lock._session.proofs.now()
    keeper.operator.delete(keeper.node("destinations/shop/running"))
    await within(1, lock.lease.lapsed())
    assert lock.lease.lost.startswith("the lock of shop was taken away in ")


async def test_an_epoch_node_recreated_by_hand_does_not_pass_for_ours(keeper: Keeper) -> None:
    session = await keeper.session("a", session_timeout=10)
    shop, stock = (SharedLock(session, name, "a", "a:9180") for name in ("shop", "stock"))
    await shop.acquire(nothing_known)
    await stock.acquire(nothing_known)
    keeper.operator.delete(keeper.node("destinations/shop/epoch"))
    keeper.operator.create(keeper.node("destinations/shop/epoch"), b"1")
    await session.proofs.now()
    await within(TIMEOUT, shop.lease.lapsed())
    assert "shop" in shop.lease.lost
    assert stock.lease.check() is None


async def test_a_release_after_the_session_was_closed_ends(keeper: Keeper) -> None:
    lock, other = await keeper.lock("a"), await keeper.lock("b")
    await lock.acquire(nothing_known)
    await lock._session.close()
    assert lock.lease.lost
    await within(1, other.acquire(nothing_known))
    await within(1, lock.release())
    assert not lock._session._tasks


async def test_a_release_that_could_not_be_sent_is_made_up_for(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        lock, other = await keeper.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8), await keeper.lock("b")
        await lock.acquire(nothing_known)
        proxy.freeze()
        await within(5, lock.release())
        assert not await other.try_acquire(nothing_known)
        proxy.thaw()
        await within(5, other.acquire(nothing_known))


async def test_a_lock_whose_release_is_under_way_is_taken_again_in_place(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        lock = await keeper.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
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


async def test_two_daemons_with_one_name_are_distinguished(keeper: Keeper) -> None:
    await keeper.session("a")
    twin = Session(keeper.service(), "a", {"address": "elsewhere:9180"})
    with pytest.raises(NodeNameTaken, match="a:9180"):
        await twin.start()


async def test_a_daemon_follows_its_own_crashed_predecessor(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        await keeper.session("a", hosts=f"127.0.0.1:{proxy.port}")
        proxy.blackhole()
        successor = await within(10, keeper.session("a"))
        assert list(await successor.members()) == ["a"]


async def test_a_destination_that_is_set_up_again_waits_until_its_former_lock_is_released(keeper: Keeper) -> None:
    """After a reload two locks of one process share a session."""
    former = await keeper.lock("a")
    await former.acquire(nothing_known)
    later = SharedLock(former._session, "shop", "a", "a:9180")
    task = asyncio.create_task(later.acquire(nothing_known))
    await asyncio.sleep(1.2)
    assert not task.done()
    assert not await SharedLock(former._session, "shop", "a", "a:9180").try_acquire(nothing_known)
    await former.release()
    await within(5, task)
    await later._session.proofs.now()
    assert later.lease.check() is None
    assert later.term.epoch == 2


async def test_a_late_release_takes_nothing_from_the_destination_that_was_set_up_again(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        former = await keeper.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=8)
        await former.acquire(nothing_known)
        proxy.freeze()
        await within(5, former.release())
        late, former._clearing = former._clearing, None
        assert late is not None
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        proxy.thaw()
        later = SharedLock(former._session, "shop", "a", "a:9180")
        await within(10, later.acquire(nothing_known))
        await within(5, former._take_away(former._session.generation, running=True, leave=True))
        await later._session.proofs.now()
        assert later.lease.check() is None
        assert json.loads(keeper.operator.get(keeper.node("destinations/shop/running"))[0])["epoch"] == 2


async def test_recovered_returns_when_the_service_is_back_and_not_before(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        lock = await keeper.lock("a", hosts=f"127.0.0.1:{proxy.port}", session_timeout=4)
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
