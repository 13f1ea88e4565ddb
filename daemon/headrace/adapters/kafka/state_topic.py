"""The compacted topic of positions and schema history: created if missing, checked, and read back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import structlog
from aiokafka import TopicPartition, errors
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import KafkaError

from headrace import runtime
from headrace.adapters.kafka.aiokafka_internals import CLOSE_LIMIT, client_of, describe_topic, read_setting
from headrace.adapters.kafka.connection import describe, make_admin, make_consumer, unreachable
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state_records import Content
from headrace.errors import SinkError, SinkRejected, StateStoreError

log = structlog.get_logger(__name__)
logging.getLogger("aiokafka.consumer.subscription_state").setLevel(logging.WARNING)  # it logs a line for each read

PARTITIONS = 16
"""A destination's partition is computed from its name and this number, so it never changes; further partitions of the
topic are not used."""
_SEGMENT_BYTES = 8 * 1024 * 1024
"""Only closed segments are compacted, and a takeover reads the open one completely."""
_UNKNOWN = 0.1
"""Seconds until a broker that does not know an existing topic is asked again."""
_SAY_AFTER = 1.0
"""Seconds of waiting for another destination's transaction after which this is logged."""


def partition_of(destination: str) -> int:
    """Returns the partition of a destination's records."""
    return zlib.crc32(destination.encode()) % PARTITIONS


class Readable(Protocol):
    """A reader of a destination's records."""

    end: int
    """The offset that was read to."""

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Takes one more record."""


class StateTopic:
    """The topic, for one destination. Every call has a time limit and raises StateStoreError."""

    def __init__(self, settings: KafkaSinkSettings, destination: str, name: str = "") -> None:
        """`name`: of another topic of the same kind; "" is [sink] state_topic."""
        self._settings, self._destination = settings, destination
        self.name, self.partition = name or settings.state_topic, partition_of(destination)
        self.topic_partition = TopicPartition(self.name, self.partition)
        self._limit = settings.request_timeout

    async def ensure(self) -> None:
        """Creates the topic if it is missing; raises if it exists and would lose positions."""
        async with self._admin() as admin:
            while not (found := await self._counts(admin))[0]:
                if await self._create(admin, found[1]):
                    return
                await asyncio.sleep(_UNKNOWN)  # it exists, and the broker that was asked does not know it yet
            if problem := await self._problem(admin, found[0]):
                raise _refused(problem)

    async def problems(self, *, must_exist: bool = False) -> list[str]:
        """Returns why it can't be used, a sentence each; creates and changes nothing."""
        try:
            async with self._admin() as admin:
                count, _ = await self._counts(admin)
                missing = f"there is no topic {self.name}: no daemon has run with this configuration"
                problem = await self._problem(admin, count) if count else missing if must_exist else ""
        except StateStoreError as error:
            return [str(error)]
        return [problem] if problem else []

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        admin = _made(make_admin, self._settings)
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

    async def _counts(self, admin: Any) -> tuple[int, int]:
        """Returns the topic's partitions, 0 if it is missing, and how many brokers there are."""
        error, partitions, brokers = await describe_topic(client_of(admin), self.name)
        if error is errors.TopicAuthorizationFailedError:
            raise error(self.name)
        return partitions, brokers

    async def _create(self, admin: Any, brokers: int) -> bool:
        """Returns whether it was created; False if it already exists."""
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
        return not code

    async def _problem(self, admin: Any, count: int) -> str:
        if count < PARTITIONS:
            return f"the topic {self.name} has {count} partitions; as headrace makes it, it has {PARTITIONS}"
        policy = await read_setting(client_of(admin), ConfigResourceType.TOPIC, self.name, "cleanup.policy")
        # None: we may not read it, which does not prevent its use
        if policy is None or ("compact" in policy and "delete" not in policy):
            return ""
        return f"the topic {self.name} has cleanup.policy {policy}, which deletes positions after a while"

    async def read(self, *, settled: bool) -> Content:
        """Returns the committed records of the destination.

        `settled`: everything that was written before this call counts, even by transactions that are being committed or
        aborted now; those of other destinations in the same partition are waited for, up to the brokers' limits. Use it
        after InitProducerId, which ends the destination's own former transaction. Otherwise returns what is committed
        by now."""
        content = Content(self._destination)
        await self.read_into(content, settled=settled)
        return content

    async def read_into(self, content: Readable, *, settled: bool) -> None:
        """Reads the same, from `content.end` on, into a reader of records."""
        partition = self.topic_partition
        async with self._consumer("read_committed") as consumer:
            async with asyncio.timeout(self._limit):
                if self.name not in await consumer.topics():
                    return
                consumer.assign([partition])
                if content.end:
                    consumer.seek(partition, content.end)
                if settled:
                    # For read_committed the end is the last stable offset: before it is only what is committed or
                    # aborted.
                    async with self._consumer("read_uncommitted") as uncommitted:
                        end = await self._end(uncommitted)
                else:
                    end = await self._end(consumer)
            await self._read(consumer, content, end)
        content.end = max(content.end, end)

    async def _end(self, consumer: Any) -> int:
        """Returns the end of the partition. Right after a change of leaders it is unknown, and the client does not
        handle that answer."""
        while True:
            try:
                return int((await consumer.end_offsets([self.topic_partition]))[self.topic_partition])
            except errors.TopicAuthorizationFailedError:
                raise
            except KafkaError:
                await asyncio.sleep(0.1)

    async def _read(self, consumer: Any, content: Readable, end: int) -> None:
        # The largest possible transaction.timeout.ms is 15 minutes, with the brokers' defaults.
        limit, began, reported = self._limit + 2 * self._settings.transaction_timeout, runtime.monotonic(), False
        # By position, not by records: the last thing in a partition is mostly a marker that readers do not see.
        while await self._position(consumer) < end:
            await self._take(consumer, content, end)
            waited, stable = runtime.monotonic() - began, consumer.last_stable_offset(self.topic_partition)
            held_back = stable is not None and stable < end
            if held_back and waited > _SAY_AFTER and not reported:
                reported = True
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
                    + (": another destination's transaction is open there" if held_back else ""),
                    remedy="it is tried again; the brokers end a transaction after its transaction_timeout",
                )

    async def ensure_whole(self, start: int, end: int) -> None:
        """Raises if records of the destination are between `start` and `end`: what was read up to `start` was
        incomplete, for example from a broker that does not know yet that another one leads the partition."""
        content = Content(self._destination)
        async with self._consumer("read_uncommitted") as consumer, asyncio.timeout(self._limit):
            consumer.assign([self.topic_partition])
            consumer.seek(self.topic_partition, start)
            while await self._position(consumer) < end:
                await self._take(consumer, content, end)
        if content.records:
            raise StateStoreError(
                f"the position of {self._destination} was read from {self.name}, partition {self.partition}, up to "
                f"offset {start}, and {content.records} records of its own come after that; it is read again"
            )

    async def read_at(self, offsets: Sequence[int]) -> dict[int, bytes]:
        """Returns the values of single records, by offset, without those that compaction has removed. Raises
        StateStoreError."""
        found, partition = dict[int, bytes](), self.topic_partition
        async with self._consumer("read_committed") as consumer, asyncio.timeout(self._limit):
            consumer.assign([partition])
            for offset in offsets:
                consumer.seek(partition, offset)
                while await consumer.position(partition) <= offset:  # an empty answer says nothing
                    answer = await consumer.getmany(partition, timeout_ms=1000, max_records=1)
                    found |= {one.offset: one.value for one in answer.get(partition, ()) if one.offset == offset}
        return found

    async def _position(self, consumer: Any) -> int:
        async with asyncio.timeout(10):
            return int(await consumer.position(self.topic_partition))

    async def _take(self, consumer: Any, content: Readable, end: int) -> None:
        """Takes the records before `end` that arrive within a moment."""
        found = await consumer.getmany(self.topic_partition, timeout_ms=100)
        for record in found.get(self.topic_partition, ()):
            if record.offset < end:
                content.take(record.offset, record.key, record.value)

    @contextlib.asynccontextmanager
    async def _consumer(self, isolation: str) -> AsyncIterator[Any]:
        """Yields a consumer without a partition, started within the limit."""
        consumer = _made(
            make_consumer,
            self._settings,
            isolation_level=isolation,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            retry_backoff_ms=20,
            max_partition_fetch_bytes=8 * 1024 * 1024,
        )
        try:
            async with asyncio.timeout(self._limit):
                await consumer.start()
            yield consumer
        except (KafkaError, OSError, TimeoutError) as error:
            raise await self._away(error) from error
        finally:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_LIMIT):
                    await consumer.stop()

    async def _away(self, error: BaseException) -> StateStoreError:
        if isinstance(error, errors.KafkaConnectionError):
            cause = await unreachable(self._settings, error)
            if isinstance(cause, SinkRejected):
                return _as_ours(cause)
            text = f"the state topic {self.name} can't be used: {cause.args[0]}"
            return _away(StateStoreError(text, remedy=cause.remedy))
        why = f"no answer within {self._limit:g} s" if isinstance(error, TimeoutError) else describe(error)
        servers = ",".join(self._settings.bootstrap_servers)
        made = StateStoreError(f"the state topic {self.name} at {servers} can't be used ({why})")
        # aiokafka's own error without a subclass is that of a client that finds no broker.
        return _away(made) if isinstance(error, OSError | TimeoutError) or type(error) is KafkaError else made


def _made(make: Callable[..., Any], settings: KafkaSinkSettings, **more: Any) -> Any:
    try:
        return make(settings, **more)
    except SinkError as error:
        raise _as_ours(error) from error


def _away(error: StateStoreError) -> StateStoreError:
    """Marks the error as an outage of the brokers, which is the same for all topics."""
    error.state, error.reason = SinkError.state, SinkError.reason
    return error


def _as_ours(error: SinkError) -> StateStoreError:
    made = StateStoreError(str(error.args[0]), remedy=error.remedy, retriable=error.retriable)
    made.state = error.state
    return made


def _refused(problem: str) -> StateStoreError:
    remedy = "make it as docs/sinks.md#exactly-once says, or leave it to headrace to make it"
    return StateStoreError(problem, remedy=remedy, retriable=False)
