"""What operators do with a destination as a whole: pause, resume and restart it, and move its position."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from headrace.destination.checkpointer import Checkpointer
from headrace.destination.parts import Context, Parts
from headrace.destination.requests import RequestRefused, Requests
from headrace.destination.unconfirmed import Unconfirmed
from headrace.model import Gap, Position
from headrace.ports.source import Source
from headrace.ports.state import WHOLE_HISTORY, StateChange, Stored
from headrace.settings.values import start_text
from headrace.times import time_text

PAUSED = "the destination is paused, and the pause is stored with its position"
"""Why a position is not taken away."""
RESUME_FIRST = "headrace resume DESTINATION; or give it a position with headrace position set, which keeps the pause"
_LIMIT = 60.0
"""Seconds that a request may wait for the end of a run, and take."""


class Operator:
    """Of one destination. What changes something is done between two runs, under the destination's lock."""

    def __init__(
        self,
        context: Context,
        parts: Parts,
        source: Source,
        checkpointer: Checkpointer,
        unconfirmed: Unconfirmed,
        requests: Requests,
    ) -> None:
        self._name, self._log, self._start = context.name, context.log, start_text(context.settings.source.start)
        self._store, self._lock, self._leased_store = parts.store, parts.lock, parts.leased_store
        self._source, self._checkpointer, self._unconfirmed = source, checkpointer, unconfirmed
        self._requests, self._status = requests, context.status

    async def _load(self) -> Stored:
        stored, moved = await self._checkpointer.load(self._store)
        if moved:
            self._unconfirmed.give_up()
        return stored

    async def pause(self, who: str) -> None:
        """Stores that the destination is paused; it stays so until resume(), whichever daemon runs it. Raises
        RequestRefused, Fenced or StateStoreError."""
        await self._requests.ask(
            lambda: self._set_paused(who, f"{who} at {time_text(time.time_ns() // 1000)}"), limit=_LIMIT
        )

    async def resume(self, who: str) -> None:
        """Goes on from where pause() ended it. Raises as pause() does."""
        await self._requests.ask(lambda: self._set_paused(who, ""), limit=_LIMIT)

    async def restart(self) -> None:
        """Ends the run that is under way in order; the next begins at once. Raises RequestRefused."""

        async def nothing() -> None:
            self._log.info("an operator asked for a restart")

        await self._requests.ask(nothing, limit=_LIMIT)

    async def move(self, to: str, who: str, *, read_schemas: bool, commit: bool) -> dict[str, Any]:
        """Moves the position to where an operator says, or with "" takes it away, so that it begins by [source] start;
        unless `commit` it is only told what that would cost. The run that is under way ends in order, and the next one
        begins there. Returns `from`, `to`, `gap` and `notes`, JSON types only. Raises RequestRefused, SourceError,
        Fenced or StateStoreError."""
        if not commit:
            return (await self._plan_move(await self._store.load(self._name), to, read_schemas))[0]
        return await self._requests.ask(lambda: self._move_by_hand(to, who, read_schemas), limit=_LIMIT)

    async def _plan_move(
        self, stored: Stored, to: str, read_schemas: bool
    ) -> tuple[dict[str, Any], Position | None, tuple[dict[str, Any], ...], Gap]:
        start = f"[source] start ({self._start})"
        if not to:
            if stored.position is not None and stored.position.paused:
                raise RequestRefused(PAUSED, remedy=RESUME_FIRST)
            before = str(stored.position or "")
            gap = Gap("operator", before, start, at_us=time.time_ns() // 1000)
            shown = {"from": before or "nothing stored", "to": f"nothing stored: it begins by {start}"}
            return {**shown, "gap": None, "notes": []}, None, self._source.anew(), gap
        entries, history = (
            await self._store.schema_entries(self._name),
            await self._store.history(self._name, WHOLE_HISTORY),
        )
        try:
            made = await self._source.move_by_hand(
                to, stored, entries, history, read_schemas=read_schemas, told=self._note_search
            )
        except ValueError as error:
            raise RequestRefused(f"'{to}' {error}") from None
        finally:
            self._status.search = None
        gap = made.gap
        shown = {"from": gap.start or "nothing stored", "to": gap.end}
        return {**shown, "gap": gap.to_dict(), "notes": list(made.notes)}, made.position, made.entries, gap

    def _note_search(self, file: str, done: int, total: int) -> None:
        self._status.search = {"file": file, "done": done, "total": total}

    async def _move_by_hand(self, to: str, who: str, read_schemas: bool) -> dict[str, Any]:
        stored = await self._load()
        shown, position, entries, gap = await self._plan_move(stored, to, read_schemas)
        store = self._leased_store(self._lock.lease)
        await self._checkpointer.begin_epoch(store, self._lock.term, meanwhile="an operator was moving it")
        details = {"gap": gap.to_dict(), "where": to or "reset", "by": who}
        if position is not None and stored.position is not None:
            position = replace(position, paused=stored.position.paused)
        await self._checkpointer.store_now(store, StateChange(position, entries, actor="operator", details=details))
        self._unconfirmed.give_up()
        self._log.warning("the position was moved by an operator", gap=str(gap), by=who)
        return shown

    async def _set_paused(self, who: str, paused: str) -> None:
        stored = await self._load()
        if stored.position is None:
            raise RequestRefused("no position is stored yet, and the pause is stored with it")
        if bool(stored.position.paused) == bool(paused):
            return
        store = self._leased_store(self._lock.lease)
        await self._checkpointer.begin_epoch(store, self._lock.term, meanwhile="it was being paused or resumed")
        change = StateChange(replace(stored.position, paused=paused), actor="operator", details={"paused": paused})
        await self._checkpointer.store_now(store, change)
        self._log.warning("paused by an operator" if paused else "resumed by an operator", by=who)
