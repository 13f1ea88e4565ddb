"""A first start far behind the end of a binlog whose rows bring their names: nothing waits for a look at all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

MANY = 6, 12 << 20
"""Rows, and bytes of each, that are more than is looked through for statements."""


@pytest.fixture(scope="module")
def server(stack: Stack) -> Iterator[Any]:
    made = stack.mysql(None, name="far-behind", server_id=53)  # its global settings change
    yield made
    made.kill()


def test_rows_come_as_they_were_and_as_the_source_shows_them_from_its_end_on(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    connection = pymysql.connect(**server.connection("root"), autocommit=True)
    with connection, connection.cursor() as cursor:

        def run(*statements: str) -> None:
            for statement in statements:
                cursor.execute(statement)

        run("CREATE DATABASE far", "CREATE DATABASE other", "USE far")
        run(
            "CREATE TABLE quiet (id INT PRIMARY KEY, flag TINYINT(1))",
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)",
        )
        cursor.execute("SHOW BINARY LOG STATUS")
        file, offset = (cursor.fetchone() or ())[:2]
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

        def come(table: str, count: int) -> None:
            eventually(
                lambda: len(rows(table)) >= count, 30, lambda: f"{rows(table)}\n{process.log.read_text()[-3000:]}"
            )

        come("quiet", 2)
        # From here on names come from what the source showed when the destination began, and from statements since.
        run("SET GLOBAL binlog_row_metadata = MINIMAL", "ALTER TABLE t ADD COLUMN d INT")
    connection = pymysql.connect(**server.connection("root"), autocommit=True, database="far")
    with connection, connection.cursor() as cursor:
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
