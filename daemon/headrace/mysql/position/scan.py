"""Looks through binlogs beside a destination's own dump: only where transactions begin and end, and when they were
committed. Rows and statements are passed over."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from typing import IO, Any

from headrace.errors import HeadraceError
from headrace.mysql.checks import address_of
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import parse_mariadb, parse_tagged, sid_text
from headrace.mysql.events.inner import LargeEvent
from headrace.mysql.events.packets import EventCutter
from headrace.mysql.wire.connection import SourceConnection
from headrace.settings.destination import SourceSettings

_BUFFER = 1 << 20
_HEARTBEAT = 1.0
_OUTSIDE = (ev.STOP, ev.PREVIOUS_GTIDS, ev.GTID_LIST, 161, 164)
"""Events that never stand within a transaction: the file's own, MariaDB's checkpoints, and START_ENCRYPTION."""


class BinlogScan(EventCutter):
    """The groups (transactions and statements that stand alone) of one file, from `offset` on to the file's end.

    A group begins with its GTID event; without those (MySQL before 5.7) with BEGIN or the statement itself. It ends
    where the next one, or an event that belongs to no group, begins. Subclasses look at `_group` and `_boundary`.

    Readable between two calls of feed(): `done` (nothing more is wanted), `left` (the file was read to its end and
    another follows), `idle` (read to the end of the binlog), `last` (offset behind the last event of the file),
    `begun` (when the file was begun, in seconds since 1970; 0 before its first event), `gtids` (executed before the
    present group, None when the server does not say).
    """

    def __init__(self, file: str, offset: int = 4) -> None:
        super().__init__(file, offset, checksums=False)
        self.done = self.left = self.idle = False
        self.scanned = file
        self.last = offset
        self.begun = 0
        self.gtids: GtidSet | None = None
        self.in_group = False
        self.commit_time_us = 0
        self._begin_seen = self._gtid_events = False
        self._key: tuple[str, int] | None = None
        """The GTID of the present group, which counts once the group is over."""
        self._sids: dict[bytes, str] = {}
        self._handlers = {
            ev.ROTATE: self._on_rotate,
            ev.FORMAT_DESCRIPTION: self._on_format,
            ev.HEARTBEAT: self._on_heartbeat,
            ev.HEARTBEAT_V2: self._on_heartbeat,
            ev.GTID: self._on_gtid,
            ev.ANONYMOUS_GTID: self._on_gtid,
            ev.TAGGED_GTID: self._on_tagged_gtid,
            ev.MARIADB_GTID: self._on_mariadb_gtid,
            ev.QUERY: self._on_query,
            ev.XID: self._on_xid,
            **dict.fromkeys(_OUTSIDE, self._on_outside),
            ev.PREVIOUS_GTIDS: self._on_previous_gtids,
        }

    def expect_checksums(self, checksums: bool) -> None:
        """Whether events before the first FORMAT_DESCRIPTION end in a checksum."""
        self._crc = checksums

    @property
    def over(self) -> bool:
        """Whether nothing is left to read."""
        return self.done or self.left or self.idle

    # -- for subclasses -------------------------------------------------------------------------------------------

    def _group(self, start: int) -> None:
        """A group begins at this offset; `commit_time_us` and `_key` are its, `gtids` is what was before it."""

    def _boundary(self, start: int) -> None:
        """At this offset no group is under way: reading may begin here. Called before `_group`."""

    def _event(self, start: int) -> None:
        """An event of any kind begins at this offset of the file."""

    # -- groups ---------------------------------------------------------------------------------------------------

    def _on_unknown(self, kind: int, flags: int) -> None:
        """Only the bounds of groups count here; every other event is passed over, known or not."""
        if self._start >= 0:
            self._see()

    def _see(self) -> None:
        if not self.over:
            self._event(self.event_start)

    def _begin(self, commit_time_us: int, key: tuple[str, int] | None) -> None:
        if self.over:
            return
        self._see()
        self._leave_group()
        self._boundary(self.event_start)
        if self.done:
            return
        self.in_group, self._begin_seen = True, False
        self.commit_time_us, self._key = commit_time_us, key
        self._group(self.event_start)

    def _leave_group(self) -> None:
        self.in_group = self._begin_seen = False
        if self._key is not None:
            self.gtids = self.gtids or GtidSet()
            self.gtids.add(*self._key)
            self._key = None

    def _on_gtid(self, data: bytes, at: int, stop: int) -> None:
        self._gtid_events = True
        micros = self._time * 1_000_000
        if stop - at >= 49:
            # The 55th bit says that the original commit time follows; the low bits are the immediate one.
            micros = int.from_bytes(data[at + 42 : at + 49], "little") & 0x7FFFFFFFFFFFFF
        raw = bytes(data[at + 1 : at + 17])
        (gno,) = struct.unpack_from("<Q", data, at + 17)
        if gno and raw not in self._sids:
            self._sids[raw] = sid_text(raw)
        self._begin(micros, (self._sids[raw], gno) if gno else None)

    def _on_tagged_gtid(self, data: bytes, at: int, stop: int) -> None:
        self._gtid_events = True
        source, gno, micros = parse_tagged(data, at, stop)
        self._begin(micros or self._time * 1_000_000, (source, gno))

    def _on_mariadb_gtid(self, data: bytes, at: int, stop: int) -> None:
        self._gtid_events = True
        sequence, domain, _, _ = parse_mariadb(data, at, stop)
        (server,) = struct.unpack_from("<I", data, at - 14)
        self._mariadb_gtid = domain, server, sequence
        self._begin(self._time * 1_000_000, None)

    def _on_query(self, data: bytes, at: int, stop: int) -> None:
        if self._gtid_events:
            self._see()
            return
        text = bytes(data[max(at, stop - 9) : stop])
        if not self._begin_seen:
            self._begin(self._time * 1_000_000, None)
            self._begin_seen = text.endswith(b"\0BEGIN")
        else:
            self._see()
            if text.endswith((b"\0COMMIT", b"\0ROLLBACK")):
                self._leave_group()

    def _on_xid(self, data: bytes, at: int, stop: int) -> None:
        self._see()
        if not self._gtid_events:
            self._leave_group()

    # -- the file -------------------------------------------------------------------------------------------------

    def _on_outside(self, data: bytes, at: int, stop: int) -> None:
        if self._start >= 0 and not self.over:
            self._see()
            self._leave_group()
            self._boundary(self._start)

    def _on_previous_gtids(self, data: bytes, at: int, stop: int) -> None:
        if self.gtids is None:
            self.gtids = GtidSet.unpack(data[at:stop])
        self._on_outside(data, at, stop)

    def _on_format(self, data: bytes, at: int, stop: int) -> None:
        super()._on_format(data, at, stop)
        self.begun = self.begun or self._time
        self._on_outside(data, at, stop)

    def _on_heartbeat(self, data: bytes, at: int, stop: int) -> None:
        """The server waits for something new: everything that there is was read."""
        if self.file == self.scanned and not self.over:
            self._end_of_file(self.end)
            self.idle = True

    def _on_rotate(self, data: bytes, at: int, stop: int) -> None:
        self._on_outside(data, at, stop)
        before, end = self.file, self.end
        super()._on_rotate(data, at, stop)
        if before == self.scanned != self.file and not self.over:
            if self._start < 0:  # the server ended without closing the file
                self._end_of_file(end)
            else:
                self.last = max(end, self._start + 19 + stop - at + (4 if self._crc else 0))
            self.left = True

    def _end_of_file(self, end: int) -> None:
        self.last = end
        if not self.in_group or self._gtid_events:  # a server shows whole groups only
            self._leave_group()
            self._boundary(end)

    # -- events in several packets --------------------------------------------------------------------------------

    def _unusual(self, data: bytes, at: int, status: int, head: int) -> tuple[int, bool]:
        if status == 0 and head == 0xFFFFFF:
            self._large = _Passed(self._crc, head - 1)
            return at + 5, True
        return super()._unusual(data, at, status, head)


class _Passed(LargeEvent):
    """An event of 16 MB and more: its bytes are checked and not kept."""

    def __init__(self, checksum: bool, left: int) -> None:
        super().__init__(False, None, checksum, left)
        self.file: IO[bytes] | None = None

    def add(self, part: bytes) -> None:
        super().add(part)
        self._parts.clear()

    def whole(self) -> bytes:
        return self.head


class Probe:
    """Short dumps of one source, one after the other, under a server id of their own.

    The id is another one than the destination's, because a server ends the older of two dumps with one id; and each
    probe's differs, so that commands and a running daemon do not end each other's. `dumps` counts them.
    """

    def __init__(self, source: SourceSettings) -> None:
        self._source = source
        self.server_id = (source.server_id ^ random.getrandbits(30)) & 0x3FFFFFFF | 0x80000000
        self.dumps = 0

    async def run(
        self, scan: BinlogScan, *, offset: int = 4, until: Callable[[], bool] | None = None, log: Any = None
    ) -> None:
        """Feeds `scan` from its file at `offset` until it is over, or `until` says so.

        Each answer has the limit connect_timeout, the whole has none: a file takes as long as it is large. Raises
        SourceError and its kinds, PositionLost and BinlogCorrupt among them.
        """
        limit = self._source.connect_timeout + 2 * _HEARTBEAT

        def over() -> bool:
            return scan.over

        connection = await SourceConnection.open(address_of(self._source))
        stream = None
        try:
            await connection.load_variables()
            scan.expect_checksums(connection.writes_checksums)
            await connection.register(self.server_id, _HEARTBEAT)
            self.dumps += 1
            # Without annotations MariaDB leaves events out, and with them the places between events.
            stream = await connection.dump(
                self.server_id, file=scan.scanned, offset=offset, gtids=None, buffer=_BUFFER, annotations=True
            )
            data = b""
            while not (over() or (until is not None and until())):
                data = await stream.read(data, scan.need, limit)
                at, more = 0, True
                while more and not over():
                    try:
                        at, more = scan.feed(data, at, over)
                    except HeadraceError:
                        if over():
                            return  # damage behind what was looked for
                        raise
                    await asyncio.sleep(0)  # others share the loop
                data = data[at:]
        finally:
            scan.close()
            if stream is not None:
                await stream.close()
            await connection.close()
            await asyncio.sleep(0)  # a transport gives its socket back in the loop's next round
