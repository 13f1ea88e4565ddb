"""Reads and writes a few nodes of other programs in a ZooKeeper ensemble, for commands."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from headrace.adapters.zookeeper.service import ZooKeeper
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.ports.lock_service import Create, Link, ServiceError, Set

_LIMIT = 10.0
"""Maximum seconds to connect, and for each answer."""


class ForeignNodes:
    """A separate session. Every call raises LockServiceError."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._connected = asyncio.Event()
        self._service = ZooKeeper(settings)

    def _on_link(self, state: Link, session: int, granted: float) -> None:
        if state == "connected":
            self._connected.set()

    async def __aenter__(self) -> Self:
        self._service.open(self._on_link)
        try:
            async with asyncio.timeout(_LIMIT):
                await self._connected.wait()
        except TimeoutError:
            await self._service.close()
            why = f": {self._service.last_problem}" if self._service.last_problem else ""
            hosts = self._service.address
            raise ServiceError(f"ZooKeeper at {hosts} can't be reached within {_LIMIT:g} s{why}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._service.close()

    async def get(self, path: str) -> bytes | None:
        """Returns the data of a node; None if it does not exist. A node without data, as Canal's client makes them, has
        b""."""
        node = await self._service.get(path, _LIMIT)
        return (node.data or b"") if node is not None else None

    async def put(self, path: str, data: bytes) -> None:
        """Writes the data of a node, and creates it and its parents if they are missing."""
        there = await self.get(path) is not None
        await self._service.multi([Set(path, data) if there else Create(path, data)], _LIMIT)
