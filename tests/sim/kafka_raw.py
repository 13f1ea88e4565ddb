"""Raw requests to a broker, real or modelled, and the record batches that they carry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import conn
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v11
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from sim.kafka import codes

T = TypeVar("T")
RETRIED = (
    codes.CONCURRENT_TRANSACTIONS,
    codes.COORDINATOR_LOAD_IN_PROGRESS,
    codes.COORDINATOR_NOT_AVAILABLE,
    codes.NOT_COORDINATOR,
)
"""Codes that a client waits for the end of."""
Producer = tuple[int, int]
"""Producer id and epoch."""
NOBODY: Producer = (-1, -1)


async def until(ask: Callable[[], Awaitable[T]], ready: Callable[[T], bool]) -> T:
    """Asks until the answer is the one that is waited for, and returns it."""
    async with asyncio.timeout(30):
        while not ready(answer := await ask()):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.02)
    return answer


def batch(
    *values: bytes, producer: Producer = NOBODY, sequence: int = -1, transactional: bool = False, timestamp: int = 1000
) -> bytes:
    """A record batch, a millisecond from record to record."""
    builder = DefaultRecordBatchBuilder(2, 0, transactional, *producer, sequence, 1 << 30)
    for number, value in enumerate(values):
        assert builder.append(number, timestamp + number, b"k", value, []) is not None
    return bytes(builder.build())


class Raw:
    """One connection, with answers reduced to what tests look at."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def send(self, request: Any) -> Any:
        return await self.connection.send(request)

    async def produce(
        self, topic: str, data: bytes, partition: int = 0, *, acks: int = -1, name: str | None = None, wait: int = 5000
    ) -> tuple[int, int]:
        """Error code and offset."""
        answer = await self.send(ProduceRequest(name, acks, wait, [(topic, [(partition, data)])]))
        ((_, ((_, code, offset, *_),)),) = answer.topics
        return code, offset

    async def fetch(
        self,
        topic: str,
        offset: int,
        partition: int = 0,
        *,
        committed: bool = False,
        wait: int = 0,
        most: int = 1 << 20,
    ) -> tuple[int, int, int, list[tuple[int, int]] | None, list[Any]]:
        """Error code, high watermark, last stable offset, aborted transactions and batches."""
        request = FetchRequest(wait, 1, 50 << 20, int(committed), [(topic, [(partition, offset, most)])])
        return self._fetched(await self.send(request))

    async def fetch_at(self, topic: str, offset: int, epoch: int) -> int:
        """The error code for a client that knows the leader's epoch."""
        wanted = [(topic, [(0, epoch, offset, -1, 1 << 20)])]
        request = FetchRequest_v11(-1, 0, 1, 1 << 20, 0, 0, -1, wanted, [], "")
        return self._fetched(await self.send(_Exact(request)))[0]

    def _fetched(self, answer: Any) -> tuple[int, int, int, list[tuple[int, int]] | None, list[Any]]:
        ((_, ((_, code, high, stable, _, aborted, _, data),)),) = answer.topics
        found, records = [], MemoryRecords(data or b"")
        while records.has_next():
            found.append(records.next_batch())
        return code, high, stable, aborted, found

    async def values(self, topic: str, offset: int = 0, *, committed: bool = False) -> list[tuple[int, bytes]]:
        """Offset and value of each record in what one answer has, also of aborted transactions."""
        batches = (await self.fetch(topic, offset, committed=committed))[4]
        return [(one.offset, one.value) for found in batches if not found.is_control_batch for one in found]

    async def offset(
        self, topic: str, timestamp: int, partition: int = 0, *, committed: bool = False
    ) -> tuple[int, int]:
        """Error code and offset."""
        answer = await self.send(OffsetRequest(-1, int(committed), [(topic, [(partition, timestamp)])]))
        ((_, ((_, code, _, offset),)),) = answer.topics
        return code, offset

    async def create(
        self, name: str, partitions: int = 1, copies: int = 1, check: bool = False, **config: str
    ) -> tuple[int, str]:
        """Error code and text."""
        wanted = [(name, partitions, copies, [], [(key.replace("_", "."), value) for key, value in config.items()])]
        answer = await self.send(CreateTopicsRequest(wanted, 5000, check))
        ((_, code, text),) = answer.topic_errors
        return code, text

    async def metadata(self, topic: str, *, create: bool = False) -> tuple[int, list[tuple[int, int, list[int]]]]:
        """Error code; and error code, leader and in-sync replicas of each partition."""
        ((code, _, _, partitions),) = (await self.send(MetadataRequest([topic], create))).topics
        return code, [(wrong, leader, isr) for wrong, _, leader, _, isr, *_ in partitions]

    async def coordinator(self, name: str, kind: int = 1) -> tuple[int, int]:
        """Error code and broker."""
        answer = await self.send(FindCoordinatorRequest(name, kind))
        return answer.error_code, answer.coordinator_id

    async def init(self, name: str | None, timeout: int = 10_000) -> tuple[int, Producer]:
        """Error code, producer id and epoch."""
        answer = await self.send(InitProducerIdRequest(name, timeout))
        return answer.error_code, (answer.producer_id, answer.producer_epoch)

    async def add(self, name: str, producer: Producer, *partitions: tuple[str, int]) -> list[int]:
        """The error code of each partition, in the order of the request: a client finds them by their topics."""
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(number)
        answer = await self.send(AddPartitionsToTxnRequest(name, *producer, list(topics.items())))
        found = {(topic, number): code for topic, numbers in answer.errors for number, code in numbers}
        return [found[one] for one in partitions]

    async def end(self, name: str, producer: Producer, commit: bool) -> int:
        """The error code."""
        code: int = (await self.send(EndTxnRequest(name, *producer, commit))).error_code
        return code

    async def started(self, name: str, timeout: int = 10_000) -> Producer:
        """A transactional producer, after what clients have to wait for."""
        await until(lambda: self.coordinator(name), lambda found: found[0] not in RETRIED)
        code, producer = await until(lambda: self.init(name, timeout), lambda found: found[0] not in RETRIED)
        assert code == 0
        return producer

    async def added(self, name: str, producer: Producer, *partitions: tuple[str, int]) -> None:
        """Adds partitions, after the former transaction is complete."""
        found = await until(lambda: self.add(name, producer, *partitions), lambda found: found[0] not in RETRIED)
        assert not any(found)

    async def ended(self, name: str, producer: Producer, commit: bool) -> int:
        """The error code once nothing is being completed."""
        return await until(lambda: self.end(name, producer, commit), lambda code: code not in RETRIED)

    async def exists(self, topic: str) -> None:
        """Until each partition of a topic has a leader."""
        await until(
            lambda: self.metadata(topic),
            lambda found: not found[0] and all(leader >= 0 for _, leader, _ in found[1]),
        )

    async def leads(self, topic: str) -> None:
        """Until this broker knows that it leads each partition of a topic."""
        await self.exists(topic)
        for number in range(len((await self.metadata(topic))[1])):
            await until(lambda number=number: self.offset(topic, -1, number), lambda found: not found[0])  # type: ignore[misc]

    async def settled(self, topic: str) -> None:
        """Until no transaction is open in a topic: a marker comes a moment after the answer."""

        async def ends() -> bool:
            return await self.offset(topic, -1) == await self.offset(topic, -1, committed=True)

        await until(ends, bool)


class _Exact:
    """A request whose version is chosen already."""

    def __init__(self, struct: Any) -> None:
        self._struct = struct

    def prepare(self, _: Any) -> Any:
        return self._struct


@asynccontextmanager
async def raw(address: str) -> AsyncIterator[Raw]:
    """A connection to host:port."""
    host, _, port = address.partition(":")
    connection = await conn.create_conn(host, int(port), client_id="raw", request_timeout_ms=20_000)
    try:
        yield Raw(connection)
    finally:
        await connection.close()
