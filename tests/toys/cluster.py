"""A cluster service in one file, in the memory of one process: what a new one needs besides a line of registration.

Each Cluster object stands for one daemon; those of one `room` share it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field

from headrace.errors import Fenced
from headrace.lease import NO_TERM, Guard, KnownEpoch, Lease, Term
from headrace.ports.cluster import (
    BALANCE,
    Assignment,
    Cluster,
    ClusterAdapter,
    ClusterCounts,
    Lock,
    Member,
    View,
)
from headrace.ports.state import HistoryEntry, StateChange, StateStore, Stored
from headrace.settings.adapters import ClusterSettings

_POLL = 0.01


@dataclass(slots=True)
class _Destination:
    holder: str = ""
    address: str = ""
    since_us: int = 0
    epoch: int = 0
    waiting: dict[str, bool] = field(default_factory=dict)
    """By node, whether it is ready."""
    move_to: str = ""
    move_us: int = 0
    by_hand: bool = False
    stored: Stored = field(default_factory=lambda: Stored(None, 0, 0))
    entries: list[dict[str, Any]] = field(default_factory=list)
    history: list[HistoryEntry] = field(default_factory=list)


@dataclass(slots=True)
class Room:
    """What all share."""

    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    destinations: dict[str, _Destination] = field(default_factory=dict)

    def of(self, name: str) -> _Destination:
        return self.destinations.setdefault(name, _Destination())


ROOMS: dict[str, Room] = {}


class ToyClusterSettings(ClusterSettings):
    """[toy]: a room in memory."""

    service: ClassVar[str] = "toy"
    room: str = Field(description="The room's name.")


class ToyLock(Lock):
    shared = True

    def __init__(self, room: Room, name: str, member: Member) -> None:
        self._room, self._at, self._member = room, room.of(name), member
        self.lease = Lease(60.0)
        self.lease.lose("the lock is not held")
        self._ready = True

    async def acquire(self, known_epoch: KnownEpoch) -> None:
        self._at.waiting[self._member.node] = self._ready
        try:
            while not await self._take(known_epoch):  # noqa: ASYNC110
                await asyncio.sleep(_POLL)
        finally:
            self._at.waiting.pop(self._member.node, None)

    async def try_acquire(self, known_epoch: KnownEpoch) -> bool:
        return await self._take(known_epoch)

    async def _take(self, known_epoch: KnownEpoch) -> bool:
        node, at = self._member.node, self._at
        if self.term is not NO_TERM:
            return True
        if at.holder or self.declined or at.move_to not in ("", node):
            return False
        above = await known_epoch()
        if at.holder:
            return False
        at.epoch = max(at.epoch, above) + 1
        at.holder, at.address, at.since_us = node, self._member.address, time.time_ns() // 1000
        at.by_hand, at.move_to = at.move_to == node and at.by_hand, ""
        self.term, self.lease = Term(at.epoch, at.epoch), Lease(60.0)
        self.lease.prove(time.monotonic())
        return True

    async def look(self) -> str:
        return self.holder

    async def release(self) -> None:
        self.lease.lose("the lock is not held")
        if self.term is not NO_TERM:
            self._at.holder = ""
        self.term = NO_TERM

    async def hand_over_asked(self) -> str:
        while True:
            if self._at.move_to not in ("", self._member.node):
                return f"{self._at.move_to} is to run it"
            if self._member.node in self._room.drained:
                return "this daemon is to run nothing"
            await asyncio.sleep(_POLL)

    async def set_ready(self, ready: bool) -> None:
        self._ready = ready
        if self._member.node in self._at.waiting:
            self._at.waiting[self._member.node] = ready

    @property
    def declined(self) -> str:
        return "this daemon is to run nothing" if self._member.node in self._room.drained else ""

    @property
    def holder(self) -> str:
        return f"{self._at.holder} ({self._at.address})" if self._at.holder else ""


class ToyStore(StateStore):
    def __init__(self, room: Room) -> None:
        self._room = room

    async def open(self) -> None:
        pass

    async def load(self, destination: str) -> Stored:
        return self._room.of(destination).stored

    async def begin_epoch(self, destination: str, *, above: int = 0, term: Term = NO_TERM) -> Guard:
        at = self._room.of(destination)
        stored, epoch = at.stored, term.epoch
        if epoch != at.epoch or epoch < max(above, stored.epoch):
            raise Fenced(f"{destination} is held under a higher epoch")
        at.stored = Stored(stored.position, epoch, stored.version, stored.last_pos)
        return Guard(epoch, stored.version, term.fence)

    async def commit(self, destination: str, guard: Guard, change: StateChange) -> Guard:
        at = self._room.of(destination)
        if (guard.epoch, guard.version) != (at.stored.epoch, at.stored.version) or guard.epoch != at.epoch:
            raise Fenced(f"{destination} is held by somebody else")
        last_pos = max(at.stored.last_pos, change.position.last_pos if change.position else 0)
        at.stored = Stored(change.position, guard.epoch, guard.version + 1, last_pos)
        void, entries = change.in_force()
        at.entries = [*entries] if void else [*at.entries, *entries]
        now = time.time_ns() // 1000
        entry = HistoryEntry(change.actor, guard.epoch, guard.version + 1, change.position, change.details, now)
        at.history.insert(0, entry)
        return Guard(guard.epoch, guard.version + 1, guard.fence)

    async def history(self, destination: str, limit: int = 100) -> list[HistoryEntry]:
        return self._room.of(destination).history[:limit]

    async def schema_entries(self, destination: str) -> list[dict[str, Any]]:
        return list(self._room.of(destination).entries)

    async def problems(self, destination: str, *, must_exist: bool = False) -> list[str]:
        return ["nobody has written it"] if must_exist and destination not in self._room.destinations else []

    def describe(self) -> str:
        return "a room in memory"

    async def close(self) -> None:
        pass


class ToyCluster(Cluster):
    def __init__(self, settings: ToyClusterSettings, member: Member) -> None:
        self._room, self._member = ROOMS.setdefault(settings.room, Room()), member
        self.counts, self.store = ClusterCounts("toy"), ToyStore(self._room)
        self._locks: list[ToyLock] = []

    async def start(self) -> None:
        if not self._member.command:
            info = {"node": self._member.node, "address": self._member.address, "max": self._member.max_destinations}
            self._room.members[self._member.node] = info

    async def close(self) -> None:
        for lock in self._locks:
            await lock.release()
        self._room.members.pop(self._member.node, None)

    def lock(self, destination: str) -> Lock:
        self._locks.append(ToyLock(self._room, destination, self._member))
        return self._locks[-1]

    async def look(self) -> View:
        assignments = {
            name: Assignment(
                name,
                at.holder,
                at.address if at.holder else "",
                at.epoch,
                at.since_us,
                frozenset(node for node, ready in at.waiting.items() if ready),
                tuple(sorted(at.waiting)),
                at.move_to,
                at.move_us,
                at.by_hand,
            )
            for name, at in sorted(self._room.destinations.items())
        }
        return View(dict(self._room.members), frozenset(self._room.drained), assignments)

    async def ask_to_move(self, destination: str, node: str, by: str) -> None:
        at = self._room.of(destination)
        at.move_to, at.move_us, at.by_hand = node, time.time_ns() // 1000, by != BALANCE

    async def drain(self, node: str, by: str) -> None:
        self._room.drained.add(node)

    async def undrain(self, node: str) -> None:
        self._room.drained.discard(node)


class ToyClusterAdapter(ClusterAdapter):
    section = ToyClusterSettings

    def cluster(self, settings: ToyClusterSettings, member: Member) -> Cluster:
        return ToyCluster(settings, member)
