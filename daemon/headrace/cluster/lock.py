"""Implements the shared lock of a destination. An ephemeral node, `running`, shows which daemon runs the destination.
Every write of position or schema history checks the version of the persistent node `epoch`."""

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
from headrace.tasks import all_of, set_within

_log = structlog.get_logger(__name__)
_STEP = 1.0
"""Seconds between two checks of a waiting daemon. Also the additional seconds that a daemon waits for each daemon
before it in the queue."""
_PREFERENCE = 10.0
"""Seconds for which the other daemons leave the lock to the daemon that an operator or the rebalancing has chosen."""
_FULL_CHECK = 10
"""After this many checks of the node `running` alone, the daemon checks the whole queue."""
_RELEASE_LIMIT = 2.0
_NOT_HELD = "the lock is not held"


class SharedLock(Lock):
    """Takes, holds and releases the lock of one destination. `address` is shown to operators: the HTTP address of this
    daemon, or its host."""

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
        self._node_generation = -1
        """The generation of the session in which a node `running` of ours may exist; -1 if there is none."""
        self._tried: set[int] = set()
        """The epochs that this node may have. They distinguish it from a node that another lock of this process has
        created in the same session."""
        self._seen: tuple[int, int] = (0, 0)
        """The creation number of `running` when it was last read, and how many times `running` alone was checked since
        then."""
        self._noticed: tuple[tuple[int, int], float] = (0, 0), 0.0
        """The last request for a move that this daemon has seen, and when it saw it."""
        self._missing_since = 0.0
        self._clearing: asyncio.Task[None] | None = None
        self.holder_info: dict[str, Any] = {}
        """The holder when `running` was last read: node, address, epoch, and since (microseconds since 1970)."""

    @property
    def holder(self) -> str:
        """Returns the holder when `running` was last read, as "node (address)"; empty if nobody held the lock."""
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
                await set_within(self._wake, _STEP)  # until a watched node changes or the next check is due
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

    async def find_holder(self) -> str:
        running = await self._session.get(self._paths.running)
        self.holder_info = holder_of(running)
        return self.holder

    async def set_ready(self, ready: bool) -> None:
        """Publishes whether this daemon is ready. In the queue, daemons that are not ready come after those that are.
        If this can't be published now, the next call publishes it."""
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
        except (KeyError, TypeError, ValueError):  # another program has written it
            return None

    async def recovered(self) -> None:
        session, changed = self._session, asyncio.Event()
        ignore = session.listen(changed.set)
        before = (session.counts.suspensions, session.generation) if session.connected else None
        try:
            while not session.connected or (session.counts.suspensions, session.generation) == before:
                changed.clear()
                await set_within(changed, _STEP)  # the client may have changed its state without a report
        finally:
            ignore()

    def nodes(self) -> LockedNodes | None:
        if self._holding is None or not self._session.service.serves_others:
            return None
        return HeldNodes(self._session, self._holding.checks, self._node_generation)

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
        """Checks the lock once. If it is this daemon's turn, it makes one attempt to take it. Returns whether the lock
        is held."""
        if self._holding is not None and not self.lease.lost:
            return True
        woken = self._wake.is_set()
        self._wake.clear()
        await self._stop_clearing()
        try:
            if self.declined:
                await self._clear()
                await self.find_holder()  # updates the holder that operators see
                return False
            if waiting and not (woken or self._queue.joined is False) and await self._same_holder():
                return False
            if waiting and not await self._queue.join():
                return False
            view = await self._queue.view(watch=waiting)
            self.holder_info = holder_of(view.running)
            self._seen = (view.running.created if view.running else 0), 0
            await self._see_our_turn(view, waiting=waiting)
            if not self._may_take(view, waiting=waiting) or not await self._queue.join():
                return False
            # checked again, because several locks may have passed the first check at the same time
            if self._session.is_full():
                return False
            with self._session.taking():
                return await self._take(view, known_epoch)
        except SessionOver:
            return False
        except Refused as refused:
            # another daemon was faster, or nodes were deleted
            if refused.why in ("no_node", "node_exists", "bad_version"):
                await self._queue.verify()
                return False
            raise

    async def _see_our_turn(self, view: View, *, waiting: bool) -> None:
        """Creates our node in the queue again if somebody has deleted it, or if it was deleted together with a former
        lock of this process."""
        if waiting and self._node not in view.waiting and not self._session.owns(view.running):
            await self._queue.verify()
            if not self._queue.joined:
                self._wake.set()

    async def _same_holder(self) -> bool:
        """Returns whether the holder is still the same, with a single read. This check is needed because a watch may be
        lost, or the first daemon in the queue may be frozen."""
        created, times = self._seen
        if not created or times >= _FULL_CHECK:
            return False
        self._seen = created, times + 1
        running = await self._session.get(self._paths.running)
        return running is not None and running.created == created

    def _may_take(self, view: View, *, waiting: bool) -> bool:
        if view.running is not None:
            self._missing_since = 0.0
            # The node may be our own, because an earlier release could not be sent: then the lock is free for us. It is
            # not free if another object of this process still holds it.
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
        # Daemons before us may be frozen, so we wait only a limited time for them.
        return now >= self._missing_since + view.waiting.index(self._node) * _STEP

    async def _take(self, view: View, known_epoch: KnownEpoch) -> bool:
        """Creates `running` and increments the epoch in one transaction, so that nobody can have one without the other.
        Returns whether the lock was taken."""
        session, generation = self._session, self._session.generation
        if (before := await session.get(self._paths.epoch)) is None:
            # In a separate request. So if somebody creates the node again by hand, its version is none that a daemon
            # has used before.
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
        self._tried = {*(self._tried if self._node_generation == generation else ()), epoch}
        self._node_generation = generation
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
        """Returns the versions of `running` and `epoch` if a transaction whose answer was lost was carried out;
        otherwise None."""
        await self._session.sync()  # after this, the lost request can't be carried out any more
        running, stored = await all_of(self._session.get(self._paths.running), self._session.get(self._paths.epoch))
        if self._session.generation != generation or running is None or stored is None:
            return None
        return (running.version, stored.version) if (running.data, self._read_epoch(stored)) == (data, epoch) else None

    def _hold(self, term: Term, running_version: int, generation: int) -> None:
        self.term, self._missing_since = term, 0.0
        # A check of `running` alone is not enough: if another daemon creates the node again, it may have the same
        # version.
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
        """Deletes our nodes. Waits for at most two seconds until this is done."""
        await self._stop_clearing()
        generation = self._session.generation
        running, self._node_generation = self._node_generation == generation, -1
        if not running and not self._queue.joined:  # our nodes were deleted when their session ended
            return
        work = self._take_away(generation, running=running, leave=self._queue.joined)
        self._queue.forget()
        self._clearing = self._session.spawn(work, f"release of {self._name}")
        await asyncio.wait([self._clearing], timeout=_RELEASE_LIMIT if self._session.connected else 0)

    async def _take_away(self, generation: int, *, running: bool, leave: bool) -> None:
        """Deletes our nodes. Tries again until they are deleted, or until their session has ended."""
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
        """Stops deleting our nodes. The nodes that still exist are ours, so the next attempt can use them."""
        task, self._clearing = self._clearing, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=_RELEASE_LIMIT)
            self._node_generation = self._session.generation
