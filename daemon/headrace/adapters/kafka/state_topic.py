"""The compacted topic of positions and schema history: made when it is missing, checked, and read back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import aiokafka
import structlog
from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from headrace.adapters.kafka.aiokafka_internals import client_of, describe_topic
from headrace.adapters.kafka.connection import connection_arguments, unreachable
from headrace.adapters.kafka.producer import CLOSE_LIMIT, describe
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state_records import Content
from headrace.errors import SinkError, SinkRejected, StateStoreError

log = structlog.get_logger(__name__)
logging.getLogger("aiokafka.consumer.subscription_state").setLevel(logging.WARNING)  # a line for each reading

PARTITIONS = 16
"""A destination's partition follows from its name and this number, so it never changes; further partitions that the
topic may have are not used."""
_SEGMENT_BYTES = 8 * 1024 * 1024
"""Only closed segments are compacted, and a take-over reads the open one as a whole."""
_SAY_AFTER = 1.0
"""Seconds of waiting for another destination's transaction after which that is told."""


def partition_of(destination: str) -> int:
    """Where the records of a destination lie."""
    return zlib.crc32(destination.encode()) % PARTITIONS


class Readable(Protocol):
    """What makes sense of a destination's records."""

    end: int
    """The offset that was read to."""

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """One more record."""


class StateTopic:
    """The topic, for one destination. Every call has a time limit and raises StateStoreError."""

    def __init__(self, settings: KafkaSinkSettings, destination: str, name: str = "") -> None:
        """`name`: of another topic of the same kind; "" is [sink] state_topic."""
        self._settings, self._destination = settings, destination
        self.name, self.partition = name or settings.state_topic, partition_of(destination)
        self.topic_partition = TopicPartition(self.name, self.partition)
        self._limit = settings.request_timeout

    async def ensure(self) -> None:
        """Makes the topic when it is missing; raises when it is there and would lose positions."""
        async with self._admin() as admin:
            count, brokers = await self._look(admin)
            if not count:
                await self._create(admin, brokers)
                return
            if problem := await self._problem(admin, count):
                raise _refused(problem)

    async def problems(self, *, must_exist: bool = False) -> list[str]:
        """What stands in the way of using it, a sentence each; nothing is made or changed."""
        try:
            async with self._admin() as admin:
                count, _ = await self._look(admin)
                missing = f"there is no topic {self.name}: no daemon has run with this configuration"
                problem = await self._problem(admin, count) if count else missing if must_exist else ""
        except StateStoreError as error:
            return [str(error)]
        return [problem] if problem else []

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        admin = AIOKafkaAdminClient(**_connection(self._settings))
        try:
            async with asyncio.timeout(self._limit):
                await admin.start()
                yield admin
        except (KafkaError, OSError, TimeoutError) as error:
            raise await self._away(error) from error
        finally:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_LIMIT):
                    await admin.close()

    async def _look(self, admin: Any) -> tuple[int, int]:
        """Partitions of the topic, 0 when it is missing, and how many brokers there are."""
        error, partitions, brokers = await describe_topic(client_of(admin), self.name)
        if error is errors.TopicAuthorizationFailedError:
            raise error(self.name)
        return partitions, brokers

    async def _create(self, admin: Any, brokers: int) -> None:
        copies = self._settings.state_topic_replication or min(3, brokers)
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": str(_SEGMENT_BYTES),
            "min.cleanable.dirty.ratio": "0.2",
            "min.insync.replicas": str(max(1, copies - 1)),
        }
        answer = await admin.create_topics([NewTopic(self.name, PARTITIONS, copies, topic_configs=config)])
        code, *text = answer.topic_errors[0][1:]
        error = errors.for_code(code)
        if code and error is not errors.TopicAlreadyExistsError:
            raise _refused(f"the topic {self.name} can't be made ({error.__name__}: {' '.join(filter(None, text))})")
        if not code:
            log.info("the state topic was made", topic=self.name, partitions=PARTITIONS, copies=copies)

    async def _problem(self, admin: Any, count: int) -> str:
        if count < PARTITIONS:
            return f"the topic {self.name} has {count} partitions; as headrace makes it, it has {PARTITIONS}"
        wanted = ConfigResource(ConfigResourceType.TOPIC, self.name, {"cleanup.policy": ""})
        (answer,) = await admin.describe_configs([wanted])
        code, _, _, _, entries = answer.resources[0]
        if code:  # we are not allowed to look, which is no reason not to work
            return ""
        policy = {entry[0]: entry[1] for entry in entries}.get("cleanup.policy", "compact")
        if "compact" in policy and "delete" not in policy:
            return ""
        return f"the topic {self.name} has cleanup.policy {policy}, which deletes positions after a while"

    async def read(self, *, settled: bool) -> Content:
        """The committed records of the destination.

        `settled`: everything that was written before this call counts, be it by transactions that are being committed
        or aborted at this moment; those of other destinations in the same partition are waited for, up to the
        brokers' limits. To be asked for after InitProducerId, which ends the destination's own former transaction.
        Otherwise what is committed by now.
        """
        content = Content(self._destination)
        await self.read_into(content, settled=settled)
        return content

    async def read_into(self, content: Readable, *, settled: bool) -> None:
        """The same, from `content.end` on, into what makes sense of the records."""
        reader = _Reader(self._settings, self.topic_partition)
        try:
            async with asyncio.timeout(self._limit):
                if not await reader.start(content.end, high_watermark=settled):
                    return
            await self._read(reader, content)
        except (KafkaError, OSError, TimeoutError) as error:
            raise await self._away(error) from error
        finally:
            await reader.stop()

    async def ensure_whole(self, start: int, end: int) -> None:
        """Raises when records of the destination lie from `start` up to `end`: what was read up to `start` was not all
        then, as from a broker that does not know yet that another one leads the partition."""
        content, partition = Content(self._destination), self.topic_partition
        async with self._consuming("read_uncommitted") as consumer:
            consumer.seek(partition, start)
            while await consumer.position(partition) < end:
                for record in (await consumer.getmany(partition, timeout_ms=100)).get(partition, ()):
                    if record.offset < end:
                        content.take(record.offset, record.key, record.value)
        if content.records:
            raise StateStoreError(
                f"the position of {self._destination} was read from {self.name}, partition {self.partition}, up to "
                f"offset {start}, and {content.records} records of its own lie behind that; it is read again"
            )

    async def read_at(self, offsets: Sequence[int]) -> dict[int, bytes]:
        """Values of single records, by offset; what compaction has taken away is left out. Raises StateStoreError."""
        found, partition = dict[int, bytes](), self.topic_partition
        async with self._consuming("read_committed") as consumer:
            for offset in offsets:
                consumer.seek(partition, offset)
                while await consumer.position(partition) <= offset:  # an empty answer says nothing
                    answer = await consumer.getmany(partition, timeout_ms=1000, max_records=1)
                    found |= {one.offset: one.value for one in answer.get(partition, ()) if one.offset == offset}
        return found

    @contextlib.asynccontextmanager
    async def _consuming(self, isolation: str) -> AsyncIterator[Any]:
        """A consumer of the destination's partition, within the limit."""
        consumer = _consumer(self._settings, isolation)
        try:
            async with asyncio.timeout(self._limit):
                await consumer.start()
                consumer.assign([self.topic_partition])
                yield consumer
        except (KafkaError, OSError, TimeoutError) as error:
            raise await self._away(error) from error
        finally:
            await _stop(consumer)

    async def _read(self, reader: _Reader, content: Readable) -> None:
        # The largest that a transaction.timeout.ms can be is 15 minutes, as the brokers are set by default.
        limit, began, told = self._limit + 2 * self._settings.transaction_timeout, time.monotonic(), False
        while not await reader.at_end():
            for record in await reader.poll():
                content.take(record.offset, record.key, record.value)
            waited = time.monotonic() - began
            if reader.held_back and waited > _SAY_AFTER and not told:
                told = True
                log.warning(
                    "another destination's open transaction holds back the reading of the position",
                    destination=self._destination,
                    topic=self.name,
                    partition=self.partition,
                )
            if waited > limit:
                raise StateStoreError(
                    f"the position of {self._destination} could not be read from {self.name}, partition "
                    f"{self.partition}, within {limit:.0f} s"
                    + (": another destination's transaction is open there" if reader.held_back else ""),
                    remedy="it is tried again; the brokers end a transaction after its transaction_timeout",
                )
        content.end = max(content.end, reader.end)

    async def _away(self, error: BaseException) -> StateStoreError:
        if isinstance(error, errors.KafkaConnectionError):
            cause = await unreachable(self._settings, error)
            if isinstance(cause, SinkRejected):
                return _as_ours(cause)
        servers = ",".join(self._settings.bootstrap_servers)
        return StateStoreError(f"the state topic {self.name} at {servers} can't be used ({describe(error)})")


class _Reader:
    """A consumer of one partition from its beginning to an end that is asked for once."""

    def __init__(self, settings: KafkaSinkSettings, topic_partition: TopicPartition) -> None:
        self._topic_partition = topic_partition
        self._consumer = _consumer(settings, "read_committed")
        # The end that read_committed knows is the last stable offset: before it lies only what is decided by now.
        self._looker = _consumer(settings, "read_uncommitted")
        self.end = 0

    async def start(self, begin: int, *, high_watermark: bool) -> bool:
        """Reads from the offset `begin` on. False when there is no such topic."""
        await self._consumer.start()
        if self._topic_partition.topic not in await self._consumer.topics():
            return False
        self._consumer.assign([self._topic_partition])
        if begin:
            self._consumer.seek(self._topic_partition, begin)
        looker = self._consumer
        if high_watermark:
            looker = self._looker
            await looker.start()
        self.end = await self._ask_end(looker)
        return True

    async def _ask_end(self, looker: Any) -> int:
        """Right after a change of leaders the end is not known, and the client does not know that answer."""
        while True:
            try:
                return int((await looker.end_offsets([self._topic_partition]))[self._topic_partition])
            except errors.TopicAuthorizationFailedError:
                raise
            except KafkaError:
                await asyncio.sleep(0.1)

    @property
    def held_back(self) -> bool:
        """Whether an open transaction is what hides the rest."""
        stable = self._consumer.last_stable_offset(self._topic_partition)
        return stable is not None and stable < self.end

    async def at_end(self) -> bool:
        """By position, not by records: the last thing in a partition mostly is a marker that nobody is shown."""
        async with asyncio.timeout(10):
            return bool(await self._consumer.position(self._topic_partition) >= self.end)

    async def poll(self) -> list[Any]:
        """What has come, at the latest after a moment."""
        found = await self._consumer.getmany(self._topic_partition, timeout_ms=100)
        return list(found.get(self._topic_partition, ()))

    async def stop(self) -> None:
        for consumer in (self._consumer, self._looker):
            await _stop(consumer)


async def _stop(consumer: Any) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(CLOSE_LIMIT):
            await consumer.stop()


def _consumer(settings: KafkaSinkSettings, isolation: str) -> Any:
    return aiokafka.AIOKafkaConsumer(
        **_connection(settings),
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=100,
        retry_backoff_ms=20,
        max_partition_fetch_bytes=8 * 1024 * 1024,
    )


def _connection(settings: KafkaSinkSettings) -> dict[str, Any]:
    try:
        return connection_arguments(settings)
    except SinkError as error:
        raise _as_ours(error) from error


def _as_ours(error: SinkError) -> StateStoreError:
    made = StateStoreError(str(error.args[0]), remedy=error.remedy, retriable=error.retriable)
    made.state = error.state
    return made


def _refused(problem: str) -> StateStoreError:
    remedy = "make it as docs/sinks.md#exactly-once says, or leave it to headrace to make it"
    return StateStoreError(problem, remedy=remedy, retriable=False)
