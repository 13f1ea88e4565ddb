"""Kafka, through aiokafka: whole record batches with acks=all and idempotence, confirmed in order."""

from __future__ import annotations

import asyncio
import contextlib
import time
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

from headrace.errors import HeadraceError, SinkError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.settings import KafkaSinkSettings
from headrace.sinks.base import Sink

_REJECTED = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidTopicError, TopicAuthorizationFailedError)
_CLOSE_LIMIT = 5.0


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
        producer = self._make()
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            self._producer = producer
            await self.abort()
            raise SinkError(f"Kafka at {self._brokers} can't be reached ({_text(error)})") from error
        self._producer = producer

    def _make(self) -> Any:
        s = self._settings
        return aiokafka.AIOKafkaProducer(
            bootstrap_servers=list(s.bootstrap_servers),
            client_id=s.client_id,
            acks="all",
            enable_idempotence=True,
            compression_type=None if s.compression == "none" else s.compression,
            max_batch_size=s.batch_bytes,
            request_timeout_ms=int(s.request_timeout * 1000),
            retry_backoff_ms=100,
            linger_ms=0,
        )

    @property
    def _brokers(self) -> str:
        return ",".join(self._settings.bootstrap_servers)

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        """See Sink. Waits while more than max_in_flight_bytes are unconfirmed."""
        while self._in_flight and self._in_flight + batch.size > self._settings.max_in_flight_bytes:
            self._drained.clear()
            await self._drained.wait()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.add_done_callback(_seen)
        self._pending.add(done)
        self._in_flight += batch.size
        parts = self._build(batch)
        remaining = len(parts)

        def on_delivery(delivery: asyncio.Future[Any]) -> None:
            nonlocal remaining
            error = None if delivery.cancelled() else delivery.exception()
            remaining -= 1
            if error is not None or delivery.cancelled():
                self._settle(done, batch.size, self._failure(batch, error))
            elif not remaining:
                self._settle(done, batch.size, None)

        try:
            for part in parts:
                async with asyncio.timeout(2 * self._settings.request_timeout):
                    self._lease.check()
                    delivery = await self._producer.send_batch(part, batch.topic, partition=batch.partition)
                delivery.add_done_callback(on_delivery)
        except (KafkaError, OSError, TimeoutError, AssertionError) as error:
            self._settle(done, batch.size, None)
            raise self._failure(batch, error) from error
        except HeadraceError:  # the lease's
            self._settle(done, batch.size, None)
            raise
        return done

    def _build(self, batch: MessageBatch) -> list[Any]:
        when = batch.commit_time_us // 1000 or time.time_ns() // 1_000_000
        create = self._producer.create_batch
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

    def _settle(self, done: asyncio.Future[None], size: int, error: Exception | None) -> None:
        """Once a batch; whatever comes after its first failure changes nothing."""
        if done not in self._pending:
            return
        self._pending.discard(done)
        self._in_flight -= size
        self._drained.set()
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _failure(self, batch: MessageBatch, error: BaseException | None) -> SinkError:
        where = f"topic {batch.topic}, partition {batch.partition}"
        if isinstance(error, _REJECTED):
            largest = max((len(value) for value in batch.values if value), default=0)
            remedy = (
                f"the largest message has {largest} bytes: raise message.max.bytes of the broker and max.message.bytes "
                "of the topic, or set [message] rows_per_message"
            )
            return SinkRejected(f"Kafka refuses a batch for {where} ({_text(error)})", remedy=remedy)
        return SinkError(f"Kafka did not confirm a batch for {where} ({_text(error)})")

    async def abort(self) -> None:
        """Cuts everything: the sender task is ended and the sockets closed before it returns, because an old producer
        that still delivers would put old rows behind new ones."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer._closed = True
        task = producer._sender.sender_task if producer._sender is not None else None
        if task is not None:
            task.cancel()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_LIMIT):
                await producer.client.close()
        if task is not None:
            await asyncio.wait([task], timeout=_CLOSE_LIMIT)
        producer._message_accumulator.fail_all(KafkaError("the producer was ended"))
        for done in list(self._pending):
            self._pending.discard(done)
            done.cancel()

    async def close(self) -> None:
        """See Sink. All is confirmed already, so there is nothing to flush."""
        producer = self._producer
        if producer is None:
            return
        try:
            async with asyncio.timeout(_CLOSE_LIMIT):
                await producer.stop()
            self._producer = None
        except (KafkaError, OSError, TimeoutError):
            await self.abort()

    async def check(self) -> list[str]:
        """See Sink: connects and looks at the brokers; topics are made by the first message unless forbidden."""
        try:
            await self.start()
        except SinkError as error:
            return [str(error)]
        await self.close()
        return []


def _text(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ") if error is not None else "cancelled"


def _seen(done: asyncio.Future[None]) -> None:
    """Only the first failed batch is reported; those behind it fail for the same reason, and nobody waits for them."""
    if not done.cancelled():
        done.exception()
