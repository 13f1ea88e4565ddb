"""A daemon without column names in the binlog: killed, stopped over DDL, started late; names stay with their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, read_messages
from tests.versions import long

pytestmark = pytest.mark.server

Run = Callable[..., Any]
SCHEMA = "life"


@pytest.fixture(scope="module", params=["mysql", *long("mariadb")])
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    if request.param == "mysql":
        made = stack.mysql(None, "--binlog-row-metadata=MINIMAL", name="life-mysql", server_id=51)
    else:
        made = stack.mariadb(None, "--binlog-row-metadata=NO_LOG", name="life-mariadb", server_id=52)
    yield made
    made.kill()


@pytest.fixture
def run(server: Any) -> Iterator[Run]:
    connection = pymysql.connect(**server.connection("root"), autocommit=True, charset="utf8mb4")

    def execute(*statements: str) -> Any:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    execute(f"DROP DATABASE IF EXISTS {SCHEMA}", f"CREATE DATABASE {SCHEMA} CHARACTER SET utf8mb4", f"USE {SCHEMA}")
    yield execute
    connection.close()


def place(run: Run) -> str:
    """The end of the binlog, as a `start`."""
    try:
        row = run("SHOW BINARY LOG STATUS")[0]
    except pymysql.err.ProgrammingError:
        row = run("SHOW MASTER STATUS")[0]
    return f"{row[0]}:{row[1]}"


def rows(out: Path) -> list[dict[str, Any]]:
    return [row for message in read_jsonl(out) for row in message["data"]]


def wait_for(out: Path, key: str, process: DaemonProcess) -> None:
    eventually(
        lambda: any(row["id"] == key for row in rows(out)),
        30,
        lambda: f"{rows(out)}\n{process.log.read_text()[-3000:]}",
    )


def test_names_follow_ddl_through_kills_and_stops(
    server: Any, run: Run, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    run("CREATE TABLE t (id INT PRIMARY KEY, a INT UNSIGNED, b INT)", "INSERT INTO t VALUES (1, 4000000000, -1)")
    process = daemon(shop=destination_toml(server, SCHEMA, f'type = "jsonl"\npath = "{out}"')).start()
    process.wait_state("shop", "STREAMING")
    run("INSERT INTO t VALUES (2, 4000000001, -2)")
    wait_for(out, "2", process)
    process.kill()
    run(
        "INSERT INTO t VALUES (3, 4000000003, -3)",
        "ALTER TABLE t ADD COLUMN c INT",
        "INSERT INTO t VALUES (4, 4000000004, -4, 44)",
        "ALTER TABLE t RENAME COLUMN b TO x, RENAME COLUMN c TO b",
        "INSERT INTO t VALUES (5, 4000000005, -5, 55)",
        "ALTER TABLE t MODIFY COLUMN b INT FIRST",
        "INSERT INTO t (id, a, x, b) VALUES (6, 4000000006, -6, 66)",
    )
    process.start()
    wait_for(out, "6", process)
    process.terminate()
    run(
        "RENAME TABLE t TO old_t",
        "CREATE TABLE t (id INT PRIMARY KEY, kind ENUM('x','y','家') CHARACTER SET utf8mb4)",
        "INSERT INTO t VALUES (7, '家')",
        "DROP TABLE t",
        "RENAME TABLE old_t TO t",
        "INSERT INTO t (id, a, x, b) VALUES (8, 4000000008, -8, 88)",
    )
    process.start()
    wait_for(out, "8", process)
    process.kill()
    process.start()
    run("INSERT INTO t (id, a, x, b) VALUES (9, 4000000009, -9, 99)")
    wait_for(out, "9", process)
    seen = {row["id"]: row for row in rows(out)}
    assert seen == {
        "2": {"id": "2", "a": "4000000001", "b": "-2"},
        "3": {"id": "3", "a": "4000000003", "b": "-3"},
        "4": {"id": "4", "a": "4000000004", "b": "-4", "c": "44"},
        "5": {"id": "5", "a": "4000000005", "x": "-5", "b": "55"},
        "6": {"id": "6", "a": "4000000006", "x": "-6", "b": "66"},
        "7": {"id": "7", "kind": "家"},
        "8": {"id": "8", "a": "4000000008", "x": "-8", "b": "88"},
        "9": {"id": "9", "a": "4000000009", "x": "-9", "b": "99"},
    }
    assert {tuple(m["pkNames"]) for m in read_jsonl(out)} == {("id",)}
    kinds = [m["type"] for m in read_messages(out) if m["isDdl"]]
    assert kinds[:4] == ["ALTER"] * 3 + ["RENAME"], kinds


def test_two_columns_swapped_before_the_first_start_stop_the_destination(
    server: Any, run: Run, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    start = place(run)
    run("INSERT INTO t VALUES (1, 10, 20)", "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a")
    run("INSERT INTO t (id, a, b) VALUES (2, 10, 20)")
    text = destination_toml(server, SCHEMA, f'type = "jsonl"\npath = "{out}"', start=start)
    process = daemon(shop=text).start()
    status = process.wait_state("shop", "FAILED")
    assert "its schema at this position is not known" in status["last_error"]
    assert f"{SCHEMA}.t" in status["last_error"]
    assert "binlog_row_metadata" in status["last_error"] or "schema-history" in status["last_error"]
    assert rows(out) == []
    named = status["last_error"].split("at ", 1)[1].split(": ", 1)[0]
    process.terminate()
    file = process.folder / "destinations" / "shop.toml"
    file.write_text(file.read_text().replace("[filter]", f'skip_event = ["{named}"]\n[filter]'))
    process.start()
    wait_for(out, "2", process)
    assert rows(out) == [{"id": "2", "a": "10", "b": "20"}], "behind the swap the reading holds"


def test_a_table_that_was_read_at_the_start_is_known_without_any_ddl_in_the_binlog(
    server: Any, run: Run, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    run(
        "CREATE TABLE t (id INT PRIMARY KEY, `naïve 名` VARCHAR(20) CHARACTER SET gbk, n TINYINT(1) UNSIGNED,"
        " s SET('p','q'), d DECIMAL(10,2))",
        "FLUSH BINARY LOGS",
    )
    start = place(run)
    run("INSERT INTO t VALUES (1, '家庭保洁', 255, 'p,q', 1.5)")
    text = destination_toml(server, SCHEMA, f'type = "jsonl"\npath = "{out}"', start=start)
    process = daemon(shop=text).start()
    wait_for(out, "1", process)
    assert rows(out) == [{"id": "1", "naïve 名": "家庭保洁", "n": "255", "s": "p,q", "d": "1.50"}]
    types = read_jsonl(out)[0]["mysqlType"]
    assert types["n"] == "tinyint unsigned" or types["n"] == "tinyint(1) unsigned"
    assert types["s"] == "set('p','q')"


SWAP = "ALTER TABLE t CHANGE a b INT, CHANGE b a INT"
UNLOGGED = ("SET sql_log_bin = 0", SWAP, "SET sql_log_bin = 1")


def streaming(
    server: Any, run: Run, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> tuple[Path, DaemonProcess]:
    """A daemon that has published the first row of a table with two columns of one type, and where to."""
    out = tmp_path / "out.jsonl"
    run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    process = daemon(shop=destination_toml(server, SCHEMA, f'type = "jsonl"\npath = "{out}"')).start()
    process.wait_state("shop", "STREAMING")
    run("INSERT INTO t VALUES (1, 10, 20)")
    wait_for(out, "1", process)
    return out, process


def test_columns_swapped_without_a_statement_in_the_binlog_stop_the_stream_before_the_first_row(
    server: Any, run: Run, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out, process = streaming(server, run, daemon, tmp_path)
    run("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (2)")
    wait_for(out, "2", process)
    run(*UNLOGGED, "INSERT INTO t (id, a, b) VALUES (3, 10, 20)")
    status = process.wait_state("shop", "FAILED")
    assert status["last_error"].count(f"{SCHEMA}.t") >= 1
    shown = status["last_error"].replace("int(11)", "int")
    assert "column 2 is `a` int by the schema history and `b` int on the server" in shown
    assert "headrace position set shop" in status["last_error"]
    assert [row["id"] for row in rows(out)] == ["1", "2"]


def test_columns_swapped_so_while_the_daemon_was_down_stop_it_until_an_operator_has_the_schemas_read_again(
    server: Any, run: Run, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out, process = streaming(server, run, daemon, tmp_path)
    process.terminate()
    here = place(run)
    run(*UNLOGGED, "INSERT INTO t (id, a, b) VALUES (2, 10, 20)", "ALTER TABLE t ADD c INT")
    run("INSERT INTO t (id, a, b) VALUES (3, 10, 20)")
    process.start()
    status = process.wait_state("shop", "FAILED")
    assert "was changed without a statement in the binlog" in status["last_error"], status
    assert [row["id"] for row in rows(out)] == ["1"]
    process.terminate()
    status_code, printed = process.command("position", "set", "shop", here, "--read-schemas", "--yes")
    assert status_code == 0, printed
    process.start()
    status = process.wait_state("shop", "FAILED")
    assert "its schema at this position is not known" in status["last_error"], "the ALTER that followed hides the past"
    process.terminate()
    behind = place(run)
    run("INSERT INTO t (id, a, b, c) VALUES (4, 10, 20, 30)")
    assert process.command("position", "set", "shop", behind, "--yes")[0] == 0
    process.start()
    wait_for(out, "4", process)
    assert rows(out)[1:] == [{"id": "4", "b": "20", "a": "10", "c": "30"}]


def test_no_row_passes_while_the_source_cannot_be_asked(
    server: Any, run: Run, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out, process = streaming(server, run, daemon, tmp_path)
    run("ALTER USER canal@'%' ACCOUNT LOCK")
    try:
        run(*UNLOGGED, "INSERT INTO t (id, a, b) VALUES (2, 10, 20)")
        status = process.wait("shop", lambda s: s["state"] not in ("STREAMING", "STARTING"))
        assert "lock" in status["last_error"].lower(), status
    finally:
        run("ALTER USER canal@'%' ACCOUNT UNLOCK")
    process.wait("shop", lambda s: "without a statement in the binlog" in s["last_error"], 90)
    assert [row["id"] for row in rows(out)] == ["1"]
