"""Elasticsearch as a single node, run by a small launcher because its jars come without the usual start script."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from devstack import ports
from devstack.cache import Cache
from devstack.server import Server
from devstack.servers.base import Kind
from devstack.servers.jvm import compile_java, install_jars, java_command

VERSION = "8.19.21"
MODULE = "transport-netty4"
COORDINATES = (f"org.elasticsearch:elasticsearch:{VERSION}", f"org.elasticsearch.plugin:{MODULE}:{VERSION}")
# its description requires debugger modules of a JDK, for a feature this launcher does not use
DEMANDING = "elasticsearch-entitlement"
DEMANDING_MODULE = "org.elasticsearch.entitlement"
LAUNCHER = Path(__file__).resolve().parent.parent / "elasticsearch" / "EsNode.java"


def drop_module_description(jar: Path, module: str) -> None:
    """Makes a module an automatic one of the same name, which runs on a runtime without the modules that it
    requires."""
    fresh = jar.with_suffix(".new")
    manifest = f"Manifest-Version: 1.0\nAutomatic-Module-Name: {module}\nMulti-Release: true\n"
    with zipfile.ZipFile(jar) as old, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as new:
        new.writestr("META-INF/MANIFEST.MF", manifest)
        for name in old.namelist():
            if name not in ("module-info.class", "META-INF/MANIFEST.MF"):
                new.writestr(name, old.read(name))
    fresh.replace(jar)


class ElasticsearchServer(Server):
    """One Elasticsearch node; no security, no TLS."""

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
        for name in ("config", "plugins", "logs", "tmp"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "modules").symlink_to(self._prefix / "modules")
        (self.directory / "config" / "elasticsearch.yml").touch()
        self.datadir.mkdir()

    def command(self) -> list[str]:
        options = [
            "-Des.networkaddress.cache.ttl=60",
            "-Dlog4j2.disable.jmx=true",
            f"-Djava.io.tmpdir={self.directory}/tmp",
            "--module-path",
            str(self._prefix / "lib"),
            "--add-modules",
            "ALL-MODULE-PATH,jdk.net",
            "-cp",
            str(self._prefix / "classes"),
        ]
        settings = {
            "cluster.name": "devstack",
            "node.name": self.name,
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
        return [*java, "EsNode", str(self.directory), *arguments]

    def is_ready(self) -> bool:
        health = f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=1s"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(health, timeout=3) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


class Elasticsearch(Kind):
    """Elasticsearch."""

    name = "elasticsearch"
    version = VERSION

    def _prefix(self, cache: Cache) -> Path:
        def finish(fresh: Path) -> None:
            # the server loads its network module from a folder of its own, outside the module path
            compile_java(cache, [LAUNCHER], fresh)
            module = fresh / "modules" / MODULE
            module.mkdir(parents=True)
            for pattern in ("netty-*.jar", f"{MODULE}-*.jar", "elasticsearch-ssl-config-*.jar"):
                for jar in sorted((fresh / "lib").glob(pattern)):
                    shutil.move(jar, module)
            drop_module_description(fresh / "lib" / f"{DEMANDING}-{VERSION}.jar", DEMANDING_MODULE)
            with zipfile.ZipFile(next(module.glob(f"{MODULE}-*.jar"))) as archive:
                for name in ("plugin-descriptor.properties", "entitlement-policy.yaml"):
                    (module / name).write_bytes(archive.read(f"META-INF/es-plugins/{MODULE}/{name}"))

        return install_jars(cache, self.name, self.version, COORDINATES, finish, revision=4)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> ElasticsearchServer:
        return self.node(cache, name, directory, port)

    def node(
        self, cache: Cache, name: str, directory: Path, port: int | None, heap: str = "512m"
    ) -> ElasticsearchServer:
        """Returns a handle for a node."""
        return ElasticsearchServer(cache, self._prefix(cache), name, directory, port, heap)
