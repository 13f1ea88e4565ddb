"""Keeps an archive: reads the binlog of a source from where the archive ends, and adds it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from headrace import runtime, tasks
from headrace.errors import (
    ArchiveDamaged,
    ArchiveError,
    HeadraceError,
    LostKind,
    NotUnderstood,
    PositionLost,
    SourceError,
    SourceUnreachable,
)
from headrace.mysql import semi_sync
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.feed import Feed
from headrace.mysql.archive.index import IMPORTED, BinlogFile, Line, segment_operation
from headrace.mysql.archive.journal import COMMAND, ArchiveTaken
from headrace.mysql.archive.recorder import Facts, Recorder
from headrace.mysql.archive.retention import superfluous
from headrace.mysql.archive.store import ObjectMissing
from headrace.mysql.events.cursor import WRAP
from headrace.mysql.opening import STREAM_BUFFER
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import Inventory, identity, take_inventory
from headrace.mysql.replicas import Reader, choose_server_id, replica_name
from headrace.mysql.wire.binlog_file import file_number
from headrace.mysql.wire.connection import SourceConnection, address_of, probe_id, short_dump
from headrace.ports.archive import ArchiveProgress, Archiver, Needed, Report
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import SourceSettings

log = structlog.get_logger(__name__)

_AGAIN = 0.5
"""Seconds until the archive is taken back from a command."""
_ALIVE, _SILENT = 10.0, 30.0
"""In an object store: seconds between two checks of the writer, which adds an entry if it has added none since the last
one; and seconds without an entry after which another daemon takes the archive over."""
_CHECK = 3.0
"""Seconds between two checks of the address."""
_SLOW = 0.2
"""Seconds that destinations wait for the archive's disk or object store; then they read the source itself."""
_SEGMENT = 32 << 20
"""Bytes of a binlog file after which a segment ends."""


@dataclass(frozen=True, slots=True)
class _Begin:
    """Where the dump begins, and the operations that precede the first segment."""

    file: str
    offset: int
    operations: list[dict[str, Any]]
    folder: str


class MysqlArchiver(Archiver):
    """See Archiver. `name` is that of the destination that keeps the archive, and `serving` returns the address that it
    reads, None if it does not know yet: this one is archived, or the one whose server was archived last, or else the
    first of the `addresses` that answers. What is received is also in the `feed`."""

    def __init__(
        self,
        settings: ArchiveSettings,
        addresses: Sequence[SourceSettings],
        daemon: DaemonSettings,
        name: str,
        serving: Callable[[], SourceSettings | None],
        feed: Feed,
    ) -> None:
        self._serving, self._feed = serving, feed
        self._settings, self._addresses, self._name = settings, addresses, name
        self._node, self._native = daemon.node, daemon.native
        self._writes = False
        """Whether we were the last daemon that added to the archive: then we need not wait after a command."""
        self._cut = ""
        """A file that ends within an event at the source, so that the next one is read instead of its rest."""

    def note_failure(self, why: str) -> None:
        self._feed.fail(why)

    async def run(self, report: Report, needed: Needed) -> None:
        while True:
            try:
                await self._run(report, needed)
            except ArchiveTaken:  # by a command, which is done soon; in an object store also by another daemon
                log.info("another writer has the archive for a moment", archive=self._settings.place)
                await asyncio.sleep(_AGAIN)

    async def _run(self, report: Report, needed: Needed) -> None:
        archive = Archive.of(self._settings, self._native)
        await archive.store.check()
        await archive.refresh()
        if self._settings.url is not None:
            await self._wait_for_turn(archive, report)
        address, connection = await self._connect(archive.lines[-1].server if archive.lines else "")
        async with connection:
            await archive.journal.claim(self._node)
            self._writes = True
            await archive.delete_unused()
            recording = _Recording(archive, self._settings, address, connection, self._feed, report, needed)
            try:
                await recording.run(self._node, self._name, self._cut, self._stays(address))
            except PositionLost as lost:
                if lost.kind is not LostKind.TRUNCATED or self._cut == recording.file:
                    raise
                self._cut = recording.file

    async def _wait_for_turn(self, archive: Archive, report: Report) -> None:
        """Waits until no other daemon adds to the archive. What keeps two of them from adding is the journal's epoch:
        this keeps them from taking turns. Raises ArchiveError if that daemon archives another source there."""
        index = archive.journal.index
        if index.writer in ("", self._node) or (self._writes and index.writer.endswith(COMMAND)):
            return
        log.info("another daemon keeps the archive", writer=index.writer, archive=archive.store.place)
        self._writes, since = False, runtime.monotonic()
        while runtime.monotonic() - since < _SILENT:
            await asyncio.sleep(_CHECK)
            if await archive.refresh():
                since = runtime.monotonic()
                await self._require_same_source(archive)
                report(None)

    async def _require_same_source(self, archive: Archive) -> None:
        known, ours = {line.server for line in archive.lines}, set[str]()
        for address in self._addresses:
            with contextlib.suppress(SourceUnreachable):
                async with await SourceConnection.open(address_of(address)) as connection:
                    ours.add(identity(await connection.load_variables(), connection.is_mariadb))
        if ours and not ours & known:
            raise ArchiveError(
                f"{archive.journal.index.writer} archives another source in {archive.store.place}; ours is "
                f"{', '.join(sorted(ours))}",
                remedy="give each source an archive of its own",
            )

    def _served(self) -> tuple[str, int] | None:
        """Returns host and port that the destination reads, None if it does not know yet."""
        served = self._serving()
        return None if served is None else (served.host, served.port)

    def _stays(self, address: SourceSettings) -> Callable[[], bool]:
        """Returns a function that returns whether this address is still to be archived: until the destination reads
        another one than it does now."""
        fit = (self._served(), (address.host, address.port))
        return lambda: self._served() in fit

    async def _connect(self, server: str) -> tuple[SourceSettings, SourceConnection]:
        """Returns the address to archive, and a connection to it whose variables are loaded; `server` is the identity
        of the server that was archived last. Raises SourceError."""
        others, failures = list[tuple[SourceSettings, SourceConnection]](), list[SourceError]()
        try:
            for address in self._addresses:
                try:
                    connection = await SourceConnection.open(address_of(address))
                except SourceUnreachable as error:
                    failures.append(error)
                    continue
                others.append((address, connection))
                variables, served = await connection.load_variables(), self._served()
                if served is None:
                    wanted = identity(variables, connection.is_mariadb) == server
                else:
                    wanted = served == (address.host, address.port)
                if wanted:
                    return others.pop()
            if not others:
                raise failures[0]
            return others.pop(0)
        finally:
            for _, connection in others:
                await connection.close()


class _Recording:
    """One dump into the archive."""

    def __init__(
        self,
        archive: Archive,
        settings: ArchiveSettings,
        address: SourceSettings,
        connection: SourceConnection,
        feed: Feed,
        report: Report,
        needed: Needed,
    ) -> None:
        self._needed, self._feed = needed, feed
        self._archive, self._settings, self._address, self._connection = archive, settings, address, connection
        self._report = report
        self._operations = list[dict[str, Any]]()
        """Those that are entered with the next segment."""
        self._folder = self.file = self._unacknowledged = ""
        self._stored = 0
        """Offset in the present file up to which frames were given to _store()."""
        self._storing: asyncio.Task[None] | None = None
        """Stores what was read last, after what was read before."""
        self._rest: asyncio.Task[None] | None = None
        """Stores the rest of the file that is being closed."""
        self._timer: asyncio.TimerHandle | None = None
        self._counted: BinlogFile | None = None
        """The file before which `_earlier` bytes are stored, and the archive's oldest transaction and the newest one
        before this file have these commit times: they are found once for each file."""
        self._earlier = self._oldest_us = self._before_us = 0

    async def run(self, node: str, name: str, cut: str, served: Callable[[], bool]) -> None:
        """Reads until something fails, or `served` returns that another address is to be archived; not from the file
        `cut` on, but from the one after it. `file` is then the one that was read. Raises ArchiveError and
        SourceError."""
        connection, address = self._connection, self._address
        server_id = await choose_server_id(connection, address, Reader(node, f"archive:{name}", derived=True))
        inventory = await take_inventory(connection)
        begin = await self._begin(inventory, server_id, cut)
        self.file = begin.file
        self._operations, self._folder = begin.operations, begin.folder
        self._stored = begin.offset if begin.offset > 4 else 0
        waits = address.semi_sync == "archive"
        us = replica_name(node, f"archive:{name}")
        await connection.register(server_id, address.heartbeat, us, semi_sync=waits)
        whole = begin.offset < WRAP
        recorder = Recorder(
            begin.file,
            begin.offset if whole else 4,
            checksums=connection.writes_checksums,
            source=address_of(address).name,
            skip_to=0 if whole else begin.offset,
            native=self._archive.native,
            semi_sync=waits,
            share=True,
        )
        log.info("archiving", position=f"{begin.file}:{begin.offset}", archive=self._archive.store.place)
        packets = await connection.dump(
            server_id,
            file=begin.file,
            offset=begin.offset if whole else 4,
            gtids=None,
            buffer=STREAM_BUFFER,
            annotations=True,
        )
        self._packets = packets
        works: dict[str, tasks.Work] = {"read": self._read(recorder), "served": _until_not(served)}
        if self._settings.url is not None:
            works["alive"] = self._stay_alive()
        if waits:
            works["semi-sync"] = semi_sync.watch(address, recorder, self._note_semi_sync)
        self._server = inventory.server_uuid
        self._begin_feed(recorder)
        if not begin.operations:  # a line is continued
            self._feed.prove(self._archive.lines[-1].number)
        if (begin.file, begin.offset) == inventory.end:  # nothing is to be written that shows whether it can be
            self._feed.fail("")
        try:
            await tasks.first(works)
        finally:
            self._feed.finish()
            await packets.close()

    def _begin_feed(self, recorder: Recorder) -> None:
        self._feed.begin(self._server, recorder.file, recorder.end, 2 * self._address.heartbeat + 1)

    async def _stay_alive(self) -> None:
        """Shows other daemons that the archive is kept."""
        journal, number = self._archive.journal, 0
        while True:
            if journal.number == number:
                await journal.append()
            number = journal.number
            await asyncio.sleep(_ALIVE)

    async def _read(self, recorder: Recorder) -> None:
        packets, limit, data = self._packets, 2 * self._address.heartbeat + 1, b""
        loop = asyncio.get_running_loop()
        try:
            self._report_end()
            while True:
                data = await packets.read(data, recorder.need, limit)
                at = recorder.feed(data)
                self._feed.take(recorder)
                while recorder.ended:
                    await self._end_file(recorder)
                    at = recorder.feed(data, at)
                    self._feed.take(recorder)
                data = data[at:]
                if self._storing is not None and self._storing.done():
                    self._storing.result()
                if not recorder.whole or not recorder.waiting:
                    continue
                if self._timer is None:
                    self._timer = loop.call_later(self._settings.flush_interval, packets.wake)
                due = recorder.acknowledge or self._timer.when() <= loop.time()
                if not self._feed.server:
                    self._begin_feed(recorder)
                if recorder.waiting >= _SEGMENT or (due and (self._storing is None or self._storing.done())):
                    await self._flush(recorder)
        except PositionLost:
            await self._settle()  # where the archive ends decides how it continues
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
            await tasks.cancel(self._storing, self._rest)

    async def _begin(self, inventory: Inventory, server_id: int, cut: str) -> _Begin:
        """Returns where to continue: where the archive ends, if the server still has that; else a new line begins, with
        the oldest file, with the last archived one if the server has another end of it, or after the file `cut`."""
        archive, first = self._archive, inventory.readable[0].name
        cut = "" if cut == inventory.files[-1].name else cut  # nothing follows it yet
        line, continued = archive.lines[-1] if archive.lines else None, None
        if line is not None and line.files and line.server == inventory.server_uuid:
            file = line.files[-1]
            at = inventory.index(file.name)
            if at is not None and inventory.size(file.name) >= file.size and await self._is_continued(line, server_id):
                if not file.closed and file.name != cut:
                    return _Begin(file.name, file.size, [], line.folder)
                following = inventory.files[at + 1].name if at + 1 < len(inventory.files) else cut
                if file.closed and following != cut:
                    if line.address != IMPORTED:
                        return _Begin(following, 4, [], line.folder)
                    first, continued = following, line.number
            elif at is not None and inventory.size(file.name):
                head = await FileHeads(self._address).get(inventory.server_uuid, file.name, inventory.size(file.name))
                first = file.name if head.begins == file.begun else first
        files = [one.name for one in inventory.readable]
        if cut in files[:-1]:
            first = files[files.index(cut) + 1]
        if continued is None:
            continued = await self._continued_by(inventory, first)
        if line is not None and line.files and continued is None:
            log.warning("a new line begins: what follows is not at the source", after=str(line), first=first)
        begun = Line(
            archive.journal.index.next_number,
            inventory.server_uuid,
            inventory.version,
            inventory.mariadb,
            inventory.gtid_mode,
            int(self._connection.variables.get("lower_case_table_names", "0")),
            address_of(self._address).name,
        )
        operation = {
            "op": "line",
            "continues": continued,
            **{name: getattr(begun, name) for name in Line.__dataclass_fields__ if name != "files"},
        }
        return _Begin(first, 4, [operation], begun.folder)

    async def _continued_by(self, inventory: Inventory, first: str) -> int | None:
        """Returns the number of the line that a file of the server continues, by its GTIDs; None if none ends there.
        Such a line was imported, or its last file is not at the source any more."""
        ours = [one for one in self._archive.lines if one.server == inventory.server_uuid and one.files]
        before = file_number(first) - 1
        lines = [one for one in ours if one.files[-1].closed and file_number(one.files[-1].name) == before]
        if not lines:
            return None
        head = await FileHeads(self._address).get(inventory.server_uuid, first, inventory.size(first))
        following = BinlogFile(first, head.begins, str(head.gtids or ""))
        for line in lines if following.gtids else ():
            if await self._archive.follows(line.files[-1], following, whole=True):
                return line.number
        return None

    async def _is_continued(self, line: Line, server_id: int) -> bool:
        """Returns whether the server has the last archived event where the archive has it: numbers of files begin again
        after a reset."""
        file = line.files[-1]
        segments = await self._archive.segments(file)
        if not segments or not segments[-1].last_event or segments[-1].last_event >= WRAP:
            return True
        offset = segments[-1].last_event
        ours = b""
        try:
            async for frame in self._archive.frames(file, offset):
                ours += frame.data[max(0, offset - frame.start) :]
        except (ArchiveDamaged, ObjectMissing) as error:  # it is archived again
            log.warning("the end of the archive is damaged", error=str(error))
            return False
        recorder = Recorder(
            file.name, offset, checksums=self._connection.writes_checksums, source=address_of(self._address).name
        )
        limit = self._address.connect_timeout
        dump = short_dump(self._address, probe_id(server_id), file.name, offset, annotations=True)
        try:
            async with dump as (stream, _):
                data = b""
                while recorder.end < file.size and not recorder.ended:
                    data = await stream.read(data, recorder.need, limit)
                    data = data[recorder.feed(data) :]
        except (PositionLost, NotUnderstood, ArchiveError):  # no such event begins there
            return False
        frames, _ = recorder.take()
        return b"".join(frames)[: len(ours)] == ours

    async def _flush(self, recorder: Recorder) -> None:
        """Begins to store what was read, once the former is stored."""
        await self._settle()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not recorder.waiting:
            return
        if not self._stored:
            self._operations.append(
                {"op": "file", "name": recorder.file, "begun": recorder.begun, "gtids": recorder.gtids}
            )
        frames, facts = recorder.take()
        work = self._store(recorder.file, self._stored, frames, facts, recorder.acknowledge)
        self._begin_work(work)
        self._stored, recorder.acknowledge = recorder.end, 0

    def _begin_work(self, work: Coroutine[Any, Any, None]) -> None:
        self._storing = asyncio.create_task(work, name="archive")
        self._storing.add_done_callback(lambda _: self._packets.wake())  # what came meanwhile may be due

    async def _settle(self) -> None:
        storing, self._storing = self._storing, None
        if storing is None:
            return
        # Destinations do not wait for a slow disk or object store.
        timer = asyncio.get_running_loop().call_later(_SLOW, self._feed.finish)
        try:
            await storing
        finally:
            timer.cancel()

    async def _store(self, file: str, start: int, frames: list[bytes], facts: Facts, acknowledge: int) -> None:
        segment = await self._archive.add_segment(self._folder, file, start, frames, facts)
        operations, self._operations = self._operations, []
        await self._archive.journal.append(*operations, segment_operation(segment))
        self._feed.prove(self._archive.lines[-1].number)
        self._feed.fail("")
        if acknowledge:
            self._packets.acknowledge(file, acknowledge)
        self._report_end()
        await self._archive.put_together()

    async def _end_file(self, recorder: Recorder) -> None:
        await self._flush(recorder)
        self._rest = self._storing
        self._begin_work(self._close_file(self._rest))
        recorder.begin(recorder.ended)
        self.file = recorder.file
        self._stored = 0

    async def _close_file(self, storing: asyncio.Task[None] | None) -> None:
        """Closes the last file, once its rest is stored."""
        if storing is not None:
            await storing
        await self._archive.close_file()
        await self._prune()
        self._counted = None
        self._report_end()

    def _note_semi_sync(self, why: str) -> None:
        if why != self._unacknowledged:
            self._unacknowledged = why
            self._report_end()

    async def _prune(self) -> None:
        """Deletes what is old enough. If it is not known what is needed, nothing is deleted."""
        settings, index = self._settings, self._archive.journal.index
        if not (settings.keep or settings.keep_bytes):
            return
        try:
            needed = await self._needed()
        except HeadraceError as error:
            log.warning("nothing is deleted from the archive: a position is not known", error=error.operator_text())
            return
        for line, files in superfluous(index, settings.keep, settings.keep_bytes, needed, runtime.now_us()):
            await self._archive.prune(line, files)
            log.info("deleted from the archive", files=[file.name for file in files])

    def _report_end(self) -> None:
        lines = self._archive.lines
        if not lines or not lines[-1].files:
            return
        last = lines[-1].files[-1]
        if last is not self._counted:
            self._counted = last
            files = [file for line in lines for file in line.files]
            self._earlier = sum(file.stored for file in files) - last.stored
            self._oldest_us = next((file.first_us for file in files if file.first_us), 0)
            self._before_us = next((file.last_us for file in reversed(files[:-1]) if file.last_us), 0)
        oldest, newest = self._oldest_us or last.first_us, last.last_us or self._before_us
        stored = self._earlier + last.stored
        self._report(ArchiveProgress(last.name, last.size, stored, oldest, newest, self._unacknowledged))


async def _until_not(holds: Callable[[], bool]) -> None:
    while holds():  # noqa: ASYNC110  (there is no event to wait for)
        await asyncio.sleep(_CHECK)
