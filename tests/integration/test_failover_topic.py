"""Failover between two servers under a load that never pauses; the Kafka topic is compared with the table then."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests.integration.test_failover import Pair, caught_up
from tests.support import DaemonProcess, destination_toml, eventually, read_topic, replay, replay_by_pos

pytestmark = pytest.mark.server

_names = itertools.count(1)


class Load(threading.Thread):
    """Inserts and updates without pause, on `server` as it is at the moment, which may refuse or be away."""

    def __init__(self, server: Any) -> None:
        super().__init__(name="load")
        self.server, self._end = server, threading.Event()
        self.done: dict[Any, int] = {}
        self._next = 1

    def run(self) -> None:
        while not self._end.wait(0.05):
            server = self.server
            try:
                with pymysql.connect(**server.connection("root"), database="shop", autocommit=True) as connection:
                    self._write(connection.cursor(), server)
            except (pymysql.err.MySQLError, OSError):
                continue  # read-only or killed: until the test names the other server

    def _write(self, cursor: Any, server: Any) -> None:
        while not self._end.is_set() and server is self.server:
            self._next += 1
            cursor.execute("INSERT INTO t VALUES (%s, 0)", (self._next,))
            cursor.execute("UPDATE t SET n = n + 1 WHERE id >= %s", (self._next - 3,))
            self.done[server.port] = self.done.get(server.port, 0) + 1

    def stop(self) -> None:
        self._end.set()
        self.join()


@pytest.fixture
def pair(stack: Stack) -> Iterator[Pair]:
    made = Pair(stack)
    made.begin()
    yield made
    made.end()


@pytest.mark.long  # the simulator's scenario failover has the same faults
@pytest.mark.parametrize("killed", [False, True])
async def test_the_topic_equals_the_table_after_a_failover_under_load(
    killed: bool, pair: Pair, kafka: Any, daemon: Callable[..., DaemonProcess]
) -> None:
    topic = f"failover{next(_names)}-{pair.first.port}"
    standby = f'[[source.standby]]\nhost = "127.0.0.1"\nport = {pair.second.port}'
    text = destination_toml(
        pair.first,
        "shop",
        f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"',
        source='connect_timeout = "2s"\non_diverged = "continue"',
        more=standby,
    )
    process = daemon(shop=text.replace('topic = "shop"', f'topic = "{topic}"')).start()
    process.wait_state("shop", "STREAMING")
    load = Load(pair.first)
    load.start()
    try:
        eventually(lambda: load.done.get(pair.first.port, 0) > 300)
        if killed:
            pair.second.sql("STOP REPLICA IO_THREAD")  # behind, as a replica may be when its source dies
            before, rows = load.done[pair.first.port], process.health()[1]["destinations"]["shop"]["rows"]
            eventually(lambda: load.done[pair.first.port] > before + 100)
            process.wait("shop", lambda s: s["rows"] > rows + 200 and s["last_checkpoint_seconds"] < 0.2)
            pair.first.kill()
        else:
            pair.first.sql("SET GLOBAL super_read_only = 1")
            caught_up(pair.second, pair.first)
        eventually(lambda: applied_all(pair.second), 20)
        pair.second.sql("STOP REPLICA; RESET REPLICA ALL")
        load.server = pair.second
        if not killed:
            pair.first.stop()
        moved = time.monotonic()
        seen = process.wait("shop", lambda s: s["source"]["address"].endswith(str(pair.second.port)), 60)
        process.wait_state("shop", "STREAMING", 60)
        print(f"killed {killed}: streaming from the other server after {time.monotonic() - moved:.1f} s")
        eventually(lambda: load.done.get(pair.second.port, 0) > 300)
    finally:
        load.stop()
    pair.second.sql("INSERT INTO shop.t VALUES (1000000, 0)")
    table = {row[0]: {"id": row[0], "n": row[1]} for row in pair.second.sql("SELECT id, n FROM shop.t")}
    process.wait("shop", lambda s: s["queue_bytes"] == 0 and s["last_checkpoint_seconds"] < 1)
    deadline, messages = time.monotonic() + 30, []
    while not (messages and any(row["id"] == "1000000" for row in messages[-1]["data"])):
        assert time.monotonic() < deadline, process.log.read_text()[-3000:]
        messages = [json.loads(record.value) for record in await read_topic(kafka.bootstrap_servers, topic)]
    status = process.health()[1]["destinations"]["shop"]
    assert replay(messages) == replay_by_pos(messages)
    published = replay(messages)
    lost = status["gap"]["transactions"] if status["gap"] else 0
    more = {key for key, row in published.items() if table.get(key) != row}
    print(f"killed {killed}: {len(table)} rows, {lost} transactions never replicated, {len(more)} rows differ by them")
    assert table.keys() <= published.keys(), "no row is missing"
    # Only what the dead server never replicated may differ, and the daemon says how many transactions that were.
    assert len(more) <= 4 * lost
    if killed:
        assert lost > 0
        assert more
    else:
        assert (seen["gap"], more) == (None, set())
    assert process.terminate() == 0


def applied_all(server: Any) -> bool:
    """Whether the replica has executed all that it ever received."""
    rows = server.sql("SELECT RECEIVED_TRANSACTION_SET FROM performance_schema.replication_connection_status")
    received = str(rows[0][0]).replace("\\n", "").replace("\n", "")
    return bool(server.sql(f"SELECT GTID_SUBSET('{received}', @@gtid_executed)") == [("1",)])
