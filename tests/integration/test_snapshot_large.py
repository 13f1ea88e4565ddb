"""Two million rows, published while four sessions change them, daemons are killed and the server is started anew."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from devstack import Stack
from tests.once import make_topic
from tests.snapshots import done, reading
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = [pytest.mark.server, pytest.mark.long]

ROWS = 2_000_000
SEED = 15
Rows = dict[int, str]


@pytest.fixture(scope="module")
def server(stack: Stack) -> Iterator[Any]:
    made = stack.mysql(None, "--innodb-buffer-pool-size=512M", name="snapshot-large")
    yield made
    made.kill()


def fill(server: Any) -> None:
    with pymysql.connect(**server.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0, SESSION cte_max_recursion_depth = 10000000")
        cursor.execute("DROP DATABASE IF EXISTS large")
        cursor.execute("CREATE DATABASE large")
        cursor.execute("CREATE TABLE large.t (id INT PRIMARY KEY, name VARCHAR(40))")
        cursor.execute(
            "INSERT INTO large.t WITH RECURSIVE q AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM q WHERE n < "
            f"{ROWS}) SELECT 2 * n, 'first' FROM q"
        )


class Changer(threading.Thread):
    """Inserts, updates, deletes and changes keys of its own part of the table; connects again after a restart."""

    def __init__(self, server: Any, number: int) -> None:
        super().__init__(name=f"changer {number}")
        self._options = {**server.connection("root"), "autocommit": True}
        self._random, self._number = random.Random(SEED + number), number
        self._stop_asked = threading.Event()
        self.changes = 0

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                with pymysql.connect(**self._options) as connection, connection.cursor() as cursor:
                    while not self._stop_asked.wait(0.001):
                        cursor.execute(self._statement())
                        self.changes += 1
            except pymysql.err.MySQLError as error:
                if isinstance(error, pymysql.err.ProgrammingError | pymysql.err.DataError):
                    raise
                self._stop_asked.wait(0.1)

    def _statement(self) -> str:
        key = self._random.randrange(ROWS) * 2 // 4 * 4 + self._number
        what = self._random.randrange(5)
        if what == 0:
            return f"REPLACE INTO large.t VALUES ({key}, 'new {self.changes}')"
        if what == 1:
            return f"DELETE FROM large.t WHERE id = {key}"
        if what == 2:
            return f"UPDATE IGNORE large.t SET id = {key + ROWS // 4 * 4} WHERE id = {key}"
        return f"UPDATE large.t SET name = 'changed {self.changes}' WHERE id IN ({key}, {key + 4}, {key + 400})"

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


class Consumer:
    """Replays a topic: in the order of the messages, and by `_pos` alone."""

    def __init__(self) -> None:
        self.by_offset: Rows = {}
        self._newest: dict[int, tuple[int, str | None]] = {}
        self.read: Counter[int] = Counter()
        """How often each row came out of the table."""

    @property
    def by_pos(self) -> Rows:
        return {key: name for key, (_, name) in self._newest.items() if name is not None}

    def _put(self, key: int, name: str | None, pos: int) -> None:
        if name is None:
            self.by_offset.pop(key, None)
        else:
            self.by_offset[key] = name
        if pos >= self._newest.get(key, (0, None))[0]:
            self._newest[key] = pos, name

    def take(self, record: Any) -> None:
        if record.value is None:
            return
        headers, value = dict(record.headers), json.loads(record.value)
        pos = int(headers["headrace-pos"])
        if "op" in value:
            self._take_debezium(value, pos)
        else:
            self._take_canal(value, pos)
        if "headrace-snapshot" in headers:
            rows = [value["after"]] if "op" in value else value["data"]
            self.read.update(int(row["id"]) for row in rows)

    def _take_canal(self, value: dict[str, Any], pos: int) -> None:
        for i, row in enumerate(value["data"] or ()):
            old = value["old"][i] if value["old"] else {}
            if "id" in old:
                self._put(int(old["id"]), None, pos + i)
            self._put(int(row["id"]), None if value["type"] == "DELETE" else row["name"], pos + i)

    def _take_debezium(self, value: dict[str, Any], pos: int) -> None:
        if value["op"] == "d":
            self._put(value["before"]["id"], None, pos)
        else:
            self._put(value["after"]["id"], value["after"]["name"], pos)


async def consumed(bootstrap: str, topic: str, partitions: int) -> Consumer:
    """All that is committed in a topic."""
    client = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    await client.start()
    try:
        found, places = Consumer(), [TopicPartition(topic, number) for number in range(partitions)]
        client.assign(places)
        ends = await client.end_offsets(places)
        while any([await client.position(place) < ends[place] for place in places]):
            for batch in (await client.getmany(timeout_ms=1000, max_records=5000)).values():
                for record in batch:
                    found.take(record)
        return found
    finally:
        await client.stop()


WAYS = {
    "canal": ("", "", 1),
    "by key": ("", 'partitions = 4\npartition_hash = ".*\\\\..*:$pk$"\n', 4),
    "debezium": ('[message]\nformat = "debezium"\n[message.debezium]\nschemas = false\n', "", 1),
    "exactly once": ("", "", 1),
}


@pytest.mark.parametrize("way", WAYS)
async def test_two_million_rows_reach_consumers_right_in_spite_of_kills_and_restarts(
    way: str, server: Any, kafka: Any, zookeeper: Any, daemon: Callable[..., DaemonProcess]
) -> None:
    fill(server)
    message, route, partitions = WAYS[way]
    topic = f"large-{way.replace(' ', '-')}"
    await make_topic(kafka.bootstrap_servers, topic, partitions)
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
    if way == "exactly once":
        sink += 'delivery = "exactly_once"\ntransaction_timeout = "10s"\n'
    source = "snapshot_max_rows_per_second = 60000\n"
    text = destination_toml(server, "large", sink, snapshot="initial", source=source, more=message)
    text = text.replace('topic = "large"', f'topic = "{topic}"\n{route}')
    settings = f'[zookeeper]\nhosts = "{zookeeper.hosts}"\nroot = "/{topic}"\nsession_timeout = "4s"'
    nodes = [daemon(**{topic: text}, settings=settings, node=name).start() for name in ("one", "two")]
    changers = [Changer(server, number) for number in range(4)]
    for changer in changers:
        changer.start()
    moments = random.Random(SEED)
    try:
        for step in range(6):
            wanted = ROWS // 8 * (step + 1)
            active = _reading(nodes, topic, wanted)
            time.sleep(moments.random() / 2)  # noqa: ASYNC251 - a random moment is the point
            if step == 3:
                server.kill()
                server.start()
            else:
                active.kill()
                active.start()
        _reading(nodes, topic, ROWS // 8 * 7)
        eventually(lambda: any(done(_of(node, topic)) for node in nodes if _of(node, topic)), 120)
    finally:
        for changer in changers:
            changer.stop()
    assert all(changer.changes > 1_000 for changer in changers)
    with pymysql.connect(**server.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO large.t VALUES (-1, 'last')")
        cursor.execute("SELECT id, name FROM large.t")
        table = dict(cursor.fetchall())
    active = next(node for node in nodes if _of(node, topic).get("role") == "ACTIVE")
    active.wait(topic, lambda status: status["lag_seconds"] < 5 and not status["oldest_unconfirmed_seconds"])
    found = await consumed(kafka.bootstrap_servers, topic, partitions)
    deadline = time.monotonic() + 30
    while -1 not in found.by_pos and time.monotonic() < deadline:
        found = await consumed(kafka.bootstrap_servers, topic, partitions)
    if partitions == 1:
        assert found.by_offset == table
    assert found.by_pos == table
    if way == "exactly once":
        assert set(found.read.values()) == {1}
    for node in nodes:
        assert node.terminate() == 0


def _of(node: DaemonProcess, name: str) -> dict[str, Any]:
    status: dict[str, Any] = node.health()[1].get("destinations", {}).get(name, {})
    return status


def _reading(nodes: list[DaemonProcess], name: str, rows: int) -> DaemonProcess:
    """The node that runs the destination, once its snapshot has passed so many rows."""
    found: list[DaemonProcess] = []

    def is_reading() -> bool:
        found[:] = [node for node in nodes if (status := _of(node, name)) and reading(rows)(status)]
        return bool(found)

    eventually(is_reading, 120, lambda: "\n".join(node.log.read_text()[-2000:] for node in nodes))
    return found[0]
