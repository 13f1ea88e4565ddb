"""The HTTP server of a consumer: /livez, /readyz, /health and /metrics, in a thread; and `status`, which queries it."""

from __future__ import annotations

import argparse
import contextlib
import errno
import http.client
import json
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson
import structlog
import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace_common.printable import printable
from headrace_documents.cli import CommandLine
from headrace_documents.errors import ConsumerError

log = structlog.get_logger(__name__)
WELL = ("RUNNING", "CATCHING_UP")
SILENT = 300.0
"""Seconds without a sign of life after which the process counts as stuck."""
_JSON, _TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
_REMEDIES = {
    errno.EADDRINUSE: "another program, perhaps another headrace, listens there: stop it or change it",
    errno.EACCES: "ports below 1024 need a privilege",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}
_END_LIMIT = 3.0
_ASK_LIMIT = 5.0
"""Maximum seconds for an answer of a running consumer."""

Send = Callable[[dict[str, Any]], Awaitable[None]]


class HttpError(ConsumerError):
    """The HTTP server can't listen at the configured address."""


class SilentError(ConsumerError):
    """Nothing answers at the address of [http] listen."""


class Reported(Protocol):
    """The process's report about itself. It is called in the server's thread."""

    @property
    def state(self) -> str:
        """Returns the state. RUNNING and CATCHING_UP are healthy; STARTING and STOPPING are no reason for an alarm."""

    @property
    def silent(self) -> float:
        """Returns the seconds without a sign of life."""

    def page(self) -> dict[str, Any]:
        """Returns the answer of /health."""


class Metrics(Collector):
    """The base of a consumer's metrics, whose names begin with `prefix`. A subclass has collect()."""

    def __init__(self, prefix: str) -> None:
        self._prefix, self._registry = prefix, CollectorRegistry()
        self._registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: no metric is read at the registration."""
        return ()

    def text(self) -> bytes:
        """Returns the answer of /metrics."""
        return generate_latest(self._registry)

    def states(self, now: str, all_of_them: Iterable[str]) -> Metric:
        """Returns the metric of the state."""
        family = GaugeMetricFamily(f"{self._prefix}state", "1 for the present state.", labels=("state",))
        for one in all_of_them:
            family.add_metric((one,), int(one == now))
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        """Returns a metric that only grows."""
        return CounterMetricFamily(f"{self._prefix}{name}", text, value=value)

    def gauge(self, name: str, text: str, value: float) -> Metric:
        """Returns a metric that goes up and down."""
        return GaugeMetricFamily(f"{self._prefix}{name}", text, value=value)


class _Server(uvicorn.Server):
    """Leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Answers from what is reported. `port` is the one it listens on, also if port 0 let the system choose."""

    def __init__(self, address: tuple[str, int], reported: Reported, metrics: Metrics) -> None:
        """Starts to listen. Raises HttpError."""
        self._reported, self._metrics = reported, metrics
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
        log.info("HTTP listens", port=self.port)

    def close(self) -> None:
        """Stops listening."""
        self._server.should_exit = True
        self._thread.join(_END_LIMIT)

    async def _answer(self, scope: Mapping[str, Any], _receive: Any, send: Send) -> None:
        """Answers one ASGI request."""
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
        """Returns status, content type and body."""
        state = self._reported.state
        if path == "/metrics":
            return 200, _TEXT, self._metrics.text()
        if path == "/livez":
            silent = self._reported.silent
            alive = silent < SILENT
            return (200 if alive else 503), _JSON, _json({"live": alive, "silent_seconds": round(silent, 1)})
        if path == "/readyz":
            ready = state in WELL
            return (200 if ready else 503), _JSON, _json({"ready": ready, "state": state})
        if path == "/health":
            well = state in (*WELL, "STARTING", "STOPPING")
            return (200 if well else 503), _JSON, _json(self._reported.page())
        return 404, _JSON, _json({"error": "there are /livez, /readyz, /health and /metrics"})


def _json(page: dict[str, Any]) -> bytes:
    return orjson.dumps(page, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def iso(seconds: float) -> str:
    """Returns a time in seconds since 1970 in the pages' form."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


# -- the command `status` ---------------------------------------------------------------------------------------------


def add_status(line: CommandLine, rows: Callable[[dict[str, Any]], Iterable[tuple[str, str]]]) -> None:
    """Adds the command. `rows` makes names and texts for people from the answer of /health."""

    def call(settings: Any, options: argparse.Namespace) -> int:
        if settings.http.address is None:
            raise SilentError(f"{options.config}: [http] listen is empty, so the consumer can't be asked")
        host, port = settings.http.address
        page = ask(host, port, line.program)
        if options.json:
            print(json.dumps(page, indent=2))
            return 0
        table = list(rows(page))
        width = max(len(name) for name, _ in table)
        print("\n".join(printable(f"{name:<{width}}  {text}") for name, text in table))
        return 0

    command = line.add("status", "ask the running consumer how it is", call)
    command.add_argument("--json", action="store_true", help="print the answer of /health")


def ask(host: str, port: int, program: str) -> dict[str, Any]:
    """Returns the answer of /health. Raises SilentError."""
    connection = http.client.HTTPConnection(host, port, timeout=_ASK_LIMIT)
    try:
        connection.request("GET", "/health")
        page = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise SilentError(
            f"no {program} answers at {host}:{port} ({why.lower()}): is `{program} run` started with this file?"
        ) from None
    finally:
        connection.close()
    if not isinstance(page, dict) or "state" not in page:
        raise SilentError(f"what answers at {host}:{port} is no {program}: see [http] listen")
    return page


def state_rows(page: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the first rows of `status`: the state, and what it waits for."""
    yield "state", f"{page['state']} since {page['since']}"
    for one in page["causes"]:
        tries = f", {one['tries']} tries; {one['waits']} wait" if "tries" in one else ""
        yield "", f"{one['cause']} (for {one['seconds']:.0f} s{tries})"
