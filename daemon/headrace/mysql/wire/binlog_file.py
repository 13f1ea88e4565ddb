"""Binlog files as the packets that a dump would send, so that one decoder reads both."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from headrace.errors import NotUnderstood

MAGIC = b"\xfebin"
_LARGEST = 0xFFFFFF
_CHUNK = 1 << 20
_NUMBER = re.compile(r"\.(\d+)$")
_ROTATE, _ARTIFICIAL = 4, 0x20
"""The event's number, and the flag of events that are in no file."""


def file_number(file: str) -> int:
    """Returns the number at the end of a binlog file's name; 0 if it has none."""
    match = _NUMBER.search(file)
    return int(match[1]) if match else 0


def packets(path: Path) -> Iterator[bytes]:
    """Yields chunks of whole packets, about 1 MB each; a larger event is a separate chunk.

    Raises OSError, or NotUnderstood for a file that is no binlog or ends within an event."""
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise NotUnderstood(f"{path} is no binlog: it does not begin with the bytes fe 62 69 6e")
        chunk, at = bytearray(), 4
        while head := file.read(19):
            size = struct.unpack_from("<I", head, 9)[0] if len(head) == 19 else 0
            rest = file.read(size - 19) if size >= 19 else b""
            if len(head) + len(rest) != size:
                yield bytes(chunk)  # what came before is complete
                raise NotUnderstood(f"at {path.name}:{at}: the file ends within an event")
            at += size
            chunk += packet(head + rest)
            if len(chunk) >= _CHUNK:
                yield bytes(chunk)
                chunk.clear()
        yield bytes(chunk)


def packet(event: bytes) -> bytes:
    """Returns one event as the packet or, from 16 MB on, the packets that a server sends."""
    payload = b"\0" + event
    if len(payload) < _LARGEST:
        return len(payload).to_bytes(3, "little") + b"\0" + payload
    parts = [payload[i : i + _LARGEST] for i in range(0, len(payload) + 1, _LARGEST)]
    return b"".join(len(part).to_bytes(3, "little") + b"\0" + part for part in parts)


def rotate_packet(file: str, offset: int, checksum: bool) -> bytes:
    """Returns the event that a server sends before the events of each file: what follows begins in `file` at
    `offset`."""
    body = struct.pack("<Q", offset) + file.encode()
    size = 19 + len(body) + (4 if checksum else 0)
    event = struct.pack("<IBIIIH", 0, _ROTATE, 0, size, 0, _ARTIFICIAL) + body
    return packet(event + struct.pack("<I", crc32(event)) if checksum else event)
