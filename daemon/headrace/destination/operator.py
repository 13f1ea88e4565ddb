"""Operators' commands to a destination: pause, resume, restart, move its position, and read its tables again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from headrace import runtime
from headrace.destination.checkpointer import Checkpointer
from headrace.destination.control import Control
from headrace.destination.dependencies import Context, Dependencies
from headrace.destination.outage import Unconfirmed
from headrace.destination.position_mover import PlannedMove, PositionMover
from headrace.destination.requests import RequestRefused, Requests
from headrace.ports.source import Source
from headrace.ports.state import StateChange, Stored
from headrace.snapshot.commands import SnapshotCommand
from headrace.tasks import finish
from headrace.times import time_text

_LIMIT = 60.0
"""Maximum seconds that a request may wait for the end of a run, and may take."""
_SILENCE = 60.0
"""Maximum seconds without progress of a search; its total time depends on the size of the binlogs."""


class Operator:
    """The operator of one destination. Commands that change something are executed between two runs, under the
    destination's lock."""

    def __init__(
        self,
        context: Context,
        dependencies: Dependencies,
        source: Source,
        checkpointer: Checkpointer,
        unconfirmed: Unconfirmed,
        requests: Requests,
    ) -> None:
        self._name, self._log = context.name, context.log
        self._store, self._lock, self._leased_store = dependencies.store, dependencies.lock, dependencies.leased_store
        self._checkpointer, self._unconfirmed = checkpointer, unconfirmed
        self._mover = PositionMover(context.name, source, dependencies.store, context.settings.source.start)
        self._control: Control | None = None
        self._requests, self._status = requests, context.status
        self._searching = False
        """Whether a search for a position is running: each search is a dump on the source, and they share one
        progress."""

    async def _load(self) -> Stored:
        stored, moved = await self._checkpointer.load(self._store)
        if moved:
            self._unconfirmed.give_up()
        return stored

    async def pause(self, who: str) -> None:
        """Stores that the destination is paused. It stays paused until resume(), whichever daemon runs it. Raises
        RequestRefused, Fenced or StateStoreError."""
        await self._requests.ask(lambda: self._set_paused(who, f"{who} at {time_text(runtime.now_us())}"), limit=_LIMIT)

    async def resume(self, who: str) -> None:
        """Continues from where pause() ended it. Raises as pause() does."""
        await self._requests.ask(lambda: self._set_paused(who, ""), limit=_LIMIT)

    async def restart(self) -> None:
        """Ends the present run in order; the next begins at once. Raises RequestRefused."""

        async def nothing() -> None:
            self._log.info("an operator asked for a restart")

        await self._requests.ask(nothing, limit=_LIMIT)

    async def snapshot(self, command: SnapshotCommand) -> dict[str, Any]:
        """Executes a snapshot command; returns the `id` of a new snapshot, and `snapshots`, JSON types only. Raises
        RequestRefused, SnapshotRefused or SourceError."""
        if self._control is None:
            raise RequestRefused("the destination does not stream now")
        return await self._control.command(command)

    @property
    def streams(self) -> bool:
        """Returns whether a run is under way, so that snapshot() can do something."""
        return self._control is not None

    def attach(self, control: Control | None) -> None:
        """Sets the control of the present run; None once there is none."""
        self._control = control

    async def move(self, to: str, who: str, *, read_schemas: bool, commit: bool) -> dict[str, Any]:
        """Moves the position to where an operator says, or with "" removes it, so that the destination begins at
        [source] start; without `commit` it only returns what the move would skip or repeat. The search runs alongside
        the stream. Then the present run ends in order, and the next one begins at the new position. Returns
        PlannedMove.shown(). Raises RequestRefused, SourceError, Fenced or StateStoreError."""
        stored = await self._store.load(self._name)
        planned = await (self._search(stored, to, read_schemas) if to else self._mover.plan(stored, to))
        if not commit or planned.nothing:
            return planned.shown()
        # The search may take long, so the stream continues during it.
        return await self._requests.ask(lambda: self._move_by_hand(who, read_schemas, planned), limit=_LIMIT)

    async def _search(self, stored: Stored, to: str, read_schemas: bool) -> PlannedMove:
        """Searches for a position, one at a time, and shows the progress."""
        if self._searching:
            raise RequestRefused(
                "a search for a position is already running", remedy="wait until /health shows no search any more"
            )
        status, loop = self._status, asyncio.get_running_loop()
        self._searching = True
        try:
            async with asyncio.timeout(_SILENCE) as limit:

                def note(file: str, done: int, total: int) -> None:
                    if not limit.expired() and status.search.show({"file": file, "done": done, "total": total}):
                        limit.reschedule(loop.time() + _SILENCE)

                return await self._mover.plan(stored, to, read_schemas=read_schemas, on_progress=note)
        except TimeoutError:
            raise RequestRefused(f"the search came no further for {_SILENCE:g} s, and is given up") from None
        finally:
            self._searching = False
            status.search.show(None)

    async def _move_by_hand(self, who: str, read_schemas: bool, planned: PlannedMove) -> dict[str, Any]:
        stored = await self._load()  # the stream has moved on meanwhile
        plan = await self._mover.plan(stored, planned.to, read_schemas=read_schemas, planned=planned)

        async def write() -> None:
            await self._write(plan.change(who), meanwhile="an operator was moving it")
            self._unconfirmed.give_up()
            self._log.warning("the position was moved by an operator", gap=str(plan.gap), by=who)

        await finish(asyncio.ensure_future(write()))
        return plan.shown()

    async def _write(self, change: StateChange, *, meanwhile: str) -> None:
        """Writes a change. Once begun it must be awaited, also if the request is cancelled: the guard changes."""
        store = self._leased_store(self._lock.lease)
        await self._checkpointer.begin_epoch(store, self._lock.term, meanwhile=meanwhile)
        await self._checkpointer.store_now(store, change)

    async def _set_paused(self, who: str, paused: str) -> None:
        stored = await self._load()
        if stored.position is None:
            raise RequestRefused("no position is stored yet, and the pause is stored with it")
        if bool(stored.position.paused) == bool(paused):
            return
        change = StateChange(replace(stored.position, paused=paused), actor="operator", details={"paused": paused})
        await finish(asyncio.ensure_future(self._write(change, meanwhile="it was being paused or resumed")))
        self._log.warning("paused by an operator" if paused else "resumed by an operator", by=who)
