"""Transactions that end and begin as others did, which small ones do: four events at once instead of one by one."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from zlib import crc32

from headrace.errors import NotUnderstood
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.cutter import BROKEN, SLICE_SECONDS, WHOLE_CRC, UsualEvents, UsualFailed
from headrace.mysql.events.event_types import Handler
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.schema.follower import StatementFollower
from headrace.mysql.table_maps import TableMaps
from headrace.mysql.values.mariadb import uuid_text

_HEADER = struct.Struct("<IBIB4xIIH").unpack_from
"""Of a packet and its event: length and sequence, status, time, type, (server id), size, end position, flags."""
_HEAD = 24
"""Bytes of both."""
_END = 36
"""Bytes of the packet of an XID event."""
_COMMIT_TIME = 0x7FFFFFFFFFFFFF
"""The bit above these says that the original commit time follows."""
_MOST = 200
"""Seams that are remembered: one a table, and kind of session that writes to it."""
_FEW, _ASKS = 4, 16
"""Rows events after which it is asked whether to stop: between two transactions, and within one."""
_from_bytes = int.from_bytes
_Sizes = tuple[int, int, int, int]


class _Seam:
    """XID, GTID, BEGIN and TABLE_MAP, as they stand between the rows of two transactions and of others like them."""

    __slots__ = ("body", "checksums", "constant", "mask", "sid", "size", "sizes", "unpack")

    def __init__(self, raw: bytes, sizes: _Sizes) -> None:
        """`raw` are the four packets, `sizes` those of their events."""
        self.size, self.sizes = len(raw), sizes
        places = _places(sizes)
        varies = bytearray(b"\xff" * len(raw))
        for at, size in zip(places, sizes, strict=True):
            for first, count in ((3, 1), (5, 4), (10, 4), (18, 4), (1 + size, 4)):
                varies[at + first : at + first + count] = bytes(count)  # sequence, time, server, position, CRC32
        _, gtid, begin, table = (place + _HEAD for place in places)
        varies[_HEAD : _HEAD + 8] = bytes(8)  # the number of the transaction in the engines
        varies[gtid] = 0
        varies[gtid + 17 : begin - _HEAD - 4] = bytes(begin - _HEAD - 4 - gtid - 17)
        varies[begin : begin + 8] = bytes(8)  # the session, and seconds that the statement took
        varies[table : table + 6] = bytes(6)  # the table's number
        self.mask = _from_bytes(varies, "little")
        self.constant = _from_bytes(raw, "little") & self.mask
        self.unpack = struct.Struct(
            f"<{gtid - 6}xI2x17xQ16xQ{begin - 14 - gtid - 49}xI4xI2xI{table - 6 - begin - 4}xI2x6s"
        ).unpack_from
        """Where GTID ends; number and commit time (from the second byte on) of the transaction; the server, where BEGIN
        ends, and the session; where TABLE_MAP ends, and the table's number."""
        self.sid = uuid_text(raw[gtid + 1 : gtid + 17])
        self.body = raw[table + 6 : -4]
        """Of the TABLE_MAP, without the number."""
        self.checksums: list[int | None] = [None] * 256
        """By the sequence number of the first packet, the CRC32 of all four: an event's own CRC32 behind it makes the
        sum of both a constant, whatever the event, so that only what stands between events tells in the sum of all."""


class UsualTransactions(UsualEvents):
    """Reads rows, and the seam to the next transaction where that begins with GTID, BEGIN and TABLE_MAP. Whatever is in
    any way not as it usually is stays for the cutter, which reads it event by event and knows what is wrong with it.

    A seam is compared with one that was read before, as a number under a mask, so that only what differs from
    transaction to transaction is looked at. `rows` are the handlers of rows events. `origins`: who executed a
    transaction is noted. `full`: whether reading is to stop.
    """

    def __init__(
        self,
        cursor: EventCursor,
        transactions: Transactions,
        statements: StatementFollower,
        maps: TableMaps,
        rows: Mapping[int, Handler],
        *,
        origins: bool,
        full: Callable[[], bool],
    ) -> None:
        self._cursor, self._transactions, self._statements, self._maps = cursor, transactions, statements, maps
        self._rows, self._origins, self._full = rows, origins, full
        self._seams: dict[_Sizes, _Seam] = {}
        self._last: _Seam | None = None

    def ready(self) -> bool:
        return self._cursor.checksums and self._transactions.plain and self._statements.text is None

    def run(self, data: bytes, at: int, *, eager: bool) -> tuple[int, int, int, bool]:
        cursor, transactions, maps, rows = self._cursor, self._transactions, self._maps, self._rows
        size, high, view, full, origins = len(data), cursor.high, memoryview(data), self._full, self._origins
        if eager or not transactions.inside:
            return at, 0, 0, True
        deadline, events, turns, seam = time.monotonic() + SLICE_SECONDS, 0, 0, self._last
        while size - at >= _HEAD:
            head, status, when, kind, length, log_pos, _ = _HEADER(data, at)
            start = high + log_pos - length
            handler = rows.get(kind)
            if handler is not None:
                end = at + 5 + length
                if head & 0xFFFFFF != length + 1 or status or end > size or start != cursor.end or length >= 0xFFFFFE:
                    break
                if crc32(view[at + 5 : end]) != WHOLE_CRC:
                    break
                cursor.start, cursor.time = start, when
                try:
                    handler(data, at + _HEAD, end - 4)
                except (NotUnderstood, *BROKEN) as error:
                    raise UsualFailed(at, events, error) from error
                cursor.end = start + length
                at, events, turns = end, events + 1, turns + 1
                if turns >= _ASKS:  # of one transaction
                    turns = 0
                    if full() or time.monotonic() > deadline:
                        return at, events, 0, False
                continue
            if kind != ev.XID or start != cursor.end:
                break
            if turns >= _FEW:
                turns = 0
                if full() or time.monotonic() > deadline:
                    break  # the cutter stops between two transactions
            raw = data[at : at + seam.size] if seam is not None else b""
            if seam is None or _from_bytes(raw, "little") & seam.mask != seam.constant:
                seam = self._seam(data, at)
                if seam is None:
                    break
                raw = data[at : at + seam.size]
            if len(raw) != seam.size:
                break
            wanted, found = seam.checksums[raw[3]], crc32(raw)
            if found != wanted:
                if wanted is not None or not _sound(raw, seam.sizes):
                    break
                seam.checksums[raw[3]] = found
            first, gno, micros, server, second, thread, end, number = seam.unpack(raw)
            _, of_gtid, of_begin, of_map = seam.sizes
            if log_pos + of_gtid != first or first + of_begin != second or second + of_map != end:
                break
            if not maps.again(seam.body, number):
                break
            cursor.end = end = high + end
            cursor.start = end - of_map
            sid = seam.sid
            transactions.follow(
                high + log_pos,
                (micros >> 8) & _COMMIT_TIME,
                f"{sid}:{gno}" if gno else "",
                (sid, gno) if gno else None,
            )
            if origins:
                transactions.server_id, transactions.thread_id = server, thread
            at, events = at + seam.size, events + 4
        self._last = seam
        return at, events, 0, True

    def _seam(self, data: bytes, at: int) -> _Seam | None:
        """The seam that begins here, as one like it was read before, or else as it stands here; None when it is none,
        or not all of it is there."""
        sizes, next_at = [0, 0, 0, 0], at
        for i in range(4):
            sizes[i] = _from_bytes(data[next_at : next_at + 3], "little") - 1
            next_at += 5 + sizes[i]
        known = self._seams.get(key := (sizes[0], sizes[1], sizes[2], sizes[3]))
        raw = data[at:next_at]
        if len(raw) < next_at - at:
            return None
        if known is not None and _from_bytes(raw, "little") & known.mask == known.constant:
            return known
        if sizes[0] != _END - 5 or sizes[1] < 19 + 49 + 4 or sizes[3] < 19 + 8 + 4 or not _sound(raw, key):
            return None
        _, gtid, begin, table = _places(key)
        kinds = raw[gtid + 9], raw[begin + 9], raw[table + 9]
        if kinds not in _KINDS or raw[table - 10 : table - 4] != b"\0BEGIN":
            return None
        if len(self._seams) >= _MOST:
            self._seams.clear()
        made = self._seams[key] = _Seam(raw, key)
        return made


_KINDS = {(gtid, ev.QUERY, ev.TABLE_MAP) for gtid in (ev.GTID, ev.ANONYMOUS_GTID)}


def _places(sizes: _Sizes) -> tuple[int, int, int, int]:
    """Where packets with events of these sizes begin that follow each other."""
    second = sizes[0] + 5
    third = second + sizes[1] + 5
    return 0, second, third, third + sizes[2] + 5


def _sound(raw: bytes, sizes: _Sizes) -> bool:
    """Whether these are four events of their sizes, each with the CRC32 that it has."""
    for at, size in zip(_places(sizes), sizes, strict=True):
        if size < 23 or raw[at + 4] or _from_bytes(raw[at + 14 : at + 18], "little") != size:
            return False
        if crc32(raw[at + 5 : at + 5 + size]) != WHOLE_CRC:
            return False
    return True
