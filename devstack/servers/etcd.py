"""etcd from Debian, unpacked into the cache: one node or a cluster of three."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path

from devstack import apt, ports
from devstack.cache import Cache
from devstack.errors import BadRequest
from devstack.server import Cluster, Server
from devstack.servers.base import Kind, Tls

# bookworm's 3.4.23 lets a leader that was replaced end leases
SUITE = "trixie"
PACKAGES = ("etcd-server",)
WITHOUT = ("adduser", "init-system-helpers", "lsb-base", "sysvinit-utils", "pipexec")
PROGRAM = "usr/bin/etcd"


class Node(Server):
    """One etcd. Health and metrics have a separate port, without TLS."""

    def __init__(self, prefix: apt.Prefix, name: str, directory: Path, port: int | None, tls: Tls | None) -> None:
        super().__init__(name, directory, port)
        self.peer_port, self.metrics_port = ports.free_port(), ports.free_port()
        self.peers: list[Node] = [self]
        self._prefix, self._tls = prefix, tls

    @property
    def peer(self) -> str:
        """Returns the URL for the other nodes."""
        return f"http://{self.host}:{self.peer_port}"

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)

    def command(self) -> list[str]:
        client = f"{'https' if self._tls else 'http'}://{self.address}"
        options = {
            "name": self.name,
            "data-dir": str(self.datadir),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": self.peer,
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": ",".join(f"{one.name}={one.peer}" for one in self.peers),
            "listen-metrics-urls": f"http://{self.host}:{self.metrics_port}",
            "log-level": "warn",
        }
        if self._tls is not None:
            options |= dict.fromkeys(("cert-file", "key-file"), str(self._tls.key_and_certificate))
            options |= {"trusted-ca-file": str(self._tls.ca), "client-cert-auth": "true"} if self._tls.ca else {}
        words = [f"--{key}={value}" for key, value in options.items()]
        return [*self._prefix.argv(PROGRAM), *words, "--unsafe-no-fsync"]

    def metric(self, name: str) -> float:
        """Returns a metric without labels; 0 if the server gives none."""
        lines = self._read("metrics").splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def is_ready(self) -> bool:
        return '"health":"true"' in self._read("health")

    def _read(self, page: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.metrics_port}/{page}", timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""


class EtcdCluster(Cluster):
    """One or more nodes as one service."""

    def __init__(self, name: str, nodes: Sequence[Node]) -> None:
        super().__init__(name, list(nodes))
        self.nodes = list(nodes)

    @property
    def leader(self) -> Node | None:
        """Returns the present leader, or None during an election."""
        return next((node for node in self.nodes if node.running and node.metric("etcd_server_is_leader") == 1), None)


class Etcd(Kind):
    """etcd."""

    name = "etcd"
    version = "3.5"

    def _prefix(self, cache: Cache) -> apt.Prefix:
        return apt.install(cache, self.name, SUITE, PACKAGES, (), PROGRAM, WITHOUT)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> EtcdCluster:
        return self.cluster(cache, name, directory, port)

    def cluster(
        self, cache: Cache, name: str, directory: Path, port: int | None, nodes: int = 1, tls: Tls | None = None
    ) -> EtcdCluster:
        """Returns a handle for a cluster of this many nodes."""
        if nodes < 1:
            raise BadRequest("an etcd cluster has at least one node.")
        members = [
            Node(
                self._prefix(cache),
                f"{name}-{number}" if nodes > 1 else name,
                directory / f"node-{number}" if nodes > 1 else directory,
                port + number - 1 if port is not None else None,
                tls,
            )
            for number in range(1, nodes + 1)
        ]
        for member in members:
            member.peers = members
        return EtcdCluster(name, members)
