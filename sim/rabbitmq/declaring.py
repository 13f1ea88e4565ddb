"""Methods that declare, bind and delete exchanges and queues, with what the broker checks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pamqp import commands
from pamqp.base import Frame

from sim.rabbitmq.arguments import name_in, require_same, require_valid, same, same_argument
from sim.rabbitmq.messages import Queue
from sim.rabbitmq.refusals import Failure, Refusal
from sim.rabbitmq.routing import TYPES, Exchange

if TYPE_CHECKING:
    from sim.rabbitmq.channel import Channel


class Declaring:
    """These methods on one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._names = 0

    def call(self, method: Frame) -> bool:
        """Handles a method; returns False for one that is not of these. Raises Refusal."""
        match method:
            case commands.Exchange.Declare():
                self._declare_exchange(method)
            case commands.Exchange.Delete():
                self._delete_exchange(method)
            case commands.Queue.Declare():
                self._declare_queue(method)
            case commands.Queue.Bind() | commands.Queue.Unbind():
                self._bind(method)
            case commands.Queue.Delete():
                self._delete_queue(method)
            case commands.Queue.Purge():
                self._channel.check("read", "queue", method.queue)
                queue = self._channel.host.queue(method.queue)
                count = len(queue.messages)
                queue.messages.clear()
                self._answer(method, commands.Queue.PurgeOk(count))
            case _:
                return False
        return True

    def _answer(self, method: Any, answer: Frame) -> None:
        if not method.nowait:
            self._channel.reply(answer)

    def _declare_exchange(self, method: commands.Exchange.Declare) -> None:
        channel, host, name = self._channel, self._channel.host, method.exchange
        if method.passive:
            host.exchange(name)
            self._answer(method, commands.Exchange.DeclareOk())
            return
        if method.exchange_type not in TYPES:
            raise Failure(503, f"invalid exchange type '{method.exchange_type}'")
        self._require_named(name)
        channel.check("configure", "exchange", name)
        arguments, key = dict(method.arguments or {}), "alternate-exchange"
        where = f"exchange '{name}' in vhost '{host.name}'"
        found = host.exchanges.get(name)
        if found is None:
            if (other := name_in(arguments, key, where)) is not None:
                channel.check("read", "exchange", name)
                channel.check("write", "exchange", other)
            if name.startswith("amq."):
                raise Refusal(403, f"exchange name '{name}' contains reserved prefix 'amq.*'")
            host.exchanges[name] = Exchange(name, method.exchange_type, method.durable, method.auto_delete, arguments)
        else:
            same(where, "type", found.kind, method.exchange_type)
            same(where, "durable", found.durable, method.durable)
            same(where, "auto_delete", found.auto_delete, method.auto_delete)
            same(where, "internal", False, method.internal)
            same_argument(where, key, found.arguments.get(key), arguments.get(key))
        self._answer(method, commands.Exchange.DeclareOk())

    def _require_named(self, exchange: str) -> None:
        if not exchange:
            raise Refusal(403, "operation not permitted on the default exchange")

    def _delete_exchange(self, method: commands.Exchange.Delete) -> None:
        channel, host = self._channel, self._channel.host
        self._require_named(method.exchange)
        if method.exchange.startswith("amq."):
            where = f"system exchange '{method.exchange}' in vhost '{host.name}'"
            raise Refusal(403, f"deletion of {where} not allowed")
        channel.check("configure", "exchange", method.exchange)
        found = host.exchanges.get(method.exchange)
        if found is not None:
            if method.if_unused and found.bindings:
                raise Refusal(406, f"exchange '{found.name}' in vhost '{host.name}' in use")
            del host.exchanges[method.exchange]
        self._answer(method, commands.Exchange.DeleteOk())

    def _declare_queue(self, method: commands.Queue.Declare) -> None:
        channel, host, name = self._channel, self._channel.host, method.queue
        if method.passive:
            queue = host.queue(name)
            self._check_owner(queue)
        else:
            if not name:
                self._names += 1
                name = f"amq.gen-{channel.number}-{self._names}"
            channel.check("configure", "queue", name)
            arguments = dict(method.arguments or {})
            where = f"queue '{name}' in vhost '{host.name}'"
            found = host.queues.get(name)
            if found is None:
                if (other := name_in(arguments, "x-dead-letter-exchange", where)) is not None:
                    channel.check("read", "queue", name)
                    channel.check("write", "exchange", other)
                if method.queue.startswith("amq."):
                    raise Refusal(403, f"queue name '{name}' contains reserved prefix 'amq.*'")
                require_valid(arguments, where, durable=method.durable)
                queue = self._make_queue(name, method, arguments)
            else:
                queue = found
                self._check_owner(queue, exclusive=method.exclusive)
                same(where, "durable", queue.durable, method.durable)
                same(where, "auto_delete", queue.auto_delete, method.auto_delete)
                require_same(queue.arguments, arguments, where)
        self._answer(method, commands.Queue.DeclareOk(name, len(queue.messages), len(queue.consumers)))

    def _make_queue(self, name: str, method: commands.Queue.Declare, arguments: dict[str, Any]) -> Queue:
        connection = self._channel.connection
        owner = connection if method.exclusive else None
        queue = self._channel.host.queues[name] = Queue(name, method.durable, arguments, owner)
        queue.auto_delete = method.auto_delete
        queue.confirm_time = connection.broker.confirm_time
        return queue

    def _check_owner(self, queue: Queue, *, exclusive: bool = False) -> None:
        if queue.owner not in (None, self._channel.connection) or (exclusive and queue.owner is None):
            locked = f"locked queue '{queue.name}' in vhost '{self._channel.host.name}'"
            raise Refusal(
                405,
                f"cannot obtain exclusive access to {locked}. It could be originally declared on another connection or "
                "the exclusive property value does not match that of the original declaration.",
            )

    def _bind(self, method: commands.Queue.Bind | commands.Queue.Unbind) -> None:
        channel, host = self._channel, self._channel.host
        channel.check("write", "queue", method.queue)
        channel.check("read", "exchange", method.exchange)
        if (found := host.exchanges.get(method.exchange)) is not None:
            channel.check_topic("read", found, method.routing_key)
        if isinstance(method, commands.Queue.Bind):
            host.queue(method.queue)
        exchange, key = host.exchange(method.exchange), (method.queue, method.routing_key)
        self._require_named(exchange.name)
        if isinstance(method, commands.Queue.Bind):
            exchange.bindings.setdefault(key, dict(method.arguments or {}))
            self._answer(method, commands.Queue.BindOk())
        else:
            exchange.bindings.pop(key, None)
            channel.reply(commands.Queue.UnbindOk())

    def _delete_queue(self, method: commands.Queue.Delete) -> None:
        channel, host = self._channel, self._channel.host
        channel.check("configure", "queue", method.queue)
        queue, count = host.queues.get(method.queue), 0
        if queue is not None:
            self._check_owner(queue)
            count = len(queue.messages)
            if method.if_unused and queue.consumers:
                raise Refusal(406, f"queue '{queue.name}' in vhost '{host.name}' in use")
            if method.if_empty and count:
                raise Refusal(406, f"queue '{queue.name}' in vhost '{host.name}' not empty")
            host.remove_queue(queue.name)
        self._answer(method, commands.Queue.DeleteOk(count))
