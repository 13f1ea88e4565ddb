"""The brokers' side of a connection: how it begins and ends."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast


class Broker(Protocol):
    """What a connection needs of its broker."""

    up: bool
    connections: dict[Any, None]


class Served(asyncio.Protocol):
    """A connection that a broker serves, and lists while it lasts. Bytes that came are in `_buffer`."""

    def __init__(self, broker: Broker) -> None:
        self._listed = broker
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not self._listed.up:
            cast(asyncio.Transport, transport).abort()
            return
        self._transport = cast(asyncio.Transport, transport)
        self._listed.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop()

    def eof_received(self) -> bool:
        """Closes the connection when the client has."""
        return False

    def abort(self) -> None:
        """Resets the connection: what is not written yet is lost."""
        if (transport := self._drop()) is not None:
            transport.abort()

    def close(self) -> None:
        """Closes the connection after what is already written."""
        if (transport := self._drop()) is not None:
            transport.close()

    def _drop(self) -> asyncio.Transport | None:
        """Forgets the transport, and returns it."""
        transport, self._transport = self._transport, None
        if transport is not None:
            self._buffer.clear()
            self._listed.connections.pop(self, None)
            self.dropped()
        return transport

    def dropped(self) -> None:
        """Ends what depends on the connection."""
