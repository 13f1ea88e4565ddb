"""Moves a position: finds the new one, what the move skips or publishes again, and what the schema history needs for
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import structlog

from headrace import runtime
from headrace.errors import LostKind, PositionLost
from headrace.model import POS_ROOM, POS_SHIFT, Gap, Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.heads import FileHeads
from headrace.mysql.position.inventory import Inventory, take_inventory, with_archive
from headrace.mysql.position.scan import SECOND, above_all
from headrace.mysql.position.scans import TransactionBoundary
from headrace.mysql.position.search import PositionError, PositionFinder, distance
from headrace.mysql.schema.entries import back_entry, doubt_entry, in_force
from headrace.mysql.schema.states import reached
from headrace.mysql.wire.binlog_file import file_number
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.source import Move, ProgressCallback
from headrace.settings.destination import SourceSettings
from headrace.settings.values import Start, StartAt, StartEarliest, StartGtid, StartLatest, StartTime, parse_start
from headrace.times import second_text

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NextFile:
    """The start of the binlog after the one that the position is in."""


Where = Start | NextFile
_SCANNED = (StartAt, StartTime, StartGtid)
"""Positions that the scan of a file finds, and that do not change; the others are found at once, and change with
time."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search, and its server."""

    server_uuid: str
    boundary: TransactionBoundary


def parse_where(text: str) -> Where:
    """Reads a position as an operator writes it. Raises ValueError with a sentence."""
    text = text.strip()
    if text == "next-file":
        return NextFile()
    try:
        return parse_start(text)
    except ValueError as error:
        raise ValueError(str(error).replace('"latest",', '"latest", "next-file",')) from None


async def relocate(
    source: SourceSettings,
    where: Where,
    stored: Position | None,
    *,
    reason: str,
    history_entries: Sequence[dict[str, Any]] = (),
    last_pos: int = 0,
    trail: Sequence[Position] = (),
    found: Found | None = None,
    on_progress: ProgressCallback = lambda *_: None,
    archive: Archive | None = None,
) -> Move:
    """Finds `where` on the source, or in the archive of its older files, and returns the move; nothing is written
    anywhere.

    `history_entries` are the stored entries of the schema history. `last_pos` counts if no position is stored. `trail`
    are earlier positions that the store still has, newest first, back to the last jump: the stream was read from one to
    the next, so between them the schema history is complete, and their `_pos` are those that were given out. `found` is
    the result of an earlier call for `where`: no file is scanned again for it. The callback receives the progress of
    the scan of a file. Raises PositionError if the source does not have the position, or another SourceError."""
    async with await SourceConnection.open(address_of(source)) as connection:
        inventory = await with_archive(await take_inventory(connection), archive, FileHeads(source))
        mover = _Mover(source, inventory, stored, reason, last_pos, on_progress)
        if found is not None and isinstance(where, _SCANNED):
            boundary = mover.still(found)
        else:
            boundary = await mover.resolve(where, connection)
    made = await mover.move(boundary, history_entries, trail)
    return replace(made, found=Found(inventory.server_uuid, boundary))


async def relocate_by_policy(
    source: SourceSettings, policy: str, lost: PositionLost, stored: Position, archive: Archive | None = None
) -> Move | None:
    """Returns the move of [source] on_position_lost; None if it does not act, and then a log line says why.

    Never moves to where the position was lost before: a policy must not loop. Raises SourceError and its subclasses."""
    if policy == "fail":
        return None
    async with await SourceConnection.open(address_of(source)) as connection:
        inventory = await with_archive(await take_inventory(connection), archive, FileHeads(source))
    mover = _Mover(source, inventory, stored, lost.kind.value, 0)
    found = await mover.by_policy(policy, lost)
    if isinstance(found, TransactionBoundary):
        move = await mover.move(found, (), ())
        if _goes_by(move.position) != _goes_by(stored):
            return move
        found = f"it leads to {found}, where the position was lost"
    log.warning("on_position_lost does not act", policy=policy, reason=lost.kind.value, why=found)
    return None


def on_another_history(move: Move, stored: Position) -> Move:
    """Returns a move on a server that was reset or restored since `stored`. Its files and offsets may look like earlier
    ones and are not: the move leads neither forward nor back, so no number may come again, and nothing is known of the
    tables."""
    last_pos = above_all(max(move.position.last_pos, stored.last_pos), runtime.now_us() // 10**6)
    position = replace(move.position, last_pos=last_pos, snapshot_pos=last_pos)
    why = "the source has another history than before"
    return replace(move, position=position, entries=(doubt_entry(position.last_pos, str(position), why),))


class _Mover:
    """One move on one source."""

    def __init__(
        self,
        source: SourceSettings,
        inventory: Inventory,
        stored: Position | None,
        reason: str,
        last_pos: int,
        on_progress: ProgressCallback = lambda *_: None,
    ) -> None:
        self._inventory, self._stored, self._reason = inventory, stored, reason
        self._last_pos = stored.last_pos if stored is not None else last_pos
        self._finder = PositionFinder(source, inventory, on_progress)
        self._notes: list[str] = []
        self._same_server = stored is not None and stored.server_uuid == inventory.server_uuid
        by_gtid = inventory.gtid_mode and stored is not None and stored.gtid_set
        self._ours = GtidSet(stored.gtid_set) if stored is not None and by_gtid else None

    # -- where to -------------------------------------------------------------------------------------------------

    async def resolve(self, where: Where, connection: SourceConnection) -> TransactionBoundary:
        """Returns the boundary of an operator's position."""
        finder = self._finder
        if isinstance(where, StartLatest):
            return finder.end()
        if isinstance(where, StartEarliest):
            return await finder.oldest()
        if isinstance(where, StartAt):
            return await finder.at(where.file, where.offset)
        if isinstance(where, StartTime):
            return await self._at_time(where.time)
        if isinstance(where, StartGtid):
            return await self._at_gtids(where.gtid_set, connection)
        return await self._next_file()

    def still(self, found: Found) -> TransactionBoundary:
        """Returns what was found, if it is available by now. Raises PositionError."""
        boundary, inventory = found.boundary, self._inventory
        if found.server_uuid != inventory.server_uuid:
            raise PositionError("another server answers than the one on which the position was searched for")
        if inventory.index(boundary.file) is None or boundary.offset > inventory.size(boundary.file):
            raise PositionError(f"the source does not have {boundary} any more, which was found")
        return boundary

    async def _at_time(self, when: datetime) -> TransactionBoundary:
        boundary = await self._finder.at_time(when)
        if boundary.file_position == self._finder.end().file_position:
            self._notes.append(self._finder.nothing_since(when))
        oldest = self._inventory.readable[0]
        if boundary.file == oldest.name and oldest != self._inventory.files[-1]:
            begins = await self._finder.begins(oldest.name)
            if begins > when.timestamp():
                text = second_text(begins)
                self._notes.append(f"the oldest binlog begins at {text}, later than the time that was asked for")
        return boundary

    async def _at_gtids(self, text: str, connection: SourceConnection) -> TransactionBoundary:
        inventory = self._inventory
        mysql = ":" in text
        if inventory.mariadb:
            if mysql:
                raise PositionError("this is a GTID set of MySQL, and the source is a MariaDB server")

            async def state_at(file: str) -> str:
                rows = await connection.query(f"SELECT BINLOG_GTID_POS('{file}', 4) AS g")
                return str(rows[0]["g"] or "")

            return await self._finder.at_mariadb_gtids(text, state_at)
        if not mysql:
            raise PositionError("this is a GTID position of MariaDB, and the source is a MySQL server")
        if not inventory.gtid_mode:
            raise PositionError("the source's gtid_mode is not ON", remedy="name a file and offset, or a time")
        wanted, executed = GtidSet(text), GtidSet(inventory.executed)
        purged = GtidSet(inventory.purged).minus(wanted)
        if purged:
            raise PositionError(
                f"the source has purged transactions that are not in this set: {purged}",
                remedy="add them to the set, which gives them up, or name another position",
            )
        unknown = wanted.minus(executed)
        if unknown:
            raise PositionError(
                f"the set has transactions that the source never executed: {unknown}",
                remedy=f"leave them out; the source has executed {executed}",
            )
        return _with_gtids(await self._finder.first_missing(wanted), wanted)

    async def _next_file(self) -> TransactionBoundary:
        stored, files = self._stored, self._inventory.readable
        file = stored.file if stored is not None and self._same_server else ""
        if not file and self._ours is not None:
            file = await self._finder.file_of(self._ours)
        if not file:
            raise PositionError("no stored position says which file would be the next", remedy="name a file and offset")
        number = file_number(file)
        following = [binlog.name for binlog in files if file_number(binlog.name) > number]
        if not following:
            raise PositionError(f"no binlog follows {file}: the newest is {files[-1].name}")
        return await self._behind(following[0])

    async def _behind(self, file: str) -> TransactionBoundary:
        """Returns the start of a file, with what was published before: so a dump by GTID begins in it, and not
        before."""
        boundary = await self._finder.start_of(file)
        if boundary.gtids is not None and self._ours is not None:
            return _with_gtids(boundary, self._ours.plus(boundary.gtids))
        return boundary

    async def by_policy(self, policy: str, lost: PositionLost) -> TransactionBoundary | str:
        """Returns where a policy leads; a text if it does not act."""
        assert self._stored is not None
        if not self._same_server and self._ours is None:
            return "another server answers, and without GTIDs nobody knows where it is"
        if lost.kind is LostKind.TRUNCATED and policy in ("next_file", "earliest"):
            file = lost.position.rpartition(":")[0] or self._stored.file
            inside = self._same_server and file == self._stored.file
            cut = await self._finder.truncation(file, self._stored.offset if inside else 0)
            if cut is not None:  # earliest would lead to the same file again
                end, following = cut
                self._notes.append(f"{file} ends in the middle of the event at {file}:{end}")
                return await self._behind(following)
        if policy == "next_file":
            if lost.kind is not LostKind.TRUNCATED:
                return "next_file is for a binlog that is cut off"
            return "it is not proven that the binlog is cut off: the position may be wrong, or it is the newest one"
        if policy in ("latest", "resnapshot"):
            return self._finder.end()
        oldest = await self._finder.oldest()
        if self._ours is None or oldest.gtids is None:
            return oldest
        gtids = self._ours.plus(oldest.gtids)  # what was published is not published again
        return _with_gtids(await self._finder.first_missing(gtids), gtids)

    # -- the move -------------------------------------------------------------------------------------------------

    async def move(
        self, boundary: TransactionBoundary, entries: Sequence[dict[str, Any]], trail: Sequence[Position]
    ) -> Move:
        """Returns the position at a boundary, and the consequences of the move."""
        stored, inventory = self._stored, self._inventory
        gtids = None
        if inventory.gtid_mode and boundary.gtids is not None:
            gtids = boundary.gtids.plus(GtidSet(inventory.purged))  # otherwise the server would refuse
        given_up, again = self._differences(gtids)
        backward = self._backward(boundary, given_up, again)
        rewinds = self._same_server and (backward or bool(again))
        first = await self._finder.first_from(boundary) if rewinds else 0
        new = above_all(self._last_pos, int(inventory.now)) if self._last_pos else 0
        in_step = self._same_server and self._stored_in_step and _in_step(boundary, boundary.commit_time_us)
        last_pos = self._last_pos if in_step or self._stays(boundary, given_up, again) else new
        learned: tuple[dict[str, Any], ...] = ()
        if rewinds:
            trail = [earlier for earlier in trail if earlier.server_uuid == inventory.server_uuid and earlier.file]
            former = self._rewound(boundary, first, trail)
            last_pos = new if former is None else former
            known_to, sure = _schema_pos(entries, trail, boundary, last_pos)
            if known_to != last_pos:
                last_pos = new
            learned = (back_entry(known_to, str(boundary)),)
            if not sure:
                learned += (
                    doubt_entry(last_pos, str(boundary), "the position was moved back, to before what is known"),
                )
        elif (entries or stored is not None) and not self._stays(boundary, given_up, again):
            learned = (doubt_entry(last_pos, str(boundary), "the position was moved, so statements were passed over"),)
        commit_time_us = stored.commit_time_us if stored is not None else 0
        own = GtidSet(stored.own_gtids).common(gtids) if stored is not None and gtids else None
        position = Position(
            inventory.server_uuid,
            *boundary.file_position,
            str(gtids) if gtids else "",
            last_pos=last_pos,
            commit_time_us=min(commit_time_us, first) if first else commit_time_us,
            own_gtids=str(own) if own else "",
            snapshots=stored.snapshots if stored is not None else (),
            snapshot_pos=stored.snapshot_pos if stored is not None and last_pos != new else last_pos,
        )
        self._note_more(backward, again)
        gap = self._gap(position, backward, given_up, again)
        return Move(position, gap, learned, tuple(self._notes))

    @property
    def _stored_in_step(self) -> bool:
        """Returns whether the stored numbers follow from commit times: not so after another move has raised them, on
        a server whose clock is not that of the one before, and if the clock went back."""
        stored = self._stored
        return stored is not None and stored.last_pos < (stored.commit_time_us << POS_SHIFT) + SECOND

    def _stays(self, boundary: TransactionBoundary, given_up: GtidSet | None, again: GtidSet | None) -> bool:
        """Returns whether nothing is between the two positions."""
        if given_up is not None:
            return self._same_server and not given_up and not again
        return self._same_server and self._stored is not None and boundary.file_position == _file_position(self._stored)

    def _differences(self, gtids: GtidSet | None) -> tuple[GtidSet | None, GtidSet | None]:
        """Returns what is skipped and what is published again, as far as GTIDs show it."""
        if gtids is None or self._ours is None:
            return None, None
        return gtids.minus(self._ours), self._ours.minus(gtids)

    def _backward(self, boundary: TransactionBoundary, given_up: GtidSet | None, again: GtidSet | None) -> bool:
        if given_up is not None:
            return bool(again) and not given_up
        stored = self._stored
        if stored is None or not self._same_server or not stored.file:
            return False
        if file_number(stored.file) > file_number(self._inventory.files[-1].name):
            return False  # numbers began again: what the server has now was never read
        return not reached(boundary.file_position, _file_position(stored))

    def _rewound(self, boundary: TransactionBoundary, first: int, trail: Sequence[Position]) -> int | None:
        """Returns the last `_pos` before a position that is read again, so that its rows get the numbers that they had;
        None if that is not known.

        Numbers follow the commit time, except where they ran over into that of the next transactions, which may have
        the same time: there only a stored position of the same place is exact. Numbers that were passed for a snapshot
        or by another move (`snapshot_pos`) are not passed again, and what follows would be below them."""
        stored = self._stored
        assert stored is not None
        found = None
        for earlier in trail:
            if _file_position(earlier) == boundary.file_position and not (earlier.events_done or earlier.rows_done):
                found = min(earlier.last_pos, self._last_pos)
                break
        if found is None and 0 < first < stored.commit_time_us and self._stored_in_step and _in_step(boundary, first):
            found = (first << POS_SHIFT) - 1 - POS_ROOM
            for earlier in trail:
                after = reached(_file_position(earlier), boundary.file_position)
                if (after and earlier.last_pos < found) or (not after and earlier.last_pos > found):
                    return None
        return found if found is not None and found >= stored.snapshot_pos else None

    def _gap(self, position: Position, backward: bool, given_up: GtidSet | None, again: GtidSet | None) -> Gap:
        stored = self._stored
        size: int | None = None
        files: int | None = None
        if stored is not None and self._same_server and stored.file:
            file_positions = _file_position(stored), _file_position(position)
            size, files = distance(self._inventory, *(reversed(file_positions) if backward else file_positions))
        differing = again if backward else given_up
        return Gap(
            self._reason,
            str(stored or ""),
            str(position),
            backward,
            size,
            files,
            differing.count if differing is not None else None,
            str(differing) if differing else "",
            runtime.now_us(),
        )

    def _note_more(self, backward: bool, again: GtidSet | None) -> None:
        stored = self._stored
        if again and not backward:
            self._notes.append(f"{again.count:,} transactions are published again: {again}")
        if stored is not None and stored.open_xa:
            names = ", ".join(xa.xid for xa in stored.open_xa[:5]) + (" ..." if len(stored.open_xa) > 5 else "")
            self._notes.append(
                f"{len(stored.open_xa)} prepared XA transactions are forgotten ({names}): one that was prepared before "
                "the new position and is committed after it stops the destination"
            )


def _file_position(position: Position) -> tuple[str, int]:
    return position.file, position.offset


def _in_step(boundary: TransactionBoundary, first: int) -> bool:
    """Returns whether the numbers of earlier transactions end before that of the first commit time after a boundary:
    then all from there on follow from commit times alone."""
    return 0 < boundary.pos_limit < (first << POS_SHIFT) - POS_ROOM


def _with_gtids(boundary: TransactionBoundary, gtids: GtidSet) -> TransactionBoundary:
    """Returns a boundary from which transactions are read that are not in a set. If the set has some that come after
    it, the numbers of the others are other ones than they were."""
    limit = boundary.pos_limit if boundary.gtids is not None and not gtids.minus(boundary.gtids) else 0
    return replace(boundary, gtids=gtids, pos_limit=limit)


def _goes_by(position: Position) -> str | tuple[str, int]:
    """Returns what decides where a dump begins: the GTID set, else the position."""
    return position.gtid_set or _file_position(position)


def _schema_pos(
    entries: Sequence[dict[str, Any]], trail: Sequence[Position], boundary: TransactionBoundary, last_pos: int
) -> tuple[int, bool]:
    """Returns the last `_pos` for a position that is moved back to `boundary`, and whether the schema history up to it
    is valid there.

    Each statement in it has its position in the binlog and its `_pos`; the two must agree about which are before the
    boundary. Where the trail begins, all tables may have been read: before it nothing is known."""
    if not trail or not reached(boundary.file_position, _file_position(trail[-1])):
        return last_pos, False
    begin = trail[-1].last_pos
    low, high = begin, last_pos + (1 << 62)
    for entry in in_force(entries):
        pos = int(entry["pos"])
        file, _, offset = str(entry["at"]).rpartition(":")
        if pos <= begin or not file or not offset.isdigit():
            continue
        if reached(boundary.file_position, (file, int(offset))):
            low = max(low, pos)
        else:
            high = min(high, pos)
    if low >= high:
        return last_pos, False
    return min(max(last_pos, low), high - 1), True
