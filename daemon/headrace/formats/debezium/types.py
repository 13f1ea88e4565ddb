"""Columns as Debezium's MySQL connector maps them: the Kafka Connect schema of a field, and its values in JSON."""

from __future__ import annotations

import struct
from base64 import b64encode, urlsafe_b64encode
from binascii import hexlify
from collections.abc import Callable
from datetime import date
from functools import lru_cache
from json.encoder import encode_basestring as quote
from typing import Any

from headrace.formats.debezium.schemas import Schema, fields
from headrace.formats.debezium.settings import DebeziumSettings
from headrace.formats.row_text import Printer
from headrace.large_values import LargeValue
from headrace.model import Column

_INTS = {"tinyint": "int16", "smallint": "int16", "mediumint": "int32", "int": "int32", "bigint": "int64"}
_UNSIGNED = {"tinyint": "int16", "smallint": "int32", "mediumint": "int32", "int": "int64"}
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_GEOMETRIES = frozenset({"geometry", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"})
_GEOMETRIES |= {"geometrycollection", "geomcollection"}


def field_of(column: Column, settings: DebeziumSettings) -> tuple[Schema, Printer]:
    """Returns the schema of a column's values, without `optional` and `field`, and their printer."""
    kind = column.kind
    if kind in _INTS:
        return _integer(column, settings)
    if kind in ("float", "double"):
        double = kind == "double" or "," in column.mysql_type
        return {"type": "double" if double else "float"}, float.__repr__
    if kind == "decimal":
        return _decimal(column, settings)
    if kind == "bit":
        return _bits(column.length)
    if kind in _TEMPORAL:
        return _TEMPORAL[kind](column, settings)
    if kind in _BYTES:
        return _binary(settings.binary)
    if _is_numbered(column):
        return {"type": "int64"}, str
    if kind in ("enum", "set"):
        allowed = ",".join(label.replace("\\", "\\\\").replace(",", "\\,") for label in column.labels)
        name = "io.debezium.data.Enum" if kind == "enum" else "io.debezium.data.EnumSet"
        return _named("string", name, allowed=allowed), quote
    return _OF_ONE_FORM.get(kind, ({"type": "string"}, _text))


def native_style(column: Column, settings: DebeziumSettings) -> tuple[Any, ...] | None:
    """Returns how native code prints a column's values, as field_of() does; None if it can't."""
    kind, text = column.kind, ("text", "base64")
    if kind in _INTS and kind == "bigint" and column.unsigned:
        return ("unscaled",) if settings.bigint_unsigned == "precise" else ("wrapped",)
    if kind in _INTS or kind in ("float", "double") or _is_numbered(column):
        return ("number",)
    if kind == "decimal":
        return {"string": text, "double": ("real",)}.get(settings.decimal, ("unscaled",))
    if kind == "bit":
        return ("truth",) if column.length <= 1 else ("bits", (column.length + 7) // 8)
    if kind == "date":
        return "days", _zero(column, "0")
    if kind == "datetime":
        return "since", 1 if _is_fine(column, settings) else 1000, _zero(column, "0")
    if kind == "time":
        return "since", 1 if _is_fine_time(column, settings) else 1000, ""
    if kind == "timestamp":
        return "zoned", _zero(column, _ZONED_ZERO)
    if kind in _BYTES:
        return "text", "base64" if settings.binary == "bytes" else settings.binary
    if kind == "year":
        return ("year",)
    if kind == "vector":
        return ("json",)
    if kind in _GEOMETRIES or kind == "point":
        return ("point" if kind == "point" else "geometry",)
    return text if kind in _TEXTS or kind in ("enum", "set", "json", "uuid", "inet4", "inet6") else None


def _is_numbered(column: Column) -> bool:
    """Returns whether it is an ENUM or SET whose members are unknown: its values are numbers."""
    return column.kind in ("enum", "set") and not column.labels


def _named(kind: str, name: str, **parameters: str) -> Schema:
    schema: Schema = {"type": kind, "name": name, "version": 1}
    if parameters:
        schema["parameters"] = {key.replace("_", "."): value for key, value in parameters.items()}
    return schema


def _text(value: Any) -> str:
    """Prints texts, and values of unknown types, always as a string."""
    if isinstance(value, bytes):
        return f'"{b64encode(value).decode()}"'
    return quote(str(value))


# -- numbers ------------------------------------------------------------------------------------------------------


def _integer(column: Column, settings: DebeziumSettings) -> tuple[Schema, Printer]:
    kind = column.kind
    if not column.unsigned:
        return {"type": _INTS[kind]}, int.__repr__
    if kind != "bigint":
        return {"type": _UNSIGNED[kind]}, int.__repr__
    if settings.bigint_unsigned == "precise":
        return _decimal_schema(20, 0), _unscaled
    return {"type": "int64"}, lambda value: str(value if value < 1 << 63 else value - (1 << 64))


def _decimal(column: Column, settings: DebeziumSettings) -> tuple[Schema, Printer]:
    """Prints values, which come as text with all digits of their scale."""
    if settings.decimal == "string":
        return {"type": "string"}, quote
    if settings.decimal == "double":
        return {"type": "double"}, lambda value: repr(float(value))
    return _decimal_schema(column.length, column.scale), lambda value: _unscaled(int(value.replace(".", "")))


def _decimal_schema(precision: int, scale: int) -> Schema:
    name = "org.apache.kafka.connect.data.Decimal"
    return _named("bytes", name, scale=str(scale), connect_decimal_precision=str(precision))


def _unscaled(value: int) -> str:
    """Returns the number without its point as Java's BigInteger writes it: two's complement, in as few bytes as
    possible."""
    bits = (value if value >= 0 else ~value).bit_length()
    return f'"{b64encode(value.to_bytes(bits // 8 + 1, "big", signed=True)).decode()}"'


def _bits(length: int) -> tuple[Schema, Printer]:
    if length <= 1:
        return {"type": "boolean"}, lambda value: "true" if value else "false"
    size = (length + 7) // 8
    schema = _named("bytes", "io.debezium.data.Bits", length=str(length))
    return schema, lambda value: f'"{b64encode(value.to_bytes(size, "little")).decode()}"'


# -- bytes --------------------------------------------------------------------------------------------------------


def _binary(mode: str) -> tuple[Schema, Printer]:
    encoders: dict[str, Callable[[bytes], bytes]] = {"base64-url-safe": urlsafe_b64encode, "hex": hexlify}
    encode = encoders.get(mode, b64encode)
    return {"type": "bytes" if mode == "bytes" else "string"}, lambda value: f'"{encode(value).decode()}"'


_GEOMETRY = fields("wkb:bytes srid:int32?")
_POINT = fields("x:double y:double wkb:bytes? srid:int32?")


def geometry(value: bytes) -> str:
    """Prints MySQL's own form: the SRID in 4 bytes little endian, and the well-known binary of OGC."""
    return _geometry(f'"{b64encode(value[4:]).decode()}"', value[:4])


def large_geometry(value: LargeValue) -> str:
    """Does the same for a large one."""
    return _geometry(value.stand_in("base64", 4), value.head(4))


def large_point(value: LargeValue) -> str:
    """Refuses a large value: no POINT is large."""
    raise ValueError(f"a POINT has {value.size} bytes")


def _geometry(wkb: str, srid: bytes) -> str:
    return f'{{"wkb":{wkb},"srid":{int.from_bytes(srid, "little") or "null"}}}'


def point(value: bytes) -> str:
    """Does the same, preceded by both coordinates, which follow byte order and type."""
    x, y = struct.unpack_from("<dd" if value[4] else ">dd", value, 9)
    return f'{{"x":{x!r},"y":{y!r},{geometry(value)[1:]}'


# -- time ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=65536)
def days(text: str) -> int | None:
    """Returns the days since 1970-01-01 of a `YYYY-MM-DD`, by the Gregorian rule for all years from 0; None for an
    invalid day."""
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
    try:
        # Python has no year 0; year 400 is like it, a whole cycle of 146,097 days later.
        return date(year or 400, month, day).toordinal() - 719163 - (0 if year else 146097)
    except ValueError:
        return None


def micros_of_day(text: str) -> int:
    """Returns the microseconds of a `[-]HH:MM:SS[.f]`, where hours may have three digits."""
    sign, text = (-1, text[1:]) if text[0] == "-" else (1, text)
    whole, _, fraction = text.partition(".")
    hours, minutes, seconds = whole.split(":")
    total = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return sign * (total * 1_000_000 + int(f"{fraction:0<6}"))


_ZONED_ZERO = '"1970-01-01T00:00:00Z"'


def _zero(column: Column, epoch: str) -> str:
    """Returns the value for an invalid date."""
    return "null" if column.nullable else epoch


def _date(column: Column, settings: DebeziumSettings) -> tuple[Schema, Printer]:
    zero = _zero(column, "0")

    def text(value: str) -> str:
        number = days(value)
        return zero if number is None else str(number)

    connect = settings.time_precision == "connect"
    return _named("int32", "org.apache.kafka.connect.data.Date" if connect else "io.debezium.time.Date"), text


def _is_fine(column: Column, settings: DebeziumSettings) -> bool:
    """Returns whether a DATETIME is published in microseconds."""
    return column.length > 3 and settings.time_precision != "connect"


def _is_fine_time(column: Column, settings: DebeziumSettings) -> bool:
    """Returns the same for a TIME."""
    mode = settings.time_precision
    return mode == "adaptive_time_microseconds" or (mode == "adaptive" and column.length > 3)


def _datetime(column: Column, settings: DebeziumSettings) -> tuple[Schema, Printer]:
    zero = _zero(column, "0")
    connect = settings.time_precision == "connect"
    fine = _is_fine(column, settings)
    name = "MicroTimestamp" if fine else "Timestamp"
    unit = 1 if fine else 1000

    def text(value: str) -> str:
        number = days(value[:10])
        if number is None:
            return zero
        return str((number * 86_400_000_000 + micros_of_day(value[11:])) // unit)

    return _named("int64", ("org.apache.kafka.connect.data." if connect else "io.debezium.time.") + name), text


def _time(column: Column, settings: DebeziumSettings) -> tuple[Schema, Printer]:
    mode = settings.time_precision
    if _is_fine_time(column, settings):
        return _named("int64", "io.debezium.time.MicroTime"), lambda value: str(micros_of_day(value))
    name = "org.apache.kafka.connect.data.Time" if mode == "connect" else "io.debezium.time.Time"
    return _named("int32", name), lambda value: str(int(micros_of_day(value) / 1000))


def _timestamp(column: Column, settings: DebeziumSettings) -> tuple[Schema, Printer]:
    zero, schema = _zero(column, _ZONED_ZERO), _named("string", "io.debezium.time.ZonedTimestamp")
    return schema, lambda value: zero if value.startswith("0000") else f'"{value[:10]}T{value[11:]}Z"'


_TEMPORAL: dict[str, Callable[[Column, DebeziumSettings], tuple[Schema, Printer]]] = {
    "date": _date,
    "datetime": _datetime,
    "time": _time,
    "timestamp": _timestamp,
}
_WKB = {**_named("struct", "io.debezium.data.geometry.Geometry"), "fields": _GEOMETRY}
_OF_ONE_FORM: dict[str, tuple[Schema, Printer]] = {
    **dict.fromkeys(_TEXTS, ({"type": "string"}, quote)),
    **dict.fromkeys(_GEOMETRIES, (_WKB, geometry)),
    "point": ({**_named("struct", "io.debezium.data.geometry.Point"), "fields": _POINT}, point),
    "json": (_named("string", "io.debezium.data.Json"), quote),
    "vector": (
        {**_named("array", "io.debezium.data.FloatVector"), "items": {"type": "float", "optional": False}},
        str,
    ),
    "year": (_named("int32", "io.debezium.time.Year"), lambda value: str(int(value))),
}
"""Types whose schema and text do not depend on the column or the settings."""
