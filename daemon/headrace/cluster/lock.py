"""The shared lock: an ephemeral node says who runs a destination; the version of its epoch node guards every write."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import orjson
import structlog

from headrace import runtime
from headrace.cluster.held_lock import HeldLock
from headrace.cluster.held_nodes import HeldNodes
from headrace.cluster.lock_queue import LockQueue, View, holder_of
from headrace.cluster.proofs import Holding
from headrace.cluster.session import Session
from headrace.errors import LockServiceError
from headrace.lease import NO_TERM, KnownEpoch, Lease, Term
from headrace.ports.lock import Hang, Lock
from headrace.ports.lock_service import (
    Check,
    Create,
    Delete,
    Node,
    Op,
    OutcomeUnknown,
    Refused,
    ServiceError,
    SessionOver,
    Set,
    read_json,
)
from headrace.ports.nodes import LockedNodes
from headrace.tasks import set_within

_log = structlog.get_logger(__name__)
_STEP = 1.0
"""Seconds that each position in the queue waits longer for those before it, and between two checks of a waiting
daemon."""
_PREFERENCE = 10.0
"""Seconds that the others wait for the daemon that an operator, or the balance, prefers."""
_FULL_LOOK = 10
"""After this many checks of the holder alone, the whole queue is checked."""
_RELEASE_LIMIT = 2.0
_NOT_HELD = "the lock is not held"


class SharedLock(Lock):
    """The lock of one destination. `address` is where people find this daemon (its HTTP address, or its host)."""

    shared = True

    def __init__(self, session: Session, destination: str, node: str, address: str) -> None:
        self._session = session
        self._name, self._node, self._address = destination, node, address
        self._paths = session.paths.destination(destination)
        self._wake = asyncio.Event()
        self._queue = LockQueue(session, destination, node, self._wake.set)
        self._held = HeldLock(session, destination, node)
        self.lease = Lease(1.0)
        self.lease.lose(_NOT_HELD)
        self._holding: Holding | None = None
        self._standing = -1
        """The session's generation in which a `running` of ours may exist; -1: there is none."""
        self._tried: set[int] = set()
        """The epochs that it may have: another lock of this process may have created its own in the same session."""
        self._seen: tuple[int, int] = (0, 0)
        """The holder's node as last seen, and how many times it was checked alone since."""
        self._noticed: tuple[tuple[int, int], float] = (0, 0), 0.0
        """The last request to move that was seen, and when."""
        self._missing_since = 0.0
        self._clearing: asyncio.Task[None] | None = None
        self.holder_info: dict[str, Any] = {}
        """node, address, epoch and since (microseconds since 1970) of the holder when it was last seen."""

    @property
    def holder(self) -> str:
        """Returns "node (address)" as last seen; empty if nobody held it."""
        info = self.holder_info
        return f"{info.get('node') or 'another daemon'} ({info.get('address') or '?'})" if info else ""

    @property
    def declined(self) -> str:
        if self._session.drained:
            return "this daemon is drained (headrace drain)"
        if self._session.is_full():
            return "this daemon runs as many as it may ([daemon] max_destinations)"
        return ""

    async def acquire(self, known_epoch: KnownEpoch) -> None:
        ignore = self._session.listen(self._wake.set)
        self._seen = 0, 0
        try:
            while not await self._attempt(known_epoch, waiting=True):
                await set_within(self._wake, _STEP)  # a watched node changes, or the next check is due
        except BaseException:
            await self._clear()
            raise
        finally:
            ignore()

    async def try_acquire(self, known_epoch: KnownEpoch) -> bool:
        taken = False
        try:
            taken = await self._attempt(known_epoch, waiting=False)
        finally:
            if not taken:
                await self._clear()
        return taken

    async def look(self) -> str:
        running = await self._session.get(self._paths.running)
        self.holder_info = holder_of(running)
        return self.holder

    async def set_ready(self, ready: bool) -> None:
        """Publishes whether this daemon is ready; in the queue, those that are not come after those that are. If it
        can't be published now, the next call does it."""
        self._queue.ready = ready
        if self._queue.joined and self._queue.reported is not ready and self._session.connected:
            try:
                await self._session.multi(self._queue.mark(holds=self._holding is not None))
                self._queue.reported = ready
            except LockServiceError as error:
                _log.warning(
                    "could not report to the others whether we are ready",
                    destination=self._name,
                    error=error.operator_text(),
                )

    async def hand_over_asked(self) -> str:
        return await self._held.hand_over_asked()

    def note_hang(self, hang: Hang) -> None:
        self._session.service.write_soon(self._paths.hang, orjson.dumps(asdict(hang)))

    async def hang(self) -> Hang | None:
        node = await self._session.get(self._paths.hang)
        if node is None:
            return None
        try:
            raw = read_json(node.data)
            return Hang(str(raw["place"]), str(raw["position"]), str(raw["program"]), int(raw["times"]))
        except (KeyError, TypeError, ValueError):  # another program's
            return None

    async def recovered(self) -> None:
        session, changed = self._session, asyncio.Event()
        ignore = session.listen(changed.set)
        before = (session.counts.suspensions, session.generation) if session.connected else None
        try:
            while not session.connected or (session.counts.suspensions, session.generation) == before:
                changed.clear()
                await set_within(changed, _STEP)  # the client may know more than it has reported
        finally:
            ignore()

    def nodes(self) -> LockedNodes | None:
        if self._holding is None or not self._session.service.serves_others:
            return None
        return HeldNodes(self._session, self._holding.checks, self._standing)

    async def release(self) -> None:
        self.lease.lose(_NOT_HELD)
        self._held.end()
        holding, self._holding = self._holding, None
        if holding is not None:
            self._session.proofs.drop(holding, _NOT_HELD)
            self.holder_info = {}
        self.term = NO_TERM
        await self._clear()

    # -- taking it ------------------------------------------------------------------------------------------------

    async def _attempt(self, known_epoch: KnownEpoch, *, waiting: bool) -> bool:
        """Checks the lock once and, if it is our turn, makes one attempt."""
        if self._holding is not None and not self.lease.lost:
            return True
        woken = self._wake.is_set()
        self._wake.clear()
        await self._stop_clearing()
        try:
            if self.declined:
                await self._clear()
                await self.look()  # people see who runs it
                return False
            if waiting and not (woken or self._queue.joined is False) and await self._same_holder():
                return False
            if waiting and not await self._queue.join():
                return False
            view = await self._queue.look(watch=waiting)
            self.holder_info = holder_of(view.running)
            self._seen = (view.running.created if view.running else 0), 0
            await self._see_our_turn(view, waiting=waiting)
            if not self._may_take(view, waiting=waiting) or not await self._queue.join():
                return False
            if self._session.is_full():  # checked again: several locks may have checked at the same time
                return False
            with self._session.taking():
                return await self._take(view, known_epoch)
        except SessionOver:
            return False
        except Refused as refused:
            if refused.why in ("no_node", "node_exists", "bad_version"):  # another daemon was faster, or nodes are gone
                await self._queue.verify()
                return False
            raise

    async def _see_our_turn(self, view: View, *, waiting: bool) -> None:
        """Creates our node again if it was deleted by hand, or with a former lock of this process."""
        if waiting and self._node not in view.waiting and not self._session.owns(view.running):
            await self._queue.verify()
            if not self._queue.joined:
                self._wake.set()

    async def _same_holder(self) -> bool:
        """Checks quickly while nothing happens, in case a watch was lost, or the first in the queue is frozen."""
        created, times = self._seen
        if not created or times >= _FULL_LOOK:
            return False
        self._seen = created, times + 1
        running = await self._session.get(self._paths.running)
        return running is not None and running.created == created

    def _may_take(self, view: View, *, waiting: bool) -> bool:
        if view.running is not None:
            self._missing_since = 0.0
            # A release of ours that could not be sent. A lock that another object of this process still holds is not
            # free.
            return self._session.owns(view.running) and not self._session.proofs.holding(self._name)
        now = runtime.monotonic()
        self._missing_since = self._missing_since or now
        if view.preferred == self._node:
            return True
        if view.preferred and view.move is not None:
            if self._noticed[0] != (request := (view.move.created, view.move.version)):
                self._noticed = request, now
            if not waiting or now < self._noticed[1] + _PREFERENCE:
                return False
        if not waiting:
            return True
        if self._node not in view.waiting:
            return False
        # If those before us are frozen, their turns pass.
        return now >= self._missing_since + view.waiting.index(self._node) * _STEP

    async def _take(self, view: View, known_epoch: KnownEpoch) -> bool:
        """Creates `running` and increments the epoch in one transaction: nobody can have one without the other."""
        session, generation = self._session, self._session.generation
        if (before := await session.get(self._paths.epoch)) is None:
            # In a request of its own, so that a node that was created by hand never has a version that was given out.
            await session.multi(Create(self._paths.epoch, b"0"), generation=generation)
            if (before := await session.get(self._paths.epoch)) is None:
                return False
        epoch = max(self._read_epoch(before), await known_epoch()) + 1
        granted = view.move if view.preferred == self._node else None
        data = orjson.dumps(
            {
                "node": self._node,
                "address": self._address,
                "epoch": epoch,
                "since": runtime.now_us(),
                "moved_by": str(read_json(granted.data).get("by") or "") if granted is not None else "",
            }
        )
        operations: list[Op] = []
        if view.running is None:
            operations.append(Create(self._paths.running, data, ephemeral=True))
        else:
            operations.append(Set(self._paths.running, data, view.running.version))
        operations.append(Set(self._paths.epoch, b"%d" % epoch, before.version))
        if granted is not None:
            operations.append(Delete(self._paths.move, granted.version))
        operations.append(self._queue.mark(holds=True))
        session.counts.attempts += 1
        self._tried = {*(self._tried if self._standing == generation else ()), epoch}
        self._standing = generation
        try:
            running, fence, *_ = await session.multi(*operations, generation=generation)
        except OutcomeUnknown:
            if (taken := await self._was_taken(data, epoch, generation)) is None:
                return False
            running, fence = taken
        self._hold(Term(epoch, fence), running, generation)
        self.holder_info = read_json(data)
        return True

    async def _was_taken(self, data: bytes, epoch: int, generation: int) -> tuple[int, int] | None:
        """Returns the versions of `running` and `epoch`, if a multi whose answer was lost has taken effect."""
        await self._session.sync()  # a late one can't follow
        running, stored = await asyncio.gather(
            self._session.get(self._paths.running), self._session.get(self._paths.epoch)
        )
        if self._session.generation != generation or running is None or stored is None:
            return None
        return (running.version, stored.version) if (running.data, self._read_epoch(stored)) == (data, epoch) else None

    def _hold(self, term: Term, running_version: int, generation: int) -> None:
        self.term, self._missing_since = term, 0.0
        # `running` alone would not do: a node that another daemon recreates may have the same version.
        checks = Check(self._paths.running, running_version), Check(self._paths.epoch, term.fence)
        self._holding = self._session.proofs.hold(self._name, checks)
        self.lease = self._holding.lease
        if self._session.generation == generation:
            self._held.begin(self._holding)
        else:
            self._session.proofs.drop(self._holding, f"the {self._session.service.title} session was lost")

    def _read_epoch(self, node: Node) -> int:
        try:
            return int(node.data or b"0")
        except ValueError:
            raise ServiceError(
                f"the node {self._paths.epoch} holds {node.data[:40]!r}, which is no epoch",
                remedy="set it to a number that is above all epochs before, or delete it",
            ) from None

    # -- giving it back -------------------------------------------------------------------------------------------

    async def _clear(self) -> None:
        """Deletes our nodes, and waits a moment for it."""
        await self._stop_clearing()
        generation = self._session.generation
        running, self._standing = self._standing == generation, -1
        if not running and not self._queue.joined:  # what there was has ended with its session
            return
        work = self._take_away(generation, running=running, leave=self._queue.joined)
        self._queue.forget()
        self._clearing = self._session.spawn(work, f"release of {self._name}")
        await asyncio.wait([self._clearing], timeout=_RELEASE_LIMIT if self._session.connected else 0)

    async def _take_away(self, generation: int, *, running: bool, leave: bool) -> None:
        """Deletes our nodes; returns when it is done, or they have ended with their session."""
        while self._session.generation == generation:
            operations: list[Op] = [self._queue.leave()] if leave else []
            try:
                if running:
                    await self._session.sync()
                    node = await self._session.get(self._paths.running)
                    if self._session.owns(node) and read_json(node.data).get("epoch") in self._tried:
                        operations.insert(0, Delete(self._paths.running, node.version))
                if operations:
                    await self._session.multi(*operations, generation=generation)
                return
            except Refused as refused:
                if refused.why != "no_node" or len(operations) < 2:
                    return
                leave = leave and refused.index != len(operations) - 1
            except SessionOver:
                return
            except LockServiceError:
                await asyncio.sleep(_STEP / 4)

    async def _stop_clearing(self) -> None:
        """Stops deleting our nodes: those that still exist are ours, and can be taken over in place."""
        task, self._clearing = self._clearing, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_RELEASE_LIMIT)
            self._standing = self._session.generation
