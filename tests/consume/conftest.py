"""Fixtures of the RabbitMQ consumer's tests: a queue of the test's own, the consumer as a process, and its index."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiormq
import pytest
from aiormq.abc import AbstractChannel
from elasticsearch import Elasticsearch

from devstack.ports import free_port
from devstack.servers.elasticsearch import ElasticsearchServer
from devstack.servers.rabbitmq import RabbitmqServer
from headrace_documents.http import SilentError, ask

CONFIG: dict[str, dict[str, Any]] = {
    "rabbitmq": {"user": "guest", "password": "guest", "declare": True, "timeout": 3.0},
    "elasticsearch": {"request_timeout": 2.0, "retries": 1, "retry_wait": 0.1},
    "retry": {"attempts": 3, "delay": 0.1, "factor": 1.5},
    "dead_letters": {"scan_interval": 600.0, "attempts": 2},
    "run": {"reconnect_max": 0.5},
    "log": {"format": "json"},
}


_numbers = count(1)


@pytest.fixture
def elastic(elastic_server: ElasticsearchServer) -> Iterator[Elasticsearch]:
    with Elasticsearch(elastic_server.url) as client:
        yield client


@pytest.fixture
def name(elastic: Elasticsearch) -> Iterator[str]:
    """Of an index of the test's own, which may keep rows."""
    made = f"services{next(_numbers)}"
    yield made
    for index in (made, f"headrace-rows.{made}"):
        elastic.indices.delete(index=index, ignore_unavailable=True)


@asynccontextmanager
async def channel_to(url: str) -> AsyncIterator[AbstractChannel]:
    connection = await aiormq.connect(url)
    try:
        yield await connection.channel(on_return_raises=True)
    finally:
        await connection.close()


@dataclass
class Line:
    """A queue, the consumer that reads it, and the index that it fills; each test has its own."""

    broker: RabbitmqServer
    elastic_server: ElasticsearchServer
    elastic: Elasticsearch
    name: str
    folder: Path
    sections: dict[str, dict[str, Any]]
    http: int = field(default_factory=free_port)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.folder / "consume.toml"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def configure(self, **sections: dict[str, Any]) -> None:
        """Writes the config: that of all tests, with these keys in place of its own."""
        for section, keys in sections.items():
            self.sections[section] = self.sections.get(section, {}) | keys
        lines = []
        for section, keys in self.sections.items():
            lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
        self.config.write_text("\n".join(lines) + "\n")

    async def make_queues(self) -> None:
        """What the consumer would make at its start, for tests that publish first."""
        async with channel_to(self.broker.url) as channel:
            for queue in (self.name, f"{self.name}.dead", f"{self.name}.dead.operator"):
                await channel.queue_declare(queue=queue, durable=True, arguments={"x-queue-type": "quorum"})
        # Else the names of the new queues may be lost when the broker is killed.
        await asyncio.to_thread(self.broker.sync)

    async def send(
        self, values: Iterable[bytes], queue: str = "", exchange: str = "", ids: Iterable[str] | None = None
    ) -> None:
        """Publishes, each confirmed; the id of a message is that of `ids`, or none."""
        names = iter(ids) if ids is not None else None
        async with channel_to(self.broker.url) as channel:
            waiting = []
            for value in values:
                headers = {"headrace-id": next(names), "headrace-pos": "1"} if names is not None else {}
                properties = aiormq.spec.Basic.Properties(delivery_mode=2, headers=headers)
                waiting.append(
                    channel.basic_publish(
                        value,
                        exchange=exchange,
                        routing_key=queue or self.name,
                        properties=properties,
                        mandatory=True,
                        timeout=30,
                    )
                )
                if len(waiting) == 500:
                    await asyncio.gather(*waiting)
                    waiting = []
            await asyncio.gather(*waiting)

    async def send_when_running(self, values: Iterable[bytes], ids: Iterable[str] | None = None) -> None:
        """Publishes once the consumer has made the queue."""
        await self.wait_for(lambda: self.status().get("state") == "RUNNING")
        await self.send(values, ids=ids)

    async def ready(self, suffix: str = "") -> int:
        """Messages of a queue that nobody has taken."""
        async with channel_to(self.broker.url) as channel:
            found = await channel.queue_declare(queue=self.name + suffix, passive=True)
            return found.message_count or 0

    def in_hand(self, suffix: str = "") -> int:
        """Messages that were given to a consumer and are not acknowledged."""
        return self._query(suffix, "query_messages_checked_out")

    def left(self, suffix: str = "") -> int:
        """Messages that are ready, and those in hand."""
        return self._query(suffix, "query_messages_total")

    def _query(self, suffix: str, what: str) -> int:
        # The numbers that RabbitMQ shows of a quorum queue are up to 5 s old; these are of its state itself. After a
        # start of the broker that state is empty, also for its leader, until the log has been applied: so a command
        # that changes nothing goes through the log first.
        name = ",".join(str(byte) for byte in (self.name + suffix).encode())
        return int(
            self.broker.evaluate(
                f'begin {{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<{name}>>)), '
                "{ok, _, _} = ra:process_command(amqqueue:get_pid(Q), rabbit_fifo:make_purge_nodes([])), "
                f"{{ok, {{_, N}}, _}} = ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:{what}/1), N end"
            )
        )

    def start(self) -> subprocess.Popen[bytes]:
        if not self.config.exists():
            self.configure()
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace_consume.cli", "run", "--config", str(self.config)],
                stdout=log,
                stderr=log,
                env={**os.environ},
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def command(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Another command of the program, run to its end."""
        return subprocess.run(
            [sys.executable, "-m", "headrace_consume.cli", *words, "--config", str(self.config)],
            input=text,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def stop(self) -> None:
        """Ends the consumer in order."""
        process = self.processes[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, self.text()
        assert "Traceback" not in self.text(), self.text()

    def text(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def status(self) -> dict[str, Any]:
        """What the consumer says of itself; once it has ended, what it wrote last; {} while it does not listen yet."""
        with contextlib.suppress(SilentError):
            return ask("127.0.0.1", self.http, "headrace-consume")
        ended = self.processes[-1].poll() is not None
        return self.events("stopped")[-1] if ended else {}

    def count(self, name: str) -> int:
        return int(self.status().get(name, 0))

    def documents(self) -> dict[str, tuple[int, dict[str, Any]]]:
        """All documents of the index: id -> (version, body)."""
        name = f"shop.{self.name}"
        if not self.elastic.indices.exists(index=name):
            return {}
        self.elastic.indices.refresh(index=name)
        found = self.elastic.search(index=name, size=10_000, version=True)["hits"]["hits"]
        return {hit["_id"]: (hit["_version"], hit["_source"]) for hit in found}

    async def wait_for(self, what: Callable[[], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, f"{self.status()}\n{self.text()}"
            assert self.processes[-1].poll() is None, self.text()
            await asyncio.sleep(0.03)

    async def wait_settled(self, seconds: float = 30) -> None:
        """Waits until the queue is empty and nothing of it is in hand."""
        end = time.monotonic() + seconds
        while await asyncio.to_thread(self.left):
            assert time.monotonic() < end, f"{self.status()}\n{self.text()}"
            assert self.processes[-1].poll() is None, self.text()
            await asyncio.sleep(0.05)


@pytest.fixture
def make_line(
    elastic_server: ElasticsearchServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[RabbitmqServer], Line]]:
    made: list[Line] = []
    with Elasticsearch(elastic_server.url) as elastic:

        def make(broker: RabbitmqServer) -> Line:
            name = request.node.name.removeprefix("test_").replace("[", "_").replace("]", "")
            line = Line(broker, elastic_server, elastic, name, tmp_path, {key: dict(v) for key, v in CONFIG.items()})
            line.log.touch()
            line.sections["rabbitmq"] |= {"hosts": [broker.address], "queue": name}
            line.sections["elasticsearch"]["hosts"] = [elastic_server.url]
            line.sections["http"] = {"listen": f"127.0.0.1:{line.http}"}
            made.append(line)
            return line

        yield make
    for line in made:
        for process in line.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@pytest.fixture
def line(make_line: Callable[[RabbitmqServer], Line], rabbitmq: RabbitmqServer) -> Line:
    return make_line(rabbitmq)
