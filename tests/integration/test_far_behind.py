"""A first start far behind the end of a binlog whose rows bring their names: nothing waits for a scan of all of it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

MANY = 8, 12 << 20
"""Rows, and bytes of each, that are more than is scanned for statements, also without the last: the scan goes on to
its end when only a row of it is left."""


@pytest.fixture(scope="module")
def server(stack: Stack) -> Iterator[Any]:
    made = stack.mysql(None, name="far-behind", server_id=53)  # its global settings change
    yield made
    made.kill()


@pytest.fixture(scope="module")
def mariadb_full(stack: Stack) -> Iterator[Any]:
    made = stack.sql("mariadb118", None, "--binlog-row-metadata=FULL", name="far-behind-mariadb", server_id=54)
    yield made
    made.kill()


@contextmanager
def statements_on(server: Any, database: str | None = None) -> Iterator[Callable[..., Any]]:
    """Runs statements in a session of its own; gives the first row of the last one."""
    connection = pymysql.connect(**server.connection("root"), autocommit=True, database=database)
    with connection, connection.cursor() as cursor:

        def run(*statements: str) -> Any:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchone()

        yield run


def test_rows_come_as_they_were_and_as_the_source_shows_them_from_its_end_on(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    with statements_on(server) as run:
        run("CREATE DATABASE far", "CREATE DATABASE other", "USE far")
        run(
            "CREATE TABLE quiet (id INT PRIMARY KEY, flag TINYINT(1))",
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)",
        )
        file, offset = run("SHOW BINARY LOG STATUS")[:2]
        run("INSERT INTO quiet VALUES (1, 1)", "INSERT INTO t VALUES (1, 10, 20)")
        run("ALTER TABLE t RENAME COLUMN a TO c, RENAME COLUMN b TO a", "INSERT INTO t VALUES (2, 30, 40)")
        run("CREATE TABLE other.bulk (v LONGBLOB)")
        for _ in range(MANY[0]):
            run(f"INSERT INTO other.bulk VALUES (REPEAT('x', {MANY[1]}))")
        run("INSERT INTO quiet VALUES (2, 0)")
        text = destination_toml(server, "far", f'type = "jsonl"\npath = "{out}"', start=f"{file}:{offset}")
        process = daemon(shop=text).start()
        process.wait_state("shop", "STREAMING")

        def rows(table: str) -> list[dict[str, Any]]:
            return [row for message in read_jsonl(out) if message["table"] == table for row in message["data"]]

        def come(table: str, last: int) -> None:
            eventually(
                lambda: str(last) in {row["id"] for row in rows(table)},
                30,
                lambda: f"{rows(table)}\n{process.log.read_text()[-3000:]}",
            )

        come("quiet", 2)
        # From here on names come from what the source showed when the destination began, and from statements since.
        run("SET GLOBAL binlog_row_metadata = MINIMAL", "ALTER TABLE t ADD COLUMN d INT")
    with statements_on(server, "far") as run:
        run("INSERT INTO t VALUES (3, 50, 60, 70)", "INSERT INTO quiet VALUES (3, 1)")
        come("quiet", 3)
        process.kill()
        run("INSERT INTO t VALUES (4, 51, 61, 71)", "INSERT INTO quiet VALUES (4, 1)")
        process.start()
        come("quiet", 4)
    assert {row["id"]: row for row in rows("t")} == {
        "1": {"id": "1", "a": "10", "b": "20"},
        "2": {"id": "2", "c": "30", "a": "40"},
        "3": {"id": "3", "c": "50", "a": "60", "d": "70"},
        "4": {"id": "4", "c": "51", "a": "61", "d": "71"},
    }
    assert {message["mysqlType"]["flag"] for message in read_jsonl(out) if message["table"] == "quiet"} == {
        "tinyint(1)"
    }
    log = process.log.read_text()
    assert "hold from the end of the binlog on" in log, log[-3000:]


def test_values_are_not_what_only_a_later_declaration_would_make_of_them(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    """The binlog does not say the digits of a DOUBLE(m,d)."""
    out = tmp_path / "out.jsonl"
    with statements_on(server) as run:
        run("SET GLOBAL binlog_row_metadata = FULL", "CREATE DATABASE later", "CREATE DATABASE bulk", "USE later")
    with statements_on(server, "later") as run:
        run(
            "CREATE TABLE t (id INT PRIMARY KEY, v DOUBLE)",
            "CREATE TABLE same (id INT PRIMARY KEY, v DOUBLE(7,2))",
        )
        file, offset = run("SHOW BINARY LOG STATUS")[:2]
        run("INSERT INTO t VALUES (1, 1.23456)", "INSERT INTO same VALUES (1, 1.5)")
        run("ALTER TABLE t MODIFY v DOUBLE(7,2)", "INSERT INTO t VALUES (2, 1.23456)")
        run("CREATE TABLE bulk.bulk (v LONGBLOB)")
        for _ in range(MANY[0]):
            run(f"INSERT INTO bulk.bulk VALUES (REPEAT('x', {MANY[1]}))")
        run("INSERT INTO t VALUES (3, 1.23456)", "INSERT INTO same VALUES (3, 1.5)")
        text = destination_toml(server, "later", f'type = "jsonl"\npath = "{out}"', start=f"{file}:{offset}")
        process = daemon(shop=text).start()
        eventually(lambda: len(read_jsonl(out)) >= 5, 60, lambda: process.log.read_text()[-3000:])
    rows = {(message["table"], row["id"]): row["v"] for message in read_jsonl(out) for row in message["data"]}
    assert "hold from the end of the binlog on" in process.log.read_text()
    assert rows == {
        ("t", "1"): "1.23456",
        ("t", "2"): "1.23",
        ("t", "3"): "1.23",
        ("same", "1"): "1.50",
        ("same", "3"): "1.50",
    }


def test_bytes_that_became_a_uuid_later_are_bytes_before(
    mariadb_full: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out, server = tmp_path / "out.jsonl", mariadb_full
    with statements_on(server) as run:
        run("CREATE DATABASE later", "CREATE DATABASE bulk", "USE later")
        run("CREATE TABLE t (id INT PRIMARY KEY, u BINARY(16))", "CREATE TABLE same (id INT PRIMARY KEY, u UUID)")
        file, offset = run("SHOW MASTER STATUS")[:2]
        uuid = "00112233-4455-6677-8899-aabbccddeeff"
        run("INSERT INTO t VALUES (1, REPEAT('a', 16))", f"INSERT INTO same VALUES (1, '{uuid}')")
        run("TRUNCATE TABLE t", "ALTER TABLE t MODIFY u UUID", f"INSERT INTO t VALUES (2, '{uuid}')")
        run("CREATE TABLE bulk.bulk (v LONGBLOB)")
        for _ in range(MANY[0]):
            run(f"INSERT INTO bulk.bulk VALUES (REPEAT('x', {MANY[1]}))")
        run(f"INSERT INTO t VALUES (3, '{uuid}')", f"INSERT INTO same VALUES (3, '{uuid}')")
        text = destination_toml(server, "later", f'type = "jsonl"\npath = "{out}"', start=f"{file}:{offset}")
        process = daemon(shop=text).start()
        eventually(lambda: len(read_jsonl(out)) >= 5, 60, lambda: process.log.read_text()[-3000:])
    rows = {(message["table"], row["id"]): row["u"] for message in read_jsonl(out) for row in message["data"]}
    assert "hold from the end of the binlog on" in process.log.read_text()
    assert rows == {
        ("t", "1"): base64.b64encode(b"a" * 16).decode(),
        ("t", "2"): uuid,
        ("t", "3"): uuid,
        ("same", "1"): uuid,
        ("same", "3"): uuid,
    }
