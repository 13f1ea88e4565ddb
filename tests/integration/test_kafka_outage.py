"""Brokers away: the daemon waits, says STALLED with reason sink, and goes on without loss."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pymysql
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from devstack import Stack
from tests.support import DaemonProcess, destination_toml, read_topic, replay, replay_by_pos

pytestmark = pytest.mark.server

NO_LEADER_SECONDS = 60


class Trickle(threading.Thread):
    """A row every few milliseconds until it is told to stop."""

    def __init__(self, server: Any, schema: str) -> None:
        super().__init__(name="trickle")
        self._connection = pymysql.connect(**server.connection("root"), database=schema, autocommit=True)
        self._stop_asked = threading.Event()
        self.rows = 0

    def run(self) -> None:
        with self._connection as connection, connection.cursor() as cursor:
            while not self._stop_asked.wait(0.005):
                self.rows += 1
                cursor.execute("INSERT INTO t VALUES (%s, %s)", (self.rows, f"row {self.rows}"))
                cursor.execute("UPDATE t SET name = CONCAT(name, '.') WHERE id = %s", (self.rows // 2,))

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


@pytest.mark.long
async def test_a_partition_without_a_leader_for_a_minute_loses_nothing(
    stack: Stack, mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    cluster = stack.kafka(brokers=3)
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    await admin.start()
    # One replica, on the third broker: without that broker the partition has no leader, the cluster goes on.
    ids = sorted(node["node_id"] for node in (await admin.describe_cluster())["brokers"])
    await admin.create_topics(
        [NewTopic(schema, -1, -1, replica_assignments={0: [ids[2]]}, topic_configs={"min.insync.replicas": "1"})]
    )
    await admin.close()
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40))")
    sink = f'type = "kafka"\nbootstrap_servers = "{cluster.bootstrap_servers}"\nrequest_timeout = "20s"'
    process = daemon(shop=destination_toml(mysql, schema, sink)).start()
    process.wait_state("shop", "STREAMING")
    trickle = Trickle(mysql, schema)
    trickle.start()
    try:
        process.wait("shop", lambda status: status["rows"] > 20)
        cluster.brokers[2].kill()
        away = time.monotonic()
        status = process.wait_state("shop", "STALLED", 25)
        assert status["reason"] == "sink"
        assert process.health()[0] == 503
        before = status["rows"]
        # The minute is the point of this test; meanwhile the daemon may never claim to be well.
        while time.monotonic() - away < NO_LEADER_SECONDS:
            code, _ = process.health()
            assert code == 503, process.log.read_text()[-3000:]
            trickle.join(0.5)
        cluster.brokers[2].start()
        process.wait("shop", lambda status: status["state"] == "STREAMING" and status["rows"] > before + 500, 90)
    finally:
        trickle.stop()
    execute("INSERT INTO t VALUES (1000000, 'the last')")
    table = {str(i): {"id": str(i), "name": name} for i, name in execute("SELECT id, name FROM t")}
    deadline = time.monotonic() + 60
    messages: list[dict[str, Any]] = []
    while not (messages and messages[-1]["data"][-1]["id"] == "1000000"):
        assert time.monotonic() < deadline, process.log.read_text()[-3000:]
        messages = [json.loads(record.value) for record in await read_topic(cluster.bootstrap_servers, schema)]
    assert replay(messages) == table
    assert replay_by_pos(messages) == table
    assert process.terminate() == 0
    cluster.kill()


def lines(process: DaemonProcess, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
    return [one for one in found if one["event"].startswith(event)]


@pytest.mark.parametrize(
    "seconds", [pytest.param(7, id="some seconds"), pytest.param(75, id="a minute", marks=pytest.mark.long)]
)
async def test_an_unreachable_broker_is_named_and_reported_once_a_minute_and_publishing_continues_at_its_return(
    stack: Stack, mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess],
    seconds: int,
) -> None:  # fmt: skip
    cluster = stack.kafka(brokers=1)
    address = cluster.bootstrap_servers
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40))")
    sink = f'type = "kafka"\nbootstrap_servers = "{address}"'
    process = daemon(shop=destination_toml(mysql, schema, sink)).start()
    process.wait_state("shop", "STREAMING")
    trickle = Trickle(mysql, schema)
    trickle.start()
    try:
        process.wait("shop", lambda status: status["rows"] > 20)
        cluster.kill()
        away, reported = time.monotonic(), len(process.log.read_text().splitlines())
        status = process.wait("shop", lambda status: "sink" in status["reason"], 10)
        assert address in status["message"]
        assert "can't be reached" in status["message"]
        while time.monotonic() - away < seconds:
            trickle.join(0.5)
            lag, gone = process.health()[1]["destinations"]["shop"]["lag_seconds"], time.monotonic() - away
            assert gone - 1 < lag < gone + 2
        before = process.health()[1]["destinations"]["shop"]
        assert before["publishing_lag_seconds"] > seconds - 3
        said = process.log.read_text().splitlines()[reported:]
        assert len(said) <= 6 * (1 + seconds // 60), "\n".join(said)
        outage = lines(process, "the sink confirms nothing")
        assert [one["destination"] for one in outage] == ["shop"] * (1 + seconds // 62)
        assert address in outage[0]["cause"]
        cluster.start()
        process.wait("shop", lambda status: status["rows"] > before["rows"], 10)
    finally:
        trickle.stop()
    status = process.wait("shop", lambda status: status["state"] == "STREAMING" and status["lag_seconds"] < 1)
    assert status["reason"] == ""
    (end,) = lines(process, "the sink confirms again")
    assert seconds - 3 < end["seconds"] < time.monotonic() - away + 1
    assert process.terminate() == 0
    cluster.kill()


@pytest.mark.parametrize(
    "frozen", [pytest.param(False, id="killed"), pytest.param(True, id="frozen", marks=pytest.mark.long)]
)
async def test_an_outage_that_ends_runs_has_one_state_reason_and_cause_for_both_kinds_of_delivery(
    frozen: bool, stack: Stack, mysql: Any, schema: str, execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
) -> None:  # fmt: skip
    cluster = stack.kafka(brokers=1)
    address, kinds = cluster.bootstrap_servers, ("at_least_once", "exactly_once")
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40))")

    def text(delivery: str) -> str:
        more = f'request_timeout = "3s"\ntransaction_timeout = "5s"\ndelivery = "{delivery}"\ncreate_topics = true'
        made = destination_toml(mysql, schema, f'type = "kafka"\nbootstrap_servers = "{address}"\n{more}')
        return made.replace(f'topic = "{schema}"', f'topic = "{schema}-{delivery}"')

    process = daemon(**{kind: text(kind) for kind in kinds}).start()
    late = ("can't be reached", "does not show its partitions yet", "does not say whether there is a topic")
    trickle = Trickle(mysql, schema)
    trickle.start()
    shown: dict[str, set[tuple[str, str]]] = {kind: set() for kind in kinds}

    def failed_often(kind: str) -> Callable[[dict[str, Any]], bool]:
        def failed(status: dict[str, Any]) -> bool:
            shown[kind].add((status["state"], status["reason"]))
            return bool(status["restarts"] > 1)

        return failed

    try:
        for kind in kinds:
            process.wait(kind, lambda status: status["rows"] > 20)
        began = lines(process, "destination failed")
        (cluster.freeze if frozen else cluster.kill)()
        before = {kind: process.wait(kind, failed_often(kind), 60) for kind in kinds}
        away = lines(process, "destination failed")
        (cluster.thaw if frozen else cluster.start)()
        for kind in kinds:
            process.wait(kind, lambda status: status["rows"] > before[kind]["rows"], 60)  # noqa: B023
    finally:
        trickle.stop()
    usual = {("STREAMING", ""), ("DEGRADED", "sink"), ("STALLED", "sink"), ("STARTING", "")}
    assert shown["at_least_once"] <= usual
    assert shown["exactly_once"] <= usual
    for one in lines(process, "destination failed"):
        assert address in one["error"], one
        if not frozen and one in away and one not in began:
            assert "can't be reached" in one["error"], one
            assert "Timeout" not in one["error"], one
        elif not frozen:  # the broker runs: it has just started, and answers late
            assert any(said in one["error"] for said in late), one
    assert "Exception in callback" not in process.log.read_text()
    assert process.terminate() == 0
    cluster.kill()
