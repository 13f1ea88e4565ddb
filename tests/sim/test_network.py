"""The network of the simulator: what arrives, in which order, what a fault holds up, and what it ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from sim.loop import Process, SimLoop
from sim.network import Network, Wire


class Recorder(asyncio.Protocol):
    """Keeps what happens to it. Reads only if `reads`."""

    def __init__(self, *, reads: bool = True) -> None:
        self.data = b""
        self.pieces = list[bytes]()
        self.events = list[str]()
        self.error: Exception | None = None
        self._reads = reads
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.events.append("made")
        if not self._reads:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        assert self.events, "it has its transport first"
        self.data += data
        self.pieces.append(data)

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.error = exc


class Net:
    """Two hosts, of which `server` listens at port 1."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(random.Random(seed))
        self.network = Network(self.loop, random.Random(seed))
        self.client, self.server = Process(self.loop, "client"), Process(self.loop, "server")
        self.accepted = list[Recorder]()
        self.reads = True
        self.network.listen(self.server, "server", 1, self._accept)

    def _accept(self) -> Recorder:
        self.accepted.append(Recorder(reads=self.reads))
        return self.accepted[-1]

    async def connect(self, host: str = "server", port: int = 1) -> tuple[Recorder, Recorder]:
        """Both protocols of a new connection."""
        count = len(self.accepted)
        protocol = await self.open(host, port)
        while len(self.accepted) == count:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.0001)
        return protocol, self.accepted[-1]

    async def open(self, host: str = "server", port: int = 1) -> Recorder:
        """The protocol of a connection that the server's process may not have accepted yet."""
        _, protocol = await asyncio.get_running_loop().create_connection(Recorder, host, port)
        made: Recorder = protocol
        return made

    def block(self, source: str = "client", target: str = "server") -> None:
        self.network.block(source, target)

    def unblock(self, source: str = "client", target: str = "server") -> None:
        self.network.unblock(source, target)


def networked(test: Callable[[Net], Coroutine[Any, Any, None]]) -> Callable[[int], None]:
    """Runs a test as a task of the client."""

    @wraps(test)
    def in_virtual_time(seed: int) -> None:
        net = Net(seed)
        try:
            net.loop.run_until_complete(net.loop.create_task(test(net), context=net.client.context()))
        finally:
            net.loop.on_error = lambda context: None

    del in_virtual_time.__wrapped__
    made: Callable[[int], None] = pytest.mark.parametrize("seed", range(5))(in_virtual_time)
    return made


PIECES = [b"%d " % number for number in range(200)]


@networked
async def test_bytes_arrive_in_order_in_both_directions_however_late(net: Net) -> None:
    net.network.delays["client", "server"] = 2.0
    here, there = await net.connect()
    began = net.loop.time()
    for piece in PIECES:
        here.transport.write(piece)
        there.transport.write(piece)
        await asyncio.sleep(0.01)
    await asyncio.sleep(3)
    assert there.pieces == here.pieces == PIECES
    assert net.loop.time() - began > 3
    assert here.transport.get_extra_info("peername") == ("server", 1)
    assert there.transport.get_extra_info("peername")[0] == "client"


@networked
async def test_what_a_client_writes_at_once_comes_after_the_connection(net: Net) -> None:
    for number in range(20):
        here = await net.open()
        here.transport.write(b"hello")
        here.transport.write(b" there")
        await asyncio.sleep(1)
        assert net.accepted[number].data == b"hello there"


@networked
async def test_connections_do_not_wait_for_each_other(net: Net) -> None:
    one, two = await net.connect(), await net.connect()
    order = set()
    for number in range(30):
        for name, pair in (("one", one), ("two", two)):
            pair[0].transport.write(name.encode())
        before = len(one[1].pieces), len(two[1].pieces)
        while (len(one[1].pieces), len(two[1].pieces)) == before:  # noqa: ASYNC110
            await asyncio.sleep(0.00001)
        order.add(len(one[1].pieces) > before[0])
        await asyncio.sleep(0.1)
        assert len(one[1].pieces) == len(two[1].pieces) == number + 1
    assert order == {True, False}


@networked
async def test_a_partition_in_one_direction_holds_bytes_and_lets_them_through_in_order(net: Net) -> None:
    here, there = await net.connect()
    here.transport.write(b"before ")
    await asyncio.sleep(1)
    net.block()
    for piece in PIECES:
        here.transport.write(piece)
    there.transport.write(b"the other way")
    await asyncio.sleep(60)
    assert (there.data, here.data) == (b"before ", b"the other way")
    net.unblock()
    here.transport.write(b"after")
    await asyncio.sleep(1)
    assert there.data == b"before " + b"".join(PIECES) + b"after"
    assert "lost" not in here.events + there.events


@networked
async def test_what_is_blocked_again_at_once_stays_in_order(net: Net) -> None:
    here, there = await net.connect()
    sent = b""
    for number in range(100):
        (net.block if number % 2 else net.unblock)()
        here.transport.write(PIECES[number])
        sent += PIECES[number]
        await asyncio.sleep(0.0004)
    net.unblock()
    await asyncio.sleep(1)
    assert there.data == sent


@networked
async def test_a_connection_is_made_once_a_partition_ends_or_times_out(net: Net) -> None:
    net.block()
    waiting = asyncio.create_task(net.connect())
    await asyncio.sleep(100)
    assert not waiting.done()
    net.unblock()
    here, there = await waiting
    here.transport.write(b"x")
    await asyncio.sleep(1)
    assert there.data == b"x"
    net.block("server", "client")
    began = net.loop.time()
    with pytest.raises(OSError, match="timed out") as raised:
        await net.connect()
    assert raised.value.errno == errno.ETIMEDOUT
    assert net.loop.time() - began == pytest.approx(127)
    net.unblock("server", "client")
    await asyncio.sleep(1)
    assert len(net.accepted) == 1, "the client has not acknowledged it"
    assert len(net.network.connections) == 1


@networked
async def test_a_reset_ends_both_ends_and_drops_what_is_under_way(net: Net) -> None:
    here, there = await net.connect()
    other, its_end = await net.connect()
    net.block()
    here.transport.write(b"never")
    assert net.network.reset(lambda client, server: (client, server) == ("client", "server")) == 2
    net.unblock()
    await asyncio.sleep(5)
    assert there.data == b""
    for one in (here, there, other, its_end):
        assert one.events == ["made", "lost"]
        assert isinstance(one.error, ConnectionResetError)
    assert net.network.connections == []
    assert here.transport.is_closing()
    here.transport.write(b"ignored")
    assert net.network.reset(lambda client, server: True) == 0


@networked
async def test_a_connection_that_is_cut_ends_in_the_middle_of_a_piece(net: Net) -> None:
    net.network.pieces = 100  # which arrive at the same time, as the last one is the slowest
    here, there = await net.connect()
    assert net.network.cut(lambda client, server: (client, server) == ("client", "server")) == 1
    sent = bytes(range(250)) * 4
    here.transport.write(sent)
    here.transport.write(b"never")
    await asyncio.sleep(5)
    assert sent.startswith(bytes(there.data))
    assert len(there.data) < len(sent)
    for one in (here, there):
        assert one.events == ["made", "lost"]
        assert isinstance(one.error, ConnectionResetError)
    assert net.network.connections == []


@networked
async def test_a_close_comes_after_what_was_written_and_an_abort_does_not_wait(net: Net) -> None:
    here, there = await net.connect()
    for piece in PIECES:
        here.transport.write(piece)
    here.transport.close()
    here.transport.write(b"too late")
    await asyncio.sleep(1)
    assert there.data == b"".join(PIECES)
    assert there.events == ["made", "eof", "lost"]
    assert here.events == ["made", "lost"]
    assert here.error is there.error is None
    here, there = await net.connect()
    here.transport.abort()
    await asyncio.sleep(1)
    assert isinstance(there.error, ConnectionResetError)
    assert (here.events, here.error) == (["made", "lost"], None)
    assert net.network.connections == []


@networked
async def test_an_end_of_one_direction_leaves_the_other(net: Net) -> None:
    here, there = await net.connect()
    there.eof_received = lambda: True  # type: ignore[method-assign]
    here.transport.write(b"all")
    here.transport.write_eof()
    here.transport.write(b"more")
    await asyncio.sleep(1)
    there.transport.write(b"answer")
    await asyncio.sleep(1)
    assert (there.data, here.data) == (b"all", b"answer")
    there.transport.close()
    await asyncio.sleep(1)
    assert (here.events, there.events) == (["made", "eof", "lost"], ["made", "lost"])


@networked
async def test_a_reader_that_does_not_read_makes_the_writer_wait(net: Net) -> None:
    net.reads = False
    here, there = await net.connect()
    piece = bytes(16 * 1024)
    count = 0
    while "pause" not in here.events:
        here.transport.write(piece)
        count += 1
    assert count == 17, "256 kB, and one more"
    await asyncio.sleep(60)
    assert (there.data, here.events) == (b"", ["made", "pause"])
    assert here.transport.get_write_buffer_size() == count * len(piece)
    there.transport.resume_reading()
    await asyncio.sleep(1)
    assert len(there.data) == count * len(piece)
    assert here.events == ["made", "pause", "resume"]
    assert here.transport.get_write_buffer_size() == 0


@networked
async def test_a_partition_makes_the_writer_wait_too_and_limits_can_be_set(net: Net) -> None:
    here, there = await net.connect()
    here.transport.set_write_buffer_limits(high=100, low=50)
    assert here.transport.get_write_buffer_limits() == (50, 100)
    net.block()
    here.transport.write(bytes(100))
    assert here.events == ["made"]
    here.transport.write(b"x")
    assert here.events == ["made", "pause"]
    net.unblock()
    await asyncio.sleep(1)
    assert here.events == ["made", "pause", "resume"]
    assert len(there.data) == 101


@networked
async def test_paused_reading_holds_bytes_that_have_arrived(net: Net) -> None:
    here, there = await net.connect()
    there.transport.pause_reading()
    for piece in PIECES:
        here.transport.write(piece)
    here.transport.close()
    await asyncio.sleep(10)
    assert (there.data, there.events) == (b"", ["made"])
    there.transport.resume_reading()
    await asyncio.sleep(1)
    assert there.data == b"".join(PIECES)
    assert there.events == ["made", "eof", "lost"]


@networked
async def test_a_process_that_ends_closes_its_connections(net: Net) -> None:
    here, there = await net.connect()
    there.transport.write(b"last words")
    net.server.end()
    await asyncio.sleep(1)
    assert here.data == b"last words"
    assert here.events == ["made", "eof", "lost"]
    assert there.events == ["made"], "an ended process learns nothing"
    with pytest.raises(ConnectionRefusedError):
        await net.connect()


@networked
async def test_what_is_written_to_an_ended_process_is_answered_by_a_reset(net: Net) -> None:
    here, _ = await net.connect()
    net.block("server", "client")  # the end of its connection is not known yet
    net.server.end()
    await asyncio.sleep(1)
    assert here.events == ["made"]
    here.transport.write(b"anybody there?")
    await asyncio.sleep(1)
    assert here.events == ["made", "lost"]
    assert isinstance(here.error, ConnectionResetError)


@networked
async def test_a_frozen_process_serves_and_reads_nothing_until_it_goes_on(net: Net) -> None:
    here, there = await net.connect()
    net.server.freeze()
    here.transport.write(b"x")
    later = await net.open()  # the operating system accepts
    later.transport.write(b"y")
    await asyncio.sleep(60)
    assert there.data == b""
    assert len(net.accepted) == 1
    net.server.thaw()
    await asyncio.sleep(1)
    assert (there.data, net.accepted[1].data) == (b"x", b"y")


@networked
async def test_a_connection_to_a_frozen_process_ends_with_it_or_by_a_reset(net: Net) -> None:
    net.server.freeze()
    one = await net.open()
    net.network.reset(lambda client, server: True)
    two = await net.open()
    net.server.end()
    await asyncio.sleep(1)
    assert one.events == ["made", "lost"]
    assert two.events == ["made", "eof", "lost"]
    assert net.accepted == []


@networked
async def test_refused_connections(net: Net) -> None:
    for host, port in (("server", 2), ("nobody", 1)):
        with pytest.raises(ConnectionRefusedError) as raised:
            await net.connect(host, port)
        assert raised.value.errno == errno.ECONNREFUSED
    here, _ = await net.connect()
    net.network.close("server", 1)
    with pytest.raises(ConnectionRefusedError):
        await net.connect()
    assert here.events == ["made"], "those that are open stay"


@networked
async def test_a_connection_that_nobody_waits_for_any_more_is_reset(net: Net) -> None:
    net.network.delay = 1.0
    for limit in (0.001, 0.2, 0.5, 1.0, 1.5):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                (await net.open()).transport.close()
    await asyncio.sleep(10)
    assert all(one.events[-1] == "lost" for one in net.accepted)
    assert net.network.connections == []


@networked
async def test_single_messages_arrive_after_their_time_and_those_of_a_wire_in_order(net: Net) -> None:
    net.network.delay = 1.0
    got = list[str]()
    for number in range(50):
        net.network.send("client", "server", lambda number=number: got.append(f"{number}"), net.server.context())  # type: ignore[misc]
    await asyncio.sleep(2)
    assert sorted(got, key=int) == [f"{number}" for number in range(50)] != got
    got.clear()
    wire = Wire(net.network, "client", "server", net.server.context())
    for number in range(50):
        wire.send(got.append, f"{number}")
        (net.block if number % 10 == 5 else net.unblock)()
    await asyncio.sleep(2)
    assert got == [f"{number}" for number in range(50)]


@networked
async def test_a_buffered_protocol_gets_what_fits_its_buffer(net: Net) -> None:
    got = bytearray()

    class Buffered(asyncio.BufferedProtocol):
        def get_buffer(self, sizehint: int) -> memoryview:
            self.buffer = bytearray(7)
            return memoryview(self.buffer)

        def buffer_updated(self, nbytes: int) -> None:
            got.extend(self.buffer[:nbytes])

    transport, _ = await asyncio.get_running_loop().create_connection(Buffered, "server", 1)
    await asyncio.sleep(1)
    net.accepted[-1].transport.write(bytes(range(100)))
    await asyncio.sleep(1)
    assert got == bytes(range(100))
    transport.close()


@networked
async def test_a_connection_waits_until_the_loop_accepts_it(net: Net) -> None:
    loop: Any = net.loop
    listening = net.network.backlog(net.server, "server", 2)
    here = await net.open("server", 2)
    here.transport.write(b"hello")
    await asyncio.sleep(1)
    sock, address = await loop.sock_accept(listening)
    _, there = await loop.connect_accepted_socket(Recorder, sock)
    there.transport.write(b"welcome")
    await asyncio.sleep(1)
    assert (there.data, here.data) == (b"hello", b"welcome")
    assert address[0] == "client"
    assert listening.getsockname() == there.transport.get_extra_info("socket").getsockname() == ("server", 2)


@networked
async def test_what_is_not_accepted_ends_with_the_socket_that_listens(net: Net) -> None:
    listening = net.network.backlog(net.server, "server", 2)
    with pytest.raises(OSError, match="in use"):
        net.network.backlog(net.server, "server", 2)
    here = await net.open("server", 2)
    await asyncio.sleep(1)
    listening.close()
    await asyncio.sleep(1)
    assert isinstance(here.error, ConnectionResetError)
    with pytest.raises(OSError, match="failed"):
        await net.open("server", 2)
    net.network.backlog(net.server, "server", 2)
