"""A source that answers without end: what is taken of an answer is bounded, and the connection is aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, repeat

import pytest

from headrace.errors import SourceError, SourceUnreachable
from headrace.mysql.wire import query_stream
from headrace.mysql.wire.connection import Address, SourceConnection
from headrace.mysql.wire.query_stream import QueryStream
from tests.unit.test_authentication import Server, listening
from tests.unit.test_query_stream import COLUMN, END, FULL, row

LIMIT = 1 << 20


@dataclass(slots=True)
class Flood(Server):
    """Answers a command with `answer`, some packets at a time, `pause` seconds apart."""

    answer: Callable[[], Iterator[bytes]] = lambda: iter(())
    pause: float = 0.0
    together: int = 200
    sent: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            assert await self._login(reader, writer)
            await self._receive(reader)
            numbered = zip(cycle([*range(1, 256), 0]), self.answer(), strict=False)
            while some := b"".join(
                len(packet).to_bytes(3, "little") + bytes([number]) + packet
                for number, packet in islice(numbered, self.together)
            ):
                writer.write(some)
                await writer.drain()
                self.sent += len(some)
                await asyncio.sleep(self.pause)
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended.set()
            writer.close()


def result(packets: Iterator[bytes], columns: int = 1) -> Iterator[bytes]:
    yield bytes([columns])
    for _ in range(columns):
        yield COLUMN
    yield END
    yield from packets


def parts() -> Iterator[bytes]:
    """One packet that goes on for long."""
    return repeat(bytes(FULL), 10)


ENDLESS: dict[str, Callable[[], Iterator[bytes]]] = {
    "rows": lambda: result(repeat(row(b"x"))),
    "wide rows": lambda: result(repeat(row(*[b""] * 200)), columns=200),
    "a row": lambda: result(parts()),
    "a packet": parts,
}


@asynccontextmanager
async def flooded(answer: Callable[[], Iterator[bytes]], pause: float = 0.0) -> AsyncIterator[tuple[Flood, Address]]:
    together = 1 if pause or answer in (ENDLESS["a row"], parts) else 200
    server = Flood("8.0.36", "caching_sha2_password", answer=answer, pause=pause, together=together)
    async with listening(server) as address:
        yield server, replace(address, answer_bytes=LIMIT, connect_timeout=30.0)


@pytest.mark.parametrize("endless", ENDLESS)
async def test_an_answer_without_end_is_given_up_at_a_limit_of_bytes(endless: str) -> None:
    async with flooded(ENDLESS[endless]) as (server, address):
        connection = await SourceConnection.open(address)
        with pytest.raises(SourceError, match=r"'SELECT 1' failed at 127.*: the answer has more than 1 MiB"):
            await connection.query("SELECT 1")
        async with asyncio.timeout(5):
            await server.ended.wait()
        assert server.sent < 16 * LIMIT
        await connection.close()


async def test_an_answer_that_never_comes_to_its_end_is_given_up_at_a_limit_of_time() -> None:
    async with flooded(ENDLESS["rows"], pause=0.05) as (server, address):
        connection = await SourceConnection.open(replace(address, connect_timeout=0.5))
        with pytest.raises(SourceUnreachable, match="did not answer 'SELECT 1'"):
            await connection.query("SELECT 1")
        async with asyncio.timeout(5):
            await server.ended.wait()
        await connection.close()


@pytest.mark.parametrize("endless", ["rows", "wide rows", "a packet"])
async def test_a_small_answer_of_the_connection_that_reads_tables_is_bounded(
    endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_stream, "_SMALL", LIMIT)
    async with flooded(ENDLESS[endless]) as (server, address):
        stream = QueryStream.of(await SourceConnection.open(address), "u")
        with pytest.raises(SourceError, match="answers more than it was asked"):
            await stream.query("SELECT 1")
        await stream.close()
        assert server.sent < 40 * LIMIT


@pytest.mark.parametrize("endless", ["rows", "a row"])
async def test_a_row_of_a_table_is_bounded_in_bytes_and_a_block_in_time(
    endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_stream, "_LARGEST", 40 << 20)
    monkeypatch.setattr(query_stream, "_LONGEST", 1.0)
    async with flooded(ENDLESS[endless], pause=0.0 if endless == "a row" else 0.05) as (_, address):
        stream = QueryStream.of(await SourceConnection.open(address), "u")
        await stream.start("SELECT 1")
        with pytest.raises(SourceError, match=r"more than|no end within 1 s"):
            await stream.rows(1_000_000, 1 << 30)
        await stream.close()
