"""The source against a real MySQL: values equal to SELECT's, every kind of connection, resume, and loud stops."""

# ruff: noqa: E501
from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.converters import encoders
from pymysql.cursors import DictCursor

from devstack import Stack
from headrace.errors import SourceMisconfigured
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.settings.destination import SourceSettings
from tests.proxy import Proxy
from tests.site import Site, wait_for
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, replay

pytestmark = pytest.mark.server

TYPES = """CREATE TABLE types (
    id BIGINT UNSIGNED PRIMARY KEY, t TINYINT, tu TINYINT UNSIGNED, s SMALLINT, su SMALLINT UNSIGNED, m MEDIUMINT,
    mu MEDIUMINT UNSIGNED, i INT, iu INT UNSIGNED, b BIGINT, f FLOAT, d DOUBLE, n DECIMAL(10,2), n65 DECIMAL(65,30),
    n0 DECIMAL(18,0), bits BIT(11), da DATE, dt DATETIME, dt3 DATETIME(3), dt6 DATETIME(6), ts TIMESTAMP NULL,
    ts6 TIMESTAMP(6) NULL, ti TIME, ti3 TIME(3), y YEAR, c CHAR(10), c4 CHAR(200), v VARCHAR(20), vl VARCHAR(300),
    tt TINYTEXT, te TEXT, lt LONGTEXT, e ENUM('小','中','it''s'), st SET('a','b','c'), j JSON, gbk VARCHAR(20) CHARACTER SET gbk,
    lat VARCHAR(20) CHARACTER SET latin1, bin BINARY(4), vb VARBINARY(9), bl BLOB)"""

ROWS = (
    "(1, -128, 255, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295, -9223372036854775808, 1.1, -2.5e-30, "
    "-12345678.90, 12345678901234567890123456789012345.123456789012345678901234567891, -999999999999999999, b'10000000001', "
    "'2026-11-21', '2026-11-21 23:59:59', '2026-11-21 23:59:59.987', '0001-01-01 00:00:00.000001', '2026-11-21 03:04:05', "
    "'2038-01-19 03:14:07.499999', '-838:59:59', '-00:00:00.001', 2026, '保洁', '字', '家庭保洁服务', REPEAT('长', 300), '', "
    "'line\\nquote\" back\\\\slash \\0 ☃ 😀', REPEAT('x', 70000), 'it''s', 'a,c', "
    "'{\"a\": [1, -2, 3.5, true, null, \"引\\\\\"号\"], \"b\": {\"c\": 1e100}, \"n\": 18446744073709551615}', '广州', 'café €', x'01020000', x'00ff00', x'00010203')",
    "(18446744073709551615, 127, 0, 32767, 0, 8388607, 0, 2147483647, 0, 9223372036854775807, -3.4e38, 1, 0, "
    "-0.000000000000000000000000000001, 0, b'0', '1000-01-01', '9999-12-31 00:00:00', '1970-01-01 00:00:00.000', "
    "'2026-01-01 00:00:00.5', '1970-01-01 00:00:01', '1970-01-01 00:00:01.000001', '838:59:59', '12:34:56.789', 1901, "
    "'', '', '', '', 'x', '', '', '小', '', '[]', '', '', '', '', '')",
    "(3" + ", NULL" * 39 + ")",
)

TEXT = """SELECT id, t, tu, s, su, m, mu, i, iu, b, f, d, n, n65, n0, CAST(bits AS UNSIGNED) bits, da, dt, dt3, dt6, ts, ts6,
    ti, ti3, y, c, c4, v, vl, tt, te, lt, e, st, CAST(j AS CHAR) j, gbk, lat, bin, vb, bl FROM types"""


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def test_values_of_all_types_equal_what_select_says(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mysql, schema, jsonl(out))).start()
    process.wait_state("shop", "STREAMING")
    execute("SET time_zone = '+00:00', sql_mode = ''", TYPES, *(f"INSERT INTO types VALUES {row}" for row in ROWS))
    execute("UPDATE types SET v = CONCAT(v, '新') WHERE id = 1", "UPDATE types SET i = 5 WHERE id = 3")
    # Everything as text, as the client sees it: no conversion of the driver's comes between.
    login = mysql.connection("root")
    with (
        pymysql.connect(**login, database=schema, charset="utf8mb4", conv=dict(encoders)) as connection,
        connection.cursor(DictCursor) as cursor,
    ):
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(TEXT)
        expected = {row["id"]: row for row in cursor.fetchall()}
    eventually(lambda: len(read_jsonl(out)) >= 5, 20, lambda: process.log.read_text()[-3000:])
    image = replay(read_jsonl(out))
    assert image.keys() == expected.keys()
    for key, row in expected.items():
        for column, value in row.items():
            got = image[key][column]
            if column in ("f", "d") and value is not None:
                assert float(got) == pytest.approx(float(value), rel=1e-6), (key, column)
            elif isinstance(value, bytes):
                assert b64decode(got) == value, (key, column)
            else:
                assert got == value, (key, column)


def test_an_update_carries_only_the_changed_columns_as_old(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mysql, schema, jsonl(out))).start()
    process.wait_state("shop", "STREAMING")
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9), b INT)", "INSERT INTO t VALUES (1, 'x', NULL), (2, 'y', 7)"
    )
    execute("UPDATE t SET b = 8", "DELETE FROM t WHERE id = 2")
    eventually(lambda: len(read_jsonl(out)) == 3)
    insert, update, delete = read_jsonl(out)
    assert (insert["type"], update["type"], delete["type"]) == ("INSERT", "UPDATE", "DELETE")
    assert insert["data"] == [{"id": "1", "a": "x", "b": None}, {"id": "2", "a": "y", "b": "7"}]
    assert insert["old"] is None
    assert update["old"] == [{"b": None}, {"b": "7"}]
    assert delete["data"] == [{"id": "2", "a": "y", "b": "8"}]
    assert insert["database"] == schema
    assert insert["table"] == "t"
    assert insert["pkNames"] == ["id"]
    assert insert["mysqlType"] == {"id": "int", "a": "varchar(9)", "b": "int"}
    assert insert["sqlType"] == {"id": 4, "a": 12, "b": 4}
    assert insert["isDdl"] is False
    assert int(insert["_pos"]) + 1 < int(update["_pos"]) < int(delete["_pos"]) < 2**63
    assert insert["gtid"].count(":") == 1


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("tls", ["disabled", "required"])
def test_the_stream_works_with_and_without_tls_and_uvloop(
    tls: str,
    loop: str,
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out.jsonl"
    text = destination_toml(mysql, schema, jsonl(out), source=f'tls = "{tls}"')
    process = daemon(shop=text, settings=f'event_loop = "{loop}"').start()
    process.wait_state("shop", "STREAMING")
    execute("CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT)")
    # one event of 18 MB: two packets, and more than the buffers hold
    execute("SET GLOBAL max_allowed_packet = 1073741824")
    execute("INSERT INTO t VALUES (1, 'x')")
    execute("INSERT INTO t SELECT 2, REPEAT('长', 6000000)", "INSERT INTO t VALUES (3, 'z')")
    eventually(lambda: [m["data"][0]["id"] for m in read_jsonl(out)] == ["1", "2", "3"], 30)
    assert read_jsonl(out)[1]["data"][0]["body"] == "长" * 6_000_000


async def test_an_account_that_requires_a_certificate_gets_ours(mysql: Any, schema: str, execute: Any) -> None:
    execute(f"CREATE USER '{schema}'@'%' IDENTIFIED BY 'secret' REQUIRE X509")
    try:
        # The server makes these at its first start.
        files = {"tls_certificate": mysql.datadir / "client-cert.pem", "tls_key": mysql.datadir / "client-key.pem"}
        section = {"host": mysql.host, "port": mysql.port, "user": schema, "password": "secret", "tls": "required"}
        connection = await SourceConnection.open(address_of(SourceSettings.model_validate(section | files)))
        await connection.close()
        with pytest.raises(SourceMisconfigured, match="refuses user"):
            await SourceConnection.open(address_of(SourceSettings.model_validate(section)))
    finally:
        execute(f"DROP USER '{schema}'@'%'")


async def test_a_password_of_any_characters_lets_us_in(mysql: Any, schema: str, execute: Any) -> None:
    execute(f"CREATE USER '{schema}'@'%' IDENTIFIED BY '密码 geheim'")
    try:
        section = {"host": mysql.host, "port": mysql.port, "user": schema, "password": "密码 geheim"}
        for tls in ("required", "disabled"):
            settings = SourceSettings.model_validate(section | {"tls": tls})
            await (await SourceConnection.open(address_of(settings))).close()
    finally:
        execute(f"DROP USER '{schema}'@'%'")


@pytest.mark.parametrize("gtid", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_restart_in_the_middle_of_a_transaction_continues_after_what_was_confirmed(
    gtid: bool, stack: Stack, mysql: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    off = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
    server = mysql if gtid else stack.mysql(None, *off, name="nogtid", server_id=9)
    schema = f"restart{int(gtid)}"
    out = tmp_path / "out.jsonl"
    with pymysql.connect(**server.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {schema}")
        cursor.execute(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, body VARCHAR(200))")
        with Proxy(server.host, server.port) as proxy:
            process = daemon(shop=destination_toml(proxy, schema, jsonl(out))).start()
            process.wait_state("shop", "STREAMING")
            proxy.limit(2 << 20)  # so that positions are stored in the middle of it
            values = ",".join(f"({i}, REPEAT('b', 200))" for i in range(20000))
            cursor.execute(f"INSERT INTO {schema}.t VALUES {values}")
            process.wait("shop", lambda s: s["position"]["events_done"] > 100)
            process.kill()
            proxy.thaw()
            shown = json.loads(process.command("position", "show", "shop", "--json")[1])
            done = shown["shop"]["stored"]["events_done"]
            process.start()
            cursor.execute(f"INSERT INTO {schema}.t VALUES (100000, 'last')")
            ids = lambda: [int(row["id"]) for message in read_jsonl(out) for row in message["data"]]  # noqa: E731
            eventually(lambda: 100000 in ids(), 30, lambda: process.log.read_text()[-3000:])
            assert process.terminate() == 0
    assert sorted(set(ids())) == [*range(20000), 100000]
    by_pos, times = dict[str, Any](), Counter[str]()
    for message in read_jsonl(out):
        assert by_pos.setdefault(message["_pos"], message["data"]) == message["data"]
        times[message["_pos"]] += 1
    assert done > 50
    assert {times[pos] for pos in list(by_pos)[:done]} == {1}, "what was stored as confirmed is not sent again"
    if not gtid:
        server.kill()


def test_rows_before_the_start_are_not_published_and_those_after_it_are(
    stack: Stack, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    # On the shared server `earliest` would read what all tests before this one wrote.
    site = Site(stack.mysql(name="starts"), "shop")
    execute = site.run
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    status = execute("SHOW BINARY LOG STATUS")[0]
    when = execute("SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ')")[0][0]
    execute("INSERT INTO t VALUES (2)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3)")
    starts = {
        "earliest": ["1", "2", "3"],
        f"{status[0]}:{status[1]}": ["2", "3"],
        status[4].replace("\n", ""): ["2", "3"],
        when: ["2", "3"],
    }
    texts, outs = {}, {}
    for number, start in enumerate(starts):
        outs[start] = tmp_path / f"{number}.jsonl"
        texts[f"d{number}"] = destination_toml(site.server, site.schema, jsonl(outs[start]), start=start)
    daemon(**texts).start()
    for start, expected in starts.items():
        got = lambda start=start: [m["data"][0]["id"] for m in read_jsonl(outs[start])]  # noqa: E731
        eventually(lambda: len(got()) >= len(expected), 20, lambda: f"{start}: {got()}")  # noqa: B023
        assert got() == expected, start
    site.close()


def test_headrace_s_own_schema_is_never_published(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(
        shop=destination_toml(mysql, "(headrace|" + schema + ")", jsonl(out)).replace(
            'topic = "(headrace|' + schema + ')"', ""
        )
    ).start()
    process.wait_state("shop", "STREAMING")
    execute("CREATE DATABASE IF NOT EXISTS headrace", "CREATE TABLE headrace.own (id INT PRIMARY KEY)")
    execute("INSERT INTO headrace.own VALUES (1)", "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (2)")
    execute("DROP TABLE headrace.own")
    eventually(lambda: len(read_jsonl(out)) > 0)
    assert [m["database"] for m in read_jsonl(out)] == [schema]


LOUD = {
    "minimal image": (
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
            "SET binlog_row_image = 'MINIMAL'",
            "INSERT INTO t VALUES (1, 2)",
            "UPDATE t SET a = 3",
        ),
        "binlog_row_image",
    ),
    "statement": (
        ("CREATE TABLE t (id INT PRIMARY KEY)", "SET binlog_format = 'STATEMENT'", "INSERT INTO t VALUES (1)"),
        "binlog_format",
    ),
}


def test_rows_before_an_event_that_is_not_understood_are_published_though_both_arrive_together(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mysql, schema, jsonl(out))).start()
    process.wait_state("shop", "STREAMING")
    execute("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "CREATE TABLE u (id INT PRIMARY KEY, a INT)")
    assert process.terminate() == 0
    execute("INSERT INTO t VALUES (1, 2)", "INSERT INTO u VALUES (1, 2)")
    execute(
        "BEGIN", "INSERT INTO t VALUES (2, 2)", "SET binlog_row_image = 'MINIMAL'",
        "UPDATE t JOIN u USING (id) SET t.a = 3, u.a = 3", "COMMIT",
    )  # fmt: skip
    for _ in range(2):
        process.start()
        failed = process.wait("shop", lambda s: s["state"] == "FAILED" and s["last_error"] != "")
        assert "binlog_row_image" in failed["last_error"]
        assert [message["data"] for message in read_jsonl(out)] == [
            [{"id": "1", "a": "2"}], [{"id": "1", "a": "2"}], [{"id": "2", "a": "2"}]
        ]  # fmt: skip
        assert process.terminate() == 0


@pytest.mark.parametrize("case", LOUD)
def test_what_is_not_understood_stops_loudly_and_the_position_stays(
    case: str,
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
) -> None:
    statements, word = LOUD[case]
    out, other = tmp_path / "out.jsonl", tmp_path / "other.jsonl"
    beside = destination_toml(mysql, schema, jsonl(other)).replace(f"{schema}\\\\..*", f"{schema}\\\\.beside")
    process = daemon(shop=destination_toml(mysql, schema, jsonl(out)), beside=beside).start()
    for name in ("shop", "beside"):
        process.wait_state(name, "STREAMING")
    execute("CREATE TABLE beside (id INT PRIMARY KEY)", *statements)
    status = process.wait_state("shop", "FAILED")
    assert word in status["last_error"]
    assert "Traceback" not in status["last_error"]
    assert process.health()[0] == 503

    def stopped_at() -> tuple[str, Any]:
        place = process.wait("shop", lambda s: s["state"] == "FAILED" and s["last_error"] != "")["last_error"]
        shown = json.loads(process.command("position", "show", "shop", "--json")[1])
        return place, shown["shop"]["stored"]

    first, published = stopped_at(), read_jsonl(out)
    execute("SET binlog_row_image = 'FULL', binlog_format = 'ROW'", "INSERT INTO beside VALUES (7)")
    wait_for(other, "7", "beside")
    assert process.terminate() == 0
    process.start()
    assert stopped_at() == first, "the position stays, also over a restart"
    assert read_jsonl(out) == published, "nothing behind the stop was published"
    assert [message["type"] for message in published] == ["INSERT"] * (case == "minimal image")


def test_a_wrong_password_is_named_with_its_remedy(
    mysql: Any, schema: str, daemon: Callable[..., DaemonProcess]
) -> None:
    text = destination_toml(mysql, schema, 'type = "null"').replace("${TEST_PASSWORD}", "wrong")
    process = daemon(shop=text).start()
    status = process.wait("shop", lambda s: bool(s["last_error"]))
    assert "refuses user 'canal'" in status["last_error"]
    assert "ALTER USER" in status["last_error"]
    assert process.health()[0] == 503
    assert process.terminate() == 0


def test_settings_that_lose_columns_are_refused_with_the_sql(
    stack: Stack, daemon: Callable[..., DaemonProcess]
) -> None:
    server = stack.mysql(None, "--binlog-format=MIXED", "--binlog-row-image=NOBLOB", name="minimal", server_id=8)
    process = daemon(shop=destination_toml(server, "shop", 'type = "null"')).start()
    status = process.wait("shop", lambda s: bool(s["last_error"]))
    assert "SET PERSIST binlog_format = 'ROW'" in status["last_error"]
    assert "SET PERSIST binlog_row_image = 'FULL'" in status["last_error"]
    server.sql("SET PERSIST binlog_format = 'ROW'; SET PERSIST binlog_row_image = 'FULL'")
    process.wait_state("shop", "STREAMING", 70)
    server.kill()
