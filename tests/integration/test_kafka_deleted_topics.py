"""Topics that are deleted under a running destination: what was in them is gone for consumers, and that is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from devstack import Stack
from tests import once
from tests.support import DaemonProcess, destination_toml, eventually, read_topic

pytestmark = pytest.mark.server
TROUBLE = "emptied_topic"


@pytest.fixture(scope="module")
def strict(stack: Stack) -> Iterator[Any]:
    """A broker that makes no topics by itself."""
    kafka = stack.kafka(name="deleted", settings={"auto.create.topics.enable": "false"})
    yield kafka
    kafka.kill()


async def delete(kafka: Any, *names: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.delete_topics(list(names))
    finally:
        await admin.close()
    # The answer comes before the broker has put the topic away; what it takes until then is confirmed, and gone.
    eventually(lambda: not [one for name in names for one in kafka.datadir.glob(f"{name}-*[0-9]")])


def lines(process: DaemonProcess, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
    return [one for one in found if one["event"] == event]


@pytest.mark.parametrize(
    ("delivery", "makes"),
    [
        pytest.param("at_least_once", True, id="at least once, the brokers make topics", marks=pytest.mark.long),
        pytest.param("exactly_once", False, id="exactly once, they make none"),
        pytest.param("exactly_once", True, id="exactly once, the brokers make topics", marks=pytest.mark.long),
        pytest.param("at_least_once", False, id="at least once, they make none", marks=pytest.mark.long),
    ],
)
async def test_a_topic_that_is_deleted_is_a_trouble_until_its_tables_are_resynced(
    mysql: Any,
    kafka: Any,
    strict: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    delivery: str,
    makes: bool,
) -> None:
    broker = kafka if makes else strict
    if not makes:
        await once.make_topic(broker.bootstrap_servers, schema, 1)
    execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "CREATE TABLE u (id INT PRIMARY KEY)")
    sink = f"""type = "kafka"
bootstrap_servers = "{broker.bootstrap_servers}"
delivery = "{delivery}"
request_timeout = "5s"
"""
    process = daemon(shop=destination_toml(mysql, schema, sink)).start()
    process.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (1, 1), (2, 2)", "INSERT INTO u VALUES (1)")
    process.wait("shop", lambda s: s["rows"] >= 3)
    await delete(broker, schema)
    execute("INSERT INTO t VALUES (3, 3)")
    if not makes:
        gone = process.wait("shop", lambda s: f"no topic {schema}" in s["message"], 40)
        assert gone["state"] != "STREAMING"
        await once.make_topic(broker.bootstrap_servers, schema, 1)
    status = process.wait("shop", lambda s: TROUBLE in s["troubles"] and s["state"] == "DEGRADED", 40)
    assert f"the topic {schema} " in status["troubles"][TROUBLE]
    assert "headrace resync shop" in status["troubles"][TROUBLE]
    assert [one["topic"] for one in lines(process, "a topic was emptied")] == [schema]
    assert process.command("resync", "shop", "--wait", f"{schema}.u")[0] == 0
    assert TROUBLE in process.health()[1]["destinations"]["shop"]["troubles"], "the rows of t still lack"
    assert process.command("resync", "shop", "--wait", "--all")[0] == 0
    process.wait("shop", lambda s: s["state"] == "STREAMING" and not s["troubles"])
    found = [json.loads(one.value) for one in await read_topic(broker.bootstrap_servers, schema)]
    assert {row["id"] for one in found if one["table"] == "t" for row in one["data"]} == {"1", "2", "3"}
    assert process.terminate() == 0


async def test_a_state_topic_that_is_deleted_is_named(
    mysql: Any,
    kafka: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    sink = f"""type = "kafka"
bootstrap_servers = "{kafka.bootstrap_servers}"
delivery = "exactly_once"
state_topic = "state-{schema}"
request_timeout = "5s"
"""
    text = destination_toml(mysql, schema, sink).replace('on_state_lost = "start"', "")
    process = daemon(**{schema: text}).start()
    process.wait(schema, lambda s: s["state"] == "STREAMING" and s["heartbeat"]["seen_seconds"] is not None)
    execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    process.wait(schema, lambda s: s["rows"] >= 2)
    await delete(kafka, f"state-{schema}")
    execute("INSERT INTO t VALUES (3, 3)")
    status = process.wait(schema, lambda s: s["state"] == "POSITION_LOST", 90)
    assert f"state-{schema}" in status["message"]
    reported = process.log.read_text()
    assert "did not confirm messages for topic" not in reported
    assert f"the state topic state-{schema} is gone" in reported
    assert process.terminate() == 0
