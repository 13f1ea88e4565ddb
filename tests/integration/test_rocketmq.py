"""The RocketMQ sink on a real cluster: order within a group, what is refused, and outages."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from headrace.adapters.rocketmq.settings import RocketMqSinkSettings
from headrace.adapters.rocketmq.sink import RocketMqSink
from headrace.errors import SinkError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch, Unit
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server
_numbers = itertools.count(1)
LIMIT = 120.0


def settings(server: Any, **more: Any) -> RocketMqSinkSettings:
    quick = {"retry_delay": 0.1, "request_timeout": 10.0}
    return RocketMqSinkSettings.model_validate({"type": "rocketmq", "hosts": server.endpoints, **quick, **more})


def batch(topic: str, first: int, count: int, partition: int = 0, *, tag: str = "orders") -> MessageBatch:
    numbers = range(first, first + count)
    return MessageBatch(
        topic,
        partition,
        [b"%d" % n for n in numbers],
        [[("headrace-id", b"g#%d" % n), ("headrace-pos", b"%d" % n)] for n in numbers],
        units=[Unit(("shop.t",), (str(n),)) for n in numbers],
        tags=[tag] * count,
    )


@contextlib.asynccontextmanager
async def opened(server: Any, parking: Any = None, **more: Any) -> AsyncIterator[RocketMqSink]:
    sink = RocketMqSink(settings(server, **more), Lease(), parking)
    await sink.start()
    try:
        yield sink
    finally:
        await sink.close()


class Reader:
    """Takes what comes out of a topic in a thread, in order within each group, until it is told to end."""

    def __init__(self, server: Any, topic: str) -> None:
        import rocketmq

        self.messages: list[Any] = []
        self.problem = ""
        group = f"readers{next(_numbers)}"
        server.create_group(group, in_order=True)
        configuration = rocketmq.ClientConfiguration(server.endpoints, rocketmq.Credentials())
        self._consumer = rocketmq.SimpleConsumer(configuration, group, {topic: rocketmq.FilterExpression()}, 5)
        self._consumer.startup()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                for message in self._consumer.receive(32, 10):
                    self.messages.append(message)
                    self._consumer.ack(message)
            except Exception as error:  # the first requests come before the proxy knows us
                self.problem = repr(error)

    def bodies(self, group: str = "") -> list[int]:
        """By group, each once: what was not acknowledged in time comes again."""
        found = [int(m.body) for m in self.messages if m.body != b"null" and group in ("", m.message_group)]
        return list(dict.fromkeys(found))

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, (len(self.messages), self.bodies()[-20:], self.problem)
            await asyncio.sleep(0.1)

    def close(self) -> None:
        self._ended.set()
        self._thread.join(30)
        self._consumer.shutdown()


@pytest.fixture
def topic(rocketmq: Any) -> str:
    name = f"topic{next(_numbers)}"
    rocketmq.create_topic(name, 4, "FIFO")
    return name


async def test_messages_of_a_group_keep_their_order_and_carry_what_they_should(rocketmq: Any, topic: str) -> None:
    async with opened(rocketmq) as sink:
        confirmations = []
        for start in range(0, 200, 50):
            for partition in range(3):
                confirmations.append(await sink.publish(batch(topic, 1000 * partition + start, 50, partition)))
        gone = batch(topic, 9000, 1, 3)
        gone.values, gone.keys = [None], ["键".encode()]
        confirmations.append(await sink.publish(gone))
        async with asyncio.timeout(LIMIT):
            await asyncio.gather(*confirmations)
    reader = Reader(rocketmq, topic)
    try:
        await reader.until(lambda: len(reader.messages) >= 601 and len(reader.bodies()) == 600)
        (tombstone,) = {m.message_id: m for m in reader.messages if m.message_group == f"{topic}-3"}.values()
        reader.messages = [m for m in reader.messages if m.message_group != f"{topic}-3"]
        assert (tombstone.body, tombstone.properties["headrace-tombstone"]) == (b"null", "true")
        assert tombstone.properties["headrace-key"] == "键"
        for partition in range(3):
            expected = list(range(1000 * partition, 1000 * partition + 200))
            assert reader.bodies(f"{topic}-{partition}") == expected
        message = reader.messages[0]
        assert message.tag == "orders"
        assert set(message.keys) == {f"g#{int(message.body)}"}
        assert message.properties["headrace-pos"] == message.body.decode()
    finally:
        reader.close()


async def test_a_missing_topic_halts_after_the_retries(rocketmq: Any) -> None:
    async with opened(rocketmq, retries=1) as sink:
        confirmation = await sink.publish(batch(f"missing{next(_numbers)}", 1, 3))
        with pytest.raises(SinkRejected, match=r"there is no topic.*on_failure"):
            async with asyncio.timeout(LIMIT):
                await confirmation


async def test_a_topic_that_keeps_no_order_is_refused(rocketmq: Any) -> None:
    name = f"plain{next(_numbers)}"
    rocketmq.create_topic(name)
    async with opened(rocketmq, retries=0) as sink:
        with pytest.raises(SinkRejected, match="FIFO"):
            async with asyncio.timeout(LIMIT):
                await (await sink.publish(batch(name, 1, 1)))


async def test_a_cluster_that_is_away_is_said_in_a_sentence(rocketmq: Any) -> None:
    sink = RocketMqSink(settings(rocketmq, hosts="127.0.0.1:1"), Lease())
    with pytest.raises(SinkError, match=r"RocketMQ can't be reached \(127\.0\.0\.1:1"):
        await sink.start()
    assert len(await sink.check()) == 1
    assert await RocketMqSink(settings(rocketmq), Lease()).check() == []


@pytest.mark.long
async def test_a_cluster_that_is_killed_under_load_loses_nothing_that_was_confirmed(stack: Any) -> None:
    server = stack.rocketmq(None, name="rocketmq-killed")
    server.create_topic("stock", 4, "FIFO")
    confirmed: list[int] = []
    try:
        async with opened(server, request_timeout=3.0) as sink:
            with pytest.raises(SinkError):  # noqa: PT012
                async with asyncio.timeout(LIMIT):
                    for start in range(0, 100_000, 20):
                        confirmation = await sink.publish(batch("stock", start, 20, start // 20 % 4))
                        if start == 400:
                            await confirmation
                            confirmed = list(range(420))
                            server.kill()
        server.start()
        await asyncio.sleep(0)
        async with opened(server) as sink:  # again from the first that was not confirmed, as after a restart
            async with asyncio.timeout(LIMIT):
                for start in range(420, 600, 20):
                    await (await sink.publish(batch("stock", start, 20, start // 20 % 4)))
        reader = Reader(server, "stock")
        try:
            await reader.until(lambda: set(range(600)) <= set(reader.bodies()))
            assert set(confirmed) <= set(reader.bodies())
        finally:
            reader.close()
    finally:
        server.kill()


async def test_from_mysql_to_rocketmq_with_tags_and_order(
    mysql: Any,
    rocketmq: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    topic: str,
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
    sink = f'type = "rocketmq"\nhosts = "{rocketmq.endpoints}"\ntag = "{{table}}-{{type}}"'
    text = destination_toml(mysql, schema, sink).replace(
        f'topic = "{schema}"\n', f"topic = \"{topic}\"\npartitions = 4\npartition_hash = '.*\\..*:$pk$'\n"
    )
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    for n in range(5):
        execute(f"REPLACE INTO t VALUES {','.join(f'({i}, {n})' for i in range(40))}")
    process.wait("shop", lambda status: status["rows"] >= 200 and not status["oldest_unconfirmed_seconds"])
    reader = Reader(rocketmq, topic)
    newest: dict[str, int] = {}
    try:
        await reader.until(lambda: sum(len(json.loads(m.body)["data"] or ()) for m in reader.messages) >= 200)
        for message in reader.messages:
            decoded = json.loads(message.body)
            assert message.tag == f"t-{decoded['type']}" or decoded["isDdl"]
            for row in decoded["data"] or ():
                assert int(row["n"]) >= newest.get(row["id"], 0)
                newest[row["id"]] = int(row["n"])
        assert newest == {str(i): 4 for i in range(40)}
    finally:
        reader.close()
