"""The queue of daemons that wait for a lock: our position in it, and what is seen from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from headrace import runtime
from headrace.cluster.session import NodeNameTaken, Session
from headrace.ports.lock_service import Delete, Node, Op, Set, read_json
from headrace.tasks import all_of


@dataclass(frozen=True, slots=True)
class View:
    """The result of one check."""

    running: Node | None
    waiting: tuple[str, ...]
    """The daemons in the queue, without the holder; the preferred one first."""
    preferred: str
    """A live candidate that must get the lock next; "" if there is none."""
    move: Node | None
    """The request for it."""


def holder_of(running: Node | None) -> dict[str, Any]:
    """Returns node, address, epoch and since of the holder; empty if there is none."""
    return {} if running is None else {"node": "", **read_json(running.data)}


class LockQueue:
    """The candidates of one destination, in the order in which their nodes were created; those that are not ready come
    last. `wake` is called when something changes that concerns us."""

    def __init__(self, session: Session, destination: str, node: str, wake: Callable[[], None]) -> None:
        self._session, self._destination, self._node, self._wake = session, destination, node, wake
        self._paths = session.paths.destination(destination)
        self._generation = -1
        """The session that our node belongs to; -1: there is none."""
        self._watched: set[str] = set()
        self._taken_since = 0.0
        self.ready = True
        self.reported: bool | None = None
        """What our node says about it; None if unknown."""

    @property
    def joined(self) -> bool:
        """Returns whether our node exists."""
        return self._generation == self._session.generation

    def forget(self) -> None:
        """Records that our node is being deleted."""
        self._generation = -1

    def mark(self, *, holds: bool) -> Op:
        """Returns the write of our node, which wakes the daemon after us."""
        return Set(self._paths.candidate(self._node), self._data(holds=holds))

    def leave(self) -> Delete:
        """Returns the deletion of our node."""
        return Delete(self._paths.candidate(self._node))

    async def join(self) -> bool:
        """Creates our node; returns False while one of a former session of ours still exists. Raises
        LockServiceError."""
        if self.joined:
            return True
        generation, ready = self._session.generation, self.ready
        there = await self._session.put_up(self._paths.candidate(self._node), self._data(holds=False), generation)
        if there is None:
            self.reported = ready
        elif self._session.owns(there):
            self.reported = bool(read_json(there.data).get("ready", True))
        else:
            self._check_name()
            return False
        self._generation, self._taken_since = generation, 0.0
        return True

    async def verify(self) -> None:
        """Checks our node after a write whose condition failed: it may have been deleted by hand."""
        if not self._session.owns(await self._session.get(self._paths.candidate(self._node))):
            self._generation = -1

    async def view(self, *, watch: bool) -> View:
        """Returns who holds the lock and who waits. Only the first in the queue watches the holder, so that a release
        wakes one daemon; the others watch the one before them, whose node changes when it takes the lock or leaves."""
        get_move = self.watch(self._paths.move) if watch else self._session.get(self._paths.move)
        running, move, nodes = await all_of(
            self._session.get(self._paths.running), get_move, self._session.read_children(self._paths.candidates)
        )
        candidates = sorted(
            (not read_json(node.data).get("ready", True), node.created, name) for name, node in nodes.items()
        )
        holder = read_json(running.data).get("node") if running is not None else None
        waiting = [name for _, _, name in candidates if name != holder]
        wanted = str(read_json(move.data).get("to", "")) if move is not None else ""
        preferred = wanted if wanted in waiting else ""
        if preferred:
            waiting.remove(preferred)
            waiting.insert(0, preferred)
        if watch and self._node in waiting:
            turn = waiting.index(self._node)
            if turn == 0:
                running = await self.watch(self._paths.running)
            else:
                await self.watch(self._paths.candidate(waiting[turn - 1]))
        return View(running, tuple(waiting), preferred, move)

    async def watch(self, path: str) -> Node | None:
        """Reads a node, and calls `wake` when it changes. Once each: a watch that has not fired is still active."""
        if path in self._watched:
            return await self._session.get(path)
        self._watched.add(path)

        def fired() -> None:
            self._watched.discard(path)
            self._wake()

        try:
            return await self._session.get(path, fired)
        except BaseException:
            self._watched.discard(path)
            raise

    def _data(self, *, holds: bool) -> bytes:
        return orjson.dumps({"ready": self.ready, "holds": holds})

    def _check_name(self) -> None:
        now = runtime.monotonic()
        self._taken_since = self._taken_since or now
        if now - self._taken_since > self._session.timeout + 5.0:
            raise NodeNameTaken(
                f"another daemon has the name {self._node} and waits for {self._destination}",
                remedy="give each daemon its own [daemon] node",
            )
