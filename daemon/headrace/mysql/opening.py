"""Opens the binlog stream of a source: checks it, finds the start, and sends the dump command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from headrace.errors import ArchiveDamaged, ArchiveError, LostKind, PositionLost, SourceError, SourceMisconfigured
from headrace.model import POS_ROOM, POS_SHIFT, Gap, Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.finding import find_place
from headrace.mysql.archive.packets import ArchivedPackets
from headrace.mysql.checks import require_complete
from headrace.mysql.events.dump_start import DumpStart, dump_position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import Inventory, identity, take_inventory, with_archive
from headrace.mysql.position.scan import above_all
from headrace.mysql.position.search import PositionFinder
from headrace.mysql.position.server_comparison import ServerMatch, compare_server
from headrace.mysql.replicas import Reader, choose_server_id, replica_name
from headrace.mysql.role import refuse_role, require_logged, server_role
from headrace.mysql.wire.binlog_file import file_number
from headrace.mysql.wire.connection import Server, SourceConnection, address_of
from headrace.mysql.wire.stream import ArchivedDump, Packets
from headrace.ports.source import ProgressCallback
from headrace.settings.destination import SourceSettings
from headrace.settings.values import StartAt, StartGtid, StartLatest, StartTime
from headrace.times import second_text

log = structlog.get_logger(__name__)

STREAM_BUFFER = 2 << 20
"""Maximum raw bytes that are received ahead of the decoder."""


@dataclass(frozen=True, slots=True)
class Dump:
    """A running dump."""

    packets: Packets
    connection: SourceConnection | None
    """None for one that comes from an archive."""
    server: Server
    start: DumpStart
    end: tuple[str, int] = "", 0
    """With GTIDs: the end of the server's binlog when the dump began. Up to there the server leaves out transactions
    that were read already. A dump that leaves out nothing must not take over before it."""
    line: int = 0
    """The number of the archive's line that it comes from although the source has it too; else 0."""

    async def close(self) -> None:
        """Ends it."""
        await self.packets.close()
        if self.connection is not None:
            await self.connection.close()


@dataclass(frozen=True, slots=True)
class ReadySource:
    """A source that can continue at `start`; nothing is sent yet."""

    connection: SourceConnection | None
    """None if `archived` has the dump."""
    server: Server
    start: DumpStart
    reader: Reader | None
    gap: Gap | None = None
    """The published transactions that the server lacks, if the start continues without them; must be stored and
    reported."""
    entries: tuple[dict[str, Any], ...] = ()
    """Entries of the schema history that belong to that move."""
    archived: ArchivedDump | None = None
    end: tuple[str, int] = "", 0
    """See Dump."""

    async def close(self) -> None:
        """Ends it."""
        for one in (self.archived, self.connection):
            if one is not None:
                await one.close()

    async def dump(self, *, annotations: bool = False, buffer: int = STREAM_BUFFER) -> Dump:
        """Begins the dump. `annotations`: MariaDB's statement texts are wanted too. `buffer`: bytes received ahead of
        the decoder. Raises SourceError; the caller must close the connection then."""
        settings, start, connection = self.server.settings, self.start.position, self.connection
        if self.archived is not None:
            return Dump(self.archived, None, self.server, self.start)
        assert connection is not None
        gtids: bytes | None = None
        if self.server.gtid_mode and start.gtid_set and not self.start.skip_before:
            # Rows of XA transactions that are prepared and undecided are read again: they were never published.
            gtids = GtidSet(start.gtid_set).minus(GtidSet(",".join(xa.gtid for xa in start.open_xa))).pack()
        name = None
        if (reader := self.reader) is not None:
            name = replica_name(reader.node, reader.destination, 0 if reader.derived else settings.server_id)
        await connection.register(settings.server_id, settings.heartbeat, name)
        file, offset = ("", 4) if gtids is not None else dump_position(start, self.start.skip_before)
        packets = await connection.dump(
            settings.server_id, file=file, offset=offset, gtids=gtids, buffer=buffer, annotations=annotations
        )
        return Dump(packets, connection, self.server, self.start, self.end)


async def make_ready(
    settings: SourceSettings,
    stored: Position | None,
    reader: Reader | None = None,
    last_pos: int = 0,
    *,
    schemas: Sequence[str] = (),
    on_progress: ProgressCallback = lambda *_: None,
    archive: Archive | None = None,
) -> ReadySource:
    """Connects to one address, checks it, and finds the start: `stored`, or what the settings say.

    `last_pos` counts if no position is stored: later numbers are above it. Without a `reader`, for a short check, the
    server id is used as it is. `schemas` are the captured ones, if all are known by name; the callback receives the
    progress of a search. What the settings say may be in the archive. Raises SourceMisconfigured, SourceChanged,
    PositionLost or another SourceError."""
    connection = await SourceConnection.open(address_of(settings))
    try:
        variables = await connection.load_variables()
        await require_complete(connection, settings, schemas)
        role = await server_role(connection)
        refuse_role(role, settings)
        require_logged(role, variables)
        server_id = await _server_id(connection, settings, reader)
        server = _server(connection, settings.model_copy(update={"server_id": server_id}))
        lost: PositionLost | None = None
        if stored is None:
            us = identity(variables, connection.is_mariadb)
            start, lost = await _first_start(connection, server, us, on_progress, archive)
            if last_pos:  # what was published before a reset has lower numbers
                (clock,) = (await connection.execute("SELECT UNIX_TIMESTAMP()"))[0]
                last_pos = above_all(last_pos, int(clock))
                start = replace(start, last_pos=last_pos, snapshot_pos=last_pos)
            if lost is not None and archive is not None:
                await connection.close()
                return await make_ready_archived(settings, start, archive, lost)
            end = (await connection.binlog_end())[:2] if server.gtid_mode else ("", 0)
            agreed = ServerMatch(start, end=end)
        else:
            agreed = await compare_server(connection, settings, stored)
        start = agreed.position
        # Without a GTID set the file is read from its beginning, which has what was executed before; nothing before the
        # offset is published. Else the set would have only what follows, and a resume by it would begin too early.
        skip_before = start.offset if server.gtid_mode and not start.gtid_set and start.offset > 4 else 0
        dump_start = DumpStart(start, connection.writes_checksums, skip_before)
        return ReadySource(connection, server, dump_start, reader, agreed.gap, agreed.entries, end=agreed.end)
    except BaseException:
        await connection.close()
        raise


async def make_ready_archived(
    settings: SourceSettings, stored: Position, archive: Archive, lost: PositionLost
) -> ReadySource:
    """Returns the same for a position that the server has lost, if the archive has it. Raises `lost`, with what the
    archive lacks, if it has not; SourceError if the server does not answer, or the archive can't be read now."""
    async with await SourceConnection.open(address_of(settings)) as connection:
        await connection.load_variables()
        inventory = await take_inventory(connection)
        server = _server(connection, settings)
    skip_before = stored.offset if inventory.gtid_mode and not stored.gtid_set and stored.offset > 4 else 0
    us, purged = inventory.server_uuid, inventory.purged

    async def packets(position: Position, skip_before: int = 0) -> ArchivedPackets | str:
        place = await find_place(archive, position, us, skip_before=skip_before, purged=purged)
        return place if isinstance(place, str) else ArchivedPackets(archive, place, us, checksums=True)

    async def archived(position: Position) -> ArchivedPackets | None:
        try:
            found = await packets(position)
        except ArchiveError as error:
            log.warning("the archive can't be read", error=error.operator_text())
            return None
        return None if isinstance(found, str) else found

    try:
        dump = await packets(stored, skip_before)
    except ArchiveDamaged as error:
        dump = f"the archive can't be read: {error}"
    except ArchiveError as error:  # it may have the position, once it can be read
        raise SourceError(
            f"{lost.args[0]}; the archive can't be read: {error}",
            remedy="check whether the folder or store of the archive can be read",
        ) from error
    if isinstance(dump, str):
        raise PositionLost(f"{lost.args[0]}; {dump}", kind=lost.kind, position=lost.position, remedy=lost.remedy)
    log.info("the archive has what the source lost", position=str(stored), lost=str(lost.args[0]))
    if dump.foreign:  # offsets and ordinals are those of another server's files
        file, offset = dump.at
        stored = replace(
            stored,
            server_uuid=dump.server,
            file=file,
            offset=offset,
            events_done=0,
            rows_done=0,
            open_xa=tuple(replace(xa, file="", offset=0) for xa in stored.open_xa),
            last_transaction="",
        )
    start = DumpStart(stored, checksums=True, skip_before=skip_before)
    server = replace(server, archived=archived, shows_tables=not dump.foreign)
    return ReadySource(None, server, start, None, archived=dump)


def _server(connection: SourceConnection, settings: SourceSettings) -> Server:
    """Returns the facts of a server whose variables are loaded."""
    return Server(
        settings,
        connection.variables.get("version", "?"),
        connection.is_mariadb,
        connection.has_gtids,
        int(connection.variables.get("lower_case_table_names", "0")),
        connection.rows_bring_names,
    )


async def _server_id(connection: SourceConnection, settings: SourceSettings, reader: Reader | None) -> int:
    if reader is not None:
        return await choose_server_id(connection, settings, reader)
    if connection.variables.get("server_id") == str(settings.server_id):
        raise SourceMisconfigured(
            f"our server id {settings.server_id} is the source's own", remedy="set [source] server_id"
        )
    return settings.server_id


async def _require_since(inventory: Inventory, heads: FileHeads, start: StartTime) -> None:
    """Raises SourceMisconfigured if changes since that time are purged: to begin with the oldest binlog would silently
    skip them."""
    oldest = inventory.files[0]
    if file_number(oldest.name) == 1:  # nothing was before it
        return
    begins = (await heads.get(inventory.server_uuid, oldest.name, oldest.size)).begins
    if start.time.timestamp() < int(begins):
        raise SourceMisconfigured(
            f"[source] start is {start.time.isoformat()}, and the oldest binlog, {oldest.name}, begins at "
            f"{second_text(begins)}: changes of the time between are purged",
            remedy='set [source] start = "earliest" to begin with the oldest binlog, or add older ones to an archive '
            "(headrace archive import)",
        )


async def _first_start(
    connection: SourceConnection, server: Server, us: str, on_progress: ProgressCallback, archive: Archive | None
) -> tuple[Position, PositionLost | None]:
    """Returns where a destination without a stored position begins; `us` names the server. If only the archive has what
    is there, also returns that the source has lost it."""
    settings = server.settings
    start = settings.start
    if isinstance(start, StartGtid):
        if not server.gtid_mode:
            raise SourceMisconfigured("[source] start is a GTID set, but the source's gtid_mode is not ON")
        return Position(us, "", 4, str(GtidSet(start.gtid_set))), None
    if isinstance(start, StartLatest):
        file, offset, gtids = await connection.binlog_end()
        # Rows of a snapshot are numbered above what the destination may have given out before, and below what is
        # committed from now on: its time may have no fraction of a second.
        (clock,) = (await connection.execute("SELECT UNIX_TIMESTAMP()"))[0]
        last_pos = (int(clock) * 1_000_000 << POS_SHIFT) - POS_ROOM - 1
        return Position(us, file, offset, gtids if server.gtid_mode else "", last_pos=last_pos), None
    inventory = await with_archive(await take_inventory(connection), archive, FileHeads(settings))
    oldest = inventory.files[0].name

    def begin(file: str, offset: int) -> tuple[Position, PositionLost | None]:
        lost = None
        if inventory.older is not None and file in inventory.older.names:
            lost = PositionLost(f"the source no longer has {file}", kind=LostKind.POSITION_PURGED)
        return Position(us, file, offset), lost

    if isinstance(start, StartTime):
        await _require_since(inventory, FileHeads(settings, inventory.older), start)
        finder = PositionFinder(settings, inventory, on_progress)
        boundary = await finder.at_time(start.time)
        if boundary.file_position == inventory.end:
            log.warning(finder.nothing_since(start.time), start=start.time.isoformat())
        return begin(*boundary.file_position)
    if isinstance(start, StartAt):
        if inventory.index(start.file) is None or start.offset > inventory.size(start.file):
            raise SourceMisconfigured(
                f"[source] start is {start.file}:{start.offset}, which the source does not have (its binlogs go from "
                f"{oldest}:4 to {inventory.end[0]}:{inventory.end[1]})",
                remedy="set [source] start to a position that it has",
            )
        return begin(start.file, start.offset)
    return begin(oldest, 4)
