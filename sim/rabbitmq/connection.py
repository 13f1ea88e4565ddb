"""A client's connection: protocol header, login, frames, heartbeats, and blocking.

Frames and methods: the specification of AMQP 0-9-1, 2.2 and 2.3, with RabbitMQ's extensions
(rabbitmq.com/connection-blocked, rabbitmq.com/auth-notification, rabbitmq.com/heartbeats)."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame
from pamqp.common import FieldTable
from pamqp.heartbeat import Heartbeat

from sim.rabbitmq.channel import Channel
from sim.rabbitmq.refusals import Failure, Refusal
from sim.served import Served

if TYPE_CHECKING:
    from sim.rabbitmq.broker import Broker, VirtualHost

_GREETING = b"AMQP\x00\x00\x09\x01"
_FRAME = struct.Struct(">BHI")
"""Kind, channel, bytes of the payload."""
_METHOD, _HEADER, _BODY, _HEARTBEAT, _END = 1, 2, 3, 8, 0xCE
_PUBLISH = b"\x00\x3c\x00\x28"
"""Class and method of Basic.Publish."""
_MISSED = 2
"""Heartbeat intervals without a byte from the client after which it is given up."""


class Connection(Served):
    """One connection."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self.broker = broker
        self.user = ""
        self.channels: dict[int, Channel] = {}
        self.frame_max = broker.frame_max
        self.blocked = False
        """Whether an alarm holds back what comes after the last Basic.Publish."""
        self._host: VirtualHost | None = None
        self._greeted = self._closing = False
        self._interval = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._silent = 0
        self._received = self._sent = False
        """Whether anything came and went since the last check."""

    # -- transport ----------------------------------------------------------------------------------------------------

    def dropped(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for channel in list(self.channels.values()):
            channel.end()
        self.channels.clear()
        if self._host is not None:
            for queue in list(self._host.queues.values()):
                if queue.owner is self:
                    self._host.remove_queue(queue.name)

    def send(self, data: bytes) -> None:
        """Writes whole frames."""
        if self._transport is not None and not self.broker.frozen:
            self._sent = True
            self._transport.write(data)

    def method(self, number: int, method: Frame) -> None:
        """Writes a method on a channel."""
        self.send(pamqp.frame.marshal(method, number))

    # -- frames -------------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._received = True
        self._buffer += data
        self.resume()

    def resume(self) -> None:
        """Handles the frames that are complete."""
        buffer, at = self._buffer, 0
        try:
            if not self._greeted and not self.broker.frozen:
                if len(buffer) < len(_GREETING):
                    return
                at = len(_GREETING)
                if buffer[:at] != _GREETING:
                    self.send(_GREETING)
                    self.close()
                    return
                self._greeted = True
                self._begin()
            while not self.blocked and not self.broker.frozen and self._transport is not None:
                if len(buffer) - at < _FRAME.size:
                    break
                kind, number, size = _FRAME.unpack_from(buffer, at)
                if size + 8 > self.frame_max and not self._closing:
                    raise Failure(
                        501, f"type {kind}, all octets = <<>>: {{frame_too_large,{size},{self.frame_max - 8}}}"
                    )
                end = at + _FRAME.size + size
                if len(buffer) <= end:
                    break
                if buffer[end] != _END and not self._closing:
                    raise Failure(501, "bad frame end marker")
                with memoryview(buffer) as view:
                    payload = bytes(view[at + _FRAME.size : end])
                at = end + 1
                self._handle(kind, number, payload)
        except Failure as failure:
            self.fail(failure)
        finally:
            del buffer[:at]

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        if kind == _HEARTBEAT or (self._closing and payload[:4] != b"\x00\x0a\x00\x33"):
            return
        if number == 0:
            if kind != _METHOD:
                raise Failure(505, f"unexpected frame of type {kind} on channel 0")
            self._control(_decoded(payload))
            return
        channel = self.channels.get(number)
        if channel is None:
            self._open_channel(number, kind, payload)
            return
        try:
            if kind == _METHOD and payload.startswith(_PUBLISH):
                channel.publish(payload)
                if self.broker.alarm:
                    self.blocked = True
                    self.method(0, commands.Connection.Blocked(self.broker.alarm))
            elif kind == _METHOD:
                channel.call(_decoded(payload))
            elif kind == _HEADER:
                channel.header(payload)
            elif kind == _BODY:
                channel.body(payload)
            else:
                raise Failure(501, f"unknown frame type {kind}")
        except Failure:
            raise
        except Refusal as refusal:
            channel.refuse(refusal, payload)

    def _open_channel(self, number: int, kind: int, payload: bytes) -> None:
        method = _decoded(payload) if kind == _METHOD else None
        if not isinstance(method, commands.Channel.Open) or self._host is None:
            raise Failure(504, f"expected 'channel.open' on channel {number}")
        if number > self.broker.channel_max:
            raise Failure(504, f"channel {number} is above the limit of {self.broker.channel_max}")
        self.channels[number] = Channel(self, self._host, number)
        self.method(number, commands.Channel.OpenOk())

    # -- login --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        capabilities: FieldTable = {
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "authentication_failure_close": True,
            "per_consumer_qos": True,
        }
        properties: FieldTable = {
            "product": "RabbitMQ",
            "version": "4.0.5",
            "platform": "model",
            "capabilities": capabilities,
        }
        self.method(0, commands.Connection.Start(0, 9, properties, "PLAIN", "en_US"))

    def _control(self, method: Frame) -> None:
        broker = self.broker
        match method:
            case commands.Connection.StartOk():
                user, password = f"{method.response or ''}\0\0\0".split("\0")[1:3]
                account = broker.accounts.get(user)
                if method.mechanism != "PLAIN" or account is None or account.password != password:
                    raise Failure(
                        403,
                        f"Login was refused using authentication mechanism {method.mechanism}. For details see the "
                        "broker logfile.",
                    )
                self.user = user
                self.method(0, commands.Connection.Tune(broker.channel_max, broker.frame_max, broker.heartbeat))
            case commands.Connection.TuneOk():
                self.frame_max = min(method.frame_max or broker.frame_max, broker.frame_max)
                if method.heartbeat:
                    self._interval = method.heartbeat / 2
                    self._timer = asyncio.get_running_loop().call_later(self._interval, self._beat)
            case commands.Connection.Open():
                name = str(method.virtual_host)
                self._host = broker.vhosts.get(name)
                if self._host is None:
                    raise Failure(530, f"vhost {name} not found")
                if name not in broker.accounts[self.user].permissions:
                    raise Failure(530, f"access to vhost '{name}' refused for user '{self.user}'")
                self.method(0, commands.Connection.OpenOk())
            case commands.Connection.Close():
                self.method(0, commands.Connection.CloseOk())
                self.close()
            case commands.Connection.CloseOk():
                self.close()
            case _:
                broker.unknown.append(method.name)
                raise Failure(540, f"{method.name} is not implemented")

    def fail(self, failure: Refusal) -> None:
        """Closes the connection with a reason; the client answers, or goes."""
        if self._transport is None or self._closing:
            return
        self._closing, self.blocked = True, False
        for channel in list(self.channels.values()):
            channel.end()
        self.channels.clear()
        self.method(0, commands.Connection.Close(failure.code, failure.text, 0, 0))

    # -- heartbeats and alarms ----------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Sends a heartbeat if nothing else was sent for half the negotiated time, and gives up a silent client."""
        if self._transport is None:
            return
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._beat)
        if self.broker.frozen:
            return
        if not self._sent:
            self.send(Heartbeat().marshal())
        self._silent = 0 if self._received or self.blocked else self._silent + 1
        self._sent = self._received = False
        if self._silent >= 2 * _MISSED:
            self.abort()

    def unblock(self) -> None:
        """Goes on after an alarm."""
        if self.blocked:
            self.blocked = False
            self.method(0, commands.Connection.Unblocked())
            self.resume()


def _decoded(payload: bytes) -> Frame:
    whole = _FRAME.pack(_METHOD, 0, len(payload)) + payload + bytes((_END,))
    try:
        method = pamqp.frame.unmarshal(whole)[2]
    except pamqp.exceptions.UnmarshalingException as error:
        raise Failure(503, f"unknown method ({error})") from error
    assert isinstance(method, Frame)
    return method
