"""The whole chain as processes: a source, Kafka, Elasticsearch, the daemon and the Spark consumer."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from demo.catalog import DATABASE
from demo.compare import INDEX, Comparison, compare, read_documents, read_join
from devstack import Stack, java, ports
from devstack.process import GuardedProcess
from devstack.servers.elasticsearch import ElasticsearchServer
from devstack.servers.kafka import KafkaCluster
from devstack.servers.sql import SqlServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings

DESTINATION, TOPIC = "shop", "shop"
POLL_SECONDS = 0.3

HEADRACE = """\
[daemon]
node = "demo"
[state]
path = "headrace.db"
[http]
listen = "127.0.0.1:{http_port}"
"""
SHOP = """\
[source]
host = "{source.host}"
port = {source.port}
user = "{source.user}"
password = "${{SHOP_PASSWORD}}"
start = "latest"
[filter]
include = "{database}\\\\..*"
[message]
format = "canal"
[route]
topic = "{topic}"
[sink]
type = "kafka"
bootstrap_servers = "{kafka.bootstrap_servers}"
"""
SPARK = """\
[kafka]
bootstrap_servers = "{kafka.bootstrap_servers}"
topics = ["{topic}"]
dead_letter_topic = "{dead_letters}"
topic_timeout = 120.0
[elasticsearch]
hosts = ["{elastic.url}"]
[spark]
checkpoint = "{folder}/checkpoint"
trigger = "500 milliseconds"
min_partitions = 2
driver_memory = "512m"
ivy = "{ivy}"
scratch = "{folder}/scratch"
[http]
listen = "127.0.0.1:{spark_http_port}"
[log]
format = "console"

# A document is a service of a city, with its item, the type of that, and its prices.
[[index]]
name = "{index}"
tables = '{database}\\.serve'
drop = ["serve_item_id"]
booleans = true
decimals = "double"
zone = "+08:00"
settings = {{ "index.refresh_interval" = "200ms" }}
[[index.join]]
name = "item"
tables = '{database}\\.serve_item'
on = {{ id = "serve_item_id" }}
drop = ["id", "serve_type_id"]
[[index.join]]
name = "type"
tables = '{database}\\.serve_type'
parent = "item"
on = {{ id = "serve_type_id" }}
shape = "object"
[[index.join]]
name = "prices"
tables = '{database}\\.serve_price'
on = {{ serve_id = "id" }}
shape = "list"
drop = ["serve_id"]
"""


class DemoFailed(Exception):
    """Something did not happen; the text says what, and shows the end of the log that tells more."""


def wait_for(condition: Callable[[], bool], seconds: float, failed: Callable[[], str]) -> float:
    """Waits until the condition holds and returns how long that took; raises DemoFailed at the deadline."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise DemoFailed(f"not in {seconds:.0f} s: {failed()}")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - began


class Child:
    """One of our own programs in a process group of its own, with a log; it can't outlive this process."""

    def __init__(self, name: str, arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        self._command = [sys.executable, "-m", *arguments]
        self._folder, self._environment = folder, environment
        self._process: GuardedProcess | None = None

    def start(self) -> None:
        """Starts it, or starts it again."""
        self._process = GuardedProcess(self._command, self.log, self._folder, self._environment)

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        return self._process.pid if self._process else 0

    def require_running(self) -> None:
        """Raises DemoFailed with the end of the log when it has ended."""
        if self._process is not None and not self._process.running():
            raise DemoFailed(f"{self.name} ended by itself.\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(f"    {self.name}: {line}" for line in text.splitlines()[-lines:])

    def kill(self) -> None:
        """SIGKILL to its group."""
        if self._process is not None:
            self._process.kill()

    def stop(self, seconds: float = 20.0) -> int | None:
        """SIGTERM, then SIGKILL for one that does not listen; its exit code."""
        if self._process is None:
            return None
        self._process.stop(seconds)
        return self._process.returncode


class Pipeline:
    """Configuration and processes of one chain; everything that it writes is in `folder`."""

    def __init__(
        self,
        stack: Stack,
        source: SqlServer,
        kafka: KafkaCluster,
        elastic: ElasticsearchServer,
        folder: Path,
        topic: str = TOPIC,
    ) -> None:
        self.source, self.kafka, self.elastic_server, self.folder = source, kafka, elastic, folder
        self.topic, self.dead_letters = topic, f"{topic}.dead-letters"
        self.http_port, self.spark_http_port = ports.free_port(), ports.free_port()
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        (folder / "destinations").mkdir()
        values = {
            "source": source,
            "kafka": kafka,
            "elastic": elastic,
            "folder": folder,
            "http_port": self.http_port,
            "spark_http_port": self.spark_http_port,
            "database": DATABASE,
            "index": INDEX,
            "topic": topic,
            "dead_letters": self.dead_letters,
            "ivy": stack.cache.folder("ivy"),
        }
        (folder / "headrace.toml").write_text(HEADRACE.format(**values))
        (folder / "destinations" / f"{DESTINATION}.toml").write_text(SHOP.format(**values))
        (folder / "spark.toml").write_text(SPARK.format(**values))
        self.daemon = Child(
            "headrace",
            ["headrace.cli.main", "run", "--config", str(folder / "headrace.toml")],
            folder,
            {"SHOP_PASSWORD": source.password, "TMPDIR": str(temporary)},
        )
        # Java asks no TMPDIR, and would write a file for each process of its own into the system's.
        options = [f"-Djava.io.tmpdir={temporary}", "-XX:-UsePerfData", *java.short_lived(stack.cache)]
        self.consumer = Child(
            "headrace-spark",
            ["headrace_spark.cli.main", "run", "--config", str(folder / "spark.toml")],
            folder,
            {
                **java.spark_environment(folder / "java", *options, cache=stack.cache),
                "TMPDIR": str(temporary),
                "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1,localhost"])),
            },
        )
        self.cluster = Cluster(ElasticsearchSettings.model_validate({"hosts": [elastic.url]}))

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.cluster.close()
        finally:
            # What they leave behind is thrown away: only the way of the daemon's end is a thing to see.
            self.consumer.kill()
            self.daemon.kill()

    @property
    def health_url(self) -> str:
        """The daemon's health page."""
        return f"http://127.0.0.1:{self.http_port}/health"

    def health(self) -> dict[str, Any]:
        """The destination's part of /health; empty while nobody answers."""
        found: dict[str, Any] = _page(self.health_url).get("destinations", {}).get(DESTINATION, {})
        return found

    def start_daemon(self, seconds: float = 60.0) -> float:
        """Starts the daemon and waits until it streams; how long that took."""
        self.daemon.start()

        def streams() -> bool:
            self.daemon.require_running()
            return self.health().get("state") == "STREAMING"

        return wait_for(streams, seconds, lambda: f"the daemon streams: {self.health()}\n{self.daemon.tail()}")

    def wait_consumer(self, seconds: float = 180.0) -> None:
        """Waits until the consumer has done its first batch. On a new machine it downloads its jars before that."""
        url = f"http://127.0.0.1:{self.spark_http_port}/health"

        def reads() -> bool:
            self.consumer.require_running()
            return int(_page(url).get("messages", 0)) > 0

        wait_for(reads, seconds, lambda: f"the consumer reads: {_page(url)}\n{self.consumer.tail()}")

    def compare(self) -> Comparison:
        """The join of the tables and the index as they are now."""
        return compare(read_join(self.source), read_documents(self.cluster))

    def wait_identical(self, seconds: float = 90.0) -> Comparison:
        """Waits until the documents are the rows; at the deadline the comparison says what differs."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.compare()
            if found.identical or time.monotonic() > deadline:
                return found
            self.daemon.require_running()
            self.consumer.require_running()
            time.sleep(POLL_SECONDS)


def _page(url: str) -> dict[str, Any]:
    """What a page of JSON says, whatever its status; empty while nobody answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            body: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            body = json.load(error)
    except OSError:
        return {}
    return body
