"""A broker away under load, with a dump that the server drops meanwhile: a stall, resumed, and no row lost.

HEADRACE_OUTAGE in the environment makes the outage longer, in seconds: 180 is the case of three minutes.
"""

from __future__ import annotations

import json
import os
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


OUTAGE = float(os.environ.get("HEADRACE_OUTAGE", "20"))
KEYS = 3000
LAST = "1000000"


class Load(threading.Thread):
    """Changes rows all the time, about 4 MB of binlog a second: more than queue and sockets hold in any outage."""

    def __init__(self, server: Any, schema: str) -> None:
        super().__init__(name="load")
        self._connection = pymysql.connect(**server.connection("root"), database=schema)
        self._random, self._stop_asked = random.Random(5), threading.Event()
        self.rows = 0

    def run(self) -> None:
        with self._connection as connection, connection.cursor() as cursor:
            while not self._stop_asked.wait(0.1):
                keys = self._random.sample(range(KEYS), 250)
                values = ",".join(f"({key}, {self.rows + i}, REPEAT('p', 700))" for i, key in enumerate(keys))
                cursor.execute(f"REPLACE INTO t VALUES {values}")
                cursor.execute(f"DELETE FROM t WHERE id IN ({keys[0]}, {keys[1]})")
                connection.commit()
                self.rows += len(keys) + 2

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


class States(threading.Thread):
    """Every state of every destination that /health shows while it runs."""

    def __init__(self, process: DaemonProcess) -> None:
        super().__init__(name="states")
        self._process, self._stop_asked = process, threading.Event()
        self.seen: dict[str, set[tuple[str, str]]] = {}

    def run(self) -> None:
        while not self._stop_asked.wait(0.1):
            for name, status in self._process.health()[1].get("destinations", {}).items():
                self.seen.setdefault(name, set()).add((status["state"], status["reason"]))

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


async def messages_of(kafka: Any, topic: str, limit: float) -> list[dict[str, Any]]:
    """All of a topic, once the last row is in it."""
    deadline = time.monotonic() + limit
    while True:
        found = [json.loads(record.value) for record in await read_topic(kafka.bootstrap_servers, topic)]
        if any(row["id"] == LAST for row in found[-1]["data"]):
            return found
        assert time.monotonic() < deadline, f"the last row did not come into {topic}"


@pytest.mark.long
async def test_a_broker_away_under_load_is_a_stall_of_the_sink_and_the_topic_equals_the_table_afterwards(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    """Two destinations: `patient` waits for the broker with a dump that the server drops, as it does after
    net_write_timeout; `hasty` gives the broker up again and again."""
    execute("CREATE TABLE t (id INT PRIMARY KEY, n BIGINT, pad VARCHAR(800))")
    files = {}
    for name, timeout in (("patient", f"{2 * OUTAGE + 60:g}s"), ("hasty", "4s")):
        sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\nrequest_timeout = "{timeout}"'
        text = destination_toml(mysql, schema, sink, source='stall_after = "3s"', more='[queue]\nbytes = "2MiB"')
        files[name] = text.replace(f'topic = "{schema}"', f'topic = "{schema}-{name}"')
    process = daemon(**files).start()
    load, states = Load(mysql, schema), States(process)
    for name in files:
        process.wait_state(name, "STREAMING")
    load.start()
    try:
        for name in files:
            process.wait(name, lambda status: status["rows"] > 2000)
        states.start()
        kafka.brokers[0].freeze()
        away = time.monotonic()
        for name in files:
            assert process.wait_state(name, "STALLED", 15)["reason"] == "sink"
        assert process.health()[0] == 503
        states.seen.clear()  # from here on it may not claim to be well
        load.join(OUTAGE / 2 - (time.monotonic() - away))
        dumps = [row[0] for row in execute("SHOW PROCESSLIST") if "Dump" in row[4]]
        execute(*(f"KILL {number}" for number in dumps))
        load.join(OUTAGE - (time.monotonic() - away))
        assert states.seen == {name: {("STALLED", "sink")} for name in files}, process.log.read_text()[-3000:]
        kafka.brokers[0].thaw()
        back = time.monotonic()
        for name in files:
            process.wait_state(name, "STREAMING", 60)
        again = time.monotonic() - back
    finally:
        kafka.brokers[0].thaw()
        load.stop()
    execute(f"REPLACE INTO t VALUES ({LAST}, 0, 'the last')")
    end = execute("SHOW BINARY LOG STATUS")[0]

    def caught_up() -> bool:
        found = process.health()[1]["destinations"].values()
        return all((s["received"]["file"], s["received"]["offset"]) >= end[:2] and not s["queue_bytes"] for s in found)

    eventually(caught_up, 60 + OUTAGE, lambda: process.log.read_text()[-3000:])
    caught = time.monotonic() - back
    states.stop()
    table = {str(i): {"id": str(i), "n": str(n), "pad": pad} for i, n, pad in execute("SELECT id, n, pad FROM t")}
    for name in files:
        assert states.seen[name] == {("STALLED", "sink"), ("STREAMING", "")}
        messages = await messages_of(kafka, f"{schema}-{name}", 60)
        assert replay(messages) == table
        assert replay_by_pos(messages) == table
        status = process.health()[1]["destinations"][name]
        doubled = len(messages) - len({message["_pos"] for message in messages})
        print(
            f"{name}: away {OUTAGE:g} s, {load.rows} rows changed, {len(messages)} messages, {doubled} of them twice, "
            f"{status['reconnects']} reconnects, {status['restarts']} restarts, streaming after {again:.1f} s, "
            f"caught up {caught:.1f} s after the broker came back"
        )
        if name == "patient":
            assert (status["reconnects"], status["restarts"], doubled) == (1, 0, 0)
        else:
            assert status["restarts"] > 0
    assert process.terminate() == 0
