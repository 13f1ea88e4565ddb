"""Canal's own nodes in ZooKeeper: what a daemon writes there, when, and that one which has lost the lock does not."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from devstack.ports import free_port
from headrace.moving.cursors import parsed_cursor
from headrace.ports.lock_service import Refused
from headrace.ports.nodes import LockedNodes
from tests.canal_client import CanalClient
from tests.lock_bench import Keeper, nothing_known, within
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    "user",
    ["", pytest.param('\nuser = "headrace"\npassword = "secret"', marks=pytest.mark.long)],
    ids=["anybody", "user"],
)
async def test_clients_find_the_server_their_cursor_and_their_filter(
    mysql: Any,
    zoo: Keeper,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    user: str,
) -> None:
    port, root = free_port(), f"/{schema}/otter/canal"
    destination = f"{root}/destinations/shop"
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    sink = f'type = "canal"\nlisten = "127.0.0.1:{port}"\nzookeeper_path = "{root}"\nadvertise = "localhost:{port}"'
    settings = f'[zookeeper]\nhosts = "{zoo.server.hosts}"\nroot = "/{schema}/headrace"{user}'
    process = daemon(shop=destination_toml(mysql, schema, sink), settings=settings).start()
    process.wait_state("shop", "STREAMING")

    def read(path: str) -> Any:
        return json.loads(zoo.operator.get(path)[0])

    running = read(f"{destination}/running")
    assert running == {"active": True, "address": f"localhost:{port}", "by": "headrace"}
    assert zoo.operator.get_children(f"{destination}/cluster") == [f"localhost:{port}"]
    assert zoo.operator.get_children(f"{root}/cluster") == [f"localhost:{port}"]
    file, before = execute("SHOW BINARY LOGS")[-1][:2]
    execute("INSERT INTO t VALUES (1)")
    # Clients that missed the take-over, as Canal's may while they start, see this write.
    eventually(lambda: zoo.operator.get(f"{destination}/running")[1].version > 0, 15)
    with CanalClient("127.0.0.1", port, "shop") as client:
        client.subscribe(rf"{schema}\..*")
        batch = client.get(1, 10_000)
        assert batch.rows() == [("INSERT", {"id": "1"})]
        client.ack(batch.id)
        eventually(lambda: zoo.operator.exists(f"{destination}/1001/cursor") is not None, 10)
        cursor = parsed_cursor(zoo.operator.get(f"{destination}/1001/cursor")[0])
        assert (cursor.file, cursor.offset >= before) == (file, True)
        assert cursor.server_id == int(execute("SELECT @@server_id")[0][0])
        position = read(f"{destination}/1001/cursor")
        assert position["identity"]["sourceAddress"] == {"address": mysql.host, "port": mysql.port}
        assert zoo.operator.get(f"{destination}/1001/filter")[0].decode() == rf"{schema}\..*"
        zoo.operator.delete(f"{destination}/running")
        eventually(lambda: zoo.operator.exists(f"{destination}/running") is not None, 15)
    assert process.terminate() == 0
    assert zoo.operator.exists(f"{destination}/running") is None
    assert zoo.operator.get_children(f"{destination}/cluster") == zoo.operator.get_children(f"{root}/cluster") == []


@pytest.mark.long
async def test_a_frozen_daemon_that_wakes_leaves_its_successor_the_nodes(
    mysql: Any, zoo: Keeper, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    settings = f'[zookeeper]\nhosts = "{zoo.server.hosts}"\nroot = "/{schema}/headrace"\nsession_timeout = "4s"'
    ports = [free_port(), free_port()]
    sinks = [f'type = "canal"\nlisten = "127.0.0.1:{port}"\nzookeeper_path = "/{schema}/canal"' for port in ports]
    texts = [destination_toml(mysql, schema, sink) for sink in sinks]
    frozen = daemon(shop=texts[0], settings=settings).start()
    frozen.wait_state("shop", "STREAMING")
    path = f"/{schema}/canal/destinations/shop"
    before = zoo.operator.get(f"{path}/running")[1].czxid
    other = daemon(shop=texts[1], settings=settings, node="b").start()
    other.wait_state("shop", "STANDBY")
    os.kill(frozen.pid, signal.SIGSTOP)
    other.wait_state("shop", "STREAMING", 60)
    os.kill(frozen.pid, signal.SIGCONT)
    frozen.wait_state("shop", "STANDBY", 60)
    data, stat = zoo.operator.get(f"{path}/running")
    assert json.loads(data)["address"] == f"127.0.0.1:{ports[1]}"
    assert stat.czxid > before
    assert zoo.operator.get_children(f"{path}/cluster") == [f"127.0.0.1:{ports[1]}"]


async def test_what_a_server_of_canal_has_is_left_to_it(
    mysql: Any, zoo: Keeper, schema: str, daemon: Callable[..., DaemonProcess]
) -> None:
    path, root = f"/{schema}/canal/destinations/shop/running", f"/{schema}/canal"
    canals = b'{"active":true,"address":"10.0.0.1:11111"}'
    zoo.operator.create(path, canals, ephemeral=True, makepath=True)
    sink = f'type = "canal"\nlisten = "127.0.0.1:{free_port()}"\nzookeeper_path = "{root}"'
    settings = f'[zookeeper]\nhosts = "{zoo.server.hosts}"\nroot = "/{schema}/headrace"'
    process = daemon(shop=destination_toml(mysql, schema, sink), settings=settings).start()
    process.wait("shop", lambda of: "a server of Canal at 10.0.0.1:11111 has" in str(of["message"]))
    assert zoo.operator.get(path)[0] == canals
    assert zoo.operator.exists(f"{root}/cluster") is None


async def test_a_holder_that_has_lost_the_lock_changes_no_node_of_its_successor(zoo: Keeper) -> None:
    one, two = await zoo.lock("a"), await zoo.lock("b")
    await within(5, one.acquire(nothing_known))
    first = nodes_of(one)
    running, cursor, path = f"{zoo.root}/canal/running", f"{zoo.root}/canal/1001/cursor", zoo.node("destinations/shop")
    await first.put(running, b"a", ephemeral=True)
    await first.put(cursor, b"1")
    zoo.operator.delete(f"{path}/running")
    await within(10, two.acquire(nothing_known))
    second = nodes_of(two)
    await second.put(running, b"b", ephemeral=True)
    await second.put(cursor, b"2")
    for late in (first.put(running, b"a", ephemeral=True), first.put(cursor, b"3"), first.put(f"{cursor}2", b"3")):
        with pytest.raises(Refused):
            await late
    await first.remove(running)
    assert (await second.get(running), await second.get(cursor)) == (b"b", b"2")
    assert zoo.operator.get(running)[1].ephemeralOwner == two._session.session_id
    await second.remove(running)
    assert await second.get(running) is None


def nodes_of(lock: Any) -> LockedNodes:
    found: LockedNodes | None = lock.nodes()
    assert found is not None
    return found
