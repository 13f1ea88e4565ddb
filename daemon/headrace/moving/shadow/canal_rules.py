"""Why a field of Canal's flat message differs from ours, by the titles of docs/canal-differences.md."""

from __future__ import annotations

import base64
import binascii
import math
import re
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from headrace.moving.shadow.changes import ABSENT, Change

BinaryForm = Literal["base64", "hex", "latin1"]

TEXT = "Text in gbk, latin1, utf16 and other sets"
TIME = "TIME below zero with a fraction"
DECIMAL = "DECIMAL zero"
BINARY_N = "BINARY(n)"
GTID = "`gtid`"
MINIMAL = "An UPDATE with row image MINIMAL"
PARTIAL_JSON = "PARTIAL_JSON"
OLD = "`old` with several rows in a message"
UNSIGNED = "`sqlType` of unsigned integers, in flat messages"
SET_TYPE = "`sqlType` of SET and JSON, in flat messages"
ENUM = "ENUM, SET"
BINARY = "BINARY, VARBINARY, BLOB, geometries"
ES = "`es`"
KEYS = "`pkNames`"
ACCOUNTS = "`isDdl` of statements about accounts"
VIEWS = "CREATE VIEW, DROP VIEW"
TIMESTAMP = "TIMESTAMP"
FLOAT = "FLOAT, DOUBLE"
TYPE_TEXT = "`mysqlType`"
DATABASE = "`database` of a statement's text (ROWS_QUERY)"
MARKS = "Transaction entries"
RULES = (
    *(TEXT, TIME, DECIMAL, BINARY_N, GTID, MINIMAL, PARTIAL_JSON, OLD, UNSIGNED, SET_TYPE, ENUM, BINARY, ES, KEYS),
    *(ACCOUNTS, VIEWS, TIMESTAMP, FLOAT, TYPE_TEXT, MARKS, DATABASE),
)
_WIDER = {-6: 5, 5: 4, 4: -5, -5: 3}
"""The next wider of java.sql.Types: TINYINT, SMALLINT, INTEGER, BIGINT, DECIMAL."""
_LATIN1 = re.compile(r"[\x80-\uffff]")
_FAR = timedelta(hours=14)


class CanalRules:
    """The rules; `binary` is how our messages have binary strings."""

    def __init__(self, binary: BinaryForm = "base64") -> None:
        self._binary = binary

    def explain(self, name: str, theirs: Any, ours: Any, old: Change, new: Change) -> str | None:
        """See Explain."""
        part, _, column = name.partition(".")
        if part in ("data", "old"):
            return self._value(part, column, theirs, ours, old, new)
        match part:
            case "es":
                return ES if _int(ours) // 1000 >= _int(theirs) // 1000 else None
            case "gtid":
                return GTID if not theirs or (ours and str(ours).partition(":")[0] in theirs) else None
            case "pkNames":
                return KEYS if not theirs or sorted(theirs) == sorted(ours or ()) else None
            case "isDdl":
                return ACCOUNTS if theirs is True and re.match(r"\s*(GRANT|REVOKE|\w+ USER)", _sql(new), re.I) else None
            case "database":
                return DATABASE if not theirs and new.kind == "QUERY" else None
            case "sqlType":
                return _type_number(theirs, ours, _type(new, column))
            case "mysqlType":
                return TYPE_TEXT if _word(theirs) == _word(ours) else None
        return None

    def alone(self, change: Change, ours: bool) -> str | None:
        """See Alone."""
        if change.kind in ("TRANSACTIONBEGIN", "TRANSACTIONEND"):
            return MARKS
        if ours and re.match(r"\s*(CREATE|DROP|ALTER)\b[^(]*?\bVIEW\b", _sql(change), re.I):
            return VIEWS
        return None

    # -- values ---------------------------------------------------------------------------------------------------

    def _value(self, part: str, column: str, theirs: Any, ours: Any, old: Change, new: Change) -> str | None:
        if ABSENT in (theirs, ours):
            if part == "old" and ours == ABSENT and old.rows > 1:
                return OLD
            return MINIMAL if part == "data" and theirs == ABSENT else None
        if not (isinstance(theirs, str) and isinstance(ours, str)):
            return None
        type_ = _type(new, column) or _type(old, column)
        word = _word(type_)
        if word in ("enum", "set"):
            return ENUM if _number_of(type_, ours) == theirs else None
        if word.endswith(("binary", "blob")) or _SPATIAL.fullmatch(word):
            return self._bytes(word, theirs, ours)
        if word in ("float", "double"):
            return FLOAT if _same_number(theirs, ours) else None
        if word == "decimal":
            return DECIMAL if _zero(theirs) and _zero(ours) else None
        if word == "time":
            return TIME if ours.startswith("-") else None
        if word == "timestamp":
            return TIMESTAMP if _shifted(theirs, ours) else None
        if word == "json":
            return PARTIAL_JSON if re.match(r"\s*JSON_\w+\(", theirs) else None
        if word.endswith(("char", "text")):
            return TEXT if _LATIN1.search(ours) or _LATIN1.search(theirs) else None
        return None

    def _bytes(self, word: str, theirs: str, ours: str) -> str | None:
        try:
            before = theirs.encode("latin-1")
            match self._binary:
                case "base64":
                    after = base64.b64decode(ours, validate=True)
                case "hex":
                    after = bytes.fromhex(ours)
                case _:
                    after = ours.encode("latin-1")
        except (UnicodeEncodeError, binascii.Error, ValueError):
            return None
        if before == after:
            return BINARY
        return BINARY_N if word == "binary" and before == after.rstrip(b"\0") else None


_SPATIAL = re.compile(r"(multi)?(point|linestring|polygon)|geometry(collection)?|geomcollection")


def _type(change: Change, column: str) -> str:
    return str(change.fields.get(f"mysqlType.{column}") or "")


def _word(type_: Any) -> str:
    """A type without its length and attributes."""
    found = re.match(r"[a-z]+", str(type_).lower())
    return {"integer": "int", "numeric": "decimal"}.get(found[0], found[0]) if found else ""


def _sql(change: Change) -> str:
    return str(change.fields.get("sql") or "")


def _int(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _type_number(theirs: Any, ours: Any, type_: str) -> str | None:
    word = _word(type_)
    if word in ("enum", "set") and (theirs, ours) in ((4, 12), (-7, 12)):
        return ENUM
    if word in ("set", "json") and theirs in (2004, 1111, -7, 12) and ours in (-7, 12):
        return SET_TYPE
    return UNSIGNED if "unsigned" in type_.lower() and _WIDER.get(theirs) == ours else None


def _number_of(type_: str, label: str) -> str:
    """What Canal writes of an ENUM's or SET's value."""
    members = [one.replace("''", "'") for one in re.findall(r"'((?:[^']|'')*)'", type_)]
    try:
        if _word(type_) == "enum":
            return str(members.index(label) + 1 if label else 0)
        return str(sum(1 << members.index(one) for one in label.split(",") if one))
    except ValueError:
        return ""


def _same_number(theirs: str, ours: str) -> bool:
    try:
        return math.isclose(float(theirs), float(ours), rel_tol=1e-6)
    except ValueError:
        return False


def _zero(text: str) -> bool:
    try:
        return not Decimal(text)
    except InvalidOperation:
        return False


def _shifted(theirs: str, ours: str) -> bool:
    """Whether two times are the same in different zones."""
    try:
        apart = abs(datetime.fromisoformat(theirs) - datetime.fromisoformat(ours))
    except ValueError:
        return False
    return apart <= _FAR and apart % timedelta(minutes=15) == timedelta()
