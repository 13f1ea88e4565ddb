"""The model of a ZooKeeper ensemble in virtual time: the project's own contracts of clusters and locks, and what
several servers do when some of them are away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import ModuleType
from typing import Any

import pytest

from headrace.cluster.cluster import Cluster, Member
from headrace.ports.lock import Lock
from headrace.ports.lock_service import Create, Disconnected, Node, OutcomeUnknown, ServiceError, Set
from sim.zookeeper.ensemble import Server
from tests.contracts import test_clusters, test_locks
from tests.sim.zookeeper_models import Partition, ZooKeeperWorld, simulated
from tests.sim.zookeeper_script import Client

Contract = Callable[[Any], Coroutine[Any, Any, None]]
Simulated = Callable[[ZooKeeperWorld], Coroutine[Any, Any, None]]


# -- contracts --------------------------------------------------------------------------------------------------------


def _cluster_test(contract: Contract) -> Simulated:
    async def run(world: ZooKeeperWorld) -> None:
        made = list[Cluster]()
        await contract(_maker(world, made))
        for cluster in made:
            await cluster.close()

    return run


def _lock_test(contract: Contract) -> Simulated:
    async def run(world: ZooKeeperWorld) -> None:
        made, locks = list[Cluster](), list[Lock]()
        make_cluster = _maker(world, made)

        async def make(node: str) -> Lock:
            locks.append((await make_cluster(node)).lock("shop"))
            return locks[-1]

        await contract(make)
        for lock in locks:
            await lock.release()
        for cluster in made:
            await cluster.close()

    return run


def _maker(world: ZooKeeperWorld, made: list[Cluster]) -> Callable[[str], Awaitable[Cluster]]:
    # The contracts read, without sync(), what another client has written, as they may with devstack's single server.
    world.ensemble.lag = 0.0

    async def make(node: str) -> Cluster:
        made.append(Cluster(world.service("/contract"), Member(node, f"{node}:9180")))
        await made[-1].start()
        return made[-1]

    return make


def _contracts(module: ModuleType) -> list[tuple[str, Contract]]:
    return [(name, test) for name, test in vars(module).items() if name.startswith("test_")]


for _name, _test in _contracts(test_clusters):
    globals()[_name] = simulated(_cluster_test(_test), seeds=3)
for _name, _test in _contracts(test_locks):
    globals()[_name] = simulated(_lock_test(_test), seeds=3)


# -- several servers --------------------------------------------------------------------------------------------------


async def _client(world: ZooKeeperWorld, timeout: float = 10.0, at: Server | None = None) -> tuple[Client, Server]:
    """A client in a process of its own, and the server that it is connected to."""
    while True:
        process = world.daemon(f"client{len(world.processes)}")
        made = await Client(world.service("/x", process, timeout)).opened()
        server = next(one for one in world.ensemble.servers.values() if made.service._kazoo in one.clients)
        if at in (None, server):
            return made, server
        await made.close()


def _others(world: ZooKeeperWorld, *but: Server | None) -> list[Server]:
    return [one for one in world.ensemble.servers.values() if one not in but]


def _data(node: Node | None) -> bytes:
    assert node is not None
    return node.data


def _split(world: ZooKeeperWorld, server: Server) -> None:
    """Cuts a server off from the others; clients reach it."""
    for other in _others(world, server):
        world.network.block(server.name, other.name)
        world.network.block(other.name, server.name)


@simulated
async def test_a_follower_is_behind_until_a_sync(world: ZooKeeperWorld) -> None:
    world.ensemble.lag = 5.0
    leader = world.ensemble.leader
    follower = _others(world, leader)[0]
    one, _ = await _client(world, at=leader)
    two, _ = await _client(world, at=follower)
    await one.do(Create("/x", b"1"))
    await two.sync()
    await one.do(Set("/x", b"2"))
    before = await two.get("/x")
    await two.sync()
    after = await two.get("/x")
    assert (_data(before), _data(after)) == (b"1", b"2")


@simulated
async def test_a_follower_that_is_cut_off_answers_reads_at_first_and_no_writes(world: ZooKeeperWorld) -> None:
    follower = _others(world, world.ensemble.leader)[0]
    one, _ = await _client(world, at=world.ensemble.leader)
    two, _ = await _client(world, at=follower)
    await one.do(Create("/x", b"1"))
    await two.sync()
    _split(world, follower)
    await one.do(Set("/x", b"2"))
    assert _data(await two.get("/x")) == b"1"
    with pytest.raises(OutcomeUnknown):
        await two.service.multi([Set("/x", b"3")], 1.0)
    with pytest.raises(OutcomeUnknown):
        await two.service.sync(1.0)
    await two.until(lambda: two.links[-1] == "suspended")
    await two.until(lambda: two.links[-1] == "connected")
    assert _data(await two.get("/x")) == b"2"
    assert two.service._kazoo not in follower.clients


@simulated
async def test_another_leader_is_elected_and_sessions_go_on(world: ZooKeeperWorld) -> None:
    leader = world.ensemble.leader
    assert leader is not None
    one, _ = await _client(world, at=_others(world, leader)[0])
    await one.do(Create("/x", b"1", ephemeral=True))
    leader.kill()
    with pytest.raises(ServiceError):
        await one.service.multi([Set("/x", b"2")], 1.0)
    while world.ensemble.leader in (None, leader) or not one.service.connected:  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.5)
    assert (await one.do(Set("/x", b"3")))[0] in (1, 2)
    leader.restart()
    await asyncio.sleep(5)
    assert leader.nodes["/x"].data == b"3"
    assert one.links.count("lost") == 0


@simulated
async def test_without_a_majority_nothing_is_written_and_no_session_ends(world: ZooKeeperWorld) -> None:
    one, server = await _client(world, 4.0)
    await one.do(Create("/x", b"1", ephemeral=True))
    rest = _others(world, server)
    for other in rest:
        other.kill()
    await asyncio.sleep(60)
    assert not one.service.connected
    with pytest.raises(Disconnected):
        await one.service.multi([Set("/x", b"2")], 1.0)
    for other in rest:
        other.restart()
    await one.until(lambda: one.links[-1] == "connected")
    assert one.links == ["connected", "suspended", "connected"]
    node = await one.get("/x")
    assert node is not None
    assert (node.data, node.owner) == (b"1", one.session)


@simulated
async def test_the_session_of_a_frozen_process_ends_and_of_one_that_is_cut_off(world: ZooKeeperWorld) -> None:
    watcher, _ = await _client(world)
    for number, fault in enumerate(("freeze", "cut")):
        one, _ = await _client(world, 4.0)
        process, path = world.processes[-1], f"/x{number}"
        await one.do(Create(path, b"", ephemeral=True))
        partition = Partition(world, process)
        if fault == "freeze":
            process.freeze()
        else:
            partition.cut()
        await asyncio.sleep(3)
        await watcher.sync()
        assert await watcher.get(path) is not None, "the leader has heard of it a moment ago"
        await asyncio.sleep(5)
        await watcher.sync()
        assert await watcher.get(path) is None
        process.thaw()
        partition.heal()
        await one.until(lambda one=one: one.links[-2:] == ["lost", "connected"])  # type: ignore[misc]


@simulated
async def test_a_multi_is_executed_as_a_whole_or_not_at_all_whatever_breaks(world: ZooKeeperWorld) -> None:
    one, _ = await _client(world)
    watcher, _ = await _client(world)
    await one.do(Create("/x", b"0"), Create("/y", b"0"))
    unknown = 0
    for number in range(40):
        data = b"%d" % number
        if number % 4 == 0:
            client = one.service._kazoo
            world.loop.call_later(world.random() * 0.004, client.dropper(), context=client.context)
        try:
            await one.service.multi([Set("/x", data), Set("/y", data)], 5.0)
        except (OutcomeUnknown, Disconnected):
            unknown += 1
            await one.until(lambda: one.service.connected)
        await watcher.sync()
        x, y = await watcher.get("/x"), await watcher.get("/y")
        assert x is not None
        assert y is not None
        assert (x.data, x.version) == (y.data, y.version)
    assert unknown
