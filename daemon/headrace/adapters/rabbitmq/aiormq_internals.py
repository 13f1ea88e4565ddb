"""What is done below aio-pika's public interface, and only here: messages are published as whole frames and confirmed
by tags, because the public way costs a future, two tasks' turns and some thirty times the CPU a message;
docs/benchmarks.md has the figures. Everything else goes through aio-pika."""

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
"""What all of this was tried with, on real brokers. It relies on connection.transport.connection of aio-pika, and on
what its connect() calls; on channels, connection_tune, _rpc and the two handlers of a connection that is blocked, of
aiormq's connection; and on its reader, which gives the frames of a channel to `channels[number].frames.put()`."""

Answer = Callable[[int, int, str], None]
Return = Callable[[bytes, str], None]
Closed = Callable[[int, str], None]


class ConfirmChannel:
    """A channel in confirm mode that takes whole frames and gives answers on as they come, with tags and `multiple`.

    `on_answer` is given tags, from..to, and a reason when they are refused; `on_return` the id of a message that
    reached no queue, and why, before the message's own confirmation; `on_closed` the broker's code and text when it
    closes the channel. All three are called by the connection's reader and must not wait.
    """

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
        """Bytes of the largest frame that was agreed with the broker."""
        self.number: int = max(below.channels, default=0) + 1
        below.channels[self.number] = self
        self.frames = self
        """The reader calls `frames.put()`."""

    async def open(self) -> None:
        """Opens the channel and sets it to confirm mode. Raises OSError; waits until the caller's time limit when the
        connection ends meanwhile."""
        for method in (commands.Channel.Open(), commands.Confirm.Select()):
            await self.write(pamqp.frame.marshal(method, self.number))
        await self._opening

    async def write(self, frames: bytes) -> None:
        """Writes whole frames of this channel; waits while the kernel takes no more. Raises OSError."""
        self._writer.write(frames)
        await self._writer.drain()

    async def put(self, item: tuple[int, Any]) -> None:
        """Takes the next frame of the channel: its bytes and itself."""
        frame = item[1]
        match frame:
            case commands.Basic.Ack():
                self._on_answer(1 if frame.multiple else frame.delivery_tag, frame.delivery_tag, "")
            case commands.Basic.Nack():
                low = 1 if frame.multiple else frame.delivery_tag
                self._on_answer(low, frame.delivery_tag, "nack: a queue refuses it")
            case commands.Basic.Return():
                self._returned = f"returned: {frame.reply_text}"
            case header.ContentHeader():  # of what is returned: nothing is consumed here
                self._on_return((frame.properties.message_id or "").encode(), self._returned)
            case commands.Confirm.SelectOk():
                if not self._opening.done():
                    self._opening.set_result(None)
            case commands.Channel.Close():
                self._on_closed(frame.reply_code or 0, frame.reply_text)


def tell_blocked(connection: aio_pika.Connection, tell: Callable[[str | None], None]) -> None:
    """Has `tell` called with the reason when the broker takes no messages, because it lacks memory or disk, and with
    None when it does again; ready() says only the latter."""
    below = _below(connection)
    on_blocked = below._Connection__handle_connection_blocked
    on_unblocked = below._Connection__handle_connection_unblocked

    async def blocked(frame: Any) -> None:
        tell(frame.reason)
        await on_blocked(frame)

    async def unblocked(frame: Any) -> None:
        tell(None)
        await on_unblocked(frame)

    below._Connection__handle_connection_blocked = blocked
    below._Connection__handle_connection_unblocked = unblocked


def _below(connection: aio_pika.Connection) -> Any:
    """aiormq's connection."""
    assert connection.transport is not None
    return connection.transport.connection


class _Protocol(aiormq.Connection):
    """aiormq's connection loses the broker's text when the virtual host is refused."""

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
    """aio-pika's hold on one; it takes no class for it."""

    @classmethod
    async def make_connection(cls, url: URL, timeout: Any = None, **more: Any) -> aiormq.abc.AbstractConnection:
        connection = _Protocol(url, **more)
        await asyncio.wait_for(connection.connect(), timeout)
        await connection.ready()
        return connection


class Connection(aio_pika.Connection):
    """aio-pika's, over a connection of ours."""

    async def connect(self, timeout: Any = None) -> None:
        """Connects and logs in. Raises OSError and what aiormq raises."""
        self.transport = await _Underlay.connect(self.url, self._on_connection_close, timeout=timeout, **self.kwargs)
        await self._on_connected()
