"""Alibaba Canal's own server, which reads a MySQL for its clients or into Kafka; a small launcher starts it."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Mapping
from pathlib import Path

from devstack.cache import Cache
from devstack.server import Server
from devstack.servers.base import Kind
from devstack.servers.jvm import compile_java, install_jars, java_command
from devstack.servers.sql import SqlServer

VERSION = "1.1.7"  # the newest version of which all parts are in Maven's repository
COORDINATES = (f"com.alibaba.otter:canal.server:{VERSION}", f"com.alibaba.otter:connector.kafka:{VERSION}")
SOURCE = Path(__file__).resolve().parent.parent / "canal_server" / "CanalNode.java"
Properties = Mapping[str, str]


def reads(server: SqlServer, **more: str) -> dict[str, str]:
    """Returns the instance.properties of a destination that reads a server from its present end on; `more` are keys
    without `canal.instance.`, with _ for each dot."""
    file, position = server.sql("SHOW BINARY LOGS")[-1][:2]
    login = server.connection()
    return {
        "canal.instance.master.address": server.address,
        "canal.instance.master.journal.name": file,
        "canal.instance.master.position": position,
        "canal.instance.dbUsername": str(login["user"]),
        "canal.instance.dbPassword": str(login["password"]),
        **{f"canal.instance.{key.replace('_', '.')}": value for key, value in more.items()},
    }


class CanalServer(Server):
    """A server with some destinations. Its port is for Canal's clients; with Kafka it is not used."""

    def __init__(
        self,
        cache: Cache,
        prefix: Path,
        name: str,
        directory: Path,
        port: int | None,
        destinations: Mapping[str, Properties],
        settings: Properties,
    ) -> None:
        super().__init__(name, directory, port)
        self._cache, self._prefix = cache, prefix
        self.destinations, self.settings = destinations, settings

    @property
    def home(self) -> Path:
        """Returns the folder with canal.properties, and a folder for each destination, in which its position is
        kept."""
        return self.datadir

    @property
    def serves_clients(self) -> bool:
        """Returns whether clients can connect."""
        return self.settings.get("canal.serverMode", "tcp") == "tcp"

    def prepare(self) -> None:
        own = {
            "canal.ip": self.host,
            "canal.register.ip": self.host,
            "canal.port": str(self.port),
            "canal.destinations": ",".join(self.destinations),
        }
        self.home.mkdir(parents=True)
        write(self.home / "canal.properties", {**own, **self.settings})
        for name, properties in self.destinations.items():
            (self.home / name).mkdir()
            write(self.home / name / "instance.properties", properties)

    def command(self) -> list[str]:
        options = ["-Duser.timezone=UTC", "-cp", f"{self._prefix}/classes:{self._prefix}/lib/*"]
        return [*java_command(self._cache, "256m", *options), SOURCE.stem, str(self.home)]

    def is_ready(self) -> bool:
        if "CanalNode has started" not in self.log_since_start():
            return False
        if not self.serves_clients:
            return True
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                return len(connection.recv(4)) == 4  # the length of its handshake
        except OSError:
            return False


def write(file: Path, properties: Properties) -> None:
    """Writes a file of Java properties."""
    lines = [f"{key}={value}\n".replace("\\", r"\\") for key, value in properties.items()]
    file.write_text("".join(lines), "utf-8")


class Canal(Kind):
    """Alibaba Canal."""

    name = "canal"
    version = VERSION

    def _prefix(self, cache: Cache) -> Path:
        def finish(fresh: Path) -> None:
            for jar in (fresh / "lib").glob("slf4j-log4j12-*.jar"):  # Ivy includes it, but logback is used
                jar.unlink()
            compile_java(cache, [SOURCE], fresh)

        revision = zlib.crc32(SOURCE.read_bytes())
        return install_jars(cache, self.name, VERSION, COORDINATES, finish, revision)

    def install(self, cache: Cache) -> None:
        self._prefix(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> CanalServer:
        return self.server(cache, name, directory, port, {}, {})

    def server(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        destinations: Mapping[str, Properties],
        settings: Properties,
    ) -> CanalServer:
        """Returns a handle for a server with the instance.properties of its destinations; `settings` are those of
        canal.properties, and override the defaults."""
        return CanalServer(cache, self._prefix(cache), name, directory, port, destinations, settings)
