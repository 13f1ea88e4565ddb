"""Kafka, through aiokafka: whole record batches with acks=all and idempotence, confirmed in order."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from aiokafka.errors import KafkaError

from headrace.adapters.kafka import aiokafka_internals
from headrace.adapters.kafka import producer as producers
from headrace.adapters.kafka.connection import Diagnosis, describe, unreachable
from headrace.adapters.kafka.oversize import Sizes
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.topics import Topics
from headrace.errors import Fenced, HeadraceError, LeaseLapsed, SinkError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.ports.finding import Finding, failed, wrong
from headrace.ports.sink import MessageRefused, Parking, Sink, SinkRouting, TopicEnds
from headrace.tasks import confirmation, settle


class KafkaSink(Sink):
    """One producer, from start to its first failure. publish() is called by one coroutine only, so that batches of a
    partition never overtake each other; only their confirmations overlap."""

    def __init__(
        self,
        settings: KafkaSinkSettings,
        lease: Lease,
        parking: Parking | None = None,
        routing: SinkRouting | None = None,
        ends: TopicEnds | None = None,
        *,
        transactional_id: str = "",
    ) -> None:
        """`transactional_id`: the one that check() checks, for a sink that replaces one with transactions."""
        super().__init__(lease, parking)
        self._transactional_id = transactional_id
        self._settings, self._routing = settings, routing or SinkRouting()
        self._ends = ends or TopicEnds()
        self._topics = Topics(settings, self._routing.partitions)
        self._sizes = Sizes(settings, self._topics, self._routing, parking)
        self._producer: Any = None
        self._diagnosis = Diagnosis(settings)
        self._in_flight = 0
        self._drained = asyncio.Event()
        self._pending: dict[asyncio.Future[None], str] = {}
        """Each with its topic."""

    async def start(self) -> None:
        self._producer = producer = producers.make_producer(self._settings)
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await self.abort()
            raise await unreachable(self._settings, error) from error
        except BaseException:
            await self.abort()
            raise

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Waits while more than max_in_flight_bytes are unconfirmed."""
        return await self._send(await self._sizes.fit(self._producer, batch))

    async def _send(self, batch: MessageBatch) -> asyncio.Future[None]:
        """Waits before each record batch, because the batch of a large change may have many."""
        done = confirmation()
        self._pending[done] = batch.topic
        if not batch.values:  # all were parked
            self._settle(done, None)
            return done
        parts = producers.build_batches(self._running(), batch, self._sizes.limit(batch.topic))
        remaining = len(parts)

        def on_delivery(size: int, delivery: asyncio.Future[Any]) -> None:
            nonlocal remaining
            error = None if delivery.cancelled() else delivery.exception()
            remaining -= 1
            self._in_flight -= size
            self._drained.set()
            if error is not None or delivery.cancelled():
                self._settle(done, self._failure(batch, error))
                return
            self._ends.confirmed(batch.topic, batch.partition, delivery.result().offset)
            if not remaining:
                self._settle(done, None)

        try:
            for part in parts:
                size = part.size()
                while self._in_flight and self._in_flight + size > self._settings.max_in_flight_bytes:
                    self._running()
                    self._drained.clear()
                    await self._drained.wait()
                if done not in self._pending:  # an earlier part has failed, or the sink was ended
                    return done
                await producers.prepare(self._running(), part)
                async with asyncio.timeout(2 * self._settings.request_timeout):
                    self._lease.check()
                    delivery = await self._running().send_batch(part, batch.topic, partition=batch.partition)
                self._in_flight += size
                delivery.add_done_callback(functools.partial(on_delivery, size))
        except (KafkaError, OSError, TimeoutError, AssertionError) as error:
            self._settle(done, None)
            raise self._failure(batch, error) from error
        except HeadraceError:  # the lease's, or the sink was ended
            self._settle(done, None)
            raise
        return done

    async def resend(self, batch: MessageBatch) -> None:
        """Sends a parked message; its order relative to what publish() sends meanwhile does not matter."""
        producer = self._running()
        try:
            await self._sizes.check_again(producer, batch)
            await self._deliver(batch)
        except (MessageRefused, LeaseLapsed, Fenced):
            raise
        except Exception as error:
            if self._producer is None:  # the client library's error after an abort is not of interest
                raise SinkError("the producer was ended") from error
            if isinstance(error, SinkRejected):
                raise MessageRefused(error.args[0], remedy=error.remedy) from error
            raise

    async def _deliver(self, batch: MessageBatch) -> None:
        """Sends a message. Any failure ends the sink: the client has counted the message, so brokers refuse what comes
        after it."""
        limit = 2 * self._settings.request_timeout
        try:
            done = await self._send(batch)
            await asyncio.wait([done], timeout=limit)
            if not done.done():  # aiokafka waits forever while no broker answers
                topic, partition = batch.topic, batch.partition
                raise self._diagnosis.unconfirmed(self._client, topic, partition, None, resent=limit)
            await done
        except SinkRejected as error:
            self._end(SinkError(f"a message that was sent again was refused, so a new producer is made ({error})"))
            raise
        except SinkError as error:
            self._end(error)
            raise

    def _end(self, error: SinkError) -> None:
        """Ends the sink. What is in flight may or may not still arrive: only a new run can find out."""
        self.failure = self.failure or error
        for done in list(self._pending):
            self._settle(done, self.failure)
        self._drained.set()

    def _running(self) -> Any:
        if self.failure is not None:
            raise self.failure
        if self._producer is None:
            raise SinkError("the producer was ended")
        return self._producer

    def _settle(self, done: asyncio.Future[None], error: Exception | None) -> None:
        """Settles a confirmation once; later errors change nothing."""
        if done in self._pending:
            self._pending.pop(done, None)
            settle(done, error)

    def _failure(self, batch: MessageBatch, error: BaseException | None) -> SinkError:
        topic, partition = batch.topic, batch.partition
        refused = producers.refused(topic, partition, producers.largest_of(batch), error)
        return refused or self._diagnosis.unconfirmed(self._client, topic, partition, error)

    async def problem(self) -> str:
        """Returns why nothing is confirmed. If a topic is missing, nothing will be confirmed any more, and aiokafka
        would wait forever: the sink ends."""
        problem = await self._diagnosis.problem(self._client, set(self._pending.values()))
        if self._diagnosis.gone is not None:
            self._end(self._diagnosis.gone)
        return problem

    @property
    def _client(self) -> Any:
        return self._producer.client if self._producer is not None else None

    async def abort(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        await aiokafka_internals.abort(producer)
        for done in list(self._pending):
            self._pending.pop(done, None)
            done.cancel()

    async def close(self) -> None:
        """Closes the producer. All is already confirmed, so there is nothing to flush."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producers.close(producer)

    async def check(self) -> list[Finding]:
        """Connects, and checks the topics that are known before any table is."""
        try:
            await self.start()
        except SinkError as error:
            return [failed("sink", error)]
        try:
            client = self._producer.client
            return [*await self._rights(client), *await self._topics.findings(client, self._routing.topics)]
        finally:
            await self.close()

    async def _rights(self, client: Any) -> list[Finding]:
        if not self._transactional_id:
            return []
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                may = await aiokafka_internals.may_write_transactions(client, self._transactional_id)
        except (KafkaError, OSError, TimeoutError) as error:
            return [wrong("sink", f"the rights on the transactional id can't be read ({describe(error)})")]
        return [] if may else [failed("sink", producers.no_transactions(self._transactional_id))]
