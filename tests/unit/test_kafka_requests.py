"""Requests of a producer: those written in pieces have the bytes that aiokafka would have written."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol import produce
from aiokafka.protocol.produce import ProduceRequest

from headrace.adapters.kafka.aiokafka_internals import Connection, pieces_of
from headrace.adapters.kafka.producer import make_producer
from headrace.adapters.kafka.settings import KafkaSinkSettings

TOPICS = {
    "one partition": [("shop", [(3, b"a record batch")])],
    "several": [("shop", [(0, b"first" * 1000), (7, b"second")]), ("größe", [(1, b"third")])],
    "none": [],
}
VERSIONS = [getattr(produce, f"ProduceRequest_v{number}") for number in range(9)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topics", TOPICS.values(), ids=TOPICS)
def test_the_pieces_are_the_request(version: Any, topics: Any) -> None:
    head = () if version.API_VERSION < 3 else ("t1",)
    request = version(*head, -1, 30_000, topics)
    pieces = pieces_of(request)
    assert b"".join(pieces) == request.encode()
    batches = [records for _, partitions in topics for _, records in partitions]
    assert [piece for piece in pieces if any(piece is batch for batch in batches)] == batches, "they are not copied"


class Writer:
    """Keeps what is written; `broken`: refuses it; `lost`: drops it, and takes no writelines()."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = self.broken = self.lost = False

    def is_closing(self) -> bool:
        return self.lost

    def write(self, data: bytes) -> None:
        assert self.lost

    def writelines(self, parts: Any) -> None:
        if self.broken:
            raise OSError("broken")
        assert not self.lost, "Python 3.12 would fail here, or break another connection"
        self.written += parts

    def close(self) -> None:
        self.closed = True


@pytest.fixture
async def connection() -> AsyncIterator[Connection]:
    """One that believes to be connected."""
    made = Connection("k", 9092, client_id="headrace", request_timeout_ms=30_000)
    writer: Any = Writer()
    made._reader, made._writer, made._versions = asyncio.StreamReader(), writer, {0: (0, 8)}
    made._read_task = asyncio.create_task(asyncio.Event().wait())
    yield made
    made.close()


async def test_a_connection_writes_a_frame_whose_record_batch_is_not_copied(connection: Connection) -> None:
    writer, records = connection._writer, b"record batch" * 10
    topics = [("shop", [(3, records)])]
    asked = asyncio.ensure_future(connection.send(ProduceRequest(None, -1, 30_000, topics)))
    assert connection._writer is writer
    frame = b"".join(writer.written)
    assert struct.unpack_from(">ihh", frame) == (len(frame) - 4, 0, 7)
    assert frame.endswith(produce.ProduceRequest_v7(None, -1, 30_000, topics).encode())
    assert writer.written[-1] is records
    assert len(connection._requests) == 1
    connection.close()
    with pytest.raises(KafkaConnectionError, match="closed"):
        await asked


async def test_a_connection_that_breaks_while_a_request_is_written_is_closed(connection: Connection) -> None:
    writer = connection._writer
    writer.broken = True
    with pytest.raises(KafkaConnectionError, match="broken"):
        connection.send(ProduceRequest(None, -1, 30_000, [("shop", [(3, b"x")])]))
    assert writer.closed
    assert connection._writer is None


async def test_a_request_on_a_connection_that_is_lost_already_is_dropped(connection: Connection) -> None:
    connection._writer.lost = True
    asked = asyncio.ensure_future(connection.send(ProduceRequest(None, -1, 30_000, [("shop", [(3, b"x")])])))
    connection.close()
    with pytest.raises(KafkaConnectionError, match="closed"):
        await asked


@pytest.mark.parametrize("after", [0, 1])
async def test_a_lost_connection_takes_nothing_of_others_with_it(after: int) -> None:
    """`after`: turns of the loop between the loss and the request; asyncio closes the socket in between."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made = Connection("127.0.0.1", port, request_timeout_ms=30_000)
    made._reader, made._writer = await asyncio.open_connection("127.0.0.1", port)
    made._versions, made._read_task = {0: (0, 8)}, asyncio.create_task(asyncio.Event().wait())
    lost: Any = made._writer.transport
    lost.abort()
    for _ in range(after):
        await asyncio.sleep(0)
    asked = asyncio.ensure_future(made.send(ProduceRequest(None, -1, 30_000, [("shop", [(3, b"x")])])))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        _, another = await asyncio.open_connection("127.0.0.1", port)
    another.close()
    made.close()
    with pytest.raises(KafkaConnectionError, match="closed"):
        await asked
    server.close()


@pytest.mark.parametrize(
    ("error", "open_already", "seconds"), [(51, False, 0.003), (51, True, 0.05), (14, False, 0.05)]
)
async def test_a_transaction_begins_soon_after_the_one_before(error: int, open_already: bool, seconds: float) -> None:
    """51: the brokers have not finished the transaction before; 14: their coordinator is still loading."""
    settings = KafkaSinkSettings.model_validate({"type": "kafka", "bootstrap_servers": "127.0.0.1:1"})
    producer = make_producer(settings, transactional_id="t", retry_backoff_ms=50)
    sender, waited = producer._sender, list[float]()
    sender._txn_manager._txn_partitions = {TopicPartition("shop", 1)} if open_already else set()
    sender._txn_manager.set_pid_and_epoch(7, 0)
    answer = mock.Mock(errors=[("shop", [(0, error)])])
    with (
        mock.patch.object(sender, "_find_coordinator", mock.AsyncMock(return_value=1)),
        mock.patch.object(producer.client, "send", mock.AsyncMock(return_value=answer)),
        mock.patch.object(asyncio, "sleep", mock.AsyncMock(side_effect=waited.append)),
    ):
        assert not await sender._do_add_partitions_to_txn({TopicPartition("shop", 0)})
    assert waited == [seconds]
    await producer.stop()
