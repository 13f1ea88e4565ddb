"""`headrace position show`: what is stored of each destination, what its source has, and whether the two fit."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, field
from typing import Any

from headrace.cli.common import (
    aligned,
    coordinated,
    destination,
    duration_text,
    open_store,
    print_json,
    short,
    time_text,
)
from headrace.errors import (
    HeadraceError,
    LostKind,
    NotUnderstood,
    PositionLost,
    SourceChanged,
    SourceUnreachable,
    guided,
    named,
)
from headrace.model import Position, State
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import Inventory, retention, take_inventory
from headrace.mysql.position.search import distance, read_on
from headrace.mysql.position.server_comparison import Differences, compare_server
from headrace.mysql.schema.states import file_number
from headrace.mysql.source import addresses
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.source import Retention
from headrace.ports.state import Stored
from headrace.settings.destination import Settings, SourceSettings
from headrace.settings.values import start_text

LIMIT = 60.0
"""Seconds for one source."""


@dataclass(slots=True)
class _Source:
    """What a source said, or why it said nothing."""

    address: str
    inventory: Inventory | None = None
    room: Retention = field(default_factory=Retention)
    error: str = ""
    unreachable: list[str] = field(default_factory=list)
    """Why the addresses before this one were passed over."""
    refusal: PositionLost | SourceChanged | NotUnderstood | None = None
    """What came of going on at the position, as the destination does."""


async def command(settings: Settings, given: argparse.Namespace) -> int:
    """Prints the positions; 1 when a source can't be asked or can't serve what is stored."""
    wanted = given.names or list(settings.destinations)
    for name in wanted:
        destination(settings, name)
    stored: dict[str, tuple[Stored, str]] = {}
    async with coordinated(settings) as shared:
        for name in wanted:
            one = settings.destinations[name]
            store = await open_store(shared, one)
            stored[name] = await store.load(name), await shared.lock(one).look()
    asked = await asyncio.gather(
        *(_ask(name, settings.destinations[name].source, stored[name][0].position) for name in wanted)
    )
    shown, well = {}, True
    for name, source in zip(wanted, asked, strict=True):
        state, verdict = judge(settings.destinations[name].source, stored[name][0].position, source)
        well &= state == "ok"
        shown[name] = _facts(*stored[name], source, state, verdict, remedy(name, state))
    if given.json:
        print_json(shown)
    else:
        print("\n\n".join(f"{name}\n{_table(facts)}" for name, facts in shown.items()))
    return 0 if well else 1


async def _ask(name: str, settings: SourceSettings, position: Position | None) -> _Source:
    """The first address that can be reached; never raises for what goes wrong there."""
    unreachable: list[str] = []
    for address in addresses(settings):
        found = _Source(f"{address.host}:{address.port}", unreachable=unreachable)
        try:
            async with asyncio.timeout(LIMIT):
                await _look(address, position, found)
            return found
        except SourceUnreachable as failure:
            unreachable.append(named(str(failure), name))
        except HeadraceError as failure:
            found.error = failure.told(name)
            return found
        except TimeoutError:
            unreachable.append(f"{found.address} did not answer within {LIMIT:g} s")
    return _Source(
        f"{settings.host}:{settings.port}",
        error=guided("; ".join(unreachable), SourceUnreachable.reason),
        unreachable=unreachable,
    )


async def _look(address: SourceSettings, position: Position | None, found: _Source) -> None:
    connection = await SourceConnection.open(address_of(address))
    try:
        found.inventory = await take_inventory(connection)
        if position is None:
            return
        found.room = await retention(found.inventory, position, FileHeads(address))
        if judge(address, position, found)[0] != "ok":
            return
        # What lists do not show: files that were rewritten under their names, and damage right before us.
        await compare_server(connection, address, position)
        at_end = (position.file, position.offset) == found.inventory.end  # a dump would only wait there
        if position.server_uuid == found.inventory.server_uuid and not at_end:
            await read_on(address, position.file, position.offset)
    except (PositionLost, SourceChanged, NotUnderstood) as refusal:
        found.refusal = refusal
    finally:
        await connection.close()


def judge(settings: SourceSettings, position: Position | None, source: _Source) -> tuple[str, str]:
    """One word and one sentence: `ok`, `unknown`, or the state that the destination would take."""
    inventory = source.inventory
    if inventory is None:
        return "unknown", f"the source can't be asked: {source.error}"
    if position is None:
        return "ok", f"no position is stored: it begins by [source] start ({start_text(settings.start)})"
    lost, changed = State.POSITION_LOST.value, State.SOURCE_CHANGED.value
    if inventory.gtid_mode and position.gtid_set:
        found = Differences.of(position, inventory)
        if found.unknown:
            text = f"the source never executed {found.unknown.count:,} transactions that were published"
            return changed, f"{changed}: {text}"
        if found.missing:
            text = f"the source has purged {found.missing.count:,} transactions that were not read yet"
            return lost, f"{lost}: {LostKind.GTIDS_PURGED}: {text}"
    elif position.server_uuid != inventory.server_uuid:
        return changed, f"{changed}: another server answers, and without GTIDs nobody knows where it is"
    else:
        for file, offset in [(position.file, position.offset), *((xa.file, xa.offset) for xa in position.open_xa)]:
            state, text = _no_position(inventory, file, offset)
            if state is not None:
                return state.value, f"{state}: {text}"
    if source.refusal is not None:
        kind = f"{source.refusal.kind}: " if isinstance(source.refusal, PositionLost) else ""
        return source.refusal.state.value, f"{source.refusal.state}: {kind}{source.refusal.args[0]}"
    if source.error:
        return "unknown", f"the source was asked in part only: {source.error}"
    return "ok", "the source can serve it"


def _no_position(inventory: Inventory, file: str, offset: int) -> tuple[State | None, str]:
    """Why a file and offset can't be read; None when they can."""
    lost, at = State.POSITION_LOST, inventory.index(file)
    if at is None and file_number(file) > file_number(inventory.files[-1].name):
        text = f"the source's binlogs end before {file}: they were reset, or it was restored from an older copy"
        return State.SOURCE_CHANGED, text
    if at is None:
        oldest = inventory.files[0].name
        return lost, f"{LostKind.POSITION_PURGED}: the source no longer has {file}; its oldest is {oldest}"
    if inventory.files[at].size < 4:
        return lost, f"{LostKind.POSITION_PURGED}: {file} is listed and gone from the source's disk"
    if offset > inventory.size(file):
        return lost, f"{LostKind.BEYOND_END}: {file} ends at {inventory.size(file)}, the position is at {offset}"
    return None, ""


def remedy(name: str, state: str) -> str:
    """What an operator does about the state that `judge` found; "" where there is nothing to do."""
    ways = {State.POSITION_LOST.value: "WHERE", State.SOURCE_CHANGED.value: "WHERE is one way"}
    way = ways.get(state)
    return f"headrace position set {name} {way}; see docs/troubleshooting.md#{state.lower()}" if way else ""


# -- the facts, and their table -----------------------------------------------------------------------------------


def _facts(stored: Stored, run_by: str, source: _Source, state: str, verdict: str, to_do: str) -> dict[str, Any]:
    """Every key is always there, with null for what could not be asked: programs read them."""
    position, inventory = stored.position, source.inventory
    facts: dict[str, Any] = {
        "stored": position.to_dict() if position is not None else None,
        "last_pos": str(stored.last_pos),
        "epoch": stored.epoch,
        "version": stored.version,
        "run_by": run_by,
        "source": {
            "address": source.address,
            "error": source.error,
            "unreachable": source.unreachable,
            **_asked(position, inventory),
        },
        "verdict": {"state": state, "text": verdict, "remedy": to_do},
        "retention": {"bytes": source.room.bytes, "seconds": source.room.seconds, "share": source.room.share},
        "behind_bytes": None,
    }
    if inventory and position and position.file and position.server_uuid == inventory.server_uuid:
        facts["behind_bytes"] = distance(inventory, (position.file, position.offset), inventory.end)[0]
    return facts


def _asked(position: Position | None, inventory: Inventory | None) -> dict[str, Any]:
    """What the server said, with nulls when it said nothing."""
    gtids = inventory and inventory.gtid_mode and position and position.gtid_set
    found = Differences.of(position, inventory) if gtids and position and inventory else None
    return {
        "server_uuid": inventory and inventory.server_uuid,
        "version": inventory and inventory.version,
        "binlogs": inventory and len(inventory.files),
        "first": inventory and inventory.files[0].name,
        "last": inventory and inventory.files[-1].name,
        "end": inventory and f"{inventory.end[0]}:{inventory.end[1]}",
        "expire_seconds": inventory and inventory.expire_seconds,
        "executed": inventory and inventory.executed,
        "purged": inventory and inventory.purged,
        "missing": inventory and (str(found.missing) if found else ""),
        "extra": inventory and (str(found.extra) if found else ""),
    }


def _table(facts: dict[str, Any]) -> str:
    stored, source = facts["stored"], facts["source"]
    rows = []
    if stored is None:
        rows += [("position", "none"), ("last _pos", facts["last_pos"])]
    else:
        done = f", {stored['events_done']} events of the transaction done" if stored["events_done"] else ""
        at = f"{stored['file']}:{stored['offset']}" if stored["file"] else "by GTID set"
        rows += [
            ("position", at + done),
            ("GTID set", short(stored["gtid_set"]) or "-"),
            ("of server", stored["server_uuid"]),
            ("open XA", ", ".join(xa[0] for xa in stored["open_xa"]) or "-"),
            ("last _pos", stored["last_pos"]),
            ("committed", time_text(stored["commit_time_us"])),
        ]
        rows += [
            ("snapshot", f"{one['id']} ({one['kind']}{', paused' if one['paused'] else ''}), {one['rows']:,} rows done")
            for one in stored["snapshots"]
        ]
    rows += [("epoch", str(facts["epoch"])), ("run by", facts["run_by"] or "nobody")]
    if source["server_uuid"] is not None:
        rows += _source_rows(facts)
    else:
        rows.append(("source", source["address"]))
    rows.append(("verdict", facts["verdict"]["text"]))
    if facts["verdict"]["remedy"]:
        rows.append(("to do", facts["verdict"]["remedy"]))
    return aligned(rows)


def _source_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    source, room = facts["source"], facts["retention"]
    rows = [("not asked", text) for text in source["unreachable"]]
    rows += [
        ("source", f"{source['address']}, {source['version']}"),
        ("server", source["server_uuid"]),
        ("binlogs", f"{source['first']} to {source['last']}, end at {source['end']}"),
    ]
    rows += [(name, short(source[name])) for name in ("purged", "missing", "extra") if source[name]]
    if facts["behind_bytes"] is not None:
        rows.append(("behind", f"{facts['behind_bytes']:,} bytes"))
    if room["bytes"] is not None:
        text = f"{room['bytes']:,} bytes"
        if room["seconds"] is not None:
            text += f", {duration_text(room['seconds'])}"
        elif not source["expire_seconds"]:
            text += "; the source purges nothing by itself"
        rows.append(("retention", text))
    return rows
