"""Both formats from a real MySQL through the daemon: statements in order with rows, keys, tombstones, transactions."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.once import make_topic
from tests.support import DaemonProcess, destination_toml, eventually, read_messages, read_topic

pytestmark = pytest.mark.server

Execute = Callable[..., Any]
Daemon = Callable[..., DaemonProcess]


def toml(server: Any, schema: str, sink: str, *, message: str = "", filters: str = "", source: str = "") -> str:
    text = destination_toml(server, schema, sink, source=source, more=f"[message]\n{message}")
    return text.replace("[route]", f"{filters}\n[route]")


def start(daemon: Daemon, text: str) -> DaemonProcess:
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    return process


def lines(process: DaemonProcess, path: Path, count: int) -> list[dict[str, Any]]:
    """The first messages in a file, once there are so many."""
    eventually(
        lambda: len(read_messages(path)) >= count, 30, lambda: f"{read_messages(path)}\n{process.log.read_text()}"
    )
    found = read_messages(path)
    assert len(found) == count, found
    return found


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def kafka_sink(kafka: Any) -> str:
    return f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'


def records(kafka: Any, topic: str, count: int) -> list[Any]:
    found: list[Any] = []

    def enough() -> bool:
        found[:] = asyncio.run(read_topic(kafka.bootstrap_servers, topic))
        return len(found) >= count

    eventually(enough, 40, lambda: f"{topic}: {[(r.key, r.value) for r in found]}")
    assert len(found) == count, [(r.key, r.value) for r in found]
    return found


def body(record: Any) -> Any:
    return None if record.value is None else json.loads(record.value)


def test_schema_changes_are_in_order_with_the_rows(
    mysql: Any, schema: str, execute: Execute, daemon: Daemon, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = start(daemon, toml(mysql, schema, jsonl(out)))
    statements = (
        "CREATE TABLE t (id INT PRIMARY KEY, `a b` VARCHAR(9))",
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t ADD COLUMN c INT FIRST",
        "INSERT INTO t VALUES (5, 2, 'y')",
        "CREATE INDEX i ON t (c)",
        "DROP INDEX i ON t",
        "TRUNCATE TABLE t",
        "RENAME TABLE t TO u",
        "INSERT INTO u VALUES (6, 3, 'z')",
        "DROP TABLE `u`",
    )
    execute(*statements)
    found = lines(process, out, len(statements))
    assert [m["type"] for m in found] == [
        "CREATE",
        "INSERT",
        "ALTER",
        "INSERT",
        "CINDEX",
        "DINDEX",
        "TRUNCATE",
        "RENAME",
        "INSERT",
        "ERASE",
    ]
    assert [m["isDdl"] for m in found] == [m["type"] != "INSERT" for m in found]
    assert [list(m["data"][0].values()) for m in found if m["data"]] == [["1", "x"], ["5", "2", "y"], ["6", "3", "z"]]
    ddl = [m for m in found if m["isDdl"]]
    assert {m["database"] for m in ddl} == {schema}
    for message, statement in zip(ddl, [s for s in statements if not s.startswith("INSERT")], strict=True):
        assert statement in message["sql"]
        assert message["gtid"]
        assert message["es"] > 1_700_000_000_000
        assert (message["data"], message["old"], message["mysqlType"], message["pkNames"]) == (None, None, None, None)
    numbers = [int(m["_pos"]) for m in found]
    assert numbers == sorted(set(numbers))


def test_canals_own_way(mysql: Any, schema: str, execute: Execute, daemon: Daemon, tmp_path: Path) -> None:
    plain, compat = tmp_path / "plain.jsonl", tmp_path / "compat.jsonl"
    process = daemon(
        plain=toml(mysql, schema, jsonl(plain), message='time_zone = "Asia/Shanghai"'),
        compat=toml(mysql, schema, jsonl(compat), message='compat = "canal"'),
    ).start()
    for name in ("plain", "compat"):
        process.wait_state(name, "STREAMING")
    execute(
        "SET time_zone = '+00:00'",
        "CREATE TABLE t (id INT PRIMARY KEY, e ENUM('a','b'), s SET('x','y','z'), b BLOB, at TIMESTAMP NULL, g POINT)",
        "INSERT INTO t VALUES (1, 'b', 'x,z', x'00ff', '2026-11-21 20:30:00', POINT(1, 2))",
    )
    wkb = bytes(4) + bytes.fromhex("0101000000000000000000f03f0000000000000040")
    ours, canals = lines(process, plain, 2)[1], lines(process, compat, 2)[1]
    assert ours["data"] == [
        {"id": "1", "e": "b", "s": "x,z", "b": "AP8=", "at": "2026-11-22 04:30:00", "g": b64encode(wkb).decode()}
    ]
    assert canals["data"] == [
        {"id": "1", "e": "2", "s": "5", "b": "\x00\xff", "at": "2026-11-21 20:30:00", "g": wkb.decode("latin-1")}
    ]
    assert "_pos" not in canals
    assert canals["es"] % 1000 == 0
    assert (canals["sqlType"]["e"], canals["sqlType"]["s"]) == (4, -7)


def test_filters_choose_kinds(mysql: Any, schema: str, execute: Execute, daemon: Daemon, tmp_path: Path) -> None:
    all_of, rows_only, ddl_only = (tmp_path / f"{name}.jsonl" for name in ("all", "rows", "ddl"))
    process = daemon(
        everything=toml(mysql, schema, jsonl(all_of), filters="dml_queries = true\ntransactions = true\ndcl = true"),
        rows=toml(mysql, schema, jsonl(rows_only), filters="ddl = false"),
        ddl=toml(mysql, schema, jsonl(ddl_only), filters="rows = false"),
    ).start()
    for name in ("everything", "rows", "ddl"):
        process.wait_state(name, "STREAMING")
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "SET SESSION binlog_rows_query_log_events = ON",
        "INSERT INTO t VALUES (1) /* by hand */",
        "CREATE USER someone@localhost",
        "GRANT SELECT ON *.* TO someone@localhost",
        "DROP USER someone@localhost",
    )
    assert [m["type"] for m in lines(process, rows_only, 1)] == ["INSERT"]
    assert [m["type"] for m in lines(process, ddl_only, 1)] == ["CREATE"]
    found = lines(process, all_of, 7)
    assert [m["type"] for m in found] == [
        "CREATE",
        "TRANSACTIONBEGIN",
        "QUERY",
        "INSERT",
        "TRANSACTIONEND",
        "QUERY",
        "QUERY",
    ]
    assert found[2]["sql"] == "INSERT INTO t VALUES (1) /* by hand */"
    assert "GRANT SELECT" in found[5]["sql"], "CREATE USER is told to nobody"
    assert not any(m["isDdl"] for m in found[1:])
    assert len({m["gtid"] for m in found[1:5]}) == 1
    numbers = [int(m["_pos"]) for m in found]
    assert numbers == sorted(set(numbers))


def test_what_a_change_does_decides_whether_it_is_published(
    mysql: Any, schema: str, execute: Execute, daemon: Daemon, tmp_path: Path
) -> None:
    kept, changed = tmp_path / "kept.jsonl", tmp_path / "changed.jsonl"
    process = daemon(
        kept=toml(mysql, schema, jsonl(kept), message='compat = "canal"', filters='operations = ["insert", "update"]'),
        changed=toml(
            mysql, schema, jsonl(changed), filters=f"unchanged_updates = 'skip'\nexclude_columns = '{schema}\\.t:seen'"
        ),
    ).start()
    for name in ("kept", "changed"):
        process.wait_state(name, "STREAMING")
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(9), seen INT)",
        "CREATE VIEW v AS SELECT id FROM t",
        "INSERT INTO t VALUES (1, 'a', 0), (2, 'b', 0)",
        "UPDATE t SET seen = 1",
        "UPDATE t SET seen = 2, name = IF(id = 2, 'B', name)",
        "DELETE FROM t WHERE id = 1",
        "DROP VIEW v",
        "INSERT INTO t VALUES (9, 'z', 0)",
    )

    def reported(path: Path, count: int) -> list[tuple[str, list[str]]]:
        return [(m["type"], [row["id"] for row in m["data"] or ()]) for m in lines(process, path, count)]

    both = ["1", "2"]
    assert reported(kept, 5) == [
        ("CREATE", []),
        ("INSERT", both),
        ("UPDATE", both),
        ("UPDATE", both),
        ("INSERT", ["9"]),
    ]
    assert reported(changed, 7) == [
        ("CREATE", []),
        ("QUERY", []),
        ("INSERT", both),
        ("UPDATE", ["2"]),
        ("DELETE", ["1"]),
        ("QUERY", []),
        ("INSERT", ["9"]),
    ]


def test_keys_of_canals_messages_let_a_topic_be_compacted(
    mysql: Any, kafka: Any, schema: str, execute: Execute, daemon: Daemon
) -> None:
    # Its broker refuses what has no key.
    asyncio.run(make_topic(kafka.bootstrap_servers, schema, cleanup_policy="compact"))
    more = 'key = ["$pk$"]'
    process = start(daemon, toml(mysql, schema, kafka_sink(kafka), message=more))
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(9))",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "UPDATE t SET id = 3 WHERE id = 2",
        "DELETE FROM t WHERE id = 1",
        "TRUNCATE TABLE t",
    )
    found = records(kafka, schema, 8)
    keys = [(json.loads(one.key).get("key") or {}).get("id") for one in found]
    assert list(zip(keys, [value and value["type"] for value in map(body, found)], strict=True)) == [
        (None, "CREATE"),
        ("1", "INSERT"),
        ("2", "INSERT"),
        ("3", "UPDATE"),
        ("2", None),
        ("1", "DELETE"),
        ("1", None),
        (None, "TRUNCATE"),
    ]
    assert len({value for one in found for name, value in one.headers if name == "headrace-id"}) == 8
    process.wait_state("shop", "STREAMING")


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_absent_columns_are_said_and_left_out(
    mysql: Any, kafka: Any, schema: str, execute: Execute, daemon: Daemon, image: str
) -> None:
    start(daemon, toml(mysql, schema, kafka_sink(kafka), source='row_image = "any"'))
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b BLOB)",
        "INSERT INTO t VALUES (1, 5, 'x')",
        f"SET SESSION binlog_row_image = '{image}'",
        "UPDATE t SET a = 6 WHERE id = 1",
        "DELETE FROM t WHERE id = 1",
    )
    found = records(kafka, schema, 4)[1:]
    assert [dict(record.headers).get("headrace-image") for record in found] == [None, b"partial", b"partial"]
    insert, update, delete = (body(record) for record in found)
    assert insert["data"] == [{"id": "1", "a": "5", "b": "eA=="}]
    assert update["data"] == [{"id": "1", "a": "6"}]
    assert update["old"] == ([{}] if image == "MINIMAL" else [{"a": "5"}])
    assert delete["data"] == ([{"id": "1"}] if image == "MINIMAL" else [{"id": "1", "a": "6"}])
    assert update["mysqlType"].keys() == {"id", "a", "b"}


def test_debezium_on_real_topics(mysql: Any, kafka: Any, schema: str, execute: Execute, daemon: Daemon) -> None:
    message = (
        f'format = "debezium"\n[message.debezium]\nname = "srv"\ntransaction_topic = "{schema}.transaction"\n'
        f'schema_topic = "{schema}.schema"\n'
    )
    start(daemon, toml(mysql, schema, kafka_sink(kafka), message=message))
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(9) NOT NULL, n DECIMAL(10,2), u BIGINT UNSIGNED)",
        "INSERT INTO t VALUES (1, 'a', 1.50, 18446744073709551615), (2, 'b', NULL, NULL)",
        "BEGIN",
        "UPDATE t SET name = 'c' WHERE id = 1",
        "UPDATE t SET id = 3 WHERE id = 2",
        "DELETE FROM t WHERE id = 1",
        "COMMIT",
    )
    rows = records(kafka, schema, 8)
    keys = [json.loads(record.key)["payload"]["id"] for record in rows]
    ops = [value and value["payload"]["op"] for value in map(body, rows)]
    assert list(zip(keys, ops, strict=True)) == [
        (1, "c"),
        (2, "c"),
        (1, "u"),
        (2, "d"),
        (2, None),
        (3, "c"),
        (1, "d"),
        (1, None),
    ]
    first = body(rows[0])["payload"]
    assert first["after"] == {"id": 1, "name": "a", "n": "AJY=", "u": "AP//////////"}
    source = first["source"]
    assert (source["db"], source["table"], source["name"], source["row"]) == (schema, "t", "srv", 0)
    assert source["pos"] > 4
    assert source["gtid"]
    headers = [dict(record.headers) for record in rows]
    assert json.loads(headers[3]["__debezium.newkey"])["payload"] == {"id": 3}
    assert json.loads(headers[5]["__debezium.oldkey"])["payload"] == {"id": 2}
    assert len({header["headrace-id"] for header in headers}) == 8
    assert all(b"_pos" not in (record.value or b"") for record in rows)

    marks = [
        (json.loads(record.key)["payload"], body(record)["payload"])
        for record in records(kafka, f"{schema}.transaction", 4)
    ]
    assert [(mark["status"], mark["event_count"]) for _, mark in marks] == [
        ("BEGIN", None),
        ("END", 2),
        ("BEGIN", None),
        ("END", 4),
    ]
    assert all(key == {"id": mark["id"]} for key, mark in marks)
    assert marks[3][1]["data_collections"] == [{"data_collection": f"{schema}.t", "event_count": 4}]
    orders = [value["payload"]["transaction"] for value in map(body, rows) if value]
    assert [(t["total_order"], t["data_collection_order"]) for t in orders] == [
        (1, 1),
        (2, 2),
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
    ]
    assert {t["id"] for t in orders[2:]} == {marks[2][1]["id"]}

    (change,) = records(kafka, f"{schema}.schema", 1)
    assert json.loads(change.key)["payload"] == {"databaseName": schema}
    value = body(change)["payload"]
    assert value["ddl"].startswith("CREATE TABLE t")
    assert value["tableChanges"][0]["type"] == "CREATE"
    columns = value["tableChanges"][0]["table"]["columns"]
    assert [(c["name"], c["typeName"], c["optional"]) for c in columns] == [
        ("id", "INT", False),
        ("name", "VARCHAR", False),
        ("n", "DECIMAL", True),
        ("u", "BIGINT UNSIGNED", True),
    ]


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_a_unique_key_replaces_a_missing_primary_key_with_and_without_metadata(
    mysql: Any, kafka: Any, schema: str, execute: Execute, daemon: Daemon, tmp_path: Path, metadata: str
) -> None:
    message = f'format = "debezium"\n[message.debezium]\nname = "srv"\nschema_topic = "{schema}.schema"\n'
    canal, compat = tmp_path / "canal.jsonl", tmp_path / "compat.jsonl"
    [[before]] = execute("SELECT @@global.binlog_row_metadata")
    execute(f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    try:
        texts = {
            "debezium": toml(mysql, schema, kafka_sink(kafka), message=message),
            "canal": toml(mysql, schema, jsonl(canal)),
            "compat": toml(mysql, schema, jsonl(compat), message='compat = "canal"'),
        }
        process = daemon(**texts).start()
        for name in texts:
            process.wait_state(name, "STREAMING")
        execute(
            "CREATE TABLE t (n INT, a INT NOT NULL, b INT NOT NULL, UNIQUE (n), UNIQUE k (b, a))",
            "INSERT INTO t VALUES (1, 2, 3)",
            "ALTER TABLE t DROP INDEX k, ADD UNIQUE (a)",
            "INSERT INTO t VALUES (4, 5, 6)",
            "ALTER TABLE t MODIFY a INT NULL, MODIFY n INT NOT NULL",
            "INSERT INTO t VALUES (7, 8, 9)",
            "CREATE UNIQUE INDEX l ON t (b)",
            "DROP INDEX n ON t",
            "INSERT INTO t VALUES (10, 11, 12)",
            "ALTER TABLE t DROP INDEX l",
            "INSERT INTO t VALUES (13, 14, 15)",
            "ALTER TABLE t ADD PRIMARY KEY (n)",
            "INSERT INTO t VALUES (16, 17, 18)",
        )
        keys = [["b", "a"], ["a"], ["n"], ["b"], None, ["n"]]
        reported = [m["pkNames"] for m in lines(process, canal, 13) if m["type"] == "INSERT"]
        assert reported == keys
        reported = [m["pkNames"] for m in lines(process, compat, 13) if m["type"] == "INSERT"]
        assert reported == [None, None, None, None, None, ["n"]]
        rows = records(kafka, schema, 6)
        named = [list(json.loads(record.key)["payload"]) if record.key else None for record in rows]
        assert named == keys
        changes = [body(record)["payload"] for record in records(kafka, f"{schema}.schema", 7)]
        described = [c["tableChanges"][0]["table"]["primaryKeyColumnNames"] for c in changes if c["tableChanges"]]
        assert described == [["b", "a"], ["a"], ["n"], [], ["n"]]
    finally:
        execute(f"SET GLOBAL binlog_row_metadata = '{before}'")
