"""Whether a source can serve a stored position, for people and programs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.finding import find_place
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import Inventory, retention, take_inventory
from headrace.mysql.position.search import distance, read_on
from headrace.mysql.position.server_comparison import Differences, compare_server
from headrace.mysql.wire.binlog_file import file_number
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.inspection import PositionReport, short
from headrace.ports.source import Retention
from headrace.settings.destination import SourceSettings
from headrace.settings.values import start_text
from headrace.times import duration_text

LIMIT = 60.0
"""Maximum seconds for one address."""


@dataclass(slots=True)
class Asked:
    """What a source reported, or why it reported nothing."""

    address: str
    inventory: Inventory | None = None
    room: Retention = field(default_factory=Retention)
    error: str = ""
    unreachable: list[str] = field(default_factory=list)
    """Why the addresses before this one were skipped."""
    refusal: PositionLost | SourceChanged | NotUnderstood | None = None
    """The error of continuing at the position, as the destination would."""


async def report(
    name: str, addresses: Sequence[SourceSettings], position: Position | None, archive: Archive | None = None
) -> PositionReport:
    """Queries the first address that can be reached; errors never raise. `name` is the destination's."""
    asked = await _ask(name, addresses, position)
    state, text = judge(addresses[0], position, asked)
    if state == State.POSITION_LOST and archive is not None and position is not None:
        state, text = await _archived(archive, position, asked, text)
    facts = _facts(position, asked)
    return PositionReport(state, text, facts, _rows(facts))


async def _archived(archive: Archive, position: Position, asked: Asked, lost: str) -> tuple[str, str]:
    """Judges again a position that the source has lost."""
    inventory = asked.inventory
    server, purged = (inventory.server_uuid, inventory.purged) if inventory is not None else (position.server_uuid, "")
    try:
        place = await find_place(archive, position, server, purged=purged)
    except HeadraceError as error:
        return State.POSITION_LOST.value, f"{lost}; {error}"
    if isinstance(place, str):
        return State.POSITION_LOST.value, f"{lost}; {place}"
    line = archive.line(place.line)
    file, offset = line.end
    if line.server == server and inventory is not None and inventory.size(file) < offset:
        gap = f"the archive goes on to {file}:{offset}, and neither it nor the source has what follows"
        return State.POSITION_LOST.value, f"{lost}; {gap} -> import it with 'headrace archive import'"
    return "ok", f"the archive has what the source has lost ({lost.partition(': ')[2]})"


async def _ask(name: str, addresses: Sequence[SourceSettings], position: Position | None) -> Asked:
    unreachable: list[str] = []
    for address in addresses:
        found = Asked(f"{address.host}:{address.port}", unreachable=unreachable)
        try:
            async with asyncio.timeout(LIMIT):
                await _inspect(address, position, found)
            return found
        except SourceUnreachable as failure:
            unreachable.append(named(str(failure), name))
        except HeadraceError as failure:
            found.error = failure.operator_text(name)
            return found
        except TimeoutError:
            unreachable.append(f"{found.address} did not answer within {LIMIT:g} s")
    first = addresses[0]
    return Asked(
        f"{first.host}:{first.port}",
        error=guided("; ".join(unreachable), SourceUnreachable.reason),
        unreachable=unreachable,
    )


async def _inspect(address: SourceSettings, position: Position | None, found: Asked) -> None:
    connection = await SourceConnection.open(address_of(address))
    try:
        found.inventory = await take_inventory(connection)
        if position is None:
            return
        found.room = await retention(found.inventory, position, FileHeads(address))
        if judge(address, position, found)[0] != "ok":
            return
        # What lists do not show: files that were rewritten under their names, and damage right before the position.
        await compare_server(connection, address, position)
        at_end = (position.file, position.offset) == found.inventory.end  # a dump would only wait there
        if position.server_uuid == found.inventory.server_uuid and not at_end:
            await read_on(address, position.file, position.offset)
    except (PositionLost, SourceChanged, NotUnderstood) as refusal:
        found.refusal = refusal
    finally:
        await connection.close()


def judge(settings: SourceSettings, position: Position | None, source: Asked) -> tuple[str, str]:
    """Returns one word and one sentence: `ok`, `unknown`, or the state that the destination would take."""
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
    """Returns why a file and offset can't be read; None if they can."""
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


# -- the facts, and their table -----------------------------------------------------------------------------------


def _facts(position: Position | None, asked: Asked) -> dict[str, Any]:
    """Returns the facts. Every key is always present, with null for what could not be queried: programs read them."""
    inventory, behind = asked.inventory, None
    if inventory and position and position.file and position.server_uuid == inventory.server_uuid:
        behind = distance(inventory, (position.file, position.offset), inventory.end)[0]
    return {
        "source": {
            "address": asked.address,
            "error": asked.error,
            "unreachable": asked.unreachable,
            **_said(position, inventory),
        },
        "retention": {"bytes": asked.room.bytes, "seconds": asked.room.seconds, "share": asked.room.share},
        "behind_bytes": behind,
    }


def _said(position: Position | None, inventory: Inventory | None) -> dict[str, Any]:
    """Returns what the server reported, with nulls if it reported nothing."""
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


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    source, room = facts["source"], facts["retention"]
    if source["server_uuid"] is None:
        return [("source", source["address"])]
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
