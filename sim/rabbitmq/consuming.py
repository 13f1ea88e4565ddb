"""Methods that take messages out of queues: what a test or a consumer beside the sink needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame

from sim.rabbitmq.messages import Message, Queue
from sim.rabbitmq.refusals import Refusal

if TYPE_CHECKING:
    from sim.rabbitmq.channel import Channel


class Consuming:
    """Consumers of one channel, and the messages that they have not acknowledged."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._tag = 0
        self._prefetch = 0
        self._unacknowledged: dict[int, tuple[Queue, Message]] = {}
        self._consumers: dict[str, tuple[Queue, Callable[[], bool]]] = {}

    def call(self, method: Frame) -> bool:
        """Handles a method; returns False for one that is not of these. Raises Refusal."""
        channel = self._channel
        match method:
            case commands.Basic.Qos():
                self._prefetch = method.prefetch_count
                channel.reply(commands.Basic.QosOk())
            case commands.Basic.Get():
                channel.check("read", "queue", method.queue)
                self._get(channel.host.queue(method.queue), bool(method.no_ack))
            case commands.Basic.Consume():
                channel.check("read", "queue", method.queue)
                self._consume(channel.host.queue(method.queue), method)
            case commands.Basic.Cancel():
                tag = method.consumer_tag or ""
                self._cancel(tag)
                if not method.nowait:
                    channel.reply(commands.Basic.CancelOk(tag))
            case commands.Basic.CancelOk():
                pass
            case commands.Basic.Ack():
                self._settle(method.delivery_tag or 0, method.multiple, requeue=False)
            case commands.Basic.Nack():
                self._settle(method.delivery_tag or 0, method.multiple, requeue=method.requeue)
            case commands.Basic.Reject():
                self._settle(method.delivery_tag or 0, False, requeue=method.requeue)
            case _:
                return False
        return True

    def _taken(self, queue: Queue, message: Message, no_ack: bool) -> int:
        self._tag += 1
        if not no_ack:
            self._unacknowledged[self._tag] = queue, message
        return self._tag

    def _get(self, queue: Queue, no_ack: bool) -> None:
        message = queue.take()
        if message is None:
            self._channel.reply(commands.Basic.GetEmpty())
            return
        tag = self._taken(queue, message, no_ack)
        count = len(queue.messages)
        method = commands.Basic.GetOk(tag, message.redelivered, message.exchange, message.routing_key, count)
        self._send(method, message)

    def _consume(self, queue: Queue, method: commands.Basic.Consume) -> None:
        tag, no_ack = method.consumer_tag or f"amq.ctag-{self._tag}-{len(self._consumers)}", bool(method.no_ack)

        def take() -> bool:
            if not no_ack and self._prefetch and len(self._unacknowledged) >= self._prefetch:
                return False
            message = queue.take()
            if message is None:
                return False
            number = self._taken(queue, message, no_ack)
            self._send(
                commands.Basic.Deliver(tag, number, message.redelivered, message.exchange, message.routing_key), message
            )
            return True

        self._consumers[tag] = queue, take
        queue.consumers.append(take)
        if not method.nowait:
            self._channel.reply(commands.Basic.ConsumeOk(tag))
        queue.serve()

    def _send(self, method: Frame, message: Message) -> None:
        channel = self._channel
        channel.connection.send(b"".join((pamqp.frame.marshal(method, channel.number), *channel.content(message))))

    def _cancel(self, tag: str) -> None:
        if (found := self._consumers.pop(tag, None)) is not None:
            queue, take = found
            queue.consumers.remove(take)

    def _settle(self, tag: int, multiple: bool, *, requeue: bool) -> None:
        if multiple:
            tags = [one for one in self._unacknowledged if one <= tag or not tag]
        elif tag in self._unacknowledged:
            tags = [tag]
        else:
            raise Refusal(406, f"unknown delivery tag {tag}")
        settled = [self._unacknowledged.pop(one) for one in tags]
        for queue, message in reversed(settled) if requeue else ():
            queue.give_back(message)
        queues = list(dict.fromkeys(queue for queue, _ in settled)) + [queue for queue, _ in self._consumers.values()]
        for queue in dict.fromkeys(queues):
            queue.serve()

    def end(self) -> None:
        """Ends all consumers; what they have not acknowledged goes back."""
        for tag in list(self._consumers):
            self._cancel(tag)
        left, self._unacknowledged = self._unacknowledged, {}
        for queue, message in reversed(left.values()):
            if not queue.deleted:
                queue.give_back(message)
        for queue in dict.fromkeys(queue for queue, _ in left.values()):
            queue.serve()
