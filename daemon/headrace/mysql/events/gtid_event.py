"""GTID events of MySQL and MariaDB: the transaction that begins, and its commit time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.values.mariadb import uuid_text

Key = tuple[str, int]
"""Source (`uuid` or `uuid:tag`) and number of a transaction."""
_from_bytes = int.from_bytes
_GNO = struct.Struct("<Q").unpack_from
_MARIADB = struct.Struct("<QIB").unpack_from
_ALONE, _GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 1, 2, 0x40, 0x80
_FIELD_UUID, _FIELD_GNO, _FIELD_TAG, _FIELD_COMMIT_TIME = 1, 2, 3, 6


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number of MySQL's serialization library and where it ends: as many further bytes as the first has ones
    at its low end, the value above those ones, little endian."""
    first, size = data[at], 1
    while size < 9 and first >> (size - 1) & 1:
        size += 1
    raw = data[at : at + size]
    if len(raw) != size:
        raise ValueError("a number ends beyond its event")
    if size == 9:
        return int.from_bytes(raw[1:], "little"), at + 9
    return int.from_bytes(raw, "little") >> size, at + size


def parse_tagged(data: bytes, at: int, stop: int) -> tuple[str, int, int]:
    """Returns (source as `uuid:tag`, transaction number, commit time in us) of a GTID_TAGGED_LOG_EVENT: serialization
    version, size, last field that must be known, then fields by number, each only if it is not its default."""
    _, p = varint(data, at)
    size, p = varint(data, p)
    if size != stop - at:
        raise ValueError(f"a tagged GTID says it has {size} bytes and has {stop - at}")
    required, p = varint(data, p)
    if required > 11:
        raise ValueError(f"a tagged GTID needs field {required}, which is not known")
    sid, tag, gno, micros = "", "", 0, 0
    while p < stop:
        number, p = varint(data, p)
        if number == _FIELD_UUID:
            raw = bytearray()
            for _ in range(16):
                value, p = varint(data, p)
                raw.append(value)
            sid = uuid_text(bytes(raw))
        elif number == _FIELD_TAG:
            length, p = varint(data, p)
            tag, p = data[p : p + length].decode("ascii"), p + length
        else:
            value, p = varint(data, p)
            if number == _FIELD_GNO:
                gno = (value >> 1) ^ -(value & 1)  # signed numbers count 0, -1, 1, -2, ...
            elif number == _FIELD_COMMIT_TIME:
                micros = value
            elif number > 11:
                break  # fields of later servers; they come last
    if not sid or gno < 1 or p > stop:
        raise ValueError("a tagged GTID lacks its uuid or number")
    return (f"{sid}:{tag}" if tag else sid), gno, micros


class MariadbGtid(NamedTuple):
    """The content of MariaDB's GTID event. `xid` is `format:gtrid:bqual` in hex, "" without one."""

    domain: int
    server: int
    sequence: int
    alone: bool
    """Whether the group is a single statement, without a commit event."""
    prepared: bool
    """Whether the group ends in XA PREPARE."""
    xid: str

    def __str__(self) -> str:
        return f"{self.domain}-{self.server}-{self.sequence}"


def parse_mariadb(data: bytes, at: int, stop: int) -> MariadbGtid:
    """Reads the event whose body is data[at:stop]; its header is before it. Raises struct.error or ValueError."""
    if at + 13 > stop:
        raise ValueError("a GTID event is shorter than its parts")
    sequence, domain, flags = _MARIADB(data, at)
    (server,) = struct.unpack_from("<I", data, at - 14)
    xid = ""
    if flags & (_PREPARED_XA | _COMPLETED_XA):
        p = at + 13 + (8 if flags & _GROUP_COMMIT else 0)
        form, gtrid, bqual = struct.unpack_from("<iBB", data, p)
        raw = data[p + 6 : p + 6 + gtrid + bqual]
        if p + 6 + len(raw) > stop or len(raw) != gtrid + bqual:
            raise ValueError("an XA identifier ends beyond its event")
        xid = f"{form}:{raw[:gtrid].hex()}:{raw[gtrid:].hex()}"
    return MariadbGtid(domain, server, sequence, bool(flags & _ALONE), bool(flags & _PREPARED_XA), xid)


def group_of(kind: int, data: bytes, at: int, stop: int) -> tuple[int, str, Key | None, bool]:
    """Reads a GTID event: the commit time (microseconds since 1970 UTC), the GTID as text and as source and number, and
    whether the group is a single statement. Raises reading errors for invalid bytes."""
    cursor = EventCursor("", 0)
    (cursor.time,) = struct.unpack_from("<I", data, at - 19)
    if kind == ev.MARIADB_GTID:
        gtid = parse_mariadb(data, at, stop)
        return cursor.time * 1_000_000, str(gtid), None, gtid.alone
    found: list[tuple[int, str, Key | None]] = []
    reader = GtidReader(cursor, lambda *one: found.append(one))
    (reader.on_tagged_gtid if kind == ev.GTID_TAGGED else reader.on_gtid)(data, at, stop)
    return (*found[0], False)


class GtidReader:
    """Handlers of MySQL's GTID events: call `begin` with the commit time (microseconds since 1970 UTC), the GTID as
    text and as source and number; "" and None for an anonymous transaction."""

    def __init__(self, cursor: EventCursor, begin: Callable[[int, str, Key | None], None]) -> None:
        self._cursor, self._begin = cursor, begin
        self._sids: dict[bytes, str] = {}

    def on_gtid(self, data: bytes, at: int, stop: int) -> None:
        """Handles GTID and ANONYMOUS_GTID."""
        if stop - at >= 49:
            # The 55th bit means that the original commit time follows; the low bits are the immediate one.
            micros = _from_bytes(data[at + 42 : at + 49], "little") & 0x7FFFFFFFFFFFFF
        elif stop - at >= 25:
            micros = self._cursor.time * 1_000_000
        else:
            raise ValueError("a GTID event is shorter than its parts")
        (gno,) = _GNO(data, at + 17)
        if not gno:
            self._begin(micros, "", None)
            return
        raw = data[at + 1 : at + 17]
        sid = self._sids.get(raw)
        if sid is None:
            sid = self._sids[raw] = uuid_text(raw)
        self._begin(micros, f"{sid}:{gno}", (sid, gno))

    def on_tagged_gtid(self, data: bytes, at: int, stop: int) -> None:
        """Handles GTID_TAGGED, since MySQL 8.3."""
        source, gno, micros = parse_tagged(data, at, stop)
        self._begin(micros or self._cursor.time * 1_000_000, f"{source}:{gno}", (source, gno))
