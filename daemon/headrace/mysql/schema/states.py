"""What the schema history knows of each table and schema, and the entries that it becomes in the state store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from headrace.model import TableSchema
from headrace.mysql.schema.ddl.actions import TableName
from headrace.mysql.schema.ddl.definition import TableDefinition
from headrace.mysql.schema.entries import definition_fields, definition_from, doubt_entry, in_force, table_entry

FilePosition = tuple[str, int]
"""A binlog file and the offset behind an event in it."""
State = TableDefinition | str | None
"""A table's schema, why it is not known, or None for one that does not exist."""
NEVER = "its schema was never read"
UNREAD = "it was not among the captured tables when table schemas were read"
_NUMBER = re.compile(r"\.(\d+)$")


def file_number(file: str) -> int:
    """The number that a binlog file's name ends in; 0 when it has none."""
    match = _NUMBER.search(file)
    return int(match[1]) if match else 0


def reached(file_position: FilePosition, wanted: FilePosition) -> bool:
    """Whether `file_position` is `wanted` or behind it, in the binlog of one server."""
    return (file_number(file_position[0]), file_position[1]) >= (file_number(wanted[0]), wanted[1])


def _same_schema(before: State, after: State) -> bool:
    """Whether two definitions differ in nothing that rows and messages show."""
    if not isinstance(before, TableDefinition) or not isinstance(after, TableDefinition):
        return False
    return (before.columns, before.primary, before.keys) == (after.columns, after.primary, after.keys)


def table_schema(name: TableName, definition: TableDefinition) -> TableSchema:
    """The model's form of a definition."""
    return TableSchema(*name, definition.columns, definition.keys, promoted=not definition.primary)


@dataclass(slots=True)
class _Schema:
    """One schema. `charset` "" when its default is not known; `complete`: a table without a state does not exist."""

    charset: str
    complete: bool


class States:
    """The states by name, folded as the server folds names, and the entries of what changed."""

    def __init__(self, captures: Callable[[str, str], bool], lower_case_table_names: int) -> None:
        self.version = 1
        self._captures, self._lower = captures, lower_case_table_names
        self._tables: dict[TableName, State] = {}
        self._schemas: dict[str, _Schema | None] = {}
        self.listed = False
        self._fresh: list[dict[str, Any]] = []
        self._pos, self._at = 0, ""
        self._made: dict[TableName, TableSchema] = {}

    def fork(self) -> States:
        """The same states, to go on with apart."""
        forked = States(self._captures, self._lower)
        forked._tables, forked._schemas, forked.listed = dict(self._tables), dict(self._schemas), self.listed
        return forked

    def at(self, pos: int, at: str) -> None:
        """The place that the next changes belong to."""
        self._pos, self._at = pos, at

    def fold(self, name: str) -> str:
        """A schema's or table's name as keys have it."""
        return name.lower() if self._lower else name

    def key(self, name: TableName) -> TableName:
        """A table's name as keys have it."""
        return (name[0].lower(), name[1].lower()) if self._lower else name

    def get(self, name: TableName) -> State:
        """The state of a table."""
        key = self.key(name)
        if key in self._tables:
            return self._tables[key]
        if key[0] in self._schemas:
            schema = self._schemas[key[0]]
            return None if schema is None or schema.complete else NEVER
        return None if self.listed else NEVER

    def schema_of(self, name: TableName) -> TableSchema | None:
        """The model's form of a known table schema, one object as long as it holds."""
        key = self.key(name)
        made = self._made.get(key)
        if made is None:
            state = self._tables.get(key)
            if not isinstance(state, TableDefinition):
                return None
            made = self._made[key] = table_schema(key, state)
        return made

    def set(self, name: TableName, state: State, *, quiet: bool = False) -> None:
        """A table's new state. `quiet`: it is told with its schema's entry."""
        key = self.key(name)
        before = self._tables.get(key)
        if key in self._tables and before == state:
            return
        self._tables[key] = state
        if not _same_schema(before, state):
            self._made.pop(key, None)
            self.version += self._captures(*key)
        if quiet:
            return
        if isinstance(state, TableDefinition):
            fields = definition_fields(state)
        else:
            fields = {"gone": True} if state is None else {"unknown": state}
        self._fresh.append(table_entry(*key, self._pos, self._at, **fields))

    def known(self) -> list[TableName]:
        """Captured tables whose schema is known."""
        return [
            key for key, state in self._tables.items() if isinstance(state, TableDefinition) and self._captures(*key)
        ]

    def tables_in(self, schema: str) -> list[TableName]:
        """Tables of a schema that have a state."""
        folded = self.fold(schema)
        return [key for key in self._tables if key[0] == folded]

    def charset(self, schema: str) -> str:
        """A schema's default character set; "" when it is not known."""
        known = self._schemas.get(self.fold(schema))
        return known.charset if known else ""

    def complete(self, schema: str) -> bool:
        """Whether it is known which tables the schema has; also for one that does not exist."""
        folded = self.fold(schema)
        if folded in self._schemas:
            known = self._schemas[folded]
            return known is None or known.complete
        return self.listed

    def exists(self, schema: str) -> bool | None:
        """Whether a schema exists; None when that is not known."""
        folded = self.fold(schema)
        if folded in self._schemas:
            return self._schemas[folded] is not None
        return False if self.listed else None

    def set_schema(self, schema: str, charset: str, *, complete: bool) -> None:
        """A schema's default character set, and whether all of its tables have a state."""
        folded = self.fold(schema)
        self._schemas[folded] = _Schema(charset, complete)
        unread = [key[1] for key, state in self._tables.items() if key[0] == folded and state == UNREAD]
        entry: dict[str, Any] = {"kind": "schema", "pos": self._pos, "at": self._at, "schema": folded}
        entry |= {"charset": charset, "complete": complete}
        if complete and unread:
            entry["unread"] = unread
        self._fresh.append(entry)

    def drop_schema(self, schema: str) -> None:
        """A schema is gone with all of its tables."""
        folded = self.fold(schema)
        self._schemas[folded] = None
        self._clear(folded)
        self._fresh.append({"kind": "schema", "pos": self._pos, "at": self._at, "schema": folded, "gone": True})

    def _clear(self, folded: str) -> None:
        for key in self.tables_in(folded):
            del self._tables[key]
            self._made.pop(key, None)
            if self._captures(*key):
                self.version += 1

    def set_listed(self) -> None:
        """From here on a schema that has no state does not exist."""
        if not self.listed:
            self.listed = True
            self._fresh.append({"kind": "listed", "pos": self._pos, "at": self._at})

    def doubt(self, why: str) -> None:
        """Nothing is known for sure any more."""
        self._fresh.append(doubt_entry(self._pos, self._at, why))
        self._doubt(why)

    def _doubt(self, why: str) -> None:
        self._tables = dict.fromkeys(self._tables, why)
        self._schemas = {name: _Schema("", False) for name, schema in self._schemas.items() if schema is not None}
        self.listed = False
        self._made.clear()
        self.version += 1

    def take_entries(self) -> tuple[dict[str, Any], ...]:
        """The entries since the last call."""
        fresh, self._fresh = self._fresh, []
        return tuple(fresh)

    def restore(self, entries: Iterable[dict[str, Any]], last_pos: int) -> None:
        """Takes stored entries up to `last_pos`, by their `_pos` and then in the order they were written."""
        try:
            known = [entry for entry in in_force(entries) if int(entry["pos"]) <= last_pos]
            for entry in sorted(known, key=lambda e: int(e["pos"])):
                self._restore(entry)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"an entry of the schema history can't be read ({error!r})") from error
        self._made.clear()
        self.version += 1

    def _restore(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "table":
            key = (str(entry["schema"]), str(entry["table"]))
            if "columns" in entry and "indexes" not in entry:
                self._tables[key] = "its unique keys were not read"
            elif "columns" in entry:
                self._tables[key] = definition_from(entry)
            else:
                self._tables[key] = None if entry.get("gone") else str(entry["unknown"])
        elif kind == "schema":
            name = str(entry["schema"])
            if entry.get("gone"):
                self._schemas[name] = None
                self._clear(name)
            else:
                if entry.get("new"):
                    self._clear(name)
                self._schemas[name] = _Schema(str(entry["charset"]), bool(entry["complete"]))
                self._tables |= {(name, table): UNREAD for table in entry.get("unread", ())}
        elif kind == "listed":
            self.listed = True
        elif kind == "doubt":
            self._doubt(str(entry["why"]))
        else:
            raise ValueError(f"an entry of the schema history has the unknown kind {kind!r}")

    def new_schema(self, schema: str, charset: str) -> None:
        """A schema was made: it has no tables."""
        folded = self.fold(schema)
        self._clear(folded)
        self.set_schema(folded, charset, complete=True)
        self._fresh[-1]["new"] = True
