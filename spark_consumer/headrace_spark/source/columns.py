"""Columns as texts: what is selected of each, and how it becomes the text of messages."""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace_common.numbers import float32, float_text, vector_text

_DECLARED = re.compile(r"(\w+)(?:\((\d+)(?:,(\d+))?\))?")
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "bit"})
_FLOATS = frozenset({"float", "double"})
_TIMES = frozenset({"date", "datetime", "timestamp", "time", "year"})
_ADDRESSES = frozenset({"uuid", "inet4", "inet6"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_LABELS = frozenset({"enum", "set"})
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?", re.ASCII)
_PLAIN = re.compile(r"[0-9a-fA-F: .-]+", re.ASCII)


def quoted(name: str) -> str:
    """Returns a name of a schema, table or column for a statement."""
    return f"`{name.replace('`', '``')}`"


class SourceColumn(NamedTuple):
    """A column of a table. `type` is as in information_schema, `binary` whether it has no character set."""

    name: str
    type: str
    binary: bool = False

    @property
    def kind(self) -> str:
        """Returns the type's bare name."""
        found = _DECLARED.match(self.type)
        return found[1] if found else self.type

    @property
    def is_bytes(self) -> bool:
        """Returns whether it is read as bytes: all but numbers, times and texts. Those bytes are selected unchanged,
        because each function of the server has a limit for its result, and returns NULL beyond it."""
        kind = self.kind
        if kind in _TEXTS:
            return self.binary
        return kind not in _INTEGERS | _FLOATS | _TIMES | _ADDRESSES | _LABELS | {"decimal", "json", "vector"}

    def selected(self) -> str:
        """Returns the expression that is selected."""
        name, kind = quoted(self.name), self.kind
        if kind in _INTEGERS or (kind == "decimal" and "zerofill" in self.type):
            return f"CAST({name} + 0 AS CHAR)"  # without the zeros of ZEROFILL
        if kind in _FLOATS:  # else six digits of a FLOAT
            return f"CAST({name} - 0e0 AS CHAR)"
        if kind in _TIMES | _ADDRESSES or kind == "decimal":
            return f"CAST({name} AS CHAR)"
        return f"HEX({name})" if kind == "vector" else name  # a type that the driver does not know

    def converter(self) -> Callable[[Any], str] | None:
        """Returns a function for the text of a value; None if the value is the text."""
        found, kind = _DECLARED.match(self.type), self.kind
        if kind in _FLOATS and found is not None and found[3] is not None:
            return _fixed(kind, int(found[3]))
        if kind == "float":
            return _float
        if kind == "double":
            return _double
        if kind == "vector":
            return _vector
        return _base64 if self.is_bytes else None

    # -- as a part of the key -----------------------------------------------------------------------------------------

    def compared(self) -> str:
        """Returns the column as it is sorted and compared."""
        name = quoted(self.name)
        # Labels are sorted by their numbers.
        return f"CAST({name} AS UNSIGNED)" if self.kind in _LABELS else name

    def key_text(self) -> str:
        """Returns the expression whose text literal() turns into a literal."""
        if self.kind in _LABELS:
            return f"CAST({self.compared()} AS CHAR)"
        return f"HEX({quoted(self.name)})" if self.is_bytes else self.selected()

    def literal(self, text: str) -> str:
        """Returns a literal that equals the column's value. Raises ValueError for an invalid key of such a column."""
        kind = self.kind
        if kind in _INTEGERS or kind in _LABELS or kind == "decimal" or kind in _FLOATS:
            number = _matching(_NUMBER, text)
            return f"{number}e0" if kind in _FLOATS and "e" not in number else number
        if kind in _TIMES or kind in _ADDRESSES:
            return f"'{_matching(_PLAIN, text)}'"
        if self.is_bytes:
            return f"_binary x'{bytes.fromhex(text).hex()}'"
        return f"_utf8mb4 x'{text.encode().hex()}'"


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"{text[:100]!r} is not what the key has")
    return text


def _float(text: str) -> str:
    return float_text(float32(float(text)))


def _double(text: str) -> str:
    return float_text(float(text))


def _fixed(kind: str, decimals: int) -> Callable[[Any], str]:
    def text_of(text: str) -> str:
        value = float(text)
        if kind == "float":
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        return f"{value:.{decimals}f}"

    return text_of


def _base64(raw: bytes) -> str:
    return b64encode(raw).decode()


def _vector(digits: str) -> str:
    return vector_text(bytes.fromhex(digits))
