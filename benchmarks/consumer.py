"""`scripts/bench --spark`: the Spark consumer from Kafka into Elasticsearch, its stages, joins, and a bare loop for
comparison. One process and one Spark for all of it, warmed up before anything is measured."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from benchmarks import consumer_messages as messages
from benchmarks.consumer_process import RATE, measure_process
from benchmarks.lines import Line
from benchmarks.workloads import Workload
from devstack import Stack, java
from headrace_documents.documents import Action
from headrace_documents.elastic.bulk import BulkWriter, encode
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.indexes.plans import Indexes
from headrace_documents.messages import actions, read
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.session.session import open_session
from headrace_spark.settings import Settings, SparkSettings
from headrace_spark.sink.writer import Context
from headrace_spark.source.kafka import client_options
from headrace_spark.transform.batch import COLUMNS, Batch, record_of

ROOT = Path(__file__).parents[1]
ROWS = 200_000
WARM = 4
SERVES = 50_000
CHILDREN = 100_000
SINGLE = 3_000
"""Documents of the loop that sends each in a separate request."""
_CLOCK = "rows_per_second"


class _Bench:
    def __init__(self, stack: Stack, runs: int, scale: int) -> None:
        self.stack = stack
        self.kafka = stack.kafka().bootstrap_servers
        self.elastic = stack.elasticsearch(heap="1g").url
        self.runs, self.scale = runs, scale
        self.lines: dict[str, Line] = {}
        scratch = stack.cache.root / "tmp" / f"bench-spark-{os.getpid()}"
        # The workers find the functions that are measured.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        os.environ.update(java.spark_environment(scratch / "java"))
        spark = {
            "checkpoint": str(scratch / "checkpoint"),
            "scratch": str(scratch),
            "ivy": str(stack.cache.root / "ivy"),
        }
        self.spark_settings = SparkSettings.model_validate(spark)
        self.spark, _ = open_session(self.spark_settings, lambda event: True)

    def settings(self, *indexes: dict[str, Any]) -> Settings:
        kafka = {"bootstrap_servers": self.kafka, "topics": ["t"], "dead_letter_topic": "dead"}
        elastic = {"hosts": [self.elastic]}
        made = {"kafka": kafka, "elasticsearch": elastic, "spark": self.spark_settings, "index": list(indexes)}
        return Settings.model_validate(made)

    def frame(self, topic: str, first: float = 1.0) -> DataFrame:
        options = client_options(self.settings().kafka) | {"subscribe": topic, "includeHeaders": "true"}
        frame = self.spark.read.format("kafka").options(**options).load().select(*COLUMNS)
        return frame.where(f"offset % 100 < {first * 100}") if first < 1 else frame

    def fill(self, values: Iterator[bytes]) -> str:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        messages.fill(self.kafka, topic, values)
        return topic

    def measure(self, name: str, rows: int, work: Callable[[], None], target: float | None = None) -> None:
        line = self.lines.setdefault(name, Line(name, "spark", Workload(name, "", rows), _CLOCK, target))
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        line.runs.append({_CLOCK: rows / seconds, "seconds": seconds})
        print(f"bench: {name}: {rows / seconds:,.0f} rows/s", flush=True)

    def empty(self) -> None:
        """Deletes all indexes, so that each run creates them again."""
        with Cluster(_elasticsearch(self.elastic)) as cluster:
            names = [one["index"] for one in cluster.call("GET", "_cat/indices", format="json")]
            for name in names:
                if not name.startswith("."):
                    cluster.call("DELETE", (name,))

    def batch(self, frame: DataFrame, *indexes: dict[str, Any]) -> None:
        Batch(self.settings(*indexes), frame, Context(1, patience=10.0)).write(_no_letters)

    def run(self) -> list[Line]:
        rows, serves, children = ROWS // self.scale, SERVES // self.scale, CHILDREN // self.scale
        print("bench: filling the topics", flush=True)
        one = self.fill(messages.services(rows, 1))
        many = self.fill(messages.services(rows, 30))
        joined = self.fill(messages.joined(serves))
        shared = self.fill(messages.shared_item(children))
        print("bench: warming up", flush=True)
        for _ in range(WARM):  # the JVMs compile, and the workers load
            self.batch(self.frame(one))
            self.batch(self.frame(one), messages.DECLARED)
            self.batch(self.frame(joined), messages.SERVICES)
        for number in range(self.runs):
            self.measure("Kafka to Python, a row a message", rows, lambda: _each(self.frame(one), _count))
            self.measure("the same, parsed into actions", rows, lambda: _each(self.frame(one), _parse))
            self.empty()
            self.measure("Kafka to Elasticsearch, a row a message", rows, lambda: self.batch(self.frame(one)))
            self.empty()
            self.measure("the same, 30 rows a message", rows, lambda: self.batch(self.frame(many)))
            self.empty()
            self.measure(
                "the same, a row a message, [[index]]",
                rows,
                lambda: self.batch(self.frame(one), messages.DECLARED),
                25_000,
            )
            self.empty()
            self.measure("a bare Python loop of bulk requests", rows, lambda: self._bare(rows))
            self.empty()
            self.measure("a request a document, as canal-adapter does", SINGLE, self._single)
            self.empty()
            self.measure(
                "four tables joined", 3 * serves, lambda: self.batch(self.frame(joined), messages.SERVICES), 8_000
            )
            self.measure("the same again", 3 * serves, lambda: self.batch(self.frame(joined), messages.SERVICES))
            self.empty()
            self.batch(self.frame(shared), messages.SERVICES)
            changed = self.fill(iter([messages.renamed_item(number)]))
            self.measure(
                "one changed row, documents that have it",
                children,
                lambda changed=changed: self.batch(self.frame(changed), messages.SERVICES),  # type: ignore[misc]
            )
            self.empty()
        self.spark.stop()
        for _ in range(self.runs):
            self.empty()
            self.process()
        return list(self.lines.values())

    def process(self) -> None:
        """Measures all of it as users run it."""
        figures = measure_process(self.stack, self.kafka, self.elastic)
        what = f"at {RATE} changes/s"
        for name, figure, target in (
            (f"seconds until a search finds a change, {what}", "median_s", 3.0),
            (f"the same, 99 of 100, {what}", "p99_s", None),
            ("memory (MB) of driver, JVM and workers", "rss_mb", 2000),
        ):
            line = self.lines.setdefault(name, Line(name, "spark", Workload(name, "", 0), figure, target))
            line.runs.append(figures)
        print("bench: " + ", ".join(f"{name} {value:,.2f}" for name, value in figures.items()), flush=True)

    def _actions(self, rows: int) -> Iterator[Action]:
        rules = self.settings().elasticsearch.rules()
        for value in messages.services(rows, 30):
            yield from actions(read(value), rules)  # type: ignore[arg-type]

    def _bare(self, rows: int) -> None:
        """Measures one thread without Spark: the machine's limit for this method. Without the time that making lines
        takes."""
        settings = _elasticsearch(self.elastic)
        with Cluster(settings) as cluster:
            BulkWriter(settings, cluster).indexes.unfit("shop.service", ("shop", "service"))
            lines: list[bytes] = []
            for action in self._actions(rows):
                lines.append(encode(action))
                if len(lines) == 2000:
                    cluster.bulk(lines, "errors")
                    lines.clear()
            cluster.bulk(lines, "errors") if lines else None

    def _single(self) -> None:
        settings = _elasticsearch(self.elastic)
        with Cluster(settings) as cluster:
            BulkWriter(settings, cluster).indexes.unfit("shop.service", ("shop", "service"))
            for action in self._actions(SINGLE):
                cluster.call("PUT", (action.target, "_doc", action.id), action.body)


def _elasticsearch(url: str) -> ElasticsearchSettings:
    return ElasticsearchSettings.model_validate({"hosts": [url]})


def _no_letters(letters: DataFrame) -> None:
    if found := letters.count():
        raise SystemExit(f"bench: {found} dead letters")


def _each(frame: DataFrame, work: Callable[[Iterable[Any]], Iterator[int]]) -> None:
    frame.rdd.mapPartitions(work).sum()


def _count(rows: Iterable[Any]) -> Iterator[int]:
    yield sum(len(record_of(row).value or b"") for row in rows)


def _parse(rows: Iterable[Any]) -> Iterator[int]:
    rules = _elasticsearch("http://localhost:1").rules()
    indexes, count = Indexes(()), 0
    for row in rows:
        record = record_of(row)
        message: Any = read(record.value, record.key, dict(record.headers or ()))
        count += len(actions(message, rules)) + len(indexes.plans(message))
    yield count


def measure_consumer(runs: int, scale: int) -> list[Line]:
    """Measures every line about the Spark consumer."""
    with Stack(lasting=True) as stack:
        return _Bench(stack, runs, scale).run()
