"""Writes one record to a topic, for a command."""

from __future__ import annotations

import asyncio

from aiokafka.errors import KafkaError

from headrace.adapters.kafka.connection import describe, unreachable
from headrace.adapters.kafka.producer import close, make_producer
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.errors import SinkError


async def write_record(settings: KafkaSinkSettings, topic: str, key: bytes, value: bytes) -> None:
    """Writes a record and returns once all replicas have it; the key chooses the partition, as Kafka's own producer
    does it. Raises SinkError."""
    producer = make_producer(settings)
    try:
        async with asyncio.timeout(settings.request_timeout):
            await producer.start()
            await producer.send_and_wait(topic, value, key)
    except (KafkaError, OSError, TimeoutError) as error:
        if isinstance(error, OSError):
            raise await unreachable(settings, error) from error
        raise SinkError(f"the topic {topic} can't be written ({describe(error)})") from error
    finally:
        await close(producer)
