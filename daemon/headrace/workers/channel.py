"""Messages between the daemon and a worker, over a pair of sockets that only these two have.

A message is its length (4 bytes, the highest first) and a pickled object. Both ends run the same code, and neither can
be reached from outside, so what comes is trusted; that it is whole is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import struct
from typing import Any

from headrace.errors import HeadraceError

MOST = 256 << 20
"""Bytes of a message. A snapshot of a thousand destinations, each with ten thousand tables, is less."""
_LENGTH = struct.Struct(">I")


class ChannelError(HeadraceError):
    """What came is not what the other end sends, or what is to be sent is too large: the two can't talk any more."""

    reason = "worker"


class ChannelEnded(ChannelError):
    """The other end has closed it, or its process has ended."""


def packed(message: object) -> bytes:
    """A message with its length. Raises ChannelError when it is too large."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    if len(body) > MOST:
        raise ChannelError(f"a message of {len(body)} bytes is too large for a worker process")
    return _LENGTH.pack(len(body)) + body


def _unpacked(body: bytes) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:  # of a damaged pickle it may be any
        raise ChannelError(f"a message of {len(body)} bytes can't be read: {type(error).__name__}") from error


def _length(head: bytes) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > MOST:
        raise ChannelError(f"a message of {length} bytes was announced, which is too large")
    return length


def receive_now(sock: socket.socket) -> Any:
    """The next message, for a process that has no event loop yet; not a byte beyond it is read. Raises ChannelError and
    ChannelEnded."""
    return _unpacked(_exactly(sock, _length(_exactly(sock, _LENGTH.size))))


def _exactly(sock: socket.socket, number: int) -> bytes:
    got = bytearray()
    while len(got) < number:
        part = sock.recv(min(number - len(got), 1 << 20))
        if not part:
            raise ChannelEnded(f"the channel ended after {len(got)} of {number} bytes")
        got += part
    return bytes(got)


class Channel:
    """One end, on an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Channel:
        """Takes a connected socket over."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def write(self, message: object) -> None:
        """Has a message sent behind those before it. Raises ChannelError."""
        self._writer.write(packed(message))

    async def send(self, message: object) -> None:
        """The same, and waits while the other end does not read: what is not read may not pile up here. Raises
        ChannelError."""
        self.write(message)
        try:
            await self._writer.drain()
        except ConnectionError as error:
            raise ChannelEnded("the other end has closed the channel") from error

    async def receive(self) -> Any:
        """The next message. Raises ChannelError, and ChannelEnded when none comes any more."""
        try:
            body = await self._reader.readexactly(_length(await self._reader.readexactly(_LENGTH.size)))
        except asyncio.IncompleteReadError as error:
            raise ChannelEnded(f"the channel ended after {len(error.partial)} of {error.expected} bytes") from error
        except ConnectionError as error:
            raise ChannelEnded("the other end has closed the channel") from error
        return _unpacked(body)

    async def finish(self, limit: float) -> None:
        """Closes it once the other end has got what was sent, or after `limit` seconds."""
        self._writer.close()
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(limit):
                await self._writer.wait_closed()

    def close(self) -> None:
        """Closes it at once; the other end sees that."""
        self._writer.transport.abort()
