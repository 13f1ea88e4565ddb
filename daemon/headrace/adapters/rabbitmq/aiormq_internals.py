"""Uses of aio-pika below its public interface, which are only here. Messages are published as whole frames and
confirmed by tags, because the public way costs a future, two turns of tasks and about thirty times the CPU for each
message; docs/benchmarks.md has the figures. Everything else goes through aio-pika."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aio_pika
import aiormq
import pamqp.frame
from aio_pika.abc import UnderlayConnection
from aiormq.exceptions import ConnectionClosed
from pamqp import commands, header
from yarl import URL

KNOWN_VERSIONS = {"aio-pika": ("10.2.1",), "aiormq": ("7.2.4",)}
"""Versions that all of this was tested with, on real brokers. It relies on connection.transport.connection of aio-pika,
and on what its connect() calls; on channels, connection_tune, _rpc and the two handlers of a connection that is
blocked, of aiormq's connection; and on its reader, which gives the frames of a channel to
`channels[number].frames.put()`."""

Answer = Callable[[int, int, str], None]
Return = Callable[[bytes, str], None]
Closed = Callable[[int, str], None]


class ConfirmChannel:
    """A channel in confirm mode that takes whole frames and passes answers on as they come, with tags and `multiple`.

    `on_answer` receives tags, from..to, and a reason if they are refused; `on_return` the id of a message that reached
    no queue, and why, before the message's own confirmation; `on_closed` the broker's code and text when it closes the
    channel. The connection's reader calls all three; they must not wait."""

    def __init__(
        self,
        connection: aio_pika.Connection,
        writer: asyncio.StreamWriter,
        on_answer: Answer,
        on_return: Return,
        on_closed: Closed,
    ) -> None:
        below = _below(connection)
        self._writer = writer
        self._on_answer, self._on_return, self._on_closed = on_answer, on_return, on_closed
        self._returned = ""
        """Why the message whose header comes next was returned."""
        self._opening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.frame_max: int = below.connection_tune.frame_max
        """Maximum bytes of a frame, as negotiated with the broker."""
        self.number: int = max(below.channels, default=0) + 1
        below.channels[self.number] = self
        self.frames = self
        """The reader calls `frames.put()`."""

    async def open(self) -> None:
        """Opens the channel and sets it to confirm mode. Raises OSError; if the connection ends meanwhile, waits until
        the caller's time limit."""
        for method in (commands.Channel.Open(), commands.Confirm.Select()):
            await self.write(pamqp.frame.marshal(method, self.number))
        await self._opening

    async def write(self, frames: bytes) -> None:
        """Writes whole frames of this channel; waits while the kernel accepts no more. Raises OSError."""
        self._writer.write(frames)
        await self._writer.drain()

    async def put(self, item: tuple[int, Any]) -> None:
        """Takes the next frame of the channel: its bytes and the frame itself."""
        frame = item[1]
        match frame:
            case commands.Basic.Ack():
                self._on_answer(1 if frame.multiple else frame.delivery_tag, frame.delivery_tag, "")
            case commands.Basic.Nack():
                low = 1 if frame.multiple else frame.delivery_tag
                self._on_answer(low, frame.delivery_tag, "nack: a queue refuses it")
            case commands.Basic.Return():
                self._returned = f"returned: {frame.reply_text}"
            case header.ContentHeader():  # of a returned message: nothing is consumed here
                self._on_return((frame.properties.message_id or "").encode(), self._returned)
            case commands.Confirm.SelectOk():
                if not self._opening.done():
                    self._opening.set_result(None)
            case commands.Channel.Close():
                self._on_closed(frame.reply_code or 0, frame.reply_text)


def on_blocked_changed(connection: aio_pika.Connection, report: Callable[[str | None], None]) -> None:
    """Calls `report` with the reason when the broker accepts no messages, because it lacks memory or disk, and with
    None when it accepts them again; ready() reports only the latter."""
    below = _below(connection)
    on_blocked = below._Connection__handle_connection_blocked
    on_unblocked = below._Connection__handle_connection_unblocked

    async def blocked(frame: Any) -> None:
        report(frame.reason)
        await on_blocked(frame)

    async def unblocked(frame: Any) -> None:
        report(None)
        await on_unblocked(frame)

    below._Connection__handle_connection_blocked = blocked
    below._Connection__handle_connection_unblocked = unblocked


def _below(connection: aio_pika.Connection) -> Any:
    """Returns aiormq's connection."""
    assert connection.transport is not None
    return connection.transport.connection


class _Protocol(aiormq.Connection):
    """Keeps the broker's text when the virtual host is refused; aiormq's connection loses it."""

    @staticmethod
    async def _rpc(request: Any, writer: asyncio.StreamWriter, frame_receiver: Any, wait_response: bool = True) -> Any:
        if not isinstance(request, commands.Connection.Open):
            return await aiormq.Connection._rpc(request, writer, frame_receiver, wait_response)
        writer.write(pamqp.frame.marshal(request, 0))
        await writer.drain()
        _, _, frame = await frame_receiver.get_frame()
        if isinstance(frame, commands.Connection.Close):
            raise ConnectionClosed(frame.reply_code, frame.reply_text)
        return frame


class _Underlay(UnderlayConnection):
    """aio-pika's wrapper of one, which takes no class for it."""

    @classmethod
    async def make_connection(cls, url: URL, timeout: Any = None, **more: Any) -> aiormq.abc.AbstractConnection:
        connection = _Protocol(url, **more)
        await asyncio.wait_for(connection.connect(), timeout)
        await connection.ready()
        return connection


class Connection(aio_pika.Connection):
    """aio-pika's connection, over our own."""

    async def connect(self, timeout: Any = None) -> None:
        """Connects and logs in. Raises OSError and what aiormq raises."""
        self.transport = await _Underlay.connect(self.url, self._on_connection_close, timeout=timeout, **self.kwargs)
        await self._on_connected()
