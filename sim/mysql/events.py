"""Binlog events in bytes, except those of rows (MySQL source code documentation, "Binary Log Events": Log_event_header,
Format_description_event, Gtid_event, Query_event, XA_prepare_event, Transaction_payload_event, Heartbeat_event)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import zstandard

from sim.mysql.gtids import uuid_text
from sim.mysql.wire import number as number_of

QUERY, STOP, ROTATE, FORMAT, XID, TABLE_MAP, HEARTBEAT, ROWS_QUERY = 2, 3, 4, 15, 16, 19, 27, 29
WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS, GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS = 30, 31, 32, 33, 34, 35
XA_PREPARE, PAYLOAD = 38, 40
HEADER_BYTES, CRC_BYTES = 19, 4
IN_USE, THREAD, NO_USE, ARTIFICIAL, IGNORABLE = 0x01, 0x04, 0x08, 0x20, 0x80
Part = tuple[int, bytes, int]
"""An event before it has a place: its type, its body, and its flags."""
_HEADER = struct.Struct("<IBIIIH")
_GTID = struct.Struct("<B16sQBQQ")
_QUERY = struct.Struct("<IIBHH")
_POST_HEADERS = bytes.fromhex("000d0008000000000400040000006300041a08000000000000020000000a0a0a2a2a001234000a280000")
"""Sizes of the fixed parts of events 1 to 42."""
_TIMESTAMP_WITH_ORIGINAL = 1 << 55
_VERSION_WITH_ORIGINAL = 1 << 31
_SESSION = (
    b"\x00" + struct.pack("<I", 0) + b"\x01" + struct.pack("<Q", 0x45A00020) + b"\x06\x03std\x04"
    + struct.pack("<HHH", 255, 255, 255)
)  # fmt: skip
"""Status variables of every statement: flags, sql_mode, catalog, and the session's collations."""


def event(kind: int, body: bytes, when: int, server_id: int, end: int, flags: int = 0) -> bytes:
    """Returns an event with its header and its CRC32. `end` is the offset after it, 0 for one that is in no file."""
    size = HEADER_BYTES + len(body) + CRC_BYTES
    raw = _HEADER.pack(when, kind, server_id, size, end & 0xFFFFFFFF, flags) + body
    return raw + zlib.crc32(raw).to_bytes(4, "little")


def bare(kind: int, body: bytes, when: int, server_id: int, flags: int = 0) -> bytes:
    """Returns an event of a compressed transaction, which has no checksum and no offset."""
    return _HEADER.pack(when, kind, server_id, HEADER_BYTES + len(body), 0, flags) + body


def changed(raw: bytes, *, end: int | None = None, flags: int | None = None, created: int | None = None) -> bytes:
    """Returns an event with other header fields, or a FORMAT_DESCRIPTION with another time of its creation, as the dump
    sends it."""
    made = bytearray(raw[:-CRC_BYTES])
    if end is not None:
        struct.pack_into("<I", made, 13, end)
    if flags is not None:
        struct.pack_into("<H", made, 17, flags)
    if created is not None:
        struct.pack_into("<I", made, HEADER_BYTES + 52, created)
    return bytes(made) + zlib.crc32(made).to_bytes(4, "little")


def format_description(version: str, created: int) -> bytes:
    """Returns the body of FORMAT_DESCRIPTION. `created` is 0 for a file that does not begin with the server."""
    name = version.encode().ljust(50, b"\0")
    return struct.pack("<H50sIB", 4, name, created, HEADER_BYTES) + _POST_HEADERS + b"\x01"  # CRC32


def rotate(file: str, offset: int = 4) -> bytes:
    """Returns the body of ROTATE."""
    return struct.pack("<Q", offset) + file.encode()


def query(
    schema: str,
    text: bytes,
    thread: int,
    *,
    flags: int = NO_USE,
    zone: str = "",
    update: bool = False,
    updated: str = "",
    timestamps: bool = False,
    xid: int | None = None,
    last: bytes = b"",
) -> Part:
    """Returns QUERY. `zone` is the time zone, if a value depends on it; `update`: rows are changed by UPDATE; `updated`
    is the database that it changes; `timestamps`: it declares TIMESTAMP columns; `xid` is the number of a DDL's
    transaction; `last` are the status variables after the usual ones."""
    variables = _SESSION
    if zone:
        variables += b"\x05" + bytes([len(zone)]) + zone.encode()
    if update:
        variables += b"\x09" + struct.pack("<Q", 1)
    if updated:
        variables += b"\x0c\x01" + updated.encode() + b"\0"
    if timestamps:
        variables += b"\x10\x01"
    if xid is not None:
        variables += b"\x11" + struct.pack("<Q", xid)
    variables += b"\x12" + struct.pack("<H", 255) + last
    name = schema.encode()
    head = _QUERY.pack(thread, 0, len(name), 0, len(variables))
    return QUERY, head + variables + name + b"\0" + text, flags


def gtid(
    sid: bytes, number: int, sequence: int, original_us: int, immediate_us: int, rest: int, version: int, *, alone: bool
) -> bytes:
    """Returns the body of GTID_LOG_EVENT. `rest` is how many bytes of the transaction follow the event, times are in
    microseconds since 1970, `alone` is whether a single statement follows."""
    body = _GTID.pack(alone, sid, number, 2, sequence - 1, sequence)
    if original_us == immediate_us:
        body += immediate_us.to_bytes(7, "little")
        tail = version.to_bytes(4, "little")
    else:
        body += (immediate_us | _TIMESTAMP_WITH_ORIGINAL).to_bytes(7, "little") + original_us.to_bytes(7, "little")
        tail = (version | _VERSION_WITH_ORIGINAL).to_bytes(4, "little") + version.to_bytes(4, "little")
    fixed = HEADER_BYTES + len(body) + len(tail) + CRC_BYTES + rest
    for size in (1, 3, 4, 9):  # the length of the length is part of the length
        length = number_of(fixed + size)
        if len(length) == size:
            break
    return body + length + tail


def gtid_of(raw: bytes) -> tuple[str, int]:
    """Returns uuid and number of a GTID_LOG_EVENT with its header."""
    return uuid_text(raw[20:36].hex()), int.from_bytes(raw[36:44], "little")


def xid_text(xid: tuple[int, bytes, bytes]) -> bytes:
    """Returns an XA identifier (format, gtrid, bqual) as the binlog's statements have it."""
    form, gtrid, bqual = xid
    return b"X'%s',X'%s',%d" % (gtrid.hex().encode(), bqual.hex().encode(), form)


def xa_prepare(xid: tuple[int, bytes, bytes], *, one_phase: bool) -> bytes:
    """Returns the body of XA_PREPARE_LOG_EVENT."""
    form, gtrid, bqual = xid
    return struct.pack("<BiII", one_phase, form, len(gtrid), len(bqual)) + gtrid + bqual


def rows_query(text: bytes) -> bytes:
    """Returns the body of ROWS_QUERY: a byte that was a length once, and the text."""
    return b"\0" + text


def payload(events: Sequence[bytes]) -> bytes:
    """Returns the body of TRANSACTION_PAYLOAD: fields of a type, a length and a value, and compressed events."""
    plain = b"".join(events)
    packed = zstandard.ZstdCompressor(level=3).compress(plain)
    made = b""
    for number, value in ((2, 0), (3, len(plain)), (1, len(packed))):  # zstd, size before, size
        raw = number_of(value)
        made += bytes([number, len(raw)]) + raw
    return made + b"\0" + packed
