"""Documents of several tables in a real Elasticsearch, and tables that are emptied."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from elasticsearch import Elasticsearch

from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.formats.changes import Row
from headrace_documents.indexes.projection import UnfitTable
from headrace_spark.dead_letters.records import DeadLetter
from headrace_spark.transform.joining import RefusedDocument
from tests.canal_messages import change, row
from tests.joined_tables import SERVICES, Source, canal_message, message

from .batches import Batches, documents

pytestmark = pytest.mark.server


class Killed(Exception):
    pass


def joined(server: ElasticsearchServer, name: str, **more: Any) -> Batches:
    return Batches(server.url, {**SERVICES, "name": name, **more})


def statement(kind: str, table: str, sql: str, at: int, database: str = "shop") -> bytes:
    made = {"_pos": str(at), "database": database, "table": table, "isDdl": True, "type": kind, "sql": sql, "id": 1}
    return orjson.dumps({**made, "es": 1767225600000, "ts": 1767225600001, "data": None, "old": None, "pkNames": None})


@pytest.mark.parametrize("seed", range(3))
def test_batches_done_again_after_kills_with_late_and_double_messages_give_the_join(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str, seed: int
) -> None:
    chance = random.Random(seed)
    source, batches = Source(chance), joined(elastic_server, name)
    for _ in range(300):
        source.step()
    left = [*source.messages, *chance.choices(source.messages, k=20)]
    chance.shuffle(left)

    def dies() -> None:
        if chance.random() < 0.15:
            raise Killed

    while left:
        batch, left = left[:60], left[60:]
        while True:
            try:
                assert not batches.run([canal_message(one) for one in batch], tasks=chance.randrange(1, 4), step=dies)
                break
            except Killed:
                chance.shuffle(batch)
    assert documents(elastic, name) == source.join()


def serve(key: str, at: int, **more: Any) -> bytes:
    row: Row = {"id": key, "name": "保洁", "item_id": "7", "city": "北京", **more}
    return canal_message(message("serve", "INSERT", row, None, at))


def item(title: str, at: int) -> bytes:
    return canal_message(message("item", "INSERT", {"id": "7", "title": title, "type_id": "3"}, None, at))


def test_a_row_that_many_documents_have_reaches_them_all_page_by_page(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    batches = joined(elastic_server, name)
    batches.run([item("前", 5), *(serve(str(number), 10 + number) for number in range(4500))])
    assert not batches.run([item("后", 9000)])
    assert batches.counts["composed"] == batches.counts["resolved"] == 4500
    elastic.indices.refresh(index=name)
    found = elastic.count(index=name, query={"match_phrase": {"item_title": "后"}})
    assert found["count"] == 4500


def test_a_document_that_the_index_refuses_is_named_and_the_rest_is_written(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    mappings = {"properties": {"item_title": {"type": "long"}}}
    batches = joined(elastic_server, name, mappings=mappings)
    (refused,) = batches.run([serve("1", 10), item("not a number", 20), serve("2", 30, item_id=None)])
    assert isinstance(refused, RefusedDocument)
    assert refused.reason.startswith(f"document 1 of index {name}: 400 document_parsing_exception")
    assert documents(elastic, name).keys() == {"2"}
    assert not batches.run([item("12", 40)])
    assert documents(elastic, name)["1"]["item_title"] == "12"


def test_an_index_keeps_the_mapping_of_each_table_as_they_come(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    batches = joined(elastic_server, name)
    batches.run([serve("1", 10)])
    price = {"id": "5", "serve_id": "1", "unit": "次", "amount": "9.90"}
    batches.run([canal_message(message("price", "INSERT", price, None, 20)), item("x", 30)])
    properties = elastic.indices.get_mapping(index=name).body[name]["mappings"]["properties"]
    assert properties["prices"]["type"] == "nested"
    assert properties["prices"]["properties"]["amount"]["type"] == "keyword"
    assert properties["item_title"]["type"] == "text"
    rows = elastic.indices.get(index=f"headrace-rows.{name}").body[f"headrace-rows.{name}"]
    assert rows["settings"]["index"]["refresh_interval"] == "-1"
    assert rows["settings"]["index"]["gc_deletes"] == "1h"


# -- tables that are emptied ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["TRUNCATE", "ERASE"])
@pytest.mark.parametrize("deletes", ["remove", "tombstone"])
def test_documents_of_an_emptied_table_go_and_older_changes_that_come_later_too(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str, kind: str, deletes: str
) -> None:
    batches = Batches(elastic_server.url, deletes=deletes)
    index, sql = (
        f"shop.{name}",
        f"DROP TABLE `other`.`x`, `{name}` /* generated by server */" if kind == "ERASE" else "",
    )
    newer = change(name, 6000, "INSERT", row(3))
    assert not batches.run([change(name, 100, "INSERT", *map(row, range(1, 1500)))])
    # In one batch: what is newer stays, wherever it is read.
    assert not batches.run([newer, statement(kind, name, sql, 5000)])
    left = {key for key, body in documents(elastic, index).items() if body != {"headrace_deleted": True}}
    assert left == {"3"}
    # Another partition is behind: its changes are gone already, also of rows that no document was of.
    batches.run([change(name, 4000, "INSERT", row(9000), row(1)), change(name, 7000, "INSERT", row(4))])
    left = {key for key, body in documents(elastic, index).items() if body != {"headrace_deleted": True}}
    assert left == {"3", "4"}
    # The statement once more, as from a checkpoint of before.
    assert not batches.run([statement(kind, name, sql, 5000)])
    left = {key for key, body in documents(elastic, index).items() if body != {"headrace_deleted": True}}
    assert left == {"3", "4"}
    elastic.indices.delete(index=index)
    elastic.indices.delete(index="other.x", ignore_unavailable=True)


def test_an_emptied_member_of_a_join_changes_the_documents_that_had_its_rows(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    batches = joined(elastic_server, name)
    batches.run([serve("1", 10), serve("2", 20), item("日常", 30)])
    assert {body["item_title"] for body in documents(elastic, name).values()} == {"日常"}
    assert not batches.run([statement("TRUNCATE", "item", "TRUNCATE item", 40), serve("3", 50)])
    found = documents(elastic, name)
    assert found.keys() == {"1", "2", "3"}
    assert not any("item_title" in body for body in found.values())
    batches.run([item("late", 35)])
    assert not any("item_title" in body for body in documents(elastic, name).values())
    batches.run([statement("ERASE", "serve", "DROP TABLE serve", 60), serve("4", 70)])
    assert documents(elastic, name).keys() == {"4"}


def test_tables_that_share_an_index_are_distinguished_by_a_field_or_the_consumer_stops(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    shared = {"name": name, "tables": r"shop\.serve_\d", "id": "{table}:{id}"}
    rows = [change(f"serve_{number}", 10, "INSERT", row(1)) for number in (1, 2)]
    with pytest.raises(UnfitTable, match=r"nothing says which documents of index .* are its: set table_field"):
        Batches(elastic_server.url, shared).run([*rows, statement("TRUNCATE", "serve_1", "", 50)])
    ignoring = Batches(elastic_server.url, {**shared, "on_truncate": "ignore"})
    assert not ignoring.run([statement("TRUNCATE", "serve_1", "", 50)])
    batches = Batches(elastic_server.url, {**shared, "table_field": "source"})
    batches.run([*rows, statement("TRUNCATE", "serve_1", "", 50)])
    assert {key: body["source"] for key, body in documents(elastic, name).items()} == {"serve_2:1": "shop.serve_2"}
    with pytest.raises(UnfitTable, match="on_truncate is refuse"):
        Batches(elastic_server.url, on_truncate="refuse").run([statement("TRUNCATE", "a", "", 50)])
    with pytest.raises(UnfitTable, match=r"declare it with \[\[index\]\] and table_field"):
        Batches(elastic_server.url, index="all").run([statement("TRUNCATE", "a", "", 50)])


def test_emptied_partitions_become_dead_letters(elastic_server: ElasticsearchServer) -> None:
    sql = "ALTER TABLE a DROP PARTITION p0"
    (letter,) = Batches(elastic_server.url).run([statement("ALTER", "a", sql, 50)])
    assert isinstance(letter, DeadLetter)
    assert b"partitions of shop.a" in (dict(letter.headers)["headrace-dead-reason"] or b"")
