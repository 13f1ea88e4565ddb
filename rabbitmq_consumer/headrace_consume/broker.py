"""One connection to RabbitMQ with one channel: the only file that knows the client's types.

The connection does not reconnect: when it ends, all unacknowledged messages come again on the next. Every call has a
time limit, and every failure is a BrokerError."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, UnderlayConnection
from aio_pika.exceptions import ChannelNotFoundEntity

from headrace_common.rabbitmq import connection_url, error_text, queue_arguments
from headrace_common.rabbitmq_section import QueueType
from headrace_common.tls import TlsFileError, client_context
from headrace_consume.message import Message
from headrace_consume.settings import RabbitMqSettings
from headrace_documents.errors import ConsumerError

T = TypeVar("T")

_CONSUMER = "headrace-consume"
# Properties that a dead letter keeps: it must not expire, the broker refuses another account's user id, and nobody uses
# the cluster id.
_KEPT = (
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "app_id",
)


class BrokerError(ConsumerError):
    """RabbitMQ did not do what was requested, or the connection is lost. A retry may help."""


class Broker:
    """A connection and its channel, made by `connect`."""

    def __init__(
        self,
        settings: RabbitMqSettings,
        address: str,
        connection: AbstractConnection,
        channel: AbstractChannel,
        below: Any,
    ) -> None:
        """`below`: the client's object below the channel. Messages are taken and acknowledged there: aio-pika makes an
        object and two tasks of each message; one that it can't represent, for example with an unknown delivery mode,
        would never arrive here, and be acknowledged with later ones."""
        self._settings = settings
        self.address = address
        self._connection = connection
        self._channel, self._below = channel, below
        # One publish at a time: the client distinguishes returned messages by their ids, which repeat.
        self._publishing = asyncio.Lock()
        self._cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, settings: RabbitMqSettings, name: str) -> Broker:
        """Connects to the first node that accepts us; `name` is shown in the broker's list of connections."""
        try:
            context = None if settings.tls == "disabled" else client_context(*settings.tls_files)
        except TlsFileError as error:
            raise BrokerError(f"the file of [rabbitmq] {error}") from error
        failures: list[str] = []
        for host, port in settings.addresses:
            address = f"{host}:{port}"
            # Not by aio_pika.connect(), which leaves failed connections that nobody closes.
            connection = aio_pika.Connection(connection_url(settings, host, port, name), ssl_context=context)
            try:
                async with asyncio.timeout(settings.timeout):
                    await connection.connect()
                    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
                    return cls(settings, address, connection, channel, await channel.get_underlay_channel())
            except BaseException as error:
                await _close(connection, settings.timeout)
                if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                    raise
                if not isinstance(error, Exception | asyncio.CancelledError):
                    raise
                failures.append(f"{address}: {error_text(error) or f'no answer in {settings.timeout:g} s'}")
        raise BrokerError(
            f"RabbitMQ can't be reached: {'; '.join(failures)}. Check hosts, virtual_host, user and password in "
            "[rabbitmq]"
        )

    @property
    def is_closed(self) -> bool:
        """Returns whether it can't be used any more."""
        return self._connection.is_closed or self._channel.is_closed

    @property
    def _transport(self) -> UnderlayConnection:
        if self._connection.transport is None:
            raise BrokerError(f"RabbitMQ {self.address}: the connection is closed")
        return self._connection.transport

    async def closed(self) -> str:
        """Waits for the end of the connection, the channel or the consumer; returns why."""
        ends: list[asyncio.Future[Any]] = [self._below.connection.closing, self._below.closing, self._cancelled]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._cancelled.done():
            return "the broker ended the consumer: was the queue deleted?"
        # The channel's reason says more than the connection's, which ends with it.
        for end in (ends[1], ends[0]):
            if end.done() and not end.cancelled() and (error := end.exception()) is not None and error_text(error):
                return error_text(error)
        return "the connection was closed"

    async def has_queue(self, name: str) -> int | None:
        """Returns the number of ready messages in a queue; None if the queue does not exist."""
        try:
            async with self._query_channel() as channel:
                queue = await self._ask(f"checking queue {name}", channel.declare_queue(name, passive=True))
        except BrokerError as error:
            if isinstance(error.__cause__, ChannelNotFoundEntity):
                return None
            raise
        return queue.declaration_result.message_count or 0

    async def has_exchange(self, name: str) -> bool:
        """Returns whether an exchange of that name exists."""
        try:
            async with self._query_channel() as channel:
                await self._ask(f"checking exchange {name}", channel.get_exchange(name))
        except BrokerError as error:
            if isinstance(error.__cause__, ChannelNotFoundEntity):
                return False
            raise
        return True

    @asynccontextmanager
    async def _query_channel(self) -> AsyncIterator[AbstractChannel]:
        """Yields a channel for one query: if the object does not exist, the broker answers by closing it."""
        channel = self._connection.channel(publisher_confirms=False)
        await self._ask("opening a channel", channel.initialize())
        yield channel
        with suppress(Exception):
            await self._ask("closing a channel", channel.close())

    async def make_queue(self, name: str, kind: QueueType) -> None:
        """Creates a durable queue that does not drop messages that are returned again and again."""
        declared = self._channel.declare_queue(name, durable=True, arguments=queue_arguments(kind))
        await self._ask(f"making queue {name}", declared)

    async def make_exchange(self, name: str, kind: str) -> None:
        """Creates a durable exchange."""
        await self._ask(f"making exchange {name}", self._channel.declare_exchange(name, kind, durable=True))

    async def bind(self, queue: str, exchange: str, key: str) -> None:
        """Binds a queue to an exchange."""
        bound = await self._channel.get_queue(queue, ensure=False)
        await self._ask(f"binding queue {queue} to exchange {exchange}", bound.bind(exchange, key))

    async def consume(self, queue: str, prefetch: int, take: Callable[[Message], None]) -> None:
        """Delivers the queue's messages to `take`, at most `prefetch` unacknowledged ones."""

        async def on_message(delivered: Any) -> None:
            take(_message(delivered))

        def on_cancel(_: object) -> None:
            if not self._cancelled.done():
                self._cancelled.set_result(None)

        self._below.on_consumer_cancel_callbacks.add(on_cancel)
        await self._ask("setting the prefetch", self._channel.set_qos(prefetch))
        await self._ask(
            f"consuming queue {queue}", self._below.basic_consume(queue, on_message, consumer_tag=_CONSUMER)
        )

    async def stop_consuming(self) -> None:
        """Stops further messages; those that have arrived can still be acknowledged."""
        await self._ask("ending the consumer", self._below.basic_cancel(_CONSUMER))

    async def acknowledge(self, up_to: int, single: list[int]) -> None:
        """Acknowledges all up to a delivery tag (0: none), and single ones; returns when they are sent."""
        if up_to:
            await self._ask("acknowledging", self._below.basic_ack(up_to, multiple=True, wait=not single))
        for tag in single:
            await self._ask("acknowledging", self._below.basic_ack(tag, wait=tag == single[-1]))

    async def get(self, queue: str) -> Message | None:
        """Takes one message, which is acknowledged or comes back when the connection ends; None: there is none."""
        delivered = await self._ask(f"reading queue {queue}", self._below.basic_get(queue))
        return _message(delivered) if delivered.delivery_tag else None

    async def publish(self, message: Message, headers: Mapping[str, Any], exchange: str, routing_key: str) -> None:
        """Publishes a message again, with other headers; returns when the broker has confirmed that a queue has it."""
        try:
            again = _again(message, headers)
        except (TypeError, ValueError) as error:
            raise BrokerError(f"the properties of the message can't be published again: {error}") from None
        what = f"publishing to {f'exchange {exchange} with routing key' if exchange else 'queue'} {routing_key}"
        async with self._publishing:
            # What is sent to a broker that accepts nothing now would wait there, and be sent again by the next attempt.
            await self._ask("waiting, because the broker takes no messages (an alarm?)", self._transport.ready())
            target = self._channel.default_exchange
            if exchange:
                target = await self._channel.get_exchange(exchange, ensure=False)
            await self._ask(what, target.publish(again, routing_key, mandatory=True))

    async def close(self) -> None:
        """Closes the connection, within the time limit; unacknowledged messages go back to their queue."""
        await _close(self._connection, self._settings.timeout)

    async def _ask(self, what: str, answer: Awaitable[T]) -> T:
        """Returns the answer. Raises BrokerError."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                return await answer
        except asyncio.CancelledError as error:
            # The client cancels what waits on a connection that ends; only our own cancellation is passed on.
            if _is_cancelled():
                raise
            raise BrokerError(f"RabbitMQ {self.address}: the connection ended while {what}") from error
        except TimeoutError:
            raise BrokerError(
                f"RabbitMQ {self.address} gave no answer in {self._settings.timeout:g} s while {what}"
            ) from None
        except Exception as error:
            raise BrokerError(f"RabbitMQ {self.address}: {what} failed: {error_text(error)}") from error


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _close(connection: AbstractConnection, timeout: float) -> None:
    with suppress(Exception, asyncio.CancelledError):
        async with asyncio.timeout(timeout):
            await connection.close()


def _again(message: Message, headers: Mapping[str, Any]) -> aio_pika.Message:
    """Returns the same message with other headers. Raises TypeError or ValueError."""
    old = message.properties
    kept = {name: getattr(old, name) for name in _KEPT if old is not None}
    return aio_pika.Message(
        message.body,
        headers=dict(headers),
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        type=old.message_type if old is not None else None,
        **kept,
    )


def _message(delivered: Any) -> Message:
    properties = delivered.header.properties
    return Message(
        tag=delivered.delivery_tag or 0,
        body=delivered.body,
        exchange=delivered.exchange or "",
        routing_key=delivered.routing_key or "",
        # Quorum queues add the number of deliveries, which is no part of the message.
        headers={name: value for name, value in (properties.headers or {}).items() if name != "x-delivery-count"},
        message_id=properties.message_id or "",
        redelivered=bool(delivered.redelivered),
        properties=properties,
    )
