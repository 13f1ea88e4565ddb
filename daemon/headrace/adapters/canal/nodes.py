"""Canal's own nodes in ZooKeeper, by which its clients find the server of a destination."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson
import structlog

from headrace.adapters.canal.settings import CanalSinkSettings
from headrace.canal_wire import canal_pb2 as pb
from headrace.canal_wire.cursor import CLIENT, canal_cursor, cursor_node, destination_node, node_data
from headrace.errors import LockServiceError, SinkError, SinkRejected
from headrace.model import Position
from headrace.ports.nodes import LockedNodes
from headrace.ports.sink import SinkUse
from headrace.tasks import cancel

log = structlog.get_logger(__name__)

_PERIOD, _LIMIT = 1.0, 2.0
"""Seconds between two writes (canal.zookeeper.flush.period), and maximum seconds to delete the nodes."""
_AGAIN = 5.0
"""Seconds until `running` is written again as long as no client has subscribed. A client of Canal that starts during a
take-over may keep the former address: what it read first can replace what it was notified of."""
_BY = {"by": "headrace"}
"""Added in `running` to Canal's fields: the node does not belong to a server of Canal."""


class CanalNodes:
    """The nodes of one destination, while this process runs it.

    `running` and the nodes of the server end with the process. `cursor` is what a client has acknowledged, `filter` is
    its filter; both stay, and nothing here reads them."""

    def __init__(self, settings: CanalSinkSettings, use: SinkUse) -> None:
        root, self._address = settings.zookeeper_path, settings.address
        self._nodes, self._destination, self._source = use.nodes, use.destination, use.source
        node = destination_node(use.destination, root)
        self._running = f"{node}/running"
        self._servers = f"{node}/cluster/{self._address}", f"{root}/cluster/{self._address}"
        self._cursor, self._filter = cursor_node(use.destination, root), f"{node}/{CLIENT}/filter"
        self._wanted: dict[str, bytes] = {}
        """What must be written, by path."""
        self._acknowledged: tuple[Position, bytes] | None = None
        self._changed = asyncio.Event()
        self._unseen = True
        """Whether the nodes must be read."""
        self._met = False
        """Whether a client has subscribed."""
        self._keeping: asyncio.Task[None] | None = None

    async def announce(self) -> None:
        """Publishes this server to clients from now on. Raises SinkError, and SinkRejected if a server of Canal has the
        destination."""
        if self._nodes is None:
            raise SinkRejected(
                "Canal's nodes can't be written: the service that the daemons share has none",
                remedy="leave [sink] zookeeper_path out, or let the daemons share [zookeeper]",
            )
        try:
            await self._put(self._nodes)
        except LockServiceError as error:
            raise SinkError(f"Canal's nodes can't be written: {error}", remedy=error.remedy) from error
        self._keeping = asyncio.create_task(self._keep(self._nodes), name=f"canal nodes of {self._destination}")

    async def _put(self, nodes: LockedNodes, *, again: bool = False) -> None:
        there = _json(await nodes.get(self._running))
        if there.get("active") and not there.items() >= _BY.items():
            raise SinkRejected(
                f"a server of Canal at {there.get('address')} has the destination {self._destination}",
                remedy=f"stop it there; its node in ZooKeeper is {self._running}",
                retriable=True,
            )
        for path in reversed(self._servers):
            await nodes.put(path, b"", ephemeral=True)
        running = orjson.dumps({"active": True, "address": self._address, **_BY})
        await nodes.put(self._running, running, ephemeral=True, again=again)
        self._unseen = False
        if await nodes.get(self._running, self._on_deleted) != running:
            self._on_deleted()

    def _on_deleted(self) -> None:
        """Notices nodes that somebody has deleted."""
        self._unseen = True
        self._changed.set()

    async def _keep(self, nodes: LockedNodes) -> None:
        """Writes what has changed, what somebody has deleted, and `running` until a client has subscribed."""
        problem = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self._met else _AGAIN):
                    await self._changed.wait()
            again = not self._changed.is_set()
            self._changed.clear()
            try:
                if self._unseen or again:
                    await self._put(nodes, again=again)
                await self._write(nodes)
                problem = ""
            except (LockServiceError, SinkRejected) as error:
                self._changed.set()
                if str(error) != problem:
                    problem = str(error)
                    log.warning("Canal's nodes can't be written", destination=self._destination, error=problem)
            await asyncio.sleep(_PERIOD)

    async def _write(self, nodes: LockedNodes) -> None:
        if (done := self._acknowledged) is not None:
            self._wanted[self._cursor] = node_data(canal_cursor(done[0], self._source, _server_id(done[1])))
            self._acknowledged = None
        for path, data in [*self._wanted.items()]:
            await nodes.put(path, data)
            if self._wanted[path] == data:
                del self._wanted[path]

    def subscribed(self, filter_: str) -> None:
        """Records that a client has subscribed."""
        self._met = True
        self._wanted[self._filter] = filter_.encode()
        self._changed.set()

    def acknowledged(self, position: Position, entry: bytes) -> None:
        """Records that the client has acknowledged all entries before a position; `entry` is the last of them."""
        self._acknowledged = position, entry
        self._changed.set()

    async def withdraw(self, *, last: bool) -> None:
        """Removes this server, so that clients no longer find it. `last`: it serves no other destination. Never
        raises."""
        if self._nodes is None:
            return
        await cancel(self._keeping, limit=_LIMIT)
        try:
            async with asyncio.timeout(_LIMIT):
                await self._write(self._nodes)
                for path in (self._running, *self._servers[: 2 if last else 1]):
                    await self._nodes.remove(path)
        except (LockServiceError, TimeoutError) as error:  # then they end with the session, or are another daemon's
            log.info("Canal's nodes could not be removed", destination=self._destination, error=str(error))


def _server_id(entry: bytes) -> int:
    """Returns the id of the server that executed the change of an entry."""
    return int(pb.Entry.FromString(pb.Messages.FromString(entry).messages[0]).header.server_id)


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        found = orjson.loads(data or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
