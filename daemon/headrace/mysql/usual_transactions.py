"""Transactions that end and begin as others did, which small ones do: four events at once instead of one by one."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from zlib import crc32

from headrace.errors import NotUnderstood
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.cutter import BROKEN, SLICE_SECONDS, WHOLE_CRC, InSlices, UsualEvents, UsualFailed
from headrace.mysql.events.event_types import Handler
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.schema.follower import StatementFollower
from headrace.mysql.table_maps import TableMaps
from headrace.mysql.values.mariadb import uuid_text

_HEADER = struct.Struct("<IBIB4xIIH").unpack_from
"""Of a packet and its event: length and sequence, status, time, type, (server id), size, end position, flags."""
_HEAD = 24
"""Bytes of both."""
_LEAST, _LARGE = 19, 0xFFFFFE
"""Bytes of an event at least, and those from which on it has several packets."""
_XID, _LEAST_GTID, _LEAST_MAP = 31, 19 + 49 + 4, 19 + 8 + 4
"""Bytes of an XID event; of a GTID event that has a commit time, and of a TABLE_MAP, at least."""
_LARGEST = 4096
"""Bytes of a seam, above which comparing it takes as long as reading it."""
_GTID_AT = 5 + _XID
_KINDS = frozenset((ev.XID, gtid, ev.QUERY, ev.TABLE_MAP) for gtid in (ev.GTID, ev.ANONYMOUS_GTID))
_BEGIN = b"\0BEGIN"
"""What the statement ends with; nothing else of it is looked at by anybody."""
_COMMIT_TIME = 0x7FFFFFFFFFFFFF
"""The bit above these says that the original commit time follows."""
_MOST_SHAPES, _MOST_SEAMS = 200, 2_000
"""That are remembered: by the sizes of their events, and one a table."""
_FEW, _ASKS = 8, 16
"""Rows events and seams, for transactions may have no rows, after which it is asked whether to stop: between two
transactions, and within one."""
_from_bytes = int.from_bytes
_Sizes = tuple[int, int, int, int]


class _Shape:
    """XID, GTID, BEGIN and TABLE_MAP of such sizes, as they stand between the rows of two transactions: the *seam*."""

    __slots__ = ("begin", "checksums", "hint", "mask", "places", "seams", "size", "sizes", "unpack")

    def __init__(self, sizes: _Sizes) -> None:
        self.sizes, self.places = sizes, _places(sizes)
        self.size = sum(sizes) + 5 * len(sizes)
        self.begin = self.places[2]
        self.hint = tuple((size + 1) & 0xFF for size in sizes[1:])
        """The lowest bytes of the lengths of its packets, without the first one's."""
        _, gtid, begin, table = (place + _HEAD for place in self.places)
        kept = bytearray(self.size)
        for at in self.places:
            for first, count in ((0, 3), (4, 1), (9, 1), (14, 4), (22, 2)):  # lengths, status, type, flags
                kept[at + first : at + first + count] = b"\xff" * count
        for first, end in ((gtid + 1, gtid + 17), (table - _HEAD - 10, table - _HEAD - 4), (table + 6, self.size - 4)):
            kept[first:end] = b"\xff" * (end - first)  # the source, the end of BEGIN, the table
        self.mask = _from_bytes(kept, "little")
        """Of what is the same for all transactions of one table."""
        self.unpack = struct.Struct(
            f"<{gtid - 6}xI2x17xQ16xQ{begin - 14 - gtid - 49}xI4xI2xI{table - 6 - begin - 4}xI2x6s"
        ).unpack_from
        """Where GTID ends; number and commit time (from the second byte on) of the transaction; the server, where BEGIN
        ends, and the session; where TABLE_MAP ends, and the table's number."""
        self.checksums: list[int | None] = [None] * 256
        """By the sequence number of the first packet, the CRC32 of all four: an event's own CRC32 behind it makes the
        sum of both a constant, whatever the event, so that only what stands between events tells in the sum of all.
        Damage of one event is seen as by its own CRC32; that of two together is missed once in 2 ** 32 times."""
        self.seams: dict[int, tuple[str, bytes]] = {}
        """By what the mask leaves: the source of the transaction, and the TABLE_MAP without the table's number."""


class UsualTransactions(UsualEvents):
    """Reads rows, and the seam to the next transaction where that begins with GTID, BEGIN and TABLE_MAP. Whatever is in
    any way not as it usually is stays for the cutter, which reads it event by event and knows what is wrong with it.

    A seam is looked up by what is the same in all of one table, so that only what differs from transaction to
    transaction is looked at. `rows` are the handlers of rows events. `origins`: who executed a transaction is noted.
    `full`: whether reading is to stop.
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
        self._shapes: dict[_Sizes, _Shape] = {}
        self._shape = _Shape((_XID, _LEAST_GTID, _HEAD, _LEAST_MAP))
        """That of the last seam."""
        self._hints: dict[tuple[int, ...], _Shape] = {}
        """The last shape with a hint."""
        self._seams = 0

    def ready(self) -> bool:
        transactions = self._transactions
        usual = transactions.plain and not transactions.marked
        return self._cursor.checksums and usual and self._statements.text is None

    def run(self, data: bytes, at: int, *, eager: bool) -> tuple[int, int, int, bool]:
        cursor, transactions, maps, rows = self._cursor, self._transactions, self._maps, self._rows
        size, high, view, full, origins = len(data), cursor.high, memoryview(data), self._full, self._origins
        if eager or not transactions.inside:
            return at, 0, 0, True
        deadline, events, turns, shape = time.monotonic() + SLICE_SECONDS, 0, 0, self._shape
        last, sid, table_map = -1, "", b""
        while size - at >= _HEAD:
            head, status, when, kind, length, log_pos, _ = _HEADER(data, at)
            start = high + log_pos - length
            handler = rows.get(kind)
            if handler is not None:
                end = at + 5 + length
                if head & 0xFFFFFF != length + 1 or status or end > size or start != cursor.end:
                    break
                if not _LEAST <= length < _LARGE:
                    break
                if crc32(view[at + 5 : end]) != WHOLE_CRC:
                    break
                cursor.start, cursor.time, cursor.length = start, when, length
                try:
                    handler(data, at + _HEAD, end - 4)
                except InSlices:
                    break
                except (NotUnderstood, *BROKEN) as error:
                    raise UsualFailed(at, events, error) from None
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
            if size - at > _LARGEST and data[at + shape.begin] != shape.hint[1]:
                # INSERT, UPDATE and DELETE of one table in turn have a BEGIN of another size each.
                begin = at + _GTID_AT + 4 + data[at + _GTID_AT]
                hint = data[at + _GTID_AT], data[begin], data[begin + 4 + data[begin]]
                shape = self._shape = self._hints.get(hint, shape)
            raw = data[at : at + shape.size]
            constant = _from_bytes(raw, "little") & shape.mask
            if constant != last:  # which is quicker than a look into the dictionary
                if constant not in shape.seams:
                    if not self._learn(data, at):
                        break
                    shape = self._shape
                    raw = data[at : at + shape.size]
                    constant = _from_bytes(raw, "little") & shape.mask
                last, (sid, table_map) = constant, shape.seams[constant]
            if len(raw) != shape.size:
                break
            wanted, found = shape.checksums[raw[3]], crc32(raw)
            if found != wanted:
                if wanted is not None or not _sound(raw, shape):
                    break
                shape.checksums[raw[3]] = found
            first, gno, micros, server, second, thread, end, number = shape.unpack(raw)
            _, of_gtid, of_begin, of_map = shape.sizes
            if log_pos + of_gtid != first or first + of_begin != second or second + of_map != end:
                break
            if not maps.again(table_map, number):
                break
            cursor.end = end = high + end
            cursor.start = end - of_map
            transactions.follow(
                high + log_pos,
                (micros >> 8) & _COMMIT_TIME,
                f"{sid}:{gno}" if gno else "",
                (sid, gno) if gno else None,
            )
            if origins:
                transactions.server_id, transactions.thread_id = server, thread
            at, events, turns = at + shape.size, events + 4, turns + 1
        return at, events, 0, True

    def _learn(self, data: bytes, at: int) -> bool:
        """Looks at a seam that is not known in the shape of the last one, and makes its own that of the last one.
        Whether it is a whole one, and usual."""
        sizes, end = [0, 0, 0, 0], at
        for i in range(4):
            sizes[i] = _from_bytes(data[end : end + 3], "little") - 1
            end += 5 + sizes[i]
        xid, gtid, begin, table = key = sizes[0], sizes[1], sizes[2], sizes[3]
        if xid != _XID or gtid < _LEAST_GTID or begin < _HEAD or table < _LEAST_MAP or end - at > _LARGEST:
            return False
        raw = data[at:end]
        if len(raw) != end - at:
            return False
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._forget()
            shape = self._shapes[key] = _Shape(key)
        constant = _from_bytes(raw, "little") & shape.mask
        if constant not in shape.seams:
            _, gtid_at, begin_at, table_at = shape.places
            kinds = raw[9], raw[gtid_at + 9], raw[begin_at + 9], raw[table_at + 9]
            if kinds not in _KINDS or raw[table_at - 10 : table_at - 4] != _BEGIN or not _sound(raw, shape):
                return False
            if self._seams >= _MOST_SEAMS:
                self._forget()
                self._shapes[key] = shape
            self._seams += 1
            source = uuid_text(raw[gtid_at + _HEAD + 1 : gtid_at + _HEAD + 17])
            shape.seams[constant] = source, raw[table_at + _HEAD + 6 : -4]
        self._shape = self._hints[shape.hint] = shape
        return True

    def _forget(self) -> None:
        for shape in self._shapes.values():
            shape.seams.clear()
        self._shapes.clear()
        self._hints.clear()
        self._seams = 0


def _places(sizes: _Sizes) -> tuple[int, int, int, int]:
    """Where packets with events of these sizes begin that follow each other."""
    second = sizes[0] + 5
    third = second + sizes[1] + 5
    return 0, second, third, third + sizes[2] + 5


def _sound(raw: bytes, shape: _Shape) -> bool:
    """Whether these are four events of their sizes, each with the CRC32 that it has."""
    for at, size in zip(shape.places, shape.sizes, strict=True):
        if raw[at + 4] or _from_bytes(raw[at + 14 : at + 18], "little") != size:
            return False
        if crc32(raw[at + 5 : at + 5 + size]) != WHOLE_CRC:
            return False
    return True
