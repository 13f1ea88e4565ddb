"""MySQL and MariaDB as the source of a destination."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from headrace import runtime
from headrace.errors import (
    ArchiveError,
    ArchiveNotKept,
    ContinuesElsewhere,
    PositionLost,
    ServerIdTaken,
    SourceChanged,
    SourceEnded,
    SourceError,
    SourceUnreachable,
)
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.feed import Feed
from headrace.mysql.archive.finding import end_after, same_as_source
from headrace.mysql.archive.packets import ArchivedPackets
from headrace.mysql.archiver import MysqlArchiver
from headrace.mysql.change_stream import Dumps, MysqlStream
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.fetching import fetch_missing
from headrace.mysql.histories import different_histories
from headrace.mysql.opening import STREAM_BUFFER, Dump, ReadySource, make_ready, make_ready_archived
from headrace.mysql.position.by_hand import move_by_hand
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import VARIABLES, retention, take_inventory
from headrace.mysql.position.move import parse_where, relocate_by_policy
from headrace.mysql.replicas import Reader, is_derived
from headrace.mysql.schema.entries import back_entry, doubt_entry
from headrace.mysql.schema.states import reached
from headrace.mysql.second_connection import MysqlSecondConnection
from headrace.mysql.semi_sync import MysqlAcknowledger
from headrace.mysql.snapshot.reader import MysqlTableReader
from headrace.mysql.table_schemas import TableSchemas
from headrace.mysql.wire.connection import Server, SourceConnection, address_of
from headrace.mysql.wire.stream import ArchivedDump
from headrace.native import find
from headrace.ports.archive import Archiver
from headrace.ports.measures import Measure
from headrace.ports.source import (
    Acknowledger,
    Move,
    OpenSource,
    ProgressCallback,
    Receiver,
    Retention,
    SecondConnection,
    Source,
)
from headrace.ports.state import HistoryEntry, Stored
from headrace.ports.tables import TableReader
from headrace.rules.patterns import named_schemas
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, SourceSettings
from headrace.settings.snapshot import SnapshotSourceSettings
from headrace.settings.values import StartLatest

log = structlog.get_logger(__name__)

_Opening = TypeVar("_Opening")
_FAR = 16 << 20
"""Bytes of binlog for which the archive is read instead of the source."""
_ARCHIVE_ANSWERS = 5.0
"""Seconds for which the archive's folder may keep us from reading the source."""
_SPARE_AGAIN = 10.0
"""Seconds between two checks whether a stream is that far behind."""
_MOVES = 5
"""How often a first start at the end of the binlog begins again because statements change the tables meanwhile."""


class _TablesChanged(Exception):
    """Tables were altered after the start was chosen: rows between the two could not be read."""


def addresses(settings: SourceSettings) -> list[SourceSettings]:
    """Returns the settings with each of the source's addresses, in the order in which they are tried."""
    others = [settings.model_copy(update={"host": one.host, "port": one.port}) for one in settings.standby]
    return [settings, *others]


class MysqlSource(Source, Dumps):
    """See Source. `captures` returns whether the rows of a schema and table are captured. Unless `named`, for a short
    check, the server id is used as it is and we do not register under our name. `ahead` returns when a dump begins how
    many bytes are received ahead of the decoder; the callback receives the progress of a search for the first start.
    All sources of a daemon that share an archive have the same `feed`.

    `settings` have the address that served last, or is tried first; the others are tried if it can't serve."""

    def __init__(
        self,
        settings: DestinationSettings,
        daemon: DaemonSettings,
        captures: Callable[[str, str], bool],
        *,
        named: bool = True,
        ahead: Callable[[], int] = lambda: STREAM_BUFFER,
        on_progress: ProgressCallback = lambda *_: None,
        feed: Feed | None = None,
    ) -> None:
        self._feed = feed or Feed(find(daemon.native).module)
        self._destination, self._node, self._captures, self._named = settings, daemon.node, captures, named
        self._ahead, self._reported = ahead, on_progress
        self._options = DecoderOptions.of(settings, daemon)
        self._schemas = named_schemas(settings.filter.include)
        self.settings = settings.source
        self._server_id = self._taken = 0
        """Our server id at the source, and the one for which it has just ended our dump; 0 for none."""
        self._damaged = ""
        """Where an event with a wrong checksum was last received."""
        self._heads: tuple[str, FileHeads] | None = None
        """An address, and the heads of the binlogs there, each read once."""
        self._daemon = daemon
        archive = settings.archive
        self._archive = Archive.of(archive, daemon.native, self._feed.frames) if archive is not None else None
        self.spares = self._archive is not None
        self._lost_by: PositionLost | None = None
        """The error with which the source has ended our dump."""
        self._spare: ArchivedPackets | None = None
        """The last dump of the archive's folder: another one begins only once the archive has grown."""
        self._archive_fails, self._spare_at = False, 0.0
        """Whether the archive could not be read in the present run; and when it is next checked whether a stream far
        behind may read it, by the monotonic clock."""
        self._archive_read: tuple[Position, ArchivedDump] | None = None
        """The last position that the archive was read from, and its dump."""
        self._archive_lacks = dict[str, tuple[object, ...]]()
        """By the address of the source: where the archive was read to its end without the end of a transaction, and
        what it had of the line then."""
        self._serving: SourceSettings | None = None
        """The address of our stream."""
        self._away: set[str] = set()
        """Hosts with ports that could not be reached when opening the source failed last."""

    async def open(
        self,
        stored: Position | None,
        *,
        last_pos: int = 0,
        entries: Sequence[dict[str, Any]] = (),
        forget_tables: bool = False,
    ) -> OpenSource:
        self._require_archive()
        here = self.settings.host, self.settings.port
        candidates = addresses(self._destination.source)
        candidates.sort(key=lambda one: (one.host, one.port) != here)
        self._away.clear()

        async def open_one(one: SourceSettings) -> OpenSource:
            try:
                return await self._open(one, stored, last_pos, entries, forget_tables)
            except SourceUnreachable:
                self._away.add(f"{one.host}:{one.port}")
                raise

        try:
            opened = await open_any(candidates, open_one)
        except ServerIdTaken:
            self.disconnected()
            raise
        self._away.clear()
        return opened

    def _require_archive(self) -> None:
        """Raises ArchiveNotKept if the archive can't be written, and the configuration says that nothing is streamed
        then."""
        settings = self._destination.archive
        if settings is not None and settings.on_failure == "stop" and (why := self._feed.failure):
            raise ArchiveNotKept(f"the archive can't be written, and [archive] on_failure is stop: {why}")

    @property
    def address(self) -> str:
        return f"{self.settings.host}:{self.settings.port}"

    async def check(self) -> None:
        async with await SourceConnection.open(address_of(self.settings)):
            pass

    async def reachable(self) -> bool:
        known = addresses(self._destination.source)
        # One that was reachable all the time, and lacks the position, does not count as back.
        for one in [one for one in known if f"{one.host}:{one.port}" in self._away] or known:
            try:
                # A complete login: MySQL locks out a host whose connections end before it.
                async with await SourceConnection.open(address_of(one)):
                    return True
            except SourceUnreachable:
                continue
            except SourceError:
                return True
        return False

    def second_connection(self) -> SecondConnection:
        return MysqlSecondConnection(self.settings, self._destination.name)

    def acknowledger(self) -> Acknowledger | None:
        if self._destination.source.semi_sync != "sink":
            return None
        return MysqlAcknowledger(lambda: self.settings, self._daemon, self._destination.name)

    def archiver(self) -> Archiver | None:
        archive = self._destination.archive
        if archive is None:
            return None
        every = addresses(self._destination.source)
        return MysqlArchiver(archive, every, self._daemon, self._destination.name, lambda: self._serving, self._feed)

    def measures(self, position: Position) -> Sequence[Measure]:
        found = [Measure("position_offset", "Offset of the confirmed position in its file.", position.offset)]
        suffix = position.file.rpartition(".")[2]
        if suffix.isascii() and suffix.isdigit():
            text = "Number of the confirmed position's binlog."
            found.append(Measure("position_file_number", text, int(suffix)))
        return found

    async def retention(self, position: Position) -> Retention:
        if self._heads is None or self._heads[0] != self.address:
            self._heads = self.address, FileHeads(self.settings)
        async with await SourceConnection.open(address_of(self.settings)) as connection:
            await connection.load_variables(VARIABLES)
            inventory = await take_inventory(connection)
            found = await retention(inventory, position, self._heads[1])
            if (end := await self._archive_end(position)) is None:
                return found
            # What the source purges before the end of the archive is not lost.
            rest = await retention(inventory, end, self._heads[1])
            return replace(rest, behind=found.behind)

    async def _archive_end(self, position: Position) -> Position | None:
        """Returns the end of the archive if that has everything from a position on."""
        if self._archive is None:
            return None
        try:
            return await end_after(self._archive, position)
        except ArchiveError as error:
            log.warning("the archive can't be read", error=error.operator_text(self._destination.name))
            return None

    async def several(self, position: Callable[[], Position | None]) -> str:
        def own() -> str:
            return now.own_gtids if (now := position()) is not None else ""

        return await different_histories(addresses(self._destination.source), own)

    async def move_by_hand(
        self,
        where: str,
        stored: Stored,
        entries: Sequence[dict[str, Any]],
        history: Sequence[HistoryEntry],
        *,
        read_schemas: bool,
        events_done: int = 0,
        found: Any = None,
        on_progress: ProgressCallback = lambda *_: None,
    ) -> Move:
        place = parse_where(where)
        return await move_by_hand(
            addresses(self._destination.source),
            place,
            stored,
            entries,
            history,
            read_schemas=read_schemas,
            events_done=events_done,
            found=found,
            on_progress=on_progress,
            archive=self._archive,
        )

    def again(self) -> tuple[dict[str, Any], ...]:
        return (back_entry(-1, "reset"),)

    async def move(self, policy: str, lost: PositionLost, stored: Position) -> Move | None:
        return await relocate_by_policy(self.settings, policy, lost, stored, self._archive)

    async def _open(
        self,
        address: SourceSettings,
        stored: Position | None,
        last_pos: int,
        entries: Sequence[dict[str, Any]],
        forget_tables: bool,
        moves: int = _MOVES,
    ) -> OpenSource:
        self._lost_by, self._archive_fails = None, False  # of a run that has ended since
        ready: ReadySource | None = None
        try:
            ready = await make_ready(
                address,
                stored,
                self._reader(),
                last_pos,
                schemas=self._schemas,
                on_progress=self._reported,
                archive=self._archive,
            )
            may_move = stored is None and moves > 0 and isinstance(address.start, StartLatest)
            return await self._opened(ready, entries, forget_tables, may_move=may_move)
        except _TablesChanged:
            return await self._open(address, stored, last_pos, entries, forget_tables, moves - 1)
        except PositionLost as lost:
            if stored is None and ready is not None:  # purged since the start was chosen
                stored = ready.start.position
            ready = await self._archived(address, stored, lost)
        return await self._opened(ready, entries, forget_tables)

    async def _opened(
        self, ready: ReadySource, entries: Sequence[dict[str, Any]], forget_tables: bool, *, may_move: bool = False
    ) -> OpenSource:
        """Returns what a ready source becomes; closes it if it raises. Raises _TablesChanged if it should begin later
        and `may_move`."""
        try:
            start, server = ready.start.position, ready.server
            # Entries of a move by the opening are stored only once it is open.
            ours = list(ready.entries)
            if forget_tables:
                ours.append(doubt_entry(start.last_pos, str(start), "[source] snapshot is schema_only_recovery"))
            known = [*entries, *ours]
            schemas = await TableSchemas.read(self._destination.name, server, self._captures, start, known)
            if may_move and schemas.history.waits and not server.rows_bring_names:
                raise _TablesChanged
            dump = await self._dump(ready)
        except BaseException:
            await ready.close()
            raise
        self.settings = self._serving = server.settings
        self._server_id, self._taken = server.settings.server_id, 0
        self._options.undecodable.counts.clear()

        def stream(receiver: Receiver) -> MysqlStream:
            return MysqlStream(dump, schemas, receiver, self._options, self)

        return OpenSource(
            start,
            ready.gap,
            f"{self.settings.host}:{self.settings.port}",
            server.version,
            self._server_id,
            take_entries=lambda: (*ours, *schemas.history.take_entries(start.last_pos)),
            stream=stream,
            close=dump.close,
            reader=lambda: self._table_reader(server, self._destination.source.snapshot_source),
            undecodable=self._options.undecodable.counts,
        )

    def _table_reader(self, server: Server, replica: SnapshotSourceSettings | None) -> TableReader:
        settings = self.settings
        if replica is not None:
            settings = settings.model_copy(update={"host": replica.host, "port": replica.port})
        return MysqlTableReader(settings, server, self._destination.name, self._options, stream_is_here=replica is None)

    async def reader_now(self, *, of_snapshots: bool = False) -> TableReader:
        """Returns a reader for commands, which belongs to no stream: requests are for NOWHERE. It reads the source
        itself, or with `of_snapshots` the server that snapshots read. Raises SourceError."""
        replica = self._destination.source.snapshot_source if of_snapshots else None
        return self._table_reader(await open_any(addresses(self._destination.source), self._server_now), replica)

    async def now_ms(self) -> int:
        """Returns the source's clock, in milliseconds since 1970. Raises SourceError."""
        async with await SourceConnection.open(address_of(self.settings)) as connection:
            rows = await connection.execute("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS UNSIGNED)")
            return int(rows[0][0])

    async def _server_now(self, address: SourceSettings) -> Server:
        async with await SourceConnection.open(address_of(address)) as connection:
            variables = await connection.load_variables()
            self.settings = address
            return Server(address, variables.get("version", ""), connection.is_mariadb, connection.has_gtids, 0)

    def lost(self, error: PositionLost) -> bool:
        if self._archive is None:
            return False
        self._lost_by = error
        return True

    def ended(self, position: Position) -> None:
        if self._archive_read is None or not self._archive_read[1].ended:
            return
        start, dump = self._archive_read
        if dump.foreign:  # it begins with a file, so that only GTIDs say how far it came
            incomplete = (start.server_uuid, start.gtid_set) == (position.server_uuid, position.gtid_set)
        else:
            incomplete = _place(start) == _place(position)
        if incomplete:
            self._archive_lacks[self.address] = (*_place(start), *dump.extent)

    async def reopen(self, position: Position) -> Dump:
        """Continues without a restart: what was read stays read, and the table schemas are known as of there. So only
        at the same address, and never past a divergence."""
        address = self.settings.model_copy(update={"on_diverged": "fail"})
        lost, self._lost_by = self._lost_by, None
        try:
            if lost is not None:
                raise lost
            ready = await make_ready(address, position, self._reader(), schemas=self._schemas)
        except PositionLost as error:
            try:
                ready = await self._archived(address, position, error)
            except PositionLost as lost_here:
                if not self._destination.source.standby:
                    raise
                raise SourceEnded(f"{lost_here.args[0]}; the other addresses are tried") from lost_here
        try:
            dump = await self._dump(ready)
        except BaseException:
            await ready.close()
            raise
        self._server_id = ready.server.settings.server_id
        return dump

    async def _dump(self, ready: ReadySource) -> Dump:
        """Begins the dump: that of the archive if much of it is there, so that the source is not read again."""
        start, dump = ready.start, None
        if ready.archived is None and not start.skip_before:
            dump = await self._spared(start.position, ready.server, ready.end, _FAR)
        if dump is not None:
            await ready.close()
            return dump
        return await ready.dump(annotations=self._options.dml_queries, buffer=self._ahead())

    async def _spared(self, position: Position, server: Server, end: tuple[str, int], at_least: int) -> Dump | None:
        """Returns the dump of the archive's folder, if that has `at_least` bytes after a position. Only while the
        archiver runs: it has proved that the source has the same. `end` is that of Dump."""
        settings, line, ended = self._destination.archive, self._feed.line, self._spare
        if self._archive is None or settings is None or settings.path is None or self._archive_fails:
            return None
        if not line or self._feed.server != position.server_uuid or self._destination.wants_marks:
            return None
        try:
            async with asyncio.timeout(_ARCHIVE_ANSWERS):
                after = ended.at if ended is not None else None
                place = await same_as_source(self._archive, position, line, at_least, after)
                if place is None:
                    return None
                self._spare = ArchivedPackets(self._archive, place, checksums=True)
        except TimeoutError:
            self.spare_failed(ArchiveError(f"no answer from {self._archive.store.place}"))
            return None
        except ArchiveError as error:
            self.spare_failed(error)
            return None
        log.info("the archive is read instead of the source", position=str(position))
        return Dump(self._spare, None, server, DumpStart(position, checksums=True), end, line)

    async def join(self, position: Position, dump: Dump) -> Dump | None:
        """Returns a dump that continues ours at a position between two transactions, so that the source is read once:
        what the archiver receives, or the archive's folder for a stream that is far behind. None if marks of
        transactions are published: another dump can't continue within one."""
        if (dump.server.gtid_mode and not position.gtid_set) or self._destination.wants_marks:
            return None
        packets = self._feed.join(position) if reached((position.file, position.offset), dump.end) else None
        if packets is not None:
            log.info("the archiver's dump is read instead of our own", position=str(position))
            return Dump(packets, None, dump.server, DumpStart(position, checksums=True))
        now = runtime.monotonic()
        if now < self._spare_at or not self._feed.line:
            return None
        self._spare_at = now + _SPARE_AGAIN
        return await self._spared(position, dump.server, dump.end, 4 * _FAR)

    def ensure_usable(self, dump: Dump) -> None:
        """Raises ContinuesElsewhere once nothing proves any more that the source has what the archive has."""
        self._require_archive()
        if dump.line and self._feed.line != dump.line:
            raise ContinuesElsewhere("the archiver has stopped, or has begun another line")

    def spare_failed(self, error: ArchiveError) -> None:
        """The archive can't be read, and the source is read instead until the next start."""
        self._archive_fails = True
        log.warning("the archive can't be read", error=error.operator_text(self._destination.name))

    async def _archived(self, address: SourceSettings, stored: Position | None, lost: PositionLost) -> ReadySource:
        """Returns the archive as the source of a position that the server has lost. Raises `lost`, with what the
        archive lacks, if that has it neither."""
        if self._archive is None or stored is None:
            raise lost
        try:
            return await self._from_archive(self._archive, address, stored, lost)
        except PositionLost as error:
            settings = self._destination.archive
            if not self._named or settings is None or not settings.fetch_command:
                raise
            if missing := await fetch_missing(self._archive, settings, self._daemon, address, stored):
                text = f"{error.args[0]}; {missing}"
                raise PositionLost(text, kind=error.kind, position=error.position, remedy=error.remedy) from error
            return await self._from_archive(self._archive, address, stored, lost)

    async def _from_archive(
        self, archive: Archive, address: SourceSettings, stored: Position, lost: PositionLost
    ) -> ReadySource:
        ready = await make_ready_archived(address, stored, archive, lost)
        assert ready.archived is not None
        self._archive_read = ready.start.position, ready.archived
        lacks = self._archive_lacks.get(f"{address.host}:{address.port}")
        if lacks == (*_place(ready.start.position), *ready.archived.extent):
            await ready.close()
            text = f"{lost.args[0]}; the archive at {archive.store.place} ends within the transaction after it"
            raise PositionLost(text, kind=lost.kind, position=lost.position, remedy=lost.remedy)
        return ready

    def first_damage(self, place: str) -> bool:
        before, self._damaged = self._damaged, place
        return before != place

    def disconnected(self) -> None:
        self._taken = self._server_id

    def _reader(self) -> Reader | None:
        if not self._named:
            return None
        name = self._destination.name
        derived = is_derived(self._destination.source.server_id, self._node, name)
        return Reader(self._node, name, derived, self._taken)


def _place(position: Position) -> tuple[object, ...]:
    """Returns what says where a position is."""
    inside = position.events_done, position.rows_done
    return position.server_uuid, position.file, position.offset, position.gtid_set, *inside


async def open_any(
    candidates: Sequence[SourceSettings], open_one: Callable[[SourceSettings], Awaitable[_Opening]]
) -> _Opening:
    """Returns the first of the candidates that can be opened: one without a divergence if possible, otherwise one with
    a divergence if `on_diverged` allows it. Raises the most specific of their SourceErrors."""
    failures: list[SourceError] = []
    for one in candidates:
        try:
            return await open_one(one.model_copy(update={"on_diverged": "fail"}))
        except SourceError as error:
            failures.append(error)
    for one, failure in zip(candidates, failures, strict=True):
        if isinstance(failure, SourceChanged) and one.on_diverged == "continue":
            return await open_one(one)
    raise most_telling(failures)


def most_telling(failures: list[SourceError]) -> SourceError:
    """Returns the most specific of several addresses' errors. A position is lost only if every server says so: one that
    can't be reached now may still have it."""
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
