"""Every kind of event that servers write, on real servers: compressed, partial, tagged, and what stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests.site import Site, equal, wait_for
from tests.support import DaemonProcess, eventually, read_jsonl, read_messages

pytestmark = pytest.mark.server


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


def test_a_source_without_checksums_is_a_trouble_until_it_has_them(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(site, more="[heartbeat]\nenabled = false")
    try:
        site.run("SET GLOBAL binlog_checksum = 'NONE'", "CREATE TABLE t (id INT PRIMARY KEY)")
        status = process.wait("shop", lambda status: "no_checksums" in status["troubles"])
        assert "SET GLOBAL binlog_checksum = 'CRC32'" in status["troubles"]["no_checksums"]
        equal(site, out)
    finally:
        site.run("SET GLOBAL binlog_checksum = 'CRC32'")
    process.wait("shop", lambda status: status["state"] == "STREAMING" and not status["troubles"])


JSON_CHANGES = (
    "JSON_SET(j, '$.n', 2)",
    "JSON_SET(j, '$.new', 1.50, '$.name', '家庭保洁')",
    "JSON_REMOVE(j, '$.tags[0]')",
    "JSON_REPLACE(j, '$.tags[1]', CAST('{\"deep\": [1, 2, {\"x\": null}]}' AS JSON))",
    "JSON_ARRAY_INSERT(j, '$.tags[0]', TRUE)",
    "JSON_SET(j, '$.big', 18446744073709551615, '$.when', CAST('2026-02-03 04:05:06.7' AS DATETIME(6)))",
    "JSON_SET(j, '$.\"odd \\\\\"key\\\\\"\"', 'v', '$.d', CAST(-12.3400 AS DECIMAL(10,4)))",
    "JSON_SET(j, '$.tags[last]', 'end')",
    "JSON_SET(j, '$.tags[last-1]', JSON_ARRAY(1, JSON_OBJECT('x', 2)))",
    "JSON_SET(j, '$.tags[last-1][last].x', 3, '$.tags[last-9]', 'first', '$.tags[99]', 'behind')",
    "JSON_REMOVE(j, '$.tags[last]')",
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


def test_a_row_that_was_inserted_without_any_column_is_a_message_of_none(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    start(mysql_site, source='row_image = "any"')
    mysql_site.run(
        "CREATE TABLE t (id INT DEFAULT 5, a VARCHAR(10))",
        "SET binlog_row_image = MINIMAL",
        "INSERT INTO t VALUES ()",
        "INSERT INTO t (id) VALUES (6)",
    )
    with pytest.raises(pymysql.err.OperationalError, match="row-based binary log failed"):
        mysql_site.run("INSERT INTO t VALUES (), ()")  # or nobody could tell how many rows there are
    eventually(lambda: [row for one in read_jsonl(out) for row in one["data"]] == [{}, {"id": "6"}])


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


def test_an_alter_in_two_phases_is_reported_once(mariadb: Any, start: Callable[..., DaemonProcess], out: Path) -> None:
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


@pytest.mark.long
def test_the_position_is_right_across_a_server_s_restart(
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
    server.kill()
