"""Fixtures of the Spark tests: one Kafka and one Elasticsearch for the session, and a consumer process of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from elasticsearch import Elasticsearch
from pyspark.sql import SparkSession

import devstack
from devstack.ports import free_port
from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.http import SilentError, ask
from headrace_spark.cli import main as spark_cli
from headrace_spark.session import jvm as spark_jvm_module
from headrace_spark.session.session import open_session
from headrace_spark.settings import SparkSettings
from headrace_spark.source.connection import PACKAGE

ROOT = Path(__file__).parents[2]
CONFIG = """
[kafka]
bootstrap_servers = "{kafka}"
topics = ["{topic}"]
dead_letter_topic = "{topic}.dead"
[elasticsearch]
hosts = ["{elastic}"]
request_timeout = 2.0
retries = 2
bulk_actions = 500
[spark]
checkpoint = "{folder}/checkpoint"
trigger = "200 milliseconds"
max_offsets_per_trigger = {per_batch}
min_partitions = 2
driver_memory = "512m"
patience = "20s"
ivy = "{root}/.cache/ivy"
scratch = "{folder}/scratch"
[http]
listen = "127.0.0.1:{http}"
[log]
level = "debug"
"""
JOINED = r"""
[[index]]
name = "{index}"
tables = ['shop\.serve']
drop = ["item_id"]
[[index.join]]
name = "item"
tables = ['shop\.item']
on = {{ id = "item_id" }}
drop = ["id", "type_id"]
[[index.join]]
name = "type"
tables = ['shop\.type']
parent = "item"
on = {{ id = "type_id" }}
shape = "object"
[[index.join]]
name = "prices"
tables = ['shop\.price']
on = {{ serve_id = "id" }}
shape = "list"
drop = ["serve_id"]
"""
"""tests.joined_tables.SERVICES as a configuration file has it."""


@pytest.fixture(scope="session")
def bootstrap(kafka: Any) -> str:
    return str(kafka.bootstrap_servers)


@dataclass
class Pipeline:
    """A topic, the consumer that reads it, and the index it fills; each test has its own."""

    bootstrap: str
    elastic: Elasticsearch
    topic: str
    config: Path
    log: Path
    elastic_url: str
    environment: dict[str, str]
    http: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    python: str = sys.executable
    """Runs the consumer."""

    async def send(self, values: Iterable[bytes | None], key: bytes | None = None) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", linger_ms=5) as producer:
            for value in values:
                await producer.send(self.topic, value, key=key, headers=[("headrace-id", b"test")])
            await producer.flush()

    async def dead_letters(self, count: int) -> list[Any]:
        """The first `count` dead letters; fails when there are fewer or more."""
        topic = f"{self.topic}.dead"
        letters: list[Any] = []
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            end = time.monotonic() + 20
            while time.monotonic() < end:
                batch = await consumer.getmany(timeout_ms=500)
                letters += [letter for group in batch.values() for letter in group]
                if not batch and len(letters) >= count:
                    break
        assert len(letters) == count, [dict(letter.headers) for letter in letters]
        return letters

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Starts the consumer as a process group of its own, so that it can be killed with its JVM."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [
                    *(self.python, "-m", "headrace_spark.cli.main", "run", "--config", str(self.config)),
                    *options,
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def drain(self) -> None:
        """Runs the consumer until it has read everything."""
        assert self.start("--available-now").wait(90) == 0, self.text()

    def change(self, old: str, new: str) -> None:
        """Changes the configuration file."""
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def point_at_elasticsearch(self, url: str) -> None:
        """Another server takes the documents of this test."""
        [old] = tomllib.loads(self.config.read_text())["elasticsearch"]["hosts"]
        self.change(old, url)
        self.elastic = Elasticsearch(url)

    def point_at_kafka(self, servers: str) -> None:
        """Another broker has the topic of this test."""
        self.change(self.bootstrap, servers)
        self.bootstrap = servers

    def health(self) -> dict[str, Any]:
        """What the consumer says of itself."""
        return ask("127.0.0.1", self.http, "headrace-spark")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def text(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def documents(self, index: str | None = None) -> dict[str, tuple[int, dict[str, Any]]]:
        """All documents of the index: id -> (version, body)."""
        name = index or f"shop.{self.topic}"
        self.elastic.indices.refresh(index=name)
        found = self.elastic.search(index=name, size=10_000, version=True)["hits"]["hits"]
        return {hit["_id"]: (hit["_version"], hit["_source"]) for hit in found}

    def wait_for(self, what: Callable[[], object], seconds: float = 40) -> None:
        """Waits until `what` is true; a consumer that does not listen yet has not made it true."""
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(SilentError):
                if what():
                    return
            assert time.monotonic() < end, self.text()
            assert self.processes[-1].poll() is None, self.text()
            time.sleep(0.05)


@pytest.fixture
def pipeline(
    stack: devstack.Stack,
    bootstrap: str,
    elastic_server: ElasticsearchServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Pipeline]:
    topic = re.sub(r"\W+", "_", request.node.name.removeprefix("test_")).strip("_")
    config, port = tmp_path / "spark.toml", free_port()
    config.write_text(
        CONFIG.format(
            kafka=bootstrap,
            topic=topic,
            elastic=elastic_server.url,
            folder=tmp_path,
            root=ROOT,
            per_batch=1000,
            http=port,
        )
    )
    (tmp_path / "log").touch()
    with Elasticsearch(elastic_server.url) as elastic:
        options = [*devstack.java.short_lived(stack.cache), "-XX:+UseSerialGC"]
        environment = devstack.java.spark_environment(tmp_path / "java", *options)
        made = Pipeline(bootstrap, elastic, topic, config, tmp_path / "log", elastic_server.url, environment, port)
        yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


@pytest.fixture(scope="session")
def spark(session_stack: devstack.Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark with the driver for tables, in this process: it bears one JVM only."""
    folder = tmp_path_factory.mktemp("source")
    before = dict(os.environ)
    options = [*devstack.java.short_lived(session_stack.cache), "-XX:+UseSerialGC"]
    os.environ.update(devstack.java.spark_environment(folder / "java", *options))
    settings = SparkSettings(
        checkpoint=str(folder), driver_memory="512m", ivy=f"{ROOT}/.cache/ivy", scratch=str(folder / "scratch")
    )
    try:
        session, process = open_session(settings, more=[PACKAGE])
    finally:
        # Other servers of other tests are started beside it.
        os.environ.clear()
        os.environ.update(before)
    yield session
    session.stop()
    if process is not None and process.stdin is not None:
        process.stdin.close()
        process.wait(20)


@pytest.fixture(scope="session")
def spark_jvm(spark: SparkSession) -> Any:
    """Its JVM, for all tests that run commands in this process."""
    return spark.sparkContext._jvm


@dataclass
class Done:
    """What a command returned and printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(spark_jvm: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Runs `headrace-spark` in this process, with the JVM that is there."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(spark_jvm_module, "open_jvm", lambda _: contextlib.nullcontext(spark_jvm))

    def run(*words: object) -> Done:
        capsys.readouterr()
        try:
            code = spark_cli.main([str(word) for word in words])
        finally:
            structlog.configure(**before)
            root.handlers[:], root.level = handlers, level
        said = capsys.readouterr()
        assert "fault" not in said.err, said.err
        return Done(code, said.out, said.err)

    return run
