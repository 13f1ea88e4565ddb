"""Column types: their declaration, their values in canonical form, and the numbers that name them on the wire.

Canonical values are what MySQL prints: int for integers, float for DOUBLE, bytes for binary strings, str for the rest
(texts, DECIMAL with its scale, `YYYY-MM-DD hh:mm:ss.ffffff` for times, labels of an ENUM, the text of a JSON
document). Type numbers are those of the manual's "enum_field_types"."""

from __future__ import annotations

import datetime as dates
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from sim.mysql import images
from sim.mysql.collations import BINARY, DEFAULTS, NUMBERS, charset_of, codec_of, order_of, width_of
from sim.mysql.errors import SqlError, unknown_statement

LONGLONG, DOUBLE, VARCHAR, JSON, NEWDECIMAL, ENUM, BLOB, VAR_STRING, STRING = 8, 5, 15, 245, 246, 247, 252, 253, 254
_INTS = {"tinyint": (1, 1), "smallint": (2, 2), "mediumint": (9, 3), "int": (3, 4), "bigint": (LONGLONG, 8)}
"""Type number and bytes."""
_TEXTS = {"tinytext": 1, "text": 2, "mediumtext": 3, "longtext": 4}
_BLOBS = {"tinyblob": 1, "blob": 2, "mediumblob": 3, "longblob": 4}
TIMES = {"datetime": (12, 18), "timestamp": (7, 17)}
"""Type number in a result and in the binlog."""
_UNSIGNED, _BINARY_FLAG, _BLOB_FLAG, _ENUM_FLAG = 32, 128, 16, 256
_MOMENT = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)(?:[ T](\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d{1,9}))?)?)?")
_NUMERIC = frozenset({*_INTS, "decimal", "double"})

Value = Any
"""A canonical value, or None."""


@dataclass(frozen=True, eq=False)
class Type:
    """A column type. `name` is the bare name, `text` the declaration as information_schema prints it, `binlog` and
    `meta` are the number and metadata in a TABLE_MAP, `result` is the number in a result."""

    name: str
    text: str
    binlog: int
    meta: bytes
    result: int
    take: Callable[[Any], Value]
    """Returns a given value in canonical form. Raises SqlError."""
    image: images.Encoder
    order: Callable[[Value], Any]
    """Returns what values are compared by."""
    unsigned: bool = False
    length: int = 0
    decimals: int = 0
    collation: str = BINARY
    labels: tuple[str, ...] = ()
    codec: str = field(default="utf-8")

    @property
    def charset(self) -> str:
        return charset_of(self.collation)

    @property
    def numeric(self) -> bool:
        """Returns whether the binlog has a sign for it."""
        return self.name in _NUMERIC

    @property
    def character(self) -> bool:
        """Returns whether the binlog has a collation for it."""
        return self.binlog in (VARCHAR, BLOB) or (self.binlog == STRING and self.name != "enum")

    @property
    def flags(self) -> int:
        """Returns the flags of a column in a result."""
        found = _UNSIGNED if self.unsigned else 0
        found |= _BLOB_FLAG if self.binlog in (BLOB, JSON) else 0
        found |= _ENUM_FLAG if self.labels else 0
        return found | (_BINARY_FLAG if self.collation == BINARY else 0)

    @property
    def shown_collation(self) -> int:
        """Returns the number of the collation in a result; that of binary strings for all that are no texts."""
        return NUMBERS[self.collation]

    def print(self, value: Value) -> bytes:
        """Returns a value as the text protocol has it, in the character set of the column."""
        if isinstance(value, bytes):
            return value
        if isinstance(value, float):
            return double_text(value).encode()
        return str(value).encode(self.codec)


def double_text(value: float) -> str:
    """Prints a DOUBLE: the shortest digits that give the same number."""
    if value == math.floor(value) and abs(value) < 1e15:
        return str(int(value)) if value or math.copysign(1, value) > 0 else "-0"
    return repr(value).replace("e+", "e")


def _out_of_range() -> SqlError:
    return SqlError(1264, "Out of range value for column")


def _number(value: Any) -> Decimal:
    if isinstance(value, bytes):
        return Decimal(int.from_bytes(value, "big"))
    try:
        return Decimal(repr(value) if isinstance(value, float) else value)
    except (InvalidOperation, ValueError, TypeError):
        raise SqlError(1366, f"Incorrect number value: {str(value)[:60]!r}") from None


def _integer(name: str, unsigned: bool) -> Type:
    number, size = _INTS[name]
    low, high = (0, (1 << 8 * size) - 1) if unsigned else (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1)

    def take(value: Any) -> int:
        made = value if type(value) is int else int(_number(value).to_integral_value(ROUND_HALF_UP))
        if not low <= made <= high:
            raise _out_of_range()
        return made

    text = f"{name} unsigned" if unsigned else name
    image = images.integer(size, unsigned=unsigned)
    return Type(name, text, number, b"", number, take, image, _same, unsigned, length=len(str(low)) + 1)


def _same(value: Any) -> Any:
    return value


def _decimal(precision: int, scale: int, unsigned: bool) -> Type:
    quantum = Decimal(1).scaleb(-scale)

    def take(value: Any) -> str:
        made = _number(value).quantize(quantum, ROUND_HALF_UP)
        if len(made.as_tuple().digits) > max(precision, scale) or (unsigned and made < 0):
            raise _out_of_range()
        text = f"{made:f}"
        return text[1:] if text.startswith("-") and not made else text

    text = f"decimal({precision},{scale})" + (" unsigned" if unsigned else "")
    image, meta = images.decimal(precision, scale), bytes([precision, scale])
    return Type(
        "decimal", text, NEWDECIMAL, meta, NEWDECIMAL, take, image, Decimal, unsigned, precision + 2, decimals=scale
    )


def _double() -> Type:
    def take(value: Any) -> float:
        return value if type(value) is float else float(_number(value))

    return Type("double", "double", DOUBLE, b"\x08", DOUBLE, take, images.double, _same, length=22, decimals=31)


def _as_text(value: Any, codec: str) -> str:
    if isinstance(value, bytes):
        return value.decode(codec)
    return double_text(value) if isinstance(value, float) else str(value)


def _text(name: str, size: int, collation: str) -> Type:
    """Returns VARCHAR, CHAR or a TEXT; `size` is in characters, for a TEXT the bytes of its length."""
    charset = charset_of(collation)
    codec, order = codec_of(charset), order_of(collation)
    most = (1 << 8 * size) - 1 if name in _TEXTS else size * width_of(charset)
    limit = most if name in _TEXTS else size
    padded = name == "char"

    def take(value: Any) -> str:
        made = _as_text(value, codec)
        made = made.rstrip(" ") if padded else made
        if len(made) > limit:
            raise SqlError(1406, "Data too long for column")
        return made

    def encode(value: str) -> bytes:
        return value.encode(codec)

    width = size if name in _TEXTS else 2 if most > 255 else 1
    number = BLOB if name in _TEXTS else STRING if padded else VARCHAR
    meta = bytes([size]) if name in _TEXTS else most.to_bytes(2, "little")
    if padded:
        meta = bytes([STRING ^ (most & 0x300) >> 4, most & 0xFF])
    text = name if name in _TEXTS else f"{name}({size})"
    result = BLOB if name in _TEXTS else STRING if padded else VAR_STRING
    image = images.prefixed(width, encode)
    return Type(name, text, number, meta, result, take, image, order, length=most, collation=collation, codec=codec)


def _bytes(name: str, size: int) -> Type:
    """Returns VARBINARY, BINARY or a BLOB; `size` as for texts."""
    most = (1 << 8 * size) - 1 if name in _BLOBS else size
    padded = name == "binary"

    def take(value: Any) -> bytes:
        made = value if isinstance(value, bytes) else str(value).encode()
        if len(made) > most:
            raise SqlError(1406, "Data too long for column")
        return made.ljust(size, b"\0") if padded else made

    def encode(value: bytes) -> bytes:
        return value.rstrip(b"\0") if padded else value

    width = size if name in _BLOBS else 2 if most > 255 else 1
    number = BLOB if name in _BLOBS else STRING if padded else VARCHAR
    meta = bytes([size]) if name in _BLOBS else most.to_bytes(2, "little")
    if padded:
        meta = bytes([STRING ^ (most & 0x300) >> 4, most & 0xFF])
    text = name if name in _BLOBS else f"{name}({size})"
    result = BLOB if name in _BLOBS else STRING if padded else VAR_STRING
    return Type(name, text, number, meta, result, take, images.prefixed(width, encode), _same, length=most)


def moment(value: Any, fsp: int) -> str:
    """Returns a time as `YYYY-MM-DD hh:mm:ss`, with `fsp` digits of its second's fraction. Raises SqlError."""
    if isinstance(value, dates.datetime):
        value = value.strftime("%Y-%m-%d %H:%M:%S.%f")
    found = _MOMENT.fullmatch(_as_text(value, "ascii").strip())
    if found is None:
        raise SqlError(1292, f"Incorrect datetime value: {str(value)[:60]!r}")
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    digits = (found[7] or "").ljust(fsp, "0")
    if digits[fsp : fsp + 1] >= "5" or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise SqlError(1292, f"Incorrect datetime value: {str(value)[:60]!r}")  # nor is anything rounded
    text = f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"
    return f"{text}.{digits[:fsp]}" if fsp else text


def _time(name: str, fsp: int) -> Type:
    result, number = TIMES[name]
    image = images.datetime2(fsp) if name == "datetime" else images.timestamp2(fsp)

    def take(value: Any) -> str:
        return moment(value, fsp)

    text, length = (f"{name}({fsp})", 20 + fsp) if fsp else (name, 19)
    return Type(name, text, number, bytes([fsp]), result, take, image, _same, length=length, decimals=fsp)


def _date() -> Type:
    def take(value: Any) -> str:
        return value.isoformat()[:10] if isinstance(value, dates.date) else moment(value, 0)[:10]

    return Type("date", "date", 10, b"", 10, take, images.date, _same, length=10)


def _enum(labels: tuple[str, ...], collation: str) -> Type:
    size = 1 if len(labels) < 256 else 2
    numbers = {"": 0, **{label: number for number, label in enumerate(labels, 1)}}

    def take(value: Any) -> str:
        if isinstance(value, int):
            if not 0 <= value <= len(labels):
                raise SqlError(1265, "Data truncated for column")
            return ("", *labels)[value]
        if (text := _as_text(value, "utf-8")) not in numbers:
            raise SqlError(1265, "Data truncated for column")
        return text

    def encode(value: str) -> bytes:
        return numbers[value].to_bytes(size, "little")

    listed = ",".join("'" + label.replace("'", "''") + "'" for label in labels)
    meta = bytes([ENUM, size])
    order = numbers.__getitem__
    text = f"enum({listed})"
    return Type("enum", text, STRING, meta, STRING, take, encode, order, collation=collation, labels=labels)


def _json() -> Type:
    def take(value: Any) -> str:
        try:
            return json_text(json.loads(value) if isinstance(value, str | bytes) else value)
        except ValueError:
            raise SqlError(3140, "Invalid JSON text") from None

    def encode(value: str) -> bytes:
        return images.json(json.loads(value))

    image = images.prefixed(4, encode)
    return Type("json", "json", JSON, b"\x04", JSON, take, image, _same, length=(1 << 32) - 1)


def json_text(value: Any) -> str:
    """Prints a document as MySQL does: keys by length, then by bytes; a space after colons and commas."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {json_text(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(json_text, value)) + "]"
    if isinstance(value, float):
        return double_text(value) if value != math.floor(value) or abs(value) >= 1e15 else f"{value:.1f}"
    return json.dumps(value, ensure_ascii=False)


def make_type(
    name: str, arguments: tuple[Any, ...] = (), *, unsigned: bool = False, collation: str = DEFAULTS["utf8mb4"]
) -> Type:
    """Returns a type by its declaration. Raises SqlError for one that the model does not have."""
    name = {"integer": "int", "numeric": "decimal", "bool": "tinyint", "boolean": "tinyint"}.get(name, name)
    if name in _INTS:
        return _integer(name, unsigned)
    if name == "decimal":
        precision, scale = (*arguments, 10, 0)[:2] if len(arguments) != 1 else (arguments[0], 0)
        return _decimal(precision, scale, unsigned)
    if name == "double":
        return _double()
    if name in ("varchar", "char"):
        size = arguments[0] if arguments else 1
        return _text(name, size, collation) if collation != BINARY else _bytes(name.replace("char", "binary"), size)
    if name in _TEXTS:
        return _text(name, _TEXTS[name], collation)
    if name in ("varbinary", "binary"):
        return _bytes(name, arguments[0] if arguments else 1)
    if name in _BLOBS:
        return _bytes(name, _BLOBS[name])
    if name in TIMES:
        return _time(name, arguments[0] if arguments else 0)
    if name == "date":
        return _date()
    if name == "enum":
        return _enum(tuple(map(str, arguments)), collation)
    if name == "json":
        return _json()
    raise unknown_statement(name)
