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

from headrace.errors import SinkError, SinkRejected
from headrace.model import MessageBatch
from headrace.settings import KafkaSinkSettings

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
    """A producer with acks=all and idempotence, not started; `more` are further arguments for it."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": settings.client_id,
        "acks": "all",
        "enable_idempotence": True,
        "compression_type": None if settings.compression == "none" else settings.compression,
        "max_batch_size": settings.batch_bytes,
        "request_timeout_ms": int(settings.request_timeout * 1000),
        "retry_backoff_ms": 100,
        "linger_ms": 0,
    }
    producer = aiokafka.AIOKafkaProducer(**(arguments | more))
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


def build_batches(producer: Any, batch: MessageBatch) -> list[Any]:
    """Record batches of the messages, in order; a message that is larger than a record batch has one of its own."""
    when = batch.commit_time_us // 1000 or time.time_ns() // 1_000_000
    create = producer.create_batch
    part = create()
    parts, append = [part], part.append
    keys = batch.keys if batch.keys is not None else repeat(None, len(batch.values))
    for key, value, headers in zip(keys, batch.values, batch.headers, strict=True):
        if append(timestamp=when, key=key, value=value, headers=headers) is None:
            part = create()
            parts.append(part)
            append = part.append
            append(timestamp=when, key=key, value=value, headers=headers)
    return parts


def build_records(producer: Any, records: Sequence[tuple[bytes, bytes]]) -> list[Any]:
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


def describe(error: BaseException | None) -> str:
    """A client library's error for people."""
    return f"{type(error).__name__}: {error}".rstrip(": ") if error is not None else "cancelled"


def unreachable(settings: KafkaSinkSettings, error: BaseException) -> SinkError:
    """No connection, or no answer."""
    return SinkError(f"Kafka at {','.join(settings.bootstrap_servers)} can't be reached ({describe(error)})")


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
