"""The queues of the consumer: which must exist, and how messages move between them."""

from __future__ import annotations

import asyncio

from headrace_consume.broker import Broker, BrokerError
from headrace_consume.message import Message, dead_headers, resent_headers
from headrace_consume.settings import Settings


class DeadLetterQueues:
    """Publishes dead letters and sends them again, on a separate connection that is opened when needed.

    It is not the consumer's connection: a broker that is short of memory or disk stops reading from those that publish,
    and then no acknowledgement would reach it either."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._broker: Broker | None = None
        self._connecting = asyncio.Lock()

    async def publish(self, message: Message) -> bool:
        """Publishes a message that can't be applied as a dead letter, and returns when that is confirmed; returns
        whether it now needs an operator. Raises BrokerError."""
        settings = self._settings
        needs_operator = message.resends >= settings.dead_letters.attempts
        queue = settings.operator_queue if needs_operator else settings.dead_queue
        broker = await self._connected()
        headers = dead_headers(message, settings.rabbitmq.queue)
        await broker.publish(message, headers, settings.dead_letters.exchange, queue)
        return needs_operator

    async def scan(self) -> int:
        """Sends the present dead letters again, each confirmed before the dead letter is removed; returns how many they
        were. Raises BrokerError: then each dead letter is where it was, or in both queues, which is harmless."""
        broker = await self._connected()
        try:
            return await self._scan(broker)
        except BrokerError:
            # A dead letter that was taken goes back to its queue only when the connection ends.
            await broker.close()
            raise

    async def _scan(self, broker: Broker) -> int:
        settings = self._settings
        sent = 0
        for _ in range(await broker.has_queue(settings.dead_queue) or 0):
            letter = await broker.get(settings.dead_queue)
            if letter is None:
                break
            if letter.resends >= settings.dead_letters.attempts:
                # The limit was lower when it was put here.
                await broker.publish(letter, letter.headers, settings.dead_letters.exchange, settings.operator_queue)
            else:
                await self.resend(broker, letter, letter.resends + 1)
                sent += 1
            await broker.acknowledge(0, [letter.tag])
        return sent

    async def resend(self, broker: Broker, letter: Message, resends: int) -> None:
        """Publishes a dead letter to the main queue alone: the exchange that it first came by may have other queues
        too."""
        await broker.publish(letter, resent_headers(letter.headers, resends), "", self._settings.rabbitmq.queue)

    async def counts(self) -> tuple[int, int]:
        """Returns the dead letters that wait for the scan, and those that need an operator."""
        broker = await self._connected()
        waiting = await broker.has_queue(self._settings.dead_queue)
        return waiting or 0, await broker.has_queue(self._settings.operator_queue) or 0

    async def close(self) -> None:
        """Closes the connection."""
        if self._broker is not None:
            await self._broker.close()

    async def _connected(self) -> Broker:
        async with self._connecting:
            if self._broker is None or self._broker.is_closed:
                if self._broker is not None:
                    await self._broker.close()
                self._broker = await Broker.connect(self._settings.rabbitmq, "headrace-consume dead letters")
            return self._broker


async def prepare(broker: Broker, settings: Settings) -> None:
    """Creates what is missing and may be created. Raises BrokerError if something required does not exist.

    Existing objects are not changed: queues with other arguments work as well."""
    main, dead = settings.rabbitmq, settings.dead_letters
    missing: list[str] = []
    if await broker.has_queue(main.queue) is None:
        if main.declare:
            await broker.make_queue(main.queue, main.queue_type)
        else:
            missing.append(f"queue {main.queue}")
    if main.declare and main.exchange:
        if not await broker.has_exchange(main.exchange):
            await broker.make_exchange(main.exchange, main.exchange_type)
        await broker.bind(main.queue, main.exchange, main.binding)
    if dead.exchange and not await broker.has_exchange(dead.exchange):
        if dead.declare:
            await broker.make_exchange(dead.exchange, "direct")
        else:
            missing.append(f"exchange {dead.exchange}")
    for queue in (settings.dead_queue, settings.operator_queue):
        if await broker.has_queue(queue) is None:
            if not dead.declare:
                missing.append(f"queue {queue}")
                continue
            await broker.make_queue(queue, dead.queue_type)
        if dead.declare and dead.exchange:
            await broker.bind(queue, dead.exchange, queue)
    if missing:
        raise BrokerError(
            f"RabbitMQ {broker.address} has no {' and no '.join(missing)}: make them, or set declare = true"
        )
