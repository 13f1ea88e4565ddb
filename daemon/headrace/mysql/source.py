"""Opens the binlog stream of a source: checks it, finds where to begin, and sends the dump command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from headrace.errors import PositionLost, SourceChanged, SourceError, SourceMisconfigured, SourceUnreachable
from headrace.model import Gap, Position
from headrace.mysql.checks import address_of, require_complete
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.dump_start import dump_place
from headrace.mysql.position.inventory import identity, take_inventory
from headrace.mysql.position.search import find_time
from headrace.mysql.position.server_comparison import agree
from headrace.mysql.replicas import choose_server_id, replica_name
from headrace.mysql.role import refuse_role, require_logged, server_role
from headrace.mysql.wire.connection import SourceConnection
from headrace.mysql.wire.stream import PacketStream
from headrace.settings.destination import SourceSettings
from headrace.settings.values import StartAt, StartEarliest, StartGtid, StartLatest, StartTime

_STREAM_BUFFER = 2 << 20
"""Raw bytes received ahead of the decoder."""


@dataclass(slots=True)
class OpenSource:
    """A running dump and what the decoder has to know of it. `settings` name the very server that answers."""

    stream: PacketStream
    start: Position
    settings: SourceSettings
    checksums: bool
    version: str
    mariadb: bool = False
    gtid_mode: bool = False
    lower_case_table_names: int = 0
    skip_before: int = 0
    """Transactions of the first file that begin before this offset are only counted."""
    gap: Gap | None = None
    """What the start passes over although the server does not have it; to be stored and told."""
    entries: tuple[dict[str, Any], ...] = field(default=())
    """Entries of the schema history that belong to that move."""
    connection: SourceConnection | None = None
    """The one that the dump runs on."""

    async def close(self) -> None:
        """Ends the dump."""
        await self.stream.close()
        if self.connection is not None:
            await self.connection.close()


BeforeDump = Callable[[OpenSource], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads: named at the source, so that a clash of server ids can be told from an earlier connection of ours."""

    node: str
    destination: str
    derived: bool
    """Whether the server id was made from the two, and may be another one when somebody has it."""
    taken: int = 0
    """The id that the source has just thrown us out with; 0 when it did not."""


def addresses(settings: SourceSettings) -> list[SourceSettings]:
    """The settings with each of the source's addresses, in the order in which they are tried."""
    others = [settings.model_copy(update={"host": one.host, "port": one.port}) for one in settings.standby]
    return [settings, *others]


class _How(TypedDict):
    reader: Reader | None
    last_pos: int
    before_dump: BeforeDump | None
    annotations: bool


async def open_any(
    candidates: Sequence[SourceSettings],
    stored: Position | None,
    *,
    reader: Reader | None = None,
    last_pos: int = 0,
    before_dump: BeforeDump | None = None,
    annotations: bool = False,
) -> OpenSource:
    """The first of the candidates that can go on at `stored`; without a divergence when any can, with one when all else
    fails and `on_diverged` allows it. Raises what open_source() does."""
    how: _How = {"reader": reader, "last_pos": last_pos, "before_dump": before_dump, "annotations": annotations}
    failures: list[SourceError] = []
    careful = [one.model_copy(update={"on_diverged": "fail"}) for one in candidates]
    for one in careful:
        try:
            return await open_source(one, stored, **how)
        except SourceError as error:
            failures.append(error)
    for one, failure in zip(candidates, failures, strict=True):
        if isinstance(failure, SourceChanged) and one.on_diverged == "continue":
            return await open_source(one, stored, **how)
    raise _most_telling(failures)


def _most_telling(failures: list[SourceError]) -> SourceError:
    """Of several addresses' errors. A place is lost only when every server says so: one that can't be reached now may
    still have it."""
    away = [error for error in failures if isinstance(error, SourceUnreachable)]
    lost = [error for error in failures if isinstance(error, PositionLost)]
    other = [error for error in failures if error not in away and error not in lost]
    if other:
        return other[0]
    if lost and not away:
        return lost[0]
    if len(failures) == 1:
        return failures[0]
    return SourceUnreachable("; ".join(str(error.args[0]) for error in failures))


async def open_source(
    settings: SourceSettings,
    stored: Position | None,
    *,
    reader: Reader | None = None,
    last_pos: int = 0,
    before_dump: BeforeDump | None = None,
    annotations: bool = False,
) -> OpenSource:
    """Connects to one address, checks, and begins the dump at `stored` or where the settings say.

    `last_pos` counts when no position is stored: numbers go on behind it. Without a `reader`, for a short look, the
    server id is taken as it is. `before_dump` is awaited once the start is known and before anything is sent.
    `annotations`: MariaDB's statement texts are wanted too. Raises SourceMisconfigured, SourceChanged, PositionLost or
    another SourceError.
    """
    connection = await SourceConnection.open(address_of(settings))
    try:
        variables = await connection.load_variables()
        await require_complete(connection, settings)
        role = await server_role(connection)
        refuse_role(role, settings)
        require_logged(role, variables)
        if reader is not None:
            server_id = await choose_server_id(
                connection,
                settings,
                node=reader.node,
                destination=reader.destination,
                derived=reader.derived,
                taken=reader.taken,
            )
            settings = settings.model_copy(update={"server_id": server_id})
        elif variables.get("server_id") == str(settings.server_id):
            raise SourceMisconfigured(
                f"our server id {settings.server_id} is the source's own", remedy="set [source] server_id"
            )
        us = identity(variables, connection.is_mariadb)
        gtid_mode = variables.get("gtid_mode", "OFF").upper() in ("ON", "ON_PERMISSIVE")
        made = OpenSource(
            stream=None,  # type: ignore[arg-type]  # set below, once all is known
            start=stored or Position(us, "", 4),
            settings=settings,
            checksums=connection.writes_checksums,
            version=variables.get("version", "?"),
            mariadb=connection.is_mariadb,
            gtid_mode=gtid_mode,
            lower_case_table_names=int(variables.get("lower_case_table_names", "0")),
            connection=connection,
        )
        if stored is None:
            await _first_start(connection, settings, made, us, gtid_mode)
            made.start = made.start.with_last_pos(last_pos)
        else:
            agreed = await agree(connection, settings, stored)
            made.start, made.gap, made.entries = agreed.position, agreed.gap, agreed.entries
        start = made.start
        if gtid_mode and not start.gtid_set and start.offset > 4:
            # The file is read from its beginning, which says what was executed before; nothing before the offset is
            # published. Without that the set would hold only what follows, and a resume by it would begin too early.
            made.skip_before = start.offset
        if gtid_mode and start.gtid_set and not made.skip_before:
            # Rows of XA transactions that are prepared and not decided are read again: they were never published.
            gtids: GtidSet | None = GtidSet(start.gtid_set).without([xa.gtid for xa in start.open_xa if xa.gtid])
        else:
            gtids = None
        if before_dump is not None:
            await before_dump(made)
        name = replica_name(reader.node, reader.destination) if reader is not None else None
        await connection.register(settings.server_id, settings.heartbeat, name)
        file, offset = ("", 4) if gtids is not None else dump_place(start, made.skip_before)
        made.stream = await connection.dump(
            settings.server_id, file=file, offset=offset, gtids=gtids, buffer=_STREAM_BUFFER, annotations=annotations
        )
        return made
    except BaseException:
        await connection.close()
        raise


async def _first_start(
    connection: SourceConnection, settings: SourceSettings, made: OpenSource, us: str, gtid_mode: bool
) -> None:
    """Fills in the start for a destination without a stored position."""
    start = settings.start
    if isinstance(start, StartGtid):
        if not gtid_mode:
            raise SourceMisconfigured("[source] start is a GTID set, but the source's gtid_mode is not ON")
        made.start = Position(us, "", 4, str(GtidSet(start.gtid_set)))
        return
    if isinstance(start, StartLatest):
        file, offset, gtids = await connection.binlog_end()
        made.start = Position(us, file, offset, gtids if gtid_mode else "")
        return
    inventory = await take_inventory(connection)
    oldest = inventory.files[0].name
    if isinstance(start, StartEarliest):
        made.start = Position(us, oldest, 4)
    elif isinstance(start, StartTime):
        made.start = Position(us, *await find_time(settings, inventory, start.time))
    elif isinstance(start, StartAt):
        if inventory.index(start.file) is None or start.offset > inventory.size(start.file):
            raise SourceMisconfigured(
                f"[source] start is {start.file}:{start.offset}, which the source does not have (its binlogs go from "
                f"{oldest}:4 to {inventory.end[0]}:{inventory.end[1]})",
                remedy="set [source] start to a place that it has",
            )
        made.start = Position(us, start.file, start.offset)
