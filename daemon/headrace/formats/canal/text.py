"""Prints values as the JSON strings of Canal's messages."""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from binascii import hexlify
from collections.abc import Callable
from decimal import Decimal
from json.encoder import encode_basestring as quote
from typing import Any

from headrace.formats.row_text import Printer
from headrace.model import Column
from headrace_common.numbers import float_text

_BINARY: dict[str, Callable[[bytes], str]] = {
    "base64": lambda value: f'"{b64encode(value).decode()}"',
    "hex": lambda value: f'"{hexlify(value).decode()}"',
    "latin1": lambda value: quote(value.decode("latin-1")),
}
"""By [message] binary. Only latin1 can contain characters that JSON escapes."""
_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "bit", "decimal"})
_TIMES = frozenset({"date", "datetime", "timestamp", "time", "year"})
NUMBERS_AND_TIMES = _NUMBERS | _TIMES
"""Types whose printed value needs no escape."""
_TEXTS = frozenset({"varchar", "char", "tinytext", "text", "mediumtext", "longtext", "json", "vector"})
_FLOATS = frozenset({"float", "double"})
_DECIMALS = re.compile(r"(float|double)\(\d+,(\d+)\)")


def fixed_decimals(column: Column) -> Callable[[float], str] | None:
    """Returns a function that prints a FLOAT(m,d) or DOUBLE(m,d) with its declared number of decimals; None for other
    columns. The digits are those of the shortest text for the number, followed by zeros."""
    found = _DECIMALS.match(column.mysql_type)
    if found is None:
        return None
    kind, decimals = found[1], int(found[2])

    def text(value: float) -> str:
        if kind == "float":  # the value has the shortest text of the FLOAT; the server rounds its exact value
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        shortest = Decimal(repr(value))
        if -int(shortest.as_tuple().exponent) <= decimals:
            return f"{shortest:.{decimals}f}"
        return f"{value:.{decimals}f}"

    return text


class Texts:
    """Prints values as text, by [message] binary."""

    def __init__(self, binary: str) -> None:
        self.style, self.binary = binary, _BINARY[binary]

    def text_of(self, value: Any) -> str:
        """Returns the text of a value of any type: everything but NULL is a JSON string."""
        if value is None:
            return "null"
        if type(value) is str:
            return quote(value)
        if type(value) is bytes:
            return self.binary(value)
        if type(value) is float:
            return f'"{float_text(value)}"'
        return f'"{value}"'

    def printer(self, column: Column) -> Printer:
        """Returns the function for a column's values that are not NULL."""
        kind = column.kind
        if kind in NUMBERS_AND_TIMES:
            return quoted
        if kind in _TEXTS:
            return quote
        if (fixed := fixed_decimals(column)) is not None:
            return lambda value: f'"{fixed(value)}"'
        if kind in _FLOATS:
            return lambda value: f'"{float_text(value)}"'
        return self.text_of  # as for ENUM and SET: labels, or numbers if configured


def native_style(column: Column, binary: str) -> tuple[Any, ...]:
    """Returns how native code prints a column's values."""
    found = _DECIMALS.match(column.mysql_type)
    return ("decimals", int(found[2])) if found is not None else ("text", binary)


def quoted(value: Any) -> str:
    """Returns a value whose text needs no escape."""
    return f'"{value}"'
