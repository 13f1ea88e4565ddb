"""A client's connection to a broker: frames in, answers out, one request at a time as a broker handles them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sim.kafka.faults import Fault, Kind
from sim.kafka.wire import FLEXIBLE, HEADER, INT, SIZE
from sim.served import Served

if TYPE_CHECKING:
    from sim.kafka.broker import Broker

_LARGEST = 100 << 20
"""Bytes of the largest request, socket.request.max.bytes."""


class Exchange:
    """One request, until it is answered."""

    __slots__ = ("api", "client", "connection", "correlation", "fault", "version")

    def __init__(
        self, connection: Connection, api: int, version: int, correlation: int, client: str, fault: Fault | None
    ) -> None:
        self.connection, self.api, self.version = connection, api, version
        self.correlation, self.client, self.fault = correlation, client, fault

    def refusal(self, topic: str | None = None) -> int:
        """Returns the error code that a fault wants for this request and topic; 0 for none."""
        fault = self.fault
        if fault is None or fault.kind is not Kind.REFUSE or fault.topic not in (None, topic):
            return 0
        return fault.code

    @property
    def waits(self) -> bool:
        """Returns whether the client still waits for the answer."""
        return self.connection.current is self

    def answer(self, body: bytes) -> None:
        """Sends the answer, as the fault of this request allows; the next request is then handled."""
        self.connection.finish(self, body)

    def no_answer(self) -> None:
        """Ends a request that has no answer, a Produce with acks=0."""
        self.connection.skip(self)


class Connection(Served):
    """One connection to one broker."""

    def __init__(self, broker: Broker, listener: str = "") -> None:
        super().__init__(broker)
        self.listener = listener
        self.current: Exchange | None = None
        self._broker = broker
        self._busy = False
        """Whether requests are being taken from the buffer now, further up the stack."""
        self._muted = False

    def dropped(self) -> None:
        self.current = None

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._buffer += data
        if self.current is None:
            self._pump()

    def _pump(self) -> None:
        """Handles requests until one waits."""
        if self._busy:
            return
        self._busy, buffer, at = True, self._buffer, 0
        try:
            while self.current is None and self._transport is not None and not self._muted and len(buffer) - at >= 4:
                (size,) = SIZE.unpack_from(buffer, at)
                if not 8 <= size <= _LARGEST:
                    self.close()
                    return
                if len(buffer) - at < 4 + size:
                    break
                with memoryview(buffer) as view:
                    frame = bytes(view[at + 4 : at + 4 + size])
                at += 4 + size
                self._handle(frame)
        finally:
            self._busy = False
            del buffer[:at]

    def _handle(self, frame: bytes) -> None:
        api, version, correlation, length = HEADER.unpack_from(frame)
        at = HEADER.size + max(length, 0)
        client = frame[HEADER.size : at].decode()
        if api in FLEXIBLE:
            at += 1  # no client sends tagged fields
        broker = self._broker
        fault = broker.cluster.faults.find(api, broker.number, client) if broker.cluster.faults.rules else None
        exchange = self.current = Exchange(self, api, version, correlation, client, fault)
        if fault is not None and fault.kind is Kind.DROP_REQUEST:
            if not fault.silent:
                self.abort()
            return
        broker.handle(exchange, frame, at)

    def finish(self, exchange: Exchange, body: bytes) -> None:
        """Writes an answer. Nothing happens if the client has gone."""
        if self.current is not exchange:
            return
        fault = exchange.fault
        if fault is None or fault.kind is Kind.REFUSE:
            self._write(exchange, body)
        elif fault.kind is Kind.DELAY_ANSWER:
            asyncio.get_running_loop().call_later(fault.seconds, self._write, exchange, body)
        elif fault.kind is Kind.TEAR_ANSWER:
            assert self._transport is not None
            self._transport.write(self._frame(exchange, body)[: fault.after])
            self.close()
        elif not fault.silent:
            self.abort()

    def skip(self, exchange: Exchange) -> None:
        """Goes on to the next request without an answer."""
        if self.current is exchange:
            self.current = None
            if self._buffer:
                self._pump()

    def _frame(self, exchange: Exchange, body: bytes) -> bytes:
        head = INT.pack(exchange.correlation) + (b"\0" if exchange.api in FLEXIBLE else b"")
        return SIZE.pack(len(head) + len(body)) + head + body

    def _write(self, exchange: Exchange, body: bytes) -> None:
        if self.current is not exchange or self._transport is None:
            return
        self._transport.write(self._frame(exchange, body))
        self.current = None
        if throttle := self._broker.cluster.throttle_ms(exchange.client):
            self._muted = True  # KIP-219: the answer comes at once, and the next request is read later
            asyncio.get_running_loop().call_later(throttle / 1000, self._unmute)
        elif self._buffer:
            self._pump()

    def _unmute(self) -> None:
        self._muted = False
        self._pump()
