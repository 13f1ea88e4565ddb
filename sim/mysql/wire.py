"""Packets of the client/server protocol (MySQL source code documentation, "Client/Server Protocol": OK_Packet,
ERR_Packet, EOF_Packet, Text Resultset, length-encoded integers)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from sim.mysql.errors import SqlError

LARGEST = 0xFFFFFF
"""Bytes of a packet that continues in the next one."""
AUTOCOMMIT, IN_TRANSACTION = 2, 1
_COLUMN = struct.Struct("<BHIBHBH")


def number(value: int) -> bytes:
    """Returns a length-encoded integer."""
    if value < 251:
        return bytes([value])
    if value < 1 << 16:
        return b"\xfc" + value.to_bytes(2, "little")
    if value < 1 << 24:
        return b"\xfd" + value.to_bytes(3, "little")
    return b"\xfe" + value.to_bytes(8, "little")


def text(value: bytes) -> bytes:
    """Returns bytes after their length."""
    return number(len(value)) + value


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Returns a length-encoded integer, and where it ends."""
    first = data[at]
    if first < 251:
        return first, at + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def framed(payload: bytes, sequence: int) -> tuple[bytes, int]:
    """Returns a payload as packets, and the number of the next packet."""
    if len(payload) < LARGEST:
        return len(payload).to_bytes(3, "little") + bytes([sequence & 255]) + payload, sequence + 1
    parts = []
    for at in range(0, len(payload) + 1, LARGEST):
        part = payload[at : at + LARGEST]
        parts.append(len(part).to_bytes(3, "little") + bytes([sequence & 255]) + part)
        sequence += 1
    return b"".join(parts), sequence


def ok(affected: int = 0, insert_id: int = 0, status: int = AUTOCOMMIT, warnings: int = 0) -> bytes:
    """Returns an OK packet."""
    return b"\0" + number(affected) + number(insert_id) + struct.pack("<HH", status, warnings)


def error(refusal: SqlError, *, early: bool = False) -> bytes:
    """Returns an ERR packet; the server cuts its text at 511 bytes. `early`: it comes instead of the greeting, before
    the client's capabilities are known, and has no SQLSTATE."""
    state = b"" if early else b"#" + refusal.state.encode()
    return b"\xff" + struct.pack("<H", refusal.errno) + state + refusal.text.encode()[:511]


def eof(status: int = AUTOCOMMIT) -> bytes:
    """Returns an EOF packet."""
    return b"\xfe" + struct.pack("<HH", 0, status)


def column(
    name: str, table: str, schema: str, collation: int, length: int, kind: int, flags: int, decimals: int
) -> bytes:
    """Returns the definition of a column of a result."""
    names = (b"def", schema.encode(), table.encode(), table.encode(), name.encode(), name.encode())
    return b"".join(map(text, names)) + _COLUMN.pack(12, collation, length, kind, flags, decimals, 0)


def row(values: Iterable[bytes | None]) -> bytes:
    """Returns a row of a result."""
    return b"".join(b"\xfb" if value is None else text(value) for value in values)
