"""Every kind of event that servers write, on real servers: compressed, partial, XA, tagged, and what stops."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, read_messages, replay

pytestmark = pytest.mark.server

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def mariadb(stack: Stack) -> Any:
    return stack.mariadb()


class Site:
    """A server with a schema of the test's own, and sessions on it."""

    def __init__(self, server: Any, schema: str) -> None:
        self.server, self.schema = server, schema
        self.sessions: list[Any] = []
        self.run = self.session(None)
        self.run(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4", f"USE {schema}")

    @property
    def is_mariadb(self) -> bool:
        return "maria" in self.run("SELECT VERSION()")[0][0].lower()

    def session(self, database: str | None = "") -> Run:
        connection = pymysql.connect(
            **self.server.connection("root"),
            database=self.schema if database == "" else database,
            autocommit=True,
            charset="utf8mb4",
        )
        self.sessions.append(connection)

        def run(*statements: str) -> Any:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return cursor.fetchall()

        return run

    def close(self) -> None:
        """Decides XA transactions that a failed test left, whose locks would hold up the DROP."""
        for connection in self.sessions[1:]:
            connection.close()
        self.run("SET lock_wait_timeout = 10")
        for form, gtrid, bqual, data in self.run("XA RECOVER"):
            name = data if isinstance(data, str) else data.decode()
            if name.startswith(self.schema):
                self.run(f"XA ROLLBACK '{name[:gtrid]}','{name[gtrid : gtrid + bqual]}',{form}")
        self.run(f"DROP DATABASE {self.schema}")
        self.sessions[0].close()

    def table(self, name: str = "t") -> dict[str, dict[str, Any]]:
        """What the table holds, in the form that replay() gives: text by column, by id."""
        columns = [row[0] for row in self.run(f"SHOW COLUMNS FROM {name}")]
        listed = ",".join(f"CAST(`{column}` AS CHAR)" for column in columns)
        return {row[0]: dict(zip(columns, row, strict=True)) for row in self.run(f"SELECT {listed} FROM {name}")}


@pytest.fixture(params=["mysql", "mariadb"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(request.getfixturevalue(request.param), f"ev{abs(hash(tmp_path)) % 10**9}")
    yield made
    made.close()


@pytest.fixture
def mysql_site(mysql: Any, tmp_path: Path) -> Iterator[Site]:
    made = Site(mysql, f"ev{abs(hash(tmp_path)) % 10**9}")
    yield made
    made.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def start(daemon: Callable[..., DaemonProcess], out: Path) -> Callable[..., DaemonProcess]:
    """A daemon that streams the site into `out`."""

    def go(site: Site, filters: str = "", **more: Any) -> DaemonProcess:
        sink = f'type = "jsonl"\npath = "{out}"'
        text = destination_toml(site.server, site.schema, sink, **more)
        process = daemon(shop=text.replace("[route]", f"{filters}\n[route]")).start()
        process.wait_state("shop", "STREAMING")
        return process

    return go


def wait_for(out: Path, key: str, table: str = "t", limit: float = 30) -> None:
    """Until the row with this id was inserted in the output."""

    def seen() -> bool:
        return any(
            message["table"] == table and row.get("id") == key
            for message in read_jsonl(out)
            for row in message["data"]
            if message["type"] == "INSERT"
        )

    eventually(seen, limit, lambda: f"row {key} did not come; last messages: {read_messages(out)[-3:]}")


def equal(site: Site, out: Path) -> None:
    """Writes a last row and compares the table with what the messages make."""
    site.run("INSERT INTO t (id) VALUES (999999)")
    wait_for(out, "999999")
    assert replay([m for m in read_jsonl(out) if m["table"] == "t"]) == site.table()


def test_compressed_transactions_arrive_as_any_other(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    start(mysql_site)
    mysql_site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200), n INT)",
        "SET binlog_transaction_compression = ON",
        "INSERT INTO t VALUES (1, REPEAT('x', 100), 1), (2, REPEAT('y', 100), 2)",
        "SET cte_max_recursion_depth = 100000",
        "INSERT INTO t WITH RECURSIVE s(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM s WHERE i < 20000)"
        " SELECT i, REPEAT(SHA2(i, 256), 3), i FROM s",
        "UPDATE t SET n = n + 1 WHERE id % 3 = 0",
        "DELETE FROM t WHERE id % 7 = 0",
    )
    equal(mysql_site, out)


def test_a_restart_in_the_middle_of_a_compressed_transaction_goes_on_there(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(mysql_site, more='[queue]\nbytes = "64KiB"')
    mysql_site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))",
        "SET binlog_transaction_compression = ON, cte_max_recursion_depth = 1000000",
        "INSERT INTO t WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < 60000)"
        " SELECT i, REPEAT(SHA2(i, 256), 3) FROM s",
    )
    for turn in range(3):
        eventually(lambda turn=turn: len(read_jsonl(out)) > 20 * (turn + 1))  # type: ignore[misc]
        process.kill()
        process.start()
    equal(mysql_site, out)


JSON_CHANGES = (
    "JSON_SET(j, '$.n', 2)",
    "JSON_SET(j, '$.new', 1.50, '$.name', '家庭保洁')",
    "JSON_REMOVE(j, '$.tags[0]')",
    "JSON_REPLACE(j, '$.tags[1]', CAST('{\"deep\": [1, 2, {\"x\": null}]}' AS JSON))",
    "JSON_ARRAY_INSERT(j, '$.tags[0]', TRUE)",
    "JSON_SET(j, '$.big', 18446744073709551615, '$.when', CAST('2026-02-03 04:05:06.7' AS DATETIME(6)))",
    "JSON_SET(j, '$.\"odd \\\\\"key\\\\\"\"', 'v', '$.d', CAST(-12.3400 AS DECIMAL(10,4)))",
    "JSON_REMOVE(j, '$.n', '$.name')",
)


@pytest.mark.parametrize("image", ["FULL", "NOBLOB"])
def test_json_diffs_are_applied_to_the_document_before(
    image: str, mysql_site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    start(mysql_site)
    mysql_site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, j JSON, k JSON, n INT, j2 JSON)",
        """INSERT INTO t VALUES (1, '{"n": 1, "name": "x", "tags": ["a", "b", "c"]}', '{"k": 1}', 0, NULL)""",
        "INSERT INTO t SELECT 2, j, k, n, j FROM t",
        "SET binlog_row_value_options = PARTIAL_JSON",
    )
    for change in JSON_CHANGES:
        mysql_site.run(f"UPDATE t SET j = {change}, n = n + 1")
    mysql_site.run("UPDATE t SET j = JSON_SET(j, '$.both', 1), k = JSON_SET(k, '$.k', 3) WHERE id = 2")
    mysql_site.run("UPDATE t SET j = NULL WHERE id = 1", "UPDATE t SET k = '[]' WHERE id = 2")
    if image == "NOBLOB":  # a diff without the document before it can't be applied
        mysql_site.run("SET binlog_row_value_options = ''")
    equal(mysql_site, out)


def test_a_json_diff_without_its_document_stops(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(mysql_site, source='row_image = "any"')
    mysql_site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, j JSON)",
        """INSERT INTO t VALUES (1, '{"n": 1, "long": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}')""",
        "SET binlog_row_image = MINIMAL, binlog_row_value_options = PARTIAL_JSON",
        "UPDATE t SET j = JSON_SET(j, '$.n', 2)",
    )
    status = process.wait_state("shop", "FAILED")
    assert "without the document before it" in status["last_error"]
    assert "binlog_row_value_options" in status["last_error"]


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_columns_that_an_image_lacks_are_absent_and_keys_are_there(
    image: str, site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    start(site, source='row_image = "any"')
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(10), b INT, c TEXT)",
        "INSERT INTO t VALUES (1, 'a', NULL, 'text')",
        f"SET binlog_row_image = {image}",
        "UPDATE t SET b = 5 WHERE id = 1",
        "UPDATE t SET a = NULL, id = 2 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    )
    eventually(lambda: len(read_jsonl(out)) == 4)
    _, update, moved, delete = read_jsonl(out)
    assert update["data"][0]["id"] == "1"
    assert update["data"][0]["b"] == "5"
    assert moved["data"][0] | {"b": "5"} == {"id": "2", "a": None, "b": "5"}, "NULL is there, what is absent is not"
    assert moved["old"][0]["id"] == "1"
    assert delete["data"][0]["id"] == "2"
    assert "c" not in update["data"][0]
    assert ("a" in update["data"][0]) is (image == "NOBLOB")
    assert set(update["mysqlType"]) == {"id", "a", "b", "c"}


def xa(run: Run, name: str, *statements: str) -> None:
    run(f"XA START '{name}'", *statements, f"XA END '{name}'")


def test_rows_of_an_xa_transaction_come_at_its_commit_and_never_after_a_rollback(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    start(site)
    first, second, third = site.session(), site.session(), site.session()
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'plain')")
    xa(first, f"{site.schema}a", "INSERT INTO t VALUES (10, 'kept'), (11, 'kept')", "UPDATE t SET v='x' WHERE id=10")
    xa(second, f"{site.schema}b", "INSERT INTO t VALUES (20, 'rolled back')")
    xa(third, f"{site.schema}c", "INSERT INTO t VALUES (30, 'one phase')")
    first(f"XA PREPARE '{site.schema}a'")
    second(f"XA PREPARE '{site.schema}b'")
    third(f"XA COMMIT '{site.schema}c' ONE PHASE")
    site.run("INSERT INTO t VALUES (2, 'between')")
    wait_for(out, "2")
    ids = [row["id"] for m in read_jsonl(out) for row in m["data"]]
    assert ids == ["1", "30", "2"], "nothing of what is only prepared"
    second(f"XA ROLLBACK '{site.schema}b'")
    first(f"XA COMMIT '{site.schema}a'")
    equal(site, out)
    ids = [row["id"] for m in read_jsonl(out) for row in m["data"]]
    assert ids == ["1", "30", "2", "10", "11", "10", "999999"]
    poses = [int(m["_pos"]) for m in read_jsonl(out)]
    assert poses == sorted(poses)


def test_prepared_rows_survive_a_kill_and_come_at_their_commit(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(site)
    held = site.session()
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    xa(held, f"{site.schema}k", "INSERT INTO t VALUES (10, 'kept')", "INSERT INTO t VALUES (11, 'kept')")
    held(f"XA PREPARE '{site.schema}k'")
    site.run("INSERT INTO t VALUES (2, 'behind')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 'next file')")
    wait_for(out, "3")
    process.wait("shop", lambda s: bool(s["position"] and s["position"]["open_xa"]))
    for _ in range(2):
        process.kill()
        process.start()
        process.wait_state("shop", "STREAMING")
    held(f"XA COMMIT '{site.schema}k'")
    equal(site, out)
    ids = [row["id"] for m in read_jsonl(out) for row in m["data"]]
    assert [i for i in ids if i in ("10", "11")] == ["10", "11"]


def test_an_xa_transaction_prepared_before_the_first_start_stops_and_can_be_skipped(
    site: Site, daemon: Callable[..., DaemonProcess], start: Callable[..., DaemonProcess], out: Path
) -> None:
    held = site.session()
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    xa(held, f"{site.schema}e", "INSERT INTO t VALUES (10, 'early')")
    held(f"XA PREPARE '{site.schema}e'")
    process = start(site)
    held(f"XA COMMIT '{site.schema}e'")
    site.run("INSERT INTO t VALUES (2, 'behind')")
    status = process.wait_state("shop", "FAILED")
    assert "prepared before headrace began to read" in status["last_error"]
    assert not read_jsonl(out)
    named = status["last_error"].split("skip_event = ['")[1].split("']")[0]
    process.terminate()
    file = process.folder / "destinations" / "shop.toml"
    file.write_text(file.read_text().replace("[filter]", f'skip_event = ["{named}"]\n[filter]'))
    process.start()
    wait_for(out, "2")
    assert process.wait_state("shop", "STREAMING")["skipped_events"] == 1


def test_tagged_gtids_are_carried_and_resumed(mysql_site: Site, start: Callable[..., DaemonProcess], out: Path) -> None:
    process = start(mysql_site)
    mysql_site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "SET gtid_next = 'AUTOMATIC:shop_tag'",
        "INSERT INTO t VALUES (1, 'tagged')",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO t VALUES (2, 'plain')",
    )
    wait_for(out, "2")
    assert [":shop_tag:" in m["gtid"] for m in read_jsonl(out)] == [True, False]
    process.wait("shop", lambda s: ":shop_tag:" in (s["position"] or {"gtid_set": ""})["gtid_set"])
    process.terminate()
    mysql_site.run("INSERT INTO t VALUES (3, 'while away')")
    process.start()
    wait_for(out, "3")
    equal(mysql_site, out)
    assert [row["id"] for m in read_jsonl(out) for row in m["data"]].count("1") == 1


def test_mariadb_s_compressed_events_are_read(
    mariadb: Any, tmp_path: Path, start: Callable[..., DaemonProcess], out: Path
) -> None:
    site = Site(mariadb, "mc")
    start(site)
    site.run("SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10")
    try:
        run = site.session()
        run(
            f"CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(50), n INT) COMMENT '{'long ' * 30}'",
            "INSERT INTO t VALUES (1, REPEAT('x', 40), 5), (2, REPEAT('y', 40), 6), (3, NULL, 7)",
            "UPDATE t SET n = n + 1",
            "DELETE FROM t WHERE id = 3",
        )
        equal(site, out)
        assert [m["type"] for m in read_messages(out)][:2] == ["CREATE", "INSERT"]
    finally:
        site.run("SET GLOBAL log_bin_compress = OFF")
        site.close()


def test_an_alter_in_two_phases_is_told_once(mariadb: Any, start: Callable[..., DaemonProcess], out: Path) -> None:
    site = Site(mariadb, "twophase")
    start(site)
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(50))",
        "SET binlog_alter_two_phase = 1",
        "ALTER TABLE t ADD COLUMN w INT",
        "INSERT INTO t VALUES (1, 'x', 2)",
    )
    with pytest.raises(pymysql.err.Error):  # the second phase is a rollback
        site.run("ALTER TABLE t ADD UNIQUE (w), ADD COLUMN q INT NOT NULL, ADD CONSTRAINT c CHECK (w > 5)")
    equal(site, out)
    assert [m["type"] for m in read_messages(out)] == ["CREATE", "ALTER", "INSERT", "INSERT"]
    site.close()


def test_the_texts_of_statements_are_published_when_they_are_asked_for(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    start(site, more="[message]\nformat = 'canal'", filters="dml_queries = true\nddl = false")
    variable = "binlog_annotate_row_events" if site.is_mariadb else "binlog_rows_query_log_events"
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(300))",
        f"SET {variable} = ON",
        "INSERT INTO t VALUES (1, '家庭保洁')",
        f"INSERT INTO t VALUES (2, '{'x' * 300}')",
        f"SET {variable} = OFF",
    )
    wait_for(out, "2")
    texts = [m["sql"] for m in read_messages(out) if m["type"] == "QUERY"]
    assert texts == ["INSERT INTO t VALUES (1, '家庭保洁')", f"INSERT INTO t VALUES (2, '{'x' * 300}')"]
    assert [m["type"] for m in read_messages(out)] == ["QUERY", "INSERT", "QUERY", "INSERT"]


def test_statement_dml_stops_for_captured_tables_only(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(site)
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        f"CREATE DATABASE {site.schema}_other",
        f"CREATE TABLE {site.schema}_other.o (id INT PRIMARY KEY)",
        "SET binlog_format = 'STATEMENT'",
        f"INSERT INTO {site.schema}_other.o VALUES (1)",
        "SET binlog_format = 'ROW'",
        f"DROP DATABASE {site.schema}_other",
        "INSERT INTO t VALUES (1, 'after')",
    )
    wait_for(out, "1")
    site.run("SET binlog_format = 'STATEMENT'", "UPDATE t SET v = 'x'")
    status = process.wait_state("shop", "FAILED")
    assert "binlog_format" in status["last_error"]


def test_the_place_is_right_across_a_server_s_restart(
    stack: Stack, start: Callable[..., DaemonProcess], out: Path
) -> None:
    server = stack.mysql(name="restarted", server_id=31)
    site = Site(server, "restarted")
    start(site)
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'before')")
    server.restart()
    again = Site.__new__(Site)
    again.server, again.schema, again.sessions = server, "restarted", []
    again.run = again.session()
    again.run("INSERT INTO t VALUES (2, 'after')")
    wait_for(out, "2", limit=90)
    equal(again, out)
    assert json.dumps(again.table())
    server.stop()
