"""Generates the decoder of the rows of a SELECT's result: straight-line Python over strings with their lengths before
them (wire format: MySQL internals manual, "Protocol::ResultsetRow"), to the same values as the binlog's rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from headrace.model import ABSENT, Column, Row
from headrace.mysql.values import values
from headrace.mysql.values.charsets import UNKNOWN, UnknownType, codec_of
from headrace.mysql.values.codewriter import CodeWriter
from headrace.mysql.values.column_types import Layout, ValueOptions
from headrace.mysql.values.large import MakeLarge, large_binary, large_text, least_of
from headrace.mysql.values.mariadb import FIXED_BINARY
from headrace_common import numbers

INTS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
FLOATS = frozenset({"float", "double"})
TEMPORAL = frozenset({"date", "datetime", "timestamp", "time", "year"})
GEOMETRIES = frozenset({"geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"})
GEOMETRIES |= {"multipolygon", "geometrycollection", "geomcollection"}
TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})

Texts = Callable[[int, MakeLarge | None], tuple[Callable[[bytes], str] | None, MakeLarge | None]]
"""(column, function for its large values) -> functions for its texts, and its large values. None raises
UnicodeDecodeError for a text that has no Unicode characters."""
TextDecoder = Callable[[bytes, int, int, int], tuple[list[Row], int, int]]
"""(bytes, start, count, end) -> this many rows, where they end, and where the last one's packet begins. `end` is that
of the only row if it is too large for a packet's header, else 0."""


def make_text_decoder(
    columns: Sequence[Column],
    present: Sequence[int],
    options: ValueOptions,
    texts: Texts | None = None,
    only: Sequence[int] = (),
) -> TextDecoder:
    """Returns the decoder of rows of `columns`, of which the result has those with the numbers `present`; others are
    ABSENT. Raises UnknownType. The decoder raises ValueError, IndexError or KeyError for invalid bytes,
    UnicodeDecodeError for a text that has no Unicode characters unless `texts` decodes those. Large values are
    LargeValue. With `only`, in place of each row there is the value of that column, or a tuple of several."""
    w = CodeWriter()
    span, least = w.bind("span", text_span), w.bind("least_of", least_of)
    w.put(0, "def decode(b, p, count, big):")
    w.put(1, "rows = []; add = rows.append; at = p")
    if len(present) < len(columns):
        absent = [f"c{i}" for i in range(len(columns)) if i not in set(present)]
        w.put(1, f"{' = '.join(absent)} = {w.bind('ABSENT', ABSENT)}")
    w.put(1, "for _ in range(count):")
    w.put(2, "at = p")
    w.put(2, "e = big or p + 4 + (b[p] | b[p + 1] << 8 | b[p + 2] << 16); p += 4")
    for i in present:
        if only and i not in only:
            w.put(2, "n = b[p]")
            w.put(2, f"p = p + 1 + n if n < 251 else p + 1 if n == 251 else {span}(b, p)[1]")
            continue
        template, value = text_value(columns[i], options)
        large = _large(columns[i]) if not only else None
        if texts is not None and columns[i].kind in TEXTS and columns[i].charset != "binary":
            decode, large = texts(i, large)
            if decode is not None:
                template, value = "F({})", decode
        if value is not None:
            template = template.replace("F", w.bind(f"value{i}", value), 1)
        w.put(2, "n = b[p]")
        w.put(2, f"if n < 251: q = p + 1 + n; c{i} = {template.format('b[p + 1:q]')}; p = q")
        w.put(2, f"elif n == 251: c{i} = None; p += 1")
        made = template.format("b[s:p]")
        if large is not None:
            made = f"{w.bind(f'large{i}', large)}(b, s, p, {least}(e - at)) or {made}"
        w.put(2, f"else: s, p = {span}(b, p); c{i} = {made}")
    w.put(2, "if p != e: raise DataOverrun(f'the values of a row end at byte {p}, the row at {e}')")
    row = f"({''.join(f'c{i}, ' for i in only or range(len(columns)))})"
    w.put(2, f"add({row if len(only) != 1 else f'c{only[0]}'})")
    w.put(1, "return rows, p, at")
    decoder: TextDecoder = w.compiled()
    return decoder


def _large(column: Column) -> MakeLarge | None:
    if column.kind == "json":
        return large_text("utf8mb4")
    if column.kind in TEXTS and column.charset != "binary":
        return large_text(column.charset)
    return large_binary if column.kind in BYTES or column.kind in GEOMETRIES or column.kind in TEXTS else None


def text_span(b: bytes, p: int) -> tuple[int, int]:
    """Returns where a value begins and ends whose length is at `p`. Raises ValueError for an invalid length, and for
    the end of an error."""
    n = b[p]
    if n < 251:
        return p + 1, p + 1 + n
    if n == 0xFC:
        size, start = b[p + 1] | b[p + 2] << 8, p + 3
    elif n == 0xFD:
        size, start = b[p + 1] | b[p + 2] << 8 | b[p + 3] << 16, p + 4
    elif n == 0xFE and p + 9 <= len(b):
        size, start = int.from_bytes(b[p + 1 : p + 9], "little"), p + 9
    else:
        raise ValueError(f"a value has a length that begins with {n:#x}")
    if start + size > len(b):
        raise ValueError("a value ends beyond its row")
    return start, start + size


class _Numbers(dict[bytes, int]):
    """Small integers by their text, which is faster than int(); others are made when needed."""

    def __missing__(self, raw: bytes) -> int:
        return int(raw)


_SMALL = _Numbers((str(i).encode(), i) for i in range(-128, 256))


def text_value(column: Column, options: ValueOptions) -> tuple[str, Any]:
    """Returns how the value of a column is made from what expression_of() selects: an expression with {} for the bytes,
    and the value of its F. Raises UnknownType."""
    kind = column.kind
    if kind in ("tinyint", "smallint"):
        return "F[{}]", _SMALL
    if kind in INTS:
        return "int({})", None
    if kind == "bit":
        return "F({})", values.big_int
    if kind == "float":
        return "F({})", _float_value
    if kind == "double":
        return "float({})", None
    if kind == "decimal":
        return ("F({})", _without_zeros) if column.unsigned else ("{}.decode()", None)
    if kind in ("enum", "set"):
        if options.enum_index:
            return "F[{}]", _SMALL
        return "F[{}]", _labels(column)
    if kind == "year":
        return "F({})", _year
    if kind == "timestamp" and options.time_zone != "UTC":
        return "F({})", _in_zone(ZoneInfo(options.time_zone))
    if kind in TEMPORAL or kind == "json" or kind in FIXED_BINARY:
        return "{}.decode()", None
    if kind == "vector" and column.charset != "binary":
        return "F({})", numbers.vector_text
    if kind in BYTES or kind in GEOMETRIES or kind == "vector" or (kind in TEXTS and column.charset == "binary"):
        return "{}", None
    if kind in TEXTS:
        codec = codec_of(column.charset)
        if codec.python == "utf-8":
            return "{}.decode()", None
        return ("{}.decode(F)", codec.python) if codec.python else ("F({})", codec.decode)
    raise UnknownType(f"a column of type {column.mysql_type} is not read")


_SIZES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_ANY_LENGTH = 4
"""Bytes of a length; native code uses them only for rows of the binlog."""


def native_layout(column: Column, options: ValueOptions) -> Layout | None:
    """Returns the layout of a row image into which native code converts what expression_of() selects; see
    for_native_code(). None for a type that it does not know. What comes as the text that is published stays one."""
    kind = column.kind
    if kind in INTS:
        return "int", _SIZES[kind], not column.unsigned
    if kind in FLOATS or kind in ("date", "year"):
        return (kind,)
    if kind == "bit":
        return "bit", (column.length + 7) // 8
    if kind == "decimal":
        return "decimal", column.length, column.scale
    if kind in ("enum", "set"):
        size = 2 if kind == "enum" else 8
        return ("int", size, False) if options.enum_index else (kind, size, column.labels)
    if kind in ("datetime", "time"):
        return kind, column.length, False
    if kind == "timestamp":
        return kind, column.length, False, options.time_zone
    if kind == "json" or kind in FIXED_BINARY:
        return "text", _ANY_LENGTH, "utf8mb4"
    if kind == "vector" and column.charset != "binary":
        return "vector", _ANY_LENGTH
    if kind in BYTES or kind in GEOMETRIES or kind == "vector" or (kind in TEXTS and column.charset == "binary"):
        return "bytes", _ANY_LENGTH, 0
    return ("text", _ANY_LENGTH, column.charset) if kind in TEXTS and column.charset != UNKNOWN else None


def _float_value(raw: bytes) -> float:
    return numbers.float32(float(raw))


def _year(raw: bytes) -> str:
    """Returns a year: for MariaDB's YEAR(2) the server shows two digits, and its binlog has all four."""
    text = raw.decode()
    if len(text) == 2:
        return f"{19 if text >= '70' else 20}{text}"
    return text


def _without_zeros(raw: bytes) -> str:
    """Returns a DECIMAL without the zeros of ZEROFILL, which the binlog does not have."""
    text = raw.decode()
    if text[0] == "0" and text[1:2] not in ("", "."):
        whole, point, fraction = text.partition(".")
        return f"{whole.lstrip('0') or '0'}{point}{fraction}"
    return text


class _Members(dict[bytes, str]):
    """The texts of a SET by its number as text, each made once; KeyError for a number that is invalid for the
    column."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        super().__init__()
        self._labels = labels

    def __missing__(self, raw: bytes) -> str:
        bits = int(raw)
        if bits >> len(self._labels):
            raise KeyError(f"a SET value has bits {bits:#x}, its column has {len(self._labels)} members")
        text = ",".join(label for i, label in enumerate(self._labels) if bits >> i & 1)
        if len(self) < _KEPT:
            self[raw] = text
        return text


_KEPT = 4096


def _labels(column: Column) -> dict[bytes, str]:
    if column.kind == "set":
        return _Members(column.labels)
    return {str(i).encode(): label for i, label in enumerate(("", *column.labels))}


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _in_zone(zone: ZoneInfo) -> Callable[[bytes], str]:
    """Returns a function that prints a TIMESTAMP, given as text in UTC, in another zone."""
    print_seconds = values.seconds_in_zone(zone)

    @lru_cache(maxsize=65536)
    def minute(raw: bytes) -> int:
        moment = datetime.strptime(raw.decode() + "+0000", "%Y-%m-%d %H:%M%z")
        return int((moment - _EPOCH).total_seconds())

    def text(raw: bytes) -> str:
        if raw.startswith(b"0000"):
            return raw.decode()
        return print_seconds(minute(raw[:16]) + int(raw[17:19])) + raw[19:].decode()

    return text


BROKEN = (ValueError, IndexError, KeyError, struct.error, OverflowError)
"""Errors of a decoder for bytes that are no rows of its table."""
