"""Values in the bytes of a row image (MySQL manual, "Data Type Storage Requirements"; field.cc's pack() and the
binlog's rows event). Values are in the canonical form of `types`."""

from __future__ import annotations

import calendar
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

Encoder = Callable[[Any], bytes]
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def integer(size: int, *, unsigned: bool) -> Encoder:
    """Returns the encoder of an integer: little endian."""
    return lambda value: value.to_bytes(size, "little", signed=not unsigned)


def double(value: float) -> bytes:
    """Encodes a DOUBLE."""
    return struct.pack("<d", value)


def decimal(precision: int, scale: int) -> Encoder:
    """Returns the encoder of a DECIMAL: groups of nine digits in four bytes, big endian, the short group of the integer
    part first and that of the fraction last; the first bit inverted, and all of a negative number."""
    whole = precision - scale
    sizes = [_DIGIT_BYTES[whole % 9]] + [4] * (whole // 9) + [4] * (scale // 9) + [_DIGIT_BYTES[scale % 9]]
    lead, tail = whole % 9, scale % 9

    def encode(value: str) -> bytes:
        negative = value.startswith("-")
        before, _, after = value.lstrip("-").partition(".")
        before, after = before.rjust(whole, "0"), after.ljust(scale, "0")
        groups = [before[:lead]] + [before[at : at + 9] for at in range(lead, whole, 9)]
        groups += [after[at : at + 9] for at in range(0, scale - tail, 9)] + [after[scale - tail :]]
        raw = bytearray().join(int(group or 0).to_bytes(size, "big") for group, size in zip(groups, sizes, strict=True))
        raw[0] ^= 0x80
        return bytes(one ^ 0xFF for one in raw) if negative else bytes(raw)

    return encode


def prefixed(size: int, encode: Encoder) -> Encoder:
    """Returns the encoder of bytes after their length in `size` bytes."""

    def prefix(value: Any) -> bytes:
        raw = encode(value)
        return len(raw).to_bytes(size, "little") + raw

    return prefix


def _fraction(digits: str, fsp: int) -> bytes:
    size = (fsp + 1) // 2
    return int(digits.ljust(2 * size, "0")[: 2 * size] or 0).to_bytes(size, "big")


def datetime2(fsp: int) -> Encoder:
    """Returns the encoder of DATETIME(fsp): sign 1 bit, year * 13 + month 17, day 5, hour 5, minute 6, second 6."""

    def encode(value: str) -> bytes:
        month = int(value[:4]) * 13 + int(value[5:7])
        clock = int(value[11:13]) << 12 | int(value[14:16]) << 6 | int(value[17:19])
        packed = month << 22 | int(value[8:10]) << 17 | clock
        raw = (packed + 0x8000000000).to_bytes(5, "big")
        return raw + _fraction(value[20:], fsp) if fsp else raw

    return encode


def timestamp2(fsp: int) -> Encoder:
    """Returns the encoder of TIMESTAMP(fsp): seconds since 1970, 4 bytes big endian."""

    def encode(value: str) -> bytes:
        raw = seconds_of(value[:19]).to_bytes(4, "big")
        return raw + _fraction(value[20:], fsp) if fsp else raw

    return encode


@lru_cache(maxsize=4096)
def seconds_of(text: str) -> int:
    """Returns seconds since 1970 of `YYYY-MM-DD hh:mm:ss` in UTC; 0 for the zero date."""
    if text.startswith("0000"):
        return 0
    date, clock = text[:10].split("-"), text[11:19].split(":")
    return calendar.timegm((*map(int, date), *map(int, clock)))


def date(value: str) -> bytes:
    """Encodes a DATE: day 5 bits, month 4, year 15; little endian."""
    return (int(value[:4]) << 9 | int(value[5:7]) << 5 | int(value[8:10])).to_bytes(3, "little")


_SMALL_OBJECT, _SMALL_ARRAY, _LITERAL = 0x00, 0x02, 0x04
_LARGE_OBJECT, _LARGE_ARRAY = 0x01, 0x03


def json(value: Any) -> bytes:
    """Encodes a document of dicts, lists, texts, numbers, booleans and None in MySQL's binary form (json_binary.h)."""
    kind, raw = _json(value)
    if kind in (_LITERAL, 0x05, 0x06, 0x07, 0x08):
        raw = raw[: 2 if kind in (0x05, 0x06) else 4 if kind in (0x07, 0x08) else 1]
    return bytes([kind]) + raw


def _json(value: Any) -> tuple[int, bytes]:
    if value is None or value is True or value is False:
        return _LITERAL, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, int):
        if -(1 << 15) <= value < 1 << 15:
            return 0x05, struct.pack("<h", value)
        if -(1 << 31) <= value < 1 << 31:
            return 0x07, struct.pack("<i", value)
        return (0x09, struct.pack("<q", value)) if value < 1 << 63 else (0x0A, struct.pack("<Q", value))
    if isinstance(value, float):
        return 0x0B, struct.pack("<d", value)
    if isinstance(value, str):
        raw = value.encode()
        return 0x0C, _varlen(len(raw)) + raw
    for large in (False, True):
        made = _container(value, large)
        if made is not None:
            return made
    raise ValueError("a JSON document is too large")


def _varlen(size: int) -> bytes:
    made = bytearray()
    while True:
        made.append(size & 0x7F | (0x80 if size > 0x7F else 0))
        size >>= 7
        if not size:
            return bytes(made)


def _container(value: Any, large: bool) -> tuple[int, bytes] | None:
    """Returns an object or array with offsets of 2 bytes, or 4 if `large`; None if it does not fit."""
    width = 4 if large else 2
    keys: list[bytes] = []
    values: list[Any] = list(value)
    if isinstance(value, dict):
        pairs = sorted(((str(key).encode(), one) for key, one in value.items()), key=lambda one: (len(one[0]), one[0]))
        keys, values = [key for key, _ in pairs], [one for _, one in pairs]
    inlined = {_LITERAL, 0x05, 0x06} | ({0x07, 0x08} if large else set())
    at = 2 * width + len(keys) * (width + 2) + len(values) * (1 + width)
    key_entries, body = b"", bytearray()
    for key in keys:
        key_entries += (at + len(body)).to_bytes(width, "little") + len(key).to_bytes(2, "little")
        body += key
    entries = b""
    for one in values:
        kind, raw = _json(one)
        entries += bytes([kind])
        if kind in inlined:
            entries += raw.ljust(width, b"\0")
        else:
            if not large and at + len(body) > 0xFFFF:
                return None
            entries += (at + len(body)).to_bytes(width, "little")
            body += raw
    size = at + len(body)
    if not large and size > 0xFFFF:
        return None
    kind = (
        (_LARGE_OBJECT if large else _SMALL_OBJECT)
        if isinstance(value, dict)
        else (_LARGE_ARRAY if large else _SMALL_ARRAY)
    )
    head = len(values).to_bytes(width, "little") + size.to_bytes(width, "little")
    return kind, head + key_entries + entries + bytes(body)
