"""Tables as information_schema shows them: columns, types and the key."""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace_spark.source.columns import SourceColumn, quoted
from headrace_spark.source.connection import Source, SourceError

_SYSTEM = "('mysql', 'sys', 'information_schema', 'performance_schema', 'headrace')"
_REMARK = re.compile(r" */\*.*?\*/")
_COLUMNS = (
    "SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, IS_NULLABLE FROM information_schema.COLUMNS"
    " WHERE TABLE_SCHEMA = {database} AND TABLE_NAME = {table} ORDER BY ORDINAL_POSITION"
)
_KEY_NAME, _NON_UNIQUE, _SEQUENCE, _COLUMN, _SUB_PART = 2, 1, 3, 4, 7
"""Of SHOW INDEX."""


class SourceTable(NamedTuple):
    """A table. `keys` are the columns of its key in order, none if it has no key."""

    database: str
    name: str
    columns: tuple[SourceColumn, ...]
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"

    @property
    def types(self) -> dict[str, str]:
        """Returns the declared types by column, as in messages."""
        return {one.name: one.type for one in self.columns}

    @property
    def key_columns(self) -> list[SourceColumn]:
        """Returns the columns of the key."""
        by_name = {one.name: one for one in self.columns}
        return [by_name[name] for name in self.keys]


def table_names(source: Source) -> list[tuple[str, str]]:
    """Returns all tables that the account may see. Raises SourceError."""
    found = source.query(
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE IN ('BASE TABLE',"
        f" 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN {_SYSTEM} ORDER BY 1, 2"
    )
    return [(str(database), str(name)) for database, name in found]


def read_table(source: Source, database: str, name: str) -> SourceTable:
    """Returns one table. Raises SourceError."""
    rows = source.query(_COLUMNS.format(database=_literal(database), table=_literal(name)))
    if not rows:
        raise SourceError(f"table {database}.{name} has no columns that our account may see")
    columns, required = [], set()
    for column, kind, charset, nullable in rows:
        declared = _REMARK.sub("", str(kind))
        columns.append(SourceColumn(str(column), declared, charset is None or charset == "binary"))
        if nullable == "NO":
            required.add(str(column))
    return SourceTable(database, name, tuple(columns), _keys(source, database, name, required))


def _keys(source: Source, database: str, name: str, required: set[str]) -> tuple[str, ...]:
    """Returns the primary key; else the first unique key that the server uses in its place."""
    found: dict[str, list[tuple[int, str, bool]]] = {}
    for row in source.query(f"SHOW INDEX FROM {quoted(name)} FROM {quoted(database)}"):
        if row[_NON_UNIQUE] == "0":
            whole = row[_COLUMN] in required and row[_SUB_PART] is None
            found.setdefault(str(row[_KEY_NAME]), []).append((int(row[_SEQUENCE] or 0), str(row[_COLUMN]), whole))
    if "PRIMARY" in found:
        return tuple(column for _, column, _ in sorted(found["PRIMARY"]))
    for parts in found.values():
        if all(whole for _, _, whole in parts):
            return tuple(column for _, column, _ in sorted(parts))
    return ()


def _literal(text: str) -> str:
    return f"CONVERT(0x{text.encode().hex()} USING utf8mb4)"
