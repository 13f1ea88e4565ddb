"""What the tests of exactly once share: a broker behind a proxy, runs of a destination, and a consumer's view."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from devstack import Stack
from headrace.adapters.kafka.exactly_once import ExactlyOnceKafkaSink
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state import KafkaStore
from headrace.adapters.kafka.transactor import Transactor
from headrace.lease import NO_TERM, Lease, Term
from headrace.model import MessageBatch, Position
from headrace.ports.state import Guard, StateChange, Stored
from tests.proxy import Proxy


class Cluster:
    """One broker, to be reached directly and through a proxy; it gives up left transactions within a second."""

    def __init__(self, kafka: Any, proxy: Proxy, proxied: str) -> None:
        self.direct: str = kafka.bootstrap_servers
        self.proxy, self.proxied = proxy, proxied

    def settings(self, *, proxied: bool = False, **more: Any) -> KafkaSinkSettings:
        raw = {
            "type": "kafka",
            "bootstrap_servers": self.proxied if proxied else self.direct,
            "delivery": "exactly_once",
            "request_timeout": 10.0,
            "transaction_timeout": 20.0,
            **more,
        }
        return KafkaSinkSettings.model_validate(raw)


@contextmanager
def cluster(stack: Stack) -> Iterator[Cluster]:
    proxies: list[Proxy] = []

    def advertise(_: int, port: int) -> int:
        proxies.append(Proxy("127.0.0.1", port))
        return proxies[-1].port

    impatient = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
    kafka = stack.kafka(name="once", settings=impatient, listeners={"PROXIED": advertise})
    proxy = proxies[-1]
    try:
        yield Cluster(kafka, proxy, f"127.0.0.1:{proxy.port}")
    finally:
        kafka.kill()
        for one in proxies:
            one.close()


class Run:
    """One run of a destination: sink, transactor and store, as the daemon puts them together."""

    def __init__(self, settings: KafkaSinkSettings, name: str, lease: Lease | None = None) -> None:
        self.settings, self.name = settings, name
        self.transactor = Transactor(settings, name, lease or Lease())
        self.sink = ExactlyOnceKafkaSink(settings, self.transactor)
        self.store = KafkaStore(settings, name, self.transactor)
        self.stored = Stored(None, 0, 0)
        self.guard = Guard(0, 0)

    async def start(self, term: Term = NO_TERM) -> Run:
        await self.sink.start()
        self.stored = await self.store.load(self.name)
        self.guard = await self.store.begin_epoch(self.name, term=term)
        return self

    async def publish(self, *values: bytes, at: int, topic: str = "", partition: int = 0) -> asyncio.Future[None]:
        """One batch that moves the position to `at`."""
        return await self.sink.publish(batch(topic or self.name, values, at, partition))

    async def commit(self, at: int, *entries: dict[str, Any]) -> None:
        self.guard = await self.store.commit(self.name, self.guard, StateChange(position(at), entries))


@asynccontextmanager
async def run(settings: KafkaSinkSettings, name: str, **more: Any) -> AsyncIterator[Run]:
    """A run that has taken over; it is cut off in the end, if it is still there."""
    one = Run(settings, name, more.pop("lease", None))
    try:
        yield await one.start(**more)
    finally:
        await one.sink.abort()


def new_name() -> str:
    """Of a destination, and of its topic: no other test has it."""
    return f"once-{uuid.uuid4().hex[:8]}"


def position(offset: int) -> Position:
    return Position("u", "bin.000001", offset, last_pos=offset)


def batch(topic: str, values: tuple[bytes, ...], at: int | None, partition: int = 0) -> MessageBatch:
    size = sum(map(len, values)) + 400 * len(values)
    place = None if at is None else position(at)
    return MessageBatch(topic, partition, list(values), [[] for _ in values], size=size, position=place)


async def make_topic(bootstrap: str, name: str, partitions: int = 1, copies: int = 1, **config: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await admin.create_topics([NewTopic(name, partitions, copies, topic_configs=settings)])
    finally:
        await admin.close()


async def until(condition: Callable[[], Awaitable[bool]], limit: float = 20) -> None:
    async with asyncio.timeout(limit):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


async def written(bootstrap: str, topic: str, value: bytes) -> None:
    """Until a broker has the value, in whatever transaction."""

    async def is_there() -> bool:
        return value in await consumed(bootstrap, topic, committed=False)

    await until(is_there)


async def consumed(
    bootstrap: str, topic: str, partition: int = 0, *, committed: bool = True, settled: bool = True
) -> list[bytes | None]:
    """What a consumer is shown, in order: of what is committed once no transaction is open, unless not `settled`."""
    level = "read_committed" if committed else "read_uncommitted"
    where = TopicPartition(topic, partition)
    async with consumer_of(bootstrap, level) as consumer:
        consumer.assign([where])
        if committed and settled:
            await nothing_open(bootstrap, where)
        end = (await consumer.end_offsets([where]))[where]
        values: list[bytes | None] = []
        while await consumer.position(where) < end:
            for records in (await consumer.getmany(where, timeout_ms=2000)).values():
                values += [record.value for record in records]
        return values


async def nothing_open(bootstrap: str, where: TopicPartition) -> None:
    """Waits for the end of every transaction: a commit is answered before its marker lies in each partition, and until
    then a consumer is not shown what was committed."""
    async with (
        consumer_of(bootstrap, "read_committed") as shown,
        consumer_of(bootstrap, "read_uncommitted") as there,
        asyncio.timeout(60),
    ):
        while await shown.end_offsets([where]) != await there.end_offsets([where]):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.05)


@asynccontextmanager
async def consumer_of(bootstrap: str, level: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False, isolation_level=level
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


def neighbour_of(name: str) -> str:
    """Another destination whose records lie in the same partition of the state topic."""
    from headrace.adapters.kafka.state_topic import partition_of

    return next(other for other in (f"{name}-{i}" for i in range(10_000)) if partition_of(other) == partition_of(name))
