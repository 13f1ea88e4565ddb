"""`headrace position set` and `reset`: an operator moves a position, after seeing what that skips or repeats."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Mapping, Sequence
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
)
from headrace.cli.terminal import Work, progress
from headrace.destination.position_mover import PositionMover
from headrace.model import Gap
from headrace.ports.inspection import short
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.values import start_text
from headrace.tasks import alongside

if TYPE_CHECKING:
    from headrace.cli.wiring import Wiring

_POLL = 0.2
"""Seconds between two checks of the daemon's progress."""
_POLL_UNSEEN = 2.0
"""The same if nobody sees it."""


async def move(settings: Settings, given: argparse.Namespace) -> int:
    """Moves a position; returns the exit status. Raises HeadraceError."""
    chosen = destination(settings, given.name)
    from headrace.cli.wiring import check_place

    check_place(given.where)
    require_answer(given.yes)
    if await control.runs(settings, given.name):
        return await _by_daemon(settings, given, {"to": given.where, "read_schemas": given.read_schemas})
    async with coordinated(settings) as shared:
        return await move_to(shared, chosen, given.where, yes=given.yes, read_schemas=given.read_schemas)


async def reset(settings: Settings, given: argparse.Namespace) -> int:
    """Removes a position; returns the exit status. Raises HeadraceError."""
    chosen = destination(settings, given.name)
    require_answer(given.yes)
    if await control.runs(settings, given.name):
        return await _by_daemon(settings, given, {"to": "", "read_schemas": False})
    async with coordinated(settings) as shared:
        return await move_to(shared, chosen, "", yes=given.yes)


async def move_to(
    shared: Wiring,
    chosen: DestinationSettings,
    to: str,
    *,
    yes: bool,
    read_schemas: bool = False,
    events_done: int = 0,
    notes: Sequence[str] = (),
    why: str = "",
    publisher: str = "",
) -> int:
    """Moves the position of a destination that no daemon runs, after showing what that means, with further `notes`, and
    asking unless `yes`; returns the exit status. `to` and `events_done` are as for PositionMover.plan(); `why` is
    written to the history instead of `to`; `publisher` names who has published what is passed over, "" if nobody has.
    Raises HeadraceError."""
    name, store = chosen.name, await open_store(shared, chosen)
    mover = PositionMover(name, shared.source(chosen), store, chosen.source.start)
    # Not held while the operator decides: the daemon would take the command for another one that runs it.
    async with held(shared, chosen):
        stored = await store.load(name)
        if not to and stored.position is None:
            print(f"{name}: no position is stored; it begins by [source] start ({start_text(chosen.source.start)})")
            return 0
        with progress("searching") as work:
            plan = await mover.plan(
                stored,
                to,
                read_schemas=read_schemas,
                events_done=events_done,
                on_progress=lambda file, done, total: work.at(done, total, f"reading {file}"),
            )
    shown = plan.shown()
    print(_shown(name, {**shown, "notes": [*shown["notes"], *notes]}, publisher))
    if not await confirmed(yes):
        return 1
    async with held(shared, chosen) as term:
        guard = await store.begin_epoch(name, term=term)
        if guard.version != stored.version:
            raise CommandRefused(f"the stored position of {name} was changed meanwhile; check it again")
        await store.commit(name, guard, plan.change(operator(), why))
    print(_done(name, shown))
    return 0


async def _by_daemon(settings: Settings, given: argparse.Namespace, body: dict[str, Any]) -> int:
    """Lets the daemon that runs the destination move it: its run ends in order, and the next begins there."""
    name, body = given.name, {**body, "by": operator()}
    plan = await _searched(settings, name, {**body, "commit": False})
    print(_shown(name, plan))
    if not await confirmed(given.yes):
        return 1
    print(_done(name, await _searched(settings, name, {**body, "commit": True})))
    return 0


async def _searched(settings: Settings, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the daemon's answer, which may take as long as its search makes progress; meanwhile a terminal shows the
    progress. Raises CommandRefused and TokenError."""
    try:
        async with asyncio.timeout(control.ANSWER) as limit:
            with progress("searching") as work:
                async with alongside({"progress": _follow(settings, name, work, limit)}):
                    return await control.command(settings, name, "position", body, limit=None)
    except TimeoutError:
        raise CommandRefused(
            f"the daemon has not come further within {control.ANSWER:g} s, and is asked no more",
            remedy=f"headrace position history {name} shows whether it was done",
        ) from None


async def _follow(settings: Settings, name: str, work: Work, limit: asyncio.Timeout) -> None:
    """Extends a limit each time that the daemon's search has made progress."""
    known: Any = None
    while True:
        await asyncio.sleep(_POLL if work.shows else _POLL_UNSEEN)
        with contextlib.suppress(CommandRefused):
            search = (await control.health_of(settings, name)).get("search")
            if search and search != known and not limit.expired():
                known = search
                limit.reschedule(asyncio.get_running_loop().time() + control.ANSWER)
                work.at(search["done"], search["total"], f"reading {search['file']}")


# -- what is shown and asked --------------------------------------------------------------------------------------


def _shown(name: str, plan: Mapping[str, Any], publisher: str = "") -> str:
    """Returns a plan, in the form of PlannedMove.shown(), as text."""
    after = f", after the transaction of {plan['after']}" if plan["after"] else ""
    rows = [("from", f"{short(plan['from'])}{after}"), ("to", short(plan["to"]))]
    if plan["gap"]:
        gap = Gap.from_dict(plan["gap"])
        passed = "done" if publisher else "given up"
        rows.append(("again" if gap.backward else passed, _cost(gap, publisher)))
        if gap.gtids:
            rows.append(("GTIDs", short(gap.gtids, 2000)))
    rows += [("note", note) for note in plan["notes"]]
    return f"{name}:\n{aligned(rows)}"


def _done(name: str, plan: Mapping[str, Any]) -> str:
    return f"{name}: the position is {plan['to']}" if plan["gap"] else f"{name}: {plan['to']}"


def _cost(gap: Gap, publisher: str) -> str:
    if not gap.start:
        return "nothing: no position was stored"
    if gap.bytes == 0 and not gap.files and not gap.transactions:
        return "nothing: the position is there already"
    passed = f"published by {publisher}" if publisher else "not published"
    verb = "published again" if gap.backward else passed
    counts = str(gap).rpartition(": ")[2].rpartition(" published again" if gap.backward else " given up")[0]
    return f"{counts} {verb}"
