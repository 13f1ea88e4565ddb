"""Receives a binlog dump: a buffered protocol that hands over whole chunks, many packets at a time."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from headrace import runtime
from headrace.errors import SourceEnded, SourceSilent

_RECEIVE = 256 * 1024
"""Bytes read from the socket in one call."""


class Packets(Protocol):
    """A running dump; see PacketStream."""

    bytes_received: int
    waiting_since: float

    @property
    def last_receive(self) -> float: ...

    @property
    def peer(self) -> str: ...

    def rest(self) -> None: ...

    def wake(self) -> None: ...

    async def read(self, rest: bytes, need: int, deadline: float) -> bytes: ...

    async def close(self) -> None: ...


class ArchivedDump(Packets, Protocol):
    """A dump that comes from an archive; see ArchivedPackets."""

    at: tuple[str, int]
    """File and offset up to which it was read."""
    checksums: bool
    """Whether its first event ends in a CRC32."""
    extent: tuple[int, int, str, int]
    """What there is of its line, to be compared with a later value."""
    ended: bool
    """Whether it was read to its end."""
    foreign: bool
    """Whether it has another server's binlogs than the one that continues it."""

    async def executed(self) -> str: ...


class PacketStream(asyncio.BufferedProtocol):
    """Bytes as received, bounded: beyond `limit` the socket is not read until they are taken.

    The reader splits packets itself, within one piece of memory, so that a packet costs no await and no copy. `peer` is
    the other end's address, for errors."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: Any, limit: int, peer: str, keep: object = None
    ) -> None:
        self._clock = runtime.current().monotonic
        self._loop, self._transport, self._limit, self._peer = loop, transport, limit, peer
        self._keep = keep
        self._memory = bytearray(_RECEIVE)
        self._view = memoryview(self._memory)
        self._chunks: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._paused = self._woken = False
        self._end: Exception | None = None
        self.bytes_received = 0
        self.last_receive = runtime.monotonic()
        self.waiting_since = 0.0
        """Since when read() waits for bytes, by the monotonic clock; 0 while it does not, and silence means nothing."""

    @property
    def peer(self) -> str:
        """Returns host:port of the server."""
        return self._peer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self._chunks.append(bytes(self._view[:nbytes]))
        self._size += nbytes
        self.bytes_received += nbytes
        self.last_receive = self._clock()
        if self._size >= self._limit and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._finish(SourceEnded(f"the source at {self._peer} closed the connection"))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        at = f"the source at {self._peer}"
        self._finish(SourceEnded(f"the connection to {at} broke ({exc})" if exc else f"{at} closed the connection"))

    def _finish(self, error: Exception) -> None:
        self._end = self._end or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def rest(self) -> None:
        """Leaves received data in the socket until the next read()."""
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def wake(self) -> None:
        """Makes the waiting read(), or else the next one, return without waiting, with what there is."""
        self._woken = True
        self._wake()

    async def read(self, rest: bytes, need: int, deadline: float) -> bytes:
        """Returns `rest` and what came after it, at least `need` bytes in all unless it is woken.

        Raises SourceEnded if the stream has ended, and SourceSilent if no byte came for `deadline` seconds while we
        were reading (heartbeats come in between, so silence means a dead connection). Time between two calls does not
        count: then we do not read."""
        wanted = max(need - len(rest), 1)
        if wanted > self._limit:
            self._limit = wanted  # a single packet may be larger than the budget; it passes alone
        while self._size < wanted and not self._woken:
            if self._end is not None:
                raise self._end
            if self._paused:
                self._paused = False
                self._transport.resume_reading()
            self._waiter = self._loop.create_future()
            self.waiting_since = self.waiting_since or self._clock()
            before = self.bytes_received
            try:
                async with asyncio.timeout(deadline):
                    await self._waiter
            except TimeoutError:
                if self.bytes_received == before:
                    raise SourceSilent(f"no byte came from the source at {self._peer} for {deadline:.0f} s") from None
            finally:
                self._waiter = None
        self.waiting_since, self._woken = 0.0, False
        chunks, self._chunks, self._size = self._chunks, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 and not rest else b"".join((rest, *chunks))

    def acknowledge(self, file: str, offset: int) -> None:
        """Tells a semi-synchronous source that everything before an offset is durable here (MySQL's
        ReplSemiSyncReplica::slaveReply: a byte, eight of the offset, the file's name)."""
        body = b"\xef" + offset.to_bytes(8, "little") + file.encode()
        self._transport.write(len(body).to_bytes(3, "little") + b"\0" + body)

    async def close(self) -> None:
        """Aborts the connection; the server ends the dump when it next writes."""
        self.waiting_since = 0.0  # nobody waits for it any more: this is no silence
        self._transport.abort()
        self._keep = None
