"""Finds where a destination begins that continues after the cursor of another program, such as Canal or Debezium."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.inventory import Inventory, take_inventory
from headrace.mysql.position.move import relocate
from headrace.mysql.position.search import PositionError, PositionFinder
from headrace.mysql.schema.states import reached
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.destination import SourceSettings
from headrace.settings.values import Start, StartAt, StartGtid, StartTime
from headrace.times import second_text


@dataclass(frozen=True, slots=True)
class ForeignCursor:
    """A cursor of another program; "" and 0 for missing values."""

    file: str = ""
    offset: int = 0
    gtids: str = ""
    """What was executed, in the notation of MySQL or MariaDB."""
    time_ms: int = 0
    """When the event at the offset was written or, without a file, from when on to read, in milliseconds since 1970."""
    server_id: int = 0
    """The server that executed the event."""
    inclusive: bool = False
    """Whether the event at the offset was processed. Else reading begins there."""
    inside: bool = False
    """Whether changes of the transaction that begins there were already processed."""

    def __str__(self) -> str:
        if self.file:
            return f"{self.file}:{self.offset}"
        return self.gtids or second_text(self.time_ms / 1000)


@dataclass(slots=True)
class ForeignStart:
    """The same as [source] start, and notes for the operator."""

    start: Start
    notes: list[str] = field(default_factory=list)
    by_file: bool = False
    """Whether the source has the cursor's own file, so that its offset shows which events were processed."""


async def start_of(source: SourceSettings, cursor: ForeignCursor) -> ForeignStart:
    """Finds the position on the source and proves that it is the cursor's: by GTIDs if both have them, else by file and
    offset, else by time. Raises PositionError if the source does not have it, or another SourceError."""
    async with await SourceConnection.open(address_of(source)) as connection:
        inventory = await take_inventory(connection)
        server_id = int((await connection.query("SELECT @@global.server_id AS i"))[0]["i"])
    by_gtids = bool(cursor.gtids) and (inventory.gtid_mode or inventory.mariadb)
    listed = inventory.index(cursor.file) is not None and cursor.offset <= inventory.size(cursor.file)
    here = cursor.server_id == server_id and listed
    if by_gtids and here and await _is_inside(source, inventory, cursor):
        by_gtids = False
    if by_gtids:
        found = await _by_gtids(source, inventory, cursor, here=here)
    elif cursor.file:
        found = await _by_file(source, inventory, cursor)
    elif cursor.time_ms:
        when = datetime.fromtimestamp(cursor.time_ms / 1000, UTC)
        moved = await relocate(source, StartTime(when), None, reason="operator")
        found = ForeignStart(StartAt(moved.position.file, moved.position.offset), list(moved.notes))
    else:
        raise PositionError("the cursor says neither a file nor GTIDs nor a time")
    if cursor.server_id and cursor.server_id != server_id:
        found.notes.append(
            f"the cursor's last change was executed by the server {cursor.server_id}, and the source is the server "
            f"{server_id}: a replica of it, or another one than before"
        )
    if cursor.inside:
        found.notes.append(
            "the cursor lies in a transaction: reading begins with that transaction, and what was sent of it comes "
            "again"
        )
    return found


async def _is_inside(source: SourceSettings, inventory: Inventory, cursor: ForeignCursor) -> bool:
    """Returns whether the last processed event is within a transaction. Canal's set already includes that transaction,
    so using it would lose the rest."""
    if not cursor.inclusive:
        return False
    scan = await PositionFinder(source, inventory).around(cursor.file, cursor.offset)
    return scan.begin.offset != cursor.offset


async def _by_gtids(source: SourceSettings, inventory: Inventory, cursor: ForeignCursor, *, here: bool) -> ForeignStart:
    """`here`: the cursor's file is on the source, and shows that no transaction was open."""
    moved = await relocate(source, StartGtid(cursor.gtids), None, reason="operator")
    if cursor.inclusive and cursor.time_ms and not here:
        when = datetime.fromtimestamp(cursor.time_ms / 1000, UTC)
        earlier = (await relocate(source, StartTime(when), None, reason="operator")).position
        if not reached((earlier.file, earlier.offset), (moved.position.file, moved.position.offset)):
            note = (
                "the cursor's GTID set has the transaction in which the last change was, and a part of that may be "
                f"missing: reading begins with what was committed at {second_text(when.timestamp())} or later, and "
                "what was sent of it comes again"
            )
            return ForeignStart(StartAt(earlier.file, earlier.offset), [*moved.notes, note])
    if inventory.mariadb:  # its dumps begin by file and offset
        return ForeignStart(StartAt(moved.position.file, moved.position.offset), list(moved.notes))
    return ForeignStart(StartGtid(str(GtidSet(cursor.gtids))), list(moved.notes))


async def _by_file(source: SourceSettings, inventory: Inventory, cursor: ForeignCursor) -> ForeignStart:
    scan = await PositionFinder(source, inventory).around(cursor.file, cursor.offset)
    at_boundary = scan.begin.offset == cursor.offset
    if not (scan.event_time or at_boundary):
        raise PositionError(
            f"no event begins at {cursor}: the source's {cursor.file} is another file than the cursor's",
            remedy="check whether this is the right server, and whether its binlogs were reset",
        )
    if cursor.inclusive and cursor.time_ms and not at_boundary and scan.event_time != cursor.time_ms // 1000:
        raise PositionError(
            f"the event at {cursor} was written at {second_text(scan.event_time)}, and that of the cursor at "
            f"{second_text(cursor.time_ms / 1000)}: the source's {cursor.file} is another file than the cursor's",
            remedy="check whether this is the right server, and whether its binlogs were reset",
        )
    if cursor.inclusive and not at_boundary and scan.after is not None:
        return ForeignStart(StartAt(*scan.after.file_position), by_file=True)
    found = ForeignStart(StartAt(*scan.begin.file_position), by_file=True)
    if cursor.inclusive and not at_boundary:
        found.notes.append(
            f"{cursor} lies in the transaction that begins at {scan.begin}: reading begins there, and what was sent of "
            "it comes again"
        )
    return found
