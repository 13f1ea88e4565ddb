"""Statements that take all rows of tables away: TRUNCATE TABLE, DROP TABLE and CREATE OR REPLACE TABLE."""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Statement

_NAME = r"(?:`(?:[^`]|``)+`|\"(?:[^\"]|\"\")+\"|[^\s`\".,;/*(]+)"
_DROP = re.compile(
    rf"(?:/\*.*?\*/|\s)*DROP\s+(?P<temporary>TEMPORARY\s+)?TABLES?\s+(?:IF\s+EXISTS\s+)?"
    rf"(?P<names>{_NAME}(?:\s*\.\s*{_NAME})?(?:\s*,\s*{_NAME}(?:\s*\.\s*{_NAME})?)*)",
    re.IGNORECASE | re.DOTALL,
)
_REPLACE = re.compile(r"(?:/\*.*?\*/|\s)*CREATE\s+OR\s+REPLACE\s+TABLE\b", re.IGNORECASE | re.DOTALL)
"""MariaDB's: it drops the table that is there."""
_ONE = re.compile(rf"({_NAME})(?:\s*\.\s*({_NAME}))?")
_PARTITIONS = re.compile(r"\b(?:DROP|TRUNCATE|EXCHANGE|DISCARD|IMPORT)\s+PARTITION\b", re.IGNORECASE)
_DATABASE = re.compile(r"(?:/\*.*?\*/|\s)*DROP\s+(?:DATABASE|SCHEMA)\b", re.IGNORECASE | re.DOTALL)


class EmptiedTables(NamedTuple):
    """All rows of these tables that are older than `version` are gone."""

    tables: tuple[tuple[str, str], ...]
    version: int


def emptied(statement: Statement) -> EmptiedTables | None:
    """The tables that a statement empties; None where it empties none. Raises MessageError for a statement that takes
    rows away of which nothing says which they are."""
    kind, sql = statement.kind, statement.sql
    if kind == "TRUNCATE":
        return EmptiedTables(((statement.database, statement.table),), statement.version)
    if kind == "ERASE":
        found = _DROP.match(sql)
        if found is None:
            return EmptiedTables(((statement.database, statement.table),), statement.version)
        if found["temporary"]:
            return None
        return EmptiedTables(tuple(_names(found["names"], statement)), statement.version)
    if kind == "CREATE" and _REPLACE.match(sql):
        return EmptiedTables(((statement.database, statement.table),), statement.version)
    if _DATABASE.match(sql):
        raise MessageError(
            f"the documents of database {statement.database} are still there, and the database is dropped: delete "
            "their indexes"
        )
    if kind == "ALTER" and _PARTITIONS.search(sql):
        raise MessageError(
            f"partitions of {statement.database}.{statement.table} were emptied or exchanged, and nothing says which "
            "rows that were: compare table and index, and repair"
        )
    return None


def _names(text: str, statement: Statement) -> list[tuple[str, str]]:
    made = []
    for first, second in _ONE.findall(text):
        made.append((_plain(first), _plain(second)) if second else (statement.database, _plain(first)))
    return made


def _plain(name: str) -> str:
    quote = name[0]  # a double one with the SQL mode ANSI_QUOTES
    return name[1:-1].replace(quote * 2, quote) if quote in '`"' else name
