"""Results of statements over real sockets: rows are taken whole however their bytes are cut, and errors end them."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable

import pytest

from headrace.errors import GrantMissing, SourceUnreachable
from headrace.model import Column, TableSchema
from headrace.mysql.snapshot.chunk import ChunkDecoder, MysqlChunk, ReadFacts
from headrace.mysql.snapshot.select import TableSelect
from headrace.mysql.undecodable import UndecodableTexts
from headrace.mysql.values.column_types import ValueOptions
from headrace.mysql.wire.connection import QueryFailed
from headrace.mysql.wire.query_stream import QueryStream, RowBlock, row_values
from headrace.mysql.wire.stream import PacketStream
from headrace.ports.tables import Watermark

FULL = 0xFFFFFF
END = b"\xfe\0\0\2\0"


def lenenc(value: bytes | None) -> bytes:
    """A value with its length before it, written independently of the reader."""
    if value is None:
        return b"\xfb"
    n = len(value)
    if n < 251:
        return bytes([n]) + value
    if n < 1 << 16:
        return b"\xfc" + struct.pack("<H", n) + value
    if n < 1 << 24:
        return b"\xfd" + n.to_bytes(3, "little") + value
    return b"\xfe" + struct.pack("<Q", n) + value


def row(*values: bytes | None) -> bytes:
    return b"".join(map(lenenc, values))


def packets(*contents: bytes) -> bytes:
    """Contents as packets, those of 16 MB and more in several."""
    out, number = [], 0
    for content in contents:
        while True:
            part, content = content[:FULL], content[FULL:]
            out.append(len(part).to_bytes(3, "little") + bytes([number & 255]) + part)
            number += 1
            if len(part) < FULL:
                break
    return b"".join(out)


COLUMN = row(b"def", b"s", b"t", b"t", b"c", b"c") + b"\x0c" + struct.pack("<HIBHBH", 45, 80, 253, 32, 3, 0)


def result(*rows: bytes, columns: int = 1, end: bytes = END) -> bytes:
    """The answer to a SELECT."""
    return packets(bytes([columns]), *[COLUMN] * columns, END, *rows, end)


Answer = Callable[[bytes], None]


@pytest.fixture
async def asked() -> AsyncIterator[tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A stream, and the server's end of its connection."""
    accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *both: accepted.put_nowait(both), "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    transport.pause_reading()
    received = PacketStream(loop, transport, 1 << 20, "db:3306")
    transport.set_protocol(received)
    transport.resume_reading()
    reader, writer = await accepted.get()
    stream = QueryStream(received, transport, "u")
    yield stream, reader, writer
    await stream.close()
    writer.transport.abort()
    server.close()
    await server.wait_closed()


def values(block: RowBlock) -> list[list[bytes | None]]:
    """All rows of a block, which has them as packets."""
    found = []
    for part in block.parts:
        at = 0
        while at < len(part.data):
            end = part.end or at + 4 + int.from_bytes(part.data[at : at + 3], "little")
            found.append(row_values(part.data[at + 4 : end]))
            at = end
    assert len(found) == block.rows
    return found


async def test_a_statement_is_sent_as_one_command_and_small_results_come_whole(
    asked: tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    stream, reader, writer = asked
    writer.write(result(row(b"a", None), row(b"", b"x" * 300), columns=2))
    assert await stream.query("SELECT '中'") == [[b"a", None], [b"", b"x" * 300]]
    sent = "SELECT '中'".encode()
    assert await reader.readexactly(5 + len(sent)) == struct.pack("<I", len(sent) + 1) + b"\x03" + sent
    writer.write(packets(b"\0\0\0\2\0\0\0"))
    assert await stream.query("SET x = 1") == []
    assert stream.idle


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
async def test_rows_are_complete_however_the_bytes_are_split(
    asked: tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter], piece: int
) -> None:
    stream, _, writer = asked
    rows = [row(str(i).encode(), None if i % 3 else b"v" * (i * 7)) for i in range(60)]
    answer = result(*rows, columns=2)

    async def send() -> None:
        for at in range(0, len(answer), piece):
            writer.write(answer[at : at + piece])
            await writer.drain()
            await asyncio.sleep(0)

    sending = asyncio.create_task(send())
    columns = await stream.start("SELECT")
    assert [(c.collation, c.kind, c.unsigned, c.decimals) for c in columns] == [(45, 253, True, 3)] * 2
    block = await stream.rows(100, 1 << 20)
    await sending
    assert block.ended
    assert values(block) == [row_values(content) for content in rows]
    assert stream.idle


async def test_a_block_has_no_more_rows_and_bytes_than_it_may(
    asked: tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    stream, _, writer = asked
    writer.write(result(*[row(b"v" * 95)] * 10))
    await stream.start("SELECT")
    first = await stream.rows(3, 1 << 20)
    assert (first.rows, first.ended, stream.idle) == (3, False, False)
    second = await stream.rows(100, 150)
    assert (second.rows, second.size) == (2, 200)
    third = await stream.rows(5, 1 << 20)
    assert third.rows == 5
    rest = third if third.ended else await stream.rows(1, 1)
    assert rest.ended


@pytest.mark.parametrize("size", [FULL - 6, FULL - 5, FULL - 4, FULL, FULL + 10, 2 * FULL + 1])
async def test_a_row_of_several_packets_comes_as_one(
    asked: tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter], size: int
) -> None:
    stream, _, writer = asked
    large = b"x" * size
    writer.write(result(row(b"1"), row(large), row(b"3")))
    await stream.start("SELECT")
    block = await stream.rows(10, 1 << 30)
    assert values(block) == [[b"1"], [large], [b"3"]]
    assert block.ended


async def test_an_error_between_rows_is_reported_with_its_number(
    asked: tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    stream, _, writer = asked
    writer.write(result(row(b"1"), end=b"\xff" + struct.pack("<H", 1412) + b"#HY000Table definition has changed"))
    await stream.start("SELECT")
    with pytest.raises(QueryFailed, match="Table definition has changed") as caught:
        await stream.rows(10, 1 << 20)
    assert caught.value.errno == 1412


async def test_a_refused_right_names_the_grant(
    asked: tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    stream, _, writer = asked
    text = b"#42000SELECT command denied to user 'u'@'h' for table 't'"
    writer.write(packets(b"\xff" + struct.pack("<H", 1142) + text))
    with pytest.raises(GrantMissing, match="GRANT SELECT ON"):
        await stream.start("SELECT")
    assert stream.idle


async def test_silence_and_a_closed_connection_are_a_source_that_is_not_there(
    asked: tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    stream, _, writer = asked
    writer.write(result(row(b"1"))[:-9])
    await stream.start("SELECT")
    with pytest.raises(
        SourceUnreachable, match=r"no byte of a table came .no byte came from the source at db:3306 for 0 s"
    ):
        await stream.rows(10, 1 << 20, 0.2)
    writer.close()
    with pytest.raises(SourceUnreachable, match=r"the source at db:3306 closed the connection"):
        await stream.rows(10, 1 << 20, 5)


async def test_a_large_row_is_held_once(
    asked: tuple[QueryStream, asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    stream, _, writer = asked
    size = 6 * FULL
    schema = TableSchema("shop", "t", (Column("id", "int", 4), Column("b", "longblob", 2004)), (0,))
    select = TableSelect(schema, frozenset(), "")
    decoder = ChunkDecoder(select, ValueOptions(), UndecodableTexts(), skips=False)

    async def send() -> None:
        head = row(b"7") + b"\xfe" + struct.pack("<Q", size)
        writer.write(packets(b"\2", COLUMN, COLUMN, END))
        piece = bytes(1 << 20)
        content = len(head) + size
        for number, at in enumerate(range(0, content + 1, FULL)):
            length = min(FULL, content - at)
            writer.write(length.to_bytes(3, "little") + bytes([number]) + (head if not at else b""))
            left = length - (len(head) if not at else 0)
            while left:
                writer.write(piece[:left])
                await writer.drain()
                left -= min(left, len(piece))
        writer.write(packets(END))

    sending = asyncio.create_task(send())
    tracemalloc.start()
    try:
        await stream.start("SELECT")
        block = await stream.rows(10, 1 << 30)
        await sending
        facts = ReadFacts(True, Watermark("f", 1), False, 0.0, None, "")
        chunk = MysqlChunk(block, decoder, facts)
        ((key, value),) = chunk.take(1)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (key, value.size, chunk.key, chunk.end) == (7, size, (b"7".hex(),), (b"7".hex(),))
    assert most < 1.5 * size
