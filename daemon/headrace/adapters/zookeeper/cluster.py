"""The cluster service that ZooKeeper is: one session a process, its locks, its state store, and who runs what."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from headrace.adapters.zookeeper.errors import Refused, ZooKeeperError
from headrace.adapters.zookeeper.lock import ZooKeeperLock
from headrace.adapters.zookeeper.operations import Create, Delete, Set, read_json
from headrace.adapters.zookeeper.paths import node_name
from headrace.adapters.zookeeper.session import Session
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.adapters.zookeeper.state import ZooKeeperStore
from headrace.ports.cluster import BALANCE, Assignment, Cluster, Lock, Member, View, number_of


class ZooKeeperCluster(Cluster):
    """See Cluster. `session` is open from start() to close()."""

    def __init__(self, settings: ZooKeeperSettings, member: Member) -> None:
        self._member = member
        info = {"address": member.address, "max": member.max_destinations}
        self.session = Session(settings, member.node, info, member=not member.command, capacity=member.max_destinations)
        self.counts = self.session.counts
        self.store = ZooKeeperStore(self.session)

    async def start(self) -> None:
        await self.session.start()

    async def close(self) -> None:
        await self.session.close()

    def lock(self, destination: str) -> Lock:
        return ZooKeeperLock(self.session, destination, self._member.node, self._member.address)

    async def look(self) -> View:
        session, paths = self.session, self.session.paths
        members, drains, names = await asyncio.gather(
            session.members(), session.children(paths.drains), session.children(paths.destinations)
        )
        assignments = await asyncio.gather(*(self._assignment(name) for name in sorted(names)))
        return View(
            members, frozenset(map(node_name, drains)), {assignment.name: assignment for assignment in assignments}
        )

    async def _assignment(self, name: str) -> Assignment:
        session, paths = self.session, self.session.paths.destination(name)
        running, move, nodes = await asyncio.gather(
            session.get(paths.running), session.get(paths.move), session.read_children(paths.candidates)
        )
        info = read_json(running.data) if running is not None else {}
        found = {one: read_json(node.data) for one, node in nodes.items()}
        found.pop(str(info.get("node", "")), None)
        return Assignment(
            name,
            str(info.get("node", "")),
            str(info.get("address", "")),
            number_of(info, "epoch"),
            number_of(info, "since"),
            frozenset(one for one, data in found.items() if data.get("ready", True)),
            tuple(sorted(found)),
            str(read_json(move.data).get("to", "")) if move is not None else "",
            move.changed_ms * 1000 if move is not None else 0,
            str(info.get("moved_by", "")) not in ("", BALANCE),
        )

    async def ask_to_move(self, destination: str, node: str, by: str) -> None:
        path = self.session.paths.destination(destination).move
        data = _note(to=node, by=by)
        for _ in range(3):
            try:
                there = await self.session.get(path)
                await self.session.multi(Set(path, data, there.version) if there else Create(path, data))
                return
            except Refused as refused:
                if refused.why not in ("no_node", "node_exists", "bad_version"):
                    raise
        raise ZooKeeperError(f"several daemons or operators move {destination} at the same time; try again")

    async def drain(self, node: str, by: str) -> None:
        await self._unless("node_exists", Create(self.session.paths.drain(node), _note(by=by)))

    async def undrain(self, node: str) -> None:
        await self._unless("no_node", Delete(self.session.paths.drain(node)))

    async def _unless(self, why: str, operation: Create | Delete) -> None:
        try:
            await self.session.multi(operation)
        except Refused as refused:
            if refused.why != why:
                raise


def _note(**what: Any) -> bytes:
    return orjson.dumps({**what, "at": time.time_ns() // 1000})
