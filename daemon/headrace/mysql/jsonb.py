"""MySQL's binary JSON to text, as CAST(column AS CHAR) prints it (wire format: MySQL's json_binary.h)."""

from __future__ import annotations

import base64
import struct
from json.encoder import encode_basestring as _quote

from headrace.mysql.values import decimal_size, decimal_text, packed_datetime, packed_time

_U16 = struct.Struct("<H").unpack_from
_U32 = struct.Struct("<I").unpack_from
_I16 = struct.Struct("<h").unpack_from
_I32 = struct.Struct("<i").unpack_from
_I64 = struct.Struct("<q").unpack_from
_U64 = struct.Struct("<Q").unpack_from
_F64 = struct.Struct("<d").unpack_from
_ENTRY2 = struct.Struct("<BH").unpack_from
_ENTRY4 = struct.Struct("<BI").unpack_from
_KEY2 = struct.Struct("<HH").unpack_from
_KEY4 = struct.Struct("<IH").unpack_from

_LITERALS = {0: "null", 1: "true", 2: "false"}
_MAX_DEPTH = 100
"""MySQL's own limit on the nesting of a document."""

_keys: dict[bytes, str] = {}


def _key(raw: bytes) -> str:
    """The quoted key with its colon; documents of one table have the same few."""
    text = _keys.get(raw)
    if text is None:
        if len(_keys) > 10_000:
            _keys.clear()
        text = _keys[raw] = _quote(raw.decode()) + ": "
    return text


def json_text(b: bytes) -> str:
    """The text of a whole document; an empty value, which MySQL writes for an empty column, is `null`.

    Raises ValueError, IndexError or struct.error when the bytes are no document.
    """
    return _value(b, b[0], 1, 0) if b else "null"


def _length(b: bytes, at: int) -> tuple[int, int]:
    """A length in 7-bit groups, low first, and where it ends."""
    n = shift = 0
    for i in range(5):
        byte = b[at + i]
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            return n, at + i + 1
        shift += 7
    raise ValueError("a JSON string's length has more than 5 bytes")


def _double(x: float) -> str:
    """A double as MySQL prints it: shortest, with `.0` when whole, exponent without plus."""
    text = repr(x)
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _string(b: bytes, at: int) -> str:
    n = b[at]
    if n < 0x80:
        at += 1
    else:
        n, at = _length(b, at)
    end = at + n
    if end > len(b):
        raise ValueError("a JSON string ends behind its document")
    return _quote(b[at:end].decode())


def _opaque(b: bytes, at: int) -> str:
    """A value of a MySQL type that JSON lacks: type byte, length, bytes."""
    kind = b[at]
    n, start = _length(b, at + 1)
    raw = b[start : start + n]
    if len(raw) != n:
        raise ValueError("a JSON value ends behind its document")
    if kind == 246:
        return decimal_text(raw[0], raw[1])(raw[2 : 2 + decimal_size(raw[0], raw[1])])
    if kind == 11:
        return f'"{packed_time(_I64(raw)[0])}"'
    if kind == 10:
        return f'"{packed_datetime(_I64(raw)[0])[:10]}"'
    if kind in (7, 12):
        return f'"{packed_datetime(_I64(raw)[0])}"'
    return f'"base64:type{kind}:{base64.b64encode(raw).decode()}"'


def _value(b: bytes, kind: int, at: int, depth: int) -> str:
    if kind == 0x0C:
        return _string(b, at)
    if kind < 0x04:
        return _container(b, at, large=bool(kind & 1), array=kind >= 2, depth=depth + 1)
    if kind == 0x04:
        return _LITERALS[b[at]]
    if kind == 0x05:
        return str(_I16(b, at)[0])
    if kind == 0x06:
        return str(_U16(b, at)[0])
    if kind == 0x07:
        return str(_I32(b, at)[0])
    if kind == 0x08:
        return str(_U32(b, at)[0])
    if kind == 0x09:
        return str(_I64(b, at)[0])
    if kind == 0x0A:
        return str(_U64(b, at)[0])
    if kind == 0x0B:
        return _double(_F64(b, at)[0])
    if kind == 0x0F:
        return _opaque(b, at)
    raise ValueError(f"JSON value type {kind:#x} is unknown")


def _container(b: bytes, start: int, *, large: bool, array: bool, depth: int) -> str:
    """An object or array: count, size, key entries, value entries; offsets count from its own first byte."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"a JSON document is nested deeper than {_MAX_DEPTH}")
    width, unpack_entry = (4, _ENTRY4) if large else (2, _ENTRY2)
    (count,) = (_U32 if large else _U16)(b, start)
    at = start + 2 * width
    if count * (width + 1) > len(b) - at:
        raise ValueError("a JSON document counts more members than it has bytes for")
    parts: list[str] = []
    keys: list[str] = []
    if not array:
        unpack_key = _KEY4 if large else _KEY2
        for _ in range(count):
            offset, n = unpack_key(b, at)
            offset += start
            keys.append(_key(b[offset : offset + n]))
            at += width + 2
    for i in range(count):
        kind, offset = unpack_entry(b, at)
        if kind == 0x0C:
            text = _string(b, start + offset)
        elif kind in (0x05, 0x06, 0x04) or (large and kind in (0x07, 0x08)):
            text = _value(b, kind, at + 1, depth)  # small values stand in the entry itself
        else:
            text = _value(b, kind, start + offset, depth)
        parts.append(text if array else keys[i] + text)
        at += width + 1
    return f"[{', '.join(parts)}]" if array else "{" + ", ".join(parts) + "}"
