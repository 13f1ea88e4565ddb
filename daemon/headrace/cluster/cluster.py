"""Daemons that share destinations through a lock service, as one process sees them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import orjson

from headrace import runtime
from headrace.cluster.lock import SharedLock
from headrace.cluster.paths import node_name
from headrace.cluster.session import Session
from headrace.cluster.state import ClusterStore
from headrace.cluster.view import BALANCE, Assignment, View, number_of
from headrace.ports.lock import Lock
from headrace.ports.lock_service import Create, Delete, LockService, Refused, ServiceError, Set, read_json
from headrace.tasks import all_of


@dataclass(frozen=True, slots=True)
class Member:
    """A process that takes part in a cluster."""

    node: str
    address: str
    """The address at which operators find the daemon: that of HTTP, or its host."""
    max_destinations: int = 0
    """Maximum number of destinations that it may run; 0: any number."""
    command: bool = False
    """Whether it is an operator's command: not a member, not visible to others, and it creates nothing."""


class Cluster:
    """One session with the service, its locks, its state store, and who runs what. Every call has a time limit and
    raises LockServiceError if the service does not answer, or does not do what is requested."""

    def __init__(self, service: LockService, member: Member) -> None:
        self._member = member
        info = {"address": member.address, "max": member.max_destinations}
        self.session = Session(service, member.node, info, member=not member.command, capacity=member.max_destinations)
        self.counts = self.session.counts
        self.store = ClusterStore(self.session)
        """The positions of all destinations."""

    async def start(self) -> None:
        """Connects and joins the members. Raises LockServiceError; nothing is open then."""
        await self.session.start()

    async def close(self) -> None:
        """Releases all locks and leaves the members; safe to call twice. Never raises."""
        await self.session.close()

    def lock(self, destination: str) -> Lock:
        """Returns the lock of a destination, not taken."""
        return SharedLock(self.session, destination, self._member.node, self._member.address)

    async def view(self) -> View:
        """Reads the members, and the node of each destination."""
        session, paths = self.session, self.session.paths
        members, drains, names = await all_of(
            session.members(), session.children(paths.drains), session.children(paths.destinations)
        )
        assignments = await all_of(*(self._assignment(name) for name in sorted(names)))
        return View(
            members, frozenset(map(node_name, drains)), {assignment.name: assignment for assignment in assignments}
        )

    async def _assignment(self, name: str) -> Assignment:
        session, paths = self.session, self.session.paths.destination(name)
        running, move, nodes = await all_of(
            session.get(paths.running), session.get(paths.move), session.read_children(paths.candidates)
        )
        info = read_json(running.data) if running is not None else {}
        request = read_json(move.data) if move is not None else {}
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
            str(request.get("to", "")),
            number_of(request, "at"),
            str(info.get("moved_by", "")) not in ("", BALANCE),
        )

    async def ask_to_move(self, destination: str, node: str, by: str) -> None:
        """Requests that `node` runs a destination next; the holder hands it over in order. `by` names who requests
        it."""
        path = self.session.paths.destination(destination).move
        data = _note(to=node, by=by)
        for _ in range(3):
            with _unless("no_node", "node_exists", "bad_version"):
                there = await self.session.get(path)
                if there is not None and by == BALANCE and read_json(there.data).get("by") != BALANCE:
                    return  # an operator has requested something else meanwhile
                await self.session.multi(Set(path, data, there.version) if there else Create(path, data))
                return
        raise ServiceError(f"several daemons or operators move {destination} at the same time; try again")

    async def drain(self, node: str, by: str) -> None:
        """Requests that a daemon runs nothing, until undrain(). Safe to repeat."""
        with _unless("node_exists"):
            await self.session.multi(Create(self.session.paths.drain(node), _note(by=by)))

    async def undrain(self, node: str) -> None:
        """Lets a daemon run destinations again. Safe to repeat."""
        with _unless("no_node"):
            await self.session.multi(Delete(self.session.paths.drain(node)))


@contextlib.contextmanager
def _unless(*whys: str) -> Any:
    try:
        yield
    except Refused as refused:
        if refused.why not in whys:
            raise


def _note(**what: Any) -> bytes:
    return orjson.dumps({**what, "at": runtime.now_us()})
