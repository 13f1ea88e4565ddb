"""A connection to RabbitMQ through aiormq, the driver below aio-pika: opened, looked at, written to directly, cut."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

import aiormq
import pamqp.frame
import structlog
from aiormq.channel import Channel
from aiormq.exceptions import AMQPError, ChannelClosed, ConnectionClosed
from pamqp import commands
from yarl import URL

from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.errors import SinkError, SinkRejected
from headrace.settings.values import parse_host_port

log = structlog.get_logger(__name__)
# Whatever happens to a connection is raised to us, and told in our own words.
logging.getLogger("aiormq").setLevel(logging.CRITICAL)

CLOSE_LIMIT = 5.0
"""Seconds that closing in order, or ending the tasks of a connection, may take."""
_CONNECT_LIMIT = 10.0
"""Seconds for each server, until it has let us in."""
# RabbitMQ 4 drops a message of a quorum queue that its consumers handed back 20 times, unless the queue has a limit of
# its own; there is no value for "none" that all versions take. The consumer makes the queue with the same one.
_DELIVERY_LIMIT = 2_000_000_000
_ACCESS_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION_FAILED, _NOT_ALLOWED = 403, 404, 405, 406, 530


class Line:
    """One connection with one channel in confirm mode. `on_answer` is given tags, from..to, and a reason when they are
    refused; `on_return` the id of a message that reached no queue, and why; `on_lost` why the line broke.

    All three are called from tasks of the driver and must not wait.
    """

    def __init__(
        self,
        settings: RabbitMqSinkSettings,
        on_answer: Callable[[int, int, str], None],
        on_return: Callable[[bytes, str], None],
        on_lost: Callable[[SinkError], None],
    ) -> None:
        self._settings = settings
        self._on_answer, self._on_return, self._on_lost = on_answer, on_return, on_lost
        self._connection: _Connection | None = None
        self._channel: _ConfirmChannel | None = None
        self.frame_max = self.number = 0
        """Bytes of the largest frame, and the channel's number."""

    @property
    def blocked(self) -> bool:
        """Whether the broker has asked us to wait: it lacks memory or disk."""
        return self._connection is not None and self._connection.blocked

    # -- opening ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects to the first server that lets us in, within a limit each. Raises SinkError."""
        settings, failures = self._settings, []
        try:
            context = _tls(settings) if settings.tls else None
        except (OSError, ssl.SSLError) as error:
            raise SinkRejected(
                f"the certificates of [sink] can't be used ({error})", remedy="look at tls_ca, tls_certificate, tls_key"
            ) from error
        for server in settings.servers:
            host, port = parse_host_port(server)
            connection = _Connection(_url(settings, host, port), context=context)
            connection.vhost = settings.virtual_host
            try:
                await self._connect(connection)
            except SinkRejected:
                raise
            except (AMQPError, OSError, TimeoutError, SinkError) as error:
                failures.append(f"{server}: {_text(error)}")
                continue
            self._connection = connection
            return
        raise SinkError(f"RabbitMQ can't be reached ({'; '.join(failures)})")

    async def _connect(self, connection: _Connection) -> None:
        connecting = asyncio.ensure_future(connection.connect())
        try:
            await asyncio.wait([connecting], timeout=min(_CONNECT_LIMIT, self._settings.request_timeout))
            if not connecting.done():
                raise SinkError("it takes connections and does not answer")
            connecting.result()
        except BaseException as error:
            if not connecting.done():
                connecting.cancel()
                await asyncio.wait([connecting], timeout=CLOSE_LIMIT)
            await _cut(connection)
            if isinstance(error, ConnectionClosed):
                raise self._refusal(error) from error
            raise

    async def prepare(self, *, declare: bool) -> None:
        """Opens the channel, and declares the exchange or looks for it; neither when it may still be declared. Raises
        SinkError."""
        assert self._connection is not None
        try:
            async with asyncio.timeout(self._settings.request_timeout):
                self._channel = channel = _ConfirmChannel(self._connection, 1, self)
                self._connection.channels[1] = channel
                await channel.open()
                if declare or not self._settings.declare:
                    await self._declare(channel)
        except TimeoutError as error:
            limit = self._settings.request_timeout
            raise SinkError(f"RabbitMQ did not open a channel within {limit:g} s") from error
        except (AMQPError, OSError, RuntimeError) as error:
            raise self._refusal(error) from error
        self.frame_max, self.number = self._connection.connection_tune.frame_max, channel.number
        for resource in (channel, self._connection):
            resource.closing.add_done_callback(self._closed)

    async def _declare(self, channel: Channel) -> None:
        settings = self._settings
        if settings.exchange:
            how: dict[str, Any] = {"exchange_type": settings.exchange_type, "durable": True}
            await channel.exchange_declare(settings.exchange, **how if settings.declare else {"passive": True})
        if settings.queue:
            arguments: dict[str, Any] = {"x-queue-type": settings.queue_type}
            if settings.queue_type == "quorum":
                arguments["x-delivery-limit"] = _DELIVERY_LIMIT
            await channel.queue_declare(settings.queue, durable=True, arguments=arguments)
            if settings.exchange:
                await channel.queue_bind(settings.queue, settings.exchange, settings.binding)

    # -- working ---------------------------------------------------------------------------------------------------

    async def write(self, frames: bytes) -> None:
        """Whole frames of our channel; waits while the kernel takes no more. Raises SinkError."""
        assert self._connection is not None
        writer = self._connection.writer
        if writer is None or writer.transport.is_closing():
            raise SinkError("the connection to RabbitMQ is closed")
        writer.write(frames)
        try:
            await writer.drain()
        except OSError as error:
            raise self._refusal(error) from error

    def answered(self, frame: Any) -> None:
        """Basic.Ack or Basic.Nack."""
        low = 1 if frame.multiple else frame.delivery_tag
        self._on_answer(low, frame.delivery_tag, "" if frame.name == "Basic.Ack" else "nack: a queue refuses it")

    def returned(self, frame: Any, properties: Any) -> None:
        """Basic.Return, which comes before the message's own confirmation."""
        id_ = properties.message_id or ""
        self._on_return(id_ if isinstance(id_, bytes) else id_.encode(), f"returned: {frame.reply_text}")

    def _closed(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        if self._connection is not None:
            self._on_lost(self._refusal(error))

    def _refusal(self, error: BaseException | None) -> SinkError:
        """What the broker said when it closed channel or connection, and what mends it."""
        settings, text, code = self._settings, _text(error), _code(error)
        where = f"the virtual host {settings.virtual_host}"
        if isinstance(error, ConnectionClosed) and code == _ACCESS_REFUSED:
            return SinkRejected(f"RabbitMQ refuses the account ({text})", remedy="look at [sink] user and password")
        if code == _NOT_ALLOWED:
            return SinkRejected(
                f"RabbitMQ refuses {where} ({text})",
                remedy="look at [sink] virtual_host; it has to exist (rabbitmqctl add_vhost), and the account needs "
                f"rights in it (rabbitmqctl set_permissions -p {settings.virtual_host} {settings.user} ...)",
            )
        remedies = {
            _NOT_FOUND: f"declare the exchange {settings.exchange} in {where}, or set [sink] declare = true",
            _ACCESS_REFUSED: f"give {settings.user} the right to write to it, and with declare = true to configure it "
            f"(rabbitmqctl set_permissions -p {settings.virtual_host} {settings.user} ...)",
            _LOCKED: "another connection has it to itself",
            _PRECONDITION_FAILED: "it is there in another form: let [sink] exchange_type and queue_type fit it, or set "
            "declare = false; or the message is larger than the broker's max_message_size",
        }
        if isinstance(error, ChannelClosed) and code in remedies:
            return SinkRejected(f"RabbitMQ refuses to take messages ({text})", remedy=remedies[code])
        return SinkError(f"the connection to RabbitMQ is lost ({text})")

    # -- ending ----------------------------------------------------------------------------------------------------

    async def cut(self) -> None:
        """Resets the socket, with what still lay in its buffers: nothing more leaves. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _cut(connection)

    async def close(self) -> None:
        """Ends it in order; when that does not come to an end in time, it is cut."""
        if self._connection is not None:
            try:
                await asyncio.wait([asyncio.ensure_future(self._connection.close())], timeout=CLOSE_LIMIT)
            finally:
                await self.cut()


class _Connection(aiormq.Connection):
    """Keeps hold of the transport, and knows when the broker blocks us."""

    writer: asyncio.StreamWriter | None = None
    blocked = False

    @staticmethod
    async def _rpc(request: Any, writer: Any, frame_receiver: Any, wait_response: bool = True) -> Any:
        """The driver's own loses the broker's text when the virtual host is refused."""
        writer.write(pamqp.frame.marshal(request, 0))
        await writer.drain()
        if not wait_response:
            return None
        _, _, frame = await frame_receiver.get_frame()
        if isinstance(frame, commands.Connection.Close):
            raise ConnectionClosed(frame.reply_code, frame.reply_text)
        return frame

    @property
    def _where(self) -> str:
        return f"{self.url.host}:{self.url.port}"

    # The driver's private names, as Python mangles them.

    async def _Connection__writer(self, writer: asyncio.StreamWriter) -> None:  # noqa: N802
        self.writer = writer
        await super()._Connection__writer(writer)  # type: ignore[misc]

    async def _Connection__handle_connection_blocked(self, frame: Any) -> None:  # noqa: N802
        self.blocked = True
        log.warning("RabbitMQ takes no messages for now; nothing is lost", server=self._where, reason=frame.reason)
        await super()._Connection__handle_connection_blocked(frame)  # type: ignore[misc]

    async def _Connection__handle_connection_unblocked(self, frame: Any) -> None:  # noqa: N802
        self.blocked = False
        log.info("RabbitMQ takes messages again", server=self._where)
        await super()._Connection__handle_connection_unblocked(frame)  # type: ignore[misc]


class _ConfirmChannel(Channel):
    """Gives answers on as they are, with tags and `multiple`, instead of a future a message."""

    def __init__(self, connection: _Connection, number: int, line: Line) -> None:
        super().__init__(connection, number, publisher_confirms=True)
        self._line = line

    async def _on_confirm_frame(self, frame: Any) -> None:
        self._line.answered(frame)

    async def _on_return_frame(self, frame: Any) -> None:
        header = await self._get_frame()
        await self._read_content(frame, header)  # type: ignore[arg-type]
        self._line.returned(frame, header.properties)  # type: ignore[union-attr]


async def _cut(connection: _Connection) -> None:
    """An ordinary close would still send what is buffered, here and in the kernel."""
    writer = connection.writer
    if writer is not None:
        with contextlib.suppress(Exception):
            kernel = writer.transport.get_extra_info("socket")
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    with contextlib.suppress(Exception):
        await asyncio.wait([asyncio.ensure_future(connection.close())], timeout=CLOSE_LIMIT)


def _url(settings: RabbitMqSinkSettings, host: str, port: int) -> URL:
    return URL.build(
        scheme="amqps" if settings.tls else "amqp",
        host=host,
        port=port,
        user=settings.user,
        password=settings.password.get_secret_value(),
        path="/",
        query={"heartbeat": str(max(1, round(settings.heartbeat))), "name": "headrace"},
    )


def _tls(settings: RabbitMqSinkSettings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.tls_ca)
    if settings.tls_certificate is not None:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password="")  # never a prompt
    return context


def _code(error: BaseException | None) -> int:
    """The broker's reply code; 0 when it gave none. Classes of their own stand for some codes of a channel."""
    by_class = {
        "ChannelNotFoundEntity": _NOT_FOUND,
        "ChannelAccessRefused": _ACCESS_REFUSED,
        "ChannelLockedResource": _LOCKED,
        "ChannelPreconditionFailed": _PRECONDITION_FAILED,
        "ConnectionNotAllowed": _NOT_ALLOWED,
    }
    if (known := by_class.get(type(error).__name__)) is not None:
        return known
    first = error.args[0] if error is not None and error.args else 0
    return first if isinstance(first, int) else 0


def _text(error: BaseException | None) -> str:
    """The driver's error for people."""
    if error is None:
        return "closed"
    said = [str(part) for part in error.args if part is not None and not isinstance(part, type)]
    return " ".join(said) or type(error).__name__
