"""`headrace check --second-opinion` on real servers: rows of many types, read by two readers."""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql
import pytest

from headrace.cli import check
from headrace.model import RowsChange
from headrace.mysql import inspection
from tests.configured import load
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server

ENVIRONMENT = {**os.environ, "TEST_PASSWORD": "canal"}
TABLE = """CREATE TABLE opinion.t (id INT UNSIGNED PRIMARY KEY, name VARCHAR(20), price DECIMAL(12,3), at DATETIME(3),
    day DATE, b BINARY(4), doc JSON, f FLOAT, e ENUM('a','b'), y YEAR) CHARSET utf8mb4"""


@pytest.fixture(params=["mysql", "mariadb"])
def config(request: pytest.FixtureRequest, tmp_path: Path, daemon: Callable[..., DaemonProcess]) -> Iterator[Path]:
    """Of a destination that captures the schema `opinion`, with changes in two binlog files."""
    server = request.getfixturevalue(request.param)
    with (
        pymysql.connect(**server.connection("root"), autocommit=True, charset="utf8mb4") as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SET SESSION sql_mode = ''")
        for statement in ("FLUSH BINARY LOGS", "CREATE DATABASE opinion", TABLE, "CREATE DATABASE other"):
            cursor.execute(statement)
        cursor.execute("CREATE TABLE other.t (id INT PRIMARY KEY)")
        for first in (0, 50):
            cursor.executemany(
                "INSERT INTO opinion.t VALUES (%s, %s, 12.5, '2026-01-31 12:00:00.125', '2026-02-03', 'wxyz', %s, 1.5, "
                "'b', 2026)",
                [(4_000_000_000 + i, f"家政 {i}", '{"a": [1, 2.5, "x"]}') for i in range(first, first + 50)],
            )
            cursor.execute("UPDATE opinion.t SET name = 'né', doc = NULL WHERE id = 4000000000 + %s", (first,))
            cursor.execute("INSERT INTO other.t VALUES (%s)", (first,))
            cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("UPDATE opinion.t SET day = '0000-00-00', b = 'ab' WHERE id = 4000000001")
        cursor.execute("DELETE FROM opinion.t WHERE id = 4000000002")
        yield daemon(shop=destination_toml(server, "opinion", 'type = "null"')).folder / "headrace.toml"
        cursor.execute("DROP DATABASE opinion")
        cursor.execute("DROP DATABASE other")


def run(config: Path, count: int) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "check", "--second-opinion", str(count), "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=90,
        env=ENVIRONMENT,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout.splitlines()


def test_a_clean_server_shows_no_difference_and_known_errors_apart(config: Path) -> None:
    status, lines = run(config, 10_000)
    assert status == 0, lines
    assert not [line for line in lines if line.startswith("shop: differs")]
    assert any(line.startswith("shop: known ") and line.endswith(" x dates with a zero are None") for line in lines)
    assert any(line.endswith(" x BINARY loses its trailing zero bytes") for line in lines)
    assert lines[-1].endswith("rows events; none differs but by known errors")


def test_only_the_newest_events_of_captured_tables_are_read(config: Path) -> None:
    status, lines = run(config, 2)
    assert status == 0
    assert lines[-1] == "shop: both read 30 values of 2 rows events; none differs but by known errors"
    status, lines = run(config, 3)  # the third lies in the file before
    assert lines[-1] == "shop: both read 50 values of 3 rows events; none differs but by known errors"


async def test_a_value_that_differs_is_reported_and_gives_status_1(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = inspection.decode_file

    def spoilt(*arguments: Any) -> Sequence[RowsChange]:
        changes = honest(*arguments)
        return [dataclasses.replace(one, rows=[(*row[:1], "another", *row[2:]) for row in one.rows]) for one in changes]

    monkeypatch.setattr(inspection, "decode_file", spoilt)
    arguments = argparse.Namespace(second_opinion=1)
    assert await check.run(load(config, ENVIRONMENT), arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("shop: differs  ")
    assert "opinion.t column name (varchar(20)): 'another', mysql-replication '家政 2'" in lines[0]
    assert lines[1] == "shop: both read 10 values of 1 rows events; 1 differs"
