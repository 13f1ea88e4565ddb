"""Publishes to a RabbitMQ exchange with publisher confirms, many in flight; a message that no queue takes is
returned."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.adapters.rabbitmq.frames import PIECE, Encoder, size_refused
from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.errors import SinkError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.parking.confirming import ConfirmingSink
from headrace.ports.finding import Finding, failed, warning
from headrace.ports.sink import Parking, SinkRouting

if TYPE_CHECKING:
    from headrace.adapters.rabbitmq.connection import BrokerConnection


class RabbitMqSink(ConfirmingSink):
    """One connection with one channel in confirm mode, whose delivery tags are the tags of ConfirmingSink."""

    def __init__(
        self,
        settings: RabbitMqSinkSettings,
        lease: Lease,
        parking: Parking | None = None,
        routing: SinkRouting | None = None,
    ) -> None:
        super().__init__(settings, lease, parking)
        self._settings, self._routing = settings, routing or SinkRouting()
        self._connection: BrokerConnection | None = None
        self._encoder: Encoder
        self._large: dict[int, str] = {}
        """By size, the source positions of the large messages that were handed over last."""
        self._last_returned = 0
        """The tag of the last returned message."""

    async def start(self) -> None:
        """Declares exchange and queue if configured, else checks that the exchange exists."""
        await self._open(declare=True)
        self._begin_tasks("rabbitmq")

    async def _open(self, *, declare: bool) -> None:
        try:
            from headrace.adapters.rabbitmq.connection import BrokerConnection
        except ModuleNotFoundError as error:
            raise SinkRejected(
                f"the RabbitMQ sink needs {(error.name or '').partition('.')[0]}, which is not installed",
                remedy="pip install 'headrace[rabbitmq]'",
            ) from error
        settings = self._settings
        self._connection = connection = BrokerConnection(settings, self._settled, self._returned, self._broken)
        try:
            await connection.open()
            await connection.prepare(declare=declare)
        except BaseException:
            await self.abort()
            raise
        self._encoder = Encoder(
            settings.exchange,
            connection.channel.number,
            connection.channel.frame_max,
            mandatory=settings.mandatory,
            persistent=settings.persistent,
        )

    async def abort(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.abort()
        await self._end_tasks()

    async def close(self) -> None:
        """Closes the connection. All is already confirmed, so there is nothing to flush."""
        await self._end_tasks()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def problem(self) -> str:
        return "; ".join(map(str, await RabbitMqSink(self._settings, self._lease)._findings(publish=False)))

    async def check(self) -> list[Finding]:
        """Connects, and checks that we may declare what a start declares, and may publish; creates nothing."""
        return await self._findings(publish=True)

    async def _findings(self, *, publish: bool) -> list[Finding]:
        try:
            await self._open(declare=False)
            if publish and self._connection is not None:
                return await self._rights(self._connection)
        except SinkError as error:
            return [failed("sink", error)]
        finally:
            await self.close()
        return []

    async def _rights(self, connection: BrokerConnection) -> list[Finding]:
        if self._settings.declare:
            await connection.try_declaring()
        # Routing keys are known in advance only if they are a topic that is known before any table is.
        known = self._routing.topics if self._settings.routing_key == "{topic}" else ()
        for key in known:
            await connection.try_publishing(key)
        if known or not (why := await connection.try_publishing()):
            return []
        sentence = f"topic permissions hold for the account, and refuse a routing key ({why})"
        return [
            warning("sink", sentence, f"check whether they take all of routing_key = '{self._settings.routing_key}'")
        ]

    async def _transmit(self, batch: MessageBatch, indexes: Sequence[int], first_tag: int) -> None:
        connection = self._connection
        if connection is None:
            raise SinkError("the connection to RabbitMQ is closed")
        if batch.largest > PIECE:
            sizes = {len(batch.values[i] or b""): i for i in indexes}
            self._large = {size: _place(batch.headers[i]) for size, i in sizes.items() if size > PIECE}
        pieces = self._encoder.encode(batch, indexes)  # so that other tasks get turns in between
        piece = next(pieces, None)
        while piece is not None:
            following = next(pieces, None)
            try:
                await connection.write(piece)
            except asyncio.CancelledError:
                if following is not None:  # nothing else may be written after an incomplete message
                    self._lost(SinkError("a message was handed over in part"))
                raise
            piece = following

    def _scope(self, batch: MessageBatch) -> str:
        return self._settings.exchange

    def _paused(self) -> bool:
        return self._connection is not None and self._connection.blocked

    def _broken(self, error: SinkError) -> None:
        """Handles a broken connection; the cause may be a message that is too large."""
        if (place := self._large.get(size_refused(str(error)))) is not None:
            error = SinkRejected(f"{error.args[0]}: that of the change at {place}", remedy=error.remedy)
        self._lost(error)

    def _returned(self, id_: bytes, reason: str) -> None:
        """Handles a returned message. Returns have no tag; they come in the order of sending, each before its message's
        own confirmation."""
        tag = self._window.find(id_, self._last_returned)
        if not tag:
            self._lost(SinkError(f"RabbitMQ returned a message that was not sent ({reason})"))
            return
        self._last_returned = tag
        self._settled(tag, tag, reason)


def _place(headers: Sequence[tuple[str, bytes]]) -> str:
    return dict(headers).get("headrace-position", b"").decode()
