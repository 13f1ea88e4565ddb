"""Opens the binlog stream of a source: checks it, finds where to begin, and sends the dump command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime

from headrace.errors import LostKind, PositionLost, SourceChanged, SourceError, SourceMisconfigured
from headrace.model import Position
from headrace.mysql.checks import address_of, require_complete
from headrace.mysql.connection import SourceConnection, probe_id
from headrace.mysql.gtid import GtidSet
from headrace.mysql.stream import PacketStream
from headrace.mysql.transactions import dump_place
from headrace.settings import SourceSettings, StartAt, StartEarliest, StartGtid, StartLatest, StartTime

_STREAM_BUFFER = 2 << 20
"""Raw bytes received ahead of the decoder."""


@dataclass(slots=True)
class OpenSource:
    """A running dump and what the decoder has to know of it."""

    stream: PacketStream
    start: Position
    checksums: bool
    version: str
    mariadb: bool = False
    gtid_mode: bool = False
    lower_case_table_names: int = 0
    skip_before: int = 0
    """Transactions of the first file that begin before this offset are only counted."""
    skip_until_us: int = 0
    """Transactions committed before this time, in microseconds since 1970, are only counted."""


async def open_source(
    settings: SourceSettings,
    server_id: int,
    stored: Position | None,
    *,
    before_dump: Callable[[OpenSource], Awaitable[None]] | None = None,
    annotations: bool = False,
) -> OpenSource:
    """Connects, checks, and begins the dump at `stored` or where the settings say.

    `before_dump` is awaited once the start is known and before anything is sent. `annotations`: MariaDB's statement
    texts are wanted too. Raises SourceMisconfigured, SourceChanged, PositionLost or another SourceError.
    """
    connection = await SourceConnection.open(address_of(settings))
    try:
        variables = await connection.load_variables()
        await require_complete(connection, settings)
        if variables.get("server_id") == str(server_id):
            raise SourceMisconfigured(f"our server id {server_id} is the source's own", remedy="set [source] server_id")
        identity = await _identity(connection)
        gtid_mode = variables.get("gtid_mode", "OFF").upper() in ("ON", "ON_PERMISSIVE")
        made = OpenSource(
            stream=None,  # type: ignore[arg-type]  # set below, once all is known
            start=stored or Position(identity, "", 4),
            checksums=connection.writes_checksums,
            version=variables.get("version", "?"),
            mariadb=connection.is_mariadb,
            gtid_mode=gtid_mode,
            lower_case_table_names=int(variables.get("lower_case_table_names", "0")),
        )
        if stored is None:
            await _first_start(connection, settings, made, identity, gtid_mode)
        elif stored.server_uuid != identity and not (gtid_mode and stored.gtid_set):
            raise SourceChanged(
                f"the position {stored} belongs to server {stored.server_uuid}, but {identity} answers",
                remedy="without GTIDs headrace does not guess where to go on: point [source] back, or start anew",
            )
        start = made.start
        if gtid_mode and not start.gtid_set and start.offset > 4:
            # The file is read from its beginning, which says what was executed before; nothing before the offset is
            # published. Without that the set would hold only what follows, and a resume by it would begin too early.
            made.skip_before = start.offset
        if gtid_mode and start.gtid_set and not made.skip_before:
            made.start = await _by_gtid(connection, start, identity)
            # Rows of XA transactions that are prepared and not decided are read again: they were never published.
            gtids: GtidSet | None = GtidSet(start.gtid_set).without([xa.gtid for xa in start.open_xa if xa.gtid])
        else:
            gtids = None
            await _require_file(connection, dump_place(start, made.skip_before)[0])
        if before_dump is not None:
            await before_dump(made)
        await connection.register(server_id, settings.heartbeat)
        file, offset = ("", 4) if gtids is not None else dump_place(start, made.skip_before)
        made.stream = await connection.dump(
            server_id, file=file, offset=offset, gtids=gtids, buffer=_STREAM_BUFFER, annotations=annotations
        )
        return made
    except BaseException:
        await connection.close()
        raise


async def _identity(connection: SourceConnection) -> str:
    """MySQL's server_uuid. MariaDB has none: its server id and GTID domain stand in."""
    variables = connection.variables
    uuid = variables.get("server_uuid") if not connection.is_mariadb else None
    return uuid or f"mariadb-{variables.get('gtid_domain_id', '0')}-{variables.get('server_id', '0')}"


async def _by_gtid(connection: SourceConnection, start: Position, identity: str) -> Position:
    """Both directions are compared: a server that lacks transactions of ours is another history."""
    ours = GtidSet(start.gtid_set)
    executed = GtidSet(str((await connection.query("SELECT @@global.gtid_executed AS g"))[0]["g"]))
    if not executed.contains(ours):
        raise SourceChanged(
            f"server {identity} has not executed all of what was published before (ours: {ours}; its: {executed})",
            remedy="the server was reset, restored or is another one: point [source] back, or start anew",
        )
    if start.server_uuid == identity:
        return start
    # The ordinal within a transaction holds on its own server only: here the transaction begins anew.
    return Position(
        identity,
        "",
        4,
        start.gtid_set,
        open_xa=tuple(replace(xa, file="", offset=0) for xa in start.open_xa),
        last_pos=start.last_pos,
        commit_time_us=start.commit_time_us,
    )


async def _require_file(connection: SourceConnection, file: str) -> None:
    files = {str(row["Log_name"]): int(row["File_size"]) for row in await connection.query("SHOW BINARY LOGS")}
    if file not in files:
        raise PositionLost(
            f"the source no longer has {file} (its oldest is {min(files, default='none')})",
            kind=LostKind.POSITION_PURGED,
        )


async def _first_start(
    connection: SourceConnection, settings: SourceSettings, made: OpenSource, identity: str, gtid_mode: bool
) -> None:
    """Fills in the start for a destination without a stored position."""
    start = settings.start
    if isinstance(start, StartGtid):
        if not gtid_mode:
            raise SourceMisconfigured("[source] start is a GTID set, but the source's gtid_mode is not ON")
        made.start = Position(identity, "", 4, str(GtidSet(start.gtid_set)))
        return
    if isinstance(start, StartLatest):
        file, offset, gtids = await connection.binlog_end()
        made.start = Position(identity, file, offset, gtids if gtid_mode else "")
        return
    files = [str(row["Log_name"]) for row in await connection.query("SHOW BINARY LOGS")]
    if not files:
        raise SourceError("the source lists no binlog")
    if isinstance(start, StartEarliest):
        made.start = Position(identity, files[0], 4)
    elif isinstance(start, StartTime):
        made.start = Position(identity, await _file_before(settings, files, start.time), 4)
        made.skip_until_us = int(start.time.timestamp() * 1_000_000)
    elif isinstance(start, StartAt):
        made.start = Position(identity, start.file, start.offset)


async def _file_before(settings: SourceSettings, files: list[str], when: datetime) -> str:
    """The last file that begins before a time, by halving: each step reads one file's first event."""
    low, high = 0, len(files) - 1
    while low < high:
        middle = (low + high + 1) // 2
        # Whole seconds: a file of the same second may begin behind `when`.
        if await _begins(settings, files[middle]) < int(when.timestamp()):
            low = middle
        else:
            high = middle - 1
    return files[low]


async def _begins(settings: SourceSettings, file: str) -> float:
    """When a binlog file was begun, in seconds since 1970: the time of its FORMAT_DESCRIPTION event."""
    connection = await SourceConnection.open(address_of(settings))
    try:
        probe = probe_id(settings.server_id)
        await connection.register(probe, 1)
        stream = await connection.dump(probe, file=file, offset=4, gtids=None, buffer=4096)
        data = b""
        while True:
            at = 0
            while len(data) - at >= 24:
                length = int.from_bytes(data[at : at + 3], "little")
                if data[at + 9] == 15:
                    return float(int.from_bytes(data[at + 5 : at + 9], "little"))
                if at + 4 + length > len(data):
                    break
                at += 4 + length
            data = await stream.read(data, len(data) + 1, settings.connect_timeout)
    finally:
        await connection.close()
