"""Sends commands to the daemon on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.cli.common import CommandRefused, destination

if TYPE_CHECKING:
    import http.client

    from headrace.settings.daemon import HttpSettings
    from headrace.settings.destination import Settings

ANSWER = 90.0
"""Seconds that the daemon may take: a run ends in order before some commands are executed."""
_EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


async def command(
    settings: Settings, name: str, action: str, body: dict[str, Any], *, limit: float | None = ANSWER
) -> dict[str, Any]:
    """Returns the daemon's answer to a command about a destination within `limit` seconds. Raises CommandRefused and
    TokenError. If cancelled, it closes the connection, so that the daemon abandons the command too."""
    from headrace.http.token import TokenError, command_token

    if settings.destinations:  # else they were not read, and the daemon knows them
        destination(settings, name)
    try:
        token = command_token(settings.http, os.environ.get("HEADRACE_TOKEN", ""))
    except TokenError:
        await health(settings)  # a daemon that never ran has made no token: report that none answers
        raise
    path = f"/api/v1/destinations/{quote(name, safe='')}/{action}"
    code, answer = await _exchanged(settings.http, "POST", path, body, token, limit)
    if code == 401:
        raise TokenError(
            "the daemon does not know the token", remedy="check [http] token, token_file and HEADRACE_TOKEN"
        )
    if code != 200:
        refusal = CommandRefused(str(answer.get("error", f"the daemon answers with {code}")))
        refusal.section = str(answer.get("help", "")).rpartition("#")[2]
        raise refusal
    return answer


async def health(settings: Settings) -> dict[str, Any]:
    """Returns the daemon's report about all destinations, as in /health. Raises CommandRefused."""
    return (await _exchanged(settings.http, "GET", "/health", None, "", ANSWER))[1]


async def runs(settings: Settings, name: str) -> bool:
    """Returns whether the daemon of this configuration answers, and runs the destination or waits to."""
    if settings.http.address is None:
        return False
    try:
        page = await health(settings)
    except CommandRefused:
        return False
    known = page.get("destinations", {}).get(name, {})
    return page.get("node") == settings.daemon.node and known.get("state") not in (None, "STANDBY", "STOPPED")


async def health_of(settings: Settings, name: str) -> dict[str, Any]:
    """Returns the same for one destination. Raises CommandRefused."""
    destination(settings, name)
    page = (await health(settings)).get("destinations", {}).get(name)
    if page is None:
        raise CommandRefused(
            f"the daemon does not know {name}", remedy="it takes files over that are right; see /health"
        )
    return dict(page)


async def _exchanged(
    settings: HttpSettings, method: str, path: str, body: dict[str, Any] | None, token: str, limit: float | None
) -> tuple[int, dict[str, Any]]:
    """Returns the answer. Not by asyncio.to_thread(): an interrupted command would wait for the thread's end."""
    connection = _connection(settings, limit)
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[tuple[int, dict[str, Any]]] = loop.create_future()

    def note(answer: tuple[int, dict[str, Any]] | None, error: Exception | None) -> None:
        if answered.done():
            return
        if answer is not None:
            answered.set_result(answer)
        elif error is not None:
            answered.set_exception(error)

    def run() -> None:
        answer, failure = None, None
        try:
            answer = _exchange(connection, settings, method, path, body, token)
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(note, answer, failure)

    threading.Thread(target=run, name="http", daemon=True).start()  # noqa: TID251 - a command
    try:
        return await answered
    finally:
        if not answered.done() or answered.cancelled():
            _abort(connection)


def _abort(connection: http.client.HTTPConnection) -> None:
    """Closes a connection that another thread waits on."""
    if (sock := connection.sock) is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _exchange(
    connection: http.client.HTTPConnection,
    settings: HttpSettings,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    token: str,
) -> tuple[int, dict[str, Any]]:
    import http.client

    import orjson

    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"} if body is not None else {}
    host, port = connection.host, connection.port
    try:
        connection.request(method, path, orjson.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        answer = orjson.loads(response.read())
        return response.status, answer if isinstance(answer, dict) else {}
    except TimeoutError as error:
        raise CommandRefused(
            f"the daemon at {host}:{port} has not answered within {ANSWER:g} s: it may still do what it was asked",
            remedy="check 'headrace status'",
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise CommandRefused(
            f"no daemon answers at {host}:{port} ({error})",
            remedy="the command is for the daemon that runs on this machine with this configuration: start it",
        ) from error
    finally:
        connection.close()


def _connection(settings: HttpSettings, limit: float | None) -> http.client.HTTPConnection:
    """Returns a connection, not opened yet. Raises CommandRefused."""
    import http.client
    import ssl

    from headrace_common.tls import trusting

    if settings.address is None:
        raise CommandRefused(
            "[http] listen is off, and the daemon takes commands there",
            remedy="turn it on, or write the command into headrace.signal on the source: docs/snapshots.md",
        )
    host, port = settings.address
    host = _EVERYWHERE.get(host, host)
    if settings.tls_certificate is None:
        return http.client.HTTPConnection(host, port, timeout=limit)
    # The certificate is known, but its name may not be known to this machine. Of a chain only the first is the
    # daemon's: its authority has signed others.
    text = settings.tls_certificate.read_text("ascii", "replace")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = f"{begin}{text.partition(begin)[2].partition(end)[0]}{end}"
    context = trusting(text=first)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(host, port, timeout=limit, context=context)
