"""Producers of aiokafka: made from the settings, filled from batches, and aborted so that nothing more leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiokafka
from aiokafka import errors
from aiokafka.errors import KafkaError

from headrace import runtime
from headrace.adapters.kafka import aiokafka_internals
from headrace.adapters.kafka.connection import client_arguments, describe
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.errors import SinkRejected
from headrace.model import MessageBatch

_LARGE = 4 << 20
_REJECTED = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidTopicError,
    errors.TopicAuthorizationFailedError,
)


def make_producer(settings: KafkaSinkSettings, **more: Any) -> Any:
    """Returns a producer with acks=all and idempotence, not started; `more` are further arguments for it. Raises
    SinkRejected."""
    arguments: dict[str, Any] = {
        "acks": "all",
        "enable_idempotence": True,
        "compression_type": None if settings.compression == "none" else settings.compression,
        "max_batch_size": settings.batch_bytes,
        "retry_backoff_ms": 100,
        "linger_ms": 0,
    }
    try:
        given = client_arguments(settings, aiokafka.AIOKafkaProducer, arguments | more)
        return aiokafka_internals.Producer(settings.level, **given)
    except RuntimeError as error:  # aiokafka's error for a missing library
        raise SinkRejected(f"Kafka can't be used as configured ({error})", remedy="pip install cramjam") from error


def build_batches(producer: Any, batch: MessageBatch, limit: int = 0) -> list[Any]:
    """Returns record batches of the messages, in order; a message that is larger than a record batch gets its own.
    `limit`: what the topic allows, if known."""
    when = batch.commit_time_us // 1000 or runtime.now_us() // 1000
    if (columns := getattr(batch.values, "batch", None)) is not None:  # native code has made them
        return aiokafka_internals.fill_native(producer, limit, when, columns)
    return aiokafka_internals.fill(producer, limit, when, batch.keys, batch.values, batch.headers)


async def prepare(producer: Any, part: Any) -> None:
    """Prepares a record batch for sending: a thread compresses a large one, so that the event loop is not blocked."""
    if part.size() > _LARGE and aiokafka_internals.compresses(producer):
        await runtime.in_thread(aiokafka_internals.prepare, part)


def build_records(producer: Any, records: Sequence[tuple[bytes, bytes | None]]) -> list[Any]:
    """Does the same for bare keys and values, with the present time."""
    keys, values = zip(*records, strict=True)
    return build_batches(producer, MessageBatch("", 0, list(values), [[] for _ in records], keys=list(keys)))


async def close(producer: Any) -> None:
    """Closes the producer in order; aborts it if that does not end in time."""
    try:
        async with asyncio.timeout(aiokafka_internals.CLOSE_LIMIT):
            await producer.stop()
    except (KafkaError, OSError, TimeoutError):
        await aiokafka_internals.abort(producer)


def refused(topic: str, partition: int, largest: int, error: BaseException | None) -> SinkRejected | None:
    """Returns the error for a batch that the brokers refuse permanently; None for any other error. `largest` is the
    size of its largest message."""
    if not isinstance(error, _REJECTED):
        return None
    return SinkRejected(
        f"Kafka refuses a batch for topic {topic}, partition {partition} ({describe(error)})",
        remedy=f"the largest message has {largest} bytes: raise message.max.bytes of the broker and max.message.bytes "
        "of the topic, or set [message] rows_per_message",
    )


def no_transactions(transactional_id: str) -> SinkRejected:
    """Returns the error for a missing right on a transactional id."""
    return SinkRejected(
        f"the brokers do not let us use the transactional id {transactional_id}",
        remedy="allow Write and Describe on it (kafka-acls.sh --add --allow-principal User:... --operation Write "
        f"--operation Describe --transactional-id {transactional_id}), or set [sink] transactional_id",
    )


def largest_of(batch: MessageBatch) -> int:
    """Returns the bytes of the largest value."""
    return batch.largest
