"""Messages larger than their topic takes: the destination halts, or they are cut, or parked; real brokers say so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.sink import KafkaSink
from headrace.errors import SinkError, SinkRejected
from headrace.formats.canal.format import CanalFormat
from headrace.lease import Lease
from headrace.model import MessageBatch, Unit
from headrace.parking.ordering import Blocks
from headrace.ports.sink import MessageRefused, Parking, SinkRouting
from tests import once, parked
from tests.support import DaemonProcess, destination_toml, eventually, read_topic

pytestmark = pytest.mark.server

LIMIT = 50_000
PLAN = SinkRouting(split=CanalFormat().split)


def settings(kafka: Any, **more: Any) -> KafkaSinkSettings:
    raw = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "request_timeout": 15, **more}
    return KafkaSinkSettings.model_validate(raw)


Start = Callable[..., Awaitable[KafkaSink]]


@pytest.fixture
async def started(kafka: Any) -> AsyncIterator[Start]:
    """Starts sinks, which end with the test."""
    made: list[KafkaSink] = []

    async def start(parking: Parking | None = None, **more: Any) -> KafkaSink:
        made.append(KafkaSink(settings(kafka, **more), Lease(), parking, PLAN))
        await made[-1].start()
        return made[-1]

    yield start
    for sink in made:
        await sink.abort()


@pytest.fixture
async def topic(kafka: Any) -> str:
    """One that takes record batches of LIMIT bytes."""
    name = once.new_name()
    await once.make_topic(kafka.bootstrap_servers, name, max_message_bytes=str(LIMIT))
    return name


class FakeParking(Parking):
    """Remembers what was parked."""

    def __init__(self) -> None:
        self.blocks = Blocks()
        self.parked: list[tuple[bytes | None, str, int]] = []

    @property
    def empty(self) -> bool:
        return not self.parked

    def blocked(self, scope: str, unit: Unit) -> bool:
        return self.blocks.blocks(scope, unit)

    def park(self, scope: str, batch: MessageBatch, index: int, reason: str, attempts: int) -> None:
        assert batch.units is not None
        self.blocks.add(scope, batch.units[index])
        self.parked.append((batch.values[index], reason, attempts))


def batch(topic: str, *values: bytes, first: int = 0, keys: list[bytes | None] | None = None) -> MessageBatch:
    headers = [
        [("headrace-id", b"g#%d" % n), ("headrace-pos", b"%d" % (1000 * n))] for n in range(first, first + len(values))
    ]
    return MessageBatch(topic, 0, list(values), headers, size=sum(map(len, values)) + 400 * len(values), keys=keys)


def message(rows: int, row_bytes: int, first: int = 0) -> bytes:
    data = [{"id": str(n), "text": "x" * row_bytes} for n in range(first, first + rows)]
    return json.dumps({"data": data, "old": None, "table": "t", "_pos": str(1000 * first)}).encode()


# -- halt --------------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_too_large_halts_with_its_size_and_what_to_do(
    started: Start, topic: str, kafka: Any
) -> None:
    sink = await started()
    await (await sink.publish(batch(topic, b"1")))
    with pytest.raises(
        SinkRejected, match=rf"a record of 60,\d\d\d bytes, is larger than the 50,000 that {topic}"
    ) as caught:
        await sink.publish(batch(topic, b"2", b"x" * 60_000, b"3"))
    assert "max.message.bytes of the topic" in caught.value.remedy
    assert '"split" or "park"' in caught.value.remedy
    assert await once.consumed(kafka.bootstrap_servers, topic) == [b"1"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_many_messages_that_fit_each_come_through_though_batch_bytes_is_larger_than_the_topic_takes(
    started: Start, kafka: Any, topic: str, delivery: str
) -> None:
    values = tuple(b"%d" % n + b"x" * 20_000 for n in range(20))
    if delivery == "at_least_once":
        sink = await started(batch_bytes=900_000)
        await (await sink.publish(once.batch(topic, values, 1)))
    else:
        async with once.run(settings(kafka, delivery=delivery, batch_bytes=900_000), topic) as one:
            await (await one.publish(*values, at=10))
            await one.sink.close()
    assert await once.consumed(kafka.bootstrap_servers, topic) == list(values)


async def test_a_message_that_fits_once_compressed_comes_through(started: Start, kafka: Any, topic: str) -> None:
    large = b"x" * 400_000
    for policy in ("halt", "split", "park"):
        parking = FakeParking() if policy == "park" else None
        sink = await started(parking, compression="gzip", on_oversize=policy)
        await (await sink.publish(batch(topic, b"1", large)))
        assert parking is None or not parking.parked
    assert await once.consumed(kafka.bootstrap_servers, topic) == [b"1", large] * 3


async def test_max_request_size_counts_before_what_the_topic_takes(started: Start, topic: str, kafka: Any) -> None:
    sink = await started(max_request_size=2000)
    with pytest.raises(SinkRejected, match="larger than the 2,000") as caught:
        await sink.publish(batch(topic, b"x" * 3000))
    assert "max_request_size" in caught.value.remedy
    sink = await started(max_request_size=200_000)
    with pytest.raises(SinkRejected, match="MessageSizeTooLarge"):  # the brokers' own words
        await (await sink.publish(batch(topic, b"x" * 100_000)))


# -- split -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [False, True])
async def test_a_message_of_many_rows_is_cut_and_its_rows_are_all_there(
    started: Start, topic: str, kafka: Any, keys: bool
) -> None:
    sink = await started(on_oversize="split")
    values = [message(1, 10), message(300, 700, 1), message(1, 10, 301), message(200, 1500, 302)]
    made = batch(topic, *values, keys=[b"k%d" % n for n in range(4)] if keys else None)
    await (await sink.publish(made))
    records = await read_topic(kafka.bootstrap_servers, topic)
    rows = [row["id"] for record in records for row in json.loads(record.value)["data"]]
    assert rows == [str(n) for n in range(502)]
    assert len(records) > 8
    assert all(len(record.value) < LIMIT for record in records)
    heads = [dict(record.headers) for record in records]
    ids = [head["headrace-id"] for head in heads]
    assert len(set(ids)) == len(ids)
    assert (ids[0], ids[1]) == (b"g#0", b"g#1.0")
    for record, head in zip(records, heads, strict=True):
        first = int(json.loads(record.value)["data"][0]["id"])
        origin = max(n for n in (0, 1, 301, 302) if n <= first)
        number = (0, 1, 301, 302).index(origin)
        assert int(head["headrace-pos"]) == 1000 * number + first - origin
        assert not keys or record.key == b"k%d" % number


async def test_a_single_row_that_is_too_large_halts(started: Start, topic: str, kafka: Any) -> None:
    sink = await started(on_oversize="split")
    for value in (message(1, 60_000), b"x" * 60_000):
        with pytest.raises(SinkRejected, match="is larger than the 50,000"):
            await sink.publish(batch(topic, message(1, 10), value))
    rows = json.loads(message(3, 10))
    rows["data"][1]["text"] = "x" * 60_000
    with pytest.raises(SinkRejected, match="is larger than the 50,000"):
        await sink.publish(batch(topic, json.dumps(rows).encode()))
    assert await once.consumed(kafka.bootstrap_servers, topic) == []


async def test_exactly_once_cuts_too(topic: str, kafka: Any) -> None:
    one = once.Run(settings(kafka, delivery="exactly_once", on_oversize="split"), topic)
    one.sink._sizes._routing = PLAN
    try:
        await one.start()
        await (await one.publish(message(300, 700), at=10))
        await one.sink.close()
    finally:
        await one.sink.abort()
    parts = [json.loads(value or b"") for value in await once.consumed(kafka.bootstrap_servers, topic)]
    assert [row["id"] for part in parts for row in part["data"]] == [str(n) for n in range(300)]


# -- park --------------------------------------------------------------------------------------------------------------


async def test_a_message_is_parked_with_what_comes_later_for_its_rows(started: Start, topic: str, kafka: Any) -> None:
    parking = FakeParking()
    sink = await started(parking, on_oversize="park")
    made = parked.batch(*map(parked.unit, ("a", "b", "a", "b", "c")), topic=topic)
    made.values[1] = b"x" * 60_000
    await (await sink.publish(made))
    assert await once.consumed(kafka.bootstrap_servers, topic) == [b"body 1", b"body 3", b"body 5"]
    (large, reason, attempts), behind = parking.parked
    assert (large, attempts) == (b"x" * 60_000, 1)
    assert "is larger than the 50,000" in reason
    assert behind == (b"body 4", "", 0)
    again = parked.batch(parked.unit("b"), parked.unit(), parked.unit("c", table="shop.other"), first=6, topic=topic)
    await (await sink.publish(again))
    assert [value for value, _, _ in parking.parked[2:]] == [b"body 6", b"body 7"]
    only = parked.batch(parked.unit("b"), first=9, topic=topic)
    assert (await sink.publish(only)).done(), "nothing of it is left to be confirmed"
    assert await once.consumed(kafka.bootstrap_servers, topic) == [b"body 1", b"body 3", b"body 5", b"body 8"]


async def test_exactly_once_moves_on_when_all_of_a_batch_is_parked(topic: str, kafka: Any) -> None:
    parking = FakeParking()
    async with once.run(settings(kafka, delivery="exactly_once", on_oversize="park"), topic) as one:
        one.sink._sizes._parking = parking
        made = parked.batch(parked.unit("a"), topic=topic)
        made.values[0], made.position = b"x" * 60_000, once.position(10)
        await (await one.sink.publish(made))
        await one.sink.close()
    assert len(parking.parked) == 1
    assert await once.consumed(kafka.bootstrap_servers, topic) == []
    async with once.run(settings(kafka, delivery="exactly_once"), topic) as again:
        assert again.stored.position == once.position(10)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_what_was_parked_is_sent_again_once_the_topic_takes_it(
    started: Start, topic: str, kafka: Any, delivery: str
) -> None:
    made = parked.batch(parked.unit("a"), topic=topic)
    made.values[0] = b"x" * 60_000
    made.keys = [b"the key"]
    parking = FakeParking()
    if delivery == "at_least_once":
        sink: Any = await started(parking, on_oversize="park")
        run = None
    else:
        run = once.Run(settings(kafka, delivery=delivery, on_oversize="park"), topic)
        sink = run.sink
        sink._parking = sink._sizes._parking = parking
        await run.start()
        await run.commit(5)
    with pytest.raises(MessageRefused, match="is larger than the 50,000"):
        await sink.resend(made)
    assert await once.consumed(kafka.bootstrap_servers, topic) == []
    await enlarge(kafka, topic)
    await sink.resend(made)
    (record,) = [one for one in await read_topic(kafka.bootstrap_servers, topic) if one.value is not None]
    assert (record.value, record.key, record.headers) == (b"x" * 60_000, b"the key", tuple(made.headers[0]))
    if run is not None:
        await (await run.publish(b"2", at=20))
        await sink.close()
        assert run.sink.version > 1


async def test_exactly_once_sends_again_during_an_open_transaction(topic: str, kafka: Any) -> None:
    chosen = settings(kafka, delivery="exactly_once", on_oversize="park", transaction_interval=20.0)
    async with once.run(chosen, topic) as one:
        await one.commit(5)
        await one.sink.publish(once.batch(topic, (b"half",), None))
        resending = one.sink.resend(parked.batch(parked.unit("a"), topic=topic))
        task = asyncio.create_task(resending)
        await parked.until(lambda: len(one.sink._waiting) == 2)
        await asyncio.sleep(0.2)
        assert not task.done(), "half a MySQL transaction is not committed"
        await one.publish(b"rest", at=10)
        one.sink.hurry()
        await task
        assert await once.consumed(kafka.bootstrap_servers, topic) == [b"half", b"body 1", b"rest"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_a_message_whose_topic_or_partition_is_gone_is_refused_and_others_go_on(
    started: Start, topic: str, kafka: Any, delivery: str
) -> None:
    run = None
    if delivery == "at_least_once":
        sink: Any = await started(FakeParking(), on_oversize="park")
    else:
        run = once.Run(settings(kafka, delivery=delivery, on_oversize="park"), topic)
        sink = run.sink
        await run.start()
        await run.commit(5)
    lost, nowhere, bad = (parked.batch(parked.unit(key), topic=topic) for key in "abc")
    lost.partition, nowhere.topic, bad.topic = 7, f"{topic}-gone", "not/a/topic"
    sink._sizes._topics._settings = settings(kafka, create_topics=True, topic_replication=9)  # it can't be made
    results = await asyncio.gather(
        *(sink.resend(one) for one in (lost, nowhere, bad, parked.batch(parked.unit("d"), first=4, topic=topic))),
        return_exceptions=True,
    )
    assert [type(one) for one in results[:3]] == [MessageRefused] * 3, results
    assert "has 1 partitions, and no number 7" in str(results[0])
    assert results[3] is None
    await (await sink.publish(once.batch(topic, (b"next",), 20)))
    assert await once.consumed(kafka.bootstrap_servers, topic) == [b"body 4", b"next"]
    if run is not None:
        await sink.close()


@pytest.mark.parametrize("moment", ["before", "meanwhile"])
async def test_a_sink_that_is_ended_refuses_nothing(topic: str, started: Start, moment: str) -> None:
    sink = await started(FakeParking(), on_oversize="park")
    if moment == "before":
        await sink.abort()
    resending = asyncio.create_task(sink.resend(parked.batch(parked.unit("a"), topic=topic)))
    await asyncio.sleep(0)
    await sink.abort()
    await asyncio.wait([resending], timeout=10)
    assert resending.cancelled() or type(resending.exception()) is SinkError


async def enlarge(kafka: Any, topic: str) -> None:
    """Allows a topic larger messages, and waits until the brokers know it."""
    from aiokafka.admin import AIOKafkaAdminClient
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": "500000"})])
        asked = ConfigResource(ConfigResourceType.TOPIC, topic, {"max.message.bytes": ""})
        async with asyncio.timeout(30):
            while "500000" not in str((await admin.describe_configs([asked]))[0].resources):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        await admin.close()


# -- the daemon --------------------------------------------------------------------------------------------------------


async def test_the_daemon_cuts_a_large_statement_and_halts_at_a_large_row(
    mysql: Any, kafka: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    await once.make_topic(kafka.bootstrap_servers, schema, max_message_bytes="6000")
    execute("CREATE TABLE t (id INT PRIMARY KEY, text MEDIUMTEXT)")
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\non_oversize = "split"'
    process = daemon(shop=destination_toml(mysql, schema, sink)).start()
    process.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES " + ",".join(f"({n}, '{'家' * 100}')" for n in range(200)))
    rows: list[str] = []
    while len(rows) < 200:
        records = await read_topic(kafka.bootstrap_servers, schema)
        rows = [row["id"] for one in records for row in json.loads(one.value)["data"] or ()]
    assert rows == [str(n) for n in range(200)]
    ids = [dict(one.headers)["headrace-id"] for one in records]
    assert len(set(ids)) == len(ids)
    execute(f"INSERT INTO t VALUES (1000, '{'x' * 9000}')")
    status = process.wait_state("shop", "FAILED")
    assert "is larger than the 6,000" in status["last_error"]
    execute("DELETE FROM t WHERE id = 1000")
    eventually(lambda: process.health()[1]["destinations"]["shop"]["reason"] == "sink")
