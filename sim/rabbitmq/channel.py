"""A channel: publishing with confirms, returns and transactions, and the methods that declare things."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame

from sim.rabbitmq.consuming import Consuming
from sim.rabbitmq.declaring import Declaring
from sim.rabbitmq.messages import Message
from sim.rabbitmq.refusals import Failure, Refusal
from sim.rabbitmq.routing import Exchange

if TYPE_CHECKING:
    from sim.rabbitmq.broker import VirtualHost
    from sim.rabbitmq.connection import Connection

_CONTENT = struct.Struct(">HHQ")
"""Class, weight, bytes of the body."""
_FRAME = struct.Struct(">BHI")
_HEADER, _BODY = 2, 3
_MANDATORY = 1
_NO_ROUTE = 312


class Channel:
    """One channel of one connection."""

    def __init__(self, connection: Connection, host: VirtualHost, number: int) -> None:
        self.connection, self.host, self.number = connection, host, number
        self.consuming = Consuming(self)
        self._declaring = Declaring(self)
        self._closing = False
        self._confirms = False
        self._tag = 0
        """The delivery tag of the last message."""
        self._missing: dict[int, int] = {}
        """By delivery tag, from how many queues a confirm is missing."""
        self._transaction: list[tuple[Exchange, Message, bool]] | None = None
        self._exchange: Exchange | None = None
        """Of the message whose header or body comes next."""
        self._mandatory = False
        self._key = ""
        self._content = b""
        self._size = 0
        self._parts: list[bytes] = []

    def reply(self, method: Frame) -> None:
        """Writes a method."""
        self.connection.method(self.number, method)

    def check(self, operation: str, kind: str, name: str) -> None:
        """Checks a permission of the connection's account. Raises Refusal."""
        self.connection.broker.check(self.connection.user, self.host.name, operation, kind, name)

    def check_topic(self, operation: str, exchange: Exchange, key: str) -> None:
        """Checks a topic permission. Raises Refusal."""
        self.connection.broker.check_topic(self.connection.user, self.host.name, operation, exchange, key)

    def end(self) -> None:
        """Ends the channel. Messages stay where they are; nobody is told about them any more."""
        self._closing = True
        self.consuming.end()
        if self._missing:
            for queue in self.host.queues.values():
                queue.forget(self)
        self._missing = {}

    def refuse(self, refusal: Refusal, payload: bytes) -> None:
        """Closes the channel with a reason; what was not confirmed yet is never."""
        if self._closing:
            return
        self.end()
        class_id, method_id = struct.unpack_from(">HH", payload) if self._exchange is None else (60, 40)
        self.reply(commands.Channel.Close(refusal.code, refusal.text, class_id, method_id))

    # -- publishing ---------------------------------------------------------------------------------------------------

    def publish(self, payload: bytes) -> None:
        """Takes a Basic.Publish, whose content follows. Raises Refusal."""
        if self._closing:
            return
        at = 6 + 1 + payload[6]
        name = payload[7:at].decode()
        key = payload[at + 1 : at + 1 + payload[at]].decode()
        self._mandatory = bool(payload[at + 1 + payload[at]] & _MANDATORY)
        self._exchange, self._key = self.host.exchanges.get(name) or Exchange(name, "", False, False, {}), key

    def header(self, payload: bytes) -> None:
        """Takes the content header. Raises Refusal."""
        if self._closing:
            return
        if self._exchange is None:
            raise Failure(505, "expected method frame, got content header frame instead")
        self._content, self._size = payload, _CONTENT.unpack_from(payload)[2]
        self._parts = []
        if not self._size:
            self._complete()

    def body(self, payload: bytes) -> None:
        """Takes a part of the body. Raises Refusal."""
        if self._closing:
            return
        if self._exchange is None or not self._content:
            raise Failure(505, "expected method frame, got content body frame instead")
        self._parts.append(payload)
        self._size -= len(payload)
        if self._size <= 0:
            self._complete()

    def _complete(self) -> None:
        """Checks and routes a message that has arrived whole, as the broker does then and not before."""
        exchange = self._exchange
        assert exchange is not None
        broker = self.connection.broker
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        broker.published += 1
        if len(body) > broker.max_message:
            raise Refusal(406, f"message size {len(body)} is larger than configured max size {broker.max_message}")
        self.check("write", "exchange", exchange.name)
        exchange = self.host.exchange(exchange.name)
        self.check_topic("write", exchange, self._key)
        message = Message(exchange.name, self._key, self._content, body)
        self._exchange, self._content = None, b""
        if self._transaction is not None:
            self._transaction.append((exchange, message, self._mandatory))
        else:
            self._deliver(exchange, message, self._mandatory)

    def _deliver(self, exchange: Exchange, message: Message, mandatory: bool) -> None:
        queues = self.host.route(exchange, message)
        if not queues and mandatory:
            self._return(message)
        if not self._confirms:
            for queue in queues:
                queue.offer(message, None, 0)
            return
        self._tag += 1
        tag = self._tag
        if self.connection.broker.take_nack(len(message.body)):
            self._missing[tag] = 1
            self.settled([tag], False)
            return
        self._missing[tag] = len(queues) or 1
        if not queues:
            self.settled([tag], True)
        for queue in queues:
            if not queue.offer(message, self, tag):
                self.settled([tag], False)

    def _return(self, message: Message) -> None:
        frames = [
            pamqp.frame.marshal(
                commands.Basic.Return(_NO_ROUTE, "NO_ROUTE", message.exchange, message.routing_key), self.number
            ),
            *self.content(message),
        ]
        self.connection.send(b"".join(frames))

    def content(self, message: Message) -> list[bytes]:
        """Returns the frames of a message's header and body."""
        frames = [_FRAME.pack(_HEADER, self.number, len(message.header)), message.header, b"\xce"]
        most = self.connection.frame_max - 8
        for at in range(0, len(message.body), most):
            part = message.body[at : at + most]
            frames += (_FRAME.pack(_BODY, self.number, len(part)), part, b"\xce")
        return frames

    def settled(self, tags: list[int], accepted: bool) -> None:
        """Takes what a queue says about messages, and answers those that all their queues have confirmed or one has
        refused.

        As the broker does: what is below the smallest unconfirmed tag, and below the smallest refused one, is confirmed
        by one Basic.Ack with `multiple`, and each other message by its own."""
        confirmed, refused = list[int](), list[int]()
        for tag in tags:
            left = self._missing.pop(tag, 0)
            if not left:  # another queue has refused it
                continue
            if not accepted:
                refused.append(tag)
            elif left > 1:
                self._missing[tag] = left - 1
            else:
                confirmed.append(tag)
        if any(self.connection.broker.take_lost_confirm() for _ in confirmed + refused):
            self.connection.abort()
            return
        self._answer(commands.Basic.Ack, sorted(confirmed), refused)
        self._answer(commands.Basic.Nack, sorted(refused), confirmed)

    def _answer(self, method: Callable[..., Frame], tags: list[int], others: list[int]) -> None:
        if len(tags) == 1 and method is commands.Basic.Ack:
            self.reply(method(tags[0], False))
            return
        first_missing = min(self._missing, default=self._tag + 1)
        cutoff = min([first_missing, *others])
        several = [tag for tag in tags if tag < cutoff]
        frames = [method(several[-1], True)] if several else []
        frames += [method(tag, False) for tag in tags[len(several) :]]
        if frames:
            self.connection.send(b"".join(pamqp.frame.marshal(one, self.number) for one in frames))

    # -- methods ------------------------------------------------------------------------------------------------------

    def call(self, method: Frame) -> None:
        """Handles a method other than Basic.Publish. Raises Refusal."""
        if isinstance(method, commands.Channel.Close):
            self.end()
            self.connection.channels.pop(self.number, None)
            self.reply(commands.Channel.CloseOk())
            return
        if isinstance(method, commands.Channel.CloseOk):
            self.connection.channels.pop(self.number, None)
            return
        if self._closing:
            return
        if self._exchange is not None:
            raise Failure(505, "expected content header for class 60, got method frame instead")
        match method:
            case commands.Confirm.Select():
                if self._transaction is not None:
                    raise Refusal(406, "cannot switch from tx to confirm mode")
                self._confirms = True
                self._unless(method.nowait, commands.Confirm.SelectOk())
            case commands.Tx.Select():
                if self._confirms:
                    raise Refusal(406, "cannot switch from confirm to tx mode")
                self._transaction = self._transaction or []
                self.reply(commands.Tx.SelectOk())
            case commands.Tx.Commit() | commands.Tx.Rollback():
                self._end_transaction(isinstance(method, commands.Tx.Commit))
            case commands.Channel.Open():
                raise Failure(504, "second 'channel.open' seen")
            case _:
                if not (self._declaring.call(method) or self.consuming.call(method)):
                    self.connection.broker.unknown.append(method.name)
                    raise Failure(540, f"{method.name} is not implemented")

    def _unless(self, nowait: bool, answer: Frame) -> None:
        if not nowait:
            self.reply(answer)

    def _end_transaction(self, commit: bool) -> None:
        if self._transaction is None:
            raise Refusal(406, "channel is not transactional")
        published, self._transaction = self._transaction, []
        for exchange, message, mandatory in published if commit else ():
            self._deliver(exchange, message, mandatory)
        self.reply(commands.Tx.CommitOk() if commit else commands.Tx.RollbackOk())
