"""How values of each column type compare with literals: the forms that a row's value and a literal are converted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from headrace.model import Column
from headrace.rules import times

INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "integer", "bigint", "bit", "bool", "boolean"})
DECIMALS = frozenset({"decimal", "numeric", "dec", "fixed"})
FLOATS = frozenset({"float", "double", "real"})
TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "uuid", "inet4", "inet6"})


@dataclass(frozen=True, slots=True)
class Family:
    """Column types that compare in the same way. `value` converts a row's value (None: unchanged), `literal` a
    literal's, and raises ValueError with a sentence; `likes` is whether LIKE is allowed."""

    said: str
    value: Callable[[Any], Any] | None
    literal: Callable[[Any], Any]
    likes: bool = False


def _number(value: Any) -> Any:
    if isinstance(value, str):
        raise ValueError("should be a number, without quotes")
    return int(value) if isinstance(value, bool) else value


def _decimal(value: Any) -> Decimal:
    return Decimal(_number(value))


def _float(value: Any) -> float:
    try:
        return float(_number(value))
    except OverflowError:
        raise ValueError("is too large for a DOUBLE") from None


def _year(value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not (text == "0" or (len(text) == 4 and text.isascii() and text.isdigit())):
        raise ValueError("should be a year of 4 digits")
    return int(text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("should be a text, in quotes")
    return value


def _temporal(key: Callable[[str], Any]) -> Callable[[Any], Any]:
    def literal(value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError('should be a text in quotes, as in "2026-01-31" or "12:30:00"')
        return key(value)

    return literal


def _enum_text(labels: tuple[str, ...]) -> Callable[[Any], str]:
    table = ("", *labels)
    return lambda value: table[value] if value.__class__ is int else value


def _set_text(labels: tuple[str, ...]) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        if value.__class__ is int:
            return ",".join(label for index, label in enumerate(labels) if value >> index & 1)
        label: str = value
        return label

    return text


_SIMPLE = {
    **dict.fromkeys(INTEGERS, Family("a number", None, _number)),
    **dict.fromkeys(DECIMALS, Family("a number", Decimal, _decimal)),
    **dict.fromkeys(FLOATS, Family("a number", None, _float)),
    **dict.fromkeys(TEXTS, Family("a text", None, _text, likes=True)),
    "date": Family("a date", None, _temporal(times.date_key)),
    "datetime": Family("a date and time", times.datetime_value, _temporal(times.datetime_key)),
    "timestamp": Family("a date and time", times.datetime_value, _temporal(times.datetime_key)),
    "time": Family("a time", times.time_micros, _temporal(times.time_micros)),
    "year": Family("a year", int, _year),
}


def family_of(column: Column) -> Family | None:
    """Returns how the column compares; None: it can't be compared, only be NULL or not (JSON, binary strings,
    geometries, vectors, and unknown types)."""
    if column.charset == "binary":
        return None
    if column.kind == "enum":
        return Family("a text", _enum_text(column.labels), _text, likes=True)
    if column.kind == "set":
        return Family("a text", _set_text(column.labels), _text, likes=True)
    return _SIMPLE.get(column.kind)
