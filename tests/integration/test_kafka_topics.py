"""Topics of the Kafka sink: made when asked for, refused when they do not fit [route], and every compression."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from devstack import Stack
from headrace.adapters.kafka.aiokafka_internals import packed_size
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.sink import KafkaSink
from headrace.errors import SinkError, SinkRejected
from headrace.lease import Lease
from headrace.ports.finding import Finding, Level
from headrace.ports.sink import MessageRefused, SinkRouting
from tests import once
from tests.support import DaemonProcess, destination_toml, read_topic

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def strict(stack: Stack) -> Iterator[Any]:
    """A broker that makes no topics by itself."""
    kafka = stack.kafka(name="strict", settings={"auto.create.topics.enable": "false"})
    yield kafka
    kafka.kill()


def settings(kafka: Any, **more: Any) -> KafkaSinkSettings:
    raw = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "request_timeout": 15, **more}
    return KafkaSinkSettings.model_validate(raw)


Start = Callable[..., Awaitable[KafkaSink]]


@pytest.fixture
async def started() -> AsyncIterator[Start]:
    """Starts sinks, which end with the test."""
    made: list[KafkaSink] = []

    async def start(kafka: Any, partitions: int = 1, **more: Any) -> KafkaSink:
        sink = KafkaSink(settings(kafka, **more), Lease(), routing=SinkRouting(partitions=lambda _: partitions))
        made.append(sink)
        await sink.start()
        return sink

    yield start
    for sink in made:
        await sink.abort()


async def topic_of(kafka: Any, name: str) -> dict[str, Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        (found,) = await admin.describe_topics([name])
    finally:
        await admin.close()
    return dict(found)


async def test_a_missing_topic_is_made_as_route_asks_for_it(strict: Any, started: Start) -> None:
    name = once.new_name()
    sink = await started(strict, 5, create_topics=True)
    await (await sink.publish(once.batch(name, (b"1",), 1, partition=4)))
    await (await sink.publish(once.batch(name, (b"2",), 1, partition=0)))
    await sink.close()
    assert len((await topic_of(strict, name))["partitions"]) == 5
    assert await once.consumed(strict.bootstrap_servers, name, 4) == [b"1"]


async def test_two_sinks_that_make_the_same_topic_at_once_both_go_on(strict: Any, started: Start) -> None:
    name = once.new_name()
    sinks = [await started(strict, 3, create_topics=True) for _ in range(4)]
    dones = await asyncio.gather(*(sink.publish(once.batch(name, (b"1",), 1)) for sink in sinks))
    await asyncio.gather(*dones)
    for sink in sinks:
        await sink.close()
    assert await once.consumed(strict.bootstrap_servers, name) == [b"1"] * 4


async def test_more_copies_than_brokers_are_refused_with_the_brokers_words(strict: Any, started: Start) -> None:
    sink = await started(strict, create_topics=True, topic_replication=3)
    with pytest.raises(SinkRejected, match=r"can't be made .*Unable to replicate the partition 3 time") as caught:
        await sink.publish(once.batch(once.new_name(), (b"1",), 1))
    assert "topic_replication" in caught.value.remedy
    await sink.abort()


async def test_a_topic_that_nobody_makes_is_an_error_with_its_remedy(strict: Any, started: Start) -> None:
    sink, name = await started(strict, 4), once.new_name()
    async with asyncio.timeout(12):
        with pytest.raises(SinkRejected, match=f"there is no topic {name}, and the brokers make none") as caught:
            await sink.publish(once.batch(name, (b"1",), 1))
    assert caught.value.remedy == "make it with 4 partitions, or set [sink] create_topics = true"
    await sink.abort()


@pytest.mark.parametrize("create", [True, False])
async def test_a_topic_with_too_few_partitions_is_refused_before_anything_is_sent(
    strict: Any, started: Start, create: bool
) -> None:
    name = once.new_name()
    await once.make_topic(strict.bootstrap_servers, name, 2)
    sink = await started(strict, 3, create_topics=create)
    with pytest.raises(SinkRejected, match=f"the topic {name} has 2 partitions, and \\[route\\] sends to 3") as caught:
        await sink.publish(once.batch(name, (b"1",), 1))
    assert f"--alter --topic {name} --partitions 3" in caught.value.remedy
    await sink.abort()
    assert await once.consumed(strict.bootstrap_servers, name) == []


async def test_brokers_that_make_topics_are_left_to_it(kafka: Any, started: Start) -> None:
    name = once.new_name()
    sink = await started(kafka)
    await (await sink.publish(once.batch(name, (b"1",), 1)))
    with pytest.raises(SinkRejected, match="has 1 partitions, and \\[route\\] sends to 3"):
        await (await started(kafka, 3)).publish(once.batch(name, (b"1",), 1))
    await sink.close()


async def test_exactly_once_makes_topics_too(strict: Any) -> None:
    name = once.new_name()
    async with once.run(settings(strict, delivery="exactly_once", create_topics=True), name) as one:
        await (await one.publish(b"1", at=10))
        await one.sink.close()
    assert await once.consumed(strict.bootstrap_servers, name) == [b"1"]
    async with once.run(settings(strict, delivery="exactly_once"), name) as one:
        with pytest.raises(SinkRejected, match="there is no topic nowhere"):
            await one.publish(b"2", at=20, topic="nowhere")


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd", "snappy"])
async def test_each_compression_comes_through_and_makes_it_smaller(
    kafka: Any, started: Start, compression: str
) -> None:
    name = once.new_name()
    sink = await started(kafka, compression=compression)
    batch = once.batch(name, tuple(b'{"n":%d,"text":"%b"}' % (n, b"abc" * 2000) for n in range(500)), 1)
    assert (packed_size(sink._producer, batch, 0) < 1000) is (compression != "none")
    await (await sink.publish(batch))
    await sink.close()
    assert await once.consumed(kafka.bootstrap_servers, name) == batch.values


async def test_check_reports_what_is_wrong_with_topics(
    mysql: Any, strict: Any, schema: str, daemon: Callable[..., DaemonProcess]
) -> None:
    few, missing = f"{schema}-few", f"{schema}-missing"
    await once.make_topic(strict.bootstrap_servers, few, 2)
    sink = f'type = "kafka"\nbootstrap_servers = "{strict.bootstrap_servers}"'
    text = destination_toml(mysql, schema, sink).replace(
        f'topic = "{schema}"',
        f'topic = "{few}"\npartitions = 4\npartition_hash = "{schema}\\\\..*:$pk$"\n'
        f'dynamic_topic = "{missing}:{schema}\\\\.x,{schema}-{{table}}:{schema}\\\\.y"\n'
        f'dynamic_topic_partitions = "{missing}:7"',
    )
    process = daemon(shop=text)
    status, printed = await asyncio.to_thread(process.command, "check")
    assert status == 1
    assert f"the topic {few} has 2 partitions, and [route] sends to 4" in printed
    assert f"there is no topic {missing}, and the brokers make none by themselves" in printed
    assert "make it with 7 partitions" in printed


async def test_copies_that_do_not_fit_min_insync_replicas_are_reported(stack: Stack) -> None:
    cluster = stack.kafka(2, name="copies")
    address = cluster.bootstrap_servers

    async def findings(topic: str) -> list[Finding]:
        return await KafkaSink(settings(cluster), Lease(), routing=SinkRouting((topic,))).check()

    async def finding(copies: int, insync: int) -> Finding:
        """Once the brokers know the topic."""
        topic = once.new_name()
        await once.make_topic(address, topic, 1, copies, min_insync_replicas=str(insync))

        found: list[Finding] = []

        async def is_reported() -> bool:
            found[:] = await findings(topic)
            return bool(found)

        await once.until(is_reported)
        (reported,) = found
        return reported

    try:
        well = [once.new_name(), once.new_name()]
        for copies, topic in enumerate(well, 1):
            await once.make_topic(address, topic, 1, copies, min_insync_replicas=str(copies))
        reported = await finding(1, 2)
        assert reported.level is Level.WRONG
        assert "is 2, and it has 1 copy: the brokers confirm no message" in reported.sentence
        reported = await finding(2, 1)
        assert reported.level is Level.WARNING
        assert "is 1 with 2 copies" in reported.sentence
        assert [await findings(topic) for topic in well] == [[], []]
    finally:
        cluster.kill()


async def test_the_daemon_makes_a_topic_for_each_table(
    mysql: Any, strict: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    sink = f'type = "kafka"\nbootstrap_servers = "{strict.bootstrap_servers}"\ncreate_topics = true'
    text = destination_toml(mysql, schema, sink, more="[message]\nrows_per_message = 1").replace(
        f'topic = "{schema}"',
        f'topic = "{schema}"\ndynamic_topic = "{schema}-{{table}}:{schema}\\\\..*"\npartitions = 3\n'
        f'partition_hash = "{schema}\\\\..*:$pk$"\ndynamic_topic_partitions = "{schema}-b:2"',
    )
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    execute(*(f"INSERT INTO {table} VALUES {','.join(f'({n})' for n in range(30))}" for table in "ab"))
    found: dict[str, list[set[str]]] = {}

    async def read() -> None:
        for table, count in (("a", 3), ("b", 2)):
            records = [await read_topic(strict.bootstrap_servers, f"{schema}-{table}", n) for n in range(count)]
            found[table] = [{json.loads(one.value)["data"][0]["id"] for one in part} for part in records]

    async with asyncio.timeout(30):
        while not found or sum(map(len, found["a"] + found["b"])) < 60:
            if len((await topic_of(strict, f"{schema}-b"))["partitions"]) == 2:
                await read()
    assert set().union(*found["a"]) == set().union(*found["b"]) == {str(n) for n in range(30)}
    assert all(found["a"] + found["b"]), "all partitions got some"
    assert process.terminate() == 0


async def checked_a_moment_ago(*_: Any) -> None:
    """In place of what checks the topic before a message is sent again."""


@pytest.mark.long
async def test_resends_that_no_broker_answers_end_the_sink_in_time_also_where_they_wait_for_room(
    stack: Stack, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = stack.kafka(name="frozen")
    sink = await started(kafka, request_timeout=2.0, on_oversize="park", max_in_flight_bytes="64KiB")
    message = once.batch(once.new_name(), (b"x" * 60_000,), None)
    await sink.resend(message)
    monkeypatch.setattr(sink._sizes, "check_again", checked_a_moment_ago)
    kafka.brokers[0].freeze()
    try:
        async with asyncio.timeout(20):
            results = await asyncio.gather(*(sink.resend(message) for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in results] == [SinkError] * 3, results
        assert all("sent again, within 4 s" in str(one) for one in results)
        assert sink.failure is not None
        with pytest.raises(SinkError, match="sent again, within 4 s"):
            await sink.publish(message)
    finally:
        kafka.kill()


async def test_a_resend_that_the_broker_refuses_is_one_refusal_and_the_end_of_the_producer(
    kafka: Any, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = await started(kafka, on_oversize="park")
    topic = once.new_name()
    await once.make_topic(kafka.bootstrap_servers, topic, max_message_bytes="50000")
    await sink.resend(once.batch(topic, (b"small",), None))
    monkeypatch.setattr(sink._sizes, "check_again", checked_a_moment_ago)
    monkeypatch.setattr(sink._sizes, "limit", lambda _: 0)
    with pytest.raises(MessageRefused):
        await sink.resend(once.batch(topic, (b"x" * 60_000,), None))
    assert isinstance(sink.failure, SinkError)
    assert not isinstance(sink.failure, SinkRejected), "another producer can go on"
    again = await started(kafka, on_oversize="park")
    await again.resend(once.batch(topic, (b"next",), None))
    assert await once.consumed(kafka.bootstrap_servers, topic) == [b"small", b"next"]
