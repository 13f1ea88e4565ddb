"""The base of a kind of server: how it is installed, and how a handle for a new instance is made; TLS files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from devstack.cache import Cache
from devstack.server import Cluster, Server

Handle = Server | Cluster


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of the servers. `ca`: whose certificates clients have to show; None: they need none."""

    key_and_certificate: Path
    ca: Path | None = None


class Kind(ABC):
    """One kind of server; the registry in devstack.servers holds one instance of each."""

    name: str
    version: str

    @abstractmethod
    def install(self, cache: Cache) -> None:
        """Download and unpack what is needed, unless it is there."""

    @abstractmethod
    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> Handle:
        """A handle with the default settings, not started yet; `port=None` picks a free one."""
