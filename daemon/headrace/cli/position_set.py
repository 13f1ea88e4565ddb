"""`headrace position set` and `reset`: an operator moves a position, knowing what that gives up."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.cli import control
from headrace.cli.common import (
    CommandRefused,
    aligned,
    confirmed,
    coordinated,
    destination,
    held,
    open_store,
    operator,
    require_answer,
    short,
    time_text,
)
from headrace.cli.terminal import Work, progress
from headrace.destination.operator import PAUSED, RESUME_FIRST, moved
from headrace.lease import Term
from headrace.model import Gap, Position
from headrace.mysql.position.by_hand import move_by_hand
from headrace.mysql.position.move import Where, position_text
from headrace.mysql.schema.entries import back_entry
from headrace.mysql.source import addresses
from headrace.ports.state import WHOLE_HISTORY, StateChange, StateStore, Stored
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.values import start_text
from headrace.tasks import beside

if TYPE_CHECKING:
    from headrace.cli.wiring import Wiring

_LOOK = 0.2
"""Seconds between two looks at how far the daemon is."""
_LOOK_UNSEEN = 2.0
"""The same where nobody sees it."""


async def move(settings: Settings, given: argparse.Namespace) -> int:
    """Moves a position; the exit status. Raises HeadraceError."""
    name, (text, where) = given.name, given.where
    chosen = destination(settings, name)
    require_answer(given.yes)
    if await control.runs(settings, name):
        return await _by_daemon(settings, given, {"to": text, "read_schemas": given.read_schemas})
    async with coordinated(settings) as shared:
        done = await move_to(shared, chosen, where, text, yes=given.yes, read_schemas=given.read_schemas)
        return 0 if done else 1


async def move_to(
    shared: Wiring,
    chosen: DestinationSettings,
    where: Where,
    text: str,
    *,
    yes: bool,
    read_schemas: bool = False,
    events_done: int = 0,
    notes: Sequence[str] = (),
) -> bool:
    """Moves the position of a destination that no daemon runs, after showing what that means, with further `notes`,
    and asking unless `yes`; whether it was done. `text` says where to for the history, and `events_done` rows events
    of the transaction there are published already. Raises HeadraceError."""
    name, store = chosen.name, await open_store(shared, chosen)
    # Not held while somebody thinks about it: the daemon would take that for another one that runs it.
    async with held(shared, chosen):
        stored = await store.load(name)
        entries, history = await store.schema_entries(name), await store.history(name, WHOLE_HISTORY)
        with progress("searching") as work:
            made = await move_by_hand(
                addresses(chosen.source),
                where,
                stored,
                entries,
                history,
                read_schemas=read_schemas,
                told=lambda file, done, total: work.at(done, total, f"reading {file}"),
            )
    position = replace(made.position, events_done=events_done)
    shown = position_text(position) + (f", {events_done} events done" if events_done else "")
    print(_shown(name, _position_text(stored.position), shown, made.gap, (*made.notes, *notes)))
    if not await confirmed(yes):
        return False
    change = moved(stored, position, made.entries, made.gap, text, operator())
    async with held(shared, chosen) as term:
        await _commit(store, name, term, stored, change)
    print(f"{name}: the position is {shown}")
    return True


async def reset(settings: Settings, given: argparse.Namespace) -> int:
    """Takes a position away; the exit status. Raises HeadraceError."""
    name = given.name
    chosen = destination(settings, name)
    start = start_text(chosen.source.start)
    require_answer(given.yes)
    if await control.runs(settings, name):
        return await _by_daemon(settings, given, {"to": "", "read_schemas": False})
    async with coordinated(settings) as shared:
        store = await open_store(shared, chosen)
        async with held(shared, chosen):
            stored = await store.load(name)
        if stored.position is None:
            print(f"{name}: no position is stored; it begins by [source] start ({start})")
            return 0
        if stored.position.paused:
            raise CommandRefused(PAUSED, remedy=RESUME_FIRST)
        to = f"nothing stored: it begins by [source] start ({start})"
        print(_shown(name, _position_text(stored.position), to, None))
        if not await confirmed(given.yes):
            return 1
        gap = Gap("operator", position_text(stored.position), f"[source] start ({start})", at_us=time.time_ns() // 1000)
        anew = back_entry(-1, "reset")  # nothing of the schema history counts any more
        change = moved(stored, None, (anew,), gap, "", operator())
        async with held(shared, chosen) as term:
            await _commit(store, name, term, stored, change)
    print(f"{name}: nothing is stored; it begins by [source] start ({start})")
    return 0


async def _by_daemon(settings: Settings, given: argparse.Namespace, body: dict[str, Any]) -> int:
    """Has the daemon that runs the destination move it: its run ends in order, and the next begins there."""
    name, body = given.name, {**body, "by": operator()}
    plan = await _searched(settings, name, {**body, "commit": False})
    gap = Gap.from_dict(plan["gap"]) if plan["gap"] else None
    print(_shown(name, plan["from"], plan["to"], gap, plan["notes"]))
    if not await confirmed(given.yes):
        return 1
    done = await _searched(settings, name, {**body, "commit": True})
    print(f"{name}: the position is {done['to']}")
    return 0


async def _searched(settings: Settings, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """The daemon's answer, which may take as long as its search comes further; meanwhile a terminal shows how far
    that is. Raises CommandRefused and TokenError."""
    try:
        async with asyncio.timeout(control.ANSWER) as limit:
            with progress("searching") as work:
                async with beside({"progress": _follow(settings, name, work, limit)}):
                    return await control.command(settings, name, "position", body, limit=None)
    except TimeoutError:
        raise CommandRefused(
            f"the daemon has not come further within {control.ANSWER:g} s, and is asked no more",
            remedy=f"headrace position history {name} shows whether it was done",
        ) from None


async def _follow(settings: Settings, name: str, work: Work, limit: asyncio.Timeout) -> None:
    """Puts a limit off each time that the daemon's search has come further."""
    known: Any = None
    while True:
        await asyncio.sleep(_LOOK if work.shows else _LOOK_UNSEEN)
        with contextlib.suppress(CommandRefused):
            search = (await control.look_at(settings, name)).get("search")
            if search and search != known and not limit.expired():
                known = search
                limit.reschedule(asyncio.get_running_loop().time() + control.ANSWER)
                work.at(search["done"], search["total"], f"reading {search['file']}")


async def _commit(store: StateStore, name: str, term: Term, stored: Stored, change: StateChange) -> None:
    guard = await store.begin_epoch(name, term=term)
    if guard.version != stored.version:
        raise CommandRefused(f"the stored position of {name} was changed meanwhile; look at it again")
    await store.commit(name, guard, change)


# -- what is shown and asked --------------------------------------------------------------------------------------


def _shown(name: str, before: str, to: str, gap: Gap | None, notes: Sequence[str] = ()) -> str:
    rows = [("from", before), ("to", to)]
    if gap is not None:
        rows.append(("again" if gap.backward else "given up", _cost(gap)))
        if gap.gtids:
            rows.append(("GTIDs", short(gap.gtids, 2000)))
    rows += [("note", note) for note in notes]
    return f"{name}:\n{aligned(rows)}"


def _cost(gap: Gap) -> str:
    if not gap.start:
        return "nothing: no position was stored"
    if gap.bytes == 0 and not gap.files and not gap.transactions:
        return "nothing: the position is there already"
    verb = "published again" if gap.backward else "not published"
    counts = str(gap).rpartition(": ")[2].rpartition(" published again" if gap.backward else " given up")[0]
    return f"{counts} {verb}"


def _position_text(position: Position | None) -> str:
    if position is None:
        return "nothing stored"
    text = short(position_text(position)) + (f", {position.events_done} events done" if position.events_done else "")
    if position.commit_time_us:
        text += f", behind the transaction of {time_text(position.commit_time_us)}"
    return text
