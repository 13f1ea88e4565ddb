"""The demo's search page: one file over HTTP, the hits of a search as they change, and edits of rows."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pymysql
from aiohttp import web

from demo import edit
from demo.search import Hit, prices, search
from devstack import ports
from devstack.servers.sql import SqlServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError, TransportError

PAGE = Path(__file__).with_name("page.html")
SHOWN = 20
"""Hits."""
POLL_SECONDS = 0.2
STREAMS = 8
"""Pages that are followed at the same time."""
MOST_BYTES = 16 * 1024
"""Of an edit."""
START_SECONDS = 10.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SearchPage:
    """Serves the page on loopback, in a thread of its own, until it is left."""

    def __init__(self, cluster: Cluster, source: SqlServer) -> None:
        self._cluster, self._source = cluster, source
        self._port = ports.free_port()
        self._html = PAGE.read_bytes()
        self._policy = content_policy(self._html.decode())
        self._streams = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._work, name="search-page", daemon=True)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{ports.HOST}:{self._port}/"

    def __enter__(self) -> SearchPage:
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            raise OSError(f"the search page does not listen on {ports.HOST}:{self._port}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(START_SECONDS)

    def _work(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        application = web.Application(middlewares=[self._guard], client_max_size=MOST_BYTES)
        application.add_routes(
            [web.get("/", self._page), web.get("/events", self._events), web.post("/edit", self._edit)]
        )
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, ports.HOST, self._port).start()
            self._started.set()
            await self._ended.wait()
        finally:
            await runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Other pages in the same browser can't use this one, neither under another name nor by a form of theirs."""
        ours = {f"{name}:{self._port}" for name in (ports.HOST, "localhost")}
        origin = request.headers.get("Origin")
        if request.host not in ours or (origin is not None and origin.removeprefix("http://") not in ours):
            return self._kept(_refusal(403, "this page is for the browser of this machine"))
        return self._kept(await handler(request))

    def _kept(self, response: web.StreamResponse) -> web.StreamResponse:
        if not response.prepared:
            response.headers.update(self._headers())
        return response

    def _headers(self) -> dict[str, str]:
        return {
            "Content-Security-Policy": self._policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._html, content_type="text/html", charset="utf-8")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: what is found, at once and whenever it has changed."""
        if self._streams >= STREAMS:
            return _refusal(503, f"{STREAMS} pages are open already")
        self._streams += 1
        try:
            response = web.StreamResponse(headers={**self._headers(), "Content-Type": "text/event-stream"})
            await response.prepare(request)
            await self._follow(request, response, request.query.get("q", ""))
        except ConnectionResetError:
            pass  # the page has been left
        finally:
            self._streams -= 1
        return response

    async def _follow(self, request: web.Request, response: web.StreamResponse, text: str) -> None:
        reported = ""
        while not self._ended.is_set() and request.transport is not None and not request.transport.is_closing():
            try:
                found = await asyncio.to_thread(search, self._cluster, text, SHOWN)
            except (ApiError, TransportError) as error:
                name, body = "event: trouble\n", json.dumps(f"Elasticsearch: {error}")
                event = name + body
            else:
                at, shown = time.monotonic(), {"total": found.total, "hits": [_shown(hit) for hit in found.hits]}
                name, event = "", json.dumps(shown)
                body = json.dumps({"at": at, **shown})
            if event != reported:
                await response.write(f"{name}data: {body}\n\n".encode())
                reported = event
            await asyncio.sleep(POLL_SECONDS)

    async def _edit(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":
            return _refusal(415, "an edit is JSON")
        try:
            wanted = edit.parse(await request.read())
            done = await asyncio.to_thread(edit.apply, self._source, wanted)
        except ValueError as error:
            return _refusal(400, str(error))
        except pymysql.MySQLError as error:
            return _refusal(503, f"the database: {error.args[-1] if error.args else error}")
        return web.json_response(done._asdict())


def _refusal(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status)


def _shown(hit: Hit) -> dict[str, Any]:
    """What the page needs of a hit: `row` is what it compares, the rest are texts in parts."""
    source = hit.source
    row = {
        "id": source["id"],
        "city": source["city_name"],
        "on_sale": source["is_on_sale"],
        "hot": source["is_hot"],
        "detail": source["detail"],
        "item_name": source.get("item_name") or "",
        "type": (source.get("type") or {}).get("name"),
        "description": source.get("item_description"),
        "prices": [{**one, "price": f"{one['price']:.2f}"} for one in prices(source)],
    }
    names = {"item_name": "item_name", "type": "type.name", "description": "item_description"}
    return {"id": hit.id, "row": row, **{name: hit.marked.get(field, []) for name, field in names.items()}}


def content_policy(html: str) -> str:
    """Nothing but what stands in the page itself, and this server."""

    def digest(tag: str) -> str:
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {digest('script')}",
            f"style-src {digest('style')}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ]
    )
