"""Debezium's change events as its JSON converter writes them, with or without schemas.

Values become the texts of Canal's messages, so that documents do not depend on the format. Without schemas the meaning
of a number is unknown, so values stay as they are: dates are numbers then."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Headers, Message, Nothing, Row, Rows, Statement, header_position

_OPERATIONS = {"c": "INSERT", "r": "INSERT", "u": "UPDATE", "d": "DELETE"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Convert = Callable[[Any], Any]


class _Field(NamedTuple):
    """A column: its MySQL type as far as the schema shows it, and the function for Canal's text of a value."""

    kind: str
    convert: Convert


class _Envelope(NamedTuple):
    """The schema of a message. `columns` None: there is none."""

    columns: Mapping[str, _Field] | None


_UNKNOWN = _Envelope(None)


def is_debezium(message: dict[str, Any]) -> bool:
    """Returns whether an object may be an event of Debezium."""
    event = message.get("payload", message)
    return isinstance(event, dict) and ("source" in event or "op" in event or "ts_ms" in event)


def split_schema(value: bytes) -> tuple[bytes, bytes] | None:
    """Returns the schema of a message and its payload, neither of them parsed; None if they are not as Kafka Connect
    writes them."""
    if not value.startswith(b'{"schema":'):
        return None
    middle = value.find(b',"payload":')  # within a text its quotes would be escaped
    return (value[10:middle], value[middle + 11 : -1]) if middle > 0 and value.endswith(b"}") else None


@lru_cache(maxsize=2048)
def envelope(schema: bytes) -> _Envelope:
    """Reads a schema; the same one comes with each message of a table. Raises MessageError."""
    try:
        parsed = orjson.loads(schema)
        if parsed is None:
            return _UNKNOWN
        for field in parsed.get("fields", ()):
            if field.get("field") in ("after", "before"):
                return _Envelope({one["field"]: _field(one) for one in field["fields"]})
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise MessageError(f"not a schema of Debezium: {error!r}") from None
    return _UNKNOWN


def read_debezium(event: dict[str, Any], known: _Envelope, key: bytes | None, headers: Headers) -> Message:
    """Reads an event, of which `key` is the record's key. Raises MessageError, and then nothing of it may be applied.

    Its version is that of the header `headrace-pos`. Debezium itself has none: then it is the time of the change in
    seconds, followed by the position in the binlog, which may decrease within the second of a new binlog file."""
    source = event.get("source")
    if not isinstance(source, dict):
        return Nothing("a message about a transaction, or a heartbeat")
    database, table = _text(source, "db"), _text(source, "table")
    if "ddl" in event or "databaseName" in event:
        return _statement(event, database, table, headers)
    op = event.get("op")
    if op == "m":
        return Nothing("a logical message")
    if op == "t":
        return Statement("TRUNCATE", database, table, "", _version(source, headers))
    if op not in _OPERATIONS:
        raise MessageError(f"op {op!r} is none of c, r, u, d")
    before, after = _image(event, "before"), _image(event, "after")
    row = before if op == "d" else after
    if row is None:
        raise MessageError(f"op {op} without the row that it is about")
    columns = known.columns
    if columns is not None:
        row = _converted(row, columns)
        before = _converted(before, columns) if before is not None else None
    version = _version(source, headers)
    ts = source.get("ts_ms")
    return Rows(
        database,
        table,
        _OPERATIONS[op],  # type: ignore[arg-type]
        _key_columns(key),
        {name: field.kind for name, field in columns.items()} if columns is not None else {},
        [row],
        [before if op == "u" else None],
        version,
        1,
        ts if isinstance(ts, int) else 0,
    )


def _statement(event: dict[str, Any], database: str, table: str, headers: Headers) -> Message:
    kinds = {"CREATE": "CREATE", "ALTER": "ALTER", "DROP": "ERASE", "TRUNCATE": "TRUNCATE"}
    changes, sql = event.get("tableChanges"), event.get("ddl")
    sql = sql if isinstance(sql, str) else ""
    kind = "QUERY"
    if isinstance(changes, list) and changes and isinstance(changes[0], dict):
        kind = kinds.get(str(changes[0].get("type", "")).upper(), "QUERY")
    if sql.lstrip()[:8].upper() == "TRUNCATE":
        kind = "TRUNCATE"
    name = event.get("databaseName")
    return Statement(kind, name if isinstance(name, str) else database, table, sql, _version(event["source"], headers))


def _text(source: dict[str, Any], name: str) -> str:
    value = source.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MessageError(f"not a Debezium event: source.{name} is not a string")
    return value


def _image(event: dict[str, Any], name: str) -> Row | None:
    value = event.get(name)
    if value is not None and not isinstance(value, dict):
        raise MessageError(f"not a Debezium event: {name!r} is not an object")
    return value


def _version(source: dict[str, Any], headers: Headers) -> int:
    if position := header_position(headers):
        return position
    ts, file, pos, row = (source.get(name) for name in ("ts_ms", "file", "pos", "row"))
    if not isinstance(ts, int) or not isinstance(file, str) or not isinstance(pos, int) or not 0 < ts < 1 << 43:
        raise MessageError("neither headrace-pos nor source.ts_ms, file and pos: the order of changes is unknown")
    number = file.rpartition(".")[2]
    parity = int(number) & 1 if number.isdigit() else 0
    # An event has more bytes than rows, so a row's position is its event's position plus its number.
    at = min(max(0, pos) + (row if isinstance(row, int) else 0), (1 << 30) - 1)
    return (ts // 1000 << 31) | (parity << 30) | at


@lru_cache(maxsize=64)
def _key_fields(schema: bytes) -> tuple[str, ...]:
    return tuple(str(one["field"]) for one in orjson.loads(schema).get("fields", ()))


def _key_columns(key: bytes | None) -> tuple[str, ...]:
    """Returns the names of the columns of the key, which only the record's key has."""
    if not key:
        return ()
    try:
        if (parts := split_schema(key)) is not None:
            return _key_fields(parts[0])
        found = orjson.loads(key)
        found = found.get("payload", found) if isinstance(found, dict) else {}
        return tuple(found)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        raise MessageError("the key of the message is none of Debezium's") from None


def _converted(row: Row, columns: Mapping[str, _Field]) -> Row:
    made: Row = {}
    for name, value in row.items():
        field = columns.get(name)
        try:
            made[name] = value if value is None or field is None else field.convert(value)
        except (ValueError, TypeError, KeyError, OverflowError, binascii.Error) as error:
            raise MessageError(f"the value of column {name!r} does not fit its schema: {error}") from None
    return made


# -- types ------------------------------------------------------------------------------------------------------------


def _field(schema: dict[str, Any]) -> _Field:
    name, kind, parameters = schema.get("name") or "", schema["type"], schema.get("parameters") or {}
    if (made := _named(name, parameters)) is not None:
        return made
    if kind in _PLAIN:
        return _PLAIN[kind]
    return _Field("", lambda value: value)


def _named(name: str, parameters: Mapping[str, Any]) -> _Field | None:
    if name == "org.apache.kafka.connect.data.Decimal":
        scale, precision = int(parameters.get("scale", 0)), int(parameters.get("connect.decimal.precision", 65))
        if not scale and precision >= 20:
            return _Field("bigint unsigned" if precision == 20 else f"decimal({precision},0)", _decimal(0))
        return _Field(f"decimal({precision},{scale})", _decimal(scale))
    if name == "io.debezium.data.Bits":
        return _Field(f"bit({parameters.get('length', 64)})", _bits)
    return _NAMED.get(name)


def _decimal(scale: int) -> Convert:
    def convert(value: Any) -> str:
        if isinstance(value, (int, float)):
            return _number(value)
        number = int.from_bytes(base64.b64decode(value, validate=True), "big", signed=True)
        return _scaled(number, scale)

    return convert


def _scaled(number: int, scale: int) -> str:
    if scale <= 0:
        return str(number * 10**-scale)
    digits = str(abs(number)).rjust(scale + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _variable(value: Any) -> str:
    return _scaled(
        int.from_bytes(base64.b64decode(value["value"], validate=True), "big", signed=True), int(value["scale"])
    )


def _bits(value: Any) -> str:
    return str(int.from_bytes(base64.b64decode(value, validate=True), "little"))


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    text = repr(value) if isinstance(value, float) else str(value)
    return text.removesuffix(".0")


def _day(value: Any) -> str:
    return (_EPOCH + timedelta(days=int(value))).strftime("%Y-%m-%d").rjust(10, "0")


def _moment(digits: int) -> Convert:
    """Converts a DATETIME: whole units since 1970, `digits` digits of them after the second."""

    def convert(value: Any) -> str:
        seconds, rest = divmod(int(value), 10**digits)
        at = _EPOCH + timedelta(seconds=seconds)
        shown = min(digits, 6)
        text = f"{at.year:04}-{at:%m-%d %H:%M:%S}"
        return f"{text}.{rest // 10 ** (digits - shown):0{shown}}" if digits else text

    return convert


def _zoned(value: Any) -> str:
    """Converts a time with a zone, which Debezium gives in UTC."""
    at = datetime.fromisoformat(str(value)).astimezone(UTC)
    _, _, fraction = str(value).rstrip("Z").partition(".")
    digits = fraction.partition("+")[0].partition("-")[0]
    return f"{at.year:04}-{at:%m-%d %H:%M:%S}" + (f".{digits}" if digits else "")


def _time(digits: int) -> Convert:
    def convert(value: Any) -> str:
        seconds, rest = divmod(abs(int(value)), 10**digits)
        shown = min(digits, 6)
        text = (
            f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 10 ** (digits - shown):0{shown}}"
        )
        return f"-{text}" if int(value) < 0 else text

    return convert


def _geometry(value: Any) -> str:
    """Returns a geometry as the server stores it: four bytes of SRID, and the WKB."""
    srid = int(value.get("srid") or 0)
    return base64.b64encode(srid.to_bytes(4, "little") + base64.b64decode(value["wkb"], validate=True)).decode()


def _listed(value: Any) -> str:
    return f"[{','.join(_number(one) for one in value)}]"


_PLAIN = {
    **{name: _Field(kind, _number) for name, kind in (("int8", "tinyint"), ("int16", "smallint"), ("int32", "int"))},
    "int64": _Field("bigint", _number),
    "float": _Field("float", _number),
    "float32": _Field("float", _number),
    "double": _Field("double", _number),
    "float64": _Field("double", _number),
    "boolean": _Field("bit(1)", _number),
    "string": _Field("varchar", str),
    "bytes": _Field("blob", str),
}
_NAMED = {
    "io.debezium.data.VariableScaleDecimal": _Field("decimal", _variable),
    "io.debezium.data.Json": _Field("json", str),
    "io.debezium.data.Enum": _Field("enum", str),
    "io.debezium.data.EnumSet": _Field("set", str),
    "io.debezium.data.FloatVector": _Field("vector", _listed),
    "io.debezium.data.DoubleVector": _Field("vector", _listed),
    "io.debezium.data.geometry.Point": _Field("point", _geometry),
    "io.debezium.data.geometry.Geometry": _Field("geometry", _geometry),
    "io.debezium.time.Date": _Field("date", _day),
    "io.debezium.time.Timestamp": _Field("datetime(3)", _moment(3)),
    "io.debezium.time.MicroTimestamp": _Field("datetime(6)", _moment(6)),
    "io.debezium.time.NanoTimestamp": _Field("datetime(6)", _moment(9)),
    "io.debezium.time.ZonedTimestamp": _Field("timestamp(6)", _zoned),
    "io.debezium.time.Time": _Field("time(3)", _time(3)),
    "io.debezium.time.MicroTime": _Field("time(6)", _time(6)),
    "io.debezium.time.NanoTime": _Field("time(6)", _time(9)),
    "io.debezium.time.Year": _Field("year", _number),
    "org.apache.kafka.connect.data.Date": _Field("date", _day),
    "org.apache.kafka.connect.data.Time": _Field("time(3)", _time(3)),
    "org.apache.kafka.connect.data.Timestamp": _Field("datetime(3)", _moment(3)),
}
