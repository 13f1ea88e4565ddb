"""RabbitMQ as the tests see it: queues of their own, what lies in them, and sinks and batches to fill them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aio_pika

from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.adapters.rabbitmq.sink import RabbitMqSink
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.ports.sink import SinkRouting

LIMIT = 20.0


class Broker:
    """A connection of the test's own."""

    def __init__(self, connection: Any, channel: Any) -> None:
        self.connection, self.channel = connection, channel

    async def queue(self, name: str, exchange: str = "", binding: str = "#", **arguments: Any) -> Any:
        """A durable queue, made when it is missing; bound to an exchange, which is made too."""
        queue = await self.channel.declare_queue(
            name, durable=True, arguments={key.replace("_", "-"): value for key, value in arguments.items()}
        )
        if exchange:
            made = await self.channel.declare_exchange(exchange, "topic", durable=True)
            await queue.bind(made, binding)
        return queue

    async def read(self, queue: Any, wanted: Callable[[list[Any]], bool], limit: float = LIMIT) -> list[Any]:
        """Messages, taken out of the queue, until those read so far are what is wanted, or none comes for `limit`
        seconds."""
        found: list[Any] = []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit) as silence, queue.iterator(no_ack=True) as messages:
                async for message in messages:
                    found.append(message)
                    if wanted(found):
                        break
                    silence.reschedule(loop.time() + limit)
        except TimeoutError:
            raise AssertionError(f"only {len(found)} came: {[m.message_id for m in found][-5:]}") from None
        return found


@contextlib.asynccontextmanager
async def connected_to(url: str) -> AsyncIterator[Broker]:
    async with asyncio.timeout(LIMIT):
        connection = await aio_pika.connect(url)
    try:
        yield Broker(connection, await connection.channel())
    finally:
        await asyncio.wait([asyncio.ensure_future(connection.close())], timeout=5)


def sink_to(server: Any, routing: SinkRouting | None = None, **keys: Any) -> RabbitMqSink:
    """A sink, not started."""
    given = {
        "type": "rabbitmq",
        "hosts": f"{server.host}:{server.port}",
        "user": "guest",
        "password": "guest",
        "retry_delay": 0.2,
        "request_timeout": 10,
    }
    return RabbitMqSink(RabbitMqSinkSettings.model_validate(given | keys), Lease(), routing=routing)


def numbered(first: int, count: int, topic: str, body: bytes = b"{}") -> MessageBatch:
    """A batch of messages with numbers for ids."""
    ids = range(first, first + count)
    return MessageBatch(topic, 0, [body] * count, [[("headrace-id", b"%d" % i)] for i in ids])


def ids(messages: Sequence[Any]) -> list[int]:
    return [int(message.message_id) for message in messages]


def last_words(found: Sequence[int]) -> list[int]:
    """Each number once, in the order of their last appearance."""
    last = {number: place for place, number in enumerate(found)}
    return sorted(last, key=lambda number: last[number])
