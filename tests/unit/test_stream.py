"""The stream of a dump over real sockets: when silence counts, how it ends, and what the kernel is told to watch."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import pytest

from headrace.errors import SourceEnded, SourceSilent, SourceUnreachable
from headrace.mysql.wire.connection import Address, SourceConnection
from headrace.mysql.wire.sockets import tune
from headrace.mysql.wire.stream import PacketStream

LIMIT = 1000


class Dump:
    """A stream and the server's end of its connection."""

    def __init__(self, stream: PacketStream, transport: asyncio.Transport, writer: asyncio.StreamWriter) -> None:
        self.stream, self.transport, self.writer = stream, transport, writer

    def send(self, size: int) -> None:
        self.writer.write(b"x" * size)


@pytest.fixture
async def dump() -> AsyncIterator[Dump]:
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: accepted.put_nowait(writer), "127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    transport.pause_reading()
    stream = PacketStream(loop, transport, LIMIT, "db:3306")
    transport.set_protocol(stream)
    transport.resume_reading()
    writer = await accepted.get()
    yield Dump(stream, transport, writer)
    await stream.close()
    writer.transport.abort()
    server.close()
    await server.wait_closed()


async def test_silence_while_we_read_is_reported_after_the_deadline(dump: Dump) -> None:
    begun = time.monotonic()
    with pytest.raises(SourceSilent, match="no byte came from the source at db:3306"):
        async with asyncio.timeout(5):
            await dump.stream.read(b"", 1, 0.2)
    assert time.monotonic() - begun > 0.19


async def test_no_deadline_runs_while_we_do_not_read(dump: Dump) -> None:
    dump.send(100)
    assert await dump.stream.read(b"", 1, 0.2) == b"x" * 100
    await asyncio.sleep(0.5)  # longer than the deadline: we are busy, not the source
    assert dump.stream.waiting_since == 0.0
    asyncio.get_running_loop().call_later(0.1, dump.send, 7)
    assert await dump.stream.read(b"", 1, 0.2) == b"x" * 7


async def test_a_full_buffer_pauses_the_socket_and_its_deadline(dump: Dump) -> None:
    dump.send(5000)
    async with asyncio.timeout(10):
        while dump.stream.bytes_received < LIMIT:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert not dump.transport.is_reading()
    await asyncio.sleep(0.5)
    assert len(await dump.stream.read(b"", 1, 0.2)) >= LIMIT
    assert dump.transport.is_reading()
    with pytest.raises(SourceSilent):
        await dump.stream.read(b"", 10_000, 0.2)


async def test_a_slow_link_is_not_silence(dump: Dump) -> None:
    async def trickle() -> None:
        for _ in range(20):
            dump.send(1)
            await asyncio.sleep(0.05)

    sending = asyncio.create_task(trickle())
    assert await dump.stream.read(b"", 20, 0.3) == b"x" * 20  # a second in all, a byte in time each
    await sending


@pytest.mark.parametrize("reset", [True, False])
async def test_what_came_before_the_end_is_given_first(dump: Dump, reset: bool) -> None:
    dump.send(10)
    assert await dump.stream.read(b"", 1, 5) == b"x" * 10
    dump.send(10)
    async with asyncio.timeout(10):
        while dump.stream.bytes_received < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    if reset:
        dump.writer.transport.abort()
    else:
        dump.writer.close()
    assert await dump.stream.read(b"", 1, 5) == b"x" * 10
    words = r"the connection to the source at db:3306 broke|the source at db:3306 closed the connection"
    with pytest.raises(SourceEnded, match=words):
        await dump.stream.read(b"", 1, 5)


async def test_a_server_that_goes_while_we_do_not_read_is_noticed_when_we_do(dump: Dump) -> None:
    dump.send(5000)
    dump.writer.close()
    async with asyncio.timeout(10):
        while dump.stream.bytes_received < LIMIT:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.3)
    assert await dump.stream.read(b"", 5000, 0.2) == b"x" * 5000
    with pytest.raises(SourceEnded):
        await dump.stream.read(b"", 1, 0.2)


async def test_the_kernel_is_set_to_notice_a_dead_peer_within_fifteen_seconds(dump: Dump) -> None:
    tune(dump.transport)
    sock = dump.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_KEEPIDLE"):
        idle, interval, count = (
            sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
        assert idle + interval * count <= 15
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000


async def test_a_socket_that_is_not_tcp_is_left_alone() -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    tune(transport)
    assert not ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    transport.close()
    theirs.close()


async def test_a_server_that_never_greets_costs_no_open_socket() -> None:
    ended = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        ended.set()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(SourceUnreachable):
        await SourceConnection.open(Address("127.0.0.1", port, "u", "p", connect_timeout=0.1))
    await asyncio.wait_for(ended.wait(), 10)
    server.close()
    await server.wait_closed()
