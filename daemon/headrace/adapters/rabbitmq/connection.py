"""A connection to RabbitMQ through aio-pika: opens, checks, writes and aborts it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
import aiormq
import structlog
from aio_pika.exceptions import AMQPError, ChannelClosed, ConnectionClosed, ProbableAuthenticationError
from yarl import URL

from headrace import runtime
from headrace.adapters.rabbitmq.aiormq_internals import ConfirmChannel, Connection, on_blocked_changed
from headrace.adapters.rabbitmq.frames import size_refused
from headrace.adapters.rabbitmq.settings import RabbitMqSinkSettings
from headrace.errors import SinkError, SinkRejected
from headrace.tls import client_context
from headrace_common.rabbitmq import connection_url, error_text, queue_arguments

log = structlog.get_logger(__name__)
# Errors of a connection are raised to us, and reported in our own words.
for name in ("aiormq", "aio_pika"):
    logging.getLogger(name).setLevel(logging.CRITICAL)

CLOSE_LIMIT = 5.0
"""Maximum seconds to close in order, or to end the tasks of a connection."""
_CONNECT_LIMIT = 10.0
"""Maximum seconds for each server to log us in."""
_TURNS = 10
"""Turns of the event loop in which the client's tasks end that it starts when it notices the end of a connection
itself."""
_OF_TOPIC = "access to topic"
"""In the broker's text when a topic permission refuses a routing key."""
_ACCESS_REFUSED, _NOT_FOUND, _LOCKED, _PRECONDITION_FAILED, _NOT_ALLOWED = 403, 404, 405, 406, 530


class BrokerConnection:
    """One connection with one channel in confirm mode. `on_answer` and `on_return` are its ConfirmChannel's; `on_lost`
    receives why the connection broke. A task of the driver calls them; they must not wait."""

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
        self._server = ""
        """host:port of the server that is or was last used."""
        self.channel: ConfirmChannel
        """Once prepare() has opened it."""
        self.blocked = False
        """Whether the broker has asked us to wait: it lacks memory or disk."""

    # -- opening ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects to the first server that accepts us, with a time limit each. Raises SinkError."""
        settings, failures = self._settings, []
        context = None if settings.tls == "disabled" else client_context("[sink]", SinkRejected, *settings.tls_files)
        for host, port in settings.addresses:
            self._server = f"{host}:{port}"
            connection = _Connection(connection_url(settings, host, port, "headrace"), ssl_context=context)
            try:
                await self._connect(connection)
            except SinkRejected:
                raise
            except (AMQPError, OSError, SinkError) as error:
                failures.append(f"{self._server}: {error_text(error)}")
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
            await _abort(connection)
            if isinstance(error, ConnectionClosed | ProbableAuthenticationError):
                raise self._refusal(error) from error
            raise

    async def prepare(self, *, declare: bool) -> None:
        """Opens the channel, and declares the exchange or checks that it exists; neither if it may still be declared.
        Raises SinkError."""
        connection, settings = self._connection, self._settings
        assert connection is not None
        assert connection.writer is not None
        connection.close_callbacks.add(self._closed)
        on_blocked_changed(connection, self._note_blocked)
        try:
            async with asyncio.timeout(settings.request_timeout):
                if declare or not settings.declare:
                    await self._declare(connection)
                self.channel = ConfirmChannel(
                    connection,
                    connection.writer,
                    self._on_answer,
                    self._on_return,
                    on_closed=lambda code, text: self._closed(None, ChannelClosed(code, text)),
                )
                await self.channel.open()
        except TimeoutError as error:
            limit = settings.request_timeout
            raise SinkError(f"RabbitMQ at {self._server} did not open a channel within {limit:g} s") from error
        except (AMQPError, OSError, RuntimeError) as error:
            raise self._refusal(error) from error

    async def _declare(self, connection: aio_pika.Connection) -> None:
        settings = self._settings
        async with connection.channel(publisher_confirms=False) as channel:
            exchange = channel.default_exchange
            if settings.exchange:
                passive = not settings.declare
                exchange = await channel.declare_exchange(
                    settings.exchange, settings.exchange_type, durable=True, passive=passive
                )
            if settings.queue:
                arguments = queue_arguments(settings.queue_type)
                queue = await channel.declare_queue(settings.queue, durable=True, arguments=arguments)
                if settings.exchange:
                    await queue.bind(exchange, settings.binding)

    async def try_publishing(self, key: str = "") -> str:
        """Publishes a message in a transaction of AMQP and rolls it back: the broker checks our rights, and no queue
        gets anything. An exchange that is still to be declared is skipped. Without a known routing `key`, returns why
        another one's was refused by a topic permission, "" if it was not. Raises SinkError."""
        connection, settings = self._connection, self._settings
        assert connection is not None
        try:
            async with asyncio.timeout(settings.request_timeout):
                async with connection.channel(publisher_confirms=False) as channel:
                    exchange = await channel.get_exchange(settings.exchange, ensure=False)
                    transaction = channel.transaction()
                    await transaction.select()
                    await exchange.publish(aio_pika.Message(b""), key or "headrace-check")
                    await transaction.rollback()
        except TimeoutError as error:
            raise SinkError(
                f"RabbitMQ at {self._server} did not take a message within {settings.request_timeout:g} s",
                remedy="check whether it lacks memory or disk (rabbitmqctl status)",
            ) from error
        except (AMQPError, OSError, RuntimeError) as error:
            if settings.declare and _code(error) == _NOT_FOUND:
                return ""
            if not key and _OF_TOPIC in error_text(error):  # messages have other keys, which may be allowed
                return error_text(error)
            raise self._refusal(error) from error
        return ""

    async def try_declaring(self) -> None:
        """Declares exchange and queue with an argument of the wrong type, which the broker refuses after it has checked
        our rights; and removes a binding that does not exist, which needs the right to bind. So nothing is created and
        nothing is lost. Raises SinkError."""
        settings, no_name = self._settings, {"alternate-exchange": 1, "x-dead-letter-exchange": 1}
        if settings.exchange:
            await self._try(
                lambda channel: channel.declare_exchange(
                    settings.exchange, settings.exchange_type, durable=True, arguments=no_name
                )
            )
        if not settings.queue:
            return
        arguments = queue_arguments(settings.queue_type) | no_name
        await self._try(lambda channel: channel.declare_queue(settings.queue, durable=True, arguments=arguments))
        if settings.exchange:

            async def unbind(channel: Any) -> None:
                queue = await channel.get_queue(settings.queue, ensure=False)
                await queue.unbind(settings.exchange, f"headrace-check-{runtime.new_id()}")

            await self._try(unbind)

    async def _try(self, ask: Callable[[Any], Awaitable[Any]]) -> None:
        """Raises SinkError if the broker refuses it for a missing right; each refusal closes its channel."""
        assert self._connection is not None
        limit = self._settings.request_timeout
        try:
            async with asyncio.timeout(limit), self._connection.channel(publisher_confirms=False) as channel:
                await ask(channel)
        except TimeoutError as error:
            raise SinkError(f"RabbitMQ at {self._server} did not answer within {limit:g} s") from error
        except (AMQPError, OSError, RuntimeError) as error:
            if _code(error) in (_NOT_FOUND, _PRECONDITION_FAILED) or _OF_TOPIC in error_text(error):
                return
            raise self._refusal(error) from error

    # -- working ---------------------------------------------------------------------------------------------------

    async def write(self, frames: bytes) -> None:
        """Writes whole frames of our channel; waits while the kernel accepts no more. Raises SinkError."""
        connection = self._connection
        if connection is None:
            raise SinkError(f"the connection to RabbitMQ at {self._server} is closed")
        if connection.writer is None or connection.writer.transport.is_closing():
            raise self._refusal(None)
        try:
            await self.channel.write(frames)
        except OSError as error:
            raise self._refusal(error) from error

    def _note_blocked(self, reason: str | None) -> None:
        self.blocked = reason is not None
        if self.blocked:
            log.warning("RabbitMQ takes no messages for now; nothing is lost", server=self._server, reason=reason)
        else:
            log.info("RabbitMQ takes messages again", server=self._server)

    def _closed(self, _: Any, error: BaseException | None) -> None:
        if self._connection is not None:
            self._on_lost(self._refusal(error))

    def _refusal(self, error: BaseException | None) -> SinkError:
        """Returns the error for what the broker said when it closed channel or connection, with the remedy."""
        settings, text, code = self._settings, error_text(error) or "closed", _code(error)
        where, broker = f"the virtual host {settings.virtual_host}", f"RabbitMQ at {self._server}"
        if isinstance(error, ProbableAuthenticationError):
            return SinkRejected(f"{broker} refuses the account ({text})", remedy="check [sink] user and password")
        if code == _NOT_ALLOWED:
            return SinkRejected(
                f"{broker} refuses {where} ({text})",
                remedy="check [sink] virtual_host; it has to exist (rabbitmqctl add_vhost), and the account needs "
                f"rights in it (rabbitmqctl set_permissions -p {settings.virtual_host} {settings.user} ...)",
            )
        remedies = {
            _NOT_FOUND: f"declare the exchange {settings.exchange} in {where}, or set [sink] declare = true",
            _ACCESS_REFUSED: f"give {settings.user} the right to write to it, and with declare = true to configure it, "
            "and to read the exchange that a queue is bound to "
            f"(rabbitmqctl set_permissions -p {settings.virtual_host} {settings.user} ...)",
            _LOCKED: "another connection has it to itself",
            _PRECONDITION_FAILED: "it exists with other properties: adapt [sink] exchange_type and queue_type, or set "
            "declare = false",
        }
        if size_refused(text):
            remedies[code] = (
                "raise max_message_size in the broker's rabbitmq.conf, or leave the column out ([filter] "
                "exclude_columns)"
            )
        if code == _ACCESS_REFUSED and _OF_TOPIC in text:
            remedies[code] = (
                f"give {settings.user} a topic permission for it (rabbitmqctl set_topic_permissions -p "
                f"{settings.virtual_host} {settings.user} {settings.exchange} ...)"
            )
        if isinstance(error, ChannelClosed) and code in remedies:
            return SinkRejected(f"{broker} refuses to take messages ({text})", remedy=remedies[code])
        return SinkError(f"the connection to {broker} is lost ({text})")

    # -- ending ----------------------------------------------------------------------------------------------------

    async def abort(self) -> None:
        """Resets the socket, with what is still in its buffers: nothing more leaves. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await _abort(connection)

    async def close(self) -> None:
        """Closes it in order; aborts it if that does not end in time."""
        if self._connection is not None:
            try:
                await asyncio.wait([asyncio.ensure_future(self._connection.close())], timeout=CLOSE_LIMIT)
            finally:
                await self.abort()


class _Connection(Connection):
    """Keeps a reference to the writer."""

    def __init__(self, url: URL, ssl_context: ssl.SSLContext | None = None) -> None:
        super().__init__(url, ssl_context=ssl_context)
        self.kwargs["transport_factory"] = _Opener(self)
        self.writer: asyncio.StreamWriter | None = None


class _Opener(aiormq.TransportFactory):
    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def create(self, url: URL, **arguments: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects. Raises OSError."""
        context = self._connection.kwargs["context"]
        reader, writer = await asyncio.open_connection(url.host, url.port, ssl=context)
        self._connection.writer = writer
        return reader, writer


async def _abort(connection: _Connection) -> None:
    """Resets a connection. An ordinary close would still send what is buffered, here and in the kernel."""
    writer = connection.writer
    if writer is not None:
        with contextlib.suppress(Exception):
            kernel = writer.transport.get_extra_info("socket")
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    with contextlib.suppress(Exception):
        await asyncio.wait([asyncio.ensure_future(connection.close())], timeout=CLOSE_LIMIT)
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _code(error: BaseException | None) -> int:
    """Returns the broker's reply code; 0 if it gave none. Some codes of a channel have their own classes."""
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
