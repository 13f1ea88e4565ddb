"""GTID events of MySQL and MariaDB: which transaction begins, and when it was committed."""

from __future__ import annotations

import struct

_GNO = struct.Struct("<Q").unpack_from
_MARIADB = struct.Struct("<QIB").unpack_from
_GROUP_COMMIT, _PREPARED_XA, _COMPLETED_XA = 2, 0x40, 0x80
_FIELD_UUID, _FIELD_GNO, _FIELD_TAG, _FIELD_COMMIT_TIME = 1, 2, 3, 6


def sid_text(raw: bytes) -> str:
    """A server uuid of 16 bytes as MySQL prints it."""
    h = raw.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of MySQL's serialization library and where it ends: as many further bytes as the first has ones at
    its low end, the value above those ones, little endian."""
    first, size = data[at], 1
    while size < 9 and first >> (size - 1) & 1:
        size += 1
    raw = data[at : at + size]
    if len(raw) != size:
        raise ValueError("a number ends behind its event")
    if size == 9:
        return int.from_bytes(raw[1:], "little"), at + 9
    return int.from_bytes(raw, "little") >> size, at + size


def _signed(number: int) -> int:
    """Signed numbers count 0, -1, 1, -2, ..."""
    return (number >> 1) ^ -(number & 1)


def parse_tagged(data: bytes, at: int, stop: int) -> tuple[str, int, int]:
    """(source as `uuid:tag`, transaction number, commit time in us) of a GTID_TAGGED_LOG_EVENT: serialization version,
    size, last field that must be known, then fields by number, each only when it is not its default."""
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
            sid = sid_text(bytes(raw))
        elif number == _FIELD_TAG:
            length, p = varint(data, p)
            tag, p = data[p : p + length].decode("ascii"), p + length
        else:
            value, p = varint(data, p)
            if number == _FIELD_GNO:
                gno = _signed(value)
            elif number == _FIELD_COMMIT_TIME:
                micros = value
            elif number > 11:
                break  # fields of later servers; they come last
    if not sid or gno < 1 or p > stop:
        raise ValueError("a tagged GTID lacks its uuid or number")
    return (f"{sid}:{tag}" if tag else sid), gno, micros


def parse_mariadb(data: bytes, at: int, stop: int) -> tuple[int, int, int, str]:
    """(sequence, domain, flags, xid as `format:gtrid:bqual` in hex or "") of MariaDB's GTID event."""
    sequence, domain, flags = _MARIADB(data, at)
    xid = ""
    if flags & (_PREPARED_XA | _COMPLETED_XA):
        p = at + 13 + (8 if flags & _GROUP_COMMIT else 0)
        form, gtrid, bqual = struct.unpack_from("<iBB", data, p)
        raw = data[p + 6 : p + 6 + gtrid + bqual]
        if p + 6 + len(raw) > stop or len(raw) != gtrid + bqual:
            raise ValueError("an XA identifier ends behind its event")
        xid = f"{form}:{raw[:gtrid].hex()}:{raw[gtrid:].hex()}"
    return sequence, domain, flags, xid
