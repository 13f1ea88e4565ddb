"""Connects to a ZooKeeper server, plain or encrypted, in kazoo's thread: within a time limit, and without leaking
sockets."""

from __future__ import annotations

import errno
import socket
from typing import Any

from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.ports.lock_service import ServiceError
from headrace.tls import client_context


class Connector:
    """Replaces kazoo's own function, which gives each server the whole session timeout to accept, so that one dead
    machine costs the session, and which leaves a socket open when an encrypted connection fails.

    Raises LockServiceError if a file of the TLS settings can't be used."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._limit = max(1.0, settings.session_timeout / 2 / len(settings.hosts))
        self._context = None
        if settings.tls == "required":
            self._context = client_context("[zookeeper]", ServiceError, *settings.tls_files)

    def __call__(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> socket.socket:
        """Returns a connected socket. Raises OSError; kazoo tries the next server then."""
        limit = self._limit if timeout is None else min(timeout, self._limit)
        try:
            plain = socket.create_connection(address, limit)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is None:
                    return plain
                return self._context.wrap_socket(plain, server_hostname=hostname or address[0])
            except BaseException:
                plain.close()
                raise
        except TimeoutError as error:  # kazoo shows the strerror only, and Python's has none
            what = "connection" if self._context is None else "encrypted connection"
            raise TimeoutError(errno.ETIMEDOUT, f"no {what} within {limit:g} s") from error
