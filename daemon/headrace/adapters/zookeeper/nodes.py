"""Nodes of other programs in a ZooKeeper ensemble, for a command that reads or writes a few of them."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from headrace.adapters.zookeeper.client import Client
from headrace.adapters.zookeeper.errors import ZooKeeperError
from headrace.adapters.zookeeper.operations import Create, Op, Set
from headrace.adapters.zookeeper.settings import ZooKeeperSettings

_LIMIT = 10.0
"""Seconds for connecting, and for each answer."""


class ForeignNodes:
    """A session of its own. Every call raises LockServiceError."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self._connected = asyncio.Event()
        self._client = Client(settings, self._on_link)

    def _on_link(self, state: str, session: int, granted: float) -> None:
        if state == "connected":
            self._connected.set()

    async def __aenter__(self) -> Self:
        self._client.begin()
        try:
            async with asyncio.timeout(_LIMIT):
                await self._connected.wait()
        except TimeoutError:
            await self._client.stop()
            why = f": {self._client.last_problem}" if self._client.last_problem else ""
            hosts = ",".join(self._settings.hosts)
            raise ZooKeeperError(f"ZooKeeper at {hosts} can't be reached within {_LIMIT:g} s{why}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.stop()

    async def get(self, path: str) -> bytes | None:
        """What a node holds; None when it is not there. One without data, as Canal's client makes them, holds b""."""
        node = await self._client.get(path, _LIMIT)
        return (node.data or b"") if node is not None else None

    async def put(self, path: str, data: bytes) -> None:
        """Sets what a node holds, and makes it and those above it when they are missing."""
        parts = path.strip("/").split("/")
        above = ["/" + "/".join(parts[:count]) for count in range(1, len(parts))]
        missing: list[Op] = [Create(one, b"") for one in above if await self.get(one) is None]
        there = await self.get(path) is not None
        await self._client.multi([*missing, Set(path, data) if there else Create(path, data)], _LIMIT)
