"""The search example as a whole, for minutes: services of four tables that several writers change, through the daemon,
Kafka and the consumer, while the consumer, its workers and Elasticsearch are killed. In the end each document is the
row of the join."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from elasticsearch import Elasticsearch

from devstack import Stack
from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings
from tests.services import INDEX, Services
from tests.support import DaemonProcess, destination_toml

from .conftest import Pipeline
from .source_tables import kill

pytestmark = [pytest.mark.server, pytest.mark.long]

TYPES, ITEMS, SERVICES = 500, 5000, 200_000
SECONDS = 300.0
"""How long the writers go on."""
WRITERS, PAUSE = 4, 0.03
SEED = 20
QUIET = (8.0, 25.0)
"""Seconds between two kills."""
CATCH_UP = 1800.0
"""Seconds until all is read, at most."""
PARTITIONS = 3
MARKS = range(10_000_000, 10_000_040)
"""Services that are written last; enough for each partition to have some."""


def python_workers(process: int) -> list[int]:
    """The processes in which Spark runs our tasks, below that of the consumer."""
    found, left = [], [process]
    while left:
        pid = left.pop()
        try:
            for thread in Path(f"/proc/{pid}/task").iterdir():  # any thread of the JVM may have forked
                left += map(int, (thread / "children").read_text().split())
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:  # it has ended meanwhile
            continue
    return found


class Killer:
    """Kills by a plan; what was killed is counted."""

    def __init__(self, pipeline: Pipeline, elastic: ElasticsearchServer) -> None:
        self._pipeline, self._elastic = pipeline, elastic
        self._chance = random.Random(SEED)
        self.done = Counter[str]()

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        plan = [self.driver, self.worker, self.workers, self.elasticsearch]
        while True:
            for strike in self._chance.sample(plan, len(plan)):
                quiet = time.monotonic() + self._chance.uniform(*QUIET)
                if quiet > end:
                    return
                self._pipeline.wait_for(lambda quiet=quiet: time.monotonic() > quiet, 2 * QUIET[1])
                strike()

    def driver(self) -> None:
        kill(self._pipeline.processes[-1])
        self._pipeline.start()
        self.done["driver"] += 1

    def worker(self) -> None:
        """One of the forked processes, so that its task is tried again."""
        self._kill("worker", lambda found: found[-1:])

    def workers(self) -> None:
        """All, and the process that forks them."""
        self._kill("workers", lambda found: found)

    def elasticsearch(self) -> None:
        self._elastic.kill()
        self._elastic.start()
        self.done["elasticsearch"] += 1

    def _kill(self, name: str, choose: Callable[[list[int]], list[int]]) -> None:
        consumer = self._pipeline.processes[-1].pid
        self._pipeline.wait_for(lambda: len(python_workers(consumer)) > 1, 120)
        for pid in choose(sorted(python_workers(consumer))):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.done[name] += 1


@contextmanager
def cluster_at(url: str) -> Iterator[Cluster]:
    with Cluster(ElasticsearchSettings(hosts=[url])) as cluster:
        yield cluster


def differences(cluster: Cluster, index: str, expected: dict[str, dict[str, Any]]) -> list[str]:
    """What differs, ten at most."""
    cluster.refresh(index)
    left, found = dict(expected), list[str]()
    for page in cluster.search_pages(index, size=5000):
        for hit in page:
            wanted = left.pop(hit["_id"], None)
            if hit["_source"] != wanted:
                found.append(f"{hit['_id']}: {hit['_source']} in the index, {wanted} in the tables")
    found += [f"{key}: not in the index, {body} in the tables" for key, body in left.items()]
    return [*found[:10], f"{len(found)} differ"] if found else []


def search(elastic: Elasticsearch, index: str, words: str, province: str) -> list[str]:
    """The ids of the services that match, best first."""
    matches = {"query": words, "type": "phrase", "fields": ["name^50", "type.name^10", "item_description"]}
    query = {"bool": {"must": {"multi_match": matches}, "filter": {"term": {"province.keyword": province}}}}
    return [hit["_id"] for hit in elastic.search(index=index, query=query)["hits"]["hits"]]


SEARCHED = (
    "INSERT INTO serve_type VALUES (9000001, '家庭保洁'), (9000002, '清洗')",
    "INSERT INTO serve_item VALUES (9000001, 9000001, '擦玻璃', '外窗'), (9000002, 9000002, '地毯', '也做家庭保洁'),"
    " (9000003, 9000002, '沙发', '布艺')",
    "INSERT INTO serve VALUES (9000001, 9000002, '地毯清洗', '西藏', '拉萨', 1), (9000002, 9000001, '擦窗', '西藏',"
    " '拉萨', 1), (9000003, 9000003, '家庭保洁', '西藏', '拉萨', 1), (9000004, 9000003, '沙发清洗', '西藏', '拉萨', 1)",
)
"""Four services of a province of their own: 家庭保洁 is in the description, the type, the name, and nowhere."""


async def test_documents_are_the_join_after_minutes_of_changes_and_kills(
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    stack: Stack,
    pipeline: Pipeline,
    daemon: Callable[..., DaemonProcess],
) -> None:
    elastic_server = stack.elasticsearch(name="serve-sync-elastic", heap="1g")
    pipeline.point_at_elasticsearch(elastic_server.url)
    pipeline.change("request_timeout = 2.0", "request_timeout = 15.0")
    pipeline.change("max_offsets_per_trigger = 1000", "max_offsets_per_trigger = 1500")
    pipeline.config.write_text(pipeline.config.read_text() + INDEX.format(name="services", schema=schema))
    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(pipeline.topic, PARTITIONS, 1)])
    await admin.close()
    sink = f'type = "kafka"\nbootstrap_servers = "{pipeline.bootstrap}"'
    route = f"topic = \"{pipeline.topic}\"\npartitions = {PARTITIONS}\npartition_hash = '{schema}\\..*:$pk$'"
    shop = destination_toml(mysql, schema, sink).replace(f'topic = "{schema}"', route)
    process = daemon(shop=shop).start()
    process.wait_state("shop", "STREAMING")

    services = Services(mysql, schema, TYPES, ITEMS, SERVICES)
    services.create()
    services.fill(random.Random(SEED))
    pipeline.start()
    pipeline.wait_for(lambda: pipeline.events("batch done"), CATCH_UP)
    killer = Killer(pipeline, elastic_server)
    with services.writers(WRITERS, SEED, PAUSE) as written:
        killer.run(SECONDS)
    print(f"killed: {dict(killer.done)}; transactions: {dict(written)}")
    assert not [kind for kind in written if kind.startswith("error")]
    execute(*SEARCHED)
    for key in MARKS:
        execute(f"INSERT INTO serve VALUES ({key}, NULL, 'mark', 'mark', NULL, 0)")

    elastic = pipeline.elastic.options(request_timeout=30)

    def marked() -> bool:
        elastic.indices.refresh(index="services")
        return bool(elastic.count(index="services", query={"match": {"name": "mark"}})["count"] == len(MARKS))

    began = time.monotonic()
    pipeline.wait_for(lambda: pipeline.health()["lag"]["messages"] == 0 and marked(), CATCH_UP)
    # Of the last batch the documents come last; a batch that is not noted yet counts as waiting.
    pipeline.wait_for(lambda: pipeline.health()["lag"]["messages"] == 0, CATCH_UP)
    print(f"caught up after {time.monotonic() - began:.0f} s")
    expected = services.join()
    assert len(expected) > SERVICES // 2
    with cluster_at(elastic_server.url) as cluster:
        assert differences(cluster, "services", expected) == []
    assert search(elastic, "services", "家庭保洁", "西藏") == ["9000003", "9000002", "9000001"]
    await pipeline.dead_letters(0)
    consumer = pipeline.processes[-1]
    consumer.send_signal(signal.SIGTERM)
    assert consumer.wait(90) == 0, pipeline.text()
    assert process.terminate() == 0
    assert "Traceback" not in pipeline.log.read_text(errors="replace")
