"""Results of statements, and their bytes in the text protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sim.mysql import wire
from sim.mysql.collations import NUMBERS
from sim.mysql.sql.expressions import Compiled, kind_of
from sim.mysql.types import BLOB, DOUBLE, JSON, LONGLONG, NEWDECIMAL, STRING, VAR_STRING, double_text

_LONG, _NULL_TYPE = 3, 6
_UTF8 = NUMBERS["utf8mb4_0900_ai_ci"]
_BINARY = NUMBERS["binary"]
_BLOB_FLAG, _UNSIGNED, _BINARY_FLAG, _ENUM_FLAG = 16, 32, 128, 256
Printer = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result: its packet, and how its values are printed."""

    name: str
    packet: bytes
    print: Printer


@dataclass(slots=True)
class Result:
    """What a statement gives. Without columns it is an OK. `packets` are rows that are already printed."""

    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Any]] = ()
    affected: int = 0
    insert_id: int = 0
    more: dict[str, Any] = field(default_factory=dict)

    def dicts(self) -> list[dict[str, Any]]:
        """Returns the rows by the names of columns."""
        return [dict(zip((column.name for column in self.columns), row, strict=True)) for row in self.rows]

    def packets(self) -> list[bytes]:
        """Returns the rows in the text protocol."""
        printers = [column.print for column in self.columns]
        return [
            b"".join(
                b"\xfb" if value is None else wire.text(to_bytes(value))
                for to_bytes, value in zip(printers, row, strict=True)
            )
            for row in self.rows
        ]


def _print(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, Decimal):
        return f"{value:f}".encode()
    return (double_text(value) if isinstance(value, float) else str(value)).encode()


_KINDS = {
    "int": (LONGLONG, _BINARY_FLAG, 0, _BINARY),
    "uint": (LONGLONG, _UNSIGNED | _BINARY_FLAG, 0, _BINARY),
    "decimal": (NEWDECIMAL, _BINARY_FLAG, 0, _BINARY),
    "double": (DOUBLE, _BINARY_FLAG, 31, _BINARY),
    "long": (_LONG, _BINARY_FLAG, 0, _BINARY),
    "text": (VAR_STRING, 0, 31, _UTF8),
    "blob": (BLOB, _BLOB_FLAG, 31, _UTF8),
    "label": (STRING, _ENUM_FLAG, 0, _UTF8),
    "bytes": (VAR_STRING, _BINARY_FLAG, 31, _BINARY),
    "null": (_NULL_TYPE, _BINARY_FLAG, 0, _BINARY),
}
"""Type number, flags, decimals and collation."""


def column_of(name: str, compiled: Compiled, *, raw: bool, schema: str = "", table: str = "") -> Column:
    """Returns the column of an expression. `raw`: texts are sent in their own character set (character_set_results is
    NULL)."""
    kind = compiled.type
    if kind is None:
        number, flags, decimals, collation = _KINDS.get(compiled.kind, _KINDS["text"])
        decimals = compiled.decimals if compiled.kind == "decimal" else decimals
        return Column(name, wire.column(name, table, schema, collation, 1024, number, flags, decimals), _print)
    text = kind.collation != "binary"
    collation = _UTF8 if text and not raw else kind.shown_collation
    packet = wire.column(
        name, table, schema, collation, kind.length & 0xFFFFFFFF, kind.result, kind.flags, kind.decimals
    )
    return Column(name, packet, kind.print if raw or not text or kind.result == JSON else _print)


def plain(names: Sequence[str], rows: Sequence[Sequence[Any]], kinds: str = "") -> Result:
    """Returns a result of values as they are; `kinds` has an `i` for each column of integers, and an `l`
    for those of four bytes, if any."""
    columns = []
    for at, name in enumerate(names):
        kind = {"i": "int", "l": "long"}.get(kinds[at : at + 1], "text")
        if not kinds and rows:
            kind = kind_of(rows[0][at])
        columns.append(column_of(name, Compiled(tuple, "text" if kind == "null" else kind), raw=False))
    return Result(columns, rows)
