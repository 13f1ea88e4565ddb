"""The session: it says why it can't begin, keeps what is ours from others, and survives the service's servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from devstack import Stack
from headrace.cluster.lock import SharedLock
from headrace.cluster.session import Session
from headrace.cluster.state import ClusterStore
from headrace.errors import LockServiceError
from headrace.model import Position
from headrace.ports.lock_service import Create, Disconnected
from headrace.ports.state import StateChange
from tests.lock_bench import SERVICES, Keeper, nothing_known, until, within
from tests.proxy import Proxy

pytestmark = pytest.mark.server

POSITION = Position("3e11fa47-71ca-11e1-9e33-c80aa9429562", "mysql-bin.000003", 4711, last_pos=7)


@pytest.fixture(params=SERVICES)
async def three(request: pytest.FixtureRequest, stack: Stack) -> AsyncIterator[Keeper]:
    """Three servers of the test's own."""
    server = getattr(stack, request.param)(nodes=3)
    made = Keeper(request.param, server)
    yield made
    await made.close()
    server.kill()


async def test_a_service_that_is_away_is_reported_in_time_with_the_reason(keeper: Keeper) -> None:
    session = Session(keeper.service(hosts="127.0.0.1:1"), "a", {})
    with pytest.raises(LockServiceError, match=r"127\.0\.0\.1:1.*refused"):
        await within(60, session.start())


async def test_a_server_that_answers_nothing_is_reported_in_time(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        proxy.blackhole()
        session = Session(keeper.service(hosts=f"127.0.0.1:{proxy.port}"), "a", {})
        with pytest.raises(LockServiceError, match="could be reached within 3 s"):
            await within(15, session.start())


async def test_a_call_without_a_connection_is_an_error_and_is_not_made_up_for_later(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        session = await keeper.session("a", hosts=f"127.0.0.1:{proxy.port}")
        proxy.blackhole()
        proxy.close_all()
        await until(lambda: not session.connected)
        with pytest.raises(Disconnected, match="no connection"):
            await within(5, session.multi(Create(keeper.node("late"), b"")))
        proxy.thaw()
        await until(lambda: session.connected)
        assert keeper.operator.exists(keeper.node("late")) is None


async def test_a_lost_session_is_followed_by_another_that_is_a_member_again(keeper: Keeper) -> None:
    with Proxy(keeper.server.host, keeper.server.port) as proxy:
        session = await keeper.session("a", hosts=f"127.0.0.1:{proxy.port}")
        generation, number = session.generation, session.session_id
        lock = SharedLock(session, "shop", "a", "a:9180")
        await lock.acquire(nothing_known)
        proxy.blackhole()
        await until(lambda: keeper.operator.exists(keeper.node("cluster/a")) is None)
        proxy.thaw()
        await until(lambda: session.connected and session.session_id != number)
        assert session.generation > generation
        assert lock.lease.lost
        await until(lambda: keeper.operator.exists(keeper.node("cluster/a")) is not None)
        await lock.release()
        await within(5, lock.acquire(nothing_known))
        assert lock.term.epoch == 2
        assert session.counts.sessions == 2


async def test_a_member_node_deleted_by_hand_is_put_up_again(keeper: Keeper) -> None:
    session = await keeper.session("a")
    keeper.operator.delete(keeper.node("cluster/a"))
    await session.proofs.now()
    assert (await session.members())["a"]["address"] == "a:9180"


async def test_an_operators_command_is_no_member_and_disturbs_nobody(keeper: Keeper) -> None:
    daemon = await keeper.lock("a")
    await daemon.acquire(nothing_known)
    command = Session(keeper.service(), "a", {}, member=False)
    await command.start()
    try:
        lock = SharedLock(command, "shop", "a, command 7", "")
        assert not await lock.try_acquire(nothing_known)
        assert await lock.find_holder() == "a (a:9180)"
        await daemon.release()
        assert await lock.try_acquire(nothing_known)
        await within(3, lock.lease.proved())
        await lock.release()
        assert list(await command.members()) == ["a"]
    finally:
        await command.close()


async def test_the_leader_killed_costs_no_lock(three: Keeper) -> None:
    session = await three.session("a", session_timeout=8)
    other = await three.lock("b", session_timeout=8)
    lock, store = SharedLock(session, "shop", "a", ""), ClusterStore(session)
    await lock.acquire(nothing_known)
    guard = await store.begin_epoch("shop", term=lock.term)
    waiting = asyncio.create_task(other.acquire(nothing_known))
    leader = three.server.leader
    leader.kill()
    guard = await within(16, store.commit("shop", guard, StateChange(POSITION)))
    await within(8, lock.lease.proved())
    assert lock.lease.lost == ""
    assert not waiting.done()
    leader.start()
    await lock.release()
    await within(5, waiting)
    assert other.term.epoch == 2
    assert (await store.load("shop")).position == POSITION
