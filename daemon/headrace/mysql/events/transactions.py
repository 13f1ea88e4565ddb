"""Tracks the transactions of the stream: the open transaction, its GTID, how much of it is published, and the
position."""

from __future__ import annotations

import contextlib
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import structlog

from headrace.errors import LostKind, PositionLost
from headrace.model import POS_LIMIT, POS_ROOM, POS_SHIFT, OpenXa, Origin, Position, TransactionMark
from headrace.mysql.events import event_types as ev
from headrace.mysql.events import xa
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import Key, group_of, parse_mariadb
from headrace.mysql.events.splitter import BROKEN, EnterInner, rotated_to
from headrace.mysql.events.statements import Statement, savepoint_name
from headrace.mysql.wire.binlog_file import file_number

log = structlog.get_logger(__name__)

_ALL = sys.maxsize
_OWN_INTERVALS = 64
"""Maximum number of GTID intervals of headrace's own transactions in a position. While nobody else writes, one interval
covers any number of heartbeats."""


class Transactions:
    """Tracks the groups of one stream. A group is a transaction, or a single statement outside of a transaction. The
    caller handles rows and other statements. For them it calls `mark_begin()` and `next_pos()`, and counts rows events
    in `events_done`. If the next rows event is so large that it is published in parts, the caller counts its published
    rows in `rows_done`.

    These attributes can be read at any time: `gtids` (executed before the present group; None if unknown), `gtid`,
    `start` (offset) and `commit_time_us` of the group, `last_pos`, `inside` (whether the group has begun with a BEGIN
    and not ended), `holding`, `count` (number of groups that have ended). The first `skip_events` rows events of the
    group, and the first `skip_rows` rows of the next one, are not published: they are already confirmed, or are before
    the start position."""

    def __init__(
        self,
        cursor: EventCursor,
        start: DumpStart,
        spool: xa.GroupSpool,
        mark: Callable[[TransactionMark], None] | None = None,
    ) -> None:
        begin = start.position
        self._cursor, self._spool, self._mark, self._begin = cursor, spool, mark, begin
        self.gtids: GtidSet | None = GtidSet(begin.gtid_set) if begin.gtid_set else None
        self._own_gtids = GtidSet(begin.own_gtids)
        self._last_file, _, offset = begin.last_transaction.rpartition(":")
        self._last_start = int(offset or 0)
        """The offset at which the last ended transaction begins."""
        self._group_end = 0
        """The offset at which that transaction ends; 0 until an event outside of any transaction follows, such as a
        checkpoint of MariaDB. Updated only while `_skip_to` is searched."""
        self.own_events = 0
        """Rows events of the present transaction that change only headrace's own tables."""
        self.last_pos, self.commit_time_us = begin.last_pos, begin.commit_time_us
        self.part_from = -1
        """While rows are passed on in slices and none of them is published yet: the last number before them. Otherwise
        below 0."""
        self._roomed = -1
        """The value of `last_pos` after numbers were left free before the group. If `last_pos` still has this value, no
        number was assigned since."""
        self._last_commit_us, self._tx_last_pos = begin.commit_time_us, begin.last_pos
        self.count = self.events_done = self.skip_events = self.rows_done = self.skip_rows = 0
        self.gtid, self.start = "", begin.offset
        self._key: Key | None = None
        self._skip_to: tuple[str, int] | None = None
        """The file and offset of the start position. Transactions that begin before it are already confirmed."""
        if start.file_position != (begin.file, begin.offset):
            self._skip_to, self.skip_events = (begin.file, start.skip_before or begin.offset), _ALL
        self._resume: Position | None = begin if begin.events_done or begin.rows_done or begin.open_xa else None
        self.inside = self._in_xa = self.in_group = False
        self.holding = False
        """Whether the events of the group wait for its end, because they may be rolled back. Then each event is passed
        to `hold()`."""
        self.passing = False
        """Whether the rest of the group is skipped because the operator wants it. None of its rows are published."""
        self._may_have_ended = False
        """Whether a skipped event may have been the end of the group."""
        self._begin_follows = False
        """Whether the skipped group began with a GTID event, so that the next BEGIN belongs to it."""
        self.captured_rows = False
        """Whether the group changed captured tables."""
        self._awaited: list[OpenXa] = list(begin.open_xa)
        """XA transactions of the stored position whose rows are still to be read again."""
        self._marked = False
        """Whether the begin of the transaction has been published."""
        self._begun: Origin | None = None
        """The origin of the transaction's BEGIN, if the begin and end of transactions are published."""
        self.server_id = self.thread_id = 0
        """The server id and the session (thread id) that executed the transaction, as far as they are needed."""

    # -- begin ----------------------------------------------------------------------------------------------------

    def begin(self, commit_time_us: int, gtid: str, key: Key | None) -> None:
        """Begins a group with the present event. `key` is its GTID in the form of GtidSet.add(). Raises NotUnderstood
        and PositionLost."""
        cursor = self._cursor
        if self.passing or (self._may_have_ended and not self.holding):
            self.commit()  # the end of the former group was among the skipped events
        if self.inside:
            raise cursor.not_understood(f"a transaction begins before the one at {self.start} has ended")
        start = cursor.start
        self.start, self.events_done = start if start >= 0 else cursor.end, 0
        self.in_group, self.captured_rows, self._in_xa, self.holding = True, False, False, False
        self._tx_last_pos, self.skip_events, self.skip_rows = self.given, 0, 0
        self.end_part(0)
        self.commit_time_us, self.gtid, self._key = commit_time_us, gtid, key
        if self._skip_to is not None:
            self._find_start()
        self._group_end, self._begun = 0, None
        if self._awaited:
            self._reread()
        elif self._resume is not None:
            self._resume_inside()
        # Leaves numbers free before the group, unless this is already done, the stream resumes within the group, or it
        # is still before the start position.
        if not self.skip_events and not self.skip_rows and not self._awaited and self.last_pos != self._roomed:
            self._roomed = self.last_pos = self.last_pos + POS_ROOM

    def _find_start(self) -> None:
        """Decides whether the group is before the start position, and skips it then."""
        skip_to, file = self._skip_to, self._cursor.file
        if skip_to is not None and file == skip_to[0]:
            self._require_between(skip_to, self._group_end or self.start, f"{file}:{self.start}")
            if self.start >= skip_to[1]:
                self._skip_to = None
        if self._skip_to is not None:
            self.skip_events = _ALL

    def _resume_inside(self) -> None:
        """Sets how much of the group to skip, if it is the transaction in which the stored position lies. Any other
        group is published from its start."""
        resume = self._resume
        if resume is not None and self._skip_to is None:
            if (self._cursor.file, self.start) == (resume.file, resume.offset):
                self.skip_events, self.skip_rows = resume.events_done, resume.rows_done
            self._resume = None

    def _require_between(self, wanted: tuple[str, int], end: int, following: str) -> None:
        """Raises PositionLost if the start position is within the last transaction, which ended before `end`; the next
        one begins at `following`."""
        file, offset = wanted
        if self._last_file == file and self._last_start < offset < end:
            raise PositionLost(
                f"the position {file}:{offset} lies in the middle of the transaction at {file}:{self._last_start}; the "
                f"next one begins at {following}",
                kind=LostKind.TRUNCATED,
            )

    def on_mariadb_gtid(self, data: bytes, at: int, stop: int) -> None:
        gtid = parse_mariadb(data, at, stop)
        self.begin(self._cursor.time * 1_000_000, str(gtid), None)
        self.server_id, self.thread_id = gtid.server, 0
        self.inside = not gtid.alone
        if gtid.prepared:
            self._begin_xa()

    def enter(self) -> None:
        """Handles the BEGIN of the group."""
        self.inside = True
        if self._mark is not None:
            self._begun = self.origin()

    def on_begin(self) -> None:
        """Handles a statement BEGIN that has no GTID event before it, or that is in a skipped group."""
        if self.passing and self._begin_follows:
            self._begin_follows = False
            return
        self.begin(self._cursor.time * 1_000_000, "", None)
        self.enter()

    def on_statement(self, kind: Statement, text: bytes) -> bool:
        """Handles any other statement. Without a GTID event before it, the statement begins a group. Returns whether
        the statement only controls the transaction, so that the caller has nothing to do."""
        if not self.in_group:
            self.begin(self._cursor.time * 1_000_000, "", None)
        if kind is Statement.XA_START:
            self._begin_xa()
        elif kind is Statement.XA_END:
            self._decide_xa(text)
        elif kind is Statement.COMMIT:
            self.commit()
        elif kind is Statement.ROLLBACK:
            if self.captured_rows and not self.passing:
                raise self._cursor.not_understood("a transaction that changed captured tables ends in a ROLLBACK")
            self._forget_held()
            self.commit()
        elif kind is Statement.SAVEPOINT and self.inside:
            self._on_savepoint(savepoint_name(text, self._cursor.dialect))
        elif kind is Statement.ROLLBACK_TO and self.inside:
            self._on_rollback_to(savepoint_name(text, self._cursor.dialect))
        else:
            return kind is Statement.INSIDE
        return True

    @property
    def skipping(self) -> bool:
        """Returns whether the stream is still before the start position."""
        return self._skip_to is not None

    # -- savepoints -----------------------------------------------------------------------------------------------

    def _on_savepoint(self, name: str) -> None:
        """Handles a SAVEPOINT. The events after it may be rolled back, so they are held. MariaDB writes such rows and a
        ROLLBACK TO if a transaction has also changed tables of an engine without transactions. The rows of those tables
        are in a separate group."""
        if not self._keeps:
            return
        if not self.holding:
            self.holding = True
            self._spool.begin(self._cursor.file, self.start, self.gtid)
        self._spool.mark(name)

    def _on_rollback_to(self, name: str) -> None:
        if self._keeps and not (self.holding and self._spool.back_to(name)):
            raise self._cursor.not_understood(
                f"a transaction is rolled back to the savepoint {name!r}, which it does not have"
            )

    def _forget_held(self) -> None:
        if self.holding:
            self.holding = False
            self._spool.drop(None)

    # -- XA -------------------------------------------------------------------------------------------------------

    def _awaited_here(self) -> OpenXa | None:
        """Returns the XA transaction of the stored position that is the same as this group, by its GTID or its
        position; None if there is none."""
        for held in self._awaited:
            if (held.gtid and held.gtid == self.gtid) or (held.file, held.offset) == (self._cursor.file, self.start):
                return held
        return None

    def _reread(self) -> None:
        """Handles a group while rows of open XA transactions are read again, after a restart. Raises NotUnderstood if
        the stream reaches the start position before it has read them all."""
        if self._awaited_here() is not None:
            self._key = None  # its GTID is already in the set
            return
        cursor = self._cursor
        while self._skip_to is None and self._awaited:
            lost = self._awaited[0]
            prepared = f"{lost.file}:{lost.offset}"
            if not cursor.is_named(prepared):
                raise cursor.not_understood(
                    f"the rows of XA transaction {lost.xid}, prepared at {prepared}, are not in the binlog any more",
                    f"compare its tables, then set [source] skip_event = ['{prepared}']",
                )
            self._awaited.remove(lost)
            cursor.skipped += 1
            log.warning("the rows of an XA transaction are discarded", xid=lost.xid, prepared=prepared)
        if not self._awaited:
            self._resume_inside()

    def _begin_xa(self) -> None:
        self.inside = self._in_xa = True
        if self._keeps:
            self.holding = True
            self._spool.begin(self._cursor.file, self.start, self.gtid)

    @property
    def _keeps(self) -> bool:
        """Returns whether held events are stored. They are not in a group that is skipped or is before the start
        position, unless it is an XA transaction that was still open at that position."""
        return not self.passing and (self._skip_to is None or self._awaited_here() is not None)

    def hold(self, kind: int, body: bytes) -> None:
        """Stores an event until the group ends. Raises NotUnderstood if the stored events become too large."""
        self._spool.add(self._cursor.time, kind, body)

    def hold_large(self, kind: int, data: bytes, at: int, stop: int) -> Iterator[None]:
        """Does the same as hold() for a large event, in slices. Its body is data[at:stop]."""
        return self._spool.add_large(self._cursor.time, kind, data, at, stop)

    def on_xa_prepare(self, data: bytes, at: int, stop: int) -> None:
        one_phase, xid = xa.xid_of_prepare(data, at, stop)
        again = self._awaited_here()
        if self.passing or (self._skip_to is not None and again is None):
            self.commit()
        elif one_phase:
            self._give_out(None)
        else:
            self._spool.prepare(xid)
            if again is not None:
                self._awaited.remove(again)
            self.commit()

    def _decide_xa(self, text: bytes) -> None:
        """Handles XA COMMIT or XA ROLLBACK."""
        commit, xid = xa.xid_of_statement(text)
        if self._skip_to is not None:
            self.commit()
        elif self.passing:
            self._spool.drop(xid)
            self.commit()
        elif commit and not self._spool.knows(xid):
            raise self._cursor.not_understood(
                f"XA transaction {xid} is committed, but it was prepared before headrace began to read: its rows are "
                "unknown",
                f"compare the tables that it changed, then set [source] skip_event = ['{self._cursor.position}']",
            )
        elif commit:
            self._give_out(xid)
        else:
            self._spool.drop(xid)
            self.commit()

    def _give_out(self, xid: str | None) -> None:
        """Publishes the held rows of a transaction that is committed now, as if they were at this place in the binlog.
        `xid` names an XA transaction that was prepared before; None means the present group. Raises EnterInner if there
        are rows."""
        inner = self._spool.events(xid)
        self._in_xa = self.holding = False

        def done() -> None:
            self._spool.drop(xid)
            self.commit()

        if inner is None:
            done()
        else:
            self.inside = True
            raise EnterInner(inner, done)

    # -- rows, and the end ----------------------------------------------------------------------------------------

    def mark_begin(self) -> None:
        """Publishes the begin of the transaction, if begin and end are published and this was not done yet. Called
        before rows of a captured table."""
        if not self._marked:
            self._marked = True
            self._report_mark(self._begun or self.origin(), begin=True)

    def _report_mark(self, origin: Origin, xid: int = 0, *, begin: bool) -> None:
        if self._mark is not None:
            self._mark(TransactionMark(begin, self.next_pos(1), self.commit_time_us, self.gtid, origin, xid))

    def origin(self) -> Origin:
        """Returns the origin of a change by the present event."""
        cursor, by = self._cursor, (self.server_id, self.thread_id)
        return Origin(cursor.file, self.start, cursor.event_start, self.events_done, *by, cursor.length, cursor.time)

    @property
    def begin_is_due(self) -> bool:
        """Returns whether the begin of the transaction must be published before rows of a captured table."""
        return self._mark is not None and not self._marked

    @property
    def coming_pos(self) -> int:
        """Returns the first number of rows of a captured table, if they come next."""
        return max(self.commit_time_us << POS_SHIFT, self.last_pos + 1) + self.begin_is_due

    def next_pos(self, count: int) -> int:
        """Assigns `count` consecutive numbers and returns the first. They are above all earlier numbers, and not below
        that of the commit time. Raises NotUnderstood if the commit time is too high."""
        pos = self.commit_time_us << POS_SHIFT
        if pos <= self.last_pos:
            pos = self.last_pos + 1
        self.last_pos = pos + count - 1
        if self.last_pos >= POS_LIMIT:
            raise self._cursor.not_understood(f"the commit time {self.commit_time_us} us is beyond what _pos can hold")
        return pos

    def commit(self, data: bytes = b"", at: int = 0, stop: int = 0) -> None:
        """Ends the group with the present event: an XID event, or any other that commits."""
        if self.holding and not self._in_xa:
            self._give_out(None)
            return
        if self._marked:
            xid = int.from_bytes(data[at : at + 8], "little") if stop - at == 8 else 0
            self._report_mark(self.origin(), xid, begin=False)
            self._marked = False
        if self._key is not None:
            self._executed(self._key)
            self._key = None
        self.inside = self.in_group = self._in_xa = self.holding = self.passing = False
        self._may_have_ended = False
        self._last_commit_us = self.commit_time_us
        self._last_file, self._last_start = self._cursor.file, self.start
        self.events_done = self.own_events = 0
        self.count += 1

    def _executed(self, key: Key) -> None:
        if self.gtids is None:
            self.gtids = GtidSet()
        self.gtids.add(*key)
        if self.own_events and self.own_events == self.events_done:
            self._own_gtids.add(*key)
            self._own_gtids.forget_oldest(_OWN_INTERVALS)

    # -- native code ----------------------------------------------------------------------------------------------

    @property
    def marked(self) -> bool:
        """Returns whether the begin and end of transactions are published."""
        return self._mark is not None

    @property
    def plain(self) -> bool:
        """Returns whether native code can continue from the state."""
        return not (
            self.holding
            or self.passing
            or self._in_xa
            or self._may_have_ended
            or self._awaited
            or self._skip_to is not None
            or self._resume is not None
            or self.last_pos >= POS_LIMIT
            or (self.in_group and (self.skip_events or self.skip_rows))
        )

    def given_over(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the position and the state of the present group, with which native code continues."""
        cursor = self._cursor
        if not self.in_group:
            self.skip_events = self.skip_rows = 0  # as begin() does
        place = cursor.high, cursor.end, self.in_group, self.inside, self.captured_rows
        group = self._roomed, self._tx_last_pos, self.commit_time_us, self._last_commit_us
        begun = self._begun
        return (
            (*place, self.start, self.events_done, self.last_pos),
            (
                *group,
                self.server_id,
                self.thread_id,
                self.own_events,
                self.gtid,
                self._key,
                begun and (begun.offset, begun.length, begun.time, begun.server_id, begun.thread),
                self._marked,
            ),
        )

    def taken_back(
        self,
        place: tuple[int, int, int, bool, bool, bool, int, int, int],
        group: tuple[int, int, int, int, int, int, int | None, tuple[int, int, int, int, int] | None, bool, int],
        gtid: tuple[str, Key | None],
        executed: Sequence[tuple[str, int, int, bool]],
        count: int,
    ) -> None:
        """Takes the state back after native code has stopped. `executed` has the GTIDs of the transactions that ended
        meanwhile, as (source, first, last, whether they are only headrace's own); `count` is the number of groups that
        ended."""
        cursor = self._cursor
        (
            cursor.start,
            cursor.end,
            cursor.time,
            self.in_group,
            self.inside,
            self.captured_rows,
            self.start,
            self.events_done,
            self.last_pos,
        ) = place
        self._roomed, self._tx_last_pos, self.commit_time_us, self._last_commit_us = group[:4]
        self.server_id, self.thread_id, last_start, begun, self._marked, self.own_events = group[4:]
        self._begun = None
        if begun is not None and self._mark is not None:
            offset, length, when, server_id, thread = begun
            self._begun = Origin(cursor.file, self.start, offset, 0, server_id, thread, length, when)
        self.gtid, self._key = gtid
        if last_start is not None:
            self._last_file, self._last_start = cursor.file, last_start
        if executed:
            if self.gtids is None:
                self.gtids = GtidSet()
            for source, first, last, own in executed:
                self.gtids.add_range(source, first, last)
                if own:
                    self._own_gtids.add_range(source, first, last)
                    self._own_gtids.forget_oldest(_OWN_INTERVALS)
        self.count += count

    # -- what is passed over --------------------------------------------------------------------------------------

    def on_skipped(self, kind: int, data: bytes, at: int, stop: int) -> None:
        """Handles an event that the operator wants to skip. Events that have no correct meaning without it are skipped
        too. If it is the first event of a group, the whole group is skipped. If it is a statement within a group, the
        rest of the group is skipped. Any other event (rows, tables, texts) is skipped alone. An event of an unknown
        type may have been any of these."""
        known, what = kind in ev.BY_NUMBER, "event"
        self.end_part(0)  # the event may have failed after some of its rows
        if kind in ev.ROWS and self.in_group and not self.holding:
            self.events_done += 1
            if self.events_done > self.skip_events:
                self.skip_rows = 0  # these rows belong to the skipped event
        if kind in ev.GTIDS or (not self.in_group and (kind in ev.STATEMENTS or not (known or self._may_lack_gtids))):
            what = "group"
            self._pass_group(kind, data, at, stop)
        elif self.in_group and kind in ev.ENDS:
            what = "the end of a group"
            self._forget_held()
            self.commit()
        elif self.inside and (kind in ev.STATEMENTS or (self.holding and not known)):
            what = "the rest of a group"
            self._pass_rest()
        elif self.in_group and (kind in ev.STATEMENTS or not known):
            self.inside = self._may_have_ended = True  # it may have been a BEGIN, or a group of a single statement
        log.warning("passed over", what=what, event_type=kind, position=self._cursor.position)

    @property
    def _may_lack_gtids(self) -> bool:
        """Returns whether the server may write a group without any GTID event, not even an anonymous one."""
        dialect = self._cursor.dialect
        return not dialect.mariadb and dialect.version < 50700

    def _pass_group(self, kind: int, data: bytes, at: int, stop: int) -> None:
        if self.in_group:  # the end of the former group was skipped
            self._forget_held()
            self.commit()
        when, gtid, key, alone = self._cursor.time * 1_000_000, "", None, False
        if kind in ev.GTIDS:
            # if the event is broken, its GTID is unknown and is not added to the set
            with contextlib.suppress(*BROKEN):
                when, gtid, key, alone = group_of(kind, data, at, stop)
        self.begin(when, gtid, key)
        self.inside, self._begin_follows = not alone, kind not in ev.STATEMENTS
        self._pass_rest()

    def _pass_rest(self) -> None:
        self._forget_held()
        self.passing, self.skip_events, self.skip_rows = True, _ALL, 0

    # -- the position ---------------------------------------------------------------------------------------------

    def on_rotate(self, data: bytes, at: int, stop: int) -> None:
        """Handles a ROTATE event. Called before the cursor moves to the next file."""
        cursor, (file, offset) = self._cursor, rotated_to(data, at, stop)
        if file != cursor.file and (self.passing or (self._may_have_ended and not self.holding)):
            # the end of the group was among the skipped events, because no group continues in the next file
            self.commit()
        if self._skip_to is not None and self._skip_to[0] == cursor.file != file:
            self._require_between(self._skip_to, self._group_end or cursor.end, f"{file}:{offset}")
            self._skip_to, self.skip_events = None, 0
        if not self.in_group:
            self.start = offset if file != cursor.file else cursor.end

    def on_previous_gtids(self, data: bytes, at: int, stop: int) -> None:
        if self.gtids is None:
            try:
                self.gtids = GtidSet.unpack(data[at:stop])
            except (ValueError, struct.error) as error:
                raise self._cursor.not_understood(f"the executed GTIDs are not understood: {error}") from error

    def on_nothing(self, data: bytes, at: int, stop: int) -> None:
        """Handles an event that changes no rows."""
        if self._skip_to is not None and not self.in_group:
            self._group_end = self._group_end or self._cursor.end

    def begin_part(self) -> None:
        """Begins rows that are passed on in slices. Until end_part() the position remains before them."""
        self.part_from = self.given

    def end_part(self, rows_done: int) -> None:
        """Ends the rows that begin_part() began. `rows_done` is the number of rows of their event that are published by
        now."""
        self.part_from, self.rows_done = -1, rows_done

    @property
    def given(self) -> int:
        """Returns the last number that was assigned. `last_pos` may also include the numbers left free before the
        group; a position never includes them."""
        return self.last_pos - POS_ROOM if self.last_pos == self._roomed else self.last_pos

    def pass_numbers(self, last_pos: int) -> bool:
        """Implements ChangeStream.pass_numbers()."""
        resume = self._resume
        if self.in_group or self._awaited or (resume is not None and (resume.events_done or resume.rows_done)):
            return False
        self.last_pos, self._roomed = max(self.given, last_pos), -1
        self._begin = replace(self._begin, last_pos=max(self._begin.last_pos, last_pos))
        if resume is not None:
            self._resume = replace(resume, last_pos=self.last_pos)
        return True

    def position(self) -> Position:
        """Returns the position from which a restart would continue if everything that was passed on so far were
        confirmed."""
        if self._skip_to is not None or self._awaited:
            return self._begin  # the stream is still before the start position
        if self._resume is not None:
            return self._resume  # no group has begun yet, so the stored position is still valid
        gtids = str(self.gtids) if self.gtids else ""
        last_pos, done, rows_done = self.given if self.part_from < 0 else self.part_from, 0, 0
        file = self._cursor.file
        if self.in_group:
            offset, when = self.start, self._last_commit_us
            if self._mark is None and self.last_pos != self._roomed:
                done = self.events_done if self.passing else max(self.events_done, self.skip_events)
                rows_done = self.rows_done or self.skip_rows
            if not done and not rows_done:  # a restart assigns all numbers of the group again
                last_pos = self._tx_last_pos
        else:
            offset, when = self._cursor.end, self.commit_time_us
            begin = self._begin
            if gtids and gtids == begin.gtid_set and file_number(begin.file) >= file_number(file):
                # A dump by GTIDs begins with a whole file. What comes before the stored place has been read.
                offset = max(offset, begin.offset) if begin.file == file else begin.offset
                file = begin.file
        return Position(
            self._begin.server_uuid,
            file,
            offset,
            gtids,
            done,
            self._spool.open,
            last_pos,
            when,
            str(self._own_gtids) if gtids else "",
            f"{self._last_file}:{self._last_start}" if self._last_file else "",
            rows_done=rows_done,
        )

    def close(self) -> None:
        """Closes the files that hold the rows of open XA transactions."""
        self._spool.close()
