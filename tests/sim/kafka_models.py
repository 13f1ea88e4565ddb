"""Models of Kafka behind real sockets: in the test's own loop, or in a thread for tests that block theirs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import TypeVar

from sim.kafka.cluster import Cluster
from sim.kafka.settings import ClusterSettings
from tests import once
from tests.proxy import Proxy

T = TypeVar("T")


def now_us() -> int:
    return time.time_ns() // 1000


@asynccontextmanager
async def listening(brokers: int = 1, settings: ClusterSettings | None = None) -> AsyncIterator[Cluster]:
    """A cluster whose brokers listen on loopback ports. Requests that it does not know fail the test."""
    cluster = Cluster(Random(1), now_us, brokers=brokers, settings=settings)
    servers = [await _listen(cluster, number, "") for number in cluster.brokers]
    try:
        yield cluster
        assert cluster.unknown == []
    finally:
        await _end(cluster, servers)


async def _listen(cluster: Cluster, number: int, listener: str) -> asyncio.Server:
    broker = cluster.brokers[number]
    server = await asyncio.get_running_loop().create_server(partial(broker.protocol, listener), "127.0.0.1", 0)
    broker.addresses[listener] = server.sockets[0].getsockname()
    return server


async def _end(cluster: Cluster, servers: list[asyncio.Server]) -> None:
    for broker in cluster.brokers.values():
        broker.reset_connections()
    for server in servers:
        server.close()
    await asyncio.sleep(0)


class ThreadedCluster:
    """A cluster of one broker in a thread with its own loop."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop, servers: list[asyncio.Server]) -> None:
        self.cluster, self._loop, self._servers = cluster, loop, servers

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    def call(self, function: Callable[[], T]) -> T:
        """Calls a function in the cluster's thread."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def listen(self, listener: str, advertise: Callable[[int], int]) -> None:
        """Adds a listener whose clients are told another port, a proxy's."""

        async def add() -> None:
            self._servers.append(await _listen(self.cluster, 1, listener))
            host, port = self.cluster.brokers[1].addresses[listener][:2]
            self.cluster.brokers[1].addresses[listener] = host, advertise(port)

        asyncio.run_coroutine_threadsafe(add(), self._loop).result(10)


@contextmanager
def threaded(settings: ClusterSettings | None = None) -> Iterator[ThreadedCluster]:
    cluster = Cluster(Random(1), now_us, settings=settings)
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    servers: list[asyncio.Server] = []

    async def serve() -> None:
        servers.append(await _listen(cluster, 1, ""))
        started.set()
        await stop.wait()
        await _end(cluster, servers)

    started = threading.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield ThreadedCluster(cluster, loop, servers)
        assert cluster.unknown == []
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


class ProxiedModel(once.Cluster):
    """The model as the tests of exactly once want a cluster: also behind a proxy."""

    def __init__(self, model: ThreadedCluster, proxy: Proxy) -> None:
        super().__init__(model, proxy, f"127.0.0.1:{proxy.port}")
        self.bootstrap_servers = model.bootstrap_servers


@contextmanager
def proxied() -> Iterator[ProxiedModel]:
    """A model that gives up left transactions within a second, as the tests of exactly once want it."""
    proxies: list[Proxy] = []

    def advertise(port: int) -> int:
        proxies.append(Proxy("127.0.0.1", port))
        return proxies[-1].port

    with threaded(ClusterSettings(timeout_scan=0.5)) as model:
        model.listen("PROXIED", advertise)
        try:
            yield ProxiedModel(model, proxies[0])
        finally:
            for proxy in proxies:
                proxy.close()
