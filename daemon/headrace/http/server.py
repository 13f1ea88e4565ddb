"""The HTTP side of the daemon: /health, /health/{destination}, /ready and /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, unquote

import orjson
import uvicorn

from headrace import tasks
from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError
from headrace.http.commands import take_command
from headrace.http.health import describe, health, ready
from headrace.http.metrics import LoopDelay, Metrics
from headrace.ports.cluster import ClusterCounts

_JSON, _TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
_REMEDIES = {
    errno.EADDRINUSE: "another program, perhaps another headrace, listens there: stop it or change [http] listen",
    errno.EACCES: "ports below 1024 need a privilege: change [http] listen",
}
_START_LIMIT = 10.0
_END_LIMIT = 3.0

Scope = Mapping[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class HttpError(HeadraceError):
    """The HTTP server can't listen where it is told to."""

    retriable = False


class _Server(uvicorn.Server):
    """Leaves signals to the daemon."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Answers from the destinations' status objects, which their actors write on the same loop; `counts` are those of
    the cluster service, where there is one."""

    def __init__(
        self,
        address: tuple[str, int],
        statuses: Mapping[str, DestinationStatus],
        node: str,
        config_errors: Sequence[str] = (),
        counts: ClusterCounts | None = None,
    ) -> None:
        self._address = address
        self._statuses, self._config_errors = statuses, config_errors
        self._node = node
        self._delay = LoopDelay()
        self._metrics = Metrics(statuses, node, self._delay, config_errors, counts)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self.port = 0
        """The port it listens on, also when port 0 let the system choose; 0 while it does not listen."""

    async def start(self) -> None:
        """Begins to listen. Raises HttpError."""
        host, port = self._address
        try:
            listening = await _listen(host, port)
        except OSError as error:
            remedy = _REMEDIES.get(error.errno or 0, "change [http] listen")
            raise HttpError(f"HTTP can't listen on {host}:{port}: {_why(error)}", remedy=remedy) from error
        self.port = int(listening.getsockname()[1])
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = server = _Server(config)
        self._serving = asyncio.create_task(server.serve([listening]), name="http")
        async with asyncio.timeout(_START_LIMIT):
            while not server.started and not self._serving.done():  # noqa: ASYNC110  (it has no event)
                await asyncio.sleep(0.005)
        self._measuring = asyncio.create_task(self._delay.run(self._statuses.values()), name="loop delay")

    async def close(self) -> None:
        """Stops listening; safe to call twice."""
        await tasks.cancel(self._measuring)
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving], timeout=_END_LIMIT)
            await tasks.cancel(self._serving)
        self._server, self.port = None, 0

    async def _answer(self, scope: Scope, receive: Any, send: Send) -> None:
        """One request, as ASGI has it."""
        if scope["type"] != "http":
            return
        if scope["method"] == "POST":
            code, page = await take_command(scope, receive, self._statuses)
            kind, body = _JSON, _json(page)
        elif scope["method"] not in ("GET", "HEAD"):
            code, kind, body = 405, _JSON, _json({"error": "only GET and POST are answered"})
        else:
            code, kind, body = self._page(unquote(scope["path"]), parse_qs(scope["query_string"].decode("latin-1")))
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _page(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, bytes, bytes]:
        """Status, content type and body."""
        if path == "/metrics":
            return 200, _TEXT, self._metrics.text()
        if path == "/health":
            code, page = health(self._statuses, self._node, self._config_errors)
        elif path == "/ready":
            code, page = ready(self._statuses, query.get("destination", [""])[0])
        elif path.startswith("/health/"):
            code, page = self._health_of_one(path.removeprefix("/health/"))
        else:
            code, page = 404, {"error": "there are /health, /health/DESTINATION, /ready and /metrics"}
        return code, _JSON, _json(page)

    def _health_of_one(self, name: str) -> tuple[int, dict[str, Any]]:
        status = self._statuses.get(name)
        if status is None:
            return 404, {"error": f"there is no destination {name}", "destinations": sorted(self._statuses)}
        return (200 if status.state.healthy else 503), {"destination": name, **describe(status)}


def _json(page: dict[str, Any]) -> bytes:
    return orjson.dumps(page, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


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
