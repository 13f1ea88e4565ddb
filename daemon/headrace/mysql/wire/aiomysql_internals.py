"""Uses of aiomysql below its public interface, which are only here: it has no replication commands, gives no access to
its socket, and sends a password to any server that asks for it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiomysql
from pymysql.constants import CLIENT

KNOWN_VERSIONS = {"aiomysql": ("0.3.2",)}
"""Versions that all of this was tested with, on real servers. It relies on the connection's _writer and _reader with
its _buffer, on _execute_command(), _read_bytes() and _read_ok_packet(), and on how a login goes: _connect() reads the
greeting, sets server_capabilities and _server_auth_plugin, then calls _request_authentication(), which switches to TLS
if _ssl_context is set and the server can, and _process_auth() if the server asks for another plugin."""

_GIVES_AWAY = ("mysql_clear_password", "mysql_old_password")
"""Plugins with which the server can read the password, or its equivalent."""


class LoginRefused(Exception):
    """We refuse a login that would disclose the password. The text says why, `remedy` is the remedy."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


class AnswerTooLarge(Exception):
    """The server sends more than is accepted for one answer."""


class _GuardedConnection(aiomysql.Connection):  # type: ignore[misc]
    """Checks the state of the connection, rather than what was requested: a greeting without TLS, which anybody between
    can make from one with it, ends the login if TLS is required."""

    def __init__(self, *, tls_required: bool, answer_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._tls_required = tls_required
        self._answer_bytes = self._left = answer_bytes
        context: ssl.SSLContext | None = options.get("ssl")
        self._verified = context is not None and context.verify_mode is ssl.CERT_REQUIRED

    async def _request_authentication(self) -> None:
        if not self.server_capabilities & CLIENT.SSL:
            if self._tls_required:
                raise LoginRefused(
                    "the server offers no TLS, or something on the network removes the offer",
                    "have it offer TLS (check its tls_version, ssl_cert and ssl_key); or set "
                    'tls = "preferred", which goes without TLS when there is none, or tls = "disabled"',
                )
            self._ssl_context = None
            self.client_flag &= ~CLIENT.SSL  # a server without TLS treats the flag as a bad handshake
        if not self.server_capabilities & CLIENT.PLUGIN_AUTH:
            raise LoginRefused("the server knows no authentication plugins", "take MySQL 5.6 or later, or MariaDB")
        self._require_safe(str(self._server_auth_plugin))
        try:
            await super()._request_authentication()
        except BaseException:
            if (transport := transport_of(self)) is not None:
                transport.abort()  # aiomysql would close it, and the end of TLS waits for the server's answer
            raise

    async def _process_auth(self, plugin_name: bytes, auth_packet: Any) -> Any:
        self._require_safe(plugin_name.decode("ascii", "replace"))
        return await super()._process_auth(plugin_name, auth_packet)

    async def _execute_command(self, command: int, sql: str | bytes) -> None:
        self._left = self._answer_bytes
        await super()._execute_command(command, sql)

    async def _read_bytes(self, num_bytes: int) -> bytes:
        self._left -= num_bytes
        if self._left < 0:
            raise AnswerTooLarge
        data: bytes = await super()._read_bytes(num_bytes)
        return data

    def _require_safe(self, plugin: str) -> None:
        encrypted = self._writer.transport.get_extra_info("ssl_object") is not None
        will_be = self._ssl_context is not None  # before TLS begins: nothing of the login is sent before it has
        if plugin in _GIVES_AWAY and not (self._verified and (encrypted or will_be)):
            raise LoginRefused(
                f"the server asks for the password by {plugin}, which gives it away unless the connection is encrypted "
                "and the server's certificate is checked",
                'give the account another plugin; or set tls = "verified"',
            )


async def connect(*, tls_required: bool, answer_bytes: int, **options: Any) -> aiomysql.Connection:
    """Connects and logs in, as aiomysql.connect() does with these options. Accepts this many bytes for the login and
    for each answer, as received; beyond that it raises AnswerTooLarge. Raises LoginRefused, and the errors of
    connect()."""
    connection = _GuardedConnection(tls_required=tls_required, answer_bytes=answer_bytes, **options)
    try:
        await connection._connect()
    except BaseException:  # aiomysql leaves its socket open if it is cancelled during the login
        connection.close()
        raise
    return connection


def transport_of(connection: Any) -> asyncio.Transport | None:
    """Returns the transport of an aiomysql connection; None once that is closed."""
    writer = connection._writer
    return None if writer is None else writer.transport


def has_unread(connection: Any) -> bool:
    """Returns whether bytes have arrived that no query has read."""
    return bool(connection._reader._buffer)


async def run_command(connection: Any, command: int, body: bytes) -> None:
    """Sends a command of the protocol, and reads the server's OK. Raises MySQLError, OSError, IncompleteReadError."""
    await connection._execute_command(command, body)
    await connection._read_ok_packet()
