"""Redis from Debian bookworm, unpacked into the cache."""

from __future__ import annotations

import socket
from pathlib import Path

from devstack import apt
from devstack.cache import Cache
from devstack.server import Server
from devstack.servers.base import Kind

SUITE = "bookworm"
PACKAGES = ("redis-server",)
WITHOUT = ("lsb-base", "sysvinit-utils", "init-system-helpers")
# redis-server itself is a link to this one, which chooses its role by its name
PROGRAM = "usr/bin/redis-check-rdb"


def answers(host: str, port: int) -> bool:
    """Returns whether a Redis answers PING."""
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


class RedisServer(Server):
    """One Redis without a password, which stores nothing on disk."""

    def __init__(self, prefix: apt.Prefix, name: str, directory: Path, port: int | None) -> None:
        super().__init__(name, directory, port)
        self._prefix = prefix

    @property
    def url(self) -> str:
        """Returns the URL for Redis clients."""
        return f"redis://{self.address}/0"

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "url": self.url}

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)

    def command(self) -> list[str]:
        loader, *words = self._prefix.argv("usr/bin/redis-server")
        options = ["--bind", self.host, "--port", str(self.port), "--dir", str(self.datadir), "--save", ""]
        return [loader, "--argv0", "redis-server", *words, *options, "--daemonize", "no"]

    def is_ready(self) -> bool:
        return answers(self.host, self.port)


class Redis(Kind):
    """Redis."""

    name = "redis"
    version = "7.0"

    def _prefix(self, cache: Cache) -> apt.Prefix:
        return apt.install(cache, self.name, SUITE, PACKAGES, (), PROGRAM, WITHOUT)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> RedisServer:
        return self.server(cache, name, directory, port)

    def server(self, cache: Cache, name: str, directory: Path, port: int | None) -> RedisServer:
        """Returns a handle for a server."""
        return RedisServer(self._prefix(cache), name, directory, port)
