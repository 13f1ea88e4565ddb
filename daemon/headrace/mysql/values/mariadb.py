"""Values that only MariaDB writes: UUID, INET4, INET6, compressed columns (its field_comp.cc) and compressed events."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import groupby

FIXED_BINARY = {"uuid": 16, "inet6": 16, "inet4": 4}
"""Types that are sent as BINARY(n), with n; only the declared type distinguishes them from it."""


def uuid_text(raw: bytes) -> str:
    """Returns 16 bytes as both servers print them. In the binlog those of MariaDB's UUID are in the order of its text,
    whatever their order in the table."""
    h = raw.ljust(16, b"\0").hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def inet4_text(raw: bytes) -> str:
    return ".".join(map(str, raw.ljust(4, b"\0")))


def inet6_text(raw: bytes) -> str:
    """Returns INET6 as the server prints it: the longest run of zero groups, the first of equal ones, also a run of
    one, is `::`; addresses that contain an IPv4 address (::a.b.c.d, ::ffff:a.b.c.d) end in its dotted form."""
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
"""Bytes of an event or a value that no server exceeds."""
_AT_ONCE = 1 << 20


def decompressed(raw: bytes, largest: int = LARGEST) -> bytes:
    """Returns a compressed column's value. It is stored as nothing, or a first byte and the data. 0: not compressed. 8
    in the upper four bits: zlib, the 4th bit for a stream without zlib's header, the low three for the bytes of the
    length that follows, big endian. Raises ValueError for other bytes, and for a value of more than `largest` bytes."""
    return b"".join(decompressed_pieces(raw, 0, len(raw), largest, _AT_ONCE)) if raw else b""


def decompressed_size(head: bytes, size: int) -> int:
    """Returns the size in bytes of a compressed column's value, by its first bytes and its compressed size; see
    decompressed(). For one that can't be read it is the compressed size."""
    digits = head[0] & 7 if head and head[0] >> 4 == 8 else 0
    return int.from_bytes(head[1 : 1 + digits], "big") if digits else size


def decompressed_pieces(data: bytes, at: int, stop: int, largest: int, piece: int) -> Iterator[bytes]:
    """Yields what decompressed() returns, in pieces of at most `piece` bytes."""
    method = data[at]
    digits = method & 7
    if method == 0:
        for start in range(at + 1, stop, piece):
            yield data[start : min(stop, start + piece)]
        return
    if method >> 4 != 8 or not 1 <= digits <= 4 or stop - at <= digits + 1:
        raise ValueError(f"a compressed column begins with {data[at : at + 6].hex()}")
    window = -zlib.MAX_WBITS if method & 8 else zlib.MAX_WBITS
    yield from inflated_pieces("column", data, at + 1, digits, stop, window, largest, piece)


def inflated_pieces(
    what: str, data: bytes, at: int, digits: int, stop: int, window: int, largest: int, piece: int
) -> Iterator[bytes]:
    """Yields the data from `at` to `stop`, a length of `digits` bytes and then the compressed data, in pieces of at
    most `piece` bytes. Raises ValueError as decompressed() does."""
    length = int.from_bytes(data[at : at + digits], "big")
    if length > largest:
        raise ValueError(f"a compressed {what} of {length} bytes is larger than {largest} bytes ([source] max_event)")
    inflate, given, at = zlib.decompressobj(window), 0, at + digits
    try:
        while not inflate.eof:
            raw = inflate.unconsumed_tail or data[at : min(stop, at + piece)]
            if not inflate.unconsumed_tail:
                at += len(raw)
            plain = inflate.decompress(raw, piece)
            given += len(plain)
            if given > length or (not plain and not raw):
                break
            if plain:
                yield plain
    except zlib.error as error:
        raise ValueError(f"a compressed {what} can't be decompressed: {error}") from error
    if given != length:
        raise ValueError(f"a compressed {what} has {given} bytes instead of {length}")


def event_pieces(data: bytes, at: int, stop: int, largest: int, piece: int) -> Iterator[bytes]:
    """Yields what decompressed_event() returns, in pieces of at most `piece` bytes."""
    head = data[at]
    digits = head & 7
    if head & 0x70 or not 1 <= digits <= 4:
        raise ValueError(f"a compressed event begins with {head:#x}, which is not known")
    return inflated_pieces("event", data, at + 1, digits, stop, zlib.MAX_WBITS, largest, piece)


def decompressed_event(data: bytes, at: int, stop: int, largest: int = LARGEST) -> bytes:
    """Returns the compressed part of an event (log_bin_compress): a byte with the algorithm and the size of the length,
    the length big endian, then zlib's bytes. Raises ValueError for invalid data, a wrong length, or more than `largest`
    bytes."""
    return b"".join(event_pieces(data, at, stop, largest, _AT_ONCE))
