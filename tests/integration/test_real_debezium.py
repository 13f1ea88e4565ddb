"""Debezium's own connectors in Kafka Connect beside headrace, on the same changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devstack.servers.connect import ConnectWorker, reads
from tests.support import DaemonProcess, destination_toml, eventually, read_topic
from tests.versions import long

pytestmark = pytest.mark.server

Execute = Callable[..., Any]
OF_ITS_OWN = {"version", "connector", "ts_ms", "ts_us", "ts_ns"}
"""What of an envelope and its source is about who made it, and when. `ts_ms` of `source` is compared."""


@pytest.fixture
def captured(connect: ConnectWorker, kafka: Any, mysql: Any, schema: str) -> Iterator[str]:
    """The name of a connector that streams the test's schema to topics that begin with the same name."""
    # By default Kafka Connect writes the headers of a changed key as Java prints them: Struct{id=3}.
    headers = {"header_converter": "org.apache.kafka.connect.json.JsonConverter"}
    headers["header_converter_schemas_enable"] = "true"
    config = reads(mysql, schema, kafka.bootstrap_servers, bigint_unsigned_handling_mode="precise", **headers)
    connect.configure(schema, config)
    connect.wait_streaming(schema)
    yield schema
    connect.delete_connector(schema)


def records(kafka: Any, topic: str, count: int) -> list[Any]:
    found: list[Any] = []

    def enough() -> bool:
        found[:] = asyncio.run(read_topic(kafka.bootstrap_servers, topic))
        return len(found) >= count

    eventually(enough, 40, lambda: f"{topic}: {[(one.key, one.value) for one in found]}")
    assert len(found) == count, [(one.key, one.value) for one in found]
    return found


def comparable(record: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Key, value and headers without what is about who made them; that of MariaDB has another connector's name."""
    value = record.value and json.loads(record.value)
    if value:
        envelope = value["payload"]
        value["payload"] = {name: it for name, it in envelope.items() if name not in OF_ITS_OWN}
        at = envelope["source"]["ts_ms"]
        source = {name: it for name, it in envelope["source"].items() if name not in OF_ITS_OWN}
        value["payload"]["source"] = {**source, "at": at}
        for field in value["schema"]["fields"]:
            if field["field"] == "source":
                field["name"] = field["name"].replace("mariadb", "mysql")
    headers = {name: json.loads(it) for name, it in record.headers if name.startswith("__debezium.")}
    headers = {name: it for name, it in headers.items() if not name.startswith("__debezium.context.")}
    return record.key and json.loads(record.key), value, headers


@pytest.mark.parametrize("mysql", ["mysql", *long("mariadb")], indirect=True)
def test_headraces_messages_are_those_of_the_connector(
    captured: str, mysql: Any, kafka: Any, execute: Execute, daemon: Callable[..., DaemonProcess]
) -> None:
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'
    message = f'[message]\nformat = "debezium"\n[message.debezium]\nname = "{captured}"'
    process = daemon(shop=destination_toml(mysql, captured, sink, more=message)).start()
    process.wait_state("shop", "STREAMING")
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20) CHARACTER SET utf8mb4, price DECIMAL(10,2), u BIGINT"
        " UNSIGNED, f FLOAT, d DOUBLE, b VARBINARY(9), bits BIT(10), e ENUM('a','b'), s SET('x','y','z'), day DATE,"
        " at DATETIME(6), ms DATETIME(3), ts TIMESTAMP(3) NULL, t TIME(6), y YEAR, flag BIT(1), txt TEXT, blb BLOB)",
        "INSERT INTO t VALUES (1, '家庭保洁', 199.00, 18446744073709551615, 1.5, 0.1, x'00ff', 5, 'b', 'x,z',"
        " '2026-11-21', '2026-11-21 09:30:00.123456', '2026-11-21 09:30:00.123', '2026-11-21 09:30:00.123',"
        " '-12:30:00.5', 2026, b'1', 'text', x'0102'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
        " NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "UPDATE t SET name = 'x', day = NULL",
        "UPDATE t SET id = 3 WHERE id = 2",
        "DELETE FROM t",
    )
    ours, theirs = records(kafka, captured, 11), records(kafka, f"{captured}.{captured}.t", 11)
    for mine, its in zip(ours, theirs, strict=True):
        assert comparable(mine) == comparable(its)


@pytest.mark.long
def test_a_stopped_connector_and_a_killed_worker_go_on_where_they_were(
    connect: ConnectWorker, captured: str, kafka: Any, execute: Execute
) -> None:
    topic = f"{captured}.{captured}.t"

    def ids() -> list[int]:
        found = asyncio.run(read_topic(kafka.bootstrap_servers, topic))
        return [json.loads(one.key)["payload"]["id"] for one in found]

    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    records(kafka, topic, 1)
    connect.stop_connector(captured)
    assert connect.status(captured)["tasks"] == []
    execute("INSERT INTO t VALUES (2)")
    connect.resume_connector(captured)
    connect.wait_streaming(captured)
    execute("INSERT INTO t VALUES (3)")
    records(kafka, topic, 3)
    connect.kill()
    execute("INSERT INTO t VALUES (4)")
    connect.start()
    connect.wait_streaming(captured)
    # After a crash what came since the last offset comes again.
    eventually(lambda: 4 in ids(), 30, lambda: str(ids()))
    assert list(dict.fromkeys(ids())) == [1, 2, 3, 4]
