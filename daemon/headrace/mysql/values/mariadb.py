"""Values that only MariaDB writes: UUID, INET4, INET6, compressed columns (its field_comp.cc) and compressed events."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import groupby

FIXED_BINARY = {"uuid": 16, "inet6": 16, "inet4": 4}
"""Types that travel as BINARY(n), with n; only the declared type tells them from it."""


def uuid_text(raw: bytes) -> str:
    """16 bytes as both servers print them. In the binlog those of MariaDB's UUID stand in the order of its text,
    whatever their order in the table."""
    h = raw.ljust(16, b"\0").hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def inet4_text(raw: bytes) -> str:
    return ".".join(map(str, raw.ljust(4, b"\0")))


def inet6_text(raw: bytes) -> str:
    """INET6 as the server prints it: the longest run of zero groups, the first of equal ones, also a run of one, is
    `::`; addresses that hold an IPv4 address (::a.b.c.d, ::ffff:a.b.c.d) end in its dotted form."""
    raw = raw.ljust(16, b"\0")
    words = [raw[i] << 8 | raw[i + 1] for i in range(0, 16, 2)]
    runs, at = [], 0
    for zero, group in groupby(words, lambda word: word == 0):
        n = len(list(group))
        if zero:
            runs.append((n, -at))
        at += n
    length, start = max(runs, default=(0, 0))
    start = -start
    if start == 0 and (length == 6 or (length == 5 and words[5] == 0xFFFF)):
        head = "::ffff:" if length == 5 else "::"
        return head + inet4_text(raw[12:])
    groups = [f"{word:x}" for word in words]
    if not length:
        return ":".join(groups)
    return ":".join(groups[:start]) + "::" + ":".join(groups[start + length :])


FIXED_BINARY_TEXT: dict[str, Callable[[bytes], str]] = {"uuid": uuid_text, "inet6": inet6_text, "inet4": inet4_text}


LARGEST = 1 << 30
"""Bytes of an event or a value that no server goes beyond."""


def decompressed(raw: bytes, largest: int = LARGEST) -> bytes:
    """A compressed column's value: nothing, or a first byte and the data. 0: not compressed. 8 in the upper four bits:
    zlib, the 4th bit for a stream without zlib's header, the low three for the bytes of the length that follows, big
    endian. Raises ValueError for other bytes, and for a value of more than `largest` bytes."""
    if not raw:
        return b""
    method = raw[0]
    if method == 0:
        return raw[1:]
    size = method & 7
    if method >> 4 != 8 or not 1 <= size <= 4 or len(raw) <= size + 1:
        raise ValueError(f"a compressed column begins with {raw[:6].hex()}")
    return _inflated("column", raw, 1, size, len(raw), -zlib.MAX_WBITS if method & 8 else zlib.MAX_WBITS, largest)


def decompressed_event(data: bytes, at: int, stop: int, largest: int = LARGEST) -> bytes:
    """The compressed part of an event (log_bin_compress): a byte with the algorithm and the size of the length, the
    length big endian, then zlib's bytes. Raises ValueError when it is none, its length is not the one it says, or more
    than `largest`."""
    head = data[at]
    size = head & 7
    if head & 0x70 or not 1 <= size <= 4:
        raise ValueError(f"a compressed event begins with {head:#x}, which is not known")
    return _inflated("event", data, at + 1, size, stop, zlib.MAX_WBITS, largest)


def _inflated(what: str, data: bytes, at: int, size: int, stop: int, window: int, largest: int) -> bytes:
    """What stands from `at` to `stop`: a length of `size` bytes, then the compressed data."""
    length = int.from_bytes(data[at : at + size], "big")
    if length > largest:
        raise ValueError(f"a compressed {what} of {length} bytes is larger than {largest} bytes ([source] max_event)")
    inflate = zlib.decompressobj(window)
    try:
        plain = inflate.decompress(data[at + size : stop], length + 1)
    except zlib.error as error:
        raise ValueError(f"a compressed {what} can't be decompressed: {error}") from error
    if len(plain) != length or inflate.unconsumed_tail:
        raise ValueError(f"a compressed {what} has {len(plain)} bytes instead of {length}")
    return plain
