"""Spark's own cluster manager: a master and workers, which run executors, from the jars of pyspark."""

from __future__ import annotations

import json
import shutil
import sysconfig
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from devstack import java, ports
from devstack.cache import Cache
from devstack.errors import BadRequest
from devstack.maven import PYSPARK
from devstack.progress import say
from devstack.server import Cluster, Server
from devstack.servers.base import Kind
from devstack.servers.jvm import java_command

_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _SparkDaemon(Server):
    """Shared by master and workers: a class of Spark's, and a web page with its state as JSON."""

    def __init__(self, cache: Cache, home: Path, name: str, directory: Path, port: int | None) -> None:
        super().__init__(name, directory, port)
        self.web_port = ports.free_port()
        self._cache, self._home = cache, home

    def prepare(self) -> None:
        self.datadir.mkdir(parents=True)
        (self.directory / "tmp").mkdir()

    def environment(self) -> Mapping[str, str]:
        # A worker passes its environment on to executors; the address is where the web page listens.
        stand_in = self.directory / "java"
        if stand_in.exists():
            shutil.rmtree(stand_in)
        return {
            **java.spark_environment(stand_in, *java.short_lived(self._cache), "-XX:+UseSerialGC", cache=self._cache),
            "SPARK_HOME": str(self._home),
            "SPARK_SCALA_VERSION": _scala(self._home),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_LOCAL_DIRS": str(self.directory / "tmp"),
        }

    def _command(self, main: str, options: Sequence[str], arguments: Sequence[str]) -> list[str]:
        given = ["--host", self.host, "--port", str(self.port), "--webui-port", str(self.web_port)]
        classpath = f"{self._home}/jars/*"
        begin = java_command(self._cache, "256m", f"-Djava.io.tmpdir={self.directory}/tmp", *options)
        return [*begin, "-cp", classpath, main, *given, *arguments]

    def page(self) -> dict[str, Any]:
        """Returns the content of the web page; nothing if it does not answer."""
        try:
            with _NO_PROXY.open(f"http://{self.host}:{self.web_port}/json/", timeout=3) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return found


class SparkMaster(_SparkDaemon):
    """The master, which knows the workers and gives executors to applications."""

    @property
    def url(self) -> str:
        """Returns the URL that an application uses as its master."""
        return f"spark://{self.address}"

    def command(self) -> list[str]:
        # Else it listens on one more port.
        options = ["-Dspark.master.rest.enabled=false"]
        return self._command("org.apache.spark.deploy.master.Master", options, [])

    def is_ready(self) -> bool:
        return self.page().get("status") == "ALIVE"

    def alive_workers(self) -> list[str]:
        """Returns host:port of the workers that the master knows to be alive."""
        return [f"{one['host']}:{one['port']}" for one in self.page().get("workers", ()) if one["state"] == "ALIVE"]

    def endpoint(self) -> dict[str, object]:
        return {**super().endpoint(), "url": self.url}


class SparkWorker(_SparkDaemon):
    """A worker. Its executors are in its process group, so that kill() ends them too, as the end of a machine would."""

    def __init__(
        self, cache: Cache, home: Path, name: str, directory: Path, master: SparkMaster, cores: int, memory: str
    ) -> None:
        super().__init__(cache, home, name, directory, None)
        self._master, self._cores, self._memory = master, cores, memory

    def command(self) -> list[str]:
        arguments = ["--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(self.datadir)]
        return self._command("org.apache.spark.deploy.worker.Worker", [], [*arguments, self._master.url])

    def is_ready(self) -> bool:
        return bool(self.page()) and f"{self.host}:{self.port}" in self._master.alive_workers()

    def executors(self) -> list[int]:
        """Returns the processes of the executors that run now."""
        children = Path(f"/proc/{self.pid}/task")
        found = {int(pid) for task in children.iterdir() for pid in (task / "children").read_text().split()}
        return sorted(pid for pid in found if b"CoarseGrainedExecutorBackend" in _command_line(pid))


def _scala(home: Path) -> str:
    """Returns the version of Scala of Spark's jars, which Spark's start scripts would find."""
    name = next((home / "jars").glob("scala-library-*.jar")).name
    return ".".join(name.removeprefix("scala-library-").split(".")[:2])


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


class SparkCluster(Cluster):
    """A master and its workers."""

    def __init__(self, name: str, master: SparkMaster, workers: Sequence[SparkWorker]) -> None:
        super().__init__(name, [master, *workers])
        self.master, self.workers = master, list(workers)

    @property
    def url(self) -> str:
        """Returns the URL that an application uses as its master."""
        return self.master.url

    def endpoint(self) -> dict[str, object]:
        return self.master.endpoint()


class Spark(Kind):
    """Spark's standalone cluster."""

    name = "spark-standalone"
    version = PYSPARK.partition("==")[2]

    def _home(self, cache: Cache) -> Path:
        """Returns the folder of pyspark: that of this Python, if it has one."""
        here = Path(sysconfig.get_paths()["purelib"], "pyspark")
        if (here / "jars").is_dir():
            return here

        def build(fresh: Path) -> None:
            say(f"downloading {PYSPARK} ...")
            java.pip_install(cache, PYSPARK, fresh)

        return cache.install("spark", PYSPARK, build) / "pyspark"

    def install(self, cache: Cache) -> None:
        self._home(cache)

    def create(self, cache: Cache, name: str, directory: Path, port: int | None) -> SparkCluster:
        return self.cluster(cache, name, directory, port)

    def cluster(
        self,
        cache: Cache,
        name: str,
        directory: Path,
        port: int | None,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
    ) -> SparkCluster:
        """Returns a handle for a master and workers, each with this many cores and this much memory for executors."""
        if workers < 1:
            raise BadRequest("a Spark cluster has at least one worker.")
        home = self._home(cache)
        master = SparkMaster(cache, home, f"{name}-master", directory / "master", port)
        made = [
            SparkWorker(cache, home, f"{name}-{number}", directory / f"worker-{number}", master, cores, memory)
            for number in range(1, workers + 1)
        ]
        return SparkCluster(name, master, made)
