"""Column types of a TABLE_MAP event: their fields in a row image, their declared names and java.sql.Types numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Literal
from zoneinfo import ZoneInfo

from headrace.model import Column
from headrace.mysql.values import mariadb as mariadb_values
from headrace.mysql.values import old_temporal, values
from headrace.mysql.values.charsets import UNKNOWN, WIDTHS, UnknownType, codec_of, native_charset
from headrace.mysql.values.jsonb import json_text
from headrace.mysql.values.large import MakeLarge, TakesLong, large_binary, large_compressed, large_json, large_text
from headrace_common import numbers

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 11, 12, 13, 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED, VECTOR = 140, 141, 242
COMPRESSED = BLOB_COMPRESSED, VARCHAR_COMPRESSED
JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 245, 246, 247, 248, 252, 253, 254, 255
NUMERIC = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR})
"""Types that have a bit in the signedness field; that of a YEAR says unsigned."""
CHARACTER = frozenset({VARCHAR, VAR_STRING, STRING, BLOB, BLOB_COMPRESSED, VARCHAR_COMPRESSED, VECTOR})
"""Types that have a collation in the metadata, binary strings included (collation 63)."""
CHARACTER_MARIADB = CHARACTER | {GEOMETRY}
"""The same for MariaDB, which gives its geometries one too."""

METADATA_SIZE = {
    **dict.fromkeys((TINY, SHORT, LONG, LONGLONG, INT24, DATE, YEAR, TIMESTAMP, TIME, DATETIME), 0),
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, JSON, BLOB, GEOMETRY, BLOB_COMPRESSED, VECTOR), 1),
    **dict.fromkeys((VARCHAR, BIT, NEWDECIMAL, ENUM, SET, VAR_STRING, STRING, VARCHAR_COMPRESSED), 2),
}


Layout = tuple[Any, ...]
"""A name and its arguments: see for_native_code()."""


@dataclass(frozen=True, slots=True)
class Field:
    """The layout of a column in a row image.

    `shape` "fixed": `code` is its struct code, `size` its bytes. `shape` "var": `code` is that of the length before it,
    `size` the bytes of that length, 3 being read byte by byte. `post` turns the raw field into the value; None if it is
    the value. `codec` is set for text. `layout` describes all of it for native code, if that knows the type. `large`
    makes a value that is too large to be decoded at once; None if none can be. `charset` is that of a text, and
    `unpack` makes the text's bytes from the stored ones; None if they are the same."""

    shape: Literal["fixed", "var"]
    code: str
    size: int
    post: values.Post | None = None
    codec: str = ""
    layout: Layout | None = None
    large: MakeLarge | None = None
    charset: str = ""
    unpack: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """Options for values: the IANA zone that TIMESTAMPs are printed in (never the host's), whether ENUM and SET are
    given as the numbers that the server stores, and the maximum bytes of a decompressed value."""

    time_zone: str = "UTC"
    enum_index: bool = False
    largest: int = mariadb_values.LARGEST


DEFAULTS = ValueOptions()


def real_type(kind: int, meta: int) -> tuple[int, int]:
    """Returns the true type of ENUM, SET and CHAR, which are all sent as STRING, and its length in bytes."""
    if kind != STRING:
        return kind, meta
    first, second = meta & 0xFF, meta >> 8
    if first & 0x30 != 0x30:  # CHAR over 255 bytes: two bits of its length are inverted in the type byte
        return STRING, second | ((first & 0x30) ^ 0x30) << 4
    return first, second


_INTS = {TINY: ("b", 1), SHORT: ("h", 2), LONG: ("i", 4), LONGLONG: ("q", 8)}
_LENGTH_CODES = {1: "B", 2: "H", 3: "3s", 4: "I"}


def field_of(kind: int, meta: int, column: Column, options: ValueOptions = DEFAULTS) -> Field:
    """Returns the field of a column; `kind` and `meta` come from real_type(). It depends on the column's `unsigned`,
    `charset`, `labels` and the declared type, which alone distinguishes MariaDB's uuid, inet4 and inet6 from binary
    strings. Columns that are equal in these have the same Field, whatever their tables. Raises UnknownType."""
    like = Column("", column.mysql_type, 0, column.unsigned, True, column.charset, column.labels, column.length)
    return _field_of(kind, meta, like, options)


@lru_cache(maxsize=4_096)
def _field_of(kind: int, meta: int, column: Column, options: ValueOptions) -> Field:
    if kind in _INTS:
        code, size = _INTS[kind]
        layout = ("int", size, not column.unsigned)
        return Field("fixed", code.upper() if column.unsigned else code, size, layout=layout)
    if kind == INT24:
        post = values.little_int if column.unsigned else values.int24
        return Field("fixed", "3s", 3, post, layout=("int", 3, not column.unsigned))
    if kind == FLOAT:
        return Field("fixed", "f", 4, numbers.float32, layout=("float",))
    if kind == DOUBLE:
        return Field("fixed", "d", 8, layout=("double",))
    if kind == YEAR:
        return Field("fixed", "B", 1, values.year_text, layout=("year",))
    if kind == NEWDECIMAL:
        precision, scale = meta & 0xFF, meta >> 8
        size = values.decimal_size(precision, scale)
        text = values.decimal_text(precision, scale)
        return Field("fixed", f"{size}s", size, text, layout=("decimal", precision, scale))
    if kind == BIT:
        size = (meta >> 8) + (1 if meta & 0xFF else 0)
        return Field("fixed", f"{size}s", size, values.big_int, layout=("bit", size))
    if kind == ENUM:
        code = {1: "B", 2: "H"}[meta]
        if options.enum_index or not column.labels:
            return Field("fixed", code, meta, layout=("int", meta, False))
        return Field("fixed", code, meta, values.enum_label(column.labels), layout=("enum", meta, column.labels))
    if kind == SET:
        if options.enum_index or not column.labels:
            return Field("fixed", f"{meta}s", meta, values.little_int, layout=("int", meta, False))
        labels = values.set_labels(column.labels)
        return Field("fixed", f"{meta}s", meta, labels, layout=("set", meta, column.labels))
    if kind in (DATE, DATETIME2, TIMESTAMP2, TIME2):
        return _temporal_field(kind, meta, options)
    if kind in (DATETIME, TIMESTAMP, TIME):
        return _old_temporal_field(kind, column, options)
    return _var_field(kind, meta, column, options.largest)


def _zone(options: ValueOptions) -> ZoneInfo | None:
    return None if options.time_zone == "UTC" else ZoneInfo(options.time_zone)


def for_native_code(layout: Layout) -> Layout:
    """Returns a layout as `native/src/specs.rs` reads it: with the tables of its character set, or of its time zone.
    They take up to a tenth of a second, once in a process."""
    if layout[0] == "text":
        return *layout[:2], native_charset(layout[2])
    if layout[0] == "timestamp":
        return *layout[:3], offset_changes(layout[3])
    if layout[0] == "compressed":
        return *layout[:3], for_native_code(layout[3])
    return layout


_LAST_SECOND = (1 << 32) - 1


@lru_cache(maxsize=16)
def offset_changes(time_zone: str) -> tuple[tuple[int, int], ...]:
    """Returns from which seconds since 1970 on local time is how many seconds ahead of UTC; () for UTC. An offset that
    is valid for less than a day is not found: there is none since 1970."""
    if time_zone == "UTC":
        return ()
    zone = ZoneInfo(time_zone)

    def offset(at: int) -> int:
        return int((datetime.fromtimestamp(at, zone).utcoffset() or timedelta()).total_seconds())

    changes = [(0, offset(0))]
    for day in range(86_400, _LAST_SECOND + 86_400, 86_400):
        before, after = day - 86_400, min(day, _LAST_SECOND)
        if (new := offset(after)) == changes[-1][1]:
            continue
        while after - before > 1:
            middle = (before + after) // 2
            before, after = (middle, after) if offset(middle) == changes[-1][1] else (before, middle)
        changes.append((after, new))
    return tuple(changes)


def _temporal_field(kind: int, meta: int, options: ValueOptions) -> Field:
    if kind == DATE:
        return Field("fixed", "3s", 3, values.date_text, layout=("date",))
    if meta > 6:
        raise UnknownType(f"a temporal column has {meta} fractional digits")
    layout: Layout
    if kind == TIMESTAMP2:
        base, post, layout = 4, values.timestamp2(meta, _zone(options)), ("timestamp", meta, False, options.time_zone)
    elif kind == DATETIME2:
        base, post, layout = 5, values.datetime2(meta), ("datetime", meta, False)
    else:
        base, post, layout = 3, values.time2(meta), ("time", meta, False)
    size = base + (meta + 1) // 2
    return Field("fixed", f"{size}s", size, post, layout=layout)


def _old_temporal_field(kind: int, column: Column, options: ValueOptions) -> Field:
    """Returns the field of an old temporal type. The digits of the fraction are known only from the declared type; a
    column from the event alone counts as one without a fraction, and rows that have one do not fit it."""
    fsp = column.length
    if column.kind != _TEMPORAL[kind] or not 0 <= fsp <= 6:
        raise UnknownType(f"a column of type {kind} (old {_TEMPORAL[kind]}) is declared as {column.mysql_type}")
    layout: Layout = (_TEMPORAL[kind], fsp, True)
    if kind == TIMESTAMP:
        return Field("fixed", *old_temporal.timestamp(fsp, _zone(options)), layout=(*layout, options.time_zone))
    return Field("fixed", *(old_temporal.datetime if kind == DATETIME else old_temporal.time)(fsp), layout=layout)


def _var_field(kind: int, meta: int, column: Column, largest: int) -> Field:
    if kind in (VARCHAR, VAR_STRING, STRING, VARCHAR_COMPRESSED):
        size = 2 if meta > 255 else 1
    elif kind in (BLOB, JSON, GEOMETRY, BLOB_COMPRESSED, VECTOR):
        size = meta
    else:
        raise UnknownType(f"column type {kind} is not decoded")
    if size not in _LENGTH_CODES:
        raise UnknownType(f"a column of type {kind} has lengths of {size} bytes")
    codec, post = _text_or_bytes(kind, meta, column, largest)
    layout, large = _var_layout(kind, meta, size, column, largest), _large(kind, size, column, largest)
    text = kind in CHARACTER and kind not in _OWN_TEXT and column.charset != "binary"
    return Field(
        "var",
        _LENGTH_CODES[size],
        size,
        post,
        codec,
        layout,
        large,
        column.charset if text else "",
        partial(_decompressed, largest) if text and kind in COMPRESSED else None,
    )


def _large(kind: int, size: int, column: Column, largest: int) -> MakeLarge | None:
    if kind in COMPRESSED:
        return large_compressed(column.charset, largest)
    if size < 2:  # at most 255 bytes
        return None
    if kind == JSON:
        return large_json
    if kind == GEOMETRY or (kind == BLOB and column.charset == "binary"):
        return large_binary
    return large_text(column.charset) if kind == BLOB else None


def _var_layout(kind: int, meta: int, size: int, column: Column, largest: int) -> Layout | None:
    if kind == JSON:
        return "json", size
    if kind == GEOMETRY:
        return "bytes", size, 0
    if kind == VECTOR:
        return "vector", size
    if kind == STRING and mariadb_values.FIXED_BINARY.get(column.kind) == meta:
        return (column.kind,)
    if kind not in CHARACTER or column.charset == UNKNOWN:
        return None
    binary, pad = column.charset == "binary", meta if kind == STRING else 0
    layout: Layout = ("bytes", size, pad) if binary else ("text", size, column.charset)
    return ("compressed", size, largest, layout) if kind in COMPRESSED else layout


def _text_or_bytes(kind: int, meta: int, column: Column, largest: int) -> tuple[str, values.Post | None]:
    """Returns what makes the value of a variable field: Python's codec, or a function, or neither for plain bytes."""
    if kind in _OWN_TEXT:
        return "", _OWN_TEXT[kind]
    if kind == STRING and mariadb_values.FIXED_BINARY.get(column.kind) == meta:
        return "", mariadb_values.FIXED_BINARY_TEXT[column.kind]
    if column.charset == "binary" or kind == GEOMETRY:
        if kind in COMPRESSED:
            return "", partial(_decompressed, largest)
        if kind == STRING:  # the row image lacks a BINARY(n)'s trailing zero bytes; they are part of the value
            return "", lambda raw: raw.ljust(meta, b"\0")
        return "", None
    codec = codec_of(column.charset)
    decode = codec.decode
    if kind in COMPRESSED:
        return "", lambda raw: decode(_decompressed(largest, raw))
    return (codec.python, None) if codec.python else ("", decode)


_AT_ONCE = 8 * 1024
"""Maximum size of a value that is decompressed at once: a small event may have many of them."""


def _decompressed(largest: int, raw: bytes) -> bytes:
    if _AT_ONCE < (size := mariadb_values.decompressed_size(raw[:5], len(raw))) <= largest:
        raise TakesLong(size)
    return mariadb_values.decompressed(raw, largest)


_OWN_TEXT: dict[int, values.Post] = {JSON: json_text, VECTOR: numbers.vector_text}
_INT_NAMES = {TINY: "tinyint", SHORT: "smallint", INT24: "mediumint", LONG: "int", LONGLONG: "bigint"}
_OTHER_NAMES = {DATE: "date", YEAR: "year", JSON: "json", GEOMETRY: "geometry", VECTOR: "vector"}
_TEMPORAL = {DATETIME2: "datetime", TIMESTAMP2: "timestamp", TIME2: "time"}
_TEMPORAL |= {DATETIME: "datetime", TIMESTAMP: "timestamp", TIME: "time"}
_BLOBS = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_JAVA_INTS = {"tinyint": (-6, 5), "smallint": (5, 4), "mediumint": (4, 4), "int": (4, -5), "bigint": (-5, 3)}
_JAVA = {
    **dict.fromkeys(("decimal", "numeric"), 3),
    "float": 7,
    "double": 8,
    "bit": -7,
    **dict.fromkeys(("datetime", "timestamp"), 93),
    "time": 92,
    "date": 91,
    "year": 12,
    **dict.fromkeys(("char", "uuid", "inet4", "inet6"), 1),
    **dict.fromkeys(("varchar", "enum", "set", "json", "vector"), 12),
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext"), 2005),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), 2004),
    **dict.fromkeys(("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring"), 2004),
    **dict.fromkeys(("multipolygon", "geometrycollection", "geomcollection"), 2004),
}


def java_type(kind: str, *, unsigned: bool = False) -> int:
    """Returns the java.sql.Types number of a type by its bare name in lower case, as Canal 1.1 writes it.

    Canal widens an unsigned integer by one step only if the value is too large for the signed type; here the column
    decides, so that the number does not change from row to row. An unknown name is OTHER (1111)."""
    if kind in _JAVA_INTS:
        return _JAVA_INTS[kind][unsigned]
    return _JAVA.get(kind, 1111)


def column_from_map(
    name: str,
    kind: int,
    meta: int,
    *,
    unsigned: bool = False,
    charset: str = "",
    labels: tuple[str, ...] = (),
    nullable: bool = True,
) -> Column:
    """Returns the Column as a TABLE_MAP with full metadata shows it. `kind` and `meta` come from real_type(); `charset`
    is MySQL's name, `labels` are already decoded. Raises UnknownType."""
    declared, length, scale = _declared(kind, meta, charset, labels)
    unsigned = unsigned and kind in NUMERIC and kind != YEAR
    number = java_type(declared.partition("(")[0], unsigned=unsigned)
    return Column(
        name,
        declared + " unsigned" if unsigned else declared,
        number,
        unsigned,
        nullable,
        charset if (kind in CHARACTER and kind != VECTOR) or kind in (ENUM, SET) else "",
        labels,
        length,
        scale,
    )


def _declared(kind: int, meta: int, charset: str, labels: tuple[str, ...]) -> tuple[str, int, int]:
    """Returns the type as SHOW CREATE TABLE prints it, as far as the event shows it, with Column's length and scale."""
    if kind in _INT_NAMES:
        return _INT_NAMES[kind], 0, 0
    if kind == NEWDECIMAL:
        return f"decimal({meta & 0xFF},{meta >> 8})", meta & 0xFF, meta >> 8
    if kind in (FLOAT, DOUBLE):
        return "float" if kind == FLOAT else "double", 0, 0
    if kind in _TEMPORAL:
        return f"{_TEMPORAL[kind]}({meta})" if meta else _TEMPORAL[kind], meta, 0
    if kind in (ENUM, SET):
        members = ",".join("'" + label.replace("'", "''") + "'" for label in labels)
        return f"{'enum' if kind == ENUM else 'set'}({members})", 0, 0
    if kind == BIT:
        bits = (meta >> 8) * 8 + (meta & 0xFF)
        return f"bit({bits})", bits, 0
    binary = charset == "binary"
    if kind in (BLOB, BLOB_COMPRESSED):
        if meta not in _BLOBS:
            raise UnknownType(f"a BLOB has lengths of {meta} bytes")
        return _BLOBS[meta] + ("blob" if binary else "text"), 0, 0
    if kind in (VARCHAR, VAR_STRING, STRING, VARCHAR_COMPRESSED):
        length = meta if charset in ("binary", UNKNOWN) else meta // WIDTHS[charset]
        if kind == STRING:
            return f"{'binary' if binary else 'char'}({length})", length, 0
        return f"{'varbinary' if binary else 'varchar'}({length})", length, 0
    if kind in _OTHER_NAMES:
        return _OTHER_NAMES[kind], 0, 0
    raise UnknownType(f"column type {kind} is not decoded")
