"""Follows the transactions of the stream: which one is open, its GTID, what of it is done, and the position."""

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
from headrace.mysql.events.cutter import BROKEN, EnterInner, rotated_to
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import Key, group_of, parse_mariadb
from headrace.mysql.events.statements import Statement, savepoint_name

log = structlog.get_logger(__name__)

_ALL = sys.maxsize
_OWN_INTERVALS = 64
"""Of own transactions that a position remembers; while nobody else writes, one interval holds any number of
heartbeats."""


class Transactions:
    """The groups of one stream: transactions, and statements that stand alone. What rows and other statements mean is
    somebody else's, who calls `mark_begin()` and `next_pos()` for them and counts rows events in `events_done`, and in
    `rows_done` the rows of the next one that went out, where it is so large that they do in parts.

    Readable at any time: `gtids` (executed before the present group, None while that is not known), `gtid`, `start`
    (offset) and `commit_time_us` of the group, `last_pos`, `inside` (between BEGIN and its end), `holding`, `count`
    (groups that ended). Rows events up to number `skip_events` of the group, and `skip_rows` rows of the next one,
    are confirmed already, or lie before the place to begin at.
    """

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
        """Where the last transaction that ended begins."""
        self._group_end = 0
        """Where it ends, once an event outside of any follows (MariaDB's checkpoints may come between two); kept while
        `_skip_to` is looked for."""
        self.own_events = 0
        """Rows events of the present transaction that change headrace's own tables only."""
        self.last_pos, self.commit_time_us = begin.last_pos, begin.commit_time_us
        self.part_from = -1
        """The last number before the rows that are being given in slices: none of theirs went out yet; below 0 while
        there are none."""
        self._roomed = -1
        """`last_pos` with the room before the group, as long as no number was given since."""
        self._last_commit_us, self._tx_last_pos = begin.commit_time_us, begin.last_pos
        self.count = self.events_done = self.skip_events = self.rows_done = self.skip_rows = 0
        self.gtid, self.start = "", begin.offset
        self._key: Key | None = None
        self._skip_to: tuple[str, int] | None = None
        """Transactions that begin before this position are confirmed already."""
        if start.file_position != (begin.file, begin.offset):
            self._skip_to, self.skip_events = (begin.file, start.skip_before or begin.offset), _ALL
        self._resume: Position | None = begin if begin.events_done or begin.rows_done or begin.open_xa else None
        self.inside = self._in_xa = self.in_group = False
        self.holding = False
        """Whether the events of the group wait for its end, because what they did may be undone: they are given to
        `hold()`."""
        self.passing = False
        """Whether the rest of the group is passed over at the operator's word: no rows of it are wanted."""
        self._may_have_ended = False
        """Whether an event was passed over that may have been the end of the group."""
        self._begin_follows = False
        """Whether the group that is passed over began with its GTID, so that a BEGIN belongs to it."""
        self.captured_rows = False
        """Whether the group changed captured tables."""
        self._awaited: list[OpenXa] = list(begin.open_xa)
        """XA transactions of the stored position whose rows have to be read again first."""
        self._marked = False
        """Whether the begin of the transaction was told."""
        self._begun: Origin | None = None
        """Where its BEGIN is, where transactions are marked."""
        self.server_id = self.thread_id = 0
        """Of the server that executed the transaction, and its session there, where somebody looks at them."""

    # -- begin ----------------------------------------------------------------------------------------------------

    def begin(self, commit_time_us: int, gtid: str, key: Key | None) -> None:
        """A group begins with the present event. Raises NotUnderstood and PositionLost."""
        cursor = self._cursor
        if self.passing or (self._may_have_ended and not self.holding):
            self.commit()  # its end was among what was passed over
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
        # Not behind a position within the group, where a number of the group was given, nor before the position.
        if not self.skip_events and not self.skip_rows and not self._awaited and self.last_pos != self._roomed:
            self._roomed = self.last_pos = self.last_pos + POS_ROOM

    def _find_start(self) -> None:
        """On the way to where the stream is to begin."""
        skip_to, file = self._skip_to, self._cursor.file
        if skip_to is not None and file == skip_to[0]:
            self._require_between(skip_to, self._group_end or self.start, f"{file}:{self.start}")
            if self.start >= skip_to[1]:
                self._skip_to = None
        if self._skip_to is not None:
            self.skip_events = _ALL

    def _resume_inside(self) -> None:
        """Only the very transaction that was under way is resumed inside; any other begins at its start."""
        resume = self._resume
        if resume is not None and self._skip_to is None:
            if (self._cursor.file, self.start) == (resume.file, resume.offset):
                self.skip_events, self.skip_rows = resume.events_done, resume.rows_done
            self._resume = None

    def _require_between(self, wanted: tuple[str, int], end: int, following: str) -> None:
        """Raises PositionLost when the position to begin at lies within the last transaction, which ended before `end`;
        the next one begins at `following`."""
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
        """BEGIN of the group."""
        self.inside = True
        if self._mark is not None:
            self._begun = self.origin()

    def on_begin(self) -> None:
        """The statement BEGIN without a GTID event before it, or in a group that is passed over."""
        if self.passing and self._begin_follows:
            self._begin_follows = False
            return
        self.begin(self._cursor.time * 1_000_000, "", None)
        self.enter()

    def on_statement(self, kind: Statement, text: bytes) -> bool:
        """Any other statement; without a GTID event before it, it begins the group. Returns whether it was about the
        transaction itself, so that nothing else is to be done with it."""
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
        """Whether the position to begin at is still ahead."""
        return self._skip_to is not None

    # -- savepoints -----------------------------------------------------------------------------------------------

    def _on_savepoint(self, name: str) -> None:
        """What follows may be undone: where a transaction has changed tables without transactions too, MariaDB writes
        the rows and a ROLLBACK TO. The rows of those tables stand in a group of their own."""
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
        """The XA transaction of the stored position that this group is, by GTID or by position."""
        for held in self._awaited:
            if (held.gtid and held.gtid == self.gtid) or (held.file, held.offset) == (self._cursor.file, self.start):
                return held
        return None

    def _reread(self) -> None:
        """Rows of open XA transactions come first after a restart; anything else must lie before the position."""
        if self._awaited_here() is not None:
            self._key = None  # executed already
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
            log.warning("the rows of an XA transaction are given up", xid=lost.xid, prepared=prepared)
        if not self._awaited:
            self._resume_inside()

    def _begin_xa(self) -> None:
        self.inside = self._in_xa = True
        if self._keeps:
            self.holding = True
            self._spool.begin(self._cursor.file, self.start, self.gtid)

    @property
    def _keeps(self) -> bool:
        """Whether what waits is kept: not in a group that lies before the stored position, unless it is an XA
        transaction that was not decided there."""
        return not self.passing and (self._skip_to is None or self._awaited_here() is not None)

    def hold(self, kind: int, body: bytes) -> None:
        """Keeps an event of the group until it ends. Raises NotUnderstood when there is too much."""
        self._spool.add(self._cursor.time, kind, body)

    def hold_large(self, kind: int, data: bytes, at: int, stop: int) -> Iterator[None]:
        """The same of a large event whose body is from `at` to `stop`, in slices."""
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
        """XA COMMIT or XA ROLLBACK."""
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
        """The rows of a transaction that is committed now, as if they stood here; None: the present one, which commits
        in one phase."""
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
        """Rows of a captured table are about to be told, where transactions are marked."""
        if not self._marked:
            self._marked = True
            self._tell_mark(self._begun or self.origin(), begin=True)

    def _tell_mark(self, origin: Origin, xid: int = 0, *, begin: bool) -> None:
        if self._mark is not None:
            self._mark(TransactionMark(begin, self.next_pos(1), self.commit_time_us, self.gtid, origin, xid))

    def origin(self) -> Origin:
        """Of a change that the present event makes."""
        cursor, by = self._cursor, (self.server_id, self.thread_id)
        return Origin(cursor.file, self.start, cursor.event_start, self.events_done, *by, cursor.length, cursor.time)

    def next_pos(self, count: int) -> int:
        """The first of `count` numbers in a row: above all before, and not below the commit time."""
        pos = self.commit_time_us << POS_SHIFT
        if pos <= self.last_pos:
            pos = self.last_pos + 1
        self.last_pos = pos + count - 1
        if self.last_pos >= POS_LIMIT:
            raise self._cursor.not_understood(f"the commit time {self.commit_time_us} us is beyond what _pos can hold")
        return pos

    def commit(self, data: bytes = b"", at: int = 0, stop: int = 0) -> None:
        """The group ends with the present event: XID, or what stands for it."""
        if self.holding and not self._in_xa:
            self._give_out(None)
            return
        if self._marked:
            xid = int.from_bytes(data[at : at + 8], "little") if stop - at == 8 else 0
            self._tell_mark(self.origin(), xid, begin=False)
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
        """Whether the begin and end of transactions are told."""
        return self._mark is not None

    @property
    def plain(self) -> bool:
        """Whether the state is one that native code knows."""
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
        """Where the stream is and the group under way, as native code goes on from."""
        cursor = self._cursor
        if not self.in_group:
            self.skip_events = self.skip_rows = 0  # as begin() would
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
        group: tuple[int, int, int, int, int, int, int | None, tuple[int, int, int, int, int] | None, bool],
        gtid: tuple[str, Key | None],
        executed: Sequence[tuple[str, int, int]],
        count: int,
    ) -> None:
        """The same when native code has stopped: `executed` are intervals of transactions that ended meanwhile, by
        their source, `count` how many did."""
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
        self.server_id, self.thread_id, last_start, begun, self._marked = group[4:]
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
            for source, first, last in executed:
                self.gtids.add_range(source, first, last)
        self.count += count

    # -- what is passed over --------------------------------------------------------------------------------------

    def on_skipped(self, kind: int, data: bytes, at: int, stop: int) -> None:
        """An event was passed over at the operator's word; with it goes what would mean something else without it. The
        first event of a group: all of the group. A statement within one: the rest of it, and what ends it ends it. Any
        other event (rows, tables, texts) goes alone; one of an unknown number may have been any of these."""
        known, what = kind in ev.BY_NUMBER, "event"
        self.end_part(0)  # of which a part may have failed
        if kind in ev.ROWS and self.in_group and not self.holding:
            self.events_done += 1
            if self.events_done > self.skip_events:
                self.skip_rows = 0  # they were of this event
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
            self.inside = self._may_have_ended = True  # a BEGIN, or a statement that was all of its group
        log.warning("passed over", what=what, event_type=kind, position=self._cursor.position)

    @property
    def _may_lack_gtids(self) -> bool:
        """Whether the server may write groups without an event of their GTID, anonymous ones included."""
        dialect = self._cursor.dialect
        return not dialect.mariadb and dialect.version < 50700

    def _pass_group(self, kind: int, data: bytes, at: int, stop: int) -> None:
        if self.in_group:  # one that has lost its end
            self._forget_held()
            self.commit()
        when, gtid, key, alone = self._cursor.time * 1_000_000, "", None, False
        if kind in ev.GTIDS:
            with contextlib.suppress(*BROKEN):  # then its GTID is not known, and not counted
                when, gtid, key, alone = group_of(kind, data, at, stop)
        self.begin(when, gtid, key)
        self.inside, self._begin_follows = not alone, kind not in ev.STATEMENTS
        self._pass_rest()

    def _pass_rest(self) -> None:
        self._forget_held()
        self.passing, self.skip_events, self.skip_rows = True, _ALL, 0

    # -- the position ---------------------------------------------------------------------------------------------

    def on_rotate(self, data: bytes, at: int, stop: int) -> None:
        """ROTATE, before the cursor goes to the next file."""
        cursor, (file, offset) = self._cursor, rotated_to(data, at, stop)
        if file != cursor.file and (self.passing or (self._may_have_ended and not self.holding)):
            self.commit()  # its end was among what was passed over: no group goes on in the next file
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
        """An event that changes no rows."""
        if self._skip_to is not None and not self.in_group:
            self._group_end = self._group_end or self._cursor.end

    def begin_part(self) -> None:
        """Rows are about to be given in slices: until end_part() a position lies before them."""
        self.part_from = self.given

    def end_part(self, rows_done: int) -> None:
        """They went out, and so many rows of their event before and with them."""
        self.part_from, self.rows_done = -1, rows_done

    @property
    def given(self) -> int:
        """The last number that was given out: `last_pos` may have the room before the group, which a position lacks."""
        return self.last_pos - POS_ROOM if self.last_pos == self._roomed else self.last_pos

    def pass_numbers(self, last_pos: int) -> bool:
        """See ChangeStream.pass_numbers()."""
        resume = self._resume
        if self.in_group or self._awaited or (resume is not None and (resume.events_done or resume.rows_done)):
            return False
        self.last_pos, self._roomed = max(self.given, last_pos), -1
        self._begin = replace(self._begin, last_pos=max(self._begin.last_pos, last_pos))
        if resume is not None:
            self._resume = replace(resume, last_pos=self.last_pos)
        return True

    def position(self) -> Position:
        """From where reading would go on if everything given out so far were confirmed."""
        if self._skip_to is not None or self._awaited:
            return self._begin  # on the way to where we are to begin
        if self._resume is not None:
            return self._resume  # nothing came yet: what was done of the transaction under way still holds
        gtids = str(self.gtids) if self.gtids else ""
        last_pos, done, rows_done = self.given if self.part_from < 0 else self.part_from, 0, 0
        if self.in_group:
            offset, when = self.start, self._last_commit_us
            if self._mark is None and self.last_pos != self._roomed:
                done = self.events_done if self.passing else max(self.events_done, self.skip_events)
                rows_done = self.rows_done or self.skip_rows
            if not done and not rows_done:  # all of the group is numbered again
                last_pos = self._tx_last_pos
        else:
            offset, when = self._cursor.end, self.commit_time_us
        return Position(
            self._begin.server_uuid,
            self._cursor.file,
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
        """Gives the rows of open XA transactions back."""
        self._spool.close()
