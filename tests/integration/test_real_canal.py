"""Canal's own server, as devstack runs it: what it gives to its Java client, to ours, and into Kafka."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack, canal, ports
from devstack.process import clean_environment
from devstack.servers.canal import CanalServer, reads
from headrace.canal_wire import canal_pb2 as pb
from tests.canal_client import CanalClient, rows_of
from tests.support import eventually, read_topic

pytestmark = pytest.mark.server

READER = Path(__file__).parent.parent / "canal_java" / "Reader.java"
Start = Callable[..., CanalServer]


@pytest.fixture
def server(stack: Stack) -> Iterator[Start]:
    made: list[CanalServer] = []

    def start(source: Any, settings: dict[str, str] | None = None, **more: str) -> CanalServer:
        """A server with one destination, shop."""
        made.append(stack.canal({"shop": {**reads(source), **more}}, settings=settings))
        return made[-1]

    yield start
    for one in made:
        one.kill()


@pytest.mark.parametrize("mysql", ["mysql", pytest.param("mysql56", marks=pytest.mark.long)], indirect=True)
def test_its_clients_get_rows(
    mysql: Any, stack: Stack, server: Start, schema: str, execute: Callable[..., Any]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))")
    running = server(mysql)
    assert {address for address, _ in ports.listeners(running.pid)} == {"127.0.0.1"}
    execute("INSERT INTO t VALUES (1, 'x')")
    with CanalClient(running.host, running.port, "shop") as client:
        client.subscribe(rf"{schema}\..*")
        found: list[Any] = []

        def look() -> bool:
            found.extend(client.get(100).rows())
            return bool(found)

        eventually(look, 30)
        assert found == [("INSERT", {"id": "1", "name": "x"})]
        client.roll_back()
    java = [*canal.reader(stack.cache, READER), str(running.port), "shop", "", "", "7", "1"]
    done = subprocess.run(java, capture_output=True, text=True, timeout=60, env=clean_environment())
    assert done.stdout == "INSERT 1\n", done.stderr[-2000:]
    eventually((running.home / "shop" / "meta.dat").exists, 10)


@pytest.mark.long
@pytest.mark.parametrize("flat", ["true", "false"])
async def test_it_writes_rows_into_kafka_with_its_position_in_zookeeper(
    mysql: Any, kafka: Any, zookeeper: Any, server: Start, schema: str, execute: Callable[..., Any], flat: str
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))")
    settings = {
        "canal.serverMode": "kafka",
        "canal.mq.flatMessage": flat,
        "canal.zkServers": zookeeper.hosts,
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
    }
    more = {"canal.mq.topic": schema, "canal.mq.partition": "0", "canal.instance.filter.regex": rf"{schema}\..*"}
    server(mysql, settings, **more)
    execute("INSERT INTO t VALUES (1, 'x')")
    values: list[bytes] = []
    while not values:
        values = [record.value for record in await read_topic(kafka.bootstrap_servers, schema)]
    if flat == "true":
        assert [json.loads(value)["data"] for value in values] == [[{"id": "1", "name": "x"}]]
    else:
        packets = [pb.Messages.FromString(pb.Packet.FromString(value).body) for value in values]
        entries = [pb.Entry.FromString(entry) for packet in packets for entry in packet.messages]
        assert [row for entry in entries for row in rows_of(entry)] == [("INSERT", {"id": "1", "name": "x"})]
