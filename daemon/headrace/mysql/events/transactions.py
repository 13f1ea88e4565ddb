"""Follows the transactions of the stream: which one is open, its GTID, what of it is done, and the place."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod

from headrace.errors import LostKind, PositionLost
from headrace.model import POS_LIMIT, POS_SHIFT, OpenXa, Position
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events import event_types as ev
from headrace.mysql.events import xa
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import parse_mariadb, parse_tagged, sid_text
from headrace.mysql.events.packets import EventCutter
from headrace.mysql.events.query_event import QueryEvent, parse_query
from headrace.mysql.events.statements import Statement, classify
from headrace.mysql.position.dump_start import dump_place, place_of

_GTID = struct.Struct("<Q").unpack_from
_from_bytes = int.from_bytes
_PREPARED_XA = 0x40
_OWN_INTERVALS = 64
"""Of own transactions that a position remembers; while nobody else writes, one interval holds any number of beats."""


class TransactionFollower(EventCutter, ABC):
    """The place in the binlog between transactions and inside one. What rows and statements mean is the subclass's.

    Readable between two calls of feed(): `gtids`, `gtid`, `commit_time_us`, `last_pos`, `tx_start`, `events_done`,
    `transactions`, `position()`.
    """

    def __init__(
        self,
        start: Position,
        *,
        checksums: bool,
        skip_before: int = 0,
        options: DecoderOptions,
    ) -> None:
        file, offset = (start.file, start.offset) if start.gtid_set else dump_place(start, skip_before)
        super().__init__(file, offset, checksums=checksums, spool=options.spool, skip_events=options.skip_events)
        self.server_uuid = start.server_uuid
        self.gtids: GtidSet | None = GtidSet(start.gtid_set) if start.gtid_set else None
        self._own_gtids = GtidSet(start.own_gtids)
        self._last_file, self._last_start = place_of(start.last_transaction)
        """Where the last transaction that ended begins."""
        self._group_end = 0
        """Where it ends, once an event outside of any follows (MariaDB's checkpoints may come between two); kept while
        `_skip_to` is looked for."""
        self._own_events = 0
        """Rows events of the present transaction that change headrace's own tables only."""
        self.last_pos, self.commit_time_us = start.last_pos, start.commit_time_us
        self.transactions = self.events_done = 0
        self.gtid = ""
        self.tx_start = start.offset
        self._last_commit_us, self._tx_last_pos = start.commit_time_us, start.last_pos
        self._begin = start
        self._skip_to: tuple[str, int] | None = None
        """Transactions that begin before this place are confirmed already."""
        self._resume: Position | None = start if start.events_done or start.rows_done or start.open_xa else None
        self._skip_events = self._skip_rows = 0
        self._gtid_key: tuple[str, int] | None = None
        self._in_transaction = self._in_xa = self._captured_rows = self._grouped = False
        self._inner_ends_group = ""
        """The xid that is decided when the inner events are done; "" when they are no XA transaction's."""
        self._spool = xa.XaSpool(options.spool, options.max_spool)
        self._awaited: list[OpenXa] = list(start.open_xa)
        """XA transactions of the stored position whose rows have to be read again first."""
        if (file, offset) != (start.file, start.offset):
            self._skip_to = (start.file, skip_before or start.offset)
        self._whole_transactions = False
        self._counts: dict[str, int] | None = None
        """Rows by table of the transaction whose begin was told; None outside of one."""
        self._statement: str | None = None
        """The text that made the rows that follow, while it is wanted and not told yet."""
        self._sids: dict[bytes, str] = {}
        self.server_id = self.thread_id = 0
        """Of the server that executed the transaction, and its session there; kept with `options.origins` only."""
        self._handlers |= {
            ev.GTID: self._on_gtid,
            ev.ANONYMOUS_GTID: self._on_gtid,
            ev.TAGGED_GTID: self._on_tagged_gtid,
            ev.MARIADB_GTID: self._on_mariadb_gtid,
            ev.XID: self._on_commit,
            ev.XA_PREPARE: self._on_xa_prepare,
            ev.QUERY: self._on_query,
            ev.PREVIOUS_GTIDS: self._on_previous_gtids,
            **dict.fromkeys(ev.HARMLESS, self._on_nothing),
        }
        if options.origins:
            self._handlers[ev.QUERY] = self._on_query_with_origin

    def close(self) -> None:
        """See EventCutter."""
        super().close()
        self._spool.close()

    # -- begin ----------------------------------------------------------------------------------------------------

    def _on_gtid(self, data: bytes, at: int, stop: int) -> None:
        self._begin_group()
        if stop - at >= 49:
            # The 55th bit says that the original commit time follows; the low bits are the immediate one.
            self.commit_time_us = _from_bytes(data[at + 42 : at + 49], "little") & 0x7FFFFFFFFFFFFF
        else:
            self.commit_time_us = self._time * 1_000_000
        raw = data[at + 1 : at + 17]
        (gno,) = _GTID(data, at + 17)
        if gno:
            sid = self._sids.get(raw)
            if sid is None:
                sid = self._sids[raw] = sid_text(raw)
            self.gtid, self._gtid_key = f"{sid}:{gno}", (sid, gno)
        else:
            self.gtid, self._gtid_key = "", None
        if self._awaited:
            self._reread()

    def _on_tagged_gtid(self, data: bytes, at: int, stop: int) -> None:
        self._begin_group()
        source, gno, micros = parse_tagged(data, at, stop)
        self.commit_time_us = micros or self._time * 1_000_000
        self.gtid, self._gtid_key = f"{source}:{gno}", (source, gno)
        if self._awaited:
            self._reread()

    def _on_mariadb_gtid(self, data: bytes, at: int, stop: int) -> None:
        self._begin_group()
        sequence, domain, flags, _ = parse_mariadb(data, at, stop)
        self.commit_time_us = self._time * 1_000_000
        (server,) = struct.unpack_from("<I", data, at - 14)
        self.gtid, self.server_id, self.thread_id = f"{domain}-{server}-{sequence}", server, 0
        self._in_transaction = not flags & 1  # 1: a statement that is a group by itself
        if self._awaited:
            self._reread()
        if flags & _PREPARED_XA:  # the group ends in XA PREPARE
            self._begin_xa()

    def _begin_group(self) -> None:
        if self._in_transaction:
            raise self._not_understood(f"a transaction begins before the one at {self.tx_start} has ended")
        start = self._start
        self.tx_start, self.events_done = start if start >= 0 else self.end, 0
        self._grouped, self._captured_rows, self._in_xa = True, False, False
        before, self._group_end = self._group_end or self.tx_start, 0
        self._skip_events = self._skip_rows = 0
        self._tx_last_pos = self.last_pos
        if self._skip_to is not None and self.file == self._skip_to[0]:
            if self._last_file == self.file and self._last_start < self._skip_to[1] < before:
                raise self._no_place(f"{self._skip_to[0]}:{self._skip_to[1]}")
            if self.tx_start >= self._skip_to[1]:
                self._skip_to = None
        if self._resume is not None and self._skip_to is None and not self._awaited:
            # Only the very transaction that was under way is resumed inside; any other begins at its start.
            if (self.file, self.tx_start) == (self._resume.file, self._resume.offset):
                self._skip_events, self._skip_rows = self._resume.events_done, self._resume.rows_done
            self._resume = None

    def _no_place(self, wanted: str) -> PositionLost:
        return PositionLost(
            f"the position {wanted} lies in the middle of the transaction at {self._last_file}:{self._last_start}; the "
            f"next one begins at {self.file}:{self.tx_start}",
            kind=LostKind.TRUNCATED,
        )

    def _skipping(self) -> bool:
        return self._skip_to is not None

    # -- XA -------------------------------------------------------------------------------------------------------

    def _awaited_here(self) -> OpenXa | None:
        """The XA transaction of the stored position that this group is, by GTID or by place."""
        for held in self._awaited:
            if (held.gtid and held.gtid == self.gtid) or (held.file, held.offset) == (self.file, self.tx_start):
                return held
        return None

    def _reread(self) -> None:
        """Rows of open XA transactions come first after a restart; anything else must lie before the position."""
        if self._awaited_here() is not None:
            self._gtid_key = None  # executed already
        elif self._skip_to is None:
            lost = self._awaited[0]
            raise self._not_understood(
                f"the rows of XA transaction {lost.xid}, prepared at {lost.file}:{lost.offset}, are not in the binlog "
                "any more",
                f"name this place in [source] skip_event = ['{self._where()}'] once its tables have been compared",
            )

    def _begin_xa(self) -> None:
        self._in_transaction = self._in_xa = True
        if not self._skipping() or self._awaited_here() is not None:
            self._spool.begin(self.file, self.tx_start, self.gtid)

    def _wants_xa(self) -> bool:
        """Whether the group's events are kept: not when it was decided before the stored position."""
        return not self._skipping() or self._awaited_here() is not None

    def _on_xa_prepare(self, data: bytes, at: int, stop: int) -> None:
        one_phase, xid = xa.xid_of_prepare(data, at, stop)
        again = self._awaited_here()
        if self._skipping() and again is None:
            self._on_commit()
        elif one_phase:
            self._give_out(None, "one phase")
        else:
            self._spool.prepare(xid)
            if again is not None:
                self._awaited.remove(again)
            self._on_commit()

    def _on_xa_end(self, query: QueryEvent) -> None:
        """XA COMMIT or XA ROLLBACK."""
        commit, xid = xa.xid_of_statement(query.text)
        if self._skipping():
            self._on_commit()
        elif commit and not self._spool.knows(xid):
            raise self._not_understood(
                f"XA transaction {xid} is committed, but it was prepared before headrace began to read: its rows are "
                "unknown",
                f"compare the tables that it changed, then set [source] skip_event = ['{self._where()}']",
            )
        elif commit:
            self._give_out(xid, xid)
        else:
            self._spool.drop(xid)
            self._on_commit()

    def _give_out(self, xid: str | None, name: str) -> None:
        """The rows of a transaction that is committed now, as if they stood here."""
        inner = self._spool.events(xid)
        self._in_xa = False
        if inner is None:
            self._decide(name)
        else:
            self._in_transaction, self._inner_ends_group = True, name
            self._enter(inner)

    def _on_inner_end(self) -> None:
        if self._inner_ends_group:
            name, self._inner_ends_group = self._inner_ends_group, ""
            self._decide(name)

    def _decide(self, name: str) -> None:
        if name == "one phase":
            self._spool.drop_current()
        else:
            self._spool.drop(name)
        self._on_commit()

    def _on_query_with_origin(self, data: bytes, at: int, stop: int) -> None:
        """The event header has the server's id, the statement (BEGIN among them) its session's. MariaDB begins most
        transactions without a statement: then the session is that of none."""
        (self.server_id,) = struct.unpack_from("<I", data, at - 14)
        (self.thread_id,) = struct.unpack_from("<I", data, at)
        self._on_query(data, at, stop)

    # -- statements and the end -----------------------------------------------------------------------------------

    def _on_query(self, data: bytes, at: int, stop: int) -> None:
        if data[stop - 6 : stop] == b"\0BEGIN":
            if not self._grouped:  # a server without GTID events
                self._begin_group()
                self.commit_time_us, self.gtid = self._time * 1_000_000, ""
            self._in_transaction = True
            return
        self._run_query(parse_query(data, at, stop), self._end_of(at, stop))

    def _run_query(self, query: QueryEvent, end: int) -> None:
        """One statement; `end` is the offset behind its event."""
        if not self._grouped:
            self._begin_group()
            self.commit_time_us, self.gtid = self._time * 1_000_000, ""
        kind = classify(query.text)
        if kind is Statement.XA_START:
            self._begin_xa()
        elif kind is Statement.XA_END:
            self._on_xa_end(query)
        elif kind is Statement.INSIDE:
            pass
        elif kind is Statement.COMMIT:
            self._on_commit()
        elif kind is Statement.ROLLBACK:
            if self._captured_rows:
                raise self._not_understood("a transaction that changed captured tables ends in a ROLLBACK")
            self._on_commit()
        else:
            self._on_statement(kind, query, end)

    @abstractmethod
    def _on_statement(self, kind: Statement, query: QueryEvent, end: int) -> None:
        """DDL, DML as text, and statements about accounts; `end` is the offset behind the event."""

    def _end_marks(self) -> None:
        """Tells of the end of the transaction whose begin was told."""
        self._counts = None

    def _on_commit(self, data: bytes = b"", at: int = 0, stop: int = 0) -> None:
        if self._counts is not None:
            self._end_marks()
        if self._gtid_key is not None:
            if self.gtids is None:
                self.gtids = GtidSet()
            self.gtids.add(*self._gtid_key)
            if self._own_events and self._own_events == self.events_done:
                self._own_gtids.add(*self._gtid_key)
                self._own_gtids.forget_oldest(_OWN_INTERVALS)
            self._gtid_key = None
        self._own_events = 0
        self._in_transaction = self._grouped = self._in_xa = False
        self._statement = None
        self._last_commit_us = self.commit_time_us
        self._last_file, self._last_start = self.file, self.tx_start
        self.events_done = 0
        self.transactions += 1

    def _on_skipped(self, why: str) -> None:
        whole = self._inner is not None
        super()._on_skipped(why)
        if whole and self._grouped:
            self._inner_ends_group = ""
            self._on_commit()
        elif self._grouped and not self._in_transaction:  # a statement that is a group by itself
            self._on_commit()

    def _next_pos(self, count: int) -> int:
        """The first of `count` numbers in a row: above all before, and not below the commit time."""
        pos = self.commit_time_us << POS_SHIFT
        if pos <= self.last_pos:
            pos = self.last_pos + 1
        self.last_pos = pos + count - 1
        if self.last_pos >= POS_LIMIT:
            raise self._not_understood(f"the commit time {self.commit_time_us} us is beyond what _pos can hold")
        return pos

    # -- the place ------------------------------------------------------------------------------------------------

    def _on_rotate(self, data: bytes, at: int, stop: int) -> None:
        before, end = self.file, self._group_end or self.end
        super()._on_rotate(data, at, stop)
        if self._skip_to is not None and self._skip_to[0] == before != self.file:
            if self._last_file == before and self._last_start < self._skip_to[1] < end:
                raise self._no_place(f"{self._skip_to[0]}:{self._skip_to[1]}")
            self._skip_to = None
        if not self._grouped:
            self.tx_start = self.end

    def _on_previous_gtids(self, data: bytes, at: int, stop: int) -> None:
        if self.gtids is None:
            try:
                self.gtids = GtidSet.unpack(data[at:stop])
            except (ValueError, struct.error) as error:
                raise self._not_understood(f"the executed GTIDs are not understood: {error}") from error

    def _on_nothing(self, data: bytes, at: int, stop: int) -> None:
        """An event that changes no rows."""
        if self._skip_to is not None and not self._grouped:
            self._group_end = self._group_end or self.end

    @property
    def in_group(self) -> bool:
        """Whether a transaction is under way."""
        return self._grouped

    def position(self) -> Position:
        """From where reading would go on if everything given out so far were confirmed."""
        if self._skip_to is not None or self._awaited:
            return self._begin  # on the way to where we are to begin
        if self._resume is not None:
            return self._resume  # nothing came yet: what was done of the transaction under way still holds
        gtids = str(self.gtids) if self.gtids else ""
        last_pos = self.last_pos
        if self._grouped:
            offset, done, when = self.tx_start, self.events_done, self._last_commit_us
            if self._whole_transactions:
                done, last_pos = 0, self._tx_last_pos
            elif done < self._skip_events:
                done = self._skip_events
        else:
            offset, done, when = self.end, 0, self.commit_time_us
        return Position(
            self.server_uuid,
            self.file,
            offset,
            gtids,
            done,
            0,
            self._spool.open,
            last_pos,
            when,
            str(self._own_gtids) if gtids else "",
            f"{self._last_file}:{self._last_start}" if self._last_file else "",
        )
