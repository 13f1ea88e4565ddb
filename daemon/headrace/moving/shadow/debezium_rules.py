"""Why a field of Debezium's message differs from ours, by the titles of docs/debezium-format.md."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import Any

import orjson

from headrace.moving.shadow.changes import ABSENT, TOMBSTONE, Change

UNSIGNED = "BIGINT UNSIGNED"
VERSION = "`source.version`"
CONNECTOR = "`source.connector`"
QUERY = "`source.query`"
THREAD = "`source.thread` of a schema change"
ROW = "`source.row` of a schema change"
DEFAULTS = "Defaults and comments of columns in schemas"
LABELS = "A comma in an ENUM's label"
YEAR = "YEAR 0000"
YEARS = "Years below 100"
JSON = "JSON text"
FLOAT = "FLOAT(m,d)"
BOOLEAN = "BOOLEAN in DDL"
DDL_VIEWS = "TRUNCATE and views in the schema topic"
DROP_TABLE = "`ddl` of a DROP TABLE"
DROP_DATABASE = "`tableChanges` of DROP DATABASE"
INDEX = "`source.table` of CREATE INDEX and DROP INDEX"
TABLE_CHANGES = "`tableChanges`"
TRUNCATE = "Truncate events"
TOMBSTONES = "Key of a table without PRIMARY KEY"
RULES = (
    *(UNSIGNED, VERSION, CONNECTOR, QUERY, THREAD, ROW, DEFAULTS, LABELS, YEAR, YEARS, JSON, FLOAT, BOOLEAN),
    *(DDL_VIEWS, DROP_TABLE, DROP_DATABASE, INDEX, TABLE_CHANGES, TRUNCATE, TOMBSTONES),
)
_LEFT_OUT = frozenset({"default", "doc"})
_NOT_OURS = frozenset({"defaultCharsetName", "length", "comment"})
"""Of `tableChanges`."""
_DAYS_APART = frozenset({693_960, 693_961, 730_485})
"""In 1,900 and 2,000 years."""
_UNITS = (1, 86_400_000, 86_400_000_000)
"""Of a day: a date, and times in milliseconds and microseconds."""


def explain(name: str, theirs: Any, ours: Any, old: Change, new: Change) -> str | None:
    """See Explain."""
    part, _, column = name.partition(".")
    if part in ("before", "after") and column:
        return _value(theirs, ours)
    match name:
        case "source.version":
            return VERSION
        case "source.connector":
            return CONNECTOR if {theirs, ours} == {"mysql", "mariadb"} else None
        case "source.query":
            return QUERY if None in (theirs, ours) or ABSENT in (theirs, ours) else None
        case "source.thread":
            return THREAD if new.kind == "DDL" else None
        case "source.row":
            return ROW if new.kind == "DDL" else None
        case "source.table":
            return INDEX if not theirs and "INDEX" in _ddl(new) else None
        case "schema":
            return _schemas(theirs, ours)
        case "ddl":
            return DROP_TABLE if all(_ddl(one).lstrip().startswith("DROP TABLE") for one in (old, new)) else None
        case "tableChanges":
            if not theirs and _ddl(new).lstrip().startswith("DROP"):
                return DROP_DATABASE
            return TABLE_CHANGES if _without(theirs, _NOT_OURS) == _without(ours, _NOT_OURS) else None
    return None


def alone(change: Change, ours: bool) -> str | None:
    """See Alone."""
    if ours and change.kind == "DDL" and not change.fields.get("tableChanges"):
        return DDL_VIEWS
    if not ours and change.kind == "TRUNCATE":
        return TRUNCATE
    return TOMBSTONES if not ours and change.kind == TOMBSTONE and not change.key else None


def _value(theirs: Any, ours: Any) -> str | None:
    if isinstance(theirs, bool) != isinstance(ours, bool):
        return BOOLEAN if theirs in (0, 1) and theirs == ours else None
    if isinstance(theirs, int) and isinstance(ours, int):
        apart = {abs(theirs - ours) / unit for unit in _UNITS}
        return YEAR if (theirs, ours) == (1900, 0) else YEARS if apart & _DAYS_APART else None
    if isinstance(theirs, int) and isinstance(ours, str):
        return UNSIGNED if _unscaled(ours) in (theirs, theirs + (1 << 64)) else None
    if isinstance(theirs, float) and isinstance(ours, int | float):
        return FLOAT if theirs == _as_float(ours) else None
    if isinstance(theirs, str) and isinstance(ours, str):
        if theirs.replace("\\,", ",") == ours:
            return LABELS
        return JSON if _document(theirs) == _document(ours) != ABSENT else None
    return None


def _unscaled(text: str) -> int | None:
    """Returns the number of a Decimal with no decimals."""
    try:
        return int.from_bytes(base64.b64decode(text, validate=True), signed=True)
    except binascii.Error:
        return None


def _as_float(value: float) -> float:
    """Returns the nearest number of four bytes."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.inf


def _document(text: str) -> Any:
    """Returns a document; ABSENT for a single value, which has no blanks in either form."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return ABSENT
    return found if isinstance(found, dict | list) else ABSENT


def _schemas(theirs: Any, ours: Any) -> str | None:
    """Compares schemas that are equal except for the connector's name, defaults and comments."""
    named = _named_alike(theirs)
    if named == ours:
        return CONNECTOR
    return DEFAULTS if _without(named, _LEFT_OUT) == _without(ours, _LEFT_OUT) else None


def _named_alike(schema: Any) -> Any:
    """Returns a schema of the connector for MariaDB with the names of that for MySQL."""
    text = orjson.dumps(schema).replace(b"io.debezium.connector.mariadb.", b"io.debezium.connector.mysql.")
    return orjson.loads(text)


def _without(document: Any, names: frozenset[str]) -> Any:
    """Returns the document without the fields of these names, at any depth."""
    if isinstance(document, dict):
        return {name: _without(value, names) for name, value in document.items() if name not in names}
    return [_without(one, names) for one in document] if isinstance(document, list) else document


def _ddl(change: Change) -> str:
    return str(change.fields.get("ddl") or "").upper()
