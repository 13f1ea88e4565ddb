"""The HTTP server of the daemon: listens, with or without TLS, and serves the paths of headrace.http.api."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import ssl
from collections.abc import Iterator

import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace import runtime, tasks
from headrace.errors import HeadraceError
from headrace.http.access import Access
from headrace.http.api import make_app
from headrace.http.events import Events
from headrace.http.facts import Facts, Options
from headrace.http.history import History
from headrace.http.hosts import Hosts, machine_names
from headrace.http.limits import CONNECTIONS, PART, PATIENCE, limited
from headrace.http.metrics import Metrics

_REMEDIES = {
    errno.EADDRINUSE: "another program, perhaps another headrace, listens there: stop it or change [http] listen",
    errno.EACCES: "ports below 1024 need a privilege: change [http] listen",
}
log = structlog.get_logger(__name__)

_START_LIMIT = 10.0
_END_LIMIT = 3.0
_DATE_EACH = 1.0
"""Seconds between two updates of the date in answers."""


class HttpError(HeadraceError):
    """The HTTP server can't listen at the configured address."""

    reason = "http"
    retriable = False


def most_connections() -> int:
    """Returns the maximum number of connections: sources and sinks keep three quarters of the descriptors."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return CONNECTIONS if files == resource.RLIM_INFINITY else min(CONNECTIONS, files // 4)


class _Server(uvicorn.Server):
    """Leaves signals to the daemon, and accepts connections itself: asyncio's server sees a TLS connection only after
    the handshake, and accepts all waiting connections in one turn of the loop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._handshakes = dict[asyncio.Task[None], None]()
        self._accepting: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Ends serve()."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Waits for end(). Updates the date in answers each second; uvicorn's own loop would wake up ten times."""
        while not await self.on_tick(0):
            await tasks.set_within(self._ending, _DATE_EACH)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        self.servers = []
        self._accepting = asyncio.create_task(self._accept(sockets[0]), name="http accepts")
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await tasks.cancel(self._accepting, *self._handshakes)
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop, failing = asyncio.get_running_loop(), False
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except OSError as error:  # of one connection, or no descriptor is left: the waiting ones continue to wait
                if not failing:
                    log.warning("no connection can be accepted", error=_why(error))
                failing = True
                await asyncio.sleep(1.0)
                continue
            failing = False
            if len(self._handshakes) + len(self.server_state.connections) >= most_connections():
                sock.close()
                continue
            beginning = asyncio.create_task(self._begin(sock), name="http connection")
            self._handshakes[beginning] = None
            beginning.add_done_callback(self._handshakes.pop)

    async def _begin(self, sock: socket.socket) -> None:
        """Does the TLS handshake, if any, and gives the connection to its protocol."""
        limits = {"ssl_handshake_timeout": PATIENCE, "ssl_shutdown_timeout": PATIENCE} if self.config.ssl else {}
        with contextlib.suppress(OSError):  # the client does not speak TLS, or has disconnected
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(self.config, self.server_state, self.lifespan.state), sock, ssl=self.config.ssl,
                **limits,
            )  # fmt: skip


class _Connection(H11Protocol):
    """Limits the time to send a whole request, and the time to read the answer."""

    _end: asyncio.TimerHandle | None = None
    _answering = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(PART)
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Starts the time limit. An answer that is sent at the reader's pace is paused most of the time. When the time
        is over, such an answer is aborted; one that was sent completely meanwhile, or an event stream that flows again,
        is not."""
        super().pause_writing()
        if self._end is None:
            self._end = self.loop.call_later(PATIENCE, self._end_if_paused)

    def _end_if_paused(self) -> None:
        self._end = None
        if self.flow.write_paused:
            self.transport.abort()
        else:
            self._set_timer()

    def on_response_complete(self) -> None:
        if not self.flow.write_paused:  # else the next answer, of a request that has arrived, waits without a limit
            self._rest()
        super().on_response_complete()
        self._set_timer()

    def _set_timer(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and not self._answering:
            self._rest()
            if self.flow.write_paused:  # by the answer before, so pause_writing() is not called again
                self._end = self.loop.call_later(PATIENCE, self._end_if_paused)
        elif not answering and self._end is None:
            # Not close(), which waits for a client that does not read.
            self._end = self.loop.call_later(PATIENCE, self.transport.abort)
        self._answering = answering

    def _rest(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None


class HttpServer:
    """Answers from the destinations' status objects."""

    def __init__(self, address: tuple[str, int], facts: Facts, options: Options | None = None) -> None:
        self._address, self._facts, self._options = address, facts, options or Options()
        self._history = History(facts)
        self._events = Events(facts, self._history)
        self._server: _Server | None = None
        self._metrics: Metrics | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        """The port it listens on, also if port 0 let the system choose; 0 while it does not listen."""

    async def start(self) -> None:
        """Starts to listen. Raises HttpError."""
        host, port = self._address
        options, facts = self._options, self._facts
        hosts = Hosts(host, options.allowed_hosts, await machine_names())
        try:
            listening = await _listen(host, port)
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0, "change [http] listen")
            raise HttpError(f"HTTP can't listen on {host}:{port}: {_why(error)}", remedy=remedy) from error
        self.port = int(listening.getsockname()[1])
        self._metrics = metrics = Metrics(facts)
        access = Access(options.token, allow_plain=options.allow_plain)
        app = make_app(facts, access, metrics, self._history, self._events)
        config = uvicorn.Config(
            limited(app, hosts),
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            listening.close()
            raise HttpError(
                f"[http] tls_certificate {options.certificate} and tls_key {options.key} can't be used: {error}",
                remedy="both are PEM files that the daemon may read, and belong together",
            ) from error
        self._server = server = _Server(config)
        serving = asyncio.create_task(server.serve([listening]), name="http")
        self._tasks = [serving]
        async with asyncio.timeout(_START_LIMIT):
            while not server.started and not serving.done():  # noqa: ASYNC110  (it has no event)
                await asyncio.sleep(0.005)
        self._tasks += [
            asyncio.create_task(facts.delay.run(), name="loop delay"),
            asyncio.create_task(self._history.run(), name="history"),
        ]

    async def close(self) -> None:
        """Stops listening; safe to call twice."""
        self._events.end()
        if self._server is not None:
            self._server.end()
            await asyncio.wait(self._tasks[:1], timeout=_END_LIMIT)
        await tasks.cancel(*self._tasks)
        if self._metrics is not None:
            await self._metrics.close()
        self._server, self._tasks, self.port = None, [], 0


async def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    return runtime.current().listen(family, address)


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    # asyncio wraps the system's text in a longer sentence.
    return os.strerror(error.errno).lower() if error.errno else str(error)
