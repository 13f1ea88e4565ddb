"""The limits of every request: its host, the size of its body, and headers that keep browsers from guessing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import orjson

from headrace.http.hosts import Hosts

LARGEST = 64 * 1024
"""Maximum bytes of a request's body."""
PATIENCE = 10.0
"""Maximum seconds for a request with its headers, for a handshake, and for a client to read what was sent."""
CONNECTIONS = 256
"""Maximum number of connections, if there are descriptors for more."""
PART = 64 * 1024
"""Bytes of an answer that are handed to a connection at once."""
UNDER_WAY = 64 * 1024 * 1024
"""Maximum bytes of all larger answers that are being sent."""

HEAD = "headrace.head"
"""Marks the scope of a HEAD request, which is passed on as GET."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


class _Refused(Exception):
    """Status and sentence, and optionally the section that says more."""


def limited(app: App, hosts: Hosts) -> App:
    """Returns the application with these limits."""

    turns, bodies = _Turns(), _Bodies()

    async def outer(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        start: Message = {}

        async def out(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
                start.update(message)  # goes out with the body, which may be refused
                return
            body = message.get("body", b"")
            last = max(0, len(body) - 1) // PART * PART
            if last:
                await turns.next()
            with bodies.held(body, begins=bool(start)):
                if start:
                    await send({**start})
                    start.clear()
                for at in range(0, last, PART):
                    await send({**message, "body": body[at : at + PART], "more_body": True})
                    await asyncio.sleep(0)
                await send({**message, "body": body[last:]})

        try:
            if refusal := hosts.refusal(scope):
                raise _Refused(421, str(refusal), refusal.help)
            given: list[Message] = [{"type": "http.request", "body": await _body(receive), "more_body": False}]

            async def again() -> Message:
                return given.pop() if given else await receive()

            await turns.next()
            # The server sends only the headers of an answer to HEAD.
            head = scope["method"] == "HEAD"
            await app({**scope, "method": "GET", HEAD: True} if head else scope, again, out)
        except _Refused as refused:
            status, *said = refused.args
            page = orjson.dumps(dict(zip(("error", "help"), said, strict=False)))
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(page))]
            headers += [(b"connection", b"close"), *([(b"retry-after", b"10")] if status == 503 else [])]
            await out({"type": "http.response.start", "status": status, "headers": headers})
            await out({"type": "http.response.body", "body": page})

    return outer


class _Turns:
    """Lets one request through in each turn of the loop: however many come at once, each has a turn of its own."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        async with self._lock:
            await asyncio.sleep(0)


class _Bodies:
    """The large bodies that are being sent. A body that is sent to several clients counts once."""

    def __init__(self) -> None:
        self._readers: dict[int, int] = {}
        self._bytes = 0

    @contextmanager
    def held(self, body: bytes, *, begins: bool) -> Iterator[None]:
        """Counts the body while the context lasts. Raises _Refused if it would be too much and an answer `begins` with
        it: a stream of events continues."""
        if len(body) <= PART:
            yield
            return
        if not self._readers.get(id(body)):
            if begins and self._bytes + len(body) > UNDER_WAY:
                raise _Refused(503, "too many bytes of answers are under way: ask again")
            self._bytes += len(body)
        self._readers[id(body)] = self._readers.get(id(body), 0) + 1
        try:
            yield
        finally:
            self._readers[id(body)] -= 1
            if not self._readers[id(body)]:
                del self._readers[id(body)]
                self._bytes -= len(body)


async def _body(receive: Receive) -> bytes:
    """Returns the whole body of a request. Raises _Refused."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await receive()
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > LARGEST:
                    raise _Refused(413, f"a request has at most {LARGEST:,} bytes")
                if not message.get("more_body"):
                    return b"".join(parts)
    except TimeoutError:
        raise _Refused(408, f"the request did not come within {PATIENCE:g} s") from None
