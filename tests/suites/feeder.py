"""Feeds tests to a server, and notes at marked places of its binlog what SELECT gives."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pymysql
from pymysql.constants import SERVER_STATUS
from pymysql.converters import encoders

from headrace.model import Column
from tests.binlogs import expression
from tests.suites.replay import Name, Row, Selected, Snapshot, comparable

MARKS = "suites_marks"
"""The schema of the table whose only row says at which place of the stream a snapshot was taken."""
MOST_ROWS = 5_000
"""A larger table is not compared."""
STATEMENT_SECONDS = 4.0
TEST_SECONDS = 15.0
_DDL = re.compile(
    r"\s*(?:set\s+statement\b.*?\bfor\s+)?(?:create|alter|drop|rename|truncate|optimize|repair|analyze)\b(?!\s+temporary)",
    re.IGNORECASE | re.DOTALL,
)
_NO_DDL = re.compile(
    r"\s*(?:insert|update|delete|replace|select|begin\b(?!\s+not)|start|commit|rollback|savepoint|use|set\s+(?!statement))",
    re.IGNORECASE,
)
"""Another statement, as CALL or EXECUTE, may contain DDL."""


class Feeder:
    """One session a test, and another that looks at what it has committed."""

    def __init__(self, server: Any, *, mariadb: bool) -> None:
        self.server, self.mariadb = server, mariadb
        self.snapshots: dict[int, Snapshot] = {}
        """By the number of their mark; whoever compares them removes them."""
        self.mark = 0
        self.counts: Counter[str] = Counter()
        self.at = ""
        """The statement that runs, or ran last."""
        self._columns: dict[Name, list[tuple[str, str]]] = {}
        self._why_not: dict[Name, str] = {}
        self._weak: dict[Name, set[str]] = {}
        self._versioned: set[Name] = set()
        self._stale, self._seen = True, ("", 0)
        self._watcher = self._connect()
        self._say("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._own = {str(row[0]) for row in self._say("SHOW DATABASES")} | {MARKS, "headrace"}
        self._say(f"CREATE DATABASE {MARKS}")
        self._say(f"CREATE TABLE {MARKS}.marks (id INT PRIMARY KEY, n INT)")
        self._say(f"INSERT INTO {MARKS}.marks VALUES (1, 0)")

    def _connect(self, limit: float = 60, **more: Any) -> Any:
        return pymysql.connect(
            **self.server.connection("root"),
            autocommit=True,
            charset="utf8mb4",
            ssl_disabled=True,
            conv=dict(encoders),
            read_timeout=limit,
            init_command="SET time_zone = '+00:00', sql_mode = '', lock_wait_timeout = 2",
            **more,
        )

    def _say(self, sql: str) -> list[tuple[Any, ...]]:
        with self._watcher.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def close(self) -> None:
        self._watcher.close()

    def end(self) -> tuple[str, int]:
        """Where the binlog ends."""
        file, offset = self._say("SHOW MASTER STATUS" if self.mariadb else "SHOW BINARY LOG STATUS")[0][:2]
        return _text(file), int(offset)

    def run(self, statements: Iterable[str]) -> None:
        """Feeds one test to a database of its own, takes snapshots around each DDL statement and at the end, and drops
        what the test has made. Raises pymysql's error when the server is gone."""
        self._say("CREATE DATABASE test")
        self._stale = True
        session = self._connect(3 * STATEMENT_SECONDS, database="test", use_unicode=False)
        try:
            self._feed(session, statements)
        finally:
            with contextlib.suppress(pymysql.err.MySQLError):
                session.rollback()
            session.close()
        self._wait_gone(session.thread_id())
        self.take_snapshot()
        self._clean()

    def _feed(self, session: Any, statements: Iterable[str]) -> None:
        session.query("SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 2, default_storage_engine = InnoDB")
        end = time.monotonic() + TEST_SECONDS
        for sql in statements:
            if time.monotonic() > end:
                self.counts["tests cut at the limit"] += 1
                return
            self.at = sql
            ddl = bool(_DDL.match(sql))
            if ddl:
                if session.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
                    self._sent(session, "COMMIT")  # as the statement does itself, but after the snapshot
                self.take_snapshot()
            accepted = self._sent(session, sql)
            self.counts["accepted" if accepted else "refused"] += 1
            if ddl:  # one that is refused may have done a part
                self.counts["ddl"] += accepted
                self._stale = True
                self.take_snapshot()
            elif not _NO_DDL.match(sql):
                self._stale = True
            if not session.open:
                return

    def _sent(self, session: Any, sql: str) -> bool:
        """Whether the server took a statement; one that takes long is killed."""
        killer = threading.Timer(STATEMENT_SECONDS, self._kill, (session.thread_id(),))
        killer.daemon = True
        killer.start()
        try:
            with session.cursor() as cursor:
                cursor.execute(sql.encode("utf-8", "surrogateescape"))
                while cursor.nextset():
                    pass
            return True
        except pymysql.err.MySQLError as error:
            if not session.open or error.args[:1] in ((2006,), (2013,)):
                self._say("SELECT 1")  # raises when it is the server that is gone
                session.close() if session.open else None
            return False
        except (UnicodeError, ValueError, LookupError):  # results that the client does not understand
            return True
        finally:
            killer.cancel()

    def _kill(self, thread: int) -> None:
        self.counts["statements killed at the limit"] += 1
        with contextlib.suppress(pymysql.err.MySQLError), self._connect() as killer:
            killer.query(f"KILL QUERY {thread}")

    def _wait_gone(self, thread: int) -> None:
        """Until a session has rolled back and dropped its temporary tables."""
        end = time.monotonic() + 30
        with contextlib.suppress(pymysql.err.MySQLError):
            self._say(f"KILL {thread}")
        while self._say(f"SELECT 1 FROM information_schema.processlist WHERE id = {thread}"):
            if time.monotonic() > end:
                raise AssertionError(f"the session of a test does not end; its last statement: {self.at}")
            time.sleep(0.005)

    def _clean(self) -> None:
        for row in self._say("XA RECOVER CONVERT XID" if not self.mariadb else "XA RECOVER FORMAT='SQL'"):
            xid = _text(row[3])
            if not self.mariadb:
                length, data = int(row[1]), xid.removeprefix("0x")
                xid = f"X'{data[: length * 2]}',X'{data[length * 2 :]}',{row[0]}"
            self._say(f"XA ROLLBACK {xid}")
        for database in self._databases():
            self._say("SET foreign_key_checks = 0")
            self._say(f"DROP DATABASE {_quoted(database)}")
        self._stale, self._seen = True, ("", 0)
        self.take_snapshot()

    def _databases(self) -> list[str]:
        return [name for row in self._say("SHOW DATABASES") if (name := _text(row[0])) not in self._own]

    def take_snapshot(self) -> None:
        """Takes a snapshot, unless nothing was written since the last one."""
        if self.end() == self._seen:
            return
        if self._stale:
            self._describe()
        self.mark += 1
        self.snapshots[self.mark] = {name: self._selected(name) for name in self._columns}
        self._say(f"UPDATE {MARKS}.marks SET n = {self.mark}")
        self._seen = self.end()

    def _describe(self) -> None:
        """The columns of all tables that there are, each with its type, and which tables' rows are not their own."""
        self._columns, self._why_not, self._weak, self._versioned, self._stale = {}, {}, {}, set(), False
        for database in self._databases():
            where = pymysql.converters.escape_string(database)
            tables = {
                _text(row[0]): (_text(row[1] or "").lower(), _text(row[2]))
                for row in self._say(
                    "SELECT TABLE_NAME, ENGINE, TABLE_TYPE FROM information_schema.TABLES"
                    f" WHERE TABLE_SCHEMA = '{where}' AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
                )
            }
            for table, column, kind, extra in self._say(
                "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, EXTRA FROM information_schema.COLUMNS"
                f" WHERE TABLE_SCHEMA = '{where}' ORDER BY TABLE_NAME, ORDINAL_POSITION"
            ):
                if (name := _text(table)) in tables:
                    self._columns.setdefault((database, name), []).append((_text(column), _text(kind)))
                    if "VIRTUAL" in _text(extra) and re.search("text|blob", _text(kind)):
                        self._weak.setdefault((database, name), set()).add(_text(column))
            for name, (engine, table_type) in tables.items():
                if "merge" in engine or "mrg" in engine:
                    self._why_not |= {(database, other): "beside a MERGE table" for other in tables}
                elif engine == "blackhole":
                    self._why_not[database, name] = "BLACKHOLE"
                if table_type == "SYSTEM VERSIONED":
                    self._versioned.add((database, name))
                    with contextlib.suppress(pymysql.err.MySQLError):  # a table that is broken can't be selected either
                        declared = _text(self._say(f"SHOW CREATE TABLE {_quoted(database)}.{_quoted(name)}")[0][1])
                        if "PERIOD FOR SYSTEM_TIME" not in declared:
                            times = [("row_start", "timestamp(6)"), ("row_end", "timestamp(6)")]
                            self._columns[database, name] += times
            if self.mariadb:  # InnoDB carries them out by itself, and the binlog does not have them
                for (table,) in self._say(
                    "SELECT TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA ="
                    f" '{where}' AND (UPDATE_RULE IN ('CASCADE', 'SET NULL') OR DELETE_RULE IN ('CASCADE', 'SET NULL'))"
                ):
                    self._why_not[database, _text(table)] = "foreign key that cascades in the engine"

    def _selected(self, name: Name) -> Selected:
        columns = self._columns[name]
        wanted = ", ".join(_expression(column, kind, self.mariadb) for column, kind in columns)
        table = f"{_quoted(name[0])}.{_quoted(name[1])}"
        if name in self._versioned:
            table += " FOR SYSTEM_TIME ALL"
        try:
            rows = self._say(f"SELECT {wanted} FROM {table} LIMIT {MOST_ROWS + 1}")
        except pymysql.err.MySQLError as error:
            if error.args[:1] in ((2006,), (2013,)):
                raise
            return Selected(None, "not readable")
        if len(rows) > MOST_ROWS:
            return Selected(None, f"more than {MOST_ROWS:,} rows")
        makers = [(column, comparable(kind, published=False)) for column, kind in columns]
        return Selected(
            [_row(row, makers) for row in rows], self._why_not.get(name, ""), frozenset(self._weak.get(name, ()))
        )


def _row(values: tuple[Any, ...], makers: list[tuple[str, Any]]) -> Row:
    made: Row = {}
    for value, (name, maker) in zip(values, makers, strict=True):
        text = value.decode() if isinstance(value, bytes) else value
        made[name] = maker(text) if maker and text is not None else text
    return made


def _expression(name: str, kind: str, mariadb: bool) -> str:
    """What selects a column's value as it is published; ZEROFILL is published without the zeros."""
    number = kind.replace(" zerofill", "")
    column = Column(name, number, 0)
    if column.kind in ("float", "double") and "," in kind:
        return _quoted(name)  # with the decimals that are declared
    made = expression(column, mariadb=mariadb)
    if number != kind and column.kind not in ("float", "double"):
        made = f"CAST({made} AS {number if column.kind == 'decimal' else 'UNSIGNED'})".replace(" unsigned", "")
    return made


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
