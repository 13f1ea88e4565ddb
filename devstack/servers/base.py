"""The base of a kind of server: its installation, and handles for new instances; TLS files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from devstack.cache import Cache
from devstack.server import Cluster, Server

Handle = Server | Cluster


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of the servers. `ca`: the CA of the clients' certificates and the servers'; None: clients need none."""

    key_and_certificate: Path
    ca: Path | None = None


class Kind(ABC):
    """One kind of server; the registry in devstack.servers holds one instance of each."""

    name: str
    version: str

    @abstractmethod
    def install(self, cache: Cache) -> None:
        """Downloads and unpacks what is needed, unless it exists."""

    @abstractmethod
    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> Handle:
        """Returns a handle with the default settings, not started yet; `port=None` picks a free one."""
