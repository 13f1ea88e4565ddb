"""The project's adapter on a real ZooKeeper and on the model: the same operations, the same answers."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from headrace.adapters.zookeeper.service import ZooKeeper
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from tests.proxy import Proxy
from tests.sim.zookeeper_models import Partition, ZooKeeperWorld
from tests.sim.zookeeper_script import Client, lost_script, script

pytestmark = pytest.mark.server


def real_service(hosts: str, root: str, timeout: float = 10.0) -> ZooKeeper:
    settings = ZooKeeperSettings.model_validate({"hosts": hosts, "root": root, "session_timeout": timeout})
    return ZooKeeper(settings)


async def test_the_same_script_has_the_same_answers(zookeeper: Any) -> None:
    root = f"/conform-{uuid.uuid4().hex[:8]}"

    async def real() -> Client:
        return await Client(real_service(zookeeper.hosts, root)).opened()

    expected = await script(real, root)
    for seed, servers in ((0, 1), (1, 3), (2, 3)):
        world = ZooKeeperWorld(seed, servers)

        async def modelled(world: ZooKeeperWorld = world) -> Client:
            return await Client(world.service(root)).opened()

        assert world.run(script(modelled, root)) == expected


class _Proxied:
    """Faults of a real connection."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy

    def cut(self) -> None:
        self.proxy.freeze()

    def heal(self) -> None:
        self.proxy.thaw()

    async def reset(self) -> None:
        self.proxy.close_all()


async def test_a_connection_that_breaks_and_a_session_that_ends_are_seen_in_the_same_way(zookeeper: Any) -> None:
    root = f"/lost-{uuid.uuid4().hex[:8]}"
    host, _, port = zookeeper.hosts.partition(":")
    with Proxy(host, int(port)) as proxy:
        one = await Client(real_service(f"127.0.0.1:{proxy.port}", root, 4.0)).opened()
        two = await Client(real_service(zookeeper.hosts, root, 4.0)).opened()
        expected = await lost_script(one, two, _Proxied(proxy), root)
        await one.close()
        await two.close()
    for seed, servers in ((0, 1), (1, 3), (2, 3)):
        world = ZooKeeperWorld(seed, servers)

        async def modelled(world: ZooKeeperWorld = world) -> Any:
            apart = world.daemon("apart")
            one = await Client(world.service(root, apart, 4.0)).opened()
            two = await Client(world.service(root, timeout=4.0)).opened()
            return await lost_script(one, two, Partition(world, apart), root)

        assert world.run(modelled()) == expected
