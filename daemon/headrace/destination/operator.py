"""What operators do with a destination as a whole: pause, resume and restart it, and move its position."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

from headrace.destination.checkpointer import Checkpointer
from headrace.destination.parts import Context, Parts
from headrace.destination.requests import RequestRefused, Requests
from headrace.destination.unconfirmed import Unconfirmed
from headrace.model import Gap, Position
from headrace.ports.source import Move, Source, Told
from headrace.ports.state import WHOLE_HISTORY, StateChange, Stored
from headrace.settings.values import start_text
from headrace.tasks import finish
from headrace.times import time_text

PAUSED = "the destination is paused, and the pause is stored with its position"
"""Why a position is not taken away."""
RESUME_FIRST = "headrace resume DESTINATION; or give it a position with headrace position set, which keeps the pause"
_LIMIT = 60.0
"""Seconds that a request may wait for the end of a run, and take."""
_SILENCE = 60.0
"""Seconds in which a search has to come further; as a whole it takes as long as the binlogs are large."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A move that nothing was done for yet; `shown` is what whoever asks is told, JSON types only."""

    shown: dict[str, Any]
    position: Position | None
    entries: tuple[dict[str, Any], ...]
    gap: Gap
    found: Any
    """See Move."""


def moved(
    stored: Stored, position: Position | None, entries: tuple[dict[str, Any], ...], gap: Gap, where: str, who: str
) -> StateChange:
    """The change that a move by an operator is, whoever does it; `where` is "" for a reset. A paused destination stays
    paused."""
    if position is not None and stored.position is not None:
        position = replace(position, paused=stored.position.paused)
    details = {"gap": gap.to_dict(), "where": where or "reset", "by": who}
    return StateChange(position, entries, actor="operator", details=details)


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
        self._searching = False
        """Whether a position is being looked for: each search is a dump on the source, and they share one figure."""

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
        unless `commit` it is only told what that would cost. It is looked for beside the stream. Then the run that is
        under way ends in order, and the next one begins there. Returns `from`, `to`, `gap` and `notes`, JSON types
        only. Raises RequestRefused, SourceError, Fenced or StateStoreError."""
        plan = await self._plan(await self._store.load(self._name), to, read_schemas)
        if not commit:
            return plan.shown
        # The search may take long, so the stream goes on beside it.
        return await self._requests.ask(lambda: self._move_by_hand(to, who, read_schemas, plan), limit=_LIMIT)

    async def _plan(self, stored: Stored, to: str, read_schemas: bool, found: Any = None) -> _Plan:
        """What a move to `to` would be. `found` is that of an earlier plan."""
        start = f"[source] start ({self._start})"
        if not to:
            if stored.position is not None and stored.position.paused:
                raise RequestRefused(PAUSED, remedy=RESUME_FIRST)
            before = str(stored.position or "")
            gap = Gap("operator", before, start, at_us=time.time_ns() // 1000)
            shown = {"from": before or "nothing stored", "to": f"nothing stored: it begins by {start}"}
            return _Plan({**shown, "gap": None, "notes": []}, None, self._source.anew(), gap, None)
        made = await (
            self._search(stored, to, read_schemas) if found is None else self._made(stored, to, read_schemas, found)
        )
        gap = made.gap
        shown = {"from": gap.start or "nothing stored", "to": gap.end}
        return _Plan(
            {**shown, "gap": gap.to_dict(), "notes": list(made.notes)}, made.position, made.entries, gap, made.found
        )

    async def _search(self, stored: Stored, to: str, read_schemas: bool) -> Move:
        """Looks for a position, one at a time, and tells how far that is."""
        if self._searching:
            raise RequestRefused(
                "a position is being looked for already", remedy="wait until /health shows no search any more"
            )
        status, loop = self._status, asyncio.get_running_loop()
        self._searching = True
        try:
            async with asyncio.timeout(_SILENCE) as limit:

                def note(file: str, done: int, total: int) -> None:
                    search = {"file": file, "done": done, "total": total}
                    if search != status.search and not limit.expired():
                        status.search = search
                        limit.reschedule(loop.time() + _SILENCE)

                return await self._made(stored, to, read_schemas, None, note)
        except TimeoutError:
            raise RequestRefused(f"the search came no further for {_SILENCE:g} s, and is given up") from None
        finally:
            self._searching, status.search = False, None

    async def _made(
        self, stored: Stored, to: str, read_schemas: bool, found: Any, told: Told = lambda *_: None
    ) -> Move:
        store, name = self._store, self._name
        entries, history = await store.schema_entries(name), await store.history(name, WHOLE_HISTORY)
        try:
            return await self._source.move_by_hand(
                to, stored, entries, history, read_schemas=read_schemas, found=found, told=told
            )
        except ValueError as error:
            raise RequestRefused(f"'{to}' {error}") from None

    async def _move_by_hand(self, to: str, who: str, read_schemas: bool, plan: _Plan) -> dict[str, Any]:
        stored = await self._load()
        plan = await self._plan(stored, to, read_schemas, plan.found)  # the stream has gone on meanwhile
        change = moved(stored, plan.position, plan.entries, plan.gap, to, who)

        async def write() -> None:
            await self._write(change, meanwhile="an operator was moving it")
            self._unconfirmed.give_up()
            self._log.warning("the position was moved by an operator", gap=str(plan.gap), by=who)

        await finish(asyncio.ensure_future(write()))
        return plan.shown

    async def _write(self, change: StateChange, *, meanwhile: str) -> None:
        """Once it has begun it has to be waited for, also when the request is cancelled: the guard is another then."""
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
