"""The HTTP side of the consumer: /livez, /readyz, /health and /metrics, in a thread of the driver."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import orjson
import uvicorn

from headrace_spark.errors import HttpError
from headrace_spark.status.metrics import Metrics
from headrace_spark.status.status import SILENT, WELL, State, Status

_JSON, _TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
_REMEDIES = {
    errno.EADDRINUSE: "another program, perhaps another headrace-spark, listens there: stop it or change it",
    errno.EACCES: "ports below 1024 need a privilege",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}
_END_LIMIT = 3.0

Send = Callable[[dict[str, Any]], Awaitable[None]]


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Answers from the status. `port` is what it listens on, also where port 0 let the system choose."""

    def __init__(self, address: tuple[str, int], status: Status) -> None:
        """Begins to listen. Raises HttpError."""
        self._status, self._metrics = status, Metrics(status)
        host, port = address
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            listening = socket.create_server(found[0][4][:2], family=found[0][0])
        except OSError as error:
            why = "the host name is not known" if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
            remedy = _REMEDIES.get(error.errno or 0, "")
            remedy = f" ({remedy})" if remedy else ""
            raise HttpError(f"HTTP can't listen on {host}:{port}: {why.lower()}{remedy}; see [http] listen") from error
        self.port = int(listening.getsockname()[1])
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            lifespan="off",
            loop="asyncio",
            proxy_headers=False,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            limit_concurrency=100,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name="http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._server.should_exit = True
        self._thread.join(_END_LIMIT)

    async def _answer(self, scope: Mapping[str, Any], _receive: Any, send: Send) -> None:
        """One request, as ASGI has it."""
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            code, kind, body = 405, _JSON, _json({"error": "only GET is answered"})
        else:
            code, kind, body = self._page(scope["path"])
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _page(self, path: str) -> tuple[int, bytes, bytes]:
        """Status, content type and body."""
        state = self._status.state
        if path == "/metrics":
            return 200, _TEXT, self._metrics.text()
        if path == "/livez":
            silent = self._status.silent
            alive = silent < SILENT
            return (200 if alive else 503), _JSON, _json({"live": alive, "silent_seconds": round(silent, 1)})
        if path == "/readyz":
            ready = state in WELL
            return (200 if ready else 503), _JSON, _json({"ready": ready, "state": state.value})
        if path == "/health":
            well = state in (*WELL, State.STARTING, State.STOPPING)
            return (200 if well else 503), _JSON, _json(self._status.page())
        return 404, _JSON, _json({"error": "there are /livez, /readyz, /health and /metrics"})


def _json(page: dict[str, Any]) -> bytes:
    return orjson.dumps(page, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
