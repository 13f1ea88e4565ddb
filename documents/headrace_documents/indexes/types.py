"""MySQL's types in Elasticsearch: the mapping of a column, and the conversion of Canal's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import orjson

from headrace_documents.documents import float_or_text, integer

Value = Any
"""A JSON value."""
Converter = Callable[[str], Value]
Property = dict[str, Any]
"""One of the `properties` of a mapping."""

_DECLARED = re.compile(r"\s*(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(.*)", re.DOTALL)
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "year"})
_FLOATS = {"float": "float", "double": "double", "real": "double"}
_DECIMALS = frozenset({"decimal", "numeric", "dec", "fixed"})
_TEXTS = frozenset({"char", "varchar", "nchar", "nvarchar", "tinytext", "text", "mediumtext", "longtext"})
_BYTES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_SHAPES = frozenset(
    {
        "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
        "geomcollection", "geometrycollection",
    }
)  # fmt: skip
_LONG_DIGITS = 18
"""A decimal number of up to this many digits always fits a long."""
_KEYWORD = {"type": "keyword", "ignore_above": 8191}
"""Elasticsearch accepts at most 32,766 bytes; in UTF-8 each character may have four."""
_OFFSET = re.compile(r"[+-]\d\d:\d\d")
_ZERO = re.compile(r"0000-|\d{4}-00|\d{4}-\d\d-00")


class TypeRules(NamedTuple):
    """How columns become fields. `zone` and `timestamp_zone` are those of DATETIME and TIMESTAMP, an offset such as
    "+08:00" or a name; `analyzer` that of texts, "" for Elasticsearch's own."""

    decimals: Literal["keyword", "double", "scaled_float"] = "keyword"
    booleans: bool = False
    """TINYINT(1), BOOL and BIT(1) are true and false."""
    zone: str = "+00:00"
    timestamp_zone: str = "+00:00"
    analyzer: str = ""


class FieldType(NamedTuple):
    """A field. `convert` is None if the text is unchanged; `mapping` is None if the column is unknown, and
    Elasticsearch guesses."""

    mapping: Property | None
    convert: Converter | None


@lru_cache(maxsize=8192)
def field_type(mysql_type: str, rules: TypeRules) -> FieldType:
    """Returns the field of a column by its declared type, such as `bigint(20) unsigned`; "" if that is unknown."""
    found = _DECLARED.fullmatch(mysql_type.lower())
    base, length, scale, rest = found.groups() if found else ("", None, None, "")
    if rules.booleans and (base in ("bool", "boolean") or (base in ("tinyint", "bit") and length == "1")):
        return FieldType({"type": "boolean"}, _boolean)
    if base in ("bool", "boolean") or base in _INTEGERS:
        unsigned = base == "bigint" and "unsigned" in rest
        return FieldType({"type": "unsigned_long" if unsigned else "long"}, integer)
    if base == "bit":
        return FieldType({"type": "unsigned_long" if length == "64" else "long"}, integer)
    if base in _FLOATS:
        return FieldType({"type": _FLOATS[base]}, float_or_text)
    if base in _DECIMALS:
        return _decimal(int(length or 10), int(scale or 0), rules)
    if base in _TEXTS or base == "json":
        return FieldType(_text(rules, sortable=base != "json"), None)
    if base in ("enum", "set", "time", "uuid"):
        return FieldType(dict(_KEYWORD), None)
    if base == "date":
        return FieldType({"type": "date"}, _date)
    if base in ("datetime", "timestamp"):
        return FieldType({"type": "date"}, moment(rules.zone if base == "datetime" else rules.timestamp_zone))
    if base in ("inet4", "inet6"):
        return FieldType({"type": "ip"}, None)
    if base in _BYTES or base in _SHAPES:
        return FieldType({"type": "binary"}, None)
    if base == "vector":
        return FieldType({"type": "float"}, json_value)
    return FieldType(None, None)


def _decimal(precision: int, scale: int, rules: TypeRules) -> FieldType:
    if rules.decimals == "double":
        return FieldType({"type": "double"}, float_or_text)
    if rules.decimals == "scaled_float" and precision <= _LONG_DIGITS:
        return FieldType({"type": "scaled_float", "scaling_factor": 10**scale}, float_or_text)
    return FieldType(dict(_KEYWORD), None)


def _text(rules: TypeRules, *, sortable: bool) -> Property:
    made: Property = {"type": "text"}
    if rules.analyzer:
        made["analyzer"] = rules.analyzer
    if sortable:
        made["fields"] = {"keyword": {"type": "keyword", "ignore_above": 256}}
    return made


# -- values -----------------------------------------------------------------------------------------------------------


def _boolean(text: str) -> Value:
    return text not in ("0", "", "b'0'")


def json_value(text: str) -> Value:
    """Returns the value of a JSON text; invalid JSON stays a text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _date(text: str) -> Value:
    """Returns a date; None for dates that the calendar does not have: 0000-00-00, and those without a month or a
    day."""
    return None if _ZERO.match(text) else text


@lru_cache(maxsize=64)
def moment(zone: str) -> Converter:
    """Returns a function that turns a DATETIME or TIMESTAMP in a zone into a date of Elasticsearch; None for invalid
    ones. Raises zoneinfo.ZoneInfoNotFoundError."""
    if _OFFSET.fullmatch(zone):

        def fixed(text: str) -> Value:
            return None if _ZERO.match(text) else f"{text[:10]}T{text[11:] or '00:00:00'}{zone}"

        return fixed
    named = ZoneInfo(zone)

    def by_rules(text: str) -> Value:
        if _ZERO.match(text):
            return None
        try:
            return datetime.fromisoformat(text).replace(tzinfo=named).isoformat()
        except ValueError:
            return text

    return by_rules
