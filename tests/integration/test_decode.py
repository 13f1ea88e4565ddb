"""`headrace decode` on real binlog files of both servers, and on a server's stream, as a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests import prefork
from tests.support import eventually

pytestmark = pytest.mark.server

COMMAND = [sys.executable, "-m", "headrace.cli.main", "decode"]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), n DECIMAL(10,2), b BLOB) CHARSET utf8mb4"
Run = Callable[..., Any]


def decode(*arguments: str | Path, status: int = 0, **env: str) -> tuple[str, str]:
    """What it printed to standard output and standard error."""
    done = prefork.run(["decode", *map(str, arguments)], env={**os.environ, **env})
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def lines(*arguments: str | Path, **env: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in decode(*arguments, **env)[0].splitlines()]


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "mysql":
        yield request.getfixturevalue("mysql")
        return
    server = stack.mariadb()
    yield server
    server.kill()


@pytest.fixture
def run(server: Any) -> Iterator[Run]:
    """Runs statements in the schema `decoded`, which is new and alone in a new binlog file."""
    with (
        pymysql.connect(**server.connection("root"), autocommit=True, charset="utf8mb4") as connection,
        connection.cursor() as cursor,
    ):

        def execute(*statements: str) -> Any:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

        execute("FLUSH BINARY LOGS", "DROP DATABASE IF EXISTS decoded", "CREATE DATABASE decoded", "USE decoded")
        yield execute
        execute("DROP DATABASE IF EXISTS decoded")


def newest(server: Any, run: Run) -> Path:
    return Path(server.datadir) / run("SHOW BINARY LOGS")[-1][0]


CHANGES = (
    TABLE,
    "INSERT INTO t VALUES (1, '保洁', 1.50, x'00ff'), (2, NULL, -2, NULL)",
    "UPDATE t SET n = 3 WHERE id = 2",
    "ALTER TABLE t ADD COLUMN more INT AFTER id",
    "INSERT INTO t (id, more) VALUES (3, 7)",
    "DELETE FROM t WHERE id = 1",
)


def shape(messages: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Statements by their kind, rows by their names and values."""
    return [(m["type"], [list(row.items()) for row in m["data"] or []]) for m in messages]


EXPECTED: list[tuple[str, Any]] = [
    ("CREATE", []),
    (
        "INSERT",
        [
            [("id", "1"), ("name", "保洁"), ("n", "1.50"), ("b", "AP8=")],
            [("id", "2"), ("name", None), ("n", "-2.00"), ("b", None)],
        ],
    ),
    ("UPDATE", [[("id", "2"), ("name", None), ("n", "3.00"), ("b", None)]]),
    ("ALTER", []),
    ("INSERT", [[("id", "3"), ("more", "7"), ("name", None), ("n", None), ("b", None)]]),
    ("DELETE", [[("id", "1"), ("more", None), ("name", "保洁"), ("n", "1.50"), ("b", "AP8=")]]),
]


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_a_file_is_printed_whatever_its_metadata(server: Any, run: Run, metadata: str) -> None:
    (before,) = run("SELECT @@global.binlog_row_metadata")[0]
    run(f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    try:
        run(*CHANGES)
        messages = lines(newest(server, run), "--table", "decoded\\.t")
    finally:
        run(f"SET GLOBAL binlog_row_metadata = '{before}'")
    assert shape(messages) == EXPECTED
    assert messages[2]["old"] == [{"n": "-2.00"}]
    assert messages[3]["isDdl"]
    assert messages[3]["sql"] == CHANGES[3]


def test_rows_that_an_outer_join_has_updated_fit_their_table(server: Any, run: Run) -> None:
    """MariaDB, and MySQL up to 5.7, say of all columns of such a table that they may be NULL."""
    (before,) = run("SELECT @@global.binlog_row_metadata")[0]
    lowest = "MINIMAL" if server.name.startswith("mysql") else "NO_LOG"
    run(f"SET GLOBAL binlog_row_metadata = '{lowest}'")
    try:
        run("CREATE TABLE t (n INT NOT NULL PRIMARY KEY, d INT)", "CREATE TABLE u (n INT NOT NULL PRIMARY KEY, d INT)")
        run("INSERT INTO t VALUES (1, 1), (3, 3)", "INSERT INTO u VALUES (1, 10), (2, 20)")
        run("UPDATE u LEFT OUTER JOIN t ON t.n = u.n SET t.d = u.d")
    finally:
        run(f"SET GLOBAL binlog_row_metadata = '{before}'")
    updated = lines(newest(server, run), "--table", "decoded\\.t")[-1]
    assert (updated["type"], updated["data"], updated["old"]) == ("UPDATE", [{"n": "1", "d": "10"}], [{"d": "1"}])


def test_tables_that_a_file_does_not_create_come_from_a_script_or_by_position(
    server: Any, run: Run, tmp_path: Path
) -> None:
    run(CHANGES[0])
    script = tmp_path / "schema.sql"
    shown = run("SHOW CREATE TABLE t")[0][1]
    script.write_text(
        f"-- before\nDROP TABLE IF EXISTS `decoded`.`t`;\nUSE `decoded`;\n{shown};\nINSERT INTO t VALUES (1);"
    )
    (before,) = run("SELECT @@global.binlog_row_metadata")[0]
    lowest = "MINIMAL" if server.name.startswith("mysql") else "NO_LOG"
    run("FLUSH BINARY LOGS", f"SET GLOBAL binlog_row_metadata = '{lowest}'")
    try:
        run(*CHANGES[1:3])
    finally:
        run(f"SET GLOBAL binlog_row_metadata = '{before}'")
    path = newest(server, run)
    assert shape(lines(path, "--table", "decoded\\.t", "--schema", script)) == EXPECTED[1:3]
    assert "give its CREATE TABLE with --schema" in decode(path, "--table", "decoded\\.t", status=1)[1]
    inserted, updated = shape(lines(path, "--table", "decoded\\.t", "--positional"))
    # MariaDB does not say which columns are binary: their bytes are escapes
    bytes_ = "AP8=" if lowest == "MINIMAL" else "\x00\\xff"
    first = [("@1", "1"), ("@2", "保洁"), ("@3", "1.50"), ("@4", bytes_)]
    assert inserted[1] == [first, [("@1", "2"), ("@2", None), ("@3", "-2.00"), ("@4", None)]]
    assert updated[1] == [[("@1", "2"), ("@2", None), ("@3", "3.00"), ("@4", None)]]


def test_debezium_shows_rows_and_schema_changes(server: Any, run: Run) -> None:
    run(*CHANGES)
    messages = lines(newest(server, run), "--table", "decoded\\.t", "--format", "debezium")
    assert [message.get("op") for message in messages] == [None, "c", "c", "u", None, "c", "d"]
    assert messages[0]["tableChanges"][0]["id"] == '"decoded"."t"'
    assert messages[1]["after"] == {"id": 1, "name": "保洁", "n": "AJY=", "b": "AP8="}
    assert (messages[2]["source"]["row"], messages[2]["source"]["db"]) == (1, "decoded")


def test_maxwell_shows_rows_alone(server: Any, run: Run) -> None:
    run(*CHANGES)
    messages = lines(newest(server, run), "--table", "decoded\\.t", "--format", "maxwell")
    assert [message["type"] for message in messages] == ["insert", "insert", "update", "insert", "delete"]
    assert messages[0]["data"] == {"id": 1, "name": "保洁", "n": 1.5, "b": "AP8="}
    assert messages[2]["old"] == {"n": -2}
    assert (messages[4]["database"], messages[4]["table"]) == ("decoded", "t")


def test_several_files_are_one_stream(server: Any, run: Run) -> None:
    run(*CHANGES[:3])
    first = newest(server, run)
    run("FLUSH BINARY LOGS", *CHANGES[3:])
    messages = lines(first, newest(server, run), "--table", "decoded\\.t")
    assert shape(messages) == EXPECTED
    numbers = [int(message["_pos"]) for message in messages]
    assert numbers == sorted(numbers)


def test_from_and_to_choose_transactions(server: Any, run: Run) -> None:
    table, table_option = "decoded\\.t", "--table"
    run(TABLE)
    places = []
    for i in range(4):
        run(f"INSERT INTO t (id) VALUES ({i})")
        places.append(run("SHOW BINARY LOGS")[-1][1])
    path = newest(server, run)

    def ids(*arguments: str) -> list[str]:
        found = lines(path, table_option, table, *arguments)
        return [row["id"] for message in found for row in message["data"] or []]

    assert ids() == ["0", "1", "2", "3"]
    assert ids("--from", str(places[1])) == ["2", "3"]
    assert ids("--from", f"{path.name}:{places[0] + 1}") == ["2", "3"]
    assert ids("--to", str(places[1])) == ["0", "1"]
    assert ids("--from", str(places[0]), "--to", f"{path.name}:{places[2]}") == ["1", "2"]
    assert ids("--from", "2000-01-01T00:00:00Z", "--to", "2990-01-01T00:00:00+08:00") == ["0", "1", "2", "3"]
    assert ids("--to", "2000-01-01T00:00:00Z") == []
    assert ids("--from", "2990-01-01T00:00:00Z") == []


def test_stats_count_events_and_rows(server: Any, run: Run) -> None:
    run(*CHANGES)
    text, _ = decode(newest(server, run), "--table", "decoded\\.t", "--stats")
    found = [line.split() for line in text.splitlines()]
    assert found[:-1] == [
        ["table", "kind", "events", "rows"],
        ["decoded.t", "ALTER", "1", "0"],
        ["decoded.t", "CREATE", "1", "0"],
        ["decoded.t", "DELETE", "1", "1"],
        ["decoded.t", "INSERT", "2", "3"],
        ["decoded.t", "UPDATE", "1", "1"],
        ["all", "6", "5"],
    ]


def test_a_table_that_nobody_described_is_said_with_the_remedy(server: Any, run: Run) -> None:
    (before,) = run("SELECT @@global.binlog_row_metadata")[0]
    run("SET GLOBAL binlog_row_metadata = 'MINIMAL'", TABLE, "FLUSH BINARY LOGS")
    try:
        run("CREATE TABLE u (id INT)", "INSERT INTO u VALUES (1)", "INSERT INTO t (id) VALUES (1)")
        out, error = decode(newest(server, run), "--table", "decoded\\..*", status=1)
    finally:
        run(f"SET GLOBAL binlog_row_metadata = '{before}'")
    assert [json.loads(line)["table"] for line in out.splitlines()] == ["u", "u"]
    assert "decoded.t" in error
    assert "--table" in error
    assert "--host" in error
    assert "Traceback" not in error


def test_a_file_that_ends_within_an_event_gives_what_came_before(server: Any, run: Run, tmp_path: Path) -> None:
    run(*CHANGES)
    path = tmp_path / "cut.000001"
    path.write_bytes(newest(server, run).read_bytes()[:-40])
    out, error = decode(path, "--table", "decoded\\.t", status=1)
    assert len(out.splitlines()) >= len(EXPECTED) - 1
    assert "ends within an event" in error
    assert "Traceback" not in error


def test_a_damaged_event_is_said_with_its_place(server: Any, run: Run, tmp_path: Path) -> None:
    run(TABLE)
    place = run("SHOW BINARY LOGS")[-1][1]
    run("INSERT INTO t (id) VALUES (1)", "INSERT INTO t (id) VALUES (2)")
    raw = bytearray(newest(server, run).read_bytes())
    raw[place + 30] ^= 1
    path = tmp_path / "bad.000001"
    path.write_bytes(raw)
    out, error = decode(path, "--table", "decoded\\.t", status=1)
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["CREATE"]
    assert f"bad.000001:{place}" in error
    assert "CRC32" in error


def test_a_servers_stream_ends_at_its_present_end(server: Any, run: Run) -> None:
    run(*CHANGES)
    place = f"{newest(server, run).name}:4"
    login = ("--host", server.host, "--port", str(server.port), "--user", "canal", "--password-env", "SECRET")
    messages = lines(*login, "--table", "decoded\\.t", "--from", place, SECRET="canal")
    assert shape(messages) == EXPECTED


def test_a_servers_last_transaction_is_printed_whole_if_its_rows_come_with_its_last_event(
    server: Any, run: Run
) -> None:
    login = ["--host", server.host, "--port", str(server.port), "--user", "canal", "--password-env", "SECRET"]
    run("CREATE TABLE t (id INT PRIMARY KEY)")
    values = ", ".join(f"({number})" for number in range(1, 3001))
    run("XA START 'a'", f"INSERT INTO t VALUES {values}", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'")
    messages = lines(*login, "--from", f"{newest(server, run).name}:4", "--table", "decoded.t", SECRET="canal")
    inserted = [int(row["id"]) for message in messages if message["type"] == "INSERT" for row in message["data"]]
    assert inserted == list(range(1, 3001))


def test_follow_goes_on_with_what_is_written(server: Any, run: Run) -> None:
    run(TABLE)
    login = ["--host", server.host, "--port", str(server.port), "--user", "canal", "--password-env", "SECRET"]
    process = subprocess.Popen(
        [*COMMAND, *login, "--table", "decoded\\.t", "--from", f"{newest(server, run).name}:4", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SECRET": "canal", "PYTHONUNBUFFERED": ""},
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["type"] == "CREATE"
        run("INSERT INTO t (id) VALUES (5)")
        assert json.loads(process.stdout.readline())["data"][0]["id"] == "5"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    finally:
        process.kill()
        _, error = process.communicate()
    assert "Traceback" not in error


def test_a_reader_that_leaves_early_is_no_error(server: Any, run: Run) -> None:
    run(TABLE, "INSERT INTO t (id, b) VALUES (0, REPEAT('x', 60000))")
    for step in range(7):
        run(f"INSERT INTO t SELECT id + {1 << step}, name, n, b FROM t")
    process = subprocess.Popen([*COMMAND, str(newest(server, run))], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    eventually(lambda: process.poll() is not None, 60)
    assert process.stderr is not None
    assert (process.returncode, process.stderr.read()) == (0, b"")
    process.stderr.close()


TYPES = (
    "CREATE TABLE t (id INT, region VARCHAR(9), n DECIMAL(20,5), u BIGINT UNSIGNED, f FLOAT, d DOUBLE, bits BIT(64), "
    "at DATETIME(6), stamp TIMESTAMP(3) NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), "
    "time TIME(2), day DATE, year YEAR, e ENUM('a','b,c'), s SET('x','y','z'), j JSON, body TEXT, "
    "latin VARCHAR(20) CHARACTER SET latin1, chinese VARCHAR(20) CHARACTER SET gbk, raw VARBINARY(30), b BLOB, "
    "p POINT, twice INT AS (id * 2) STORED, PRIMARY KEY (id, region)) CHARSET utf8mb4"
)
COLUMNS = "id,region,n,u,f,d,bits,at,stamp,time,day,year,e,s,j,body,latin,chinese,raw,b,p"
VALUES = (
    "(1,'cn',-1.5,18446744073709551615,0.1,-0e0,b'101','2026-01-02 03:04:05.000006','2026-01-02 03:04:05.123',"
    "'-12:30:00.50','2026-02-28',2026,'b,c','x,z','{\"a\": [1, 2.5, null]}','it''s\\\\\\n\\0 \U0001f600','\u00e9',"
    "'\u4fdd\u6d01',x'00ff27',x'',ST_GeomFromText('POINT(1 2)'))",
    "(2,'',NULL,0,1e30,1.7976931348623157e308,0,NULL,NULL,NULL,NULL,1901,'a','',NULL,'',NULL,NULL,NULL,NULL,NULL)",
    "(3,'EU',99999,7,-2.25,1e-310,1,'0000-00-00',NULL,'838:59:59','0000-00-00',0,NULL,NULL,'[]',NULL,'x','y','z','w',NULL)",
)


def content(run: Run, table: str = "t") -> Any:
    names = [row[0] for row in run(f"SHOW COLUMNS FROM {table}")]
    shown = ", ".join(f"HEX({name}), CAST({name} AS CHAR)" if name != "p" else "HEX(p)" for name in names)
    return run("SET time_zone = '+00:00'", f"SELECT {shown} FROM {table} ORDER BY 1, 2, 3, 4")


def execute(server: Any, script: str) -> None:
    done = subprocess.run(server.client_args, input=script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + script


def test_undo_makes_the_table_what_it_was(server: Any, run: Run, tmp_path: Path) -> None:
    run("SET sql_mode = ''", TYPES, *(f"INSERT INTO t ({COLUMNS}) VALUES {one}" for one in VALUES))
    run("CREATE TABLE bare (name VARCHAR(20), n INT) CHARSET utf8mb4", "INSERT INTO bare VALUES ('a', 1), ('A', 1)")
    run("INSERT INTO bare VALUES ('a ', NULL), ('a', 1)")
    tables = ("t", "bare")
    before = [content(run, table) for table in tables]
    run("FLUSH BINARY LOGS")
    run("INSERT INTO t (id, region, f) VALUES (7, 'new', 7.1), (8, 'new', 8.1)")
    run("BEGIN", "UPDATE t SET n = 5, body = CONCAT('x', COALESCE(body, '')), j = '{}', p = NULL, s = 'y'")
    run("UPDATE t SET id = id + 10 WHERE region = 'cn'", "DELETE FROM t WHERE id = 3", "COMMIT")
    run(
        "DELETE FROM bare WHERE BINARY name = 'A'",
        "UPDATE bare SET n = 2 WHERE n IS NULL",
        "DELETE FROM t WHERE id < 9",
    )
    run("UPDATE bare SET name = 'b' WHERE n = 1 LIMIT 1")
    assert [content(run, table) for table in tables] != before
    schema = tmp_path / "schema.sql"  # it says which columns are generated
    schema.write_text(f"USE decoded;\n{TYPES};\n")
    script, _ = decode(newest(server, run), "--undo", "--table", r"decoded\..*", "--schema", schema)
    assert script.index("`bare`") < script.index("`t`"), "the last change comes first"
    assert script.count("BEGIN;") == script.count("COMMIT;") == 6
    execute(server, script)
    assert [content(run, table) for table in tables] == before


def test_undo_of_one_row_leaves_the_others(server: Any, run: Run) -> None:
    run("CREATE TABLE t (id INT, region CHAR(2) CHARACTER SET latin1, n INT, PRIMARY KEY (id, region))")
    run("INSERT INTO t (id, region) VALUES (1, 'cn'), (1, 'eu'), (2, 'cn')", "FLUSH BINARY LOGS")
    run("UPDATE t SET n = id", "DELETE FROM t WHERE id = 1")
    keys = ("--table", r"decoded\.t", "--key", "1", "--key", "eu")
    assert [m["type"] for m in lines(newest(server, run), *keys)] == ["UPDATE", "DELETE"]
    assert {row["region"] for m in lines(newest(server, run), *keys) for row in m["data"]} == {"eu"}
    execute(server, decode(newest(server, run), "--undo", *keys)[0])
    assert run("SELECT id, region, n FROM t ORDER BY id") == ((1, "eu", None), (2, "cn", 2))
    _, said = decode(newest(server, run), "--table", r"decoded\.t", "--key", "1", status=1)
    assert "--key has 1 values, and the key of decoded.t has 2 columns: id, region" in said


def test_undo_finds_rows_by_odd_keys_and_names(server: Any, run: Run) -> None:
    members = ", ".join(f"'m{i}'" for i in range(64))
    run(f"CREATE TABLE t (s SET({members}) PRIMARY KEY, f FLOAT, `a`` \n'b` INT)")
    run("INSERT INTO t VALUES ('m0,m63', 3.4028234e38, 1), ('m63', -3.4028234e38, 2)", "FLUSH BINARY LOGS")
    before = run("SELECT s + 0, HEX(s), f, `a`` \n'b` FROM t ORDER BY 4")
    run("UPDATE t SET `a`` \n'b` = 9, f = 1", "DELETE FROM t WHERE s = 'm63'")
    execute(server, decode(newest(server, run), "--undo", "--table", r"decoded\.t")[0])
    assert run("SELECT s + 0, HEX(s), f, `a`` \n'b` FROM t ORDER BY 4") == before


def test_undo_of_one_row_has_its_labels_and_knows_of_statements(server: Any, run: Run) -> None:
    run("CREATE TABLE t (e ENUM('a', 'b') PRIMARY KEY, n INT)", "INSERT INTO t VALUES ('a', 1), ('b', 1)")
    run("FLUSH BINARY LOGS", "UPDATE t SET n = 2")
    keys = ("--undo", "--table", r"decoded\.t", "--key", "b")
    execute(server, decode(newest(server, run), *keys)[0])
    assert run("SELECT e, n FROM t ORDER BY e") == (("a", 2), ("b", 1))
    run("TRUNCATE t")
    script, said = decode(newest(server, run), *keys, status=1)
    assert (script, "TRUNCATE t" in said) == ("", True)


def test_undo_of_a_file_that_ends_within_a_transaction_gives_no_script(server: Any, run: Run, tmp_path: Path) -> None:
    run("FLUSH BINARY LOGS", "CREATE TABLE t (id INT PRIMARY KEY)")
    run("BEGIN", "INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "COMMIT")
    file = newest(server, run)
    events = run(f"SHOW BINLOG EVENTS IN '{file.name}'")
    first = next(int(event[4]) for event in events if str(event[2]).lower().startswith("write_rows"))
    (tmp_path / file.name).write_bytes(file.read_bytes()[:first])
    script, said = decode(tmp_path / file.name, "--undo", "--table", r"decoded\.t", status=1)
    assert (script, "ends within the transaction at" in said) == ("", True)


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (
            ("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "RENAME TABLE t TO t2", "INSERT INTO t2 VALUES (1, 1)"),
            "a statement that changes tables can't be undone: RENAME TABLE t TO t2",
        ),
        (
            ("CREATE TABLE t (id INT PRIMARY KEY)", "DROP /* x */ DATABASE decoded", "CREATE DATABASE decoded"),
            "DROP DATABASE",
        ),
        (
            ("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "ALTER TABLE t ADD INDEX (v), ADD x INT DEFAULT 5"),
            "can't be undone: ALTER TABLE t ADD INDEX",
        ),
        (
            ("CREATE TABLE t (e ENUM('a') PRIMARY KEY)", "SET sql_mode = ''", "INSERT INTO t VALUES ('x')"),
            "invalid value",
        ),
        (
            (
                "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET gbk)",
                "INSERT INTO t VALUES (1, x'FEFE')",
            ),
            "undecodable_text",
        ),
        (
            ("CREATE TABLE t (f FLOAT)", "INSERT INTO t VALUES (1.5)"),
            "f, a float, is a column, and the table has no key",
        ),
        (
            ("CREATE TABLE t (id INT PRIMARY KEY)", "TRUNCATE t"),
            "a statement that changes tables can't be undone: TRUNCATE t",
        ),
        (
            (TABLE, "INSERT INTO t (id) VALUES (1)", "SET binlog_row_image = 'MINIMAL'", "UPDATE t SET n = 1"),
            "UPDATE of decoded.t can't be undone: the binlog does not have the former value of n (binlog_row_image)",
        ),
    ],
)
def test_what_can_not_be_undone_gives_no_script(server: Any, run: Run, statements: tuple[str, ...], why: str) -> None:
    run("FLUSH BINARY LOGS", *statements)
    script, said = decode(newest(server, run), "--undo", "--table", r"decoded\.t", status=1)
    assert script == "", "a part would undo what later changes build on"
    assert why in said
