"""The schema history's state of each table and schema, and its entries in the state store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from headrace.model import TableSchema
from headrace.mysql.schema.ddl.actions import TableName
from headrace.mysql.schema.ddl.definition import TableDefinition
from headrace.mysql.schema.entries import (
    back_entry,
    definition_fields,
    definition_from,
    doubt_entry,
    gone_entry,
    in_force,
    schema_entry,
    table_entry,
)
from headrace.mysql.wire.binlog_file import file_number

FilePosition = tuple[str, int]
"""A binlog file and the offset after an event in it."""
ALWAYS = (1 << 63) - 1
"""An offset that no file reaches."""
State = TableDefinition | str | None
"""A table's schema, why it is unknown, or None if it does not exist."""
NEVER = "its schema was never read"
UNREAD = "it was not among the captured tables when table schemas were read"
_GONE = 10_000
"""Number of names that are remembered as nonexistent while not all existing ones are known; the oldest are forgotten,
and become unknown."""
_COMPACT_FROM = 1_000
"""The history is compacted when this many more entries are stored than twice those that were valid last time."""
_MADE = 8_000
"""Tables whose model is kept, with what is derived from it."""
_SLICE = 200
"""Tables whose entries are made without a pause, because other destinations share the loop."""


def reached(file_position: FilePosition, wanted: FilePosition) -> bool:
    """Returns whether `file_position` is `wanted` or after it, in the binlog of one server."""
    return order_of(file_position) >= order_of(wanted)


def order_of(file_position: FilePosition) -> tuple[int, int]:
    """Returns what positions of one server are compared by."""
    return file_number(file_position[0]), file_position[1]


def _same_schema(before: State, after: State) -> bool:
    """Returns whether two definitions do not differ in rows and messages."""
    if not isinstance(before, TableDefinition) or not isinstance(after, TableDefinition):
        return False
    return (before.columns, before.primary, before.keys) == (after.columns, after.primary, after.keys)


def _fields(state: State) -> dict[str, Any]:
    """Returns the fields of a table's state in its entry."""
    if isinstance(state, TableDefinition):
        return definition_fields(state)
    return {"gone": True} if state is None else {"unknown": state}


def table_schema(name: TableName, definition: TableDefinition) -> TableSchema:
    """Returns the model's form of a definition."""
    return TableSchema(*name, definition.columns, definition.keys, promoted=not definition.primary)


@dataclass(slots=True)
class _Schema:
    """One existing schema. `charset` "" if its default is unknown; `complete`: a table without a state does not
    exist."""

    charset: str
    complete: bool


class States:
    """The states by name, folded as the server folds names, and the entries of what changed."""

    def __init__(self, captures: Callable[[str, str], bool], lower_case_table_names: int) -> None:
        self.version = 1
        self._captures, self._lower = captures, lower_case_table_names
        self._tables: dict[TableName, TableDefinition | str] = {}
        self._schemas: dict[str, _Schema] = {}
        self._gone: dict[TableName, None] = {}
        """What does not exist although its schema is not complete; a schema is (its name, "")."""
        self.listed = False
        self._fresh: list[dict[str, Any]] = []
        self._stored = 0
        """Entries that were restored and given out since all before them became void."""
        self._most = _COMPACT_FROM
        """The maximum of it."""
        self._again: Iterator[list[dict[str, Any]]] | None = None
        """Makes the valid entries, as of one moment, while the history is compacted."""
        self._made_again: list[dict[str, Any]] = []
        self._since: list[dict[str, Any]] = []
        """Entries after that moment."""
        self._pos, self._at = 0, ""
        self._made: dict[TableName, TableSchema] = {}

    def fork(self) -> States:
        """Returns an independent copy of the states."""
        forked = States(self._captures, self._lower)
        forked._tables, forked._schemas, forked.listed = dict(self._tables), dict(self._schemas), self.listed
        forked._gone = dict(self._gone)
        return forked

    def at(self, pos: int, at: str) -> None:
        """Sets the position that the next changes belong to."""
        self._pos, self._at = pos, at

    def fold(self, name: str) -> str:
        """Returns a schema's or table's name as in keys."""
        return name.lower() if self._lower else name

    def key(self, name: TableName) -> TableName:
        """Returns a table's name as in keys."""
        return (name[0].lower(), name[1].lower()) if self._lower else name

    def get(self, name: TableName) -> State:
        """Returns the state of a table."""
        key = self.key(name)
        if key in self._tables:
            return self._tables[key]
        return None if key in self._gone or self.complete(key[0]) else NEVER

    def schema_of(self, name: TableName) -> TableSchema | None:
        """Returns the model's form of a known table schema. It is the same object while the schema is valid, unless
        thousands of others were requested since."""
        key = self.key(name)
        made = self._made.get(key)
        if made is None:
            state = self._tables.get(key)
            if not isinstance(state, TableDefinition):
                return None
            if len(self._made) >= _MADE:
                self._made = dict(islice(self._made.items(), _MADE // 2, None))
            made = self._made[key] = table_schema(key, state)
        return made

    def set(self, name: TableName, state: State, *, quiet: bool = False) -> None:
        """Sets a table's state. `quiet`: its schema's entry contains it."""
        key = self.key(name)
        before = self._tables.get(key)
        if before == state and (before is not None or self.get(key) is None):
            return
        self._take(key, state)
        if not _same_schema(before, state):
            self._made.pop(key, None)
            self.version += self._captures(*key)
        if quiet:
            return
        self._fresh.append(table_entry(*key, self._pos, self._at, **_fields(state)))

    def _take(self, key: TableName, state: State) -> None:
        if state is not None:
            self._tables[key] = state
            self._gone.pop(key, None)
            return
        self._tables.pop(key, None)
        if not self.complete(key[0]):
            self._note_gone(key)

    def _note_gone(self, key: TableName) -> None:
        self._gone[key] = None
        if len(self._gone) > _GONE:
            self._gone = dict.fromkeys(list(self._gone)[_GONE // 2 :])

    def known(self) -> list[TableName]:
        """Returns the captured tables whose schema is known."""
        return [
            key for key, state in self._tables.items() if isinstance(state, TableDefinition) and self._captures(*key)
        ]

    def tables_in(self, schema: str) -> list[TableName]:
        """Returns the tables of a schema that have a state."""
        folded = self.fold(schema)
        return [key for key in self._tables if key[0] == folded]

    def charset(self, schema: str) -> str:
        """Returns a schema's default character set; "" if unknown."""
        known = self._schemas.get(self.fold(schema))
        return known.charset if known else ""

    def complete(self, schema: str) -> bool:
        """Returns whether all tables of the schema are known; also for one that does not exist."""
        folded = self.fold(schema)
        known = self._schemas.get(folded)
        return known.complete if known else self.listed or (folded, "") in self._gone

    def exists(self, schema: str) -> bool | None:
        """Returns whether a schema exists; None if unknown."""
        folded = self.fold(schema)
        if folded in self._schemas:
            return True
        return False if self.listed or (folded, "") in self._gone else None

    def set_schema(self, schema: str, charset: str, *, complete: bool) -> None:
        """Sets a schema's default character set, and whether all of its tables have a state."""
        folded = self.fold(schema)
        self._take_schema(folded, charset, complete)
        unread = [key[1] for key, state in self._tables.items() if key[0] == folded and state == UNREAD]
        self._fresh.append(schema_entry(folded, self._pos, self._at, charset, complete, unread))

    def _take_schema(self, folded: str, charset: str, complete: bool) -> None:
        self._schemas[folded] = _Schema(charset, complete)
        self._gone.pop((folded, ""), None)
        if complete and self._gone:
            self._gone = {key: None for key in self._gone if key[0] != folded}

    def drop_schema(self, schema: str) -> None:
        """Removes a schema with all of its tables."""
        folded = self.fold(schema)
        self._drop_schema(folded)
        self._fresh.append(gone_entry(folded, self._pos, self._at))

    def _drop_schema(self, folded: str) -> None:
        self._schemas.pop(folded, None)
        self._clear(folded)
        if not self.listed:
            self._note_gone((folded, ""))

    def _clear(self, folded: str) -> None:
        for key in self.tables_in(folded):
            del self._tables[key]
            self._made.pop(key, None)
            if self._captures(*key):
                self.version += 1

    def set_listed(self) -> None:
        """Records that from here on a schema without a state does not exist."""
        if not self.listed:
            self._take_listed()
            self._fresh.append({"kind": "listed", "pos": self._pos, "at": self._at})

    def _take_listed(self) -> None:
        self.listed = True
        self._gone = {key: None for key in self._gone if key[1] and key[0] in self._schemas}

    def doubt(self, why: str) -> None:
        """Makes all states uncertain."""
        self._fresh.append(doubt_entry(self._pos, self._at, why))
        self._doubt(why)

    def _doubt(self, why: str) -> None:
        self._tables = dict.fromkeys(self._tables, why)
        self._schemas = {name: _Schema("", False) for name in self._schemas}
        self._gone.clear()
        self.listed = False
        self._made.clear()
        self.version += 1

    def take_entries(self, last_pos: int) -> tuple[dict[str, Any], ...]:
        """Returns the entries since the last call; or, if many more are stored than are valid, the valid ones, after
        one that voids all before. They are made in several calls, and are valid as of the last change before, which
        must not be after `last_pos`, the position that they are stored with: a restart there would know nothing."""
        fresh, self._fresh = self._fresh, []
        if fresh:
            self._stored += len(fresh)
            if self._again is None and self._may_compact(last_pos):
                self._again, self._made_again, self._since = self._in_force(), [], []
            elif self._again is not None:
                self._since += fresh
        if self._again is not None:
            part = next(self._again, None)
            if part is None:
                fresh = [*self._made_again, *self._since]
                self._most, self._stored = _COMPACT_FROM + 2 * len(self._made_again), len(fresh)
                self._again, self._made_again, self._since = None, [], []
            else:
                self._made_again += part
        return tuple(fresh)

    def _may_compact(self, last_pos: int) -> bool:
        """Returns whether much could be dropped, and the last change is that of a statement before the position."""
        return self._stored > self._most and ":" in self._at and self._pos <= last_pos

    def _in_force(self) -> Iterator[list[dict[str, Any]]]:
        """Yields entries with everything that is known when the first of them are requested."""
        pos, at, unread = self._pos, self._at, dict[str, list[str]]()
        tables = []
        for key, state in self._tables.items():
            if state == UNREAD:
                unread.setdefault(key[0], []).append(key[1])
            else:
                tables.append((key, state))
        first = [back_entry(-1, at)]
        for name, schema in self._schemas.items():
            first.append(schema_entry(name, pos, at, schema.charset, schema.complete, unread.get(name, ())))
        if self.listed:
            first.append({"kind": "listed", "pos": pos, "at": at})
        for key in self._gone:
            first.append(table_entry(*key, pos, at, gone=True) if key[1] else gone_entry(key[0], pos, at))
        yield first
        for start in range(0, len(tables), _SLICE):
            yield [table_entry(*key, pos, at, **_fields(state)) for key, state in tables[start : start + _SLICE]]

    def restore(self, entries: Iterable[dict[str, Any]], last_pos: int) -> None:
        """Takes stored entries up to `last_pos`, by their `_pos` and then in the order they were written."""
        try:
            stored = in_force(entries)
            self._stored = len(stored)
            known = [entry for entry in stored if int(entry["pos"]) <= last_pos]
            for entry in sorted(known, key=lambda e: int(e["pos"])):
                self._restore(entry)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"an entry of the schema history can't be read ({error!r})") from error
        reported = sum(state != UNREAD for state in self._tables.values()) + len(self._schemas) + len(self._gone)
        self._most = _COMPACT_FROM + 2 * reported
        self._made.clear()
        self.version += 1

    def _restore(self, entry: dict[str, Any]) -> None:
        kind = entry["kind"]
        if kind == "table":
            key = (str(entry["schema"]), str(entry["table"]))
            if "columns" in entry and "indexes" not in entry:
                self._take(key, "its unique keys were not read")
            elif "columns" in entry:
                self._take(key, definition_from(entry))
            else:
                self._take(key, None if entry.get("gone") else str(entry["unknown"]))
        elif kind == "schema":
            name = str(entry["schema"])
            if entry.get("gone"):
                self._drop_schema(name)
            else:
                if entry.get("new"):
                    self._clear(name)
                self._take_schema(name, str(entry["charset"]), bool(entry["complete"]))
                self._tables |= {(name, table): UNREAD for table in entry.get("unread", ())}
        elif kind == "listed":
            self._take_listed()
        elif kind == "doubt":
            self._doubt(str(entry["why"]))
        else:
            raise ValueError(f"an entry of the schema history has the unknown kind {kind!r}")

    def new_schema(self, schema: str, charset: str) -> None:
        """Records a new schema: it has no tables."""
        folded = self.fold(schema)
        self._clear(folded)
        self.set_schema(folded, charset, complete=True)
        self._fresh[-1]["new"] = True
