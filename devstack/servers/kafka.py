"""Apache Kafka in KRaft mode: one or three nodes, each both broker and controller."""

from __future__ import annotations

import base64
import os
import re
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devstack import ports
from devstack.cache import Cache
from devstack.errors import BadRequest, StartFailed
from devstack.process import clean_environment
from devstack.progress import say
from devstack.server import Cluster, Server
from devstack.servers.base import Kind
from devstack.servers.jvm import install_jars, java_command
from devstack.servers.sql import copy_tree

VERSION = "3.9.2"
COORDINATES = (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-simple:1.7.36")
LONELY_STOP_SECONDS = 2.0
Advertise = Callable[[int, int], int]
"""Maps a broker's number and the port of a further listener to the port that clients get, a proxy's."""


def random_id() -> str:
    """Returns a random id in Kafka's form: 16 bytes in URL-safe base64, never with a leading dash."""
    while (text := base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")).startswith("-"):
        pass
    return text


def count_brokers(host: str, port: int) -> int:
    """Returns how many living brokers a broker knows, by a Metadata request (version 1, no topics); 0 for no answer."""
    request = struct.pack(">hhih", 3, 1, 7, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            connection.settimeout(2)
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = b""
            while len(answer) < 12:
                if not (chunk := connection.recv(4096)):
                    return 0
                answer += chunk
    except OSError:
        return 0
    _, correlation, brokers = struct.unpack_from(">iii", answer)
    return int(brokers) if correlation == 7 else 0


class Broker(Server):
    """One Kafka node."""

    def __init__(
        self, cache: Cache, prefix: Path, name: str, directory: Path, port: int | None, node_id: int, heap: str
    ) -> None:
        super().__init__(name, directory, port)
        self.node_id = node_id
        self.controller_port = ports.free_port()
        self.peers: list[Broker] = [self]
        self.cluster_id = ""
        self.extra_settings: dict[str, str] = {}
        self.listeners: dict[str, tuple[int, int]] = {}
        """Further listeners by name: the port, and the one that clients get."""
        self._cache = cache
        self._prefix = prefix
        self._heap = heap

    def settings(self) -> dict[str, str]:
        """Returns the server.properties of this node."""
        copies = len(self.peers)
        voters = ",".join(f"{peer.node_id}@{self.host}:{peer.controller_port}" for peer in self.peers)
        more = self.listeners.items()
        return {
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self.host}:{self.controller_port}"
            + "".join(f",{name}://{self.host}:{port}" for name, (port, _) in more),
            "advertised.listeners": f"PLAINTEXT://{self.address}"
            + "".join(f",{name}://{self.host}:{reported}" for name, (_, reported) in more),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
            + "".join(f",{name}:PLAINTEXT" for name, _ in more),
            "log.dirs": str(self.datadir),
            "num.partitions": "1",
            "default.replication.factor": str(copies),
            "min.insync.replicas": "2" if copies > 1 else "1",
            "offsets.topic.replication.factor": str(copies),
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": "2" if copies > 1 else "1",
            "transaction.state.log.num.partitions": "4",
            "group.initial.rebalance.delay.ms": "0",
            "auto.create.topics.enable": "true",
            # a record's time is its commit's, and tests use commits of long ago, which a broker would delete
            "log.retention.ms": "-1",
            # after a crash a broker waits until its former session has run out; the default is 9 s
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "1000",
            **self.extra_settings,
        }

    def prepare(self) -> None:
        copy_tree(self._prefix / "pristine", self.datadir)
        identity = self.datadir / "meta.properties"
        new = {"node.id": str(self.node_id), "cluster.id": self.cluster_id, "directory.id": random_id()}
        text = identity.read_text()
        for key, value in new.items():
            text = re.sub(rf"^{re.escape(key)}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
        identity.write_text(text)
        lines = [f"{key}={value}" for key, value in self.settings().items()]
        (self.directory / "server.properties").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"
        with_time = "-Dorg.slf4j.simpleLogger.showDateTime=true"
        times = "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS"
        start = ["-cp", f"{self._prefix}/lib/*", "kafka.Kafka", str(self.directory / "server.properties")]
        return [*java_command(self._cache, self._heap, logging, with_time, times), *start]

    def stop(self) -> None:
        """Sends TERM, waits, then sends KILL; without a majority a controller waits for it before it ends, so that is
        cut short."""
        alive = sum(peer.running for peer in self.peers)
        if self._process is not None:
            self._process.stop(self.stop_seconds if 2 * alive > len(self.peers) else LONELY_STOP_SECONDS)

    def is_ready(self) -> bool:
        return "Kafka Server started" in self.log_since_start() and count_brokers(self.host, self.port) > 0

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "bootstrap_servers": self.address}


class KafkaCluster(Cluster):
    """One or more Kafka nodes as one service."""

    def __init__(self, name: str, brokers: Sequence[Broker]) -> None:
        super().__init__(name, list(brokers))
        self.brokers = list(brokers)

    @property
    def bootstrap_servers(self) -> str:
        """Returns the address for Kafka clients: host:port of every broker, separated by commas."""
        return self.address

    def start(self) -> None:
        """Starts all brokers and waits until they know each other."""
        super().start()
        self._wait_for(lambda: all(count_brokers(b.host, b.port) == len(self.brokers) for b in self.brokers))

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "bootstrap_servers": self.bootstrap_servers}


class Kafka(Kind):
    """Apache Kafka."""

    name = "kafka"
    version = VERSION

    def _prefix(self, cache: Cache) -> Path:
        def finish(fresh: Path) -> None:
            # formatted once, then copied with new ids: that saves a start of the virtual machine for each broker
            config = fresh / "format.properties"
            config.write_text(
                "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:1\n"
                "listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
                "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
                f"log.dirs={fresh / 'pristine'}\n"
            )
            quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
            tool = ["-cp", f"{fresh}/lib/*", "kafka.tools.StorageTool", "format", "-t", random_id(), "-c", str(config)]
            done = subprocess.run(
                [*java_command(cache, "256m", quiet), *tool], capture_output=True, text=True, env=clean_environment()
            )
            if done.returncode != 0:
                say((done.stdout + done.stderr)[-2000:])
                raise StartFailed("Kafka's storage could not be formatted; what its tool said is above.")

        return install_jars(cache, self.name, self.version, COORDINATES, finish)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> KafkaCluster:
        return self.cluster(cache, name, directory, port)

    def cluster(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        brokers: int = 1,
        settings: dict[str, str] | None = None,
        listeners: Mapping[str, Advertise] | None = None,
    ) -> KafkaCluster:
        """Returns a handle for a cluster of this many brokers; `settings` override those of server.properties.

        Each broker also has the further `listeners`, for clients that come through a proxy of their own."""
        if brokers < 1:
            raise BadRequest("a Kafka cluster has at least one broker.")
        prefix = self._prefix(cache)
        heap = "512m" if brokers == 1 else "256m"
        nodes = [
            Broker(
                cache,
                prefix,
                f"{name}-{number}" if brokers > 1 else name,
                directory / f"node-{number}" if brokers > 1 else directory,
                port + number - 1 if port is not None else None,
                number,
                heap,
            )
            for number in range(1, brokers + 1)
        ]
        cluster_id = random_id()
        for node in nodes:
            node.peers = nodes
            node.cluster_id = cluster_id
            node.extra_settings = dict(settings or {})
            for listener, advertise in (listeners or {}).items():
                own = ports.free_port()
                node.listeners[listener] = own, advertise(node.node_id, own)
        return KafkaCluster(name, nodes)
