"""The transactional producer of a destination: only the one that started last under its transactional.id can write."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from aiokafka import errors
from aiokafka.errors import KafkaError

from headrace import runtime
from headrace.adapters.kafka import aiokafka_internals
from headrace.adapters.kafka import producer as producers
from headrace.adapters.kafka.connection import Diagnosis, unreachable
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state_records import Content, Record, change_records, head_record
from headrace.adapters.kafka.state_topic import StateTopic
from headrace.errors import Fenced, HeadraceError, SinkError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.ports.sink import TopicEnds
from headrace.ports.state import StateChange
from headrace.ports.state_records import Head

_FENCED = (errors.ProducerFenced, errors.InvalidProducerEpoch)
_BACKOFF_MS = 50
_MANY_ENTRIES = 500


class Transactor:
    """One producer, from start() to its first failure; it never repairs itself and is never started again.

    A transaction begins with the first send() and ends with commit(), which writes the state records of the same
    change. One coroutine at a time may use it.

    After any failure every call raises that failure: what was written may be in an open transaction, or even be
    committed. The next start() ends the open transaction, and read() then returns the actual state."""

    def __init__(
        self, settings: KafkaSinkSettings, destination: str, lease: Lease, ends: TopicEnds | None = None
    ) -> None:
        self.lease = lease
        self.transactional_id = settings.transactional_id_of(destination)
        self.topic = StateTopic(settings, destination)
        self.head = Head()
        """The state as it was read, or committed since."""
        self.known = False
        """Whether `head` was read."""
        self.in_flight = 0
        """Bytes handed to the client library and not confirmed by a broker."""
        self._read_to = -1
        """The offset in the state topic up to which was read; -1 once that is known to be all."""
        self._settings, self._destination, self._ends = settings, destination, ends or TopicEnds()
        self._producer: Any = None
        self._diagnosis = Diagnosis(settings)
        self._open = False
        self._deadline = 0.0
        """On the monotonic clock: when the brokers abort the open transaction."""
        self._deliveries: dict[asyncio.Future[Any], str] = {}
        """What is not confirmed, with its topic."""
        self._settled = asyncio.Event()
        """Set when a delivery was confirmed, or something failed."""
        self._error: HeadraceError | None = None

    async def start(self) -> None:
        """Creates the state topic if it is missing, and fences every older producer of our transactional.id.

        Raises SinkError or StateStoreError; and Fenced or LeaseLapsed if the lock is not proved at that moment."""
        await self.topic.ensure()
        self._producer = producer = producers.make_producer(
            self._settings,
            transactional_id=self.transactional_id,
            transaction_timeout_ms=int(self._settings.transaction_timeout * 1000),
            retry_backoff_ms=_BACKOFF_MS,
        )
        aiokafka_internals.check_before_fencing(producer, self.lease.check)
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await self.abort()
            raise await self._not_started(error) from error
        except BaseException:
            await self.abort()
            raise

    async def _not_started(self, error: BaseException) -> SinkError:
        if isinstance(error, errors.InvalidTransactionTimeout):
            return SinkRejected(
                f"the brokers allow no transaction_timeout of {self._settings.transaction_timeout:g} s",
                remedy="lower it in [sink], or raise transaction.max.timeout.ms of the brokers",
            )
        if isinstance(error, errors.TransactionalIdAuthorizationFailed):
            return producers.no_transactions(self.transactional_id)
        return await unreachable(self._settings, error)

    async def problem(self) -> str:
        """See Sink.problem(). If a topic is missing, nothing can be committed any more, which ends it at once."""
        client = self._producer.client if self._producer is not None else None
        problem = await self._diagnosis.problem(client, {*self._deliveries.values(), self.topic.name})
        if self._diagnosis.gone is not None:
            self._fail(self._diagnosis.gone, self.topic.name, self.topic.partition)
        return problem

    async def read(self) -> Content:
        """Returns the committed state, after start(). Raises StateStoreError."""
        content = await self.topic.read(settled=True)
        self.head, self.known, self._read_to = content.head, True, content.end
        return content

    @property
    def producer(self) -> Any:
        """Returns aiokafka's producer, if nothing has failed. Raises SinkError, Fenced or LeaseLapsed."""
        self._check()
        return self._producer

    def build(self, batch: MessageBatch, limit: int = 0) -> list[Any]:
        """Returns record batches of a batch of messages, for send(); none larger than the topic allows."""
        return producers.build_batches(self.producer, batch, limit)

    async def send(self, part: Any, topic: str, partition: int, *, largest: int = 0) -> asyncio.Future[Any]:
        """Hands one record batch over, within the open transaction or a new one; waits while more than
        max_in_flight_bytes are unconfirmed. commit() checks the brokers' answer. Raises SinkError, Fenced or
        LeaseLapsed."""
        self._check()
        size = part.size()
        if not self._open:
            self._deadline = runtime.monotonic() + self._settings.transaction_timeout
        async with self._within_deadline(topic, partition, largest):
            if not self._open:
                await self._producer.begin_transaction()
                self._open = True
                # The state's partition is added together with the first one of the messages, which saves a round trip.
                aiokafka_internals.add_to_transaction(self._producer, self.topic.topic_partition)
            while self.in_flight and self.in_flight + size > self._settings.max_in_flight_bytes:
                await self._wait()
            await producers.prepare(self._producer, part)
            self.lease.check()
            delivery: asyncio.Future[Any] = await self._producer.send_batch(part, topic, partition=partition)
        self.in_flight += size
        self._deliveries[delivery] = topic

        def on_delivery(done: asyncio.Future[Any]) -> None:
            self.in_flight -= size
            self._deliveries.pop(done, None)
            error = None if done.cancelled() else done.exception()
            if error is not None or done.cancelled():
                self._fail(error or asyncio.CancelledError(), topic, partition, largest)
            elif topic != self.topic.name:
                self._ends.confirmed(topic, partition, done.result().offset)
            self._settled.set()

        delivery.add_done_callback(on_delivery)
        return delivery

    async def send_records(
        self, topic: StateTopic, records: Sequence[tuple[bytes, bytes | None]]
    ) -> list[asyncio.Future[Any]]:
        """Hands bare keys and values over, as send() does, with the same errors."""
        self._check()
        if not records:
            return []
        largest = max(len(value or b"") for _, value in records)
        parts = producers.build_records(self._producer, records)
        return [await self.send(part, topic.name, topic.partition, largest=largest) for part in parts]

    async def settle(self) -> None:
        """Waits until the brokers have all that was sent. Raises SinkError, Fenced or LeaseLapsed."""
        async with self._within_deadline(self.topic.name, self.topic.partition):
            while self._deliveries:
                await self._wait()

    async def begin(self, epoch: int, owner: str) -> None:
        """Takes the destination over, in the same way as commit()."""
        head = replace(self.head, epoch=epoch, owner=owner)
        await self._commit(head, [head_record(self._destination, head)])

    async def commit(self, change: StateChange) -> None:
        """Writes the records of a change and commits the transaction; `head` is then the committed state. Raises
        SinkError, Fenced or LeaseLapsed; then it is unknown whether it was committed."""
        of = self._destination, self.head, change
        apart = len(change.schema_entries) > _MANY_ENTRIES  # they are compressed
        await self._commit(*(await runtime.in_thread(change_records, *of) if apart else change_records(*of)))

    async def _commit(self, head: Head, records: list[Record]) -> None:
        written = await self.send_records(self.topic, records)
        await self.settle()  # aiokafka would commit although a batch failed
        async with self._within_deadline(self.topic.name, self.topic.partition):
            self._check()
            if -1 < self._read_to < (offset := written[0].result().offset):
                await self.topic.ensure_whole(self._read_to, offset)
            self.lease.check()
            await self._producer.commit_transaction()
        self._open = False
        self.head, self._read_to = head, -1

    async def _wait(self) -> None:
        self._settled.clear()
        await self._settled.wait()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._producer is None:
            raise SinkError("the producer is closed")

    @contextlib.asynccontextmanager
    async def _within_deadline(self, topic: str, partition: int, largest: int = 0) -> AsyncIterator[None]:
        """Records and raises in our words what fails within, or takes longer than the transaction may."""
        try:
            async with runtime.timeout_at(self._deadline):
                yield
        except BaseException as error:
            failure = self._fail(error, topic, partition, largest)
            if failure is error:
                raise
            raise failure from error

    def _fail(self, error: BaseException, topic: str, partition: int, largest: int = 0) -> BaseException:
        """Records the first failure, in our words, and returns the error to raise."""
        if self._error is None:
            self._error = self._translate(error, topic, partition, largest)
            self._settled.set()
        return error if isinstance(error, asyncio.CancelledError) else self._error

    def _translate(self, error: BaseException, topic: str, partition: int, largest: int) -> HeadraceError:
        if isinstance(error, HeadraceError):
            return error
        if isinstance(error, errors.IllegalOperation | AssertionError) and self._producer is not None:
            # The client's state says only that something failed before.
            error = aiokafka_internals.failure_of_transaction(self._producer) or error
        if any(isinstance(cause, _FENCED) for cause in _causes(error)):
            return Fenced(
                f"the brokers refuse our producer under the transactional id {self.transactional_id}: another daemon "
                "has taken it over, or a transaction was left open for longer than transaction_timeout "
                f"({self._settings.transaction_timeout:g} s)"
            )
        if isinstance(error, TimeoutError):
            return self._diagnosis.explained(
                f"Kafka at {','.join(self._settings.bootstrap_servers)} did not end a transaction of "
                f"{self.transactional_id} within transaction_timeout ({self._settings.transaction_timeout:g} s)"
            )
        if isinstance(error, asyncio.CancelledError):
            return SinkError(f"a transaction of {self.transactional_id} was broken off")
        # aiokafka's sender hides the error under one without a cause.
        known = (cause for cause in _causes(error) if type(cause) is not KafkaError)
        cause = next(known, error)
        refused = producers.refused(topic, partition, largest, cause)
        client = self._producer.client if self._producer is not None else None
        return refused or self._diagnosis.unconfirmed(client, topic, partition, cause)

    async def abort(self) -> None:
        """Aborts the connections and ends the tasks: after it returns nothing more leaves. An open transaction stays
        open until the next start(), or transaction_timeout. Never raises."""
        producer, self._producer = self._producer, None
        self._error = self._error or SinkError("the producer was ended")
        if producer is not None:
            await aiokafka_internals.abort(producer)

    async def close(self) -> None:
        """Ends in order; aborts an open transaction. Safe after abort()."""
        if self._producer is None:
            return
        if self._error is not None:
            await self.abort()
            return
        try:
            if self._open:
                async with asyncio.timeout(aiokafka_internals.CLOSE_LIMIT):
                    await self._producer.abort_transaction()
        except (KafkaError, OSError, TimeoutError, AssertionError):
            await self.abort()
            return
        producer, self._producer = self._producer, None
        await producers.close(producer)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
