"""An ensemble in a simulated network, and tests that run in it in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast

import pytest

from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from sim.loop import Process, SimLoop
from sim.network import Network
from sim.runtime import SimRuntime
from sim.zookeeper.client import ENSEMBLE, SimZooKeeper
from sim.zookeeper.ensemble import Ensemble

T = TypeVar("T")
_LIMIT = 900.0
"""Virtual seconds that a test may take."""


class ZooKeeperWorld:
    """Some servers. `daemon()` makes the processes that their clients run in."""

    def __init__(self, seed: int, servers: int = 3) -> None:
        self.loop = SimLoop(random.Random(f"order {seed}"))
        self.network = Network(self.loop, random.Random(f"network {seed}"))
        names = [f"zk{number}" for number in range(1, servers + 1)]
        self.ensemble = Ensemble(self.loop, self.network, random.Random(f"ensemble {seed}"), names)
        self._rng = random.Random(f"runtimes {seed}")
        self.processes = list[Process]()

    def random(self) -> float:
        return self._rng.random()

    def daemon(self, name: str) -> Process:
        process = Process(self.loop, name)
        process.base.run(ENSEMBLE.set, self.ensemble)
        SimRuntime(self.loop, self._rng, process, lambda status: process.end())
        self.processes.append(process)
        return process

    def service(self, root: str, process: Process | None = None, timeout: float = 10.0) -> SimZooKeeper:
        """An adapter that is not open; `process` is where its client runs, as a rule that of the test."""
        settings = ZooKeeperSettings.model_validate({"hosts": "zk1:2181", "root": root, "session_timeout": timeout})
        made = SimZooKeeper(settings)
        if process is not None:
            make = made._make
            made._make = lambda: process.context().run(make)  # type: ignore[method-assign]
        return made

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in a process of its own."""

        async def limited() -> T:
            async with asyncio.timeout(_LIMIT):
                return await main

        try:
            return cast(T, self.loop.run_until_complete(self.start(limited())))
        finally:
            left = [task for process in self.processes for task in process.tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(self.start(_ended(left)))

    def start(self, work: Coroutine[Any, Any, T], process: Process | None = None) -> asyncio.Task[T]:
        """Starts a task in a process, as a rule in one of its own."""
        process = process or self.daemon("test")
        return self.loop.create_task(work, context=process.context())


class Partition:
    """Faults between a process and all servers."""

    def __init__(self, world: ZooKeeperWorld, process: Process) -> None:
        self._world, self._name = world, process.name

    def _pairs(self) -> list[tuple[str, str]]:
        names = self._world.ensemble.servers
        return [(self._name, one) for one in names] + [(one, self._name) for one in names]

    def cut(self) -> None:
        for pair in self._pairs():
            self._world.network.block(*pair)

    def heal(self) -> None:
        for pair in self._pairs():
            self._world.network.unblock(*pair)

    async def reset(self) -> None:
        for server in self._world.ensemble.servers.values():
            for client in list(server.clients):
                if client.process.name == self._name:
                    client.dropper()()


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)


def simulated(test: Callable[..., Coroutine[Any, Any, None]], seeds: int = 1) -> Callable[[int], None]:
    """Makes a test of a coroutine function, which gets the world; it runs with each of some seeds."""

    @wraps(test)
    def in_virtual_time(seed: int) -> None:
        made = ZooKeeperWorld(seed)
        made.run(test(made))

    del in_virtual_time.__wrapped__  # for pytest it is no coroutine function
    return cast(Callable[[int], None], pytest.mark.parametrize("seed", range(seeds))(in_virtual_time))
