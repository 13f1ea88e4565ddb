"""Checks whether the server that answers has the history of a stored position, and how to continue there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from headrace import runtime
from headrace.errors import LostKind, PositionLost, SourceChanged
from headrace.model import Gap, Position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import Inventory, take_inventory
from headrace.mysql.position.move import on_another_history, relocate
from headrace.mysql.position.search import first_commit_time, transaction_at
from headrace.mysql.schema.entries import doubt_entry
from headrace.mysql.wire.binlog_file import file_number
from headrace.mysql.wire.connection import SourceConnection
from headrace.settings.destination import SourceSettings
from headrace.settings.values import StartTime
from headrace.times import time_text

log = structlog.get_logger(__name__)

_LISTED = 1_000
"""Characters of a GTID set in a sentence; the log and the gap have all of it."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between the GTIDs of a position and a server."""

    missing: GtidSet
    """Purged there and not read yet."""
    extra: GtidSet
    """Read and never executed there."""
    unknown: GtidSet
    """Those of `extra` that are not our heartbeats: published, and missing on the server."""

    @classmethod
    def of(cls, stored: Position, inventory: Inventory) -> Differences:
        ours = GtidSet(stored.gtid_set)
        extra = ours.minus(GtidSet(inventory.executed))
        return cls(GtidSet(inventory.purged).minus(ours), extra, extra.minus(GtidSet(stored.own_gtids)))


@dataclass(frozen=True, slots=True)
class ServerMatch:
    """Where the stream continues. `gap` is set if that skips a divergence, as `on_diverged` allows."""

    position: Position
    gap: Gap | None = None
    entries: tuple[dict[str, Any], ...] = ()
    """Entries of the schema history that belong to the move."""
    end: tuple[str, int] = field(default=("", 0), compare=False)
    """With GTIDs: the end of the server's binlog. It moves on, so it is no part of the result that is compared."""


async def compare_server(connection: SourceConnection, settings: SourceSettings, stored: Position) -> ServerMatch:
    """Compares the server of `connection` with the stored position, both directions.

    Raises SourceChanged if the server lacks what was published, and PositionLost if it no longer has what was not."""
    inventory = await take_inventory(connection)
    match = await _compare(settings, inventory, stored)
    return replace(match, end=inventory.end) if inventory.gtid_mode else match


async def _compare(settings: SourceSettings, inventory: Inventory, stored: Position) -> ServerMatch:
    same = stored.server_uuid == inventory.server_uuid
    rewritten = await _rewritten(settings, inventory, stored) if same else ""
    if rewritten:
        return await _by_time(settings, inventory, stored, rewritten)
    if inventory.gtid_mode and stored.gtid_set:
        file, _, offset = stored.last_transaction.rpartition(":")
        if same and file == inventory.end[0] and int(offset) < inventory.end[1]:
            # It is in the binlog, see _rewritten(): what is not executed waits for a semi-synchronous replica.
            inventory = replace(inventory, executed=str(GtidSet(inventory.executed).plus(GtidSet(stored.gtid_set))))
        return await _by_gtid(settings, inventory, stored, same=same)
    if same and not stored.file and stored.gtid_set:
        raise SourceChanged(
            f"the position is the GTID set {_short(GtidSet(stored.gtid_set))}, and the server's gtid_mode is OFF",
            remedy="SET GLOBAL gtid_mode = 'ON'; or say where the stream goes on: 'headrace position set DESTINATION "
            "WHERE'",
        )
    if not same:
        raise SourceChanged(
            f"the position {stored} belongs to server {stored.server_uuid}, but {settings.host}:{settings.port} is "
            f"server {inventory.server_uuid}, and without GTIDs headrace does not guess where to go on",
            remedy="point [source] back; or say where this server goes on: 'headrace position set DESTINATION "
            "FILE:OFFSET', or 'headrace position reset DESTINATION' to begin as [source] start says",
        )
    _require_place(inventory, stored)
    return ServerMatch(stored)


def _require_place(inventory: Inventory, stored: Position) -> None:
    """Checks, for the same server without GTIDs, that the position exists."""
    if not stored.file:
        return
    if inventory.index(stored.file) is None:
        raise PositionLost(
            f"the source no longer has {stored.file} (its oldest is {inventory.files[0].name})",
            kind=LostKind.POSITION_PURGED,
        )
    if not inventory.size(stored.file):
        raise PositionLost(
            f"{stored.file} is in the source's list of binlogs and can't be opened there: it was removed from the "
            "disk, or the server may not read it",
            kind=LostKind.POSITION_PURGED,
            remedy=f"put {stored.file} back into the source's binlog folder, or choose where to go on with 'headrace "
            "position set DESTINATION WHERE'",
        )
    if stored.offset > inventory.size(stored.file):
        raise PositionLost(
            f"the position {stored} lies beyond the end of its file, which has {inventory.size(stored.file)} bytes: "
            "the end of the binlog was lost, or the file is another one under the same name",
            kind=LostKind.BEYOND_END,
        )


async def _rewritten(settings: SourceSettings, inventory: Inventory, stored: Position) -> str:
    """Returns why the binlogs of the same server are not those that were read, or "": numbers of files and of
    transactions begin again after a reset, and repeat after a restore, so that a position may look valid and be a
    different one."""
    last = inventory.files[-1].name
    same_name = stored.file.rpartition(".")[0] == last.rpartition(".")[0]  # a server may be configured to use new names
    if same_name and file_number(stored.file) > file_number(last):
        return f"its binlogs end with {last}, the position {stored} is in a later one"
    file, _, offset = stored.last_transaction.rpartition(":")
    size = inventory.size(file)
    if not file or not size:
        return ""  # purged, or missing on disk
    if int(offset) >= size:
        by_gtid = inventory.gtid_mode and stored.gtid_set
        if not await _given_again(settings, inventory, stored, file) if by_gtid else file == stored.file:
            return ""  # without GTIDs the position is beyond the end
        return f"at {stored.last_transaction} it had a transaction, and now that file has {size} bytes"
    try:
        found = await transaction_at(settings, file, int(offset))
    except PositionLost:
        return ""  # purged since the files were listed
    if found == stored.commit_time_us:
        return ""
    there = "none begins" if found is None else f"one of {time_text(found)} begins"
    ours = f"at {stored.last_transaction} it had a transaction of {time_text(stored.commit_time_us)}"
    return f"{ours}, and now {there} there"


async def _given_again(settings: SourceSettings, inventory: Inventory, stored: Position, file: str) -> bool:
    """Returns whether the numbers of transactions after the present end of `file` may belong to others now. They do not
    if only the binlog lost them: then the server counts them as purged, as they are in none of its files."""
    following = inventory.files[(inventory.index(file) or 0) + 1 :]
    if not following:
        return True  # after a crash a server begins a new file, so this is no crash
    if await first_commit_time(settings, file) > stored.commit_time_us:
        return True  # it is another file, which was begun after a reset
    head = await FileHeads(settings).get(inventory.server_uuid, following[0].name, following[0].size)
    later = GtidSet(stored.gtid_set).minus(head.gtids or GtidSet()).minus(GtidSet(inventory.purged))
    return stored.server_uuid in str(later)


async def _by_gtid(settings: SourceSettings, inventory: Inventory, stored: Position, *, same: bool) -> ServerMatch:
    found = Differences.of(stored, inventory)
    extra, unknown, missing = found.extra, found.unknown, found.missing
    position, gap = stored, None
    entries: tuple[dict[str, Any], ...] = ()
    if extra:
        if same and stored.server_uuid in str(extra):  # with or without a tag
            return await _by_time(settings, inventory, stored, "")
        if unknown and settings.on_diverged != "continue":
            raise _changed(inventory, unknown, f"they were never replicated from {stored.server_uuid}")
        if unknown:
            gap = _diverged(stored, inventory, unknown)
            why = "the server lacks transactions that were published, perhaps statements among them"
            entries = (doubt_entry(stored.last_pos, str(stored), why),)
        else:
            log.info("heartbeats that this server never got are left out", gtids=str(extra))
        own = GtidSet(stored.own_gtids).minus(extra)
        position = replace(position, gtid_set=str(GtidSet(stored.gtid_set).minus(extra)), own_gtids=str(own))
    if missing:
        raise PositionLost(
            f"server {inventory.server_uuid} has purged {missing.count:,} transactions that were not read yet: "
            f"{_short(missing)}",
            kind=LostKind.GTIDS_PURGED,
        )
    if same and not extra:
        return ServerMatch(position)
    # The ordinal within a transaction is valid only on its own server: here the transaction begins again.
    return ServerMatch(
        replace(
            position,
            server_uuid=inventory.server_uuid,
            file="",
            offset=4,
            events_done=0,
            rows_done=0,
            open_xa=tuple(replace(xa, file="", offset=0) for xa in stored.open_xa),
            last_transaction="",
        ),
        gap,
        entries,
    )


def _changed(inventory: Inventory, unknown: GtidSet, why: str) -> SourceChanged:
    count = unknown.count
    what = f"has not executed {count:,} transactions that were published: " if count else "has another history now: "
    choice = "bring them to the server, or go on without them" if count else "go on with what it has now"
    return SourceChanged(
        f"server {inventory.server_uuid} {what}{why}{f': {_short(unknown)}' if count else ''}",
        extra=str(unknown),
        remedy=f"{choice}: [source] on_diverged = \"continue\", or 'headrace position set DESTINATION WHERE'",
    )


def _diverged(stored: Position, inventory: Inventory, unknown: GtidSet) -> Gap:
    return Gap(
        reason="diverged",
        start=f"{stored.server_uuid} {stored}",
        end=inventory.server_uuid,
        transactions=unknown.count,
        gtids=str(unknown),
        at_us=runtime.now_us(),
    )


async def _by_time(settings: SourceSettings, inventory: Inventory, stored: Position, rewritten: str) -> ServerMatch:
    """Finds by commit time where to continue: a server that was reset or restored gives the numbers of lost
    transactions to new ones, so only commit times show which were published. Raises SourceChanged unless `on_diverged`
    allows it."""
    unknown = Differences.of(stored, inventory).unknown
    why = "it was reset, or restored from an older copy"
    if settings.on_diverged != "continue":
        raise _changed(inventory, unknown, f"{why} ({rewritten})" if rewritten else why)
    when = datetime.fromtimestamp((stored.commit_time_us + 1) / 1e6, UTC)
    move = on_another_history(await relocate(settings, StartTime(when), stored, reason="diverged"), stored)
    return ServerMatch(move.position, replace(_diverged(stored, inventory, unknown), end=move.gap.end), move.entries)


def _short(gtids: GtidSet) -> str:
    text = str(gtids)
    return text if len(text) <= _LISTED else f"{text[:_LISTED]}... ({gtids.intervals} intervals)"
