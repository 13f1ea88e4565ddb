"""What the consumers' writer does on a real Elasticsearch: refused changes, indexes of others, deletes remembered."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch

from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_consume.applying import Applier
from headrace_consume.message import Message
from headrace_consume.settings import Settings as ConsumeSettings
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.index_setup import IndexRefused
from headrace_documents.errors import BulkError
from headrace_documents.indexes.projection import UnfitTable
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.dead_letters.records import DeadLetter
from headrace_spark.settings import KafkaSettings, Settings, SparkSettings
from headrace_spark.transform.worker import Record, Worker
from tests.canal_messages import TYPES, change, row
from tests.support import eventually

pytestmark = pytest.mark.server
_numbers = count(1)


class Desk:
    """An Elasticsearch, a table's name of the test's own, and workers that write into its index."""

    def __init__(self, server: ElasticsearchServer, name: str) -> None:
        self.url, self.name = server.url, name
        self.elastic = Elasticsearch(server.url)

    def work(self, *values: bytes, declares: list[dict[str, Any]] | None = None, **keys: Any) -> list[DeadLetter]:
        elastic = ElasticsearchSettings(hosts=[self.url], retries=0, **keys)
        kafka = KafkaSettings(bootstrap_servers="localhost:1", topics=["t"], dead_letter_topic="dead")
        declared = [IndexSettings.model_validate(one) for one in declares or ()]
        settings = Settings(kafka=kafka, elasticsearch=elastic, spark=SparkSettings(checkpoint="c"), index=declared)
        with Cluster(elastic) as cluster:
            records = [Record(None, value, "topic", 0, offset, None) for offset, value in enumerate(values)]
            return list(Worker(settings, BulkWriter(elastic, cluster)).run(records))

    def documents(self, index: str = "") -> dict[str, tuple[int, Any]]:
        index = index or f"shop.{self.name}"
        self.elastic.indices.refresh(index=index)
        found = self.elastic.search(index=index, size=1000, version=True)["hits"]["hits"]
        return {hit["_id"]: (hit["_version"], hit["_source"]) for hit in found}

    def mapping(self, index: str) -> dict[str, Any]:
        return self.elastic.indices.get_mapping(index=index).body[index]["mappings"]["properties"]


@pytest.fixture
def desk(elastic_server: ElasticsearchServer) -> Iterator[Desk]:
    made = Desk(elastic_server, f"writing{next(_numbers)}")
    yield made
    for index in made.elastic.indices.get(index=f"shop.{made.name}*"):
        made.elastic.indices.delete(index=index)
    made.elastic.close()


def reason(letter: DeadLetter) -> str:
    return (dict(letter.headers)["headrace-dead-reason"] or b"").decode()


def wrong(table: str, at: int, key: int) -> bytes:
    """A change of which Elasticsearch refuses the document: a text for a number."""
    return change(table, at, "UPDATE", row(key, sold="no number"), old=[{}])


@pytest.mark.parametrize("apart", [True, False])
def test_what_is_written_does_not_depend_on_where_a_batch_ends(desk: Desk, apart: bool) -> None:
    table = desk.name
    desk.work(change(table, 5, "INSERT", row(9)))  # sold is a number from now on
    values = [
        change(table, 10, "INSERT", row(1, "first")),
        change(table, 20, "UPDATE", row(1, "second"), old=[{}]),
        wrong(table, 30, 1),
        wrong(table, 40, 1),
    ]
    letters = [letter for value in values for letter in desk.work(value)] if apart else desk.work(*values)
    assert len(letters) == 2
    version, body = desk.documents()["1"]
    assert (version, body["name"]) == (20, "second")


def test_tables_that_only_look_alike_do_not_share_an_index(desk: Desk) -> None:
    upper, lower = desk.name.upper(), desk.name
    [letter] = desk.work(change(upper, 10, "INSERT", row(1, "upper")), change(lower, 20, "INSERT", row(1, "lower")))
    assert "has the documents of shop." in reason(letter)
    assert "another `index`" in reason(letter)
    held = desk.documents()["1"][1]["name"]
    assert held in ("upper", "lower")
    # Another process, which meets the other table first, knows whose index it is.
    other = change(lower if held == "upper" else upper, 30, "UPDATE", row(1, "other"), old=[{}])
    [letter] = desk.work(other)
    assert "has the documents of shop." in reason(letter)
    assert desk.documents()["1"][1]["name"] == held


def test_tables_that_share_an_index_on_purpose_do(desk: Desk) -> None:
    name = f"shop.{desk.name}"
    keys = {"index": name, "id_prefix": "{table}:"}
    assert desk.work(change("a", 1, "INSERT", row(1)), change("B", 2, "INSERT", row(1)), **keys) == []
    assert set(desk.documents()) == {"a:1", "B:1"}


def test_an_index_that_can_not_be_made_stops_no_other(desk: Desk) -> None:
    table, other = f"{desk.name}good", f"{desk.name}bad"
    desk.elastic.cluster.put_component_template(name=f"x{desk.name}", template={"settings": {}})
    desk.elastic.indices.put_index_template(
        name=f"x{desk.name}",
        index_patterns=[f"shop.{other}"],
        data_stream={},  # only a data stream may have such a name: the index can't be made
        priority=1000,
    )
    try:
        letters = desk.work(
            change(other, 1, "INSERT", row(1)), change(table, 2, "INSERT", row(1)), change(other, 3, "INSERT", row(2))
        )
    finally:
        desk.elastic.indices.delete_index_template(name=f"x{desk.name}")
    assert [f"index shop.{other} can't be prepared: 400" in reason(letter) for letter in letters] == [True, True]
    assert set(desk.documents(f"shop.{table}")) == {"1"}
    assert desk.work(*(letter.value or b"" for letter in letters)) == []
    assert set(desk.documents(f"shop.{other}")) == {"1", "2"}


def test_an_index_that_is_not_ours_to_change_is_refused_with_what_to_do(desk: Desk) -> None:
    value = change(desk.name, 1, "INSERT", row(1))
    [letter] = desk.work(value, create_index=False)
    assert f"there is no index shop.{desk.name}: make it" in reason(letter)
    desk.elastic.indices.create(index=f"shop.{desk.name}")
    [letter] = desk.work(value, create_index=False)
    assert "remembers deletes for 60s (index.gc_deletes), and gc_deletes is 1h" in reason(letter)
    assert desk.work(value, create_index=False, gc_deletes="60s") == []
    assert desk.work(value, create_index=False, deletes="tombstone") == []


def test_an_old_change_after_a_forgotten_delete_brings_the_document_back(desk: Desk) -> None:
    insert, delete = change(desk.name, 10, "INSERT", row(1)), change(desk.name, 20, "DELETE", row(1))
    desk.work(insert, delete, gc_deletes="0s")
    assert desk.documents() == {}

    def comes_back() -> bool:
        desk.work(insert, gc_deletes="0s")
        return "1" in desk.documents()

    eventually(comes_back)


def test_a_tombstone_keeps_the_version_of_what_was_deleted_for_ever(desk: Desk) -> None:
    insert, delete = change(desk.name, 10, "INSERT", row(1)), change(desk.name, 20, "DELETE", row(1))
    for _ in range(2):
        assert desk.work(insert, delete, insert, deletes="tombstone", gc_deletes="0s") == []
        assert desk.documents() == {"1": (20, {"headrace_deleted": True})}
    desk.work(change(desk.name, 30, "INSERT", row(1)), deletes="tombstone")
    version, body = desk.documents()["1"]
    assert (version, "headrace_deleted" in body) == (30, False)


def declared(desk: Desk, **more: Any) -> dict[str, Any]:
    return {"name": f"shop.{desk.name}.declared", "tables": rf"shop\.{desk.name}", **more}


def test_a_declared_index_has_mappings_by_type_and_takes_no_other_table(desk: Desk) -> None:
    index = declared(
        desk, fields={"title": {"column": "name", "type": "keyword"}}, settings={"index.number_of_replicas": 0}
    )
    assert (
        desk.work(
            change(desk.name, 10, "INSERT", row(1, "a")), change("others", 20, "INSERT", row(1)), declares=[index]
        )
        == []
    )
    name = index["name"]
    assert desk.documents(name) == {"1": (10, {"id": 1, "title": "a", "price": "9.90", "sold": 0})}
    found = desk.mapping(name)
    assert found["id"] == {"type": "long"}
    assert found["title"] == {"type": "keyword"}
    assert not desk.elastic.indices.exists(index="shop.others")


def test_a_column_that_is_new_has_its_mapping_before_a_document_that_has_it(desk: Desk) -> None:
    index = declared(desk)
    assert desk.work(change(desk.name, 10, "INSERT", row(1)), declares=[index]) == []
    types = {**TYPES, "city": "varchar(20)", "since": "datetime"}
    more = {**row(2), "city": "上海", "since": "2026-11-21 09:30:00"}
    assert desk.work(change(desk.name, 20, "INSERT", more, mysqlType=types), declares=[index]) == []
    found = desk.mapping(index["name"])
    assert found["since"] == {"type": "date"}
    assert found["city"]["fields"] == {"keyword": {"type": "keyword", "ignore_above": 256}}
    assert desk.documents(index["name"])["2"][1]["since"] == "2026-11-21T09:30:00+00:00"


def test_a_field_that_has_another_type_stays_and_what_does_not_fit_is_a_dead_letter(desk: Desk) -> None:
    index = declared(desk)
    mappings = {"properties": {"name": {"type": "long"}}}
    desk.elastic.indices.create(index=index["name"], mappings=mappings, settings={"index.gc_deletes": "1h"})
    letters = desk.work(
        change(desk.name, 10, "INSERT", row(1, "text")), change(desk.name, 20, "INSERT", row(2, "7")), declares=[index]
    )
    assert len(letters) == 1
    assert desk.mapping(index["name"])["name"] == {"type": "long"}
    assert desk.documents(index["name"]).keys() == {"2"}


def test_an_index_that_may_not_be_made_or_extended_says_which_fields_it_lacks(desk: Desk) -> None:
    index = declared(desk)
    desk.elastic.indices.create(index=index["name"], settings={"index.gc_deletes": "1h"})
    (letter,) = desk.work(change(desk.name, 10, "INSERT", row(1)), declares=[index], create_index=False)
    assert "has no field id" in reason(letter)


def test_routing_keeps_documents_and_their_deletes_in_one_shard(desk: Desk) -> None:
    index = declared(desk, routing="{name}", settings={"index.number_of_shards": 5, "index.number_of_replicas": 0})
    values = [change(desk.name, 10 * n, "INSERT", row(n, f"r{n}")) for n in range(1, 9)]
    assert desk.work(*values, declares=[index]) == []
    assert len(desk.documents(index["name"])) == 8
    moved = change(desk.name, 100, "UPDATE", row(1, "elsewhere"), old=[{"name": "r1"}])
    gone = change(desk.name, 110, "DELETE", row(2, "r2"))
    assert desk.work(moved, gone, declares=[index]) == []
    assert desk.documents(index["name"]).keys() == {"1", *(str(n) for n in range(3, 9))}
    assert desk.elastic.get(index=index["name"], id="1", routing="elsewhere")["found"]


def test_a_declaration_that_does_not_fit_the_table_makes_no_index(desk: Desk) -> None:
    index = declared(desk, id="{tabel}")
    with pytest.raises(UnfitTable, match=r"names \{tabel\}"):
        desk.work(change(desk.name, 10, "INSERT", row(1)), declares=[index])
    assert not desk.elastic.indices.exists(index=index["name"])


def test_an_index_that_is_declared_wrongly_stops_the_consumer_and_makes_no_dead_letter(desk: Desk) -> None:
    value = change(desk.name, 1, "INSERT", row(1))
    index = {"name": f"shop.{desk.name}", "tables": [rf"shop\.{desk.name}"]}
    reported = "analyzer \\[smartcnn\\] has not been configured"
    with pytest.raises(IndexRefused, match=rf"index shop\.{desk.name} can't be made as \[\[index\]\] .*{reported}"):
        desk.work(value, declares=[{**index, "analyzer": "smartcnn"}])
    with pytest.raises(IndexRefused, match=r"as \[elasticsearch\] has it: .*unknown setting"):
        desk.work(value, settings={"index.number_of_shard": 1})
    assert desk.work(value, declares=[index]) == []
    # A field that is added to an index that is there already.
    with pytest.raises(IndexRefused, match=reported):
        desk.work(
            value, declares=[{**index, "fields": {"more": {"column": "name", "mapping": {"analyzer": "smartcnn"}}}}]
        )
    assert set(desk.documents()) == {"1"}


def test_a_table_whose_name_no_index_can_have_is_still_a_dead_letter(desk: Desk) -> None:
    index = {"name": "{database}.{table}", "tables": [r"shop\..*"]}
    [letter] = desk.work(
        change(f"{desk.name} x", 1, "INSERT", row(1)), change(desk.name, 2, "INSERT", row(1)), declares=[index]
    )
    assert "index" in reason(letter)
    assert set(desk.documents()) == {"1"}


def test_the_consumer_of_rabbitmq_waits_for_an_index_that_is_declared_wrongly(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "mappings.json"
    file.write_text('{"properties": {"name": {"type": "text", "analyzer": "smartcnn"}}}')
    elastic = {"hosts": [desk.url], "retries": 0, "mappings_file": str(file)}
    rabbitmq = {"hosts": ["h:1"], "user": "u", "password": "p", "queue": "q"}
    settings = ConsumeSettings.model_validate({"rabbitmq": rabbitmq, "elasticsearch": elastic})
    with Cluster(settings.elasticsearch) as cluster:
        applier = Applier(settings, BulkWriter(settings.elasticsearch, cluster))
        with pytest.raises(BulkError, match=r"as \[elasticsearch\] has it: .*smartcnn"):
            applier.apply([Message(1, change(desk.name, 1, "INSERT", row(1)), "x", "k", {})])
