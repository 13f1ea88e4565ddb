"""The stored form of the schema history: one JSON object for each thing learned, in the order it was learned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from headrace.model import Column
from headrace.mysql.schema.ddl.actions import Index
from headrace.mysql.schema.ddl.definition import TableDefinition

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Column)}
_ITEMS = tuple(_DEFAULTS.items())


def table_entry(schema: str, table: str, pos: int, at: str, **state: Any) -> dict[str, Any]:
    """A table's new state: `definition` with what layout_fields() gives, `unknown` with the reason, or `gone`."""
    return {"kind": "table", "pos": pos, "at": at, "schema": schema, "table": table, **state}


def schema_entry(
    schema: str, pos: int, at: str, charset: str, complete: bool, unread: Sequence[str] = ()
) -> dict[str, Any]:
    """A schema's default character set, and whether all tables that it has are named; of those, `unread` are not
    captured."""
    entry = {"kind": "schema", "pos": pos, "at": at, "schema": schema, "charset": charset, "complete": complete}
    return entry | {"unread": list(unread)} if complete and unread else entry


def gone_entry(schema: str, pos: int, at: str) -> dict[str, Any]:
    """A schema does not exist, and none of its tables."""
    return {"kind": "schema", "pos": pos, "at": at, "schema": schema, "gone": True}


def doubt_entry(pos: int, at: str, why: str) -> dict[str, Any]:
    """Nothing is known any more from `pos` on. Whoever moves a stored position forward writes it with the position,
    because the DDL in between was not seen."""
    return {"kind": "doubt", "pos": pos, "at": at, "why": why}


def back_entry(pos: int, at: str) -> dict[str, Any]:
    """The position was moved back to `pos`: what was learned behind it is learned again, and counts no more."""
    return {"kind": "back", "pos": pos, "at": at}


def in_force(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries that count, in the order they were written: none that a later move back has made void. Raises
    KeyError, TypeError or ValueError for what is no entry."""
    kept: list[dict[str, Any]] = []
    for entry in entries:
        if entry["kind"] == "back":
            kept = [earlier for earlier in kept if int(earlier["pos"]) <= int(entry["pos"])]
        else:
            kept.append(entry)
    return kept


def tables_named(entries: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """The tables that the entries know to exist. Raises as in_force()."""
    found: set[tuple[str, str]] = set()
    for entry in in_force(entries):
        if entry["kind"] == "table":
            name = str(entry["schema"]), str(entry["table"])
            (found.discard if entry.get("gone") else found.add)(name)
        elif entry["kind"] == "schema" and (entry.get("gone") or entry.get("new")):
            found = {name for name in found if name[0] != entry["schema"]}
    return found


def definition_fields(definition: TableDefinition) -> dict[str, Any]:
    """A table schema's JSON form. Fields of a column that have their defaults are left out."""
    columns = []
    for column in definition.columns:
        told = {name: value for name, default in _ITEMS if (value := getattr(column, name)) != default}
        columns.append({**told, "labels": list(column.labels)} if column.labels else told)
    indexes = [[index.name, index.unique, *map(list, index.parts)] for index in definition.indexes]
    return {"columns": columns, "keys": list(definition.primary), "charset": definition.charset, "indexes": indexes}


def definition_from(fields_of: dict[str, Any]) -> TableDefinition:
    """The schema from its JSON form; raises KeyError, TypeError or ValueError when it is none."""
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
