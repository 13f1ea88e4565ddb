"""The HTTP side of the daemon: it listens, with TLS or without, and serves the paths of headrace.http.api."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace import tasks
from headrace.destination.loop_delay import LoopDelay
from headrace.errors import HeadraceError
from headrace.http.access import Access
from headrace.http.api import make_app
from headrace.http.events import Events
from headrace.http.facts import Facts, Options
from headrace.http.history import History
from headrace.http.hosts import Hosts, machine_names
from headrace.http.limits import CONNECTIONS, PATIENCE, limited
from headrace.http.metrics import Metrics

_REMEDIES = {
    errno.EADDRINUSE: "another program, perhaps another headrace, listens there: stop it or change [http] listen",
    errno.EACCES: "ports below 1024 need a privilege: change [http] listen",
}
_START_LIMIT = 10.0
_END_LIMIT = 3.0


class HttpError(HeadraceError):
    """The HTTP server can't listen where it is told to."""

    reason = "http"
    retriable = False


class _Server(uvicorn.Server):
    """Leaves signals to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """Has so long to bring a whole request, and ends at once when it is one too many: sources and sinks need
    descriptors too."""

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.cycle and not self.cycle.response_complete:
            self._rest()
        elif self._end is None:
            self._end = self.loop.call_later(PATIENCE, self.transport.close)

    def _rest(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None


class HttpServer:
    """Answers from the destinations' status objects."""

    def __init__(self, address: tuple[str, int], facts: Facts, options: Options | None = None) -> None:
        self._address, self._facts, self._options = address, facts, options or Options()
        self._delay, self._history = LoopDelay(), History(facts.statuses)
        self._events = Events(facts, self._history)
        self._server: _Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.port = 0
        """The port it listens on, also when port 0 let the system choose; 0 while it does not listen."""

    async def start(self) -> None:
        """Begins to listen. Raises HttpError."""
        host, port = self._address
        options, facts = self._options, self._facts
        hosts = Hosts(host, options.allowed_hosts, await machine_names())
        try:
            listening = await _listen(host, port)
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0, "change [http] listen")
            raise HttpError(f"HTTP can't listen on {host}:{port}: {_why(error)}", remedy=remedy) from error
        self.port = int(listening.getsockname()[1])
        metrics = Metrics(facts, self._delay)
        access = Access(options.token, allow_plain=options.allow_plain)
        app = make_app(facts, access, metrics, self._history, self._events)
        config = uvicorn.Config(
            limited(app, hosts),
            interface="asgi3",
            http=_Connection,
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
            # Workers measure the delay of their own loops, which is what their destinations see.
            asyncio.create_task(
                self._delay.run(facts.statuses.values() if facts.workers is None else ()), name="loop delay"
            ),
            asyncio.create_task(self._history.run(), name="history"),
        ]

    async def close(self) -> None:
        """Stops listening; safe to call twice."""
        self._events.end()
        if self._server is not None:
            self._server.should_exit = True
            await asyncio.wait(self._tasks[:1], timeout=_END_LIMIT)
        await tasks.cancel(*self._tasks)
        self._server, self._tasks, self.port = None, [], 0


async def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=family == socket.AF_INET6)


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    # asyncio wraps the system's words in a longer sentence of its own.
    return os.strerror(error.errno).lower() if error.errno else str(error)
