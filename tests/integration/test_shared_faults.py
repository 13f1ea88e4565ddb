"""Shared locks and positions while each daemon's network fails at random: never two holders, no write lost."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from typing import Any

import pytest

from devstack import Stack
from headrace.cluster.lock import SharedLock
from headrace.cluster.state import ClusterStore
from headrace.errors import Fenced, LeaseLapsed, LockServiceError, StateStoreError
from headrace.model import Position
from headrace.ports.state import StateChange
from tests.lock_bench import SERVICES, Keeper, within
from tests.proxy import Proxy

pytestmark = pytest.mark.server

SECONDS = float(os.environ.get("HEADRACE_FAULT_SECONDS", "10"))
SEED = int(os.environ.get("HEADRACE_FAULT_SEED", "6"))


class Worker:
    """A daemon that takes the destination, counts its position up one by one, and gives it back."""

    def __init__(self, keeper: Keeper, name: str, proxies: list[Proxy], noise: random.Random) -> None:
        self._zoo, self._name, self._noise = keeper, name, noise
        self.proxies = proxies
        self.lock: SharedLock | None = None
        self.counts: Counter[str] = Counter()
        self.published: list[tuple[int, int]] = []
        """(epoch, number) in the order in which they were handed over."""

    async def start(self) -> None:
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies)
        session = await self._zoo.session(self._name, hosts)
        self.lock, self._store = SharedLock(session, "shop", self._name, ""), ClusterStore(session)

    async def run(self, log: list[tuple[int, int]]) -> None:
        while True:
            try:
                await self._once(log)
            except (LockServiceError, StateStoreError, Fenced, LeaseLapsed) as error:
                self.counts[type(error).__name__] += 1
                await asyncio.sleep(0.05)
            finally:
                if self.lock is not None:
                    await self.lock.release()

    async def _once(self, log: list[tuple[int, int]]) -> None:
        lock, store = self.lock, self._store
        assert lock is not None

        async def known_epoch() -> int:
            return (await store.load("shop")).epoch

        await lock.acquire(known_epoch)
        self.counts["taken"] += 1
        stored = await store.load("shop")
        guard = await store.begin_epoch("shop", term=lock.term)
        if guard.version != stored.version:
            raise Fenced("moved meanwhile")
        number = 0 if stored.position is None else stored.position.offset
        for _ in range(self._noise.randrange(1, 60)):
            lock.lease.check()
            log.append((guard.epoch, number + 1))
            entries: tuple[dict[str, Any], ...] = ({"number": number + 1},) if self._noise.random() < 0.2 else ()
            guard = await store.commit("shop", guard, StateChange(Position("u", "f", number + 1), entries))
            number += 1
            self.counts["written"] += 1
            await asyncio.sleep(self._noise.random() * 0.01)


async def _inject(workers: list[Worker], noise: random.Random) -> None:
    while True:
        worker = noise.choice(workers)
        fault = noise.choice(["freeze", "blackhole", "close", "close", "cut"])
        for proxy in worker.proxies:
            if fault == "freeze":
                proxy.freeze()
            elif fault == "blackhole":
                proxy.blackhole()
            elif fault == "close":
                proxy.close_all()
            else:
                proxy.cut(noise.randrange(1, 200))
        await asyncio.sleep(noise.choice([0.05, 0.3, 1.0, 3.0]) if fault in ("freeze", "blackhole") else 0.1)
        for proxy in worker.proxies:
            proxy.thaw()
        await asyncio.sleep(noise.random() * 0.5)


async def _watch_leases(workers: list[Worker]) -> None:
    while True:
        good = [worker for worker in workers if worker.lock is not None and worker.lock.lease.remaining > 0]
        assert len(good) <= 1, "two leases are good at the same time"
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("kind", SERVICES)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.long
async def test_never_two_holders_and_no_write_lost_while_networks_fail(stack: Stack, kind: str) -> None:
    server, noise = getattr(stack, kind)(nodes=3), random.Random(SEED)
    keeper, log = Keeper(kind, server), list[tuple[int, int]]()
    proxies = [[Proxy(node.host, node.port) for node in server.nodes] for _ in range(3)]
    workers = [Worker(keeper, f"w{number}", mine, random.Random(SEED + number)) for number, mine in enumerate(proxies)]
    try:
        await asyncio.gather(*(worker.start() for worker in workers))
        tasks = [asyncio.create_task(worker.run(log)) for worker in workers]
        tasks += [asyncio.create_task(_inject(workers, noise)), asyncio.create_task(_watch_leases(workers))]
        done, _ = await asyncio.wait(tasks, timeout=SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        for mine in proxies:
            for proxy in mine:
                proxy.thaw()
        for task in tasks:
            task.cancel()
        await within(60, asyncio.gather(*tasks, return_exceptions=True))
        for task in done:
            task.result()
        counts = sum((worker.counts for worker in workers), Counter[str]())
        reader = ClusterStore(await keeper.session("reader"))
        stored = await reader.load("shop")
        assert stored.position is not None
        # Each write that was confirmed counts one, and one whose answer the daemon did not wait for may count too.
        assert stored.position.offset >= counts["written"]
        assert stored.version == stored.position.offset
        numbers = [entry["number"] for entry in await reader.schema_entries("shop")]
        assert numbers == sorted(set(numbers))
        epochs = [epoch for epoch, _ in log]
        assert epochs == sorted(epochs), "something was handed over under an epoch that was over"
        assert counts["taken"] >= SECONDS / 3
        print(dict(counts), stored.version)
    finally:
        await keeper.close()
        for mine in proxies:
            for proxy in mine:
                proxy.close()
        server.kill()
