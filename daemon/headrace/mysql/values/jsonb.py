"""Prints MySQL's binary JSON as text, as CAST(column AS CHAR) does (wire format: MySQL's json_binary.h)."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from functools import partial
from json.encoder import encode_basestring as _quote

from headrace.mysql.values.json_members import (
    DOUBLE,
    INT16,
    MAX_DEPTH,
    OFTEN,
    STRING,
    STRING_ENDS,
    TOO_DEEP,
    USED_TWICE,
    MembersPrinters,
)
from headrace.mysql.values.values import decimal_size, decimal_text, packed_datetime, packed_time
from headrace_common.numbers import float_text

_I64 = struct.Struct("<q").unpack_from
_NUMBERS: dict[int, Callable[[bytes, int], tuple[int]]] = {
    0x05: struct.Struct("<h").unpack_from,
    0x06: struct.Struct("<H").unpack_from,
    0x07: struct.Struct("<i").unpack_from,
    0x08: struct.Struct("<I").unpack_from,
    0x09: _I64,
    0x0A: struct.Struct("<Q").unpack_from,
}
_F64 = struct.Struct("<d").unpack_from

LITERALS = ("null", "true", "false")
_TIMES = frozenset((7, 10, 11, 12))
"""The types of opaque values that are a date or a time, in 8 bytes."""
SHORT_OPAQUE = _TIMES | {246}
"""Opaque types that are printed as their value; 246 is DECIMAL."""
COUNTS_MORE = "a JSON document counts more members than it has bytes for"
_KEY_BYTES = 2 << 20
"""Bytes of keys that are cached as text, which takes up to 20 times as many: documents of one table have the same
few."""
_GAPS = 4096
"""Bytes between the keys of an object, as JSON_REMOVE leaves them, above which they are not cached: many invalid
objects may refer to the whole document by two keys."""


def json_text(b: bytes) -> str:
    """Returns the text of a whole document; an empty value, which MySQL writes for an empty column, is `null`.

    Raises ValueError, IndexError or struct.error for invalid bytes."""
    if not b:
        return "null"
    kind = b[0]
    return container_text(b, kind, 1, 1) if kind < 4 else scalar(b, kind, 1)


def container_text(b: bytes, kind: int, depth: int, at: int = 0) -> str:
    """Returns the text of the object or array of type `kind` that begins at `at`, within `depth` - 1 others."""
    try:
        return _CONTAINERS[kind](b, at, depth)
    except (ValueError, IndexError, struct.error):
        return _GENERAL[kind](b, at, depth)


def scalar(b: bytes, kind: int, at: int) -> str:
    """Returns the text of a value that is no array or object."""
    if kind == 0x0C:
        raw = string(b, at)
        return _quote(raw.decode())
    if kind == 0x04:
        return LITERALS[b[at]]
    if kind == 0x0B:
        return json_double(_F64(b, at)[0])
    if kind == 0x0F:
        return _opaque(b, at)
    unpack = _NUMBERS.get(kind)
    if unpack is None:
        raise ValueError(f"JSON value type {kind:#x} is unknown")
    return str(unpack(b, at)[0])


def string(b: bytes, at: int) -> bytes:
    """Returns the bytes of a string: its length in 7-bit groups, low first, then its UTF-8."""
    n, at = value_length(b, at)
    if at + n > len(b):
        raise ValueError(STRING_ENDS)
    return b[at : at + n]


def value_length(b: bytes, at: int) -> tuple[int, int]:
    """Returns the length in 7-bit groups that begins at `at`, and where the value after it begins."""
    n = shift = 0
    for i in range(5):
        byte = b[at + i]
        n |= (byte & 0x7F) << shift
        if byte < 0x80:
            return n, at + i + 1
        shift += 7
    raise ValueError("a JSON string's length has more than 5 bytes")


def json_double(x: float) -> str:
    """Returns a double within a document: with `.0` if it looks whole, so that it stays a double."""
    text = float_text(x)
    return text if "." in text or "e" in text else text + ".0"


def _double_text(b: bytes, at: int) -> str:
    text = repr(_F64(b, at)[0])
    if "e" in text or "n" in text or (len(text) > 17 and text.endswith(".0")):
        return json_double(_F64(b, at)[0])
    return text


def _opaque(b: bytes, at: int) -> str:
    """Returns a value of a MySQL type that JSON lacks: type byte, length, bytes."""
    kind = b[at]
    n, start = value_length(b, at + 1)
    if start + n > len(b):
        raise ValueError("a JSON value ends beyond its document")
    # Many invalid values may refer to all of the document, of which a time prints nothing.
    raw = b[start : start + (min(n, 8) if kind in _TIMES else n)]
    if kind == 246:
        size = decimal_size(raw[0], raw[1])
        if len(raw) != 2 + size:
            raise ValueError(f"a DECIMAL({raw[0]},{raw[1]}) in JSON has {len(raw) - 2} bytes")
        return decimal_text(raw[0], raw[1])(raw[2:])
    if kind == 11:
        return f'"{packed_time(_I64(raw)[0])}"'
    if kind == 10:
        return f'"{packed_datetime(_I64(raw)[0])[:10]}"'
    if kind in (7, 12):
        return f'"{packed_datetime(_I64(raw)[0])}"'
    text = base64.b64encode(raw).decode()
    if n > 57:  # the server breaks its lines after 76 characters, and then escapes the breaks
        text = "\\n".join([text[i : i + 76] for i in range(0, len(text), 76)])
    return f'"base64:type{kind}:{text}"'


_Text = Callable[[bytes, int, int], str]
"""(document, where the container begins, depth) -> text."""


def _containers(width: int, siblings: Sequence[_Text], often: int) -> tuple[_Text, _Text]:
    """Returns the printers of objects and arrays whose counts and offsets have `width` bytes: 2 in small ones, 4 in
    large.

    `siblings` are those of all kinds of containers, once they are made; `often` as in containers().

    A container is: count, size, an entry for each key (offset, 2 bytes of length), an entry for each value (type byte,
    then the value itself if it is small enough, else its offset), the keys, the values. Offsets count from its own
    first byte."""
    head, key_size, entry_size = 2 * width, width + 2, width + 1
    key_entries = struct.Struct("<HH" if width == 2 else "<IH").iter_unpack
    entries = struct.Struct("<BH" if width == 2 else "<BI").iter_unpack
    counted = struct.Struct("<H" if width == 2 else "<I").unpack_from
    inline = {5: "h", 6: "H"} if width == 2 else {5: "hxx", 6: "Hxx", 7: "i", 8: "I"}
    """Kinds of whole numbers that are inside their entries, as struct reads them there."""
    apart = {kind: unpack for kind, unpack in _NUMBERS.items() if kind not in inline}
    """Whole numbers that are outside of the entries."""
    half, whole = (1 << 15, 1 << 16) if width == 2 else (1 << 31, 1 << 32)
    tables: dict[bytes, tuple[int, int, dict[bytes, str]]] = {}
    kept = 0

    def pattern_of(b: bytes, start: int, raw: bytes) -> str:
        """Returns the % format of an object's text: its quoted keys, and a placeholder for each value. `raw` are the
        entries of the keys: the same entries and bytes mean the same keys."""
        nonlocal kept
        spans = list(key_entries(raw))
        first, last = min([o for o, _ in spans]), max([o + n for o, n in spans])
        gaps = last - first - sum([n for _, n in spans])
        if gaps < 0:
            raise ValueError("a JSON document uses the bytes of its keys more than once")
        if first < last and start + last > len(b):
            raise ValueError("a JSON key ends beyond its document")
        keys = [_quote(b[start + o : start + o + n].decode()).replace("%", "%%") for o, n in spans]
        pattern = "{" + ", ".join([f"{key}: %s" for key in keys]) + "}"
        if gaps > _GAPS:
            return pattern
        blob = b[start + first : start + last]
        kept += len(raw) + len(blob) + 100
        if kept > _KEY_BYTES:
            tables.clear()
            kept = 0
        tables.setdefault(raw, (first, last, {}))[2][blob] = pattern
        return pattern

    def printed(b: bytes, start: int, kind: int, offset: int) -> str:
        """Returns a value that is neither string nor container. `offset` is the value of its entry's bytes."""
        if kind == 0x04:
            return LITERALS[offset & 0xFF]
        if kind in inline:
            if kind == 5:
                offset &= 0xFFFF
                return str(offset - 0x10000 if offset & 0x8000 else offset)
            if kind == 6:
                return str(offset & 0xFFFF)
            return str(offset - whole if kind == 7 and offset & half else offset)
        return scalar(b, kind, start + offset)

    def members(b: bytes, start: int, raw: bytes, depth: int) -> tuple[str, ...]:
        """Returns the texts of all values. `room` prevents an invalid document, in which many entries refer to the same
        bytes, from becoming a text that is much larger than itself."""
        if depth > MAX_DEPTH:
            raise ValueError(TOO_DEEP)
        size = len(b)
        room = 8 * size + 64
        parts: list[str] = []
        for kind, offset in entries(raw):
            if kind == STRING:
                p = start + offset
                n = b[p]
                if n < 0x80:
                    p += 1
                    if p + n > size:
                        raise ValueError(STRING_ENDS)
                    text = _quote(b[p : p + n].decode())
                else:
                    text = scalar(b, STRING, p)
                room -= n
            elif kind == INT16 and width == 2:
                parts.append(str(offset - 0x10000 if offset & 0x8000 else offset))
                continue
            elif kind < 4:
                text = siblings[kind](b, start + offset, depth + 1)
            elif kind == DOUBLE:
                text = _double_text(b, start + offset)
            elif kind in apart:
                text = str(apart[kind](b, start + offset)[0])
            else:
                text = printed(b, start, kind, offset)
            parts.append(text)
            room -= len(text)
            if room < 0:
                raise ValueError(USED_TWICE)
        return tuple(parts)

    def listed(b: bytes, start: int, raw: bytes, depth: int) -> str:
        return "[" + ", ".join(members(b, start, raw, depth)) + "]"

    made = partial(
        MembersPrinters,
        often=often,
        width=width,
        inline=inline,
        readers={**apart, DOUBLE: _double_text},
        containers=siblings.__getitem__,
        string=scalar,
        printed=printed,
    )
    objects, arrays = made(members, array=False), made(listed, array=True)
    known_objects, known_arrays = objects.known, arrays.known

    def object_text(b: bytes, start: int, depth: int) -> str:
        (count,) = counted(b, start)
        if not count:
            return "{}"
        at = start + head
        behind = at + count * key_size
        end = behind + count * entry_size
        if end > len(b):
            raise ValueError(COUNTS_MORE)
        raw = b[at:behind]
        try:
            first, last, patterns = tables[raw]
            pattern = patterns[b[start + first : start + last]]
        except KeyError:
            pattern = pattern_of(b, start, raw)
        raw = b[behind:end]
        kinds = raw[::entry_size]
        text: str = pattern % (known_objects.get(kinds) or objects.seldom(kinds))(b, start, raw, depth)
        return text

    def array_text(b: bytes, start: int, depth: int) -> str:
        (count,) = counted(b, start)
        at = start + head
        end = at + count * entry_size
        if end > len(b):
            raise ValueError(COUNTS_MORE)
        raw = b[at:end]
        kinds = raw[::entry_size]
        text: str = (known_arrays.get(kinds) or arrays.seldom(kinds))(b, start, raw, depth)
        return text

    return object_text, array_text


def containers(often: int) -> Sequence[_Text]:
    """Returns the printers of small objects, large objects, small arrays and large arrays, which are their type bytes
    in order. Containers whose values have the same kinds get a printer of their own after this many; 0 for never."""
    made: list[_Text] = []
    (small_object, small_array), (large_object, large_array) = (_containers(width, made, often) for width in (2, 4))
    made += small_object, large_object, small_array, large_array
    return made


_CONTAINERS, _GENERAL = containers(OFTEN), containers(0)
