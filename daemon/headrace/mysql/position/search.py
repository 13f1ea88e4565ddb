"""Finds positions in a source's binlogs: by time, by GTIDs, by file and offset; and proves that a file is truncated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.errors import LostKind, NotUnderstood, PositionLost, SourceError
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position import scans
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import Binlog, Inventory, file_by_gtids, newest_where
from headrace.mysql.position.scan import BinlogScan, Probe, limit_after
from headrace.mysql.position.scans import TransactionBoundary
from headrace.mysql.wire.binlog_file import file_number
from headrace.ports.source import ProgressCallback
from headrace.settings.destination import SourceSettings
from headrace.times import second_text

_LAST_READ = re.compile(r"the last event read from '(?:[^']*/)?([^'/]+)' at (\d+)")
_WRAP = 1 << 32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PositionError(SourceError):
    """A position that an operator named can't be used; the text says why, and which can."""

    retriable = False


class PositionFinder:
    """Searches positions in the binlogs of one source, as `inventory` lists them; the callback receives the progress of
    the scan of a file. Each method raises SourceError and its subclasses."""

    def __init__(
        self, source: SourceSettings, inventory: Inventory, on_progress: ProgressCallback = lambda *_: None
    ) -> None:
        self._inventory = inventory
        self._sound = replace(inventory, files=inventory.readable or inventory.files)
        """The same without the files up to the last missing one."""
        self._heads = FileHeads(source, inventory.older)
        self._probe = Probe(source, on_progress, inventory.older)

    def end(self) -> TransactionBoundary:
        """Returns the end of the binlog."""
        inventory = self._inventory
        return TransactionBoundary(*inventory.end, GtidSet(inventory.executed) if inventory.gtid_mode else None)

    async def oldest(self) -> TransactionBoundary:
        """Returns the beginning of the oldest file from which on all can be read, with what was purged before it."""
        boundary = await self.start_of(self._sound.files[0].name)
        if boundary.gtids is None:
            return boundary
        return replace(boundary, gtids=boundary.gtids.plus(GtidSet(self._inventory.purged)))

    async def begins(self, file: str) -> float:
        """Returns when a listed file was begun, in seconds since 1970."""
        head = await self._heads.get(self._inventory.server_uuid, file, self._inventory.size(file))
        return float(head.begins)

    async def file_of(self, gtids: GtidSet) -> str:
        """Returns the file that a dump by these GTIDs begins in; "" if it is purged."""
        return await file_by_gtids(self._sound, gtids, self._heads)

    async def start_of(self, file: str) -> TransactionBoundary:
        """Returns the beginning of a listed file."""
        head = await self._heads.get(self._inventory.server_uuid, file, self._inventory.size(file))
        gtids = head.gtids if self._inventory.gtid_mode else None
        return TransactionBoundary(file, 4, gtids, pos_limit=limit_after(head.begins))

    async def at_time(self, when: datetime) -> TransactionBoundary:
        """Returns the first transaction committed at `when` or later, in the binlog's order; else the end that the
        binlog had when it was listed.

        A binary search finds the file by the time that it was begun; then this file is read, and the next one if it has
        none."""
        seconds, since = int(when.timestamp()), (when - _EPOCH) // timedelta(microseconds=1)

        async def begins_before(binlog: Binlog) -> bool:
            head = await self._heads.get(self._inventory.server_uuid, binlog.name, binlog.size)
            return head.begins < seconds  # whole seconds: a file of the same second may begin after `when`

        at = await newest_where(self._sound.files, begins_before, 0)
        return await self._first_found(at, lambda file: scans.FirstSince(file, since))

    def nothing_since(self, when: datetime) -> str:
        """Returns a sentence for an operator who requested a time since which nothing was committed."""
        now, ahead = self._inventory.now, ""
        if when.timestamp() > now > 0:
            ahead = f" (that time lies ahead of the source's clock, which says {second_text(now)})"
        return f"no transaction was committed then or later{ahead}, so this is the end of the binlog"

    async def first_missing(self, gtids: GtidSet) -> TransactionBoundary:
        """Returns where the first transaction begins that is not in `gtids`; else the end of the binlog."""
        file = await file_by_gtids(self._sound, gtids, self._heads)
        return await self._first_found(self._sound.index(file) or 0, lambda file: scans.FirstMissing(file, gtids))

    async def _first_found(
        self, at: int, make: Callable[[str], scans.FirstSince | scans.FirstMissing]
    ) -> TransactionBoundary:
        """Returns what scans find first, of one file after the other from number `at` on; else the end of the
        binlog."""
        for binlog in self._sound.files[at:]:
            scan = make(binlog.name)
            await self._scan(scan)
            if scan.found is not None:
                return scan.found
            if scan.idle:
                break
        return self.end()

    async def _scan(self, scan: BinlogScan) -> None:
        """Runs a scan through a listed file, up to the end that the binlog had when it was listed."""
        file, inventory = scan.scanned, self._inventory
        await self._probe.run(scan, inventory.size(file), stop=file == inventory.files[-1].name)

    async def first_from(self, boundary: TransactionBoundary) -> int:
        """Returns the commit time, in microseconds since 1970, of the first transaction at a boundary or after it; 0 if
        there is none."""
        if boundary.commit_time_us:
            return boundary.commit_time_us
        at, offset = self._inventory.index(boundary.file), boundary.offset
        for binlog in self._inventory.files[at:] if at is not None else ():
            scan = scans.FirstSince(binlog.name, 0, offset if offset < _WRAP else 4)
            await self._scan(scan)
            if scan.found is not None:
                return scan.found.commit_time_us
            if scan.idle:
                break
            offset = 4
        return 0

    async def at(self, file: str, offset: int) -> TransactionBoundary:
        """Returns the boundary, once a scan of its file has proved that no transaction is open there. Raises
        PositionError with the nearest usable positions."""
        inventory = self._inventory
        self._require(file, offset)
        if offset == 4:
            return await self.start_of(file)
        scan = scans.At(file, offset)
        await self._probe.run(scan, offset)
        if scan.found is not None:
            return scan.found if inventory.gtid_mode else replace(scan.found, gtids=None)
        if offset == scan.last and scan.left:  # after the event that closes the file
            following = inventory.index(file)
            assert following is not None
            return await self.start_of(inventory.files[following + 1].name)
        where = "in the middle of an event" if scan.in_event else "in the middle of a transaction"
        around = f"{file}:{scan.below}" + (f" and {file}:{scan.above}" if scan.above else "")
        raise PositionError(
            f"{file}:{offset} lies {where}", remedy=f"the nearest positions where reading can begin: {around}"
        )

    async def around(self, file: str, offset: int) -> scans.Around:
        """Returns what is at a position that another program has named. Raises PositionError."""
        self._require(file, offset)
        scan = scans.Around(file, offset)
        await self._scan(scan)
        return scan

    def _require(self, file: str, offset: int) -> None:
        inventory = self._inventory
        if inventory.index(file) is None:
            listed = f"{inventory.files[0].name} to {inventory.files[-1].name}"
            if inventory.older is not None:
                raise PositionError(f"neither the source nor the archive has {file}; there are {listed}")
            raise PositionError(f"the source does not list {file}; it has {listed}")
        size = inventory.size(file)
        if offset > size:
            raise PositionError(f"{file} has {size} bytes, so {file}:{offset} is beyond its end")

    async def at_mariadb_gtids(self, text: str, states: Any) -> TransactionBoundary:
        """Returns where a MariaDB server's GTID state is `text` (`domain-server-sequence`, for each domain). `states`
        returns the state at the start of a file, as BINLOG_GTID_POS does."""
        wanted = mariadb_state(text)

        known: dict[str, dict[int, int]] = {}

        async def begins_within(binlog: Binlog) -> bool:
            state = known[binlog.name] = mariadb_state(await states(binlog.name))
            return all(state.get(domain, 0) <= number for domain, number in wanted.items())

        file = self._sound.files[await newest_where(self._sound.files, begins_within, 0)].name
        state = known.get(file) or mariadb_state(await states(file))  # the state of the oldest was not queried
        if all(state.get(domain, 0) == number for domain, number in wanted.items()):
            return await self.start_of(file)
        scan = scans.MariadbAt(file, wanted, state)
        await self._scan(scan)
        if scan.found is None:
            raise PositionError(
                f"no position in the source's binlogs has the GTID state {text}",
                remedy="SELECT BINLOG_GTID_POS('<file>', <offset>) shows the state at a position; name that "
                "position instead",
            )
        return scan.found

    async def truncation(self, file: str, offset: int = 0) -> tuple[int, str] | None:
        """Returns where the last whole event of `file` ends, and the file after it, if `file` is cut off within an
        event after `offset` (0: anywhere), as a scan from its beginning proves; None if that is not proved.

        A wrong offset in a sound file causes the same error text of the server, but then a scan from the start
        succeeds. The newest file never counts: it is in use, and the server repairs it when it starts."""
        inventory = self._inventory
        at = inventory.index(file)
        if at is None or at == len(inventory.files) - 1:
            return None
        scan = scans.Sound(file, offset)
        try:
            await self._probe.run(scan)
        except PositionLost as error:
            said = _LAST_READ.search(str(error))
            if error.kind is not LostKind.TRUNCATED or said is None or scan.cursor.file != file:
                return None
            end = scan.cursor.end
            if (said[1], int(said[2])) != (file, end) or offset > end or not (scan.seen or offset == end):
                return None
            return end, inventory.files[at + 1].name
        return None


async def transaction_at(source: SourceSettings, file: str, offset: int) -> int | None:
    """Returns the commit time, in microseconds since 1970, of the transaction that begins at a position, None if none
    does there. Costs one short dump. Raises SourceError and its subclasses, PositionLost if the file is gone."""
    begin = offset if offset < _WRAP else 4  # the dump command has 32 bits for it
    scan = scans.Begins(file, begin, offset)
    try:
        await Probe(source).run(scan)
    except (PositionLost, NotUnderstood) as error:
        if isinstance(error, PositionLost) and error.kind is LostKind.POSITION_PURGED:
            raise
        return None  # no event begins there
    return scan.found


async def first_commit_time(source: SourceSettings, file: str) -> int:
    """Returns the commit time, in microseconds since 1970, of the first transaction of a file; 0 if none can be read.
    Raises SourceError and its subclasses."""
    scan = scans.FirstSince(file, 0)
    try:
        await Probe(source).run(scan)
    except (PositionLost, NotUnderstood):
        return 0
    return scan.found.commit_time_us if scan.found is not None else 0


# -- counts -------------------------------------------------------------------------------------------------------


def mariadb_state(text: str) -> dict[int, int]:
    """Returns `0-1-100,1-1-5` as domain to sequence number. Raises PositionError."""
    state: dict[int, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"(\d+)-\d+-(\d+)", part)
        if found is None or int(found[1]) in state:
            raise PositionError(f"'{text}' is no GTID position of MariaDB, such as 0-1-100")
        state[int(found[1])] = int(found[2])
    return state


def distance(inventory: Inventory, start: tuple[str, int], end: tuple[str, int]) -> tuple[int | None, int | None]:
    """Returns bytes and files from one position to a later one, None if unknown: bytes only if both files are listed,
    files by their numbers."""
    first, last = inventory.index(start[0]), inventory.index(end[0])
    if first is None or last is None:
        low, high = file_number(start[0]), file_number(end[0])
        known = bool(low and high) and _base(start[0]) == _base(end[0]) and low <= high
        return None, high - low if known else None
    if first == last:
        return max(0, end[1] - start[1]), 0
    between = sum(binlog.size for binlog in inventory.files[first + 1 : last])
    return max(0, inventory.size(start[0]) - start[1]) + between + end[1], last - first


def _base(file: str) -> str:
    return file.rpartition(".")[0]


async def read_on(source: SourceSettings, file: str, offset: int) -> None:
    """Reads from a position to the end of the next transaction, or some megabytes: a dump shows what a list of files
    does not. Raises PositionLost, BinlogCorrupt, or another SourceError."""
    if file and offset < _WRAP:
        await Probe(source).run(scans.Ahead(file, offset))
