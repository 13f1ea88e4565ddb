"""Messages that a Kafka topic does not take wait, also exactly once: stored with the position, delivered in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError

from tests import once
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server
LIMIT = 60_000


def site(mysql: Any, schema: str, kafka: Any, topic: str, delivery: str) -> str:
    sink = (
        f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\ndelivery = "{delivery}"\n'
        f'on_oversize = "park"\ntransaction_timeout = "10s"\nparked_topic = "{topic}-failed"\n'
        f'state_topic = "{topic}-state"'
    )
    parked = '[parking]\ndelay = "200ms"\nmax_delay = "500ms"\nattempts = 100000'
    text = destination_toml(mysql, schema, sink, more=parked)
    return text.replace(f'topic = "{schema}"', f'topic = "{topic}"').replace(
        "[route]", "[message]\nrows_per_message = 1\n[route]"
    )


async def set_limit(kafka: Any, topic: str, size: int) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        wanted = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": str(size)})
        await admin.alter_configs([wanted])
    finally:
        await admin.close()


async def lower_limit(kafka: Any, topic: str) -> None:
    """Until the broker refuses what is larger: it takes a new setting a moment later."""
    await set_limit(kafka, topic, LIMIT)
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    await producer.start()
    try:
        with contextlib.suppress(MessageSizeTooLargeError):
            async with asyncio.timeout(30):
                while True:
                    await producer.send_and_wait(topic, key=os.urandom(LIMIT))  # without a value; see read()
    finally:
        await producer.stop()


async def read(kafka: Any, topic: str) -> list[tuple[str, str, int]]:
    """Type, id and length of each row, as a consumer that reads committed sees them."""
    messages = [json.loads(value) for value in await once.consumed(kafka.bootstrap_servers, topic) if value]
    return [(m["type"], row["id"], len(row["body"] or "")) for m in messages for row in m["data"] or ()]


def waiting(process: DaemonProcess, mysql: Any, count: int) -> None:
    """Until so many wait, and a position behind them is stored."""
    end = mysql.sql("SHOW BINARY LOG STATUS")[0]

    def reached(status: dict[str, Any]) -> bool:
        position = status["position"] or {"file": "", "offset": 0}
        return status["parked"]["messages"] == count and [position["file"], position["offset"]] >= [end[0], int(end[1])]

    process.wait("shop", reached, 40)


@pytest.mark.parametrize("delivery", ["at_least_once", pytest.param("exactly_once", marks=pytest.mark.long)])
async def test_rows_that_are_too_large_wait_through_kills_and_come_in_order_once_the_topic_takes_them(
    mysql: Any,
    kafka: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    delivery: str,
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT)")
    topic = once.new_name()
    await once.make_topic(kafka.bootstrap_servers, topic, max_message_bytes=str(LIMIT))
    process = daemon(shop=site(mysql, schema, kafka, topic, delivery)).start()
    process.wait_state("shop", "STREAMING", 60)
    large = "hex(random_bytes(512))"  # does not compress
    body = f"CONCAT({', '.join([large] * (LIMIT // 1024 + 2))})"
    execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')", f"UPDATE t SET body = {body} WHERE id = 1")
    execute("UPDATE t SET body = 'small again' WHERE id = 1", "UPDATE t SET body = 'other' WHERE id = 2")
    waiting(process, mysql, 2)
    assert await read(kafka, topic) == [("INSERT", "1", 1), ("INSERT", "2", 1), ("UPDATE", "2", 5)]
    process.kill()
    process.start()
    waiting(process, mysql, 2)
    status, printed = process.command("parked", "list", "shop", "--json")
    assert status == 0, printed
    first, second = json.loads(printed)
    assert "larger than" in first["reason"]
    assert (first["keys"], second["attempts"]) == ([f"{schema}.t 1"], 0)
    status, printed = process.command("parked", "show", "shop", str(first["number"]), "--json")
    assert len(json.loads(json.loads(printed)["body"])["data"][0]["body"]) > LIMIT

    execute("UPDATE t SET body = 'newest' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    waiting(process, mysql, 3)
    await set_limit(kafka, topic, 10 * LIMIT)
    waiting(process, mysql, 0)
    rows = await read(kafka, topic)
    assert [kind for kind, key, _ in rows if key == "2"] == ["INSERT", "UPDATE", "DELETE"]
    sizes = [size for _, key, size in rows if key == "1"]
    assert sizes[0] == 1
    assert sizes[1] > LIMIT
    assert sizes[2:] == [len("small again"), len("newest")]
    process.wait_state("shop", "STREAMING")

    await lower_limit(kafka, topic)
    execute(f"UPDATE t SET body = {body} WHERE id = 1", "UPDATE t SET body = 'behind it' WHERE id = 1")
    waiting(process, mysql, 2)
    assert process.command("parked", "discard", "shop", "--all", "--yes")[0] == 0
    waiting(process, mysql, 0)
    execute("UPDATE t SET body = 'free again' WHERE id = 1")
    waiting(process, mysql, 0)
    assert (await read(kafka, topic))[-1] == ("UPDATE", "1", len("free again"))
