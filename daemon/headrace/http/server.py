"""The HTTP side of the daemon: /health, /health/{destination}, /ready and /metrics."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web

from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError
from headrace.http.health import describe, health, ready
from headrace.http.loop_delay import LoopDelay
from headrace.http.metrics import Metrics
from headrace.ports.cluster import ClusterCounts


class HttpError(HeadraceError):
    """The HTTP server can't listen where it is told to."""

    retriable = False


class HttpServer:
    """Answers from the destinations' status objects, which their actors write on the same loop; `counts` are those of
    the ZooKeeper session, where there is one."""

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
        self._runner: web.AppRunner | None = None
        self._measuring: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to listen. Raises HttpError."""
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/health/{destination}", self._health_of_one)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._get_metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        host, port = self._address
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.close()
            raise HttpError(f"HTTP can't listen on {host}:{port}: {_why(error)}", remedy=_remedy(error)) from error
        self._measuring = asyncio.create_task(self._delay.run(self._statuses.values()), name="loop delay")

    @property
    def port(self) -> int:
        """The port it listens on, also when port 0 let the system choose; 0 while it does not listen."""
        addresses = self._runner.addresses if self._runner else []
        return int(addresses[0][1]) if addresses else 0

    async def close(self) -> None:
        """Stops listening; safe to call twice."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.wait([self._measuring])
            self._measuring = None
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        return _json(*health(self._statuses, self._node, self._config_errors))

    async def _health_of_one(self, request: web.Request) -> web.Response:
        name = request.match_info["destination"]
        status = self._statuses.get(name)
        if status is None:
            return _json(404, {"error": f"there is no destination {name}", "destinations": sorted(self._statuses)})
        return _json(200 if status.state.healthy else 503, {"destination": name, **describe(status)})

    async def _ready(self, request: web.Request) -> web.Response:
        return _json(*ready(self._statuses, request.query.get("destination", "")))

    async def _get_metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )


def _json(code: int, body: dict[str, Any]) -> web.Response:
    return web.Response(
        status=code,
        body=orjson.dumps(body, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE),
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def _why(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    # asyncio wraps the system's words in a longer sentence of its own.
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _remedy(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program, perhaps another headrace, listens there: stop it or change [http] listen"
    if error.errno == errno.EACCES:
        return "ports below 1024 need a privilege: change [http] listen"
    return "change [http] listen"
