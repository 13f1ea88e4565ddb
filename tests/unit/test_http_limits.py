"""What clients that read nothing, or never shake hands, can do to a daemon: hold some connections, for a while."""

import asyncio
import gc
import os
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from headrace.cli.run import spare_collector
from headrace.destination.status import DestinationStatus
from headrace.http import limits as limits_module
from headrace.http import metrics as metrics_module
from headrace.http import server as server_module
from headrace.http.facts import Facts, Options
from headrace.http.server import HttpServer
from headrace.model import TableRows
from tests.certificates import Authority
from tests.handles import handles_of


def many_tables() -> dict[str, DestinationStatus]:
    """20 destinations of 200 tables, of which /metrics has 3 MB to say."""
    statuses = {f"shop{number}": DestinationStatus(f"shop{number}") for number in range(20)}
    for status in statuses.values():
        for number in range(200):
            status.published.tables.add(TableRows("shop_schema", f"a_table_with_a_name_{number}", 5, 3, 2, 1, 10**15))
    return statuses


@asynccontextmanager
async def serving(
    statuses: dict[str, DestinationStatus] | None = None, options: Options | None = None
) -> AsyncIterator[HttpServer]:
    server = HttpServer(("127.0.0.1", 0), Facts(handles_of(statuses or {}), "relay-1"), options)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def sent(port: int, *said: bytes) -> socket.socket:
    """A connection that reads nothing, with as little room for what comes as the system allows."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    for part in said:
        await loop.sock_sendall(sock, part)
    return sock


def held(port: int) -> int:
    """Connections that the server has open at its end."""
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    return sum(int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "01" for fields in map(str.split, lines))


class Loop:
    """CPU time that the loop's thread spent in one turn at most, and how much the process has grown meanwhile; what
    other processes do to the clock does not count."""

    longest = 0.0
    grown = 0

    async def watch(self) -> None:
        began, before = _resident(), time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest = max(self.longest, now - before)
            self.grown = max(self.grown, _resident() - began)
            before = time.thread_time()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def watched() -> Iterator[Loop]:
    loop, usual = Loop(), gc.get_threshold()
    spare_collector()  # as the daemon does: else it walks through all that the other tests have left
    watching = asyncio.create_task(loop.watch())
    try:
        yield loop
    finally:
        watching.cancel()
        gc.set_threshold(*usual)
        gc.unfreeze()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Ends the connections of a test."""
    with ExitStack() as stack:
        yield stack


async def until_none_is_held(port: int) -> None:
    async with asyncio.timeout(60):
        while held(port):  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("path", ["/metrics", "/health"])
async def test_250_who_do_not_read_hold_the_loop_for_little_cost_little_memory_and_end(
    monkeypatch: pytest.MonkeyPatch, opened: ExitStack, path: str
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 2.0)
    printed, really = [], metrics_module.generate_latest

    def generate(*given: object) -> bytes:
        printed.append(time.monotonic())
        return really(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(metrics_module, "generate_latest", generate)
    async with serving(many_tables()) as server:
        with watched() as loop:
            request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
            began = time.monotonic()
            socks = [opened.enter_context(await sent(server.port)) for _ in range(250)]
            for sock in socks:
                sock.send(request)  # all of them in one turn of the loop
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{server.port}{path}") as answer,
            ):
                assert len(await answer.read()) > 30_000, "who reads is answered meanwhile"
            await until_none_is_held(server.port)
            assert len(printed) <= 1 + (time.monotonic() - began) / metrics_module.SHARED
        assert loop.longest < 0.1
        assert loop.grown < 100 << 20


@pytest.mark.parametrize("path", ["/livez", "/health", "/metrics"])
async def test_who_asks_a_thousand_times_in_one_breath_and_reads_nothing_ends(
    monkeypatch: pytest.MonkeyPatch, opened: ExitStack, path: str
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 1.0)
    async with serving(many_tables()) as server:
        socks = [opened.enter_context(await sent(server.port)) for _ in range(4)]
        for sock in socks:
            sock.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() * 1000)
        await until_none_is_held(server.port)


async def test_a_further_request_does_not_lift_the_time_limit_of_an_answer_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, opened: ExitStack
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 1.0)
    statuses = {f"shop{number}": DestinationStatus(f"shop{number}") for number in range(10)}
    async with serving(statuses) as server:
        request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        sock = opened.enter_context(await sent(server.port, request))
        assert server._server is not None
        connections: Any = server._server.server_state.connections
        async with asyncio.timeout(10):
            while not connections:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0)
            (connection,) = connections
            while True:  # until the whole of an answer waits for the reader, and no other request is there
                while connection.cycle is None or not connection.cycle.response_complete:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                if connection.flow.write_paused:
                    break
                count = connection.server_state.total_requests
                await asyncio.get_running_loop().sock_sendall(sock, request)
                while connection.server_state.total_requests == count:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        sock.send(request)
        await until_none_is_held(server.port)


async def test_a_question_for_the_headers_of_a_stream_ends(opened: ExitStack) -> None:
    async with serving() as server:
        head = b"HEAD /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
        sock = opened.enter_context(await sent(server.port, head, b"GET /livez HTTP/1.0\r\nhost: localhost\r\n\r\n"))
        said, loop = b"", asyncio.get_running_loop()
        async with asyncio.timeout(10):
            while part := await loop.sock_recv(sock, 4096):
                said += part
        assert said.count(b"HTTP/1.1 200 OK") == 2
        assert b"text/event-stream" in said
        assert said.endswith(b'"live": true\n}\n')


async def test_an_answer_beyond_the_bytes_under_way_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "UNDER_WAY", 1 << 20)
    async with serving(many_tables()) as server, aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert (answer.status, answer.headers["retry-after"]) == (503, "10")
            assert "under way" in (await answer.json())["error"]
        monkeypatch.setattr(limits_module, "UNDER_WAY", 4 << 20)
        for _ in range(3):  # what was sent counts no more
            async with session.get(f"http://127.0.0.1:{server.port}/metrics") as answer:
                assert answer.status == 200
                assert len(await answer.read()) > 2 << 20


@pytest.fixture
def options(tmp_path: Path) -> Options:
    certificate, key, _ = Authority(tmp_path).make("daemon")
    return Options(certificate=certificate, key=key)


async def test_who_never_shakes_hands_is_counted_at_once_and_ends(
    options: Options, opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE", 4.0)
    monkeypatch.setattr(server_module, "CONNECTIONS", 5)
    async with serving(options=options) as server:
        before = len(os.listdir("/proc/self/fd"))
        socks = [opened.enter_context(await sent(server.port, b"\x16"[: number % 2])) for number in range(30)]
        loop = asyncio.get_running_loop()
        for sock in socks[5:]:
            with suppress(ConnectionResetError):
                async with asyncio.timeout(30):
                    assert await loop.sock_recv(sock, 1) == b""
            sock.close()
        assert held(server.port) == 5, "the others ended before their time"
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * 5
        await until_none_is_held(server.port)
        context = ssl.create_default_context(cafile=str(options.certificate))
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
            session.get(f"https://127.0.0.1:{server.port}/livez") as answer,
        ):
            assert answer.status == 200


@pytest.mark.parametrize(("files", "connections"), [(1024, 256), (65536, 256), (400, 100), (-1, 256)])
def test_sources_and_sinks_keep_three_quarters_of_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    assert server_module.most_connections() == connections
