"""Runs statements whose result rows are taken as received bytes, many at a time, and decoded later (wire format: MySQL
internals manual, "Text Protocol")."""

from __future__ import annotations

import asyncio
import contextlib
import io
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import SourceEnded, SourceError, SourceSilent, SourceUnreachable
from headrace.mysql.wire.connection import SourceConnection, refusal
from headrace.mysql.wire.stream import PacketStream

SILENCE = 60.0
"""Seconds without a byte after which a statement counts as lost: with a condition the server may have to examine many
rows for one."""
_SMALL = 16 << 20
"""Maximum bytes of all rows of a small result."""
_NAMES = 1 << 16
"""Maximum bytes of a packet that is no row."""
_LARGEST = (1 << 30) + (16 << 20)
"""Maximum bytes of a row: the servers' largest packet, and their overhead."""
_LONGEST = 3600.0
"""Maximum seconds for the rows of one block, however steadily their bytes come."""
_BUFFER = 2 << 20
"""Maximum bytes that are received and not yet taken: a statement that is read slowly waits on the server."""
_COM_QUERY = b"\x03"
_FULL = 0xFFFFFF
"""The size of a packet that continues in the next one."""
_HEADER = struct.Struct("<IB").unpack_from
"""A packet's header, its size in the lower three bytes, and the first byte of its content."""
_END, _ERROR, _LONG_NULL = 0xFE, 0xFF, 0xFB


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result: collation id, type number, flags, and digits after the decimal point."""

    collation: int
    kind: int
    flags: int
    decimals: int

    @property
    def unsigned(self) -> bool:
        return bool(self.flags & 32)


@dataclass(frozen=True, slots=True)
class RowBytes:
    """Whole rows, each a packet with its header. `end` is 0; for a single row that is too large for one packet it is
    where it ends, and four bytes are before it. `last` is where the last row begins, at its header."""

    data: bytes
    rows: int
    end: int = 0
    last: int = 0


@dataclass(slots=True)
class RowBlock:
    """Rows of one result as received. `ended`: the result has no more."""

    parts: list[RowBytes] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    ended: bool = False


class QueryStream:
    """A connection for statements, one at a time. After an error other than a refusal it can't be used any more."""

    def __init__(
        self, packets: PacketStream, transport: Any, user: str, close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`close` is called when the connection was aborted."""
        self._packets, self._transport, self._user = packets, transport, user
        self._close = close
        self._rest = b""
        self._at = 0
        """The offset in `_rest` where the next packet begins."""
        self.running = False
        """Whether a result is not yet read to its end."""

    @classmethod
    def of(cls, connection: SourceConnection, user: str) -> QueryStream:
        """Takes the connection over. Raises SourceError."""
        packets, transport = connection.take_over(_BUFFER)
        transport.resume_reading()
        return cls(packets, transport, user, connection.close)

    @property
    def idle(self) -> bool:
        """Returns whether it can take a statement; detects that a server has closed it meanwhile."""
        return not self.running and self._at == len(self._rest) and not self._transport.is_closing()

    async def query(self, sql: str, silence: float = SILENCE) -> list[list[bytes | None]]:
        """Returns the rows of a statement with a small result, as received. Raises as start()."""
        rows, size = list[list[bytes | None]](), 0
        async with self._within(2 * silence):
            if not await self.start(sql, silence):
                return []
            while (packet := await self._packet(silence, _SMALL))[0] != _END or len(packet) > 8:
                if packet[0] == _ERROR:
                    raise self._refused(packet, sql)
                rows.append(row_values(packet))
                size += 100 * (1 + len(rows[-1])) + len(packet)  # approximately as they take in memory
                if size > _SMALL:
                    raise self._too_much()
        self.running = False
        return rows

    @contextlib.asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise SourceUnreachable(f"{self._packets.peer} came to no end within {seconds:g} s") from error

    def _too_much(self) -> SourceError:
        return SourceError(f"{self._packets.peer} answers more than it was asked")

    async def start(self, sql: str, silence: float = SILENCE) -> list[ResultColumn]:
        """Runs a statement up to its first row; returns the columns of its result, none if it has none. Raises
        QueryFailed and other errors of a refusal, SourceUnreachable if no byte comes for `silence` seconds."""
        if not self.idle:
            peer = self._packets.peer
            raise SourceUnreachable(f"the connection to {peer} was closed, or another statement's rows are unread")
        body = _COM_QUERY + sql.encode("utf-8", "surrogateescape")
        self.running = True
        self._transport.write(len(body).to_bytes(3, "little") + b"\0" + body)
        packet = await self._packet(silence)
        if packet[0] == _ERROR:
            raise self._refused(packet, sql)
        if packet[0] == 0:
            self.running = False
            return []
        count = packet[0] if packet[0] < _LONG_NULL else int.from_bytes(packet[1:3], "little")
        columns = [_column(await self._packet(silence)) for _ in range(count)]
        await self._packet(silence)  # EOF
        return columns

    async def rows(self, rows: int, size: int, silence: float = SILENCE) -> RowBlock:
        """Returns the next rows of the started statement: at most `rows`, and none that begins after `size` bytes.
        Raises as start(), also for an error in the middle."""
        async with self._within(_LONGEST):
            return await self._rows(rows, size, silence)

    async def _rows(self, rows: int, size: int, silence: float) -> RowBlock:
        block = RowBlock()
        while not block.ended and block.rows < rows and block.size < size:
            begin, b = self._at, self._rest
            at, count, last = _walk(b, begin, rows - block.rows, begin + size - block.size)
            if count:
                block.parts.append(RowBytes(b[begin:at], count, last=last - begin))
                block.rows += count
                block.size += at - begin
                self._at = at
                continue
            left = len(b) - at
            if left < 5:
                await self._more(5, silence)
                continue
            header, first = _HEADER(b, at)
            length = header & _FULL
            if length == _FULL:
                row = await self._packet(silence, _LARGEST, b"\0\0\0\0")
                block.parts.append(RowBytes(row, 1, len(row)))
                block.rows += 1
                block.size += len(row)
            elif left < length + 4:
                await self._more(length + 4, silence)
            elif first == _ERROR:
                raise self._refused(await self._packet(silence), "the statement")
            else:
                self._at += length + 4
                self.running = False
                block.ended = True
        if not block.ended and len(self._rest) - self._at >= 5:  # the end may have come with the last row
            header, first = _HEADER(self._rest, self._at)
            if first == _END and header & _FULL < 9 and len(self._rest) - self._at >= (header & _FULL) + 4:
                self._at += (header & _FULL) + 4
                self.running, block.ended = False, True
        return block

    async def _packet(self, silence: float, most: int = 0, before: bytes = b"") -> bytes:
        """Returns the next packet's content after `before`, joined if it came in several: at most `most` bytes."""
        made, size = io.BytesIO(), 0
        made.write(before)
        while True:
            await self._more(4, silence)
            length = int.from_bytes(self._rest[self._at : self._at + 3], "little")
            size += length
            if size > (most or _NAMES):
                raise self._too_much()
            await self._more(length + 4, silence)
            made.write(memoryview(self._rest)[self._at + 4 : self._at + 4 + length])
            self._at += length + 4
            if length < _FULL:
                break
        if not size:
            raise SourceError("the source sent an empty packet where it has to answer")
        return made.getvalue()  # returns the buffer itself, without a copy

    async def _more(self, need: int, silence: float) -> None:
        """Waits until at least `need` bytes are in `_rest` after `_at`."""
        if len(self._rest) - self._at >= need:
            return
        rest = self._rest[self._at :]
        try:
            self._rest, self._at = await self._packets.read(rest, need, silence), 0
        except SourceEnded as error:
            raise SourceUnreachable(f"the source closed the connection on which a table is read ({error})") from error
        except SourceSilent as error:
            raise SourceUnreachable(f"no byte of a table came ({error})") from error

    def _refused(self, packet: bytes, sql: str) -> SourceError:
        self.running = False
        errno = int.from_bytes(packet[1:3], "little")
        text = packet[3:].decode("utf-8", "replace")
        what = f"'{sql[:60]}' failed at {self._packets.peer}"
        return refusal(errno, text[6:] if text.startswith("#") else text, what, self._user)

    async def close(self) -> None:
        """Aborts the connection; the server ends what runs on it."""
        await self._packets.close()
        if self._close is not None:
            await self._close()


def _walk(b: bytes, at: int, rows: int, stop: int) -> tuple[int, int, int]:
    """Steps over whole rows from `at` on, at most this many, and none that begins at `stop` or after it. Returns where
    it ends, how many they are, and where the last begins. It ends before a packet that is no row, or a row in several
    packets."""
    count, size, last = 0, len(b), at
    stop = min(stop, size - 4)
    while at < stop and count < rows:
        header, first = _HEADER(b, at)
        header &= _FULL
        end = at + 4 + header
        if end > size or header == _FULL or (first >= _END and (first == _ERROR or header < 9)):
            break
        last, at = at, end
        count += 1
    return at, count, last


def row_values(packet: bytes) -> list[bytes | None]:
    """Returns the values of a row without its packet's header, as received."""
    return [None if start < 0 else packet[start:end] for start, end in _spans(packet, 0, len(packet))]


def values_at(data: bytes, at: int, end: int, places: Sequence[int]) -> list[bytes | None]:
    """Returns some values of the row from `at` to `end`, by their numbers; the others may be large, and are not
    copied."""
    spans = list(_spans(data, at, end))
    return [None if spans[place][0] < 0 else data[slice(*spans[place])] for place in places]


def _spans(data: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields where the values of a row begin and end; below 0 for a NULL."""
    while at < end:
        if data[at] == _LONG_NULL:
            at += 1
            yield -1, at
        else:
            start, at = _span(data, at)
            yield start, at


def _span(b: bytes, at: int) -> tuple[int, int]:
    n = b[at]
    if n < _LONG_NULL:
        return at + 1, at + 1 + n
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}[n]
    start = at + 1 + width
    return start, start + int.from_bytes(b[at + 1 : start], "little")


def _column(packet: bytes) -> ResultColumn:
    """Reads a column's definition: six names, then its facts."""
    at = 0
    try:
        for _ in range(6):
            _, at = _span(packet, at)
        collation, _, kind, flags, decimals = struct.unpack_from("<HIBHB", packet, at + 1)
    except (KeyError, IndexError, struct.error) as error:
        raise SourceError("the source describes a result in a way that is not understood") from error
    return ResultColumn(collation, kind, flags, decimals)
