"""Masks: columns whose values are not published unchanged."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Literal

from headrace.model import ABSENT, Column
from headrace.rules.predicate_types import DECIMALS, FLOATS, INTEGERS, TEXTS
from headrace.rules.times import print_temporal
from headrace_common.numbers import float_text

MaskKind = Literal["fixed", "hash", "truncate", "null"]
Change = Callable[[Any], Any]
_VARCHAR = 12
"""java.sql.Types.VARCHAR."""
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64, "bool": 8, "boolean": 8}
_BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
_BYTES = {"tinytext": 255, "text": 65_535, "mediumtext": (1 << 24) - 1, "longtext": (1 << 32) - 1}
_MAX_FLOAT = 3.4028234663852886e38


@dataclass(frozen=True, slots=True)
class Mask:
    """The mask of a column: `value` for fixed, `salt` for hash, `length` for truncate.

    The value is text, also for a column of numbers. A hash is HMAC-SHA-256 under the salt, in 64 hexadecimal digits,
    over the value's text in UTF-8 (a binary string's bytes unchanged), so that equal values stay equal."""

    kind: MaskKind
    value: str = ""
    salt: str = field(default="", repr=False)
    length: int = 0

    @property
    def reads(self) -> bool:
        """Returns whether the published value depends on the original."""
        return self.kind in ("hash", "truncate")

    def native(self, column: Column, *, enum_index: bool) -> tuple[Any, ...]:
        """Returns the mask as native code reads it, for a column that bind() has accepted. `enum_index`: whether values
        of ENUM are numbers."""
        if self.kind == "hash":
            return "hash", self.salt.encode()
        if self.kind == "truncate":
            return "truncate", self.length
        if self.kind == "null":
            return ("null",)
        if column.kind == "enum":
            return "fixed", str(column.labels.index(self.value) + 1) if enum_index else self.value
        value = _fixed_value(column, self.value)
        return "fixed", float_text(value) if type(value) is float else str(value)

    def bind(self, column: Column, *, key: bool) -> tuple[Column, Change]:
        """Returns the column as it is published, and a function that converts its values. NULL stays NULL, and ABSENT
        stays ABSENT. `key`: whether it is part of the primary key. Raises ValueError if the column can't have this
        mask."""
        if key and self.kind != "hash":
            raise ValueError(
                f'{column.name} is part of the primary key and can only be masked with "hash": rows that differ have '
                "to stay different"
            )
        if self.kind == "hash":
            return _hashed(column), _hash(self.salt.encode())
        if self.kind == "null":
            return replace(column, nullable=True, default=None), _always(None)
        if self.kind == "truncate":
            return column, _truncate(column, self.length)
        try:
            return column, _fixed(column, self.value)
        except ValueError as error:
            raise ValueError(
                f"the fixed value {self.value!r} for {column.name} ({column.mysql_type}) {error}"
            ) from None


def _always(value: Any) -> Change:
    return lambda old: old if old is None or old is ABSENT else value


def _hashed(column: Column) -> Column:
    return replace(
        column,
        mysql_type="varchar(64)",
        sql_type=_VARCHAR,
        unsigned=False,
        charset="utf8mb4",
        labels=(),
        length=64,
        scale=0,
        default=None,
        auto_increment=False,
    )


def _hash(salt: bytes) -> Change:
    """Returns HMAC (RFC 2104) with the two inner states computed once: less than half the time of hmac.digest for a
    short value."""
    block = (hashlib.sha256(salt).digest() if len(salt) > 64 else salt).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block)).copy
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block)).copy

    def change(value: Any) -> Any:
        if value is None or value is ABSENT:
            return value
        if value.__class__ is not bytes:
            if value.__class__ is float:
                value = repr(value).removesuffix(".0")
            value = str(value).encode("utf-8", "surrogatepass")
        within, whole = inner(), outer()
        within.update(value)
        whole.update(within.digest())
        return whole.hexdigest()

    return change


def _truncate(column: Column, length: int) -> Change:
    if column.kind not in TEXTS and column.kind not in _BINARIES:
        raise ValueError(
            f"{column.name} ({column.mysql_type}) can't be truncated: it is neither text nor a binary string"
        )
    return lambda value: value if value is None or value is ABSENT else value[:length]


def _fixed(column: Column, text: str) -> Change:
    if column.kind == "enum":
        return _fixed_enum(column, text)
    return _always(_fixed_value(column, text))


def _fixed_enum(column: Column, text: str) -> Change:
    """Returns a function for the label, or its number if rows have numbers."""
    if text not in column.labels:
        raise ValueError(f"should be one of {', '.join(column.labels[:20])}")
    number = column.labels.index(text) + 1

    def change(old: Any) -> Any:
        if old is None or old is ABSENT:
            return old
        return number if old.__class__ is int else text

    return change


def _fixed_value(column: Column, text: str) -> Any:
    """Returns the value in the form of rows. Raises ValueError with the end of the sentence."""
    kind = column.kind
    if kind in TEXTS and kind not in ("uuid", "inet4", "inet6") and column.charset != "binary":
        return _fixed_text(column, text)
    if kind in INTEGERS:
        return _fixed_integer(column, text)
    if kind in DECIMALS:
        return _fixed_decimal(column, text)
    if kind in FLOATS:
        number = float(_digits(text, r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"))
        if abs(number) > (_MAX_FLOAT if kind == "float" else 1.7976931348623157e308):
            raise ValueError("is too large")
        return number
    if kind in ("date", "datetime", "timestamp", "time"):
        return print_temporal(text, kind, column.length)
    if kind == "year":
        if text != "0000" and not 1901 <= int(_digits(text, "[0-9]{4}")) <= 2155:
            raise ValueError("should be a year from 1901 to 2155, or 0000")
        return text
    raise ValueError('is not possible: take mask = "null" or "hash" for a column of this type')


def _digits(text: str, pattern: str) -> str:
    if not re.fullmatch(pattern, text.strip()) or len(text) > 400:
        raise ValueError("should be a number that the column can have")
    return text.strip()


def _fixed_text(column: Column, text: str) -> str:
    if column.kind in _BYTES:
        if len(text.encode("utf-8", "surrogatepass")) > _BYTES[column.kind]:
            raise ValueError("is too long")
    elif column.length and len(text) > column.length:
        raise ValueError(f"has {len(text)} characters, and the column {column.length}")
    return text


def _fixed_integer(column: Column, text: str) -> int:
    number = int(_digits(text, "[+-]?[0-9]{1,30}"))
    bits = (column.length or 64) if column.kind == "bit" else _BITS[column.kind]
    unsigned = column.unsigned or column.kind == "bit"
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not low <= number <= high:
        raise ValueError(f"should be from {low} to {high}")
    return number


def _fixed_decimal(column: Column, text: str) -> str:
    number = Decimal(_digits(text, r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"))
    if column.unsigned and number < 0:
        raise ValueError("should not be below 0")
    if not column.length:
        return f"{number:f}"
    before, _, behind = f"{abs(number):f}".partition(".")
    if len(behind.rstrip("0")) > column.scale or len(before.lstrip("0")) > column.length - column.scale:
        raise ValueError(f"should have at most {column.length} digits, {column.scale} of them after the point")
    sign = "-" if number < 0 else ""
    return f"{sign}{before.lstrip('0') or '0'}" + (
        f".{behind[: column.scale].ljust(column.scale, '0')}" if column.scale else ""
    )
