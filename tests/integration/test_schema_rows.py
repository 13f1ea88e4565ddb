"""Rows before and after each statement of the DDL corpus, decoded live and from the beginning, with and without the
binlog's full metadata: every value stands under the name of its column."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import pymysql
import pytest

from devstack import Stack
from headrace.model import TableSchema
from tests import versions
from tests.ddl_corpus import CASES, Case
from tests.ddl_replay import Recorder, Step
from tests.support import DaemonProcess, eventually, read_jsonl

pytestmark = pytest.mark.server

_LEFT_OUT = frozenset({"CREATE SELECT of an enum beyond three bytes"})
"""Cases in which a table is unknown and the destination has to stop."""
_INTS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_numbers = itertools.count(1)

Row = tuple[str, str, dict[str, str], frozenset[str]]
"""Schema, table, the values that were given, the names of all columns."""


class Rows(Recorder):
    """Puts a row into each table after each statement, with a value in each column that tells its name."""

    def __init__(self, server: Any) -> None:
        super().__init__(server)
        self.expected: list[Row] = []
        self.cursor.execute("SET SESSION foreign_key_checks = 0")

    def insert(self, tables: dict[tuple[str, str], TableSchema]) -> None:
        for (schema, table), layout in tables.items():
            name = f"`{schema}`.`" + table.replace("`", "``") + "`"
            values = {c.name: value(c.name, c.kind) for c in layout.columns if not c.generated}
            values = {column: given for column, given in values.items() if given}
            columns = ", ".join("`" + column.replace("`", "``") + "`" for column in values)
            try:
                self.cursor.execute(f"DELETE FROM {name}")
                count = self.cursor.execute(
                    f"INSERT IGNORE INTO {name} ({columns}) VALUES ({', '.join(['%s'] * len(values))})",
                    list(values.values()),
                )
            except pymysql.err.MySQLError:
                continue
            if count == 1:
                self.expected.append((schema, table, values, frozenset(c.name for c in layout.columns)))


def value(name: str, kind: str) -> str:
    """A value for a column that no other column of its table has, as far as its type has room; "" for the default."""
    if kind in _INTS:
        return str(1 + crc32(name.encode()) % 120)
    return chr(97 + crc32(name.encode()) % 26) if kind in _TEXTS else ""


def run_case(rows: Rows, case: Case) -> list[Step]:
    number = next(_numbers)
    db, other = f"rows{number}", f"more{number}"
    with rows.session(mode=case.mode, names=case.names) as connection, connection.cursor() as cursor:
        for schema in (db, other):
            rows.run(case.name, cursor, f"CREATE DATABASE {schema} CHARACTER SET utf8mb4", [db, other])
        if "without a default schema" not in case.name:
            cursor.execute(f"USE {db}")
        for statement in case.statements:
            sql = statement.replace("{db}", db).replace("{other}", other).replace("{{", "{").replace("}}", "}")
            rows.run(case.name, cursor, sql.removeprefix("!"), [db, other])
    return rows.steps


def toml(server: Any, start: str, out: str) -> str:
    return f"""
[source]
host = "{server.host}"
port = {server.port}
user = "canal"
password = "${{TEST_PASSWORD}}"
start = "{start}"
row_image = "any"  # MariaDB 11.8.9 leaves generated columns out of the rows that a DELETE removes
[filter]
include = "(rows|more)\\\\d+\\\\..*,last\\\\..*"
[route]
topic = "rows"
[sink]
type = "jsonl"
path = "{out}"
"""


@pytest.fixture(scope="module", params=versions.SINCE_57)
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    return stack.sql(request.param)


@pytest.mark.parametrize("metadata", ["MINIMAL", "FULL"])
@pytest.mark.long
def test_rows_around_every_statement_have_the_right_names_live_and_from_the_beginning(
    server: Any, metadata: str, daemon: Callable[..., DaemonProcess], tmp_path: Any
) -> None:
    mariadb = "mariadb" in type(server).__name__.lower()
    with pymysql.connect(**server.connection("root"), autocommit=True) as admin, admin.cursor() as cursor:
        cursor.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    rows = Rows(server)
    live = daemon(live=toml(server, f"{rows.path.name}:{rows.position()}", str(tmp_path / "live.jsonl"))).start()
    try:
        live.wait_state("live", "STREAMING")
        for case in CASES:
            there = ("mariadb" if mariadb else "mysql") in case.servers and rows.dialect.version >= case.since
            if there and case.name not in _LEFT_OUT:
                run_case(rows, case)
        rows.cursor.execute("CREATE DATABASE last")
        rows.cursor.execute("CREATE TABLE last.last (id int)")
        rows.cursor.execute("INSERT INTO last.last VALUES (1)")
        check(live, "live", tmp_path / "live.jsonl", rows.expected)
        late = daemon(late=toml(server, f"{rows.path.name}:4", str(tmp_path / "late.jsonl"))).start()
        check(late, "late", tmp_path / "late.jsonl", rows.expected)
    finally:
        with rows.session() as connection, connection.cursor() as cursor:
            for i in range(1, next(_numbers)):
                cursor.execute(f"DROP DATABASE IF EXISTS rows{i}")
                cursor.execute(f"DROP DATABASE IF EXISTS more{i}")
            cursor.execute("DROP DATABASE IF EXISTS last")
            cursor.execute("SET GLOBAL binlog_row_metadata = FULL")
        rows.close()


def check(process: DaemonProcess, name: str, path: Any, expected: list[Row]) -> None:
    def done() -> bool:
        state = process.health()[1].get("destinations", {}).get(name, {})
        assert state.get("state") != "FAILED", state["last_error"]
        return any(m["database"] == "last" and m["type"] == "INSERT" for m in read_jsonl(path)[-3:])

    eventually(done, 60, lambda: f"{process.health()}\n{process.log.read_text()[-3000:]}")
    seen = [
        (m["database"], m["table"], row)
        for m in read_jsonl(path)
        if m["type"] == "INSERT" and not m.get("isDdl") and m["database"] != "last"
        for row in m["data"]
    ]
    rest = iter(seen)
    for i, (schema, table, values, names) in enumerate(expected):
        passed = []
        for database, name, row in rest:  # CREATE ... SELECT writes rows of its own in between
            if (database, name) == (schema, table) and {k: row.get(k) for k in values} == values:
                assert set(row) == names, f"{schema}.{table}"
                break
            passed.append((database, name, row))
        else:
            raise AssertionError(f"{schema}.{table}: no row has {values}, row {i}: {passed[:3]}")
        assert len(passed) < 4, passed
    assert len(expected) > 100


@pytest.fixture
def shop(server: Any) -> Iterator[Callable[..., str]]:
    """Runs statements in the schema rows0 while the binlog has no metadata; gives the position behind them."""
    rows = Rows(server)
    with rows.session() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
        cursor.execute("CREATE DATABASE rows0")
        cursor.execute("USE rows0")

        def run(*statements: str) -> str:
            for statement in statements:
                cursor.execute(statement)
            return f"{rows.path.name}:{rows.position()}"

        yield run
        cursor.execute("DROP DATABASE rows0")
        cursor.execute("SET GLOBAL binlog_row_metadata = FULL")
    rows.close()


SWAP = "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a"


def at(status: dict[str, Any]) -> str:
    position = status["position"] or {}
    return f"{position.get('file')}:{position.get('offset')}"


def inserted(path: Any) -> list[dict[str, str]]:
    return [row for m in read_jsonl(path) if m["type"] == "INSERT" for row in m["data"]]


def test_a_daemon_that_was_down_during_a_swap_of_columns_knows_both_shapes(
    server: Any, shop: Callable[..., str], daemon: Callable[..., DaemonProcess], tmp_path: Any
) -> None:
    start = shop("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    process = daemon(d=toml(server, start, str(tmp_path / "out.jsonl"))).start()
    shop("INSERT INTO t (id, a, b) VALUES (1, 11, 12)")
    eventually(lambda: len(inserted(tmp_path / "out.jsonl")) == 1)
    assert process.terminate() == 0
    shop("INSERT INTO t (id, a, b) VALUES (2, 21, 22)", SWAP, "INSERT INTO t (id, a, b) VALUES (3, 31, 32)")
    process.start()
    eventually(lambda: len(inserted(tmp_path / "out.jsonl")) == 3, 30, lambda: str(process.health()))
    assert inserted(tmp_path / "out.jsonl") == [
        {"id": str(i), "a": str(10 * i + 1), "b": str(10 * i + 2)} for i in (1, 2, 3)
    ]


def test_a_new_daemon_after_a_swap_of_columns_stops_before_the_rows_that_nobody_can_name(
    server: Any, shop: Callable[..., str], daemon: Callable[..., DaemonProcess], tmp_path: Any
) -> None:
    start = shop(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE TABLE u (x int)", "INSERT INTO u VALUES (5)"
    )
    shop("INSERT INTO u VALUES (6)", "INSERT INTO t (id, a, b) VALUES (2, 21, 22)")
    shop(SWAP, "INSERT INTO t (id, a, b) VALUES (3, 31, 32)")
    process = daemon(d=toml(server, start, str(tmp_path / "out.jsonl"))).start()
    status = process.wait_state("d", "FAILED")
    assert "rows0.t" in status["message"]
    assert "is true only after" in status["message"]
    assert inserted(tmp_path / "out.jsonl") == [{"x": "6"}]


def test_a_new_daemon_after_a_swap_goes_on_when_no_rows_came_before_it(
    server: Any, shop: Callable[..., str], daemon: Callable[..., DaemonProcess], tmp_path: Any
) -> None:
    start = shop("CREATE TABLE t (id int PRIMARY KEY, a int, b int)")
    shop(SWAP, "INSERT INTO t (id, a, b) VALUES (3, 31, 32)")
    daemon(d=toml(server, start, str(tmp_path / "out.jsonl"))).start()
    eventually(lambda: inserted(tmp_path / "out.jsonl") == [{"id": "3", "b": "32", "a": "31"}])


def test_a_ghost_table_that_was_altered_before_a_restart_is_known_after_its_rename(
    server: Any, shop: Callable[..., str], daemon: Callable[..., DaemonProcess], tmp_path: Any
) -> None:
    """The ghost is not captured, so nothing was published between its DDL and the restart."""
    start = shop("CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "INSERT INTO t VALUES (9, 9, 9)")
    text = toml(server, start, str(tmp_path / "out.jsonl")).replace(
        "(rows|more)\\\\d+\\\\..*,last\\\\..*", "rows0\\\\.t"
    )
    process = daemon(d=text).start()
    process.wait_state("d", "STREAMING")
    place = shop(
        "CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho RENAME COLUMN a TO b, RENAME COLUMN b TO a, ADD c int FIRST"
    )
    process.wait("d", lambda status: at(status) == place)
    assert process.terminate() == 0
    shop("RENAME TABLE t TO _t_del, _t_gho TO t", "INSERT INTO t (id, a, b, c) VALUES (3, 31, 32, 33)")
    process.start()
    eventually(
        lambda: inserted(tmp_path / "out.jsonl") == [{"c": "33", "id": "3", "b": "32", "a": "31"}],
        30,
        lambda: str(process.health()),
    )
