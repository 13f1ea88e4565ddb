"""Debezium's JDBC sink in Kafka Connect keeps a copy of a table by headrace's messages, as docs/consumers.md has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from devstack.servers.connect import JDBC_SINK, ConnectWorker
from tests import pages
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = [pytest.mark.server, pytest.mark.long]

MESSAGES = {
    "envelope": 'format = "debezium"',
    "row": 'format = "debezium"\n[message.debezium]\nunwrap = true',
}
CONNECT = "org.apache.kafka.connect"
WITHOUT_SCHEMAS = {"key_converter_schemas_enable": "false", "value_converter_schemas_enable": "false"}
Copy = Callable[..., str]


@pytest.fixture
def copy(
    connect: ConnectWorker, mysql: Any, kafka: Any, schema: str, daemon: Callable[..., DaemonProcess]
) -> Iterator[Copy]:
    """Has the page's connector write what headrace publishes of the table `t` into a table, and gives its name."""

    def begin(message: str, **changed: str) -> str:
        sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'
        text = destination_toml(mysql, schema, sink, more=f"[message]\n{message}")
        process = daemon(shop=text.replace(f'{schema}\\\\..*"', f'{schema}\\\\.t"')).start()
        process.wait_state("shop", "STREAMING")
        login = mysql.connection("root")
        [example] = pages.blocks("consumers.md", "json", JDBC_SINK)
        config = {
            **json.loads(example),
            "topics": schema,
            "connection.url": f"jdbc:mysql://{login['host']}:{login['port']}/{schema}?allowPublicKeyRetrieval=true",
            "connection.username": login["user"],
            "connection.password": login["password"],
            "collection.name.format": "copy",
            "consumer.override.auto.offset.reset": "earliest",
            "consumer.override.metadata.max.age.ms": "500",
            **{name.replace("_", "."): value for name, value in changed.items()},
        }
        connect.configure(schema, config)
        connect.wait_running(schema)
        return "copy"

    yield begin
    connect.delete_connector(schema)


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_the_sink_keeps_a_copy_of_the_table(
    copy: Copy, connect: ConnectWorker, schema: str, execute: Callable[..., Any], message: str
) -> None:
    copied = copy(message)

    def same() -> bool:
        tables = {name for (name,) in execute("SHOW TABLES")}
        return copied in tables and execute(f"SELECT {columns} FROM {copied} ORDER BY id") == execute(
            f"SELECT {columns} FROM t ORDER BY id"
        )

    def wait_same() -> None:
        eventually(same, 40, lambda: f"{execute(f'SELECT * FROM {copied}')} {connect.status(schema)}")

    columns = "id, name, price, big, u, f, d, day, at, sec, moment, t, y, e, j, bin, txt"
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20), price DECIMAL(10,2), big BIGINT, u BIGINT UNSIGNED, f"
        " FLOAT, d DOUBLE, day DATE, at DATETIME(6), sec DATETIME, moment TIMESTAMP(3) NULL, t TIME, y YEAR, e"
        " ENUM('a','b'), j JSON, bin VARBINARY(9), txt TEXT)",
        "INSERT INTO t VALUES (1, '家庭保洁', 199.00, -9223372036854775808, 18446744073709551615, 1.5, 0.1,"
        " '2026-11-21', '2026-11-21 09:30:00.123456', '2026-11-21 09:30:00', '2026-11-21 09:30:00.123', '12:30:00',"
        " 2026, 'b', '{\"a\": [1, null]}', x'00ff', 'text'),"
        " (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    wait_same()
    execute("UPDATE t SET price = 9.99, txt = NULL WHERE id = 1", "UPDATE t SET id = 3 WHERE id = 2")
    execute("ALTER TABLE t ADD COLUMN added INT", "UPDATE t SET added = id")
    columns += ", added"
    eventually(
        lambda: bool(execute(f"SHOW COLUMNS FROM {copied} LIKE 'added'")), 15, lambda: str(connect.status(schema))
    )
    wait_same()
    execute("DELETE FROM t WHERE id = 1")
    wait_same()
    [(_, kind, *_)] = execute(f"SHOW COLUMNS FROM {copied} LIKE 'name'")
    assert kind == "longtext"


@pytest.mark.parametrize(
    ("message", "changed", "why"),
    [
        (f"{MESSAGES['envelope']}\n[message.debezium]\nschemas = false", WITHOUT_SCHEMAS, "cannot have null schema"),
        (MESSAGES["envelope"], {"header_converter": f"{CONNECT}.storage.SimpleHeaderConverter"}, "__debezium.newkey"),
        (MESSAGES["envelope"], {"header_converter": f"{CONNECT}.json.JsonConverter"}, "toConnectHeader"),
    ],
    ids=["no-schemas", "headers-as-maps", "headers-as-json"],
)
def test_other_settings_stop_the_sink(
    copy: Copy,
    connect: ConnectWorker,
    schema: str,
    execute: Callable[..., Any],
    message: str,
    changed: dict[str, str],
    why: str,
) -> None:
    copy(message, **changed)
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(9))", "INSERT INTO t VALUES (1, 'a')")
    execute("UPDATE t SET id = 2")
    eventually(lambda: connect.status(schema)["tasks"][0]["state"] == "FAILED", 30, lambda: str(connect.status(schema)))
    assert why in connect.status(schema)["tasks"][0]["trace"]


def test_a_table_without_a_key_is_appended_to(copy: Copy, schema: str, execute: Callable[..., Any]) -> None:
    copied = copy(MESSAGES["envelope"], primary_key_mode="none", insert_mode="insert", delete_enabled="false")
    execute("CREATE TABLE t (id INT, name VARCHAR(9))", "INSERT INTO t VALUES (1, 'a')", "UPDATE t SET name = 'b'")

    def rows() -> Any:
        return execute("SHOW TABLES LIKE 'copy'") and execute(f"SELECT id, name FROM {copied} ORDER BY name")

    eventually(lambda: rows() == ((1, "a"), (1, "b")), 30, lambda: str(rows()))
