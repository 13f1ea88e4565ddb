"""Why a field of Canal's flat message differs from ours, by the titles of docs/canal-differences.md."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from headrace.moving.shadow.changes import ABSENT, Change, canal_changes
from headrace.ports.replay import Published

BinaryForm = Literal["base64", "hex", "latin1"]

TEXT = "Text in gbk, latin1, utf16 and other sets"
TIME = "TIME below zero with a fraction"
DECIMAL = "Zeros at the end of a DECIMAL"
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
FLOAT = "FLOAT, DOUBLE"
TYPE_TEXT = "`mysqlType`"
DATABASE = "`database` of a statement's text (ROWS_QUERY)"
MARKS = "Transaction entries"
ANNOTATIONS = "Texts of changes on MariaDB (ANNOTATE_ROWS)"
ROUTINES = "Procedures, functions, triggers, events"
RULES = (
    *(TEXT, TIME, DECIMAL, BINARY_N, GTID, MINIMAL, PARTIAL_JSON, OLD, UNSIGNED, SET_TYPE, ENUM, BINARY, ES, KEYS),
    *(ACCOUNTS, VIEWS, FLOAT, TYPE_TEXT, MARKS, DATABASE, ROUTINES, ANNOTATIONS),
)
_WIDER = {-6: 5, 5: 4, 4: -5, -5: 3}
"""The next wider of java.sql.Types: TINYINT, SMALLINT, INTEGER, BIGINT, DECIMAL."""
_SETS = (
    *("utf-8", "gbk", "gb18030", "big5", "cp932", "euc_jp", "euc_kr", "utf-16-be", "utf-16-le", "utf-32-be", "latin-1"),
    *("cp1252", "iso8859-2", "cp1250", "cp1251", "koi8-r", "koi8-u", "cp866", "cp850", "cp852", "iso8859-7"),
    *("iso8859-8", "iso8859-9", "iso8859-13", "cp1256", "cp1257", "tis-620", "mac-roman", "mac-latin2"),
)
"""Sets that a column may have, as Python names them."""
_READ_AS = ("utf-8", "latin-1", "cp1252", "gbk")
"""Character sets in which Canal may read texts."""


class CanalRules:
    """The rules; `binary` and `enum_index` are the forms of binary strings, ENUM and SET in our messages."""

    def __init__(self, binary: BinaryForm = "base64", *, enum_index: bool = False) -> None:
        self._binary, self._enum_index = binary, enum_index

    def read(self, message: Published, keys_of: Mapping[str, list[str]], ours: bool) -> Iterator[Change]:
        """See Reader."""
        return canal_changes(message, keys_of, self._our_key if ours else self._their_key)

    def _their_key(self, type_: str, value: Any) -> Any:
        return _key_text(type_, value, "latin1")

    def _our_key(self, type_: str, value: Any) -> Any:
        if isinstance(value, str) and _word(type_) in ("enum", "set") and not self._enum_index:
            return _number_of(type_, value) or value
        return _key_text(type_, value, self._binary)

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
        if not ours and change.kind == "QUERY" and change.fields.get("isDdl") is False:
            return ANNOTATIONS
        if ours and re.match(r"\s*(CREATE|DROP|ALTER)\b[^(]*?\bVIEW\b", _sql(change), re.I):
            return VIEWS
        return ROUTINES if ours and _ROUTINES.match(_sql(change)) else None

    # -- values ---------------------------------------------------------------------------------------------------

    def _value(self, part: str, column: str, theirs: Any, ours: Any, old: Change, new: Change) -> str | None:
        if ABSENT in (theirs, ours):
            if part == "old" and ours == ABSENT and old.rows > 1 and theirs == old.fields.get(f"data.{column}"):
                return OLD  # the column did not change in this row
            return MINIMAL if part == "data" and theirs == ABSENT and new.kind == "UPDATE" else None
        if not (isinstance(theirs, str) and isinstance(ours, str)):
            return None
        type_ = _type(new, column) or _type(old, column)
        word = _word(type_)
        if word in ("enum", "set"):
            return ENUM if _number_of(type_, ours) == theirs else None
        if _is_binary(word):
            return self._bytes(word, theirs, ours)
        if word in ("float", "double"):
            return FLOAT if _same_number(theirs, ours, double=word == "double") else None
        if word == "decimal":
            return DECIMAL if theirs == _canals_decimal(ours) else None
        if word == "time":
            return TIME if ours.startswith("-") and _near(theirs, ours) else None
        if word == "json":
            return PARTIAL_JSON if re.match(r"\s*JSON_\w+\(", theirs) else None
        if word.endswith(("char", "text")):
            return TEXT if _misread(theirs, ours) else None
        return None

    def _bytes(self, word: str, theirs: str, ours: str) -> str | None:
        try:
            before, after = theirs.encode("latin-1"), _bytes_of(ours, self._binary)
        except ValueError:
            return None
        if before == after:
            return BINARY
        return BINARY_N if word == "binary" and before == after.rstrip(b"\0") else None


_SPATIAL = re.compile(r"(multi)?(point|linestring|polygon)|geometry(collection)?|geomcollection")


def _type(change: Change, column: str) -> str:
    return str(change.fields.get(f"mysqlType.{column}") or "")


_ROUTINES = re.compile(
    r"\s*(CREATE|ALTER|DROP)\s+(OR\s+REPLACE\s+)?(AGGREGATE\s+)?(DEFINER\s*=\s*\S+\s+)?"
    r"(PROCEDURE|FUNCTION|TRIGGER|EVENT)\b",
    re.IGNORECASE,
)


def _is_binary(word: str) -> bool:
    return word.endswith(("binary", "blob")) or _SPATIAL.fullmatch(word) is not None


def _bytes_of(text: str, form: BinaryForm) -> bytes:
    """Returns the bytes of a text. Raises ValueError."""
    match form:
        case "base64":
            return base64.b64decode(text, validate=True)
        case "hex":
            return bytes.fromhex(text)
        case _:
            return text.encode("latin-1")


def _key_text(type_: str, value: Any, form: BinaryForm) -> Any:
    """Returns a key's value without the differences in writing of both systems."""
    if not isinstance(value, str):
        return value
    if _is_binary(word := _word(type_)):
        try:
            data = _bytes_of(value, form)
        except ValueError:
            return value
        return (data.rstrip(b"\0") if word == "binary" else data).hex()
    return _canals_decimal(value) if word == "decimal" else value


def _word(type_: Any) -> str:
    """Returns a type without its length and attributes."""
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
    """Returns what Canal writes for an ENUM's or SET's value."""
    members = [one.replace("''", "'") for one in re.findall(r"'((?:[^']|'')*)'", type_)]
    try:
        if _word(type_) == "enum":
            return str(members.index(label) + 1 if label else 0)
        return str(sum(1 << members.index(one) for one in label.split(",") if one))
    except ValueError:
        return ""


def _same_number(theirs: str, ours: str, *, double: bool) -> bool:
    try:
        return math.isclose(float(theirs), float(ours), rel_tol=0 if double else 1e-6)
    except ValueError:
        return False


def _near(theirs: str, ours: str) -> bool:
    """Returns whether two times are within a second of each other, whatever their sign."""
    try:
        first, second = (
            sum(float(part) * unit for part, unit in zip(text.lstrip("-").split(":"), (3600, 60, 1), strict=True))
            for text in (theirs, ours)
        )
    except ValueError:
        return False
    return abs(first - second) <= 1


def _misread(theirs: str, ours: str) -> bool:
    """Returns whether a text has another one's bytes, read in a wrong character set."""
    wanted = _UNKNOWN.sub("\ufffd", theirs)
    for name in _SETS:
        try:
            data = ours.encode(name)
        except UnicodeEncodeError:
            continue
        if any(_UNKNOWN.sub("\ufffd", data.decode(one, "replace")) == wanted for one in _READ_AS):
            return True
    return False


_UNKNOWN = re.compile("\ufffd+")


def _canals_decimal(text: str) -> str:
    """Returns what Canal writes: decimals are stored in groups of nine digits, and it omits a last group that has fewer
    and is zero."""
    whole, point, fraction = text.partition(".")
    rest = len(fraction) % 9
    if rest and fraction.endswith("0" * rest):
        fraction = fraction[:-rest] or "0"
    return whole + point + fraction
