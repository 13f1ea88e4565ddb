"""Searches binlogs over separate dumps: only where transactions begin and end, and when they were committed. Rows and
statements are skipped."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from headrace import runtime
from headrace.errors import HeadraceError
from headrace.model import POS_ROOM, POS_SHIFT
from headrace.mysql.archive.packets import OlderFiles
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.event_types import Does, handlers
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import GtidReader, Key, MariadbGtid, parse_mariadb
from headrace.mysql.events.splitter import EventSplitter, rotated_to
from headrace.mysql.wire.connection import SHORT_HEARTBEAT, short_dump
from headrace.mysql.wire.stream import Packets
from headrace.ports.source import ProgressCallback
from headrace.settings.destination import SourceSettings

SECOND = 10**6 << POS_SHIFT
"""The numbers of a second, which are more than the rows that a server writes in one."""
_MOST_NUMBERS = 2
"""Maximum of numbers that a byte of a group takes: a row takes two at most."""


def limit_after(second: int) -> int:
    """Returns what is above every `_pos` of transactions that were committed by then, in seconds since 1970."""
    return (second + 1) * SECOND


def above_all(last_pos: int, now: int) -> int:
    """Returns what no `_pos` so far is above, where `last_pos` is stored, and the source's clock is `now`, in seconds.
    Rows may have been published from beyond the stored position, and so with higher numbers; but the source has
    committed all of them by now. If numbers are ahead of its clock, a second of rows is as many as may wait."""
    return last_pos + SECOND if last_pos >= limit_after(now) else limit_after(now)


class BinlogScan:
    """The groups (transactions and single statements) of one file, from `offset` on to the file's end, or to `until`.

    A group begins with its GTID event; without those (MySQL before 5.7) with BEGIN or the statement itself. It ends
    where the next one, or an event that belongs to no group, begins. Each search implements `on_group`, `on_boundary`
    and `on_event`, and sets `done`.

    Readable between two calls of feed(): `done` (nothing more is wanted), `left` (the file was read to its end and
    another follows), `idle` (read to the end of the binlog, or to `until` once end() was called), `last` (offset after
    the last event of the file), `begun` (when the file was begun, in seconds since 1970; 0 before its first event),
    `gtids` (executed before the present group, None if the server does not say), `commit_time_us`, `key` and
    `mariadb_gtid` of the group."""

    def __init__(self, file: str, offset: int = 4) -> None:
        self.cursor = cursor = EventCursor(file, offset)
        self.done = self.left = self.idle = False
        self.until = 0
        """What begins at this offset of the file or after it is ignored; 0: no limit. Must be set before feed(): on a
        source that is written to continuously the binlog's end moves while it is read."""
        self.scanned = file
        self.last = offset
        self.begun = 0
        self.gtids: GtidSet | None = None
        self.in_group = False
        self.commit_time_us = 0
        self.key: Key | None = None
        """The GTID of the present group, which counts once the group has ended."""
        self.mariadb_gtid: MariadbGtid | None = None
        self._begin_seen = self._gtid_events = False
        self._from_begin, self._group, self._limit = offset == 4, 0, 0
        """Where the present group begins, and what is above every `_pos` of the groups before it."""
        self._wide = False
        """Whether the present group may have more rows than its bytes show."""
        gtids = GtidReader(cursor, self._begin_gtid)
        self._splitter = EventSplitter(
            cursor,
            handlers(
                lambda event: event.scan,
                {
                    Does.PASS: self._on_other,
                    Does.COMPRESSED: self._on_compressed,
                    Does.ROTATE: self._on_rotate,
                    Does.FORMAT: self._on_format,
                    Does.HEARTBEAT: self._on_heartbeat,
                    Does.GTID: gtids.on_gtid,
                    Does.TAGGED_GTID: gtids.on_tagged_gtid,
                    Does.MARIADB_GTID: self._on_mariadb_gtid,
                    Does.PREVIOUS_GTIDS: self._on_previous_gtids,
                    Does.QUERY: self._on_query,
                    Does.COMMIT: self._on_commit,
                    Does.OUTSIDE: self._on_outside,
                },
            ),
            other=self._on_other,
            keep_large=False,
        )
        self.feed, self.feed_from, self.close = self._splitter.feed, self._splitter.feed_from, self._splitter.close

    def over(self) -> bool:
        """Returns whether nothing is left to read."""
        return self.done or self.left or self.idle or self._reached()

    def _reached(self) -> bool:
        return 0 < self.until <= self.cursor.end and self.cursor.file == self.scanned

    def end(self) -> None:
        """Ends the input: if `until` was reached, the file ends there."""
        if self._reached() and not (self.done or self.left or self.idle):
            self._end_of_file(self.until)
            self.idle = True

    # -- for searches ---------------------------------------------------------------------------------------------

    def on_group(self, start: int) -> None:
        """Handles the begin of a group."""

    def on_boundary(self, start: int) -> None:
        """Handles a position where no group is open: reading may begin here. Called before `on_group`."""

    def on_event(self, start: int) -> None:
        """Handles the begin of an event of any kind in the file."""

    # -- groups ---------------------------------------------------------------------------------------------------

    def _on_other(self, data: bytes, at: int, stop: int) -> None:
        """Skips all events but those that begin or end groups, known or not."""
        if self.cursor.start >= 0:
            self._see()

    def _on_compressed(self, data: bytes, at: int, stop: int) -> None:
        self._wide = True
        self._on_other(data, at, stop)

    def _see(self) -> None:
        if not self.over():
            self.on_event(self.cursor.event_start)

    def _begin_gtid(self, commit_time_us: int, gtid: str, key: Key | None) -> None:
        self._gtid_events = True
        self._begin(commit_time_us, key)

    def _begin(self, commit_time_us: int, key: Key | None) -> None:
        if self.over():
            return
        self._see()
        self._leave_group()
        self.on_boundary(self.cursor.event_start)
        if self.done:
            return
        start = self.cursor.event_start
        self._limit = self.pos_limit(start)
        self.in_group, self._begin_seen, self._wide = True, False, False
        self.commit_time_us, self.key, self._group = commit_time_us, key, start
        self.on_group(start)

    def pos_limit(self, at: int) -> int:
        """Returns what is above every `_pos` of the groups that end at `at`, the present one's begin or its end, or
        before; 0 if that is not known, because the file was not read from its begin."""
        if not self._from_begin:
            return 0
        if not self._group:
            return limit_after(self.begun)
        if at == self._group:
            return self._limit
        numbers = SECOND if self._wide else _MOST_NUMBERS * (at - self._group)
        return max(self._limit, self.commit_time_us << POS_SHIFT) + POS_ROOM + numbers

    def _leave_group(self) -> None:
        self.in_group = self._begin_seen = False
        if self.key is not None:
            self.gtids = self.gtids or GtidSet()
            self.gtids.add(*self.key)
            self.key = None

    def _on_mariadb_gtid(self, data: bytes, at: int, stop: int) -> None:
        self.mariadb_gtid = parse_mariadb(data, at, stop)
        self._begin_gtid(self.cursor.time * 1_000_000, "", None)

    def _on_query(self, data: bytes, at: int, stop: int) -> None:
        # The rows of a prepared XA transaction are published with its end.
        self._wide |= data.find(b"\0XA COMMIT", at, stop) >= 0
        if self._gtid_events:
            self._see()
            return
        text = bytes(data[max(at, stop - 9) : stop])
        if not self._begin_seen:
            self._begin(self.cursor.time * 1_000_000, None)
            self._begin_seen = text.endswith(b"\0BEGIN")
        else:
            self._see()
            if text.endswith((b"\0COMMIT", b"\0ROLLBACK")):
                self._leave_group()

    def _on_commit(self, data: bytes, at: int, stop: int) -> None:
        self._see()
        if not self._gtid_events:
            self._leave_group()

    # -- the file -------------------------------------------------------------------------------------------------

    def _on_outside(self, data: bytes, at: int, stop: int) -> None:
        if self.cursor.start >= 0 and not self.over():
            self._see()
            self._leave_group()
            self.on_boundary(self.cursor.start)

    def _on_previous_gtids(self, data: bytes, at: int, stop: int) -> None:
        if self.gtids is None:
            self.gtids = GtidSet.unpack(data[at:stop])
        self._on_outside(data, at, stop)

    def _on_format(self, data: bytes, at: int, stop: int) -> None:
        self.begun = self.begun or self.cursor.time
        self._on_outside(data, at, stop)

    def _on_heartbeat(self, data: bytes, at: int, stop: int) -> None:
        """Handles a heartbeat: the server waits for new events, so all existing ones were read."""
        if self.cursor.file == self.scanned and not self.over():
            self._end_of_file(self.cursor.end)
            self.idle = True

    def _on_rotate(self, data: bytes, at: int, stop: int) -> None:
        """Handles ROTATE, before the cursor goes to the next file."""
        self._on_outside(data, at, stop)
        cursor, (file, _) = self.cursor, rotated_to(data, at, stop)
        if cursor.file == self.scanned != file and not self.over():
            if cursor.start < 0:  # the server ended without closing the file
                self._end_of_file(cursor.end)
            else:
                self.last = max(cursor.end, cursor.end_of(at, stop))
            self.left = True

    def _end_of_file(self, end: int) -> None:
        self.last = end
        if not self.in_group or self._gtid_events:  # a server shows whole groups only
            self._leave_group()
            self.on_boundary(end)


class Probe:
    """Short dumps of one source, one after the other, under a separate server id.

    The id differs from the destination's, because a server ends the older of two dumps with one id; and each probe's
    differs, so that commands and a running daemon do not end each other's."""

    def __init__(
        self, source: SourceSettings, on_progress: ProgressCallback = lambda *_: None, older: OlderFiles | None = None
    ) -> None:
        self._source, self._on_progress, self._older = source, on_progress, older
        self._server_id = (source.server_id ^ runtime.random().getrandbits(30)) & 0x3FFFFFFF | 0x80000000

    async def run(self, scan: BinlogScan, end: int = 0, *, stop: bool = False) -> None:
        """Feeds a new `scan` from where it begins until it is over. `end` is the maximum offset that it reads to, for
        the progress; 0: no progress. With `stop` it always ends there: more may be written to the newest file
        meanwhile.

        Each answer has the limit connect_timeout, the whole has none: the time depends on the file's size. Raises
        SourceError and its subclasses, PositionLost and BinlogCorrupt among them."""
        limit, begin = self._source.connect_timeout + 2 * SHORT_HEARTBEAT, scan.cursor.end
        scan.until = end if stop else 0
        with contextlib.closing(scan):
            async with self._dump(scan) as stream:
                data = b""
                while not scan.over():
                    try:
                        data = await scan.feed_from(stream, data, limit, scan.over)
                    except HeadraceError:
                        if scan.over():
                            break  # damage after what was searched for
                        raise
                    if end > begin and scan.cursor.file == scan.scanned:
                        self._on_progress(scan.scanned, max(0, min(scan.cursor.end, end) - begin), end - begin)
                scan.end()

    @contextlib.asynccontextmanager
    async def _dump(self, scan: BinlogScan) -> AsyncIterator[Packets]:
        """Yields a dump of what is scanned: from the archive if the source does not have it any more."""
        archived = self._older.dump(scan.scanned, scan.cursor.end) if self._older is not None else None
        if archived is not None:
            scan.cursor.checksums = archived.checksums
            try:
                yield archived
            finally:
                await archived.close()
            return
        # Without annotations MariaDB omits events, and with them the positions between events.
        dump = short_dump(self._source, self._server_id, scan.scanned, scan.cursor.end, annotations=True)
        async with dump as (stream, connection):
            scan.cursor.checksums = connection.writes_checksums
            yield stream
