"""What a task holds, and what is a dead letter, where a column has changed its type; on a real Elasticsearch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.mapping_conflicts import Conflict
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.dead_letters.held import Held, HeldMessages, dead_letter_of, hold
from headrace_spark.dead_letters.records import DeadLetter
from headrace_spark.settings import KafkaSettings, Settings, SparkSettings
from headrace_spark.sink.conflicts import Watch
from headrace_spark.sink.writer import Context
from headrace_spark.status.counting import Counts, Sighting
from headrace_spark.transform.worker import Record, Worker
from tests.canal_messages import TYPES, change, row

pytestmark = pytest.mark.server
_numbers = count(1)
TEXTS = {**TYPES, "sold": "varchar(20)"}
"""`sold` was an INT."""


class Desk:
    """An index that is filled anew where a type has changed, and the tasks of one batch after the other."""

    def __init__(self, server: ElasticsearchServer, name: str) -> None:
        self.name, self.elastic = name, Elasticsearch(server.url)
        self._kafka = KafkaSettings(bootstrap_servers="localhost:1", topics=["t"], dead_letter_topic="dead")
        self._hosts = [server.url]
        self.declared: dict[str, Any] = {"name": name, "tables": rf"shop\.{name}", "on_mapping_conflict": "reindex"}
        self.counts = Counts()

    @property
    def settings(self) -> Settings:
        index = IndexSettings.model_validate(self.declared)
        elastic = ElasticsearchSettings(hosts=self._hosts, retries=0)
        return Settings(kafka=self._kafka, elasticsearch=elastic, spark=SparkSettings(checkpoint="c"), index=[index])

    def work(self, *values: bytes, dual_writes: dict[str, str] | None = None, watch: Watch | None = None) -> list[Any]:
        self.counts = Counts()
        with Cluster(self.settings.elasticsearch) as cluster:
            records = [Record(b"k", value, "topic", 0, offset, [("h", b"v")]) for offset, value in enumerate(values)]
            writer = BulkWriter(self.settings.elasticsearch, cluster)
            return list(
                Worker(self.settings, writer, Context(1, dual_writes or {}, watch or Watch()), self.counts).run(records)
            )

    def row(self, position: int, key: int, sold: str, types: dict[str, str] = TEXTS, **more: Any) -> bytes:
        return change(self.name, position, "INSERT", {**row(key), "sold": sold, **more}, mysqlType=types)

    @property
    def conflict(self) -> Conflict:
        return Conflict(self.name, "sold", "long", "text")


@pytest.fixture
def desk(elastic_server: ElasticsearchServer) -> Iterator[Desk]:
    made = Desk(elastic_server, f"holding{next(_numbers)}")
    made.work(made.row(10, 1, "5", TYPES))
    yield made
    for index in made.elastic.indices.get(index=f"{made.name}*,headrace-held.{made.name}*"):
        made.elastic.indices.delete(index=index)
    made.elastic.close()


def test_what_only_the_old_type_refuses_is_held_and_a_conflict_is_reported_before_that(desk: Desk) -> None:
    assert desk.work(desk.row(20, 2, "6")) == []  # a text that is a number still fits
    assert desk.counts.conflicts == {Sighting(desk.conflict, f"shop.{desk.name}", chosen=False)}
    [held] = desk.work(desk.row(30, 3, "many"))
    assert (held.target, held.into, held.letter.value) == (desk.name, "", desk.row(30, 3, "many"))
    assert (desk.counts.held, desk.counts.numbers["dead_letters"]) == ({desk.name: 1}, 0)


def test_both_types_in_one_task_are_distinguished(desk: Desk) -> None:
    [held] = desk.work(desk.row(20, 2, "6", TYPES), desk.row(30, 3, "many"))
    assert isinstance(held, Held)


def test_what_both_indexes_refuse_is_a_dead_letter_and_what_the_new_one_takes_is_held(desk: Desk) -> None:
    into = f"{desk.name}-000002"
    desk.elastic.indices.create(
        index=into,
        mappings={"properties": {"sold": {"type": "text"}, "id": {"type": "long"}}},
        settings={"index.gc_deletes": "1h"},
    )
    held, letter = desk.work(desk.row(30, 3, "many"), desk.row(40, 4, "many", id="x"), dual_writes={desk.name: into})
    assert isinstance(held, Held)
    assert isinstance(letter, DeadLetter)
    assert (held.into, letter.value) == (into, desk.row(40, 4, "many", id="x"))
    assert desk.elastic.get(index=into, id="3")["_source"]["sold"] == "many"


def test_a_bad_document_without_a_conflict_is_a_dead_letter_and_so_is_one_of_a_conflict_that_is_given_up(
    desk: Desk,
) -> None:
    [letter] = desk.work(desk.row(30, 3, "many", TYPES))
    assert isinstance(letter, DeadLetter)
    assert not desk.counts.conflicts
    [letter] = desk.work(desk.row(30, 3, "many"), watch=Watch(given_up=frozenset({desk.conflict})))
    assert isinstance(letter, DeadLetter)
    # It is filled anew: whatever the old index refuses waits.
    [held] = desk.work(desk.row(30, 3, "many", TYPES), watch=Watch(known=frozenset({desk.name})))
    assert isinstance(held, Held)


def test_a_type_that_the_configuration_says_does_not_depend_on_columns(desk: Desk) -> None:
    desk.declared["mappings"] = {"properties": {"sold": {"type": "long"}}}
    [letter] = desk.work(desk.row(30, 3, "many"))
    assert isinstance(letter, DeadLetter)
    assert not desk.counts.conflicts
    # The configuration says another type than before: a conflict, once documents are refused.
    del desk.declared["mappings"]
    desk.declared["fields"] = {"sold": {"type": "keyword"}}
    assert desk.work(desk.row(40, 4, "7")) == []
    assert [(one.conflict.wants, one.chosen) for one in desk.counts.conflicts] == [("keyword", True)]
    [held] = desk.work(desk.row(50, 5, "many"))
    assert isinstance(held, Held)


def test_messages_that_are_held_come_back_as_the_dead_letters_that_they_would_have_been(desk: Desk) -> None:
    found = desk.work(desk.row(30, 3, "many"), desk.row(40, 4, "more"))
    elastic = desk.settings.elasticsearch
    with Cluster(elastic) as cluster:
        writer, kept = BulkWriter(elastic, cluster), HeldMessages(cluster, elastic, desk.name)
        assert (kept.count(), kept.conflicts()) == (0, frozenset())
        for _ in range(2):  # a batch that is done again
            assert list(hold(writer, elastic, [found[0], found[1]._replace(into="new")])) == []
        assert kept.count() == 2
        [[first]] = list(kept.ids(["new"], others=True))
        assert dead_letter_of(cluster.get_many(f"headrace-held.{desk.name}", [first])[0]["_source"]) == found[0].letter
        kept.forget([first])
        assert kept.count() == 1
        kept.note([desk.conflict])
        kept.give_up([desk.conflict])
        assert kept.conflicts() == kept.given_up() == {desk.conflict}
        kept.drop()
        assert (kept.count(), kept.given_up()) == (0, frozenset())


def test_what_is_noted_already_is_not_written_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer notes the conflict at each failure, and a write undoes what an operator gives up meanwhile."""
    with Cluster(desk.settings.elasticsearch) as cluster:
        held = HeldMessages(cluster, desk.settings.elasticsearch, desk.name)
        held.note([desk.conflict])
        written: list[Any] = []
        monkeypatch.setattr(cluster, "put_mapping", lambda *what: written.append(what))
        held.note([desk.conflict])
        assert (held.conflicts(), written) == ({desk.conflict}, [])
        held.note([desk.conflict, Conflict(desk.name, "more", "long", "text")])
        assert len(written) == 1
