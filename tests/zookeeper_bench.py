"""What the tests on ZooKeeper share: a root of the test's own, sessions as several daemons have them, and locks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any

from kazoo.client import KazooClient

from headrace.adapters.zookeeper.service import ZooKeeper
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.cluster.lock import SharedLock
from headrace.cluster.session import Session

_roots = itertools.count(1)
TIMEOUT = 2.0
"""Of the sessions, in seconds: the least that the settings allow."""


async def nothing_known() -> int:
    return 0


async def until(condition: Callable[[], bool], limit: float = 20) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not in {limit} s"
        await asyncio.sleep(0.02)


async def within(limit: float, work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(limit):
        return await work


class Ensemble:
    """A root of its own on a running ensemble, and everything that a test opens there."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.root = f"/test{next(_roots)}/headrace"
        self._opened: list[Session] = []
        self._operator: Any = None

    def service(self, hosts: str = "", **more: Any) -> ZooKeeper:
        raw = {"hosts": hosts or self.server.hosts, "root": self.root, "session_timeout": TIMEOUT, **more}
        return ZooKeeper(ZooKeeperSettings.model_validate(raw))

    async def session(self, node: str, hosts: str = "", **more: Any) -> Session:
        session = Session(self.service(hosts, **more), node, {"address": f"{node}:9180"})
        await session.start()
        self._opened.append(session)
        return session

    async def lock(self, node: str, destination: str = "shop", hosts: str = "", **more: Any) -> SharedLock:
        """A lock in a session of its own."""
        session = await self.session(node, hosts, **more)
        return SharedLock(session, destination, node, f"{node}:9180")

    @property
    def operator(self) -> Any:
        """A client of somebody with a shell."""
        if self._operator is None:
            self._operator = KazooClient(self.server.hosts)
            self._operator.start(15)
        return self._operator

    def node(self, path: str) -> str:
        return f"{self.root}/{path}"

    async def close(self) -> None:
        await asyncio.gather(*(session.close() for session in self._opened))
        if self._operator is not None:
            self._operator.stop()
            self._operator.close()
