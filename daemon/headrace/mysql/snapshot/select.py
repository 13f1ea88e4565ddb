"""Statements that read a table in the order of its key, and the stored form of a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from zlib import crc32

from headrace.model import Column, TableSchema
from headrace.mysql.values import textcode
from headrace.mysql.values.mariadb import FIXED_BINARY
from headrace.mysql.wire.query_stream import ResultColumn, values_at
from headrace.ports.tables import Key, KeyOutdated

_NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII)
_TIME = re.compile(rb"[0-9: .-]+", re.ASCII)
_LISTED = 1_000
"""Members of an ENUM that a statement lists."""
_ADDRESS = re.compile(rb"[0-9a-fA-F:.-]+", re.ASCII)


def quoted(name: str) -> str:
    """Returns a name of a schema, table or column for a statement."""
    return f"`{name.replace('`', '``')}`"


class TableSelect:
    """The statements for one table, some of its columns, and a condition that rows must meet; "" for all rows.
    `present` are the numbers of the columns of their results, in order."""

    def __init__(self, table: TableSchema, columns: frozenset[str], where: str) -> None:
        self.table = table
        wanted = [i for i, c in enumerate(table.columns) if not columns or c.name.lower() in columns or i in table.keys]
        self.present: Sequence[int] = wanted or [0]
        self._places = [self.present.index(i) for i in table.keys]
        self._from = f"{quoted(table.schema)}.{quoted(table.table)}"
        self._keys = [_compared(table.table, table.columns[i]) for i in table.keys]
        self._where = where

    def sql(self, after: Key | None, rows: int) -> str:
        """Returns the query for the rows after a key, at most `rows`; for a table without a key all rows."""
        limit = f" LIMIT {rows}" if self._keys else ""
        return f"SELECT {self._list} FROM {self._from}{self._chosen(after)}{self._order}{limit}"

    def boundary(self, after: Key | None, rows: int) -> str:
        """Returns the query for the key of the last of the next `rows` rows, whether they meet the condition or not; it
        has no row if there are fewer."""
        keys = ", ".join(expression_of(self.table.columns[i]) for i in self.table.keys)
        where = f" WHERE {self._beyond(after, '>')}" if after is not None else ""
        return f"SELECT {keys} FROM {self._from}{where}{self._order} LIMIT {rows - 1}, 1"

    def within(self, after: Key | None, last: Key | None) -> str:
        """Returns the query for the rows after a key, up to and including that of another key; None: up to the table's
        end."""
        return f"SELECT {self._list} FROM {self._from}{self._chosen(after, last)}{self._order}"

    def _chosen(self, after: Key | None, last: Key | None = None) -> str:
        conditions = [f"({self._where}\n)"] if self._where else []  # a comment at its end ends with the line
        if after is not None:
            conditions.append(self._beyond(after, ">"))
        if last is not None:
            conditions.append(self._beyond(last, "<", also_equal=True))
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    @property
    def _order(self) -> str:
        return f" ORDER BY {', '.join(self._keys)}" if self._keys else ""

    def probe(self) -> str:
        """Returns the same without a condition, and without a row."""
        return f"SELECT {self._list} FROM {self._from} LIMIT 0"

    @property
    def _list(self) -> str:
        return ", ".join(expression_of(self.table.columns[i]) for i in self.present)

    def key_of(self, data: bytes, at: int, end: int) -> Key:
        """Returns the key of a row, whose values are from `at` to `end` as received."""
        return key_alone(values_at(data, at, end, self._places))

    def order_of(self, shown: Sequence[ResultColumn]) -> str:
        """Returns what the order of the keys depends on: their columns' types and collations, as in a result."""
        columns = [(self.table.columns[i].name, shown[at]) for i, at in zip(self.table.keys, self._places, strict=True)]
        members = [self.table.columns[i].labels for i in self.table.keys]
        facts = [f"{name}:{one.kind}:{one.collation}:{int(one.unsigned)}" for name, one in columns]
        return ",".join(facts + [f"{crc32(repr(labels).encode()):x}" for labels in members if labels])

    def _beyond(self, key: Key, side: str, *, also_equal: bool = False) -> str:
        """Returns the condition that a row's key is greater (`side` is ">") or less. The first comparison is true for
        every such row, so that also simple optimizers use the index."""
        columns = [self.table.columns[i] for i in self.table.keys]
        if len(key) != len(columns):
            raise KeyOutdated(f"a key of {self.table.name} has {len(key)} parts, its table {len(columns)}")
        condition = ""
        for name, column, part in list(zip(self._keys, columns, key, strict=True))[::-1]:
            literal = key_literal(column, part)
            if not condition:
                condition = _beyond(name, column, literal, side, also_equal=also_equal)
                continue
            enter = _beyond(name, column, literal, side, also_equal=True)
            beyond = _beyond(name, column, literal, side)
            condition = f"{enter} AND ({beyond} OR ({name} = {literal} AND {condition}))"
        return f"({condition})"


def key_alone(values: Sequence[bytes | None]) -> Key:
    """Returns the key with these values, as received; see TableSelect.boundary()."""
    return tuple((value or b"").hex() for value in values)


def _compared(table: str, column: Column) -> str:
    """Returns a column as it is sorted and compared: a SET of 64 members is a signed number in one, and not in the
    other."""
    name = f"{quoted(table)}.{quoted(column.name)}"
    return f"CAST({name} AS UNSIGNED)" if column.kind == "set" else name


def _beyond(name: str, column: Column, literal: str, side: str, *, also_equal: bool = False) -> str:
    """Returns the condition that a column has a greater value (`side` is ">") or a lesser one, in a form that can use
    an index: an ENUM's numbers use it only for equality."""
    if column.kind != "enum" or len(column.labels) > _LISTED:
        return f"{name} {side}{'=' if also_equal else ''} {literal}"
    known = range(len(column.labels) + 1)
    at = int(literal)
    numbers = known[at + (not also_equal) :] if side == ">" else known[: at + also_equal]
    return f"{name} IN ({', '.join(map(str, numbers))})" if numbers else "FALSE"


def among(table: TableSchema, keys: Sequence[Key]) -> str:
    """Returns the condition that a row has one of these keys, in SQL; for a session whose time zone is UTC."""
    names = [quoted(table.columns[i].name) for i in table.keys]
    rows = [_literals(table, key) for key in keys]
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join(row[0] for row in rows)})"
    each = (" AND ".join(f"{name} = {one}" for name, one in zip(names, row, strict=True)) for row in rows)
    return " OR ".join(f"({one})" for one in each)


def between(table: TableSchema, first: Key, last: Key) -> str:
    """Returns the condition that a row's key is between two, both included. With a key of several columns the first has
    a condition of its own, which can use the index."""
    names = [quoted(table.columns[i].name) for i in table.keys]
    low, high = _literals(table, first), _literals(table, last)
    if first == last:
        return " AND ".join(f"{name} = {one}" for name, one in zip(names, low, strict=True))
    condition = f"{names[0]} BETWEEN {low[0]} AND {high[0]}"
    if len(names) > 1:
        row = f"({', '.join(names)})"
        condition += f" AND {row} >= ({', '.join(low)}) AND {row} <= ({', '.join(high)})"
    return condition


def _literals(table: TableSchema, key: Key) -> list[str]:
    return [key_literal(table.columns[i], part) for i, part in zip(table.keys, key, strict=True)]


def expression_of(column: Column) -> str:
    """Returns the expression for a column, whose bytes have all of its value (see textcode.text_value)."""
    name = quoted(column.name)
    if column.kind in textcode.FLOATS:  # else 6 digits of a FLOAT, and those that are declared; -0 is kept
        return f"{name} - 0e0"
    if column.kind in ("enum", "set"):  # by number: labels may look alike, and a SET may have 64 bits
        return f"CAST({name} AS UNSIGNED)"
    return name


def key_literal(column: Column, part: str) -> str:
    """Returns one part of a key as a literal that equals the column's value in every collation. Raises KeyOutdated."""
    try:
        return _literal_of(column)(bytes.fromhex(part))
    except ValueError as error:
        raise KeyOutdated(f"the stored key of column `{column.name}` ({column.mysql_type}) is none: {error}") from None


def _literal_of(column: Column) -> Callable[[bytes], str]:
    kind = column.kind
    if kind in textcode.INTS or kind in ("decimal", "enum", "set"):
        return lambda raw: _matching(_NUMBER, raw)
    if kind == "bit":
        return lambda raw: str(int.from_bytes(raw, "big"))
    if kind in textcode.FLOATS:  # with an exponent it is a double, not a decimal
        return lambda raw: text if "e" in (text := _matching(_NUMBER, raw)) else f"{text}e0"
    if kind in textcode.TEMPORAL:
        return lambda raw: f"'{_matching(_TIME, raw)}'"
    if kind in FIXED_BINARY:
        return lambda raw: f"'{_matching(_ADDRESS, raw)}'"
    if kind in textcode.BYTES or column.charset in ("", "binary"):
        return lambda raw: f"_binary x'{raw.hex()}'"
    return lambda raw: f"_{column.charset} x'{raw.hex()}'"


def _matching(pattern: re.Pattern[bytes], raw: bytes) -> str:
    if not pattern.fullmatch(raw):
        raise ValueError(f"{raw!r} is not what the column has")
    return raw.decode("ascii")
