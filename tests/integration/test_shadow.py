"""`headrace shadow` on real topics: beside another system under load, and when something of it is missing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.once import consumed, make_topic
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server
SHORT = ("--for", "3s", "--settle", "3s", "--json")


def two_destinations(mysql: Any, schema: str, kafka: Any, start: str) -> dict[str, str]:
    """The old system, which publishes as Canal does, and headrace beside it."""
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'
    old = destination_toml(mysql, schema, sink, start=start, more='[message]\ncompat = "canal"')
    new = destination_toml(mysql, schema, sink, start=start)
    return {"old": old, "shop": new.replace("[route]", '[route]\ntopic_prefix = "shadow."')}


def shadow(process: DaemonProcess, *words: str) -> tuple[int, dict[str, Any]]:
    done = process.run("shadow", "shop", *(words or SHORT))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_stretch_of_live_traffic_is_equal_but_for_what_the_page_explains(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, kind ENUM('a','b'), raw VARBINARY(9), f DOUBLE, name VARCHAR(9))")
    asyncio.run(make_topic(kafka.bootstrap_servers, schema))
    process = daemon(**two_destinations(mysql, schema, kafka, "latest")).start()
    for name in ("old", "shop"):
        process.wait_state(name, "STREAMING")
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            execute(f"INSERT INTO t VALUES ({number}, 'b', x'00ff', 1.5, 'é')")
            execute(f"UPDATE t SET name = CONCAT('n', id) WHERE id > {number - 3}")
            execute(f"DELETE FROM t WHERE id = {number - 5}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        status, found = shadow(process)
    finally:
        ended.set()
        writer.join()
    assert [one for one in found["differences"] if one["rule"] is None] == []
    assert (status, found["unexplained"]) == (0, 0)
    assert found["changes"]["pairs"] > 50
    assert found["topics"] == [{"old": schema, "headrace": f"shadow.{schema}"}]
    explained = {one["rule"] for one in found["differences"]}
    assert explained == {"`es`", "ENUM, SET", "BINARY, VARBINARY, BLOB, geometries"}
    assert 0 <= found["latency"]["headrace"]["p50_ms"] < 2_000


def test_what_one_system_alone_has_is_unexplained_with_an_example(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    asyncio.run(make_topic(kafka.bootstrap_servers, schema))
    process = daemon(**two_destinations(mysql, schema, kafka, "latest")).start()
    for name in ("old", "shop"):
        process.wait_state(name, "STREAMING")
    execute("INSERT INTO t VALUES (1), (2)")

    async def invent() -> None:
        """The old system publishes a row that the table does not have."""
        while not (values := await consumed(kafka.bootstrap_servers, schema)):
            pass
        message = json.loads(values[0] or b"")
        row = {**message, "es": message["es"] + 1_000, "data": [{"id": "3"}]}
        producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
        await producer.start()
        await producer.send_and_wait(schema, json.dumps(row).encode())
        await producer.stop()

    asyncio.run(invent())
    status, found = shadow(process, "--for", "2s", "--settle", "100ms", "--json")
    (unexplained,) = [one for one in found["differences"] if one["rule"] is None]
    assert (status, unexplained["what"], unexplained["count"]) == (1, "missing in headrace's topics", 1)
    assert '"data.id":"3"' in unexplained["example"]
    done = process.run("shadow", "shop", "--for", "100ms", "--settle", "1s")
    assert f"UNEXPLAINED: 1 of {schema}.t: missing in headrace's topics" in done.stdout


def test_a_destination_without_a_prefix_is_refused(
    mysql: Any, kafka: Any, schema: str, daemon: Callable[..., DaemonProcess]
) -> None:
    process = daemon(**two_destinations(mysql, schema, kafka, "latest"))
    assert process.command("shadow", "old")[0] == 2
    status, said = process.command("shadow", "shop", "--for", "10ms", "--settle", "10ms")
    assert (status, "nothing could be compared" in said) == (1, True)
