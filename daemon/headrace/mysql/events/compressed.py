"""MariaDB's compressed events (log_bin_compress): the part behind an event's head is zlib's."""

from __future__ import annotations

import zlib

_from_bytes = int.from_bytes


def decompress(data: bytes, at: int, stop: int) -> bytes:
    """MariaDB's compressed part of an event: a byte with the algorithm and the size of the length, the length big
    endian, then zlib's bytes. Raises ValueError when it is none, or its length is not the one it says."""
    head = data[at]
    size = head & 7
    if head & 0x70 or not 1 <= size <= 4:
        raise ValueError(f"a compressed event begins with {head:#x}, which is not known")
    length = _from_bytes(data[at + 1 : at + 1 + size], "big")
    try:
        expander = zlib.decompressobj()
        plain = expander.decompress(data[at + 1 + size : stop], length + 1)
    except zlib.error as error:
        raise ValueError(f"a compressed event can't be decompressed: {error}") from error
    if len(plain) != length:
        raise ValueError(f"a compressed event says it has {length} bytes and has another number")
    return plain
