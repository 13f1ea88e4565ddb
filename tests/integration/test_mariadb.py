"""The source against a real MariaDB, by file and offset: values equal to SELECT's, and resume after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.converters import encoders
from pymysql.cursors import DictCursor

from devstack import Stack
from tests import versions
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, replay, replay_by_pos

pytestmark = pytest.mark.server

TABLE = """CREATE TABLE types (
    id BIGINT UNSIGNED PRIMARY KEY, t TINYINT(1), tu TINYINT UNSIGNED, s SMALLINT, m MEDIUMINT, iu INT UNSIGNED,
    f FLOAT, d DOUBLE, n DECIMAL(10,2), n65 DECIMAL(65,30), bits BIT(11), da DATE, dt DATETIME, dt3 DATETIME(3),
    ts TIMESTAMP NULL, ts6 TIMESTAMP(6) NULL, ti TIME, ti3 TIME(3), y YEAR, c CHAR(10), c4 CHAR(200), v VARCHAR(20),
    vl VARCHAR(300), te TEXT, lt LONGTEXT, e ENUM('小','中','大'), st SET('a','b','c'), j JSON,
    gbk VARCHAR(20) CHARACTER SET gbk, lat VARCHAR(20) CHARACTER SET latin1) DEFAULT CHARSET utf8mb4"""
ROWS = (
    "(1, -1, 255, -32768, -8388608, 4294967295, 1.1, -2.5e-30, -12345678.90, "
    "12345678901234567890123456789012345.123456789012345678901234567891, b'10000000001', '2026-11-21', "
    "'2026-11-21 23:59:59', '2026-11-21 23:59:59.987', '2026-11-21 03:04:05', '2038-01-19 03:14:07.499999', "
    "'-838:59:59', '-00:00:00.001', 2026, '保洁', '字', '家庭保洁服务', REPEAT('长', 300), "
    "'line\\nquote\" back\\\\slash ☃ 😀', REPEAT('x', 70000), '大', 'a,c', '{\"a\": [1, \"引号\"]}', '广州', 'café')",
    "(18446744073709551615, 1, 0, 32767, 8388607, 0, -3.4e38, 1, 0, -0.000000000000000000000000000001, 0, "
    "'1000-01-01', '9999-12-31 00:00:00', '1970-01-01 00:00:00.000', '1970-01-01 00:00:01', "
    "'1970-01-01 00:00:01.000001', '838:59:59', '12:34:56.789', 1901, '', '', '', '', '', '', '小', '', '[]', '', '')",
    "(3" + ", NULL" * 29 + ")",
)
TEXT = """SELECT id, t, tu, s, m, iu, f, d, n, n65, CAST(bits AS UNSIGNED) bits, da, dt, dt3, ts, ts6, ti, ti3, y,
    c, c4, v, vl, te, lt, e, st, j, gbk, lat FROM types"""


@pytest.fixture(scope="module", params=versions.MARIADB)
def mariadb(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    server = stack.sql(request.param)
    yield server
    server.kill()


@pytest.fixture
def run(mariadb: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Runs statements in the schema `maria`, new for each test; the rows of the last as text."""
    connection = pymysql.connect(
        **mariadb.connection("root"),
        autocommit=True,
        charset="utf8mb4",
        conv=dict(encoders),
        cursorclass=DictCursor,
        init_command="SET time_zone = '+00:00', sql_mode = ''",
    )
    with connection, connection.cursor() as cursor:

        def execute(*statements: str) -> list[dict[str, Any]]:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

        execute("CREATE DATABASE maria", "USE maria")
        yield execute
        execute("DROP DATABASE maria")


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def test_values_and_changes_equal_what_select_says(
    mariadb: Any, run: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mariadb, "maria", jsonl(out))).start()
    process.wait_state("shop", "STREAMING")
    run(TABLE, *(f"INSERT INTO types VALUES {row}" for row in ROWS), "INSERT INTO types (id, v) VALUES (4, 'gone')")
    run("UPDATE types SET v = CONCAT(v, '新') WHERE id = 1", "UPDATE types SET id = 5 WHERE id = 3")
    run("DELETE FROM types WHERE id = 4")
    eventually(lambda: len(read_jsonl(out)) >= 7, 20, lambda: process.log.read_text()[-3000:])
    messages = read_jsonl(out)
    assert [message["type"] for message in messages] == ["INSERT"] * 4 + ["UPDATE"] * 2 + ["DELETE"]
    assert messages[4]["old"] == [{"v": "家庭保洁服务"}]
    assert messages[0]["pkNames"] == ["id"]
    assert messages[0]["mysqlType"]["id"] == "bigint(20) unsigned"
    assert messages[0]["mysqlType"]["n"] == "decimal(10,2)"
    assert messages[0]["mysqlType"]["e"] == "enum('小','中','大')"
    assert messages[0]["gtid"].startswith("0-1-")
    image = replay(messages)
    expected = {row["id"]: row for row in run(TEXT)}
    assert image.keys() == expected.keys() == {"1", "5", "18446744073709551615"}
    for key, row in expected.items():
        for column, value in row.items():
            got = image[key][column]
            if column in ("f", "d") and value is not None:
                assert float(got) == pytest.approx(float(value), rel=1e-6), (key, column)
            else:
                assert got == value, (key, column)


def test_restarts_and_kills_in_mid_way_lose_nothing(
    mariadb: Any, run: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mariadb, "maria", jsonl(out))).start()
    process.wait_state("shop", "STREAMING")
    run("CREATE TABLE t (id INT PRIMARY KEY, body VARCHAR(200))")

    def seen(key: int) -> bool:
        return any(row["id"] == str(key) for message in read_jsonl(out) for row in message["data"])

    for turn in range(4):
        first = turn * 10000
        run(f"INSERT INTO t VALUES {','.join(f'({i}, REPEAT(0, 200))' for i in range(first, first + 8000))}")
        run(f"UPDATE t SET body = 'turn {turn}' WHERE id % 7 = {turn}")
        eventually(lambda first=first: seen(first), 20)
        if turn % 2:
            process.kill()
        else:
            assert process.terminate() == 0
        run(f"DELETE FROM t WHERE id % 11 = {turn}", "FLUSH BINARY LOGS")
        process.start()
    run(
        "ALTER TABLE t ADD COLUMN n INT NOT NULL DEFAULT -5",
        "UPDATE t SET n = id",
        "INSERT INTO t VALUES (-1, 'last', 0)",
    )
    eventually(lambda: seen(-1), 40, lambda: process.log.read_text()[-3000:])
    assert process.terminate() == 0
    table = {row["id"]: row for row in run("SELECT * FROM t")}
    messages = read_jsonl(out)
    assert replay(messages) == table
    assert replay_by_pos(messages) == table
    by_pos: dict[str, Any] = {}
    for message in messages:
        assert by_pos.setdefault(message["_pos"], message["data"]) == message["data"]


def test_a_table_whose_history_is_by_transaction_stops_with_what_helps(
    mariadb: Any, run: Callable[..., list[dict[str, Any]]], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    """MariaDB writes its changes as statements, whatever binlog_format is."""
    out = tmp_path / "out.jsonl"
    process = daemon(
        all=destination_toml(mariadb, "maria", 'type = "null"'),
        others=destination_toml(mariadb, "maria", jsonl(out)).replace("[route]", "exclude = 'maria\\.h'\n[route]"),
    ).start()
    process.wait_state("all", "STREAMING")
    process.wait_state("others", "STREAMING")
    run(
        "CREATE TABLE h (x INT, s BIGINT UNSIGNED AS ROW START, e BIGINT UNSIGNED AS ROW END,"
        " PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING ENGINE=InnoDB",
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "INSERT INTO h (x) VALUES (1)",
        "INSERT INTO t VALUES (1)",
    )
    assert "[filter] exclude" in process.wait_state("all", "FAILED")["last_error"]
    eventually(lambda: [message["table"] for message in read_jsonl(out)] == ["t"])
