"""The stored form of the schema history: one JSON object for each fact learned, in the order it was learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from headrace.model import Column
from headrace.mysql.schema.ddl.actions import Index
from headrace.mysql.schema.ddl.definition import TableDefinition

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Column)}
_values = attrgetter(*_DEFAULTS)


def table_entry(schema: str, table: str, pos: int, at: str, **state: Any) -> dict[str, Any]:
    """Returns the entry for a table's new state: `definition` with the fields of definition_fields(), `unknown` with
    the reason, or `gone`."""
    return {"kind": "table", "pos": pos, "at": at, "schema": schema, "table": table, **state}


def schema_entry(
    schema: str, pos: int, at: str, charset: str, complete: bool, unread: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns the entry for a schema's default character set, and whether all of its tables are named; of those,
    `unread` are not captured."""
    entry = {"kind": "schema", "pos": pos, "at": at, "schema": schema, "charset": charset, "complete": complete}
    return entry | {"unread": list(unread)} if complete and unread else entry


def gone_entry(schema: str, pos: int, at: str) -> dict[str, Any]:
    """Returns the entry for a schema that does not exist, nor any of its tables."""
    return {"kind": "schema", "pos": pos, "at": at, "schema": schema, "gone": True}


def doubt_entry(pos: int, at: str, why: str) -> dict[str, Any]:
    """Returns the entry by which nothing is known any more from `pos` on. It is written with a stored position that is
    moved forward, because the DDL in between was not read."""
    return {"kind": "doubt", "pos": pos, "at": at, "why": why}


def back_entry(pos: int, at: str) -> dict[str, Any]:
    """Returns the entry for a position that was moved back to `pos`: what was learned after it is void, and is learned
    again."""
    return {"kind": "back", "pos": pos, "at": at}


def in_force(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the valid entries, in the order they were written, without those that a later move back has made void.
    Raises KeyError, TypeError or ValueError for an invalid entry."""
    kept: list[dict[str, Any]] = []
    for entry in entries:
        if entry["kind"] == "back":
            kept = [earlier for earlier in kept if int(earlier["pos"]) <= int(entry["pos"])]
        else:
            kept.append(entry)
    return kept


def tables_named(entries: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """Returns the tables that exist according to the entries. Raises as in_force()."""
    found: set[tuple[str, str]] = set()
    for entry in in_force(entries):
        if entry["kind"] == "table":
            name = str(entry["schema"]), str(entry["table"])
            (found.discard if entry.get("gone") else found.add)(name)
        elif entry["kind"] == "schema" and (entry.get("gone") or entry.get("new")):
            found = {name for name in found if name[0] != entry["schema"]}
    return found


def definition_fields(definition: TableDefinition) -> dict[str, Any]:
    """Returns a table schema's JSON form. Fields of a column that have their defaults are omitted."""
    columns = []
    for column in definition.columns:
        items = zip(_DEFAULTS.items(), _values(column), strict=True)
        reported = {name: value for (name, default), value in items if value != default}
        columns.append({**reported, "labels": list(column.labels)} if column.labels else reported)
    indexes = [[index.name, index.unique, *map(list, index.parts)] for index in definition.indexes]
    return {"columns": columns, "keys": list(definition.primary), "charset": definition.charset, "indexes": indexes}


def definition_from(fields_of: dict[str, Any]) -> TableDefinition:
    """Reads the JSON form. Raises KeyError, TypeError or ValueError if it is invalid."""
    columns = []
    for values in fields_of["columns"]:
        known = {name: value for name, value in values.items() if name in _DEFAULTS}
        known["labels"] = tuple(known.get("labels", ()))
        columns.append(Column(**known))
    indexes = tuple(
        Index(str(name), bool(unique), tuple((str(column), int(prefix)) for column, prefix in parts))
        for name, unique, *parts in fields_of["indexes"]
    )
    return TableDefinition(tuple(columns), tuple(int(i) for i in fields_of["keys"]), str(fields_of["charset"]), indexes)
