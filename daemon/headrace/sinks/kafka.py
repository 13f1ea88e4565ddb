"""Kafka, through aiokafka: whole record batches with acks=all and idempotence, confirmed in order."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from aiokafka.errors import KafkaError

from headrace.errors import HeadraceError, SinkError
from headrace.kafka import producer as producers
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.settings import KafkaSinkSettings
from headrace.sinks.base import Sink


class KafkaSink(Sink):
    """One producer, from start to its first failure. publish() is called by one coroutine only, so that batches of a
    partition never overtake each other; only their confirmations overlap."""

    def __init__(self, settings: KafkaSinkSettings, lease: Lease) -> None:
        super().__init__(lease)
        self._settings = settings
        self._producer: Any = None
        self._in_flight = 0
        self._drained = asyncio.Event()
        self._pending: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """See Sink."""
        self._producer = producer = producers.make_producer(self._settings)
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await self.abort()
            raise producers.unreachable(self._settings, error) from error

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """See Sink. Waits while more than max_in_flight_bytes are unconfirmed: before each record batch, because the
        batch of a large change may have many of them."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.add_done_callback(_seen)
        self._pending.add(done)
        parts = producers.build_batches(self._producer, batch)
        remaining = len(parts)

        def on_delivery(size: int, delivery: asyncio.Future[Any]) -> None:
            nonlocal remaining
            error = None if delivery.cancelled() else delivery.exception()
            remaining -= 1
            self._in_flight -= size
            self._drained.set()
            if error is not None or delivery.cancelled():
                self._settle(done, self._failure(batch, error))
            elif not remaining:
                self._settle(done, None)

        try:
            for part in parts:
                size = part.size()
                while self._in_flight and self._in_flight + size > self._settings.max_in_flight_bytes:
                    self._drained.clear()
                    await self._drained.wait()
                if done not in self._pending:  # a part before it has failed
                    return done
                async with asyncio.timeout(2 * self._settings.request_timeout):
                    self._lease.check()
                    delivery = await self._producer.send_batch(part, batch.topic, partition=batch.partition)
                self._in_flight += size
                delivery.add_done_callback(functools.partial(on_delivery, size))
        except (KafkaError, OSError, TimeoutError, AssertionError) as error:
            self._settle(done, None)
            raise self._failure(batch, error) from error
        except HeadraceError:  # the lease's
            self._settle(done, None)
            raise
        return done

    def _settle(self, done: asyncio.Future[None], error: Exception | None) -> None:
        """Once a batch; whatever comes after its first failure changes nothing."""
        if done not in self._pending:
            return
        self._pending.discard(done)
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _failure(self, batch: MessageBatch, error: BaseException | None) -> SinkError:
        return producers.unconfirmed(batch.topic, batch.partition, producers.largest_of(batch), error)

    async def abort(self) -> None:
        """Cuts everything: the sender task is ended and the sockets closed before it returns, because an old producer
        that still delivers would put old rows behind new ones."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        await producers.cut(producer)
        for done in list(self._pending):
            self._pending.discard(done)
            done.cancel()

    async def close(self) -> None:
        """See Sink. All is confirmed already, so there is nothing to flush."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producers.close(producer)

    async def check(self) -> list[str]:
        """See Sink: connects and looks at the brokers; topics are made by the first message unless forbidden."""
        try:
            await self.start()
        except SinkError as error:
            return [str(error)]
        await self.close()
        return []


def _seen(done: asyncio.Future[None]) -> None:
    """Only the first failed batch is reported; those behind it fail for the same reason, and nobody waits for them."""
    if not done.cancelled():
        done.exception()
