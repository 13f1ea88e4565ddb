"""PyPI's canal-python as a client of the sink: reads, rolls back, acknowledges."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from devstack import Stack, canal
from devstack.ports import free_port
from devstack.process import clean_environment
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server

PROGRAM = """
import json, sys, time
from canal.client import Client
from canal.protocol import EntryProtocol_pb2 as pb

def connected():
    client = Client()
    client.connect(host="127.0.0.1", port=int(sys.argv[1]))
    client.check_valid()
    client.subscribe(destination=b"shop", filter=sys.argv[2].encode())
    return client

def following(client):
    message = client.get_without_ack(1)
    while not message["id"]:
        time.sleep(0.05)
        message = client.get_without_ack(1)
    rows = []
    for entry in message["entries"]:
        change = pb.RowChange()
        change.MergeFromString(entry.storeValue)
        for row in change.rowDatas:
            values = {column.name: column.value for column in row.afterColumns}
            rows.append([entry.header.tableName, pb.EventType.Name(change.eventType), values])
    print(json.dumps(rows))
    return message["id"]

client = connected()
following(client)
client.rollback(0)
client.ack(following(client))
following(client)
client.disconnect()
client = connected()
client.ack(following(client))
client.ack(following(client))
"""


def test_the_python_client_reads_rolls_back_and_acknowledges(
    mysql: Any, stack: Stack, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    port = free_port()
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))")
    execute("CREATE TABLE u (id INT PRIMARY KEY)")
    process = daemon(shop=destination_toml(mysql, schema, f'type = "canal"\nlisten = "127.0.0.1:{port}"')).start()
    process.wait_state("shop", "STREAMING")
    execute("INSERT INTO u VALUES (1)", *(f"INSERT INTO t VALUES ({i}, '保洁{i}')" for i in (1, 2, 3)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(port), rf"{schema}\.t"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**clean_environment(), **canal.python_client(stack.cache)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    first, second, third = ([["t", "INSERT", {"id": str(i), "name": f"保洁{i}"}]] for i in (1, 2, 3))
    assert read == [first, first, second, second, third]
