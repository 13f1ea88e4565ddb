"""Producers of aiokafka: made from the settings, filled from batches, and cut off so that nothing more leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from typing import Any

import aiokafka
from aiokafka.errors import (
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from headrace.adapters.kafka.connection import connection_arguments
from headrace.adapters.kafka.connection import describe as describe
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.errors import SinkError, SinkRejected
from headrace.model import MessageBatch

CLOSE_LIMIT = 5.0
"""Seconds that closing in order, or ending the tasks of a producer, may take."""
_REJECTED = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTopicError, TopicAuthorizationFailedError)
_TASKS = ("_send_produce_req", "_do_add_partitions_to_txn", "_do_txn_commit")
"""What aiokafka's sender runs in tasks of their own, which end with it only when they come to their end."""


class _NoTracebacks(logging.Filter):
    """Whatever ends the sender is raised to us, and told in our own words."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != "Unexpected error in sender routine"


logging.getLogger("aiokafka.producer.sender").addFilter(_NoTracebacks())


def make_producer(settings: KafkaSinkSettings, **more: Any) -> Any:
    """A producer with acks=all and idempotence, not started; `more` are further arguments for it. Raises
    SinkRejected."""
    arguments: dict[str, Any] = {
        **connection_arguments(settings),
        "acks": "all",
        "enable_idempotence": True,
        "compression_type": None if settings.compression == "none" else settings.compression,
        "max_batch_size": settings.batch_bytes,
        "retry_backoff_ms": 100,
        "linger_ms": 0,
    }
    try:
        producer = aiokafka.AIOKafkaProducer(**(arguments | more))
    except RuntimeError as error:  # aiokafka's word for a library that is not there
        raise SinkRejected(f"Kafka can't be used as configured ({error})", remedy="pip install cramjam") from error
    producer.headrace_tasks = tasks = set[asyncio.Task[Any]]()
    for name in _TASKS:
        setattr(producer._sender, name, _noted(getattr(producer._sender, name), tasks))
    return producer


def _noted(method: Callable[..., Awaitable[Any]], tasks: set[asyncio.Task[Any]]) -> Callable[..., Awaitable[Any]]:
    async def run(*arguments: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            return await method(*arguments)
        finally:
            tasks.discard(task)

    return run


def build_batches(producer: Any, batch: MessageBatch, limit: int = 0) -> list[Any]:
    """Record batches of the messages, in order; a message that is larger than a record batch has one of its own.
    `limit`: what the topic takes, where that is known."""
    when = batch.commit_time_us // 1000 or time.time_ns() // 1_000_000
    create = _create(producer, limit)
    part, count = create(), 0
    parts, append = [part], part._builder.append  # without the layer between, which costs a quarter of it
    keys = batch.keys if batch.keys is not None else repeat(None, len(batch.values))
    for key, value, headers in zip(keys, batch.values, batch.headers, strict=True):
        if append(count, when, key, value, headers) is None:
            part._relative_offset = count
            part, count = create(), 0
            parts.append(part)
            append = part._builder.append
            append(0, when, key, value, headers)
        count += 1
    part._relative_offset = count
    return parts


def _create(producer: Any, limit: int) -> Callable[[], Any]:
    """Makes empty record batches, not larger than the limit."""
    accumulator = producer._message_accumulator
    if not limit or accumulator._batch_size <= limit:
        made: Callable[[], Any] = producer.create_batch
        return made

    def create() -> Any:
        size, accumulator._batch_size = accumulator._batch_size, limit
        try:
            return producer.create_batch()
        finally:
            accumulator._batch_size = size

    return create


def size_at_most(batch: MessageBatch, index: int) -> int:
    """Bytes of a record batch with this one message, uncompressed; a few more than it takes."""
    key = batch.keys[index] if batch.keys is not None else None
    size: int = DefaultRecordBatchBuilder.estimate_size_in_bytes(key, batch.values[index], batch.headers[index])
    return size


def packed_size(producer: Any, batch: MessageBatch, index: int) -> int:
    """Bytes of a record batch with this one message, as the brokers see it: compressed. Costs as much as sending."""
    part = producer.create_batch()
    key = batch.keys[index] if batch.keys is not None else None
    part.append(timestamp=0, key=key, value=batch.values[index], headers=batch.headers[index])
    return len(part._build())


def build_records(producer: Any, records: Sequence[tuple[bytes, bytes | None]]) -> list[Any]:
    """The same of bare keys and values, with the time of now."""
    batch = MessageBatch(
        "", 0, [value for _, value in records], [[] for _ in records], keys=[key for key, _ in records]
    )
    return build_batches(producer, batch)


async def cut(producer: Any) -> None:
    """Cuts everything: its tasks are ended and the sockets reset before this returns, with what still lay in their
    buffers, because an old producer that still delivers would put old rows behind new ones. Never raises."""
    producer._closed = True
    client, sender = producer.client, producer._sender.sender_task
    client._get_conn = _no_connection  # a task that goes on in spite of all finds no way out
    for connection in list(client._conns.values()):
        _reset(connection)
    tasks = {task for task in (sender, *producer.headrace_tasks) if task is not None and not task.done()}
    for task in tasks:
        task.cancel()
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_LIMIT):
            await client.close()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_LIMIT)
    producer._message_accumulator.fail_all(KafkaError("the producer was ended"))
    never_drained = [batch for batches in producer._message_accumulator._batches.values() for batch in batches]
    for future in (producer._txn_manager._transaction_waiter, *(batch._drain_waiter for batch in never_drained)):
        if future is not None and future.done() and not future.cancelled():
            future.exception()  # told already; asyncio would log it once more


async def _no_connection(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


def _reset(connection: Any) -> None:
    """An ordinary close would still send what is buffered, here and in the kernel."""
    writer = connection._writer
    if writer is None:
        return
    with contextlib.suppress(Exception):
        kernel = writer.transport.get_extra_info("socket")
        kernel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def close(producer: Any) -> None:
    """Ends it in order; when that does not come to an end in time, it is cut."""
    try:
        async with asyncio.timeout(CLOSE_LIMIT):
            await producer.stop()
    except (KafkaError, OSError, TimeoutError):
        producer._closed = True
        await cut(producer)


def unconfirmed(topic: str, partition: int, largest: int, error: BaseException | None) -> SinkError:
    """A batch that the brokers did not confirm, or refuse; `largest` is the size of its largest message."""
    where = f"topic {topic}, partition {partition}"
    if isinstance(error, _REJECTED):
        remedy = (
            f"the largest message has {largest} bytes: raise message.max.bytes of the broker and max.message.bytes "
            "of the topic, or set [message] rows_per_message"
        )
        return SinkRejected(f"Kafka refuses a batch for {where} ({describe(error)})", remedy=remedy)
    return SinkError(f"Kafka did not confirm a batch for {where} ({describe(error)})")


def largest_of(batch: MessageBatch) -> int:
    """Bytes of the largest value."""
    return max((len(value) for value in batch.values if value), default=0)
