"""A lock service in one file, in the memory of one process: what a new one needs besides a line of registration.

Each LockService object is a session; those of one `room` share its nodes.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from pydantic import Field

from headrace.ports.lock_service import (
    ClusterAdapter,
    Create,
    Delete,
    Disconnected,
    Link,
    LockService,
    Node,
    Op,
    Refused,
    Set,
    Why,
)
from headrace.settings.adapters import ClusterSettings

ROOMS: dict[str, Room] = {}
NUMBERS = itertools.count(1)


class Room:
    """What all sessions share."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.watches: dict[str, list[Callable[[], None]]] = {}

    def put(self, path: str, node: Node | None) -> int:
        self.nodes.pop(path, None)
        if node is not None:
            self.nodes[path] = node
        for watch in self.watches.pop(path, []):
            asyncio.get_running_loop().call_soon(watch)
        return 0 if node is None else node.version

    def misfit(self, one: Op) -> Why | None:
        """Why an operation can't be done now."""
        there = self.nodes.get(one.path)
        if isinstance(one, Create):
            return None if there is None else "node_exists"
        if there is None:
            return "no_node"
        return None if one.version in (-1, there.version) else "bad_version"

    def do(self, one: Op, session: int) -> int:
        there, number = self.nodes.get(one.path), next(NUMBERS)
        if isinstance(one, Create):
            return self.put(one.path, Node(one.data, number, session if one.ephemeral else 0, number))
        if isinstance(one, Set) and there is not None:
            return self.put(one.path, Node(one.data, number, there.owner, there.created))
        return self.put(one.path, None) if isinstance(one, Delete) else 0


class ToyClusterSettings(ClusterSettings):
    """[toy]: a room in memory."""

    service: ClassVar[str] = "toy"
    room: str = Field(description="The room's name.")


class ToyService(LockService):
    title = "the toy"
    name = "toy"
    root = "/toy"
    timeout = 2.0

    def __init__(self, settings: ToyClusterSettings) -> None:
        self.address, self._room = settings.room, ROOMS.setdefault(settings.room, Room())
        self._session = 0

    def open(self, on_link: Callable[[Link, int, float], None]) -> None:
        self._session = next(NUMBERS)
        asyncio.get_running_loop().call_soon(on_link, "connected", self._session, self.timeout)

    async def close(self) -> None:
        ended, self._session = self._session, 0
        for path, node in [*self._room.nodes.items()]:
            if node.owner == ended != 0:
                self._room.put(path, None)

    @property
    def connected(self) -> bool:
        return self._session != 0

    async def get(self, path: str, limit: float, watch: Callable[[], None] | None = None) -> Node | None:
        self._ensure_open()
        if watch is not None:
            self._room.watches.setdefault(path, []).append(watch)
        return self._room.nodes.get(path)

    async def children(self, path: str, limit: float) -> list[str]:
        self._ensure_open()
        below = (one.removeprefix(f"{path}/") for one in self._room.nodes if one.startswith(f"{path}/"))
        return [*dict.fromkeys(one.partition("/")[0] for one in below)]

    async def sync(self, limit: float) -> None:
        self._ensure_open()

    async def multi(self, operations: Sequence[Op], limit: float) -> list[int]:
        self._ensure_open()
        for index, one in enumerate(operations):
            if (why := self._room.misfit(one)) is not None:
                raise Refused(f"{one.path} does not fit", why, index)
        return [self._room.do(one, self._session) for one in operations]

    async def prove(self, operations: Sequence[Op], limit: float) -> float:
        await self.multi(operations, limit)
        return time.monotonic()

    def write_soon(self, path: str, data: bytes) -> None:
        """There is no other process that could read it."""

    async def problem(self, path: str, limit: float) -> str:
        return ""

    def _ensure_open(self) -> None:
        if not self._session:
            raise Disconnected("the toy is put away")


class ToyClusterAdapter(ClusterAdapter):
    section = ToyClusterSettings

    def service(self, settings: ToyClusterSettings) -> LockService:
        return ToyService(settings)
