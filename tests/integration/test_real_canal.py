"""Canal's own server, as devstack runs it: what it gives to its Java client, to ours, and into Kafka."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import SERVER_STATUS

from devstack import Stack, canal, ports
from devstack.process import clean_environment
from devstack.servers.canal import CanalServer, reads
from headrace.canal_wire import canal_pb2 as pb
from headrace.canal_wire.cursor import canal_cursor, cursor_node, destination_node, node_data
from headrace.model import Position
from tests.canal_client import CanalClient, rows_of
from tests.canal_entries import differences, statements, unexplained
from tests.lock_bench import Keeper
from tests.support import DaemonProcess, destination_toml, eventually, read_topic

pytestmark = pytest.mark.server

READER = Path(__file__).parent.parent / "canal_java" / "Reader.java"
SILENT = "[heartbeat]\nenabled = false"
"""Canal tells its client of some transactions of which nothing is captured."""
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

        def came() -> bool:
            found.extend(client.get(100).rows())
            return bool(found)

        eventually(came, 30)
        assert found == [("INSERT", {"id": "1", "name": "x"})]
        client.roll_back()
    java = [*canal.reader(stack.cache, READER), str(running.port), "shop", "", "", "7", "1"]
    done = subprocess.run(java, capture_output=True, text=True, timeout=60, env=clean_environment())
    assert done.stdout == "INSERT 1\n", done.stderr[-2000:]
    eventually((running.home / "shop" / "meta.dat").exists, 10)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "scripts"),
    [("mysql", ["both", "mysql", "mysql97"]), ("mysql56", ["both", "mysql"]), ("mariadb", ["both"])],
)
def test_its_entries_are_those_of_headrace(
    stack: Stack, server: Start, daemon: Callable[..., DaemonProcess], kind: str, scripts: list[str]
) -> None:
    """Canal asks for a table's schema when it first reads its rows: it has read each statement before the next."""
    mysql, port = stack.sql(kind, name="compared"), ports.free_port()
    filters = "transactions = true\ndml_queries = true"
    text = destination_toml(
        mysql, "(inv|other)", f'type = "canal"\nlisten = "127.0.0.1:{port}"', source='row_image = "any"', more=SILENT
    )
    text = text.replace("[route]", f"{filters}\n[route]").replace('"(inv|other)"', '"inv"')
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    running = server(mysql)
    connection = pymysql.connect(**mysql.connection("root"), autocommit=True, charset="utf8mb4")
    with (
        CanalClient(running.host, running.port, "shop") as theirs,
        CanalClient("127.0.0.1", port, "shop") as ours,
        connection.cursor() as cursor,
    ):
        theirs.subscribe(r"inv\..*,other\..*")
        ours.subscribe()
        cursor.execute("SET time_zone = '+00:00'")
        canals: list[pb.Entry] = []
        for number, statement in enumerate(text for script in scripts for text in statements(script)):
            cursor.execute(statement)
            if not number:
                cursor.execute("CREATE TABLE inv.mark (number INT PRIMARY KEY)")
            if not connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
                cursor.execute(f"INSERT INTO inv.mark VALUES ({number})")
                read_until(theirs, number, canals)
        own = read_until(ours, number, [])
    assert unexplained(differences(canals, own), mariadb=kind == "mariadb") == []
    mysql.kill()


def read_until(client: CanalClient, number: int, entries: list[pb.Entry]) -> list[pb.Entry]:
    """Adds what a client gets, up to the end of the transaction that marks a statement."""
    marks = 0

    def came() -> bool:
        nonlocal marks
        batch = client.get(100)
        if batch.id > 0:
            entries.extend(batch.entries)
            marks += ("INSERT", {"number": str(number)}) in batch.rows()
            client.ack(batch.id)
        return marks == 1 and entries[-1].entry_type == pb.TRANSACTIONEND

    eventually(came, 30)
    return entries


@pytest.mark.long
@pytest.mark.parametrize("flat", ["true", "false"])
async def test_it_writes_rows_into_kafka_with_its_position_in_zookeeper(
    mysql: Any, kafka: Any, zoo: Keeper, server: Start, schema: str, execute: Callable[..., Any], flat: str
) -> None:
    zoo.operator.create(f"/{schema}")
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))")
    settings = {
        "canal.serverMode": "kafka",
        "canal.mq.flatMessage": flat,
        "canal.zkServers": f"{zoo.server.hosts}/{schema}",
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
    }
    more = {"canal.mq.topic": schema, "canal.mq.partition": "0", "canal.instance.filter.regex": rf"{schema}\..*"}
    running = server(mysql, settings, **more)
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
    eventually(lambda: zoo.operator.exists(f"/{schema}{cursor_node('shop')}") is not None, 20)
    theirs = json.loads(zoo.operator.get(f"/{schema}{cursor_node('shop')}")[0])
    ours = json.loads(node_data(canal_cursor(Position("", "f", 4), ("h", 1), 1)))
    assert theirs.keys() == ours.keys()
    assert theirs["@type"] == ours["@type"]
    for key in ("identity", "postion"):
        assert theirs[key].keys() <= ours[key].keys(), "Canal leaves out what is null"
    node = json.loads(zoo.operator.get(f"/{schema}{destination_node('shop')}/running")[0])
    assert node == {"active": True, "address": running.address}
