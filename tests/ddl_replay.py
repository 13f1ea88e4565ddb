"""Runs DDL on a real server, notes after each statement what information_schema shows, and replays the binlog file
through the schema history."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT, ER

from headrace.model import Column, TableSchema
from headrace.mysql.events import event_types as ev
from headrace.mysql.events.cursor import EventCursor
from headrace.mysql.events.query_event import QueryEvent, parse_query
from headrace.mysql.events.splitter import EventSplitter
from headrace.mysql.events.table_map import TableMap
from headrace.mysql.schema.fit import misfit
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.tables import by_table, definition_of, order_matters, show_index, statements
from headrace.mysql.sql.dialect import dialect_of
from headrace.mysql.values.mariadb import decompressed_event
from headrace.mysql.wire.binlog_file import packets
from tests.binlogs import new_file

Truth = dict[tuple[str, str], TableSchema]


@dataclass
class Step:
    """One statement that ran: the offset behind it, and the tables after it. `strange`: cannot be told from
    information_schema."""

    case: str
    sql: str
    end: int
    tables: Truth
    strange: set[tuple[str, str]] = field(default_factory=set)


class Recorder:
    """Runs statements on a server and notes what they made."""

    def __init__(self, server: Any, *, rows: bool = True) -> None:
        self.mariadb = "mariadb" in type(server).__name__.lower()
        self.server, self.rows = server, rows
        self.steps: list[Step] = []
        self._connection = pymysql.connect(**server.connection("root"), autocommit=True, charset="utf8mb4")
        self.cursor = self._connection.cursor(pymysql.cursors.DictCursor)
        self.cursor.execute("SET SESSION sql_mode = ''")
        self.version = str(self._all("SELECT @@version AS v")[0]["v"])
        self.dialect = dialect_of(self.version, mariadb=self.mariadb)
        self.path: Path = new_file(server, self._connection.cursor())

    def _all(self, sql: str) -> list[dict[str, Any]]:
        self.cursor.execute(sql)
        return list(self.cursor.fetchall())

    def close(self) -> None:
        self._connection.close()

    def position(self) -> int:
        row = self._all("SHOW BINARY LOGS")[-1]
        assert row["Log_name"] == self.path.name
        return int(row["File_size"])

    def session(self, *, mode: str = "", names: str = "utf8mb4") -> Any:
        connection = pymysql.connect(
            **self.server.connection("root"), autocommit=True, charset=names, client_flag=CLIENT.MULTI_STATEMENTS
        )
        if mode:
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION sql_mode = '{mode}'")
        return connection

    def run(self, case: str, cursor: Any, sql: str, schemas: list[str]) -> bool:
        """Runs one statement; whether it succeeded."""
        fine = self._executed(cursor, sql)
        tables, strange = self.truth(schemas)
        if self.rows:
            self.insert(tables)
        self.steps.append(Step(case, sql, self.position(), tables, strange))
        return fine

    def _executed(self, cursor: Any, sql: str) -> bool:
        """Whether it succeeded. A thread of MariaDB's own that purges old rows holds a table for a moment, for which
        NOWAIT does not wait: that is tried again."""
        deadline = time.monotonic() + 10
        while True:
            try:
                cursor.execute(sql)
                while cursor.nextset():
                    pass
                return True
            except pymysql.err.MySQLError as error:
                in_use = error.args[:1] == (ER.LOCK_WAIT_TIMEOUT,) and "NOWAIT" in sql
                if not in_use or time.monotonic() > deadline:
                    return False

    def insert(self, tables: Truth) -> None:
        """A row into each table that takes one, so that the binlog describes it."""
        for schema, table in tables:
            name = ".".join("`" + part.replace("`", "``") + "`" for part in (schema, table))
            try:
                self.cursor.execute(f"INSERT IGNORE INTO {name} () VALUES ()")
            except pymysql.err.MySQLError:
                continue

    def truth(self, schemas: list[str]) -> tuple[Truth, set[tuple[str, str]]]:
        """What the server shows of all tables of some schemas."""
        found: Truth = {}
        strange: set[tuple[str, str]] = set()
        for schema in schemas:
            names = [
                str(row["t"])
                for row in self._all(
                    "SELECT TABLE_NAME AS t FROM information_schema.TABLES WHERE TABLE_TYPE IN"
                    f" ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE') AND TABLE_SCHEMA = '{schema}'"
                )
            ]
            if not names:
                continue
            columns, keys, tables = (by_table(self._all(sql)) for sql in statements(schema, names))
            for name in tables:
                of_keys = keys.get(name, [])
                if order_matters(of_keys):
                    of_keys = self._all(show_index(schema, name))
                made = definition_of(columns.get(name, []), of_keys, tables[name], self.dialect)
                if isinstance(made, str):
                    strange.add((schema, name))
                    continue
                found[schema, name] = TableSchema(schema, name, made.columns, made.keys)
                shown = {str(row["name"]): text(row["type"]) for row in columns[name]}
                for column in made.columns:
                    if column.name in shown:
                        assert column.mysql_type == shown[column.name]
        return found, strange


def text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def shape(table: TableSchema) -> dict[str, Any]:
    """What of a table schema has to be right, in a form that shows differences well."""
    return {
        "keys": table.keys,
        "columns": [
            (
                *(c.name, c.mysql_type, c.unsigned, c.nullable, c.charset, c.labels, c.length, c.scale, c.sql_type),
                *(c.generated, c.invisible, c.auto_increment, c.comment),
            )
            for c in table.columns
        ],
    }


class Replay:
    """The statements of a binlog file through a history, compared with what was noted."""

    def __init__(self, recorder: Recorder, history: SchemaHistory | None = None) -> None:
        self._cursor = EventCursor(recorder.path.name, 4, checksums=True)
        self.history = history or SchemaHistory(
            lambda schema, table: True, mariadb=recorder.mariadb, version=recorder.version, lower_case_table_names=0
        )
        self._recorder = recorder
        self._steps = list(recorder.steps)
        self._pos = 0
        self.problems: list[str] = []
        self.unknown: list[tuple[str, str, str]] = []
        """Case, table and why."""
        self.differences: list[str] = []
        self.undescribed: list[str] = []
        """Full metadata that could not be read."""
        self.exact = 0
        self.maps = 0
        self.statements: list[str] = []
        handlers = {2: self._on_query, 165: self._on_compressed, ev.TABLE_MAP: self._on_map}
        self._splitter = EventSplitter(self._cursor, handlers, other=lambda data, at, stop: None)

    def run(self) -> Replay:
        for chunk in packets(self._recorder.path):
            at, more = 0, True
            while more:
                at, more = self._splitter.feed(chunk, at, lambda: False)
        self._compare(1 << 62)
        return self

    def _on_query(self, data: bytes, at: int, stop: int) -> None:
        self._apply(parse_query(data, at, stop), self._cursor.end_of(at, stop))

    def _on_compressed(self, data: bytes, at: int, stop: int) -> None:
        size = data[at + 8] + int.from_bytes(data[at + 11 : at + 13], "little")
        text_at = at + 13 + size + 1
        plain = data[at:text_at] + decompressed_event(data, text_at, stop)
        self._apply(parse_query(plain, 0, len(plain)), self._cursor.end_of(at, stop))

    def _apply(self, query: QueryEvent, end: int) -> None:
        self._compare(end)
        self._pos += 1
        effect = self.history.apply(query, file=self._cursor.file, end=end, pos=self._pos)
        if effect.category == "ddl":
            self.statements.append(query.sql)
        if effect.problem:
            self.problems.append(f"{effect.problem}: {query.sql}")

    def _on_map(self, data: bytes, at: int, stop: int) -> None:
        """A second witness: what the stream's full metadata says just then."""
        event = TableMap(data[at + 6 : stop], mariadb=self._recorder.mariadb)
        known = self.history.table(event.schema, event.table)
        if known is None or event.schema in ("mysql", "sys"):
            return
        self.maps += 1
        event.hide_hashes(len(known.columns))
        why = misfit(known, event.visible_types, event.nulls)
        described = self._described(event) if not why and event.has_names else None
        if described is not None:
            seen = [_seen(c, k) for c, k in zip(described.columns, known.columns, strict=True)]
            if seen != [_seen(c, c) for c in known.columns]:
                why = f"the binlog says {seen}"
            elif described.keys != known.keys:
                why = f"the binlog says that the key is {described.keys}, not {known.keys}"
        if why:
            self.differences.append(f"{event.schema}.{event.table} at {self._cursor.position}: {why}")

    def _described(self, event: TableMap) -> TableSchema | None:
        try:
            return event.described()
        except ValueError as error:
            self.undescribed.append(f"{event.schema}.{event.table} at {self._cursor.position}: {error}")
            return None

    def _compare(self, before: int) -> None:
        while self._steps and self._steps[0].end < before:
            step = self._steps.pop(0)
            for name, truth in step.tables.items():
                known = self.history.table(*name)
                if known is None:
                    self.unknown.append((step.case, name[1], self.history.unknown_because(*name)))
                    continue
                if shape(known) != shape(truth):
                    self.differences.append(f"{step.case}: {name} after {step.sql}:\n{differ(known, truth)}")
                self.exact += 1
            for name in step.strange:
                if self.history.table(*name) is not None:
                    continue  # what information_schema can't show the statements may say
                self.unknown.append((step.case, name[1], self.history.unknown_because(*name)))


def differ(known: TableSchema, truth: TableSchema) -> str:
    """The parts of two table schemas that are not the same."""
    a, b = shape(known), shape(truth)
    lines = [f"  keys {a['keys']}, the server has {b['keys']}"] if a["keys"] != b["keys"] else []
    pairs = zip_longest(a["columns"], b["columns"])
    return "\n".join(lines + [f"  {x}\n  the server has\n  {y}" for x, y in pairs if x != y])


def _seen(column: Column, known: Column) -> tuple[str, bool, str, tuple[str, ...]]:
    """What full metadata says of a column; MariaDB's UUID and addresses are binary strings there."""
    plain = known.kind in ("uuid", "inet4", "inet6")
    return column.name, column.unsigned, "" if plain else column.charset, column.labels
