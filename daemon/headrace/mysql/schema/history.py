"""The schemas of tables at every position of the binlog: read once, then updated by each DDL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from headrace.model import DdlKind, TableChange, TableSchema
from headrace.mysql.events.query_event import QueryEvent
from headrace.mysql.schema.apply import Applied
from headrace.mysql.schema.ddl.actions import AlterTable, StatementInfo, TableName
from headrace.mysql.schema.ddl.classify import classify
from headrace.mysql.schema.ddl.definition import Difference, TableDefinition, difference, in_words
from headrace.mysql.schema.states import UNREAD, FilePosition, States, order_of, reached, table_schema
from headrace.mysql.sql.dialect import dialect_of
from headrace.mysql.sql.tokens import NotParsed

_UNKNOWN_TABLE_ERROR = 1051
_SHOWN = re.compile(rb"\s*CREATE (?:OR REPLACE )?TABLE (?:IF NOT EXISTS )?`[^\n]* \(\n  `")
"""CREATE TABLE as the server itself writes it (SHOW CREATE TABLE)."""


_Later = tuple[TableDefinition, FilePosition]
"""A table's schema from a position on that is not reached yet."""


@dataclass(slots=True)
class Reading:
    """One reading of information_schema. An entry with a position is valid from after the DDL there, all others from
    `since` on."""

    tables: dict[TableName, tuple[TableDefinition, FilePosition | None]] = field(default_factory=dict)
    unknown: dict[TableName, str] = field(default_factory=dict)
    """Tables that exist but were not read, each with the reason."""
    untouched: dict[TableName, FilePosition] = field(default_factory=dict)
    """For tables that statements have changed since: the end of the first of those."""
    schemas: dict[str, tuple[str, FilePosition | None]] = field(default_factory=dict)
    """Every schema's default character set; only those of its tables exist that are in `tables` and `unknown`."""
    listed: bool = False
    """Whether `schemas` has all schemas that exist at `since`."""
    since: FilePosition | None = None
    """None: the requested position."""
    at: FilePosition | None = None
    """The end of the binlog before the tables were read."""


@dataclass(slots=True)
class DdlEffect:
    """The effect of a statement of the binlog, for messages and for the decoder."""

    kind: DdlKind
    category: str
    """ddl, dcl, dml or other."""
    schema: str
    table: str
    """The first table that it names, "" for none."""
    tables: tuple[TableChange, ...] = ()
    """Its effect on tables, captured or not."""
    temporary: bool = False
    """The statement is about a temporary table."""
    named: tuple[TableName, ...] | None = ()
    """All tables that it names, also for DML and views; None if unknown."""
    problem: str = ""
    """Why the statement was not understood; "" if it was."""
    alters: bool = False
    """Whether its first word is ALTER."""
    view: bool = False
    """Whether it is about a view."""
    secret: bool = False
    """Whether it contains a password: then it is not published."""
    unlogged: bool = False
    """Whether it added or removed rows without events of their own."""


class SchemaHistory:
    """The schemas of one destination's tables, moved forward by apply() as the stream is read.

    `version` increases with every change of a captured table: caches of table schemas depend on it. `captures` returns
    whether the rows of a schema and table are captured; other tables are tracked too, because a RENAME or LIKE can make
    a captured table of them. `version` in the constructor is @@version."""

    def __init__(
        self, captures: Callable[[str, str], bool], *, mariadb: bool, version: str, lower_case_table_names: int
    ) -> None:
        self._states = States(captures, lower_case_table_names)
        self._mariadb, self._server_version = mariadb, version
        self._pending: dict[TableName, tuple[_Later, ...]] = {}
        """The earliest first for each table: one reading may be about it from one position on, and the next from
        another."""
        self._pending_schemas: dict[str, tuple[str, FilePosition]] = {}
        self._pending_listed: FilePosition | None = None
        self._due: FilePosition | None = None
        """The first position at which something that waits becomes valid; None if it must be determined."""
        self._likely: dict[TableName, TableDefinition] = {}
        self._pos = 0
        self._file_position: FilePosition = ("", 0)

    @property
    def version(self) -> int:
        return self._states.version

    @property
    def file_position(self) -> FilePosition:
        """Returns the end of the last applied statement; ("", 0) if there is none."""
        return self._file_position

    def clear(self) -> None:
        """Forgets all. Nothing is asked any more, and other references to the history need not keep its tables in
        memory."""
        self._states = States(lambda *_: False, 0)
        self._pending.clear()
        self._likely.clear()

    def fork(self) -> SchemaHistory:
        """Returns a copy, to find out what statements would change."""
        forked = copy(self)
        forked._states = self._states.fork()
        forked._pending, forked._pending_schemas = dict(self._pending), dict(self._pending_schemas)
        forked._likely = dict(self._likely)
        return forked

    def known(self) -> list[TableName]:
        """Returns the captured tables whose schema is known here."""
        return self._states.known()

    def difference(self, name: TableName, shown: TableDefinition) -> Difference:
        """Returns the difference between a known table and the `shown` definition."""
        state = self._states.get(name)
        return difference(state, shown) if isinstance(state, TableDefinition) else Difference.NONE

    def in_words(self, name: TableName, shown: TableDefinition) -> str:
        """Returns the first difference of columns."""
        state = self._states.get(name)
        return in_words(state, shown) if isinstance(state, TableDefinition) else ""

    def correct(self, name: TableName, shown: TableDefinition) -> None:
        """Takes a table as the source shows it."""
        self._states.at(self._pos, "comparison")
        self._states.set(name, shown)

    def restore(self, entries: Iterable[dict[str, Any]], last_pos: int) -> None:
        """Takes the stored entries up to `last_pos`; later ones are of a time after the position and are ignored.

        Raises ValueError for an invalid entry."""
        self._pos = last_pos
        self._states.restore(entries, last_pos)

    def knows(self, schema: str, table: str) -> bool:
        """Returns whether it needs no reading: the table schema is known, or it is known that the table does not exist
        here."""
        return not isinstance(self._states.get((schema, table)), str)

    def complete(self, schema: str) -> bool:
        """Returns whether all tables of a schema are known."""
        return self._states.complete(schema)

    @property
    def listed(self) -> bool:
        """Returns whether all schemas are known."""
        return self._states.listed

    def adopt(self, reading: Reading) -> None:
        """Takes a reading for what is not known; entries that are valid only from a later position wait until apply()
        or pass_by() reaches it."""
        states, since = self._states, reading.since
        self._due = None
        states.at(self._pos, "reading")
        for name, (definition, ddl) in reading.tables.items():
            key, valid_from = states.key(name), ddl or since
            if valid_from is not None:
                before = (one for one in self._pending.get(key, ()) if not reached(one[1], valid_from))
                self._pending[key] = *before, (definition, valid_from)
                if ddl is None:
                    self._likely[key] = definition
                    continue
                earliest, first = self._pending[key][0], reading.untouched.get(name)
                if first is not None and not reached(earliest[1], first):  # so it has been the same all the time
                    states.set(key, earliest[0])
                else:
                    self._likely.pop(key, None)
            elif isinstance(states.get(key), str):
                states.set(key, definition)
        for name, why in reading.unknown.items():
            if isinstance(states.get(name), str):
                states.set(states.key(name), why, quiet=why == UNREAD)
        for schema, (charset, ddl) in reading.schemas.items():
            file_position = ddl or since
            if file_position is not None:
                self._pending_schemas[states.fold(schema)] = charset, file_position
                if states.exists(schema) is None:
                    states.set_schema(schema, "", complete=False)
            elif not states.complete(schema):
                states.set_schema(schema, charset, complete=True)
        if reading.listed and since is not None:
            self._pending_listed = since
        elif reading.listed:
            states.set_listed()
        self._take_pending(self._file_position)

    @property
    def waits(self) -> bool:
        """Returns whether something that was read is valid only from a later position."""
        return bool(self._pending or self._pending_schemas or self._pending_listed)

    def pass_by(self, file_position: FilePosition, pos: int) -> bool:
        """Records that every statement before `file_position`, whose `_pos` is `pos`, has been applied. Returns whether
        something became valid by that."""
        self._pos = max(self._pos, pos)
        self._states.at(self._pos, "reading")
        return self._take_pending(file_position)

    def likely(self, schema: str, table: str) -> TableSchema | None:
        """Returns a table's later schema, which it may already have here, for what rows with column names do not say.
        None if unknown, or if table() knows the schema."""
        key = self._states.key((schema, table))
        definition = self._likely.get(key)
        return table_schema(key, definition) if definition is not None else None

    def forget_likely(self, schema: str, table: str) -> None:
        """Forgets a later schema: a scan of all of the binlog has not shown what the table is here."""
        self._likely.pop(self._states.key((schema, table)), None)

    def table(self, schema: str, table: str) -> TableSchema | None:
        """Returns the schema here; None if unknown."""
        return self._states.schema_of((schema, table))

    def mistrust(self, schema: str, table: str, why: str) -> None:
        """Makes a table unknown, because its rows do not fit: it must be read again."""
        self._states.at(self._pos, "a row")
        self._states.set((schema, table), why)

    def note_rows(self, schema: str, table: str) -> None:
        """Records that a table has rows. If it should not exist here, the server does not show it to our account."""
        if self._states.get((schema, table)) is None:
            self._states.at(self._pos, "a row")
            self._states.set((schema, table), "the server did not show it to our account")

    def doubt(self, why: str, file: str, end: int, pos: int) -> None:
        """Makes all tables unknown from `file`:`end`, whose `_pos` is `pos`: any of them may have changed."""
        if self.waits:  # what is valid before is what is doubted: taken later, it would end the doubt
            self.pass_by((file, end), self._pos)
        self._pos = max(self._pos, pos)
        self._states.at(pos, f"{file}:{end}")
        self._states.doubt(why)

    def unknown_because(self, schema: str, table: str) -> str:
        """Returns why table() returns None, as half a sentence."""
        state = self._states.get((schema, table))
        if state is None:
            return "by the statements before it should not exist"
        if not isinstance(state, str):
            return ""
        pending = self._pending.get(self._states.key((schema, table)))
        if pending is None:
            return state
        file, offset = pending[0][1]
        return f"{state}; what the server shows now is true only after {file}:{offset}"

    def read(self, query: QueryEvent) -> StatementInfo:
        """Returns what a statement is, as apply() would find it. Changes nothing, and may be called in a thread."""
        return classify(query, mariadb=self._mariadb, version=self._server_version)

    def apply(
        self, query: QueryEvent, *, file: str, end: int, pos: int, info: StatementInfo | None = None
    ) -> DdlEffect:
        """Applies one statement that ends at `file`:`end`; `pos` is its `_pos`, `info` the result of read(). Never
        raises for text that is not understood: the tables that it may have changed are unknown then."""
        info = info or self.read(query)
        named = None if info.tables is None else tuple(self._states.key(name) for name in info.tables)
        name = named[0] if named else (self._states.fold(info.schema), "")
        effect = DdlEffect(
            info.kind,
            info.category,
            *name,
            temporary=info.temporary,
            named=named,
            problem=info.problem,
            alters=info.alters,
            view=info.view,
            secret=info.secret,
            unlogged=isinstance(info.action, AlterTable) and info.action.unlogged and not query.error,
        )
        if self.waits:  # what is valid before the statement is what it changes
            self.pass_by((file, end - 1), self._pos)
        self._pos = max(self._pos, pos)
        self._file_position = file, end
        if info.category == "ddl" and not info.temporary and query.alter_phase not in ("start", "rollback"):
            self._states.at(pos, f"{file}:{end}")
            effect.tables = self._apply(info, query)
            self._take_pending(self._file_position)
        return effect

    def _apply(self, info: StatementInfo, query: QueryEvent) -> tuple[TableChange, ...]:
        dialect = dialect_of(self._server_version, mariadb=self._mariadb, sql_mode=query.sql_mode)
        applied = Applied(self._states, dialect, info.kind)
        problem = info.problem
        try:
            if info.action is not None and not problem:
                if query.error and not (info.kind is DdlKind.ERASE and query.error == _UNKNOWN_TABLE_ERROR):
                    raise NotParsed(f"the statement failed on the source with error {query.error}")
                applied.run(info.action, shown=bool(_SHOWN.match(query.text)))
        except NotParsed as error:
            problem = str(error)
        if problem:
            text = "its text may hold a password" if info.secret else query.sql[:100]
            problem = "" if info.secret else f" ({problem})"
            applied.doubt(info.tables, f"a statement was not understood{problem}: {text}")
        return tuple(applied.changes)

    def _take_pending(self, file_position: FilePosition) -> bool:
        if not file_position[0] or not self.waits:
            return False
        if self._due is None:  # with thousands of tables a check of each one at each call would be expensive
            tables_due = (later[0][1] for later in self._pending.values())
            schemas_due = (valid_from for _, valid_from in self._pending_schemas.values())
            listed_due = () if self._pending_listed is None else (self._pending_listed,)
            self._due = min(chain(tables_due, schemas_due, listed_due), key=order_of)
        if not reached(file_position, self._due):
            return False
        self._due = None
        tables = [key for key, later in self._pending.items() if reached(file_position, later[0][1])]
        for key in tables:
            later = self._pending.pop(key)
            reached_now = [definition for definition, valid_from in later if reached(file_position, valid_from)]
            if rest := later[len(reached_now) :]:
                self._pending[key] = rest
            self._states.set(key, reached_now[-1])
            self._likely.pop(key, None)
        schemas = [s for s, (_, valid_from) in self._pending_schemas.items() if reached(file_position, valid_from)]
        for schema in schemas:
            self._states.set_schema(schema, self._pending_schemas.pop(schema)[0], complete=True)
        if self._pending_listed is not None and reached(file_position, self._pending_listed):
            self._pending_listed = None
            self._states.set_listed()
        return bool(tables or schemas)

    def take_entries(self, last_pos: int) -> tuple[dict[str, Any], ...]:
        """Returns what was learned since the last call, JSON types only, for StateChange.schema_entries; `last_pos` is
        that of the position that they are stored with."""
        return self._states.take_entries(last_pos)
