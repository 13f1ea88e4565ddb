"""Column types of a TABLE_MAP event: their fields in a row image, their declared names and java.sql.Types numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pymysql.charset import charset_by_id

from headrace.mysql import values

TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24 = 1, 2, 3, 4, 5, 8, 9
DATE, YEAR, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = 10, 13, 15, 16, 17, 18, 19
JSON, NEWDECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 245, 246, 247, 248, 252, 253, 254, 255
NUMERIC = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE})
"""The types that have a bit in the signedness field."""
CHARACTER = frozenset({VARCHAR, VAR_STRING, STRING, BLOB})
"""The types that have a collation, binary strings among them (collation 63)."""
BINARY_COLLATION = 63

METADATA_SIZE = {
    **dict.fromkeys((TINY, SHORT, LONG, LONGLONG, INT24, DATE, YEAR), 0),
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, JSON, BLOB, GEOMETRY), 1),
    **dict.fromkeys((VARCHAR, BIT, NEWDECIMAL, ENUM, SET, VAR_STRING, STRING), 2),
}

_CODECS = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "ascii": "ascii",
    "latin1": "cp1252",
    "gbk": "gbk",
    "gb18030": "gb18030",
    "big5": "big5",
}


class UnknownType(ValueError):
    """A column type or character set that headrace does not decode; the text says which."""


@dataclass(frozen=True, slots=True)
class Field:
    """How a column stands in a row image.

    `shape` "fixed": `code` is its struct code, `size` its bytes. `shape` "var": `code` is that of the length before
    it, `size` the bytes of that length, 3 being read byte by byte. `post` turns the raw field into the value; None
    when it is the value. `codec` is set for text.
    """

    shape: Literal["fixed", "var"]
    code: str
    size: int
    post: values.Post | None = None
    codec: str = ""


def charset_of(collation: int) -> tuple[str, str]:
    """MySQL's name and Python's codec for a collation id. Raises UnknownType."""
    name = "utf8mb4" if 255 <= collation <= 323 else ""
    if not name:
        try:
            name = charset_by_id(collation).name
        except KeyError:
            raise UnknownType(f"collation {collation} is not known") from None
    codec = _CODECS.get(name)
    if codec is None:
        raise UnknownType(f"character set {name} is not decoded yet")
    return name, codec


def real_type(kind: int, meta: int) -> tuple[int, int]:
    """ENUM, SET and CHAR all travel as STRING: the true type, and its length in bytes."""
    if kind != STRING:
        return kind, meta
    first, second = meta & 0xFF, meta >> 8
    if first & 0x30 != 0x30:  # CHAR over 255 bytes: two bits of its length stand inverted in the type byte
        return STRING, second | ((first & 0x30) ^ 0x30) << 4
    return first, second


_INTS = {TINY: ("b", 1), SHORT: ("h", 2), LONG: ("i", 4), LONGLONG: ("q", 8)}


def field_of(kind: int, meta: int, *, unsigned: bool, collation: int, labels: tuple[str, ...]) -> Field:
    """The field of a column; `kind` and `meta` come from real_type. Raises UnknownType."""
    if kind in _INTS:
        code, size = _INTS[kind]
        return Field("fixed", code.upper() if unsigned else code, size)
    if kind == INT24:
        return Field("fixed", "3s", 3, values.uint24 if unsigned else values.int24)
    if kind == FLOAT:
        return Field("fixed", "f", 4, values.float32)
    if kind == DOUBLE:
        return Field("fixed", "d", 8)
    if kind == YEAR:
        return Field("fixed", "B", 1, values.year_text)
    if kind == DATE:
        return Field("fixed", "3s", 3, values.date_text)
    if kind == NEWDECIMAL:
        precision, scale = meta & 0xFF, meta >> 8
        size = values.decimal_size(precision, scale)
        return Field("fixed", f"{size}s", size, values.decimal_text(precision, scale))
    if kind in (DATETIME2, TIMESTAMP2, TIME2):
        if meta > 6:
            raise UnknownType(f"a temporal column has {meta} fractional digits")
        base, make = {DATETIME2: (5, values.datetime2), TIMESTAMP2: (4, values.timestamp2), TIME2: (3, values.time2)}[
            kind
        ]
        size = base + (meta + 1) // 2
        return Field("fixed", f"{size}s", size, make(meta))
    if kind == BIT:
        size = (meta >> 8) + (1 if meta & 0xFF else 0)
        return Field("fixed", f"{size}s", size, values.big_int)
    if kind == ENUM:
        return Field("fixed", "B" if meta == 1 else "H", 1 if meta == 1 else 2, values.enum_label(labels))
    if kind == SET:
        return Field("fixed", f"{meta}s", meta, values.set_labels(labels))
    return _var_field(kind, meta, collation)


_TEMPORAL_FIELDS = {DATETIME2: (5, values.datetime2), TIMESTAMP2: (4, values.timestamp2), TIME2: (3, values.time2)}
_LENGTH_CODES = {1: "B", 2: "H", 3: "3s", 4: "I"}


def _var_field(kind: int, meta: int, collation: int) -> Field:
    if kind in (VARCHAR, VAR_STRING, STRING):
        size = 2 if meta > 255 else 1
    elif kind in (BLOB, JSON, GEOMETRY):
        size = meta
    else:
        raise UnknownType(f"column type {kind} is not decoded yet")
    if size not in _LENGTH_CODES:
        raise UnknownType(f"a column of type {kind} has lengths of {size} bytes")
    if kind == JSON:
        from headrace.mysql.jsonb import json_text

        return Field("var", _LENGTH_CODES[size], size, json_text)
    if kind == STRING and collation == BINARY_COLLATION:
        # The row image drops a BINARY(n)'s trailing zero bytes; they are part of the value.
        return Field("var", _LENGTH_CODES[size], size, lambda raw: raw.ljust(meta, b"\0"))
    if kind == GEOMETRY or collation == BINARY_COLLATION:
        return Field("var", _LENGTH_CODES[size], size)
    return Field("var", _LENGTH_CODES[size], size, codec=charset_of(collation)[1])


_INT_NAMES = {TINY: "tinyint", SHORT: "smallint", INT24: "mediumint", LONG: "int", LONGLONG: "bigint"}
_INT_SQL = {TINY: (-6, 5), SHORT: (5, 4), INT24: (4, 4), LONG: (4, -5), LONGLONG: (-5, 3)}
"""java.sql.Types, signed and unsigned: Canal widens an unsigned column by one step."""
_TEMPORAL = {DATETIME2: ("datetime", 93), TIMESTAMP2: ("timestamp", 93), TIME2: ("time", 92)}
_BLOBS = {1: "tiny", 2: "", 3: "medium", 4: "long"}
_CHAR_BYTES = {"utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "gbk": 2, "big5": 2, "gb18030": 4}


def declared(kind: int, meta: int, *, unsigned: bool, collation: int, labels: tuple[str, ...]) -> tuple[str, int]:
    """The type as a SHOW CREATE TABLE would print it, as far as the event knows, and its java.sql.Types number."""
    suffix = " unsigned" if unsigned else ""
    if kind in _INT_NAMES:
        return _INT_NAMES[kind] + suffix, _INT_SQL[kind][unsigned]
    if kind == NEWDECIMAL:
        return f"decimal({meta & 0xFF},{meta >> 8}){suffix}", 3
    if kind in (FLOAT, DOUBLE):
        return ("float" if kind == FLOAT else "double") + suffix, 7 if kind == FLOAT else 8
    if kind in _TEMPORAL:
        name, number = _TEMPORAL[kind]
        return (f"{name}({meta})" if meta else name), number
    if kind in (ENUM, SET):
        members = ",".join("'" + label.replace("'", "''") + "'" for label in labels)
        return f"{'enum' if kind == ENUM else 'set'}({members})", 12
    if kind == BIT:
        return f"bit({(meta >> 8) * 8 + (meta & 0xFF)})", -7
    if kind == BLOB:
        binary = collation == BINARY_COLLATION
        return _BLOBS[meta] + ("blob" if binary else "text"), 2004 if binary else 2005
    if kind in (VARCHAR, VAR_STRING, STRING):
        fixed = kind == STRING
        if collation == BINARY_COLLATION:
            return f"{'binary' if fixed else 'varbinary'}({meta})", -2 if fixed else -3
        length = meta // _CHAR_BYTES.get(charset_of(collation)[0], 1)
        return f"{'char' if fixed else 'varchar'}({length})", 1 if fixed else 12
    return {DATE: ("date", 91), YEAR: ("year", 12), JSON: ("json", 12), GEOMETRY: ("geometry", -2)}[kind]
