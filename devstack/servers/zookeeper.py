"""Apache ZooKeeper: one node or an ensemble of three."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path

from devstack import ports
from devstack.cache import Cache
from devstack.errors import BadRequest
from devstack.server import Cluster, Server
from devstack.servers.base import Kind, Tls
from devstack.servers.jvm import install_jars, java_command

VERSION = "3.9.5"
# the server needs the last two at run time and its POM marks them as provided
COORDINATES = (
    f"org.apache.zookeeper:zookeeper:{VERSION}",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)


def four_letters(host: str, port: int, word: str, encryption: ssl.SSLContext | None = None) -> str:
    """Returns the answer to one of ZooKeeper's four-letter words; empty if there is none."""
    answer = b""
    try:
        connection = socket.create_connection((host, port), timeout=1)
        with encryption.wrap_socket(connection) if encryption else connection as connection:
            connection.settimeout(2)
            connection.sendall(word.encode())
            while chunk := connection.recv(4096):
                answer += chunk
    except OSError:
        return ""
    return answer.decode(errors="replace")


class Node(Server):
    """One ZooKeeper node. With `tls` it has a second port, for encrypted connections."""

    def __init__(
        self,
        cache: Cache,
        prefix: Path,
        name: str,
        directory: Path,
        port: int | None,
        node_id: int,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(name, directory, port)
        self.secure_port = ports.free_port() if tls else 0
        self._tls = tls
        self.node_id = node_id
        self.peer_ports = (ports.free_port(), ports.free_port())
        self.peers: list[Node] = [self]
        self._cache = cache
        self._prefix = prefix

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)
        (self.datadir / "myid").write_text(f"{self.node_id}\n")
        lines = [
            "tickTime=500",
            "initLimit=20",
            "syncLimit=10",
            f"dataDir={self.datadir}",
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            "maxClientCnxns=0",
        ]
        if self._tls is not None:
            lines += [
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                f"secureClientPort={self.secure_port}",
                f"secureClientPortAddress={self.host}",
                "ssl.keyStore.type=PEM",
                f"ssl.keyStore.location={self._tls.key_and_certificate}",
                "ssl.trustStore.type=PEM",
                f"ssl.trustStore.location={self._tls.ca or self._tls.key_and_certificate}",
                f"ssl.clientAuth={'need' if self._tls.ca else 'none'}",
            ]
        if len(self.peers) > 1:
            lines += [f"server.{p.node_id}={p.host}:{p.peer_ports[0]}:{p.peer_ports[1]}" for p in self.peers]
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        options = [
            "-Dzookeeper.jmx.log4j.disable=true",
            "-Dlogback.statusListenerClass=ch.qos.logback.core.status.NopStatusListener",
        ]
        main = ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.directory / "zoo.cfg")]
        return [*java_command(self._cache, "128m", *options), "-cp", f"{self._prefix}/lib/*", *main]

    def mode(self) -> str:
        """Returns standalone, leader or follower; empty while the node serves no clients."""
        answer = four_letters(self.host, self.port, "srvr")
        return next((line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")), "")

    def is_ready(self) -> bool:
        return self.mode() != "" and (self._tls is None or self._answers_encrypted(self._tls))

    def _answers_encrypted(self, tls: Tls) -> bool:
        # the first handshake takes ten times as long as later ones, because the JVM loads classes for it
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(tls.key_and_certificate)
        return four_letters(self.host, self.secure_port, "srvr", context) != ""

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "hosts": self.address}


class ZooKeeperEnsemble(Cluster):
    """One or more ZooKeeper nodes as one service."""

    def __init__(self, name: str, nodes: Sequence[Node]) -> None:
        super().__init__(name, list(nodes))
        self.nodes = list(nodes)

    @property
    def hosts(self) -> str:
        """Returns the address for ZooKeeper clients: host:port of every node, separated by commas."""
        return self.address

    @property
    def secure_hosts(self) -> str:
        """Returns the same for encrypted connections."""
        return ",".join(f"{node.host}:{node.secure_port}" for node in self.nodes)

    @property
    def leader(self) -> Node | None:
        """Returns the present leader (the only node if there is one), or None during an election."""
        return next((node for node in self.nodes if node.running and node.mode() in ("leader", "standalone")), None)

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "hosts": self.hosts}


class ZooKeeper(Kind):
    """Apache ZooKeeper."""

    name = "zookeeper"
    version = VERSION

    def _prefix(self, cache: Cache) -> Path:
        return install_jars(cache, self.name, self.version, COORDINATES)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> ZooKeeperEnsemble:
        return self.ensemble(cache, name, directory, port)

    def ensemble(
        self, cache: Cache, name: str, directory: Path, port: int | None, nodes: int = 1, tls: Tls | None = None
    ) -> ZooKeeperEnsemble:
        """Returns a handle for an ensemble of this many nodes."""
        if nodes < 1:
            raise BadRequest("a ZooKeeper ensemble has at least one node.")
        prefix = self._prefix(cache)
        members = [
            Node(
                cache,
                prefix,
                f"{name}-{number}" if nodes > 1 else name,
                directory / f"node-{number}" if nodes > 1 else directory,
                port + number - 1 if port is not None else None,
                number,
                tls,
            )
            for number in range(1, nodes + 1)
        ]
        for member in members:
            member.peers = members
        return ZooKeeperEnsemble(name, members)
