"""Exactly once from MySQL to the consumer: daemons that are killed, stopped, and commanded."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql
import pytest

from tests.once import consumed
from tests.support import DaemonProcess, destination_toml, replay

pytestmark = pytest.mark.server


class Writer(threading.Thread):
    """Changes rows all the time, in small transactions and in larger ones."""

    def __init__(self, server: Any, schema: str, seed: int) -> None:
        super().__init__(name="writer")
        self._connection = pymysql.connect(**server.connection("root"), database=schema)
        self._random, self._stop_asked = random.Random(seed), threading.Event()
        self.transactions = 0

    def run(self) -> None:
        with self._connection as connection, connection.cursor() as cursor:
            while not self._stop_asked.wait(0.001):
                for _ in range(self._random.choice((1, 1, 1, 20))):
                    key = self._random.randrange(300)
                    cursor.execute("REPLACE INTO t (id, n) VALUES (%s, %s)", (key, self.transactions))
                    cursor.execute("DELETE FROM t WHERE id = %s", (key + 7,))
                connection.commit()
                self.transactions += 1

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


def sink_of(kafka: Any, more: str = "") -> str:
    servers = f'bootstrap_servers = "{kafka.bootstrap_servers}"'
    return f'type = "kafka"\n{servers}\ndelivery = "exactly_once"\ntransaction_timeout = "10s"\n{more}'


async def messages_until(kafka: Any, topic: str, last: str, limit: float = 60) -> list[dict[str, Any]]:
    """What a consumer that reads committed is shown, once the row with that id has come."""
    deadline = time.monotonic() + limit
    while True:
        values = await consumed(kafka.bootstrap_servers, topic, settled=False)
        messages = [json.loads(value) for value in values if value]
        if messages and messages[-1]["data"] and messages[-1]["data"][-1]["id"] == last:
            return messages
        assert time.monotonic() < deadline, f"{len(messages)} messages, without the last"


async def test_kills_under_load_show_consumers_every_row_once(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, n BIGINT)")
    process = daemon(**{schema: destination_toml(mysql, schema, sink_of(kafka))}).start()
    process.wait_state(schema, "STREAMING")
    moments, writer = random.Random(6), Writer(mysql, schema, 6)
    writer.start()
    try:
        for _ in range(4):
            before = process.wait(schema, lambda status: status["rows"] > 0)["rows"]
            process.wait(schema, lambda status, before=before: status["rows"] > before)  # type: ignore[misc]
            time.sleep(moments.random() / 2)  # noqa: ASYNC251 - a random moment is the point
            process.kill()
            process.start()
        process.wait_state(schema, "STREAMING")
    finally:
        writer.stop()
    execute("REPLACE INTO t VALUES (1000000, 1)")
    messages = await messages_until(kafka, schema, "1000000")
    places = [int(message["_pos"]) for message in messages]
    assert places == sorted(set(places)), "in order, and none twice"
    assert replay(messages) == {str(i): {"id": str(i), "n": str(n)} for i, n in execute("SELECT id, n FROM t")}
    assert process.terminate() == 0


async def test_a_kill_within_a_large_transaction_repeats_no_row_of_it(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(200))")
    small = sink_of(kafka, 'transaction_bytes = "256KiB"')
    text = destination_toml(mysql, schema, small, more='[message]\nrows_per_message = 1\n[queue]\nbytes = "1MiB"')
    process = daemon(**{schema: text}).start()
    process.wait_state(schema, "STREAMING")
    process.kill()
    execute("INSERT INTO t VALUES " + ",".join(f"({i}, REPEAT('x', 200))" for i in range(30_000)))
    process.start()
    for wanted in (1000, 4000):
        process.wait(schema, lambda status, wanted=wanted: status["rows"] > wanted)  # type: ignore[misc]
        process.kill()
        assert 0 < len(await consumed(kafka.bootstrap_servers, schema, settled=False)) < 30_000
        process.start()
    messages = await messages_until(kafka, schema, "29999")
    assert [row["id"] for message in messages for row in message["data"]] == [str(i) for i in range(30_000)]
    assert process.terminate() == 0


async def test_a_queue_that_holds_less_than_a_transaction_holds_nothing_up(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(200))")
    sink = sink_of(kafka, 'transaction_bytes = "16MiB"\ntransaction_interval = "9s"')
    text = destination_toml(mysql, schema, sink, more='[message]\nrows_per_message = 1\n[queue]\nbytes = "1MiB"')
    process = daemon(**{schema: text}).start()
    process.wait_state(schema, "STREAMING")
    execute("INSERT INTO t VALUES " + ",".join(f"({i}, REPEAT('x', 200))" for i in range(30_000)))
    # A transaction each time that the queue is full. Were the interval waited for each time, the limit would pass.
    messages = await messages_until(kafka, schema, "29999")
    assert [row["id"] for message in messages for row in message["data"]] == [str(i) for i in range(30_000)]
    assert process.terminate() == 0


async def test_commands_read_and_move_a_position_in_the_topic(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    process = daemon(**{schema: destination_toml(mysql, schema, sink_of(kafka))}).start()
    process.wait_state(schema, "STREAMING")
    execute("INSERT INTO t VALUES (1)")
    await messages_until(kafka, schema, "1")
    assert process.terminate() == 0
    execute("INSERT INTO t VALUES (2)")

    def headrace(*words: str) -> str:
        done = process.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "epoch" in headrace("position", "show", schema)
    headrace("check")
    headrace("position", "set", schema, "latest", "--yes")
    process.start()
    process.wait_state(schema, "STREAMING")
    execute("INSERT INTO t VALUES (3)")
    messages = await messages_until(kafka, schema, "3")
    assert [message["data"][0]["id"] for message in messages] == ["1", "3"], "what was given up does not come"
    assert "operator" in headrace("position", "history", schema)
    assert process.terminate() == 0
