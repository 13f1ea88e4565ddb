"""Commands for destinations over HTTP: POST /api/v1/destinations/NAME/snapshot, from this machine alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import orjson

from headrace.destination.status import DestinationStatus
from headrace.errors import HeadraceError

_LARGEST = 64 * 1024
"""Bytes of a command."""
_BEFORE, _AFTER = "/api/v1/destinations/", "/snapshot"
_HERE = frozenset({"localhost", "127.0.0.1", "[::1]"})
Page = tuple[int, dict[str, Any]]


async def take_command(scope: Mapping[str, Any], receive: Any, statuses: Mapping[str, DestinationStatus]) -> Page:
    """Status and body of the answer to one POST, as ASGI has it.

    Nobody has to show who they are, so only programs on this machine are heard, and none of their pages: a browser asks
    before it sends JSON to another site, and names the site that it means.
    """
    headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
    if not _is_here(scope, headers.get(b"host", "")):
        return 403, {"error": "commands are taken from this machine only"}
    if headers.get(b"content-type", "").partition(";")[0].strip() != "application/json":
        return 415, {"error": "the content type of a command is application/json"}
    path = unquote(scope["path"])
    if not (path.startswith(_BEFORE) and path.endswith(_AFTER)):
        return 404, {"error": f"commands go to {_BEFORE}NAME{_AFTER}"}
    name = path.removeprefix(_BEFORE).removesuffix(_AFTER)
    status = statuses.get(name)
    if status is None:
        return 404, {"error": f"there is no destination {name}", "destinations": sorted(statuses)}
    body = await _body(receive)
    if body is None:
        return 413, {"error": f"a command has at most {_LARGEST:,} bytes"}
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return 400, {"error": f"the command is no JSON ({error})"}
    if not isinstance(raw, dict):
        return 400, {"error": "the command is no JSON object"}
    if status.command is None:
        return 409, {"error": _not_here(status), "state": status.state.value, "holder": status.holder}
    try:
        return 200, await status.command(raw)
    except HeadraceError as error:
        return 400 if not error.retriable else 503, {"error": error.told(name)}


def _not_here(status: DestinationStatus) -> str:
    if status.holder:
        return f"{status.name} is run by {status.holder}: give the command there"
    why = f" ({status.message})" if status.message else ""
    return f"{status.name} does not stream now: it is {status.state.value}{why}"


def _is_here(scope: Mapping[str, Any], host: str) -> bool:
    """Whether the request comes from this machine, and is meant for it: a connection to an own address has that at both
    ends."""
    client, server = scope.get("client"), scope.get("server")
    if client is None or server is None:
        return False
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    try:
        near = ipaddress.ip_address(client[0]).is_loopback or client[0] == server[0]
    except ValueError:
        return False
    return near and name.lower() in {*_HERE, server[0]}


async def _body(receive: Any) -> bytes | None:
    """The body of a request; None when it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        part = message.get("body", b"")
        size += len(part)
        if size > _LARGEST:
            return None
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)
