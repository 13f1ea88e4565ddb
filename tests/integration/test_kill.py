"""The daemon killed with SIGKILL at random moments under load: the topic still makes the table."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from tests.support import DaemonProcess, destination_toml, eventually, read_topic, replay, replay_by_pos

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(hurt_kafka: Any) -> Any:
    return hurt_kafka


class Writer(threading.Thread):
    """Changes rows all the time: one-row transactions, bulk statements, changed keys, deletes."""

    def __init__(self, server: Any, schema: str, seed: int) -> None:
        super().__init__(name="writer")
        self._connection = pymysql.connect(**server.connection("root"), database=schema, charset="utf8mb4")
        self._random = random.Random(seed)
        self._stop_asked = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        with self._connection as connection, connection.cursor() as cursor:
            while not self._stop_asked.is_set():
                for _ in range(self._random.choice((1, 1, 1, 5))):
                    self._change(cursor)
                connection.commit()
                self.transactions += 1

    def _change(self, cursor: Any) -> None:
        pick, key = self._random.random(), self._random.randrange(400)
        if pick < 0.45:
            cursor.execute(
                "REPLACE INTO t (id, name, n) VALUES (%s, %s, %s)", (key, f"家庭保洁 {key}", self.transactions)
            )
        elif pick < 0.75:
            cursor.execute("UPDATE t SET n = n + 1, name = %s WHERE id = %s", (f"搬家 {self.transactions}", key))
        elif pick < 0.85:
            cursor.execute("DELETE FROM t WHERE id = %s", (key,))
        elif pick < 0.95:
            cursor.execute("UPDATE IGNORE t SET id = %s WHERE id = %s", (self._random.randrange(400), key))
        else:
            cursor.execute("UPDATE t SET n = n + 1")

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


@pytest.mark.parametrize(
    ("mysql", "kills", "rows_per_message"),
    [
        ("mysql", 3, 1),
        *(
            pytest.param(kind, 10, rows, marks=pytest.mark.long)
            for kind, rows in (("mysql", 0), ("mysql", 1), ("mysql56", 1), ("mariadb118", 1))
        ),
    ],
    indirect=["mysql"],
)
async def test_kills_under_load_leave_the_topic_equal_to_the_table(
    kills: int,
    rows_per_message: int,
    mysql: Any,
    kafka: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40), n BIGINT)")
    seed = 20 + rows_per_message
    moments = random.Random(seed)
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'
    more = f"[message]\nrows_per_message = {rows_per_message}"
    process = daemon(shop=destination_toml(mysql, schema, sink, more=more)).start()
    process.wait_state("shop", "STREAMING")
    writer = Writer(mysql, schema, seed)
    writer.start()
    try:
        for number in range(kills):
            process.wait_state("shop", "STREAMING")
            await asyncio.sleep(moments.uniform(0, 0.5))  # the random moment that this test is about
            if number % 3 == 2:  # with much handed over and nothing confirmed
                kafka.brokers[0].freeze()
                process.wait("shop", lambda status: status["oldest_unconfirmed_seconds"] > 0.5)
            process.kill()
            kafka.brokers[0].thaw()
            process.start()
        process.wait_state("shop", "STREAMING")
        eventually(lambda: writer.transactions > 200)
    finally:
        kafka.brokers[0].thaw()
        writer.stop()
    execute("INSERT INTO t VALUES (1000000, 'the last', 0)")
    table = {str(i): {"id": str(i), "name": name, "n": str(n)} for i, name, n in execute("SELECT id, name, n FROM t")}

    records, messages = list[Any](), list[dict[str, Any]]()
    deadline = time.monotonic() + 60
    while not (messages and any(row["id"] == "1000000" for row in messages[-1]["data"])):
        assert time.monotonic() < deadline, f"the last row did not come; log: {process.log.read_text()[-3000:]}"
        records = await read_topic(kafka.bootstrap_servers, schema)
        messages = [json.loads(record.value) for record in records]

    assert replay(messages) == table
    assert replay_by_pos(messages) == table
    by_id: dict[bytes, Any] = {}
    by_pos: dict[str, bytes] = {}
    for record, message in zip(records, messages, strict=True):  # a resend carries the same number, and the same rows
        name = dict(record.headers)["headrace-id"]
        sent = message["_pos"], message["data"]
        assert by_id.setdefault(name, sent) == sent
        assert by_pos.setdefault(message["_pos"], name) == name
    assert len(by_id) < len(records), "some were sent again, or this shows nothing"
    assert process.terminate() == 0
    eventually(lambda: process.health()[0] == 0)


async def test_sigterm_waits_until_what_is_in_flight_is_confirmed(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'
    process = daemon(shop=destination_toml(mysql, schema, sink)).start()
    process.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (1)")
    process.wait("shop", lambda status: status["messages"] == 1)
    ended: list[int] = []
    try:
        kafka.brokers[0].freeze()
        execute("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
        process.wait("shop", lambda status: status["oldest_unconfirmed_seconds"] > 0.2)
        ending = threading.Thread(target=lambda: ended.append(process.terminate()))
        ending.start()
        ending.join(1.5)
        assert ending.is_alive(), "it is to wait while nothing is confirmed"
    finally:
        kafka.brokers[0].thaw()
    ending.join(20)
    assert ended == [0]
    execute("INSERT INTO t VALUES (4)")
    process.start()
    process.wait("shop", lambda status: status["messages"] == 1)
    rows = [json.loads(record.value)["data"] for record in await read_topic(kafka.bootstrap_servers, schema)]
    assert rows == [[{"id": str(key)}] for key in (1, 2, 3, 4)], "nothing was lost, and nothing is sent again"
    assert process.terminate() == 0
