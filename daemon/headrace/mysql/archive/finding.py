"""Finds where an archive continues a position that the source no longer has."""

from __future__ import annotations

import contextlib
from bisect import bisect_left

from headrace.errors import ArchiveError
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.index import BinlogFile, Line
from headrace.mysql.archive.packets import Place
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import WRAP
from headrace.mysql.events.dump_start import dump_position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import group_of
from headrace.mysql.events.splitter import BROKEN

_HEADER = 19
_CLOCKS = 3_600_000_000
"""Microseconds by which commit times may go back, and by which the clocks of a server and its replica may differ."""


async def find_place(
    archive: Archive, position: Position, server: str, *, skip_before: int = 0, purged: str = ""
) -> Place | str:
    """Returns where reading continues at a position; or, as a clause, what the archive lacks.

    `server` is the identity of the server that answers, and `purged` what it has purged, if it has GTIDs: of another
    server's binlogs only that is read, as it never got the rest. `skip_before` is that of DumpStart. Raises
    ArchiveError."""
    await archive.refresh()
    lacks = f"the archive at {archive.store.place} has nothing of server {position.server_uuid}"
    ours: BinlogFile | None = None
    """The position's file, in the newest line that has it and is of the position's history."""
    for line in reversed(archive.lines) if server == position.server_uuid else ():
        if line.server != server or not line.files:
            continue
        number = line.index_of(position.file)
        if number is not None and ours is not None and not _same_file(ours, line.files[number]):
            continue  # of a former history
        same = number is not None and await _same_history(archive, line, position)
        ours = line.files[number] if number is not None and same else ours
        if number is None or position.offset > line.files[number].size:
            first, (file, end) = line.files[0].name, line.end
            lacks = f"the archive at {archive.store.place} goes from {first}:4 to {file}:{end}"
        elif (position.file, position.offset) == line.end:
            lacks = f"the archive at {archive.store.place} ends at the position"
        elif any(line.index_of(xa.file) is None for xa in position.open_xa if xa.file):
            lacks = f"the archive at {archive.store.place} lacks rows of XA transactions that are prepared there"
        elif same:
            return _of_its_server(line, position, skip_before)
        else:
            lacks = f"the archive at {archive.store.place} has another binlog under the name {position.file}"
    if position.gtid_set and purged:
        missing = GtidSet(purged).minus(GtidSet(position.gtid_set))
        for line in await _of_present_histories(archive, position, ours):
            if (found := await _by_gtids(archive, line, position, missing)) is not None:
                return found
        if server != position.server_uuid:
            lacks = f"the archive at {archive.store.place} has none of the purged transactions"
    return lacks


async def same_as_source(
    archive: Archive, position: Position, line: int, at_least: int, after: tuple[str, int] | None
) -> Place | None:
    """Returns where reading continues at a position that the source has too, if a line of the archive has `at_least`
    bytes after it, and after the place `after`, and nothing that the source would leave out; else None. Raises
    ArchiveError."""
    await archive.refresh()
    of = next((one for one in archive.lines if one.number == line), None)
    if of is None or of.server != position.server_uuid or position.open_xa or position.offset >= WRAP:
        return None  # a decoder that begins beyond 4 GB begins with the file
    number = of.index_of(position.file)
    if number is None or _bytes_after(of, number, position.offset) < at_least:
        return None
    ended = of.index_of(after[0]) if after is not None else None
    if after is not None and ended is not None and _bytes_after(of, ended, after[1]) < at_least:
        return None
    return await _unless_left_out(archive, of, number, position)


def _bytes_after(line: Line, number: int, offset: int) -> int:
    """Returns how much a line has after an offset of one of its files."""
    return sum(one.size for one in line.files[number:]) - offset


async def _unless_left_out(archive: Archive, line: Line, number: int, position: Position) -> Place | None:
    file, following = line.files[number], line.files[number + 1 :]
    if not await _same_history(archive, line, position):
        return None
    if not line.gtid_mode:
        return Place(line.number, file.name, position.offset)
    # The source leaves out what was read, wherever it is in its files: without anything of it after the next segment,
    # only that one must be read by GTIDs.
    done, before = GtidSet(position.gtid_set), GtidSet(file.gtids)
    for segment in await archive.segments(file):
        before = before.plus(GtidSet(segment.gtids))
        if segment.end > position.offset:
            break
    if not done or (await archive.executed(line)).minus(before).common(done):
        return None
    until = (following[0].name, 4) if segment.end == file.size and following else (file.name, segment.end)
    return Place(line.number, file.name, position.offset, without=done, until=until)


async def end_after(archive: Archive, position: Position) -> Position | None:
    """Returns the end of the line that grows, as a position of its server, if the line has everything from a position
    on; None if it has not. Raises ArchiveError."""
    await archive.refresh()
    if not archive.lines:
        return None
    line = archive.lines[-1]
    number = line.index_of(position.file)
    if line.server != position.server_uuid or number is None or position.offset > line.files[number].size:
        return None
    return Position(line.server, *line.end)


def _of_its_server(line: Line, position: Position, skip_before: int) -> Place:
    file, offset = dump_position(position, skip_before)
    if position.open_xa and position.gtid_set:
        # Rows of prepared XA transactions are read again, and nothing else from before the position.
        first = position.open_xa[0]
        done = GtidSet(position.gtid_set).minus(GtidSet(",".join(xa.gtid for xa in position.open_xa)))
        if first.file:
            until = position.file, position.offset
            return Place(line.number, first.file, first.offset, without=done, until=until)
    return Place(line.number, file, offset)


def _same_file(one: BinlogFile, two: BinlogFile) -> bool:
    """Returns whether two files of one name are the same one, of which one may have less."""
    return (one.begun, one.gtids) == (two.begun, two.gtids)


async def _same_history(archive: Archive, line: Line, position: Position) -> bool:
    """Returns whether the archived files are those that were read: after a reset a server uses their names again."""
    begun = line.index_of(position.file)
    if begun is not None and 0 < line.files[begun].last_us < position.commit_time_us - _CLOCKS:
        return False  # it ended long before what was read
    if line.gtid_mode and position.gtid_set and begun is not None:
        before = GtidSet(line.files[begun].gtids)
        if not GtidSet(position.gtid_set).contains(before):
            return False
    file, _, offset = position.last_transaction.rpartition(":")
    number = line.index_of(file)
    if number is None or not offset.isdigit():
        return True  # nothing was read, or it is not archived any more
    return await transaction_at(archive, line.files[number], int(offset)) == position.commit_time_us


async def transaction_at(archive: Archive, file: BinlogFile, offset: int) -> int | None:
    """Returns the commit time, in microseconds since 1970, of the transaction that begins at an offset; None if no
    event begins there. Raises ArchiveError."""
    async for frame in archive.frames(file, offset):
        at = 4 if not frame.start else 0
        while at + _HEADER <= len(frame.data) and frame.start + at < offset:
            length = int.from_bytes(frame.data[at + 9 : at + 13], "little")
            if length < _HEADER:
                raise ArchiveError(f"the archive's frame at {file.name}:{frame.start} does not consist of events")
            at += length
        if frame.start + at != offset or at + _HEADER > len(frame.data):
            return None
        end = at + int.from_bytes(frame.data[at + 9 : at + 13], "little")
        kind = frame.data[at + 4]
        if kind not in ev.GTIDS:  # the time of a transaction without a GTID event is that of its first statement
            return int.from_bytes(frame.data[at : at + 4], "little") * 1_000_000
        for stop in (end - 4, end):  # with and without a CRC32
            with contextlib.suppress(*BROKEN):
                return group_of(kind, frame.data, at + _HEADER, stop)[0]
    return None


async def _of_present_histories(archive: Archive, position: Position, ours: BinlogFile | None) -> list[Line]:
    """Returns lines with GTIDs, newest first, without those of a history that was reset or replaced: their numbers are
    given again, to other transactions. Of two histories of one server, only the one that the position is of counts, as
    its file `ours` shows."""
    lines = [line for line in reversed(archive.lines) if line.gtid_mode and line.files]
    begins = {line.number: GtidSet(line.files[0].gtids) for line in lines}
    ends = {line.number: await archive.executed(line) for line in lines}

    def one_history(one: Line, two: Line) -> bool:
        if begins[one.number].contains(ends[two.number]) or begins[two.number].contains(ends[one.number]):
            return True
        known = {file.name: file for file in one.files}
        return any(file.name in known and _same_file(file, known[file.name]) for file in two.files)

    found = []
    for line in lines:
        number = line.index_of(position.file) if line.server == position.server_uuid else None
        if number is not None:
            former = ours is not None and not _same_file(ours, line.files[number])
            counts = not former and await _same_history(archive, line, position)
        else:
            others = [other for other in lines if other is not line and other.server == line.server]
            counts = all(one_history(line, other) for other in others)
        if counts:
            found.append(line)
    return found


async def _by_gtids(archive: Archive, line: Line, position: Position, missing: GtidSet) -> Place | None:
    """Returns the newest file before which everything is done, if the line has transactions that are missing, and they
    are no older than the position."""
    done = GtidSet(position.gtid_set)
    first = bisect_left(line.files, True, key=lambda file: not done.contains(GtidSet(file.gtids)))
    for file in line.files[first - 1 :] if first else ():
        for segment in await archive.segments(file):
            if GtidSet(segment.gtids).common(missing):
                if segment.last_us < position.commit_time_us - _CLOCKS:
                    return None
                return Place(line.number, file.name, 4, only=missing)
    return None
