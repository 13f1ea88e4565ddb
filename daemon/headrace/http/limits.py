"""What every request passes: for whom it is meant, its body's size, and headers that keep browsers from guessing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from headrace.http.hosts import Hosts

LARGEST = 64 * 1024
"""Bytes of a request's body."""
PATIENCE = 10.0
"""Seconds that it may take, and its headers."""
CONNECTIONS = 256
"""At one time."""

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
    """Status and sentence, perhaps with the section that says more."""


def limited(app: App, hosts: Hosts) -> App:
    """The application behind these limits."""

    async def outer(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            if refusal := hosts.refusal(scope):
                raise _Refused(421, str(refusal), refusal.help)
            body = await _body(receive)
        except _Refused as refused:
            status, *said = refused.args
            page = orjson.dumps(dict(zip(("error", "help"), said, strict=False)))
            kind = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(page))]
            await headed(
                {"type": "http.response.start", "status": status, "headers": [*kind, (b"connection", b"close")]}
            )
            await headed({"type": "http.response.body", "body": page})
            return
        if scope["method"] == "HEAD":  # the server sends the headers alone
            scope = {**scope, "method": "GET"}
        given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return given.pop() if given else await receive()

        await app(scope, again, headed)

    return outer


async def _body(receive: Receive) -> bytes:
    """The whole body of a request. Raises _Refused."""
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
