"""What Spark's tasks do with a batch, one task behind the other, on a real Elasticsearch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from elasticsearch import Elasticsearch

from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.dead_letters.records import DeadLetter
from headrace_spark.settings import KafkaSettings, Settings, SparkSettings
from headrace_spark.status.counting import Counts
from headrace_spark.transform.joining import Joining, RefusedDocument, Touch, Truncated
from headrace_spark.transform.worker import Record, Worker


class Batches:
    """Batches of a consumer with these indexes; `counts` are what the last one did."""

    def __init__(self, url: str, *indexes: dict[str, Any], **elastic: Any) -> None:
        kafka = KafkaSettings(bootstrap_servers="localhost:1", topics=["t"], dead_letter_topic="dead")
        self.settings = Settings(
            kafka=kafka,
            elasticsearch=ElasticsearchSettings(hosts=[url], retries=0, **elastic),
            spark=SparkSettings(checkpoint="c"),
            index=[IndexSettings.model_validate(one) for one in indexes],
        )
        self.counts: dict[str, int] = {}

    def run(
        self,
        values: Sequence[bytes],
        *,
        tasks: int = 2,
        step: Callable[[], None] = lambda: None,
        key: bytes | None = None,
    ) -> list[DeadLetter | RefusedDocument]:
        """What could not be applied. `step` is called before each task; all messages have the key."""
        records = [Record(key, value, "t", 0, number, None) for number, value in enumerate(values)]
        made: list[DeadLetter | RefusedDocument] = []
        touches: list[Touch | Truncated] = []
        self.counts = {}
        with Cluster(self.settings.elasticsearch) as cluster:
            for task in range(tasks):
                step()
                worker = Worker(self.settings, BulkWriter(self.settings.elasticsearch, cluster))
                for one in worker.run(records[task::tasks]):
                    if isinstance(one, DeadLetter):
                        made.append(one)
                    else:
                        touches.append(one)
                self._count(worker.counts())
            step()
            joining = Joining(self.settings, BulkWriter(self.settings.elasticsearch, cluster))
            documents = list(joining.resolve(touches))
            self._joined(joining)
            for task in range(tasks):
                step()
                joining = Joining(self.settings, BulkWriter(self.settings.elasticsearch, cluster))
                made += joining.compose(one for one in documents if len(one.id) % tasks == task)
                self._joined(joining)
            if not any(isinstance(one, RefusedDocument) for one in made):
                joining = Joining(self.settings, BulkWriter(self.settings.elasticsearch, cluster))
                joining.sweep(one for one in touches if isinstance(one, Truncated))
        return made

    def _joined(self, joining: Joining) -> None:
        counts = Counts()
        joining.count(counts)
        self._count(counts.numbers)

    def _count(self, more: dict[str, int]) -> None:
        for name, count in more.items():
            self.counts[name] = self.counts.get(name, 0) + count


def documents(elastic: Elasticsearch, index: str) -> dict[str, Any]:
    """All documents of an index by id."""
    elastic.indices.refresh(index=index)
    found = elastic.search(index=index, size=10_000)["hits"]["hits"]
    return {hit["_id"]: hit["_source"] for hit in found}
