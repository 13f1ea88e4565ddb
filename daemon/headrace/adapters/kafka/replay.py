"""Reads back what was published to a topic: all its partitions, and only committed transactions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiokafka import TopicPartition, errors
from aiokafka.errors import KafkaError

from headrace import runtime
from headrace.adapters.kafka.aiokafka_internals import CLOSE_LIMIT, client_of, describe_topic
from headrace.adapters.kafka.connection import describe, make_consumer, unreachable
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.errors import SinkError
from headrace.ports.replay import Published, Replay

logging.getLogger("aiokafka.consumer.subscription_state").setLevel(logging.WARNING)  # it logs a line for each read

_MOST, _BLOCK = 2_000, 1 << 20
"""Maximum messages of a block, and their bytes, by the size of those before them; the first block has a few."""
_FETCH, _FETCH_PARTITION = 4 << 20, 1 << 20
"""Maximum bytes that a broker sends at once, of all partitions and of one, as stored: possibly compressed."""


class KafkaReplay(Replay):
    """Reads with one consumer without a group: it commits nothing and disturbs nobody."""

    def __init__(self, settings: KafkaSinkSettings, topic: str, since_ms: int = 0) -> None:
        self._settings, self._topic, self._since_ms = settings, topic, since_ms
        self._consumer: Any = None
        self._partitions: list[TopicPartition] = []
        self._notes: list[str] = []
        self._at_once = 10
        """Number of messages of the next block."""
        self._given = self._all = 0
        """Offsets that the present read() has passed, and their total."""

    async def read(self) -> AsyncIterator[Sequence[Published]]:
        try:
            consumer = await self._open()
            # For read_committed the end is the last stable offset: all transactions before it have ended.
            ends: dict[TopicPartition, int] = await consumer.end_offsets(self._partitions)
            begins = {one: await self._position(one) for one in self._partitions}
            self._given, self._all = 0, sum(max(0, ends[one] - begins[one]) for one in ends)
            left, moved = set(self._partitions), runtime.monotonic()
            while left := {one for one in left if await self._position(one) < ends[one]}:
                found = await consumer.getmany(timeout_ms=200, max_records=self._at_once)
                for partition, records in found.items():
                    size = sum(len(record.value or b"") for record in records) / len(records)
                    self._at_once = int(max(1, min(_MOST, 2 * self._at_once, _BLOCK / max(size, 1))))
                    moved, behind = runtime.monotonic(), records[-1].offset + 1
                    self._given, begins[partition] = self._given + behind - begins[partition], behind
                    yield [_published(record) for record in records]
                if runtime.monotonic() - moved > 2 * self._settings.request_timeout:
                    raise SinkError(
                        f"the topic {self._topic} gives nothing more before its end",
                        remedy="check whether all of its partitions have a leader",
                    )
        except (KafkaError, OSError, TimeoutError) as error:
            raise await self._away(error) from error

    def share(self) -> float | None:
        return min(1.0, self._given / self._all) if self._all else None

    async def _open(self) -> Any:
        if self._consumer is None:
            self._consumer = make_consumer(
                self._settings,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                fetch_max_wait_ms=100,
                fetch_max_bytes=_FETCH,
                max_partition_fetch_bytes=_FETCH_PARTITION,
            )
            async with asyncio.timeout(self._settings.request_timeout):
                await self._consumer.start()
        if not self._partitions:
            async with asyncio.timeout(self._settings.request_timeout):
                await self._find(self._consumer)
        return self._consumer

    async def _find(self, consumer: Any) -> None:
        """Finds the topic's partitions: the consumer knows them only after it has subscribed."""
        error, count, _ = await describe_topic(client_of(consumer), self._topic)
        if error is errors.UnknownTopicOrPartitionError:
            self._notes = [f"there is no topic {self._topic}: nothing of the table was published yet; else see [route]"]
            return
        if not count:
            raise error()
        self._partitions = [TopicPartition(self._topic, number) for number in range(count)]
        consumer.assign(self._partitions)
        if self._since_ms:
            await self._seek(consumer)
            return
        begins: dict[TopicPartition, int] = await consumer.beginning_offsets(self._partitions)
        self._notes = []
        if any(begins.values()):
            self._notes = [
                f"the topic {self._topic} does not have its first messages any more (retention): rows that only they "
                "had are missing"
            ]

    async def _seek(self, consumer: Any) -> None:
        """Seeks to the first message of each partition that was published at the requested time or later."""
        self._notes = []
        found = await consumer.offsets_for_times(dict.fromkeys(self._partitions, self._since_ms))
        later = [one for one in self._partitions if found[one] is None]
        for partition in set(self._partitions) - set(later):
            consumer.seek(partition, found[partition].offset)
        if later:
            await consumer.seek_to_end(*later)

    async def _position(self, partition: TopicPartition) -> int:
        async with asyncio.timeout(self._settings.request_timeout):
            return int(await self._consumer.position(partition))

    def notes(self) -> list[str]:
        return self._notes

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_LIMIT):
                    await consumer.stop()

    async def _away(self, error: BaseException) -> SinkError:
        if isinstance(error, errors.KafkaConnectionError | OSError):
            return await unreachable(self._settings, error)
        return SinkError(
            f"the topic {self._topic} can't be read ({describe(error)})", remedy="reading needs the right Read on it"
        )


def _published(record: Any) -> Published:
    version, partial = None, False
    for name, value in record.headers:
        if name == "headrace-pos" and value.isdigit():
            version = int(value)
        elif name == "headrace-image":
            partial = value == b"partial"
    return Published(record.value, record.key, version, partial, record.timestamp)
