"""Statements that undo changes of rows, as binlog2sql and canal2sql make them."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import NotUnderstood
from headrace.model import ABSENT, Column, Operation, Row, RowsChange, TableSchema
from headrace.mysql.snapshot.select import quoted

SESSION = (
    "SET NAMES utf8mb4",
    "SET time_zone = '+00:00'",
    "SET sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES'",
    "SET foreign_key_checks = 0",
)
"""What the statements need before them."""

_ESCAPED = re.compile(r"[\x00\n\r\x1a\\']")
_ESCAPES = {"\0": r"\0", "\n": r"\n", "\r": r"\r", "\x1a": r"\Z", "\\": r"\\", "'": r"\'"}
_NUMBERS = frozenset({"decimal", "numeric"})
_NOT_COMPARED = frozenset(
    {"float", "double", "json", "geometry", "point", "linestring", "polygon", "multipoint", "vector"}
)
_NOT_COMPARED |= {"multilinestring", "multipolygon", "geometrycollection", "geomcollection"}
"""Types whose values no condition finds again."""


def undo(change: RowsChange) -> Iterator[str]:
    """Yields a statement for each row, the last row first. ENUM and SET must be decoded as numbers, and times in UTC.
    Raises NotUnderstood for rows that do not have all columns, and for a table whose rows can't be told apart."""
    change.settle()
    before = change.before or [()] * len(change.rows)
    for row, old in zip(reversed(change.rows), reversed(before), strict=True):
        try:
            yield _statement(change.schema, change.operation, row, old)
        except ValueError as error:
            at, what = f"{change.origin.file}:{change.origin.offset}", f"{change.operation} of {change.schema.name}"
            raise NotUnderstood(
                f"at {at}: the {what} can't be undone: {error}",
                remedy="leave the table out with --table, or the transaction with --from and --to",
            ) from None


def _statement(table: TableSchema, operation: Operation, row: Row, old: Row) -> str:
    name = f"{quoted(table.schema)}.{quoted(table.table)}"
    if operation is Operation.INSERT:
        return f"DELETE FROM {name} WHERE {_found(table, row)} LIMIT 1"
    image = old if operation is Operation.UPDATE else row
    stored = [i for i, column in enumerate(table.columns) if not column.generated and image[i] is not ABSENT]
    lacking = [c.name for i, c in enumerate(table.columns) if not c.generated and image[i] is ABSENT]
    if operation is Operation.UPDATE:
        lacking = [c.name for i, c in enumerate(table.columns) if old[i] is ABSENT and row[i] is not ABSENT]
    if lacking:
        raise ValueError(f"the binlog does not have the former value of {', '.join(lacking)} (binlog_row_image)")
    names = [quoted(table.columns[i].name) for i in stored]
    values = [literal(table.columns[i], image[i]) for i in stored]
    if operation is Operation.DELETE:
        return f"INSERT INTO {name} ({', '.join(names)}) VALUES ({', '.join(values)})"
    assignments = ", ".join(f"{one} = {value}" for one, value in zip(names, values, strict=True))
    return f"UPDATE {name} SET {assignments} WHERE {_found(table, row)} LIMIT 1"


def _found(table: TableSchema, row: Row) -> str:
    """Returns the condition that finds a row: by its key, otherwise by all columns."""
    numbers: Sequence[int] = table.keys or [i for i, one in enumerate(table.columns) if not one.virtual]
    conditions = []
    for column, value in ((table.columns[i], row[i]) for i in numbers):
        if value is ABSENT:
            raise ValueError(f"the binlog does not have {column.name} (binlog_row_image)")
        if column.kind in _NOT_COMPARED and not (table.keys and column.kind == "double"):
            what = "is part of its key" if table.keys else "is a column, and the table has no key"
            raise ValueError(f"{column.name}, a {column.kind}, {what}")
        name, wanted = quoted(column.name), literal(column, value)
        if column.kind == "set":  # with 64 members it is a negative number otherwise
            name = f"CAST({name} AS UNSIGNED)"
        if isinstance(value, str) and column.charset and not table.keys:  # collations take different texts for equal
            name, wanted = f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)", f"CAST({wanted} AS BINARY)"
        conditions.append(f"{name} <=> {wanted}")
    return " AND ".join(conditions)


def literal(column: Column, value: Any) -> str:
    """Returns a value of a row as SQL. Raises ValueError for one that no statement writes."""
    if value is None:
        return "NULL"
    if column.kind == "enum" and value == 0:
        raise ValueError(f"{column.name} has the invalid value of an ENUM")
    if column.kind == "vector" and isinstance(value, str):
        numbers = json.loads(value)
        return f"0x{struct.pack(f'<{len(numbers)}f', *numbers).hex()}"
    if isinstance(value, float):
        if column.kind == "float":  # all digits: the largest one is out of range when it is rounded
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        text = repr(value)
        return text if "e" in text else f"{text}e0"  # else it is a DECIMAL, without -0
    if isinstance(value, int) or column.kind in _NUMBERS:
        return str(value)
    if isinstance(value, bytes):
        return f"0x{value.hex()}" if value else "''"
    return "'" + _ESCAPED.sub(lambda found: _ESCAPES[found[0]], value) + "'"
