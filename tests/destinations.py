"""A destination without servers: a lock that nobody else wants, a source that opens as it is told to, a held sink."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from headrace.destination import destination as module
from headrace.destination.destination import Destination
from headrace.destination.status import DestinationStatus
from headrace.errors import PositionLost
from headrace.lease import Lease, Term
from headrace.model import Gap, Position
from headrace.mysql.opening import Dump as MysqlDump
from headrace.mysql.schema.history import Reading
from headrace.ports.source import Move
from headrace.ports.state import StateChange
from headrace.settings.destination import DestinationSettings
from tests.configured import parts_of
from tests.streams import START, Dump, HeldSink, daemon_settings, opened, settings

STORED = Position("server", "b.000001", 4, last_pos=5)


class FreeLock:
    """A lock that nobody else wants."""

    holder, declined, shared, term = "", "", False, Term()

    def __init__(self) -> None:
        self.lease = Lease()
        self.taken = self.released = 0
        self.floors = list[int]()
        self.away = asyncio.Event()
        """Set when somebody else is preferred; then it is not to be had for us."""
        self.back = asyncio.Event()
        """Set when the lock service is back."""

    async def hang(self) -> None:
        return None

    async def try_acquire(self, known_epoch: Any) -> bool:
        self.floors.append(await known_epoch())
        self.taken += not self.away.is_set()
        return not self.away.is_set()

    async def acquire(self, known_epoch: Any) -> None:
        while not await self.try_acquire(known_epoch):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def hand_over_asked(self) -> str:
        await self.away.wait()
        return "somebody else is to run it"

    async def recovered(self) -> None:
        await self.back.wait()

    async def set_ready(self, ready: bool) -> None:
        pass

    async def release(self) -> None:
        self.released += 1


class Ready:
    """A source that was found able to begin a dump made by hand."""

    def __init__(self, dump: MysqlDump, gap: Gap | None, entries: tuple[dict[str, Any], ...]) -> None:
        self._dump, self.gap, self.entries = dump, gap, entries
        self.connection, self.server, self.start = dump.connection, dump.server, dump.start
        self.archived, self.end = None, ("", 0)

    async def dump(self, *, annotations: bool, buffer: int) -> MysqlDump:
        return self._dump


class DestinationSite:
    """A destination whose source opens as `answers` say, one after the other: an error, or the bytes of a dump."""

    def __init__(
        self, store: Any, monkeypatch: pytest.MonkeyPatch, *, checkpoint_interval: float = 0.02, **source: Any
    ) -> None:
        self.config: DestinationSettings = settings(source=source, heartbeat={"enabled": False, "interval": 0.01})
        monkeypatch.setattr(module, "_SIGNS_MARGIN", 0.1)
        self.store, self.status, self.sink = store, DestinationStatus("shop"), HeldSink()
        self.answers, self.asked, self.readers = list[Any](), list[list[str]](), list[Any]()
        self.moves, self.relocated = list[Position](), list[Position]()
        self.dumps, self.meanwhile = list[Dump](), None
        self.start: Position | None = None
        """Where the source begins instead of the stored position, with what belongs to that move."""
        self.gap: Gap | None = None
        self.entries: tuple[dict[str, Any], ...] = ()
        self._answer: Any = None
        self.lock: Any = FreeLock()
        parts = parts_of(self.config, store=store, lock=self.lock)
        parts = replace(parts, new_sink=lambda *_: self.sink, probe_sink=lambda: self.sink)
        daemon = daemon_settings(drain_timeout=0.3, checkpoint_interval=checkpoint_interval)
        self.actor = Destination(self.config, daemon, parts, self.status)
        self.stop = asyncio.Event()
        monkeypatch.setattr("headrace.mysql.source.open_any", self._open_any)
        monkeypatch.setattr("headrace.mysql.source.make_ready", self._make_ready)
        monkeypatch.setattr("headrace.mysql.source.relocate_by_policy", self._relocate)
        monkeypatch.setattr("headrace.mysql.table_schemas.read_schemas", self._nothing)

    async def _nothing(self, *_: Any, **__: Any) -> Any:
        return Reading()

    async def _open_any(self, candidates: list[Any], open_one: Any) -> Any:
        self.asked.append([one.host for one in candidates])
        self._answer = self.answers.pop(0)
        host = self._answer[1] if isinstance(self._answer, tuple) else candidates[0].host
        return await open_one(next(one for one in candidates if one.host == host))

    async def _make_ready(self, one: Any, stored: Position | None, reader: Any, last_pos: int = 0, **_: Any) -> Any:
        """The present answer; none: a dump is begun again."""
        answer, self._answer = self._answer, None
        if answer is None:
            self.asked.append([f"again {one.host} {one.on_diverged}"])
            answer = []
        else:
            self.readers.append(reader)
        if callable(answer):
            answer = await answer()
        if isinstance(answer, Exception):
            raise answer
        self.dumps.append(Dump(*(answer[0] if isinstance(answer, tuple) else answer)))
        return Ready(opened(self.dumps[-1], self.start or stored or START, one), self.gap, self.entries)

    async def _relocate(
        self, source: Any, policy: str, lost: PositionLost, stored: Position, archive: Any
    ) -> Move | None:
        self.relocated.append(stored)
        if self.meanwhile is not None:
            await self.meanwhile()
        if not self.moves:
            return None
        return Move(
            self.moves.pop(0), Gap(lost.kind.value, "a", "b"), ({"kind": "doubt", "pos": 5, "at": "", "why": ""},)
        )

    async def put(self, position: Position | None = STORED) -> None:
        """Somebody else stores a position."""
        guard = await self.store.begin_epoch("shop")
        await self.store.commit("shop", guard, StateChange(position, actor="operator"))

    async def stored(self) -> Any:
        return (await self.store.load("shop")).position

    def task(self) -> asyncio.Task[None]:
        return asyncio.create_task(self.actor.run(self.stop))
