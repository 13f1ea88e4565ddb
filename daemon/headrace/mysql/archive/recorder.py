"""Turns the packets of a dump into the bytes of binlog files, and notes what is in them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn
from zlib import crc32

from headrace.errors import ArchiveError, SourceEnded, WrongChecksum
from headrace.mysql.archive.index import Segment
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import group_of
from headrace.mysql.events.splitter import BROKEN, WHOLE_CRC, format_of, rotated_to
from headrace.mysql.events.table_map import table_name
from headrace.mysql.values.mariadb import uuid_text
from headrace.mysql.wire.binlog_file import MAGIC
from headrace.mysql.wire.dump_errors import dump_error

FRAME = 1 << 20
"""Bytes of a file after which a frame ends, at the next event."""
_HEADER = struct.Struct("<IB4xIIH")
"""An event's time, type, (server id), size, end position and flags."""
_SEMI_SYNC, _EXTRA = b"\xef", 2
"""What each event has before it in a semi-synchronous dump: this byte, and one that requests an acknowledgement."""
_LARGE = 0xFFFFFF
_MOST_TABLES = 1_000
"""Tables of a segment that are listed."""
_CLOSING = frozenset({ev.STOP, ev.ROTATE})
_NOTED = (
    ev.GTIDS
    | ev.STATEMENTS
    | {ev.TABLE_MAP, ev.FORMAT_DESCRIPTION, ev.PREVIOUS_GTIDS, ev.GTID_LIST, ev.TRANSACTION_PAYLOAD}
)


@dataclass(slots=True)
class Facts:
    """What is in a part of a file; see Segment."""

    first_us: int = 0
    last_us: int = 0
    gtids: GtidSet = field(default_factory=GtidSet)
    domains: dict[int, str] = field(default_factory=dict)
    """MariaDB: the last GTID of each domain."""
    tables: set[tuple[str, str]] | None = field(default_factory=set)
    last_event: int = 0

    @property
    def gtid_text(self) -> str:
        """Returns the GTIDs as Segment has them."""
        return ",".join(self.domains.values()) or str(self.gtids)

    def note_run(self, run: tuple[int, int, Any, Any, Any, bool], last_event: int) -> None:
        """Adds what native code has found in several events."""
        first_us, last_us, gtids, domains, tables, compressed = run
        self.first_us = self.first_us or first_us
        self.last_us = max(self.last_us, last_us)
        for source, first, last in gtids:
            self.gtids.add_range(uuid_text(source), first, last)
        for domain, server, number in domains:
            self.domains[domain] = f"{domain}-{server}-{number}"
        for name in tables:
            self.note_table(*name)
        if compressed:
            self.tables = None
        self.last_event = last_event

    def note_segment(self, segment: Segment) -> None:
        """Adds those of a part that is archived."""
        self.first_us = self.first_us or segment.first_us
        self.last_us = max(self.last_us, segment.last_us)
        if ":" in segment.gtids:
            self.gtids = self.gtids.plus(GtidSet(segment.gtids))
        else:
            self.domains |= {int(one.partition("-")[0]): one for one in segment.gtids.split(",") if one}
        for name in segment.tables or ():
            self.note_table(*name.split(".", 1))
        if segment.tables is None:
            self.tables = None
        self.last_event = segment.last_event

    def note_table(self, schema: str, table: str) -> None:
        """Adds a table."""
        if self.tables is not None:
            self.tables.add((schema, table))
            if len(self.tables) > _MOST_TABLES:
                self.tables = None


class Recorder:
    """Reads a dump that begins at `file`:`offset`. `begun` and `gtids` are those of BinlogFile, known once the first
    events of a file were read. `ended` is the name of the file that follows, once the present one has ended: then
    nothing more is read until begin(). `source` names the server in errors. What comes before the offset `skip_to` of
    the first file is read and dropped. `native` is native code, which reads most events, or None.
    `semi_sync`: we have asked for a semi-synchronous dump; then `acknowledge` is the end of the last event that has
    requested it, 0 for none. Without `keep` take() gives no bytes. `share`: what was read is in `shared` too, until the
    caller clears that."""

    def __init__(
        self,
        file: str,
        offset: int,
        *,
        checksums: bool,
        source: str,
        skip_to: int = 0,
        native: Any = None,
        semi_sync: bool = False,
        keep: bool = True,
        share: bool = False,
    ) -> None:
        self.acknowledge, self._keep, self._share = 0, keep, share
        self.shared: list[bytes] = []
        self.form = b""
        """The last FORMAT_DESCRIPTION event."""
        self._extra: int | None = None if semi_sync else 0
        """Bytes before each event; None until the first one shows it."""
        self._source, self._checksums, self._skip_to, self._native = source, checksums, skip_to, native
        self.file, self.end = file, offset
        """Where the last event that was read ends."""
        self.begun, self.gtids, self.ended = 0, "", ""
        self.need = 4
        """Minimum size of the next packet."""
        self.waiting = 0
        """Bytes that nobody has taken."""
        self._facts = Facts()
        self._pieces: list[bytes] = []
        self._frames: list[bytes] = []
        self._framed = 0
        self._seen: dict[bytes, tuple[str, str]] = {}
        """Tables by the begin of their TABLE_MAP events."""
        self._left = self._crc = 0
        """Bytes of an event of 16 MB and more that follow, and the CRC32 of those before."""
        self._more = False
        """Whether the next packet belongs to such an event."""
        self.closed = False
        """Whether the last event that was read closes the file: ROTATE or STOP."""
        self.begin(file, offset)

    def begin(self, file: str, offset: int = 4) -> None:
        """Begins a file; if at 4, its first four bytes are added, which no dump has."""
        self.file, self.end, self.ended = file, offset, ""
        if offset == 4:
            self.begun, self.gtids, self._pieces, self._framed = 0, "", [MAGIC], len(MAGIC)

    @property
    def semi_sync(self) -> bool:
        """Returns whether the server counts us as a semi-synchronous replica."""
        return bool(self._extra)

    @property
    def whole(self) -> bool:
        """Returns whether no event is read in part."""
        return not self._more

    def take(self) -> tuple[list[bytes], Facts]:
        """Returns what was read since the last call, in frames. Only while `whole`."""
        self._end_frame()
        frames, facts = self._frames, self._facts
        self._frames, self._facts, self.waiting = [], Facts(last_event=facts.last_event), 0
        return frames, facts

    def feed(self, data: bytes, at: int = 0) -> int:
        """Reads whole packets from `at` on; returns where it stopped: at the end of the data, or where the file ended.

        Raises WrongChecksum, SourceEnded and what else the server sends instead of an event; ArchiveError for bytes
        that do not continue the file."""
        size, view = len(data), memoryview(data)
        while not self.ended:
            if self._more:
                after = self._continue(data, view, at)
                if after < 0:
                    return at
                at = after
                continue
            if size - at < 5:
                self.need = 5
                return at
            if self._native is not None and not self._skip_to and (after := self._read_many(self._native, data, at)):
                at = after
                continue
            head = int.from_bytes(data[at : at + 3], "little")
            if size - at < 4 + head:
                self.need = 4 + head
                return at
            self._read_packet(data, view, at, head)
            at += 4 + head
        return at

    def _read_many(self, native: Any, data: bytes, at: int) -> int:
        """Reads packets with native code; returns where it stopped, 0 if the first one must be read here."""
        most = max(1, FRAME - self._framed)
        raw, places, facts = native.archive_record(data, at, self.end, self._checksums, self._extra or 0, most)
        after, _, last_event, acknowledge = places
        if after == at:
            return 0
        self._facts.note_run(facts, last_event)
        self.acknowledge = acknowledge or self.acknowledge
        self.closed = False
        self._add(raw)
        return int(after)

    def _read_packet(self, data: bytes, view: memoryview, at: int, head: int) -> None:
        """Reads the packet at `at`, whose payload has `head` bytes."""
        if self._extra is None:  # the first one shows whether the server knows semi-synchronous replicas
            self._extra = _EXTRA if data[at + 5 : at + 6] == _SEMI_SYNC else 0
        extra = self._extra
        if data[at + 4] or head < _HEADER.size + 1 + extra:
            self._refuse(data[at + 4 : at + 4 + head])
        begin, end = at + 5 + extra, at + 4 + head
        when, kind, length, log_pos, flags = _HEADER.unpack_from(data, begin)
        body = begin + _HEADER.size
        stop = end - 4 if self._checksums or kind == ev.FORMAT_DESCRIPTION else end
        if kind == ev.FORMAT_DESCRIPTION:
            self.form = data[begin:end]
        if kind in ev.HEARTBEATS or (not log_pos and (kind in ev.MADE_UP or flags & ev.ARTIFICIAL_FLAG)):
            self._made_up(kind, data, body, stop)
            return
        if head == _LARGE:
            self._left, self._more, self._crc = length - (end - begin), True, crc32(view[begin:end])
        else:
            if length != end - begin:
                self._misfit(f"an event says it has {length} bytes, its packet {end - begin}")
            if self._checksums and kind != ev.FORMAT_DESCRIPTION and crc32(view[begin:end]) != WHOLE_CRC:
                raise self._corrupt(kind)
        after = self.end + length
        if log_pos and (after - log_pos) & 0xFFFFFFFF:
            self._misfit(f"an event ends at {log_pos} by its header, and at {after} by the bytes before it")
        if kind in _NOTED:
            try:
                self._note(kind, when, data, body, stop)
            except BROKEN as error:
                self._misfit(f"an event of type {kind} can't be read ({error})")
        self._facts.last_event = self.end
        self.closed = kind in _CLOSING
        if extra and data[at + 6]:
            self.acknowledge = after
        self._add(data[begin:end])
        if self._skip_to:
            self._skip()

    def _add(self, piece: bytes) -> None:
        if self._keep:
            self._pieces.append(piece)
        if self._share:
            self.shared.append(piece)
        self.end += len(piece)
        self.waiting += len(piece)
        self._framed += len(piece)
        if self._framed >= FRAME and not self._more:
            self._end_frame()

    def _skip(self) -> None:
        """Drops what was read before the offset to skip to."""
        if self.end <= self._skip_to and not self._more:
            self.take()
        if self.end >= self._skip_to:
            self._skip_to = 0

    def _end_frame(self) -> None:
        if self._pieces:
            self._frames.append(b"".join(self._pieces))
        self._pieces, self._framed = [], 0

    def _continue(self, data: bytes, view: memoryview, at: int) -> int:
        """Reads the next packet of an event of several; returns where it ends, -1 if not all of it is here."""
        if len(data) - at < 4:
            self.need = 4
            return -1
        head = int.from_bytes(data[at : at + 3], "little")
        end = at + 4 + head
        if len(data) < end:
            self.need = 4 + head
            return -1
        self._left -= head
        self._crc = crc32(view[at + 4 : end], self._crc)
        self._more = head == _LARGE
        if self._left < 0 or (self._left and not self._more):
            self._misfit("an event has another length than its header says")
        if not self._more and self._checksums and self._crc != WHOLE_CRC:
            raise self._corrupt(0)
        self._add(data[at + 4 : end])
        return end

    def _made_up(self, kind: int, data: bytes, at: int, stop: int) -> None:
        """Reads an event that was made for the dump."""
        try:
            if kind == ev.FORMAT_DESCRIPTION:
                self._checksums = format_of(data, at, stop)[1] == 1
            file, offset = rotated_to(data, at, stop) if kind == ev.ROTATE else (self.file, self.end)
        except BROKEN as error:
            self._misfit(f"an event of type {kind} that the server made can't be read ({error})")
        if kind == ev.ROTATE:
            if file != self.file:
                self.ended = file
            elif offset != max(4, self.end) and self.end > 4:
                self._misfit(f"the dump begins at {file}:{offset}")

    def _note(self, kind: int, when: int, data: bytes, at: int, stop: int) -> None:
        facts = self._facts
        if kind == ev.TABLE_MAP:
            name = data[at + 6 : at + 140]
            known = self._seen.get(name)
            if known is None:
                if len(self._seen) > _MOST_TABLES:
                    self._seen.clear()
                known = self._seen[name] = table_name(data[at + 6 : stop])[:2]
            facts.note_table(*known)
        elif kind in ev.GTIDS:
            micros, gtid, key, _ = group_of(kind, data, at, stop)
            facts.first_us = facts.first_us or micros
            facts.last_us = max(facts.last_us, micros)
            if key is not None:
                facts.gtids.add(*key)
            elif gtid:
                facts.domains[int(gtid.partition("-")[0])] = gtid
        elif kind in ev.STATEMENTS:
            facts.first_us = facts.first_us or when * 1_000_000  # without GTID events this begins a transaction
            facts.last_us = max(facts.last_us, when * 1_000_000)
        elif kind == ev.FORMAT_DESCRIPTION:
            self.begun = when
            self._checksums = format_of(data, at, stop)[1] == 1
        elif kind == ev.PREVIOUS_GTIDS:
            self.gtids = str(GtidSet.unpack(data[at:stop]))
        elif kind == ev.GTID_LIST:
            self.gtids = _gtid_list(data, at)
        elif kind == ev.TRANSACTION_PAYLOAD:
            facts.tables = None

    def _refuse(self, payload: bytes) -> NoReturn:
        """Raises for a packet that is no event."""
        place = f"{self.file}:{self.end}"
        if payload[:1] == b"\xff":
            raise dump_error(payload, place, self._source)
        if payload[:1] == b"\xfe":
            raise SourceEnded(f"{self._source} ended the binlog dump after {place}")
        self._misfit(f"a packet of {len(payload)} bytes is no event")

    def _misfit(self, what: str) -> NoReturn:
        raise ArchiveError(
            f"the binlog of {self._source} can't be archived from {self.file}:{self.end} on: {what}",
            remedy="an encrypted binlog of MariaDB can't be archived; otherwise report it",
        )

    def _corrupt(self, kind: int) -> WrongChecksum:
        return WrongChecksum(
            f"at {self.file}:{self.end}: the CRC32 of an event of type {kind} is wrong, and it is not archived",
            remedy="check the binlog with mysqlbinlog --verify-binlog-checksum, on the source and on a replica",
        )


def _gtid_list(data: bytes, at: int) -> str:
    """Returns the GTIDs of MariaDB's GTID_LIST event: a count, then domain, server and sequence number of each."""
    (count,) = struct.unpack_from("<I", data, at)
    found = (struct.unpack_from("<IIQ", data, at + 4 + 16 * i) for i in range(count & 0x0FFFFFFF))
    return ",".join(f"{domain}-{server}-{number}" for domain, server, number in found)
