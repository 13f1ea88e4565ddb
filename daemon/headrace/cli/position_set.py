"""`headrace position set` and `reset`: an operator moves a position, knowing what that gives up."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

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
from headrace.errors import NotUnderstood, PositionLost, SourceChanged, SourceUnreachable
from headrace.lease import Term
from headrace.model import Gap, Position
from headrace.mysql.position.move import Where, position_text, relocate
from headrace.mysql.position.server_comparison import compare_server
from headrace.mysql.schema.entries import back_entry, doubt_entry
from headrace.mysql.source import addresses
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.source import Move
from headrace.ports.state import HistoryEntry, StateChange, StateStore, Stored
from headrace.settings.destination import Settings, SourceSettings
from headrace.settings.values import Start, StartAt, StartEarliest, StartGtid, StartLatest

_ALL = 1_000_000


async def move(settings: Settings, given: argparse.Namespace) -> int:
    """Moves a position; the exit status. Raises HeadraceError."""
    name, (text, where) = given.name, given.where
    moved = destination(settings, name)
    require_answer(given.yes)
    async with coordinated(settings) as shared:
        store = await open_store(shared, moved)
        # Not held while somebody thinks about it: the daemon would take that for another one that runs it.
        async with held(shared, moved):
            stored = await store.load(name)
            made = await _relocate(store, name, moved.source, where, stored)
        if given.read_schemas:
            forgotten = doubt_entry(made.position.last_pos, text, "an operator wants it read from the source")
            made = replace(made, entries=(*made.entries, forgotten))
        print(_shown(name, stored, made))
        if not await confirmed(given.yes):
            return 1
        details = {"gap": made.gap.to_dict(), "where": text}
        async with held(shared, moved) as term:
            await _commit(store, name, term, stored, made.position, made.entries, details)
    print(f"{name}: the position is {position_text(made.position)}")
    return 0


async def reset(settings: Settings, given: argparse.Namespace) -> int:
    """Takes a position away; the exit status. Raises HeadraceError."""
    name = given.name
    moved = destination(settings, name)
    start = start_text(moved.source.start)
    require_answer(given.yes)
    async with coordinated(settings) as shared:
        store = await open_store(shared, moved)
        async with held(shared, moved):
            stored = await store.load(name)
        if stored.position is None:
            print(f"{name}: no position is stored; it begins by [source] start ({start})")
            return 0
        to = f"nothing stored: it begins by [source] start ({start})"
        print(f"{name}:\n{aligned([('from', _position_text(stored.position)), ('to', to)])}")
        if not await confirmed(given.yes):
            return 1
        gap = Gap("operator", position_text(stored.position), f"[source] start ({start})", at_us=time.time_ns() // 1000)
        anew = back_entry(-1, "reset")  # nothing of the schema history counts any more
        async with held(shared, moved) as term:
            await _commit(store, name, term, stored, None, (anew,), {"gap": gap.to_dict(), "where": "reset"})
    print(f"{name}: nothing is stored; it begins by [source] start ({start})")
    return 0


async def _relocate(store: StateStore, name: str, source: SourceSettings, where: Where, stored: Stored) -> Move:
    """The move on the first address of the source that can be reached."""
    entries, history = await store.schema_entries(name), await store.history(name, _ALL)
    unreachable: list[SourceUnreachable] = []
    for address in addresses(source):
        try:
            made = await relocate(
                address,
                where,
                stored.position,
                reason="operator",
                history_entries=entries,
                last_pos=stored.last_pos,
                trail=trail(history),
            )
        except SourceUnreachable as error:
            unreachable.append(error)
        else:
            passed = tuple(f"{error}; this is a position on {address.host}:{address.port}" for error in unreachable)
            return replace(made, notes=passed + await _other_history(address, stored.position) + made.notes)
    raise unreachable[0]


async def _other_history(source: SourceSettings, position: Position | None) -> tuple[str, ...]:
    """A note when the source is not, or no longer, what the position was read from: then nothing can be counted."""
    if position is None:
        return ()
    connection = await SourceConnection.open(address_of(source))
    try:
        await compare_server(connection, source.model_copy(update={"on_diverged": "fail"}), position)
    except SourceChanged as error:
        return (f"what is given up can't be counted: {error.args[0]}",)
    except (PositionLost, NotUnderstood):
        pass  # that is why it is moved
    finally:
        await connection.close()
    return ()


def trail(history: list[HistoryEntry]) -> list[Position]:
    """The positions, newest first, from which the stream was read on one server without a jump, back to the last
    jump or to the oldest that the store still has."""
    found: list[Position] = []
    for entry in history:  # newest first
        if entry.position is None or (found and entry.position.server_uuid != found[0].server_uuid):
            break
        found.append(entry.position)
        if entry.actor != "checkpoint":
            break
    return found


async def _commit(
    store: StateStore,
    name: str,
    term: Term,
    stored: Stored,
    position: Position | None,
    entries: tuple[dict[str, Any], ...],
    details: dict[str, Any],
) -> None:
    guard = await store.begin_epoch(name, term=term)
    if guard.version != stored.version:
        raise CommandRefused(f"the stored position of {name} was changed meanwhile; look at it again")
    details = {**details, "by": operator()}
    await store.commit(name, guard, StateChange(position, entries, actor="operator", details=details))


def start_text(start: Start) -> str:
    """[source] start as it is written."""
    if isinstance(start, StartEarliest):
        return "earliest"
    if isinstance(start, StartLatest):
        return "latest"
    if isinstance(start, StartAt):
        return f"{start.file}:{start.offset}"
    if isinstance(start, StartGtid):
        return start.gtid_set
    return start.time.isoformat()


# -- what is shown and asked --------------------------------------------------------------------------------------


def _shown(name: str, stored: Stored, made: Move) -> str:
    rows = [
        ("from", _position_text(stored.position)),
        ("to", position_text(made.position)),
        ("again" if made.gap.backward else "given up", _cost(made.gap)),
    ]
    if made.gap.gtids:
        rows.append(("GTIDs", short(made.gap.gtids, 2000)))
    rows += [("note", note) for note in made.notes]
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
