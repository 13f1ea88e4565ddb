"""What the consumers ask of Elasticsearch and of OpenSearch: the same of both, on real ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from headrace_documents.documents import Action
from headrace_documents.elastic import bulk as elastic
from headrace_documents.elastic.bulk import BulkWriter, Rejected
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ApiError, BulkError, SettingsError
from headrace_documents.formats.changes import Rows
from headrace_documents.indexes.plans import Indexes
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.indexes.types import TypeRules, field_type
from headrace_documents.messages import read
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.rebuild.aliases import behind, move
from headrace_spark.sink.writer import PatientWriter
from headrace_spark.status.counting import Counts
from tests.canal_messages import change, row

pytestmark = pytest.mark.server
_numbers = count(1)
FIXTURES = {"Elasticsearch": "elastic_server", "OpenSearch": "opensearch_server"}
NOT_IN_THE_BUILD = {"Elasticsearch": {"unsigned_long", "scaled_float"}, "OpenSearch": set[str]()}
"""Types of modules that this Elasticsearch is without."""
OF_THE_OTHER = {"Elasticsearch": ("flat_object", "flattened"), "OpenSearch": ("flattened", "flat_object")}


class Desk:
    """A server, and an index of the test's own."""

    def __init__(self, product: str, url: str) -> None:
        self.product, self.url, self.index = product, url, f"products{next(_numbers)}"
        self.cluster = Cluster(self.settings())

    def settings(self, **keys: Any) -> ElasticsearchSettings:
        return ElasticsearchSettings(hosts=[self.url], **{"retries": 0, **keys})

    def writer(self, **keys: Any) -> BulkWriter:
        return BulkWriter(self.settings(**keys), self.cluster)

    def put(self, *ids: str, version: int = 1, **keys: Any) -> list[Rejected]:
        return self.writer(**keys).write([Action(self.index, one, version, {"v": version}, 0) for one in ids])

    def versions(self) -> dict[str, int]:
        self.cluster.refresh(self.index)
        found = self.cluster.search_pages(self.index, version=True)
        return {hit["_id"]: hit["_version"] for hits in found for hit in hits}

    def open_searches(self) -> int:
        nodes = self.cluster.call("GET", "_nodes/stats/indices/search")["nodes"].values()
        return sum(node["indices"]["search"]["open_contexts"] for node in nodes)


def rows(value: bytes) -> Rows:
    message = read(value)
    assert isinstance(message, Rows)
    return message


@pytest.fixture(params=FIXTURES)
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(request.param, request.getfixturevalue(FIXTURES[request.param]).url)
    yield made
    if made.cluster.exists(made.index):
        made.cluster.call("DELETE", (made.index,))
    made.cluster.close()


def test_the_product_is_known(desk: Desk) -> None:
    assert desk.cluster.product.name == desk.product
    assert len(desk.cluster.product.version) == 3
    elastic.check(desk.settings())


def test_the_newest_version_stays_and_deletes_are_remembered(desk: Desk) -> None:
    writer = desk.writer()
    first = [Action(desk.index, str(n), 10, {"n": 1}, 0) for n in range(4)]
    assert writer.write(first) == []
    assert writer.write([Action(desk.index, "1", 20, None, 0), Action(desk.index, "2", 20, {"n": 2}, 0)]) == []
    assert writer.write(first) == []
    assert writer.write([Action(desk.index, "9", 5, None, 0)]) == []
    assert desk.versions() == {"0": 10, "2": 20, "3": 10}
    # Of the same version, once more, is no conflict: a repeated batch does harmless work.
    assert (writer.tally.indexed, writer.tally.deleted, writer.tally.stale) == (4 + 1 + 2, 2, 2)
    assert desk.cluster.index_settings(desk.index)[desk.index]["index.gc_deletes"] == "1h"


def test_an_index_of_others_is_given_a_longer_memory_of_deletes(desk: Desk) -> None:
    desk.cluster.create_index(desk.index, {"settings": {"index.gc_deletes": "10m"}})
    [refused] = desk.put("1", create_index=False)
    assert "remembers deletes for 10m (index.gc_deletes), and gc_deletes is 1h" in refused.reason
    assert desk.put("1", gc_deletes="90m") == []
    assert desk.cluster.index_settings(desk.index)[desk.index]["index.gc_deletes"] == "90m"
    assert desk.put("2", gc_deletes="10m") == []
    assert desk.cluster.index_settings(desk.index)[desk.index]["index.gc_deletes"] == "90m", "more is no harm"


COLUMNS = {
    "b": ("tinyint(1)", "1", True), "i": ("int", "-5", -5), "u": ("bigint unsigned", str(2**64 - 1), 2**64 - 1),
    "f": ("float", "1.5", 1.5), "d": ("double", "2.5", 2.5), "n": ("decimal(10,2)", "9.90", 9.9),
    "big": ("decimal(40,2)", "9.90", "9.90"), "s": ("varchar(20)", "保洁", "保洁"), "j": ("json", "[1]", "[1]"),
    "e": ("enum('a','b')", "a", "a"), "day": ("date", "2026-11-23", "2026-11-23"),
    "at": ("datetime", "2026-11-23 10:00:00", "2026-11-23T10:00:00+00:00"), "ip": ("inet6", "::1", "::1"),
    "bin": ("varbinary(9)", "AQI=", "AQI="),
}  # fmt: skip


def test_an_index_is_made_of_all_types_that_columns_have(desk: Desk) -> None:
    rules = TypeRules(decimals="scaled_float", booleans=True)
    mapped = {name: field_type(text, rules).mapping or {} for name, (text, _, _) in COLUMNS.items()}
    columns = {n: one for n, one in COLUMNS.items() if mapped[n]["type"] not in NOT_IN_THE_BUILD[desk.product]}
    declared = {"name": desk.index, "tables": r"shop\.t", "decimals": "scaled_float", "booleans": True}
    indexes = Indexes([IndexSettings.model_validate(declared)], tombstones=False)
    types = {"id": "bigint", **{name: kind for name, (kind, _, _) in columns.items()}}
    data = {"id": "1", **{name: text for name, (_, text, _) in columns.items()}}
    message = rows(change("t", 10, "INSERT", data, mysqlType=types))
    [plan] = indexes.plans(message)
    writer = desk.writer()
    writer.indexes.declare(plan.target, plan.settings, plan.properties)
    assert writer.write(plan.actions(message)) == []
    properties = desk.cluster.mappings(desk.index)[desk.index]["properties"]
    assert {name: properties[name]["type"] for name in columns} == {n: mapped[n]["type"] for n in columns}
    [found] = desk.cluster.get_many(desk.index, ["1"])
    assert found["_source"] == {"id": 1, **{name: value for name, (_, _, value) in columns.items()}}
    desk.cluster.refresh(desk.index)
    for name in columns.keys() & {"u", "n", "ip", "b", "e", "day"}:
        pages = desk.cluster.search_pages(desk.index, {"term": {name: columns[name][2]}})
        assert [hit["_id"] for hits in pages for hit in hits] == ["1"], name


def test_a_type_of_the_other_product_is_reported_before_anything_is_created(desk: Desk) -> None:
    other, own = OF_THE_OTHER[desk.product]
    index = IndexSettings.model_validate(
        {"name": desk.index, "tables": r"shop\.t", "fields": {"tags": {"column": "name", "type": other}}}
    )
    reported = f"{desk.cluster.product} has no mapping type {other}; it has {own}"
    with pytest.raises(SettingsError) as caught:
        elastic.check(desk.settings(), [index])
    assert str(caught.value) == f"[[index]] {desk.index}: field tags: {reported}"
    message = rows(change("t", 10, "INSERT", row(1)))
    [plan] = Indexes([index], tombstones=False).plans(message)
    writer = desk.writer()
    writer.indexes.declare(plan.target, plan.settings, plan.properties)
    [refused] = writer.write(plan.actions(message))
    assert refused.reason == f"index {desk.index} can't be made as it is declared: field tags: {reported}"
    assert not desk.cluster.exists(desk.index)
    # A field that is added to an index that is there already is looked at too.
    desk.cluster.create_index(desk.index, {"settings": {"index.gc_deletes": "1h"}})
    writer = desk.writer()
    writer.indexes.declare(plan.target, plan.settings, plan.properties)
    [refused] = writer.write(plan.actions(message))
    assert reported in refused.reason
    assert "properties" not in desk.cluster.mappings(desk.index)[desk.index]


@pytest.mark.parametrize(
    "settings",
    [{"index.blocks.read_only_allow_delete": True}, {"index.blocks.write": True}, {"index.blocks.read_only": True}],
    ids=["flood stage", "write", "read only"],
)
def test_a_blocked_index_puts_no_document_aside(desk: Desk, settings: dict[str, Any]) -> None:
    assert desk.put("1") == []
    writer = desk.writer()
    assert writer.write([Action(desk.index, "2", 1, {}, 0)]) == []
    desk.cluster.put_settings(desk.index, settings)
    try:
        # One that has looked at the index before; one that has not; and one that would note there whose the index is.
        for one, owner in ((writer, ()), (desk.writer(), ()), (desk.writer(), ("shop", "t"))):
            with pytest.raises(BulkError, match="cluster_block_exception"):
                one.write([Action(desk.index, "3", 2, {"v": 2}, 0, owner)])
    finally:
        desk.cluster.put_settings(desk.index, dict.fromkeys(settings))
    assert desk.put("3") == []


def test_a_closed_index_puts_no_document_aside(desk: Desk) -> None:
    writer = desk.writer()
    assert writer.write([Action(desk.index, "1", 1, {}, 0)]) == []
    desk.cluster.call("POST", (desk.index, "_close"))
    with pytest.raises(BulkError, match="index_closed_exception"):
        writer.write([Action(desk.index, "2", 1, {}, 0)])


def test_while_the_name_of_an_index_is_moved_no_document_is_put_aside(desk: Desk) -> None:
    """A request that has named the index before, and comes to it after it was deleted."""
    end, wrote, rejected = threading.Event(), threading.Semaphore(0), list[Rejected]()

    def write(number: int) -> None:
        with Cluster(desk.settings()) as cluster:
            writer = PatientWriter(desk.settings(), cluster, Counts(), sleep=lambda _: time.sleep(0.01))
            for version in count(1):
                actions = [Action(desk.index, f"{number}-{n}", version, {"v": version}, 0) for n in range(200)]
                rejected.extend(writer.write(actions))
                wrote.release()
                if end.is_set():
                    return

    desk.put("1")
    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    try:
        for one in threads:
            one.start()
        for number in range(2, 8):
            for _ in range(6):
                assert wrote.acquire(timeout=30)
            if number % 2:  # the name is that of an index again
                desk.cluster.delete_index(f"{desk.index}-{number - 1:06d}")
            else:
                into = f"{desk.index}-{number:06d}"
                desk.cluster.create_index(into, {"settings": {"index.gc_deletes": "1h"}})
                move(desk.cluster, {desk.index: into})
    finally:
        end.set()
        for one in threads:
            one.join()
    assert rejected == []


def test_an_index_that_a_consumer_creates_while_its_name_is_moved_is_replaced(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, call = f"{desk.index}-000002", desk.cluster.call
    desk.cluster.create_index(into, {})

    def later(method: str, path: Any, *rest: Any, **more: Any) -> Any:
        if path == "_aliases" and not desk.cluster.exists(desk.index):
            assert desk.put("1") == []
        return call(method, path, *rest, **more)

    monkeypatch.setattr(desk.cluster, "call", later)
    move(desk.cluster, {desk.index: into})
    assert behind(desk.cluster, desk.index) == ((into,), True)
    desk.cluster.delete_index(into)


def test_a_cluster_that_takes_no_more_shards_says_so(desk: Desk) -> None:
    assert desk.put("1") == []
    limit = "cluster.max_shards_per_node"
    desk.cluster.call("PUT", "_cluster/settings", {"transient": {limit: 1}})
    try:
        [refused] = desk.writer().write([Action(f"{desk.index}.more", "1", 1, {}, 0)])
        assert f"index {desk.index}.more can't be prepared: 400" in refused.reason
        assert "maximum" in refused.reason
        assert desk.put("2") == [], "indexes that are there go on"
    finally:
        desk.cluster.call("PUT", "_cluster/settings", {"transient": {limit: None}})


def test_a_server_that_is_full_of_requests_is_asked_again(desk: Desk) -> None:
    assert desk.put("1") == []
    limit = "network.breaker.inflight_requests.limit"
    waits = []

    def better(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            desk.cluster.call("PUT", "_cluster/settings", {"transient": {limit: None}})

    actions = [Action(desk.index, str(n), 1, {"text": "x" * 500}, 0) for n in range(20)]
    desk.cluster.call("PUT", "_cluster/settings", {"transient": {limit: "3kb"}})
    try:
        with pytest.raises(BulkError, match="did not take 20 actions after 0 retries: 429 circuit_breaking_exception"):
            desk.writer().write(actions)
        assert BulkWriter(desk.settings(retries=3), desk.cluster, better).write(actions) == []
    finally:
        desk.cluster.call("PUT", "_cluster/settings", {"transient": {limit: None}})
    assert len(waits) == 2
    assert len(desk.versions()) == 20


@pytest.mark.parametrize("sort", [None, [{"v": "asc"}]], ids=["no order", "all alike"])
def test_pages_are_of_one_moment_and_have_each_document_once(desk: Desk, sort: list[Any] | None) -> None:
    """All documents share their place in the second order, more of them than a page has."""
    few = {"index.number_of_replicas": 0}
    desk.cluster.create_index(desk.index, {"settings": {"index.number_of_shards": 3, "index.gc_deletes": "1h", **few}})
    ids = [str(n) for n in range(2000)]
    desk.put(*ids)
    desk.cluster.refresh(desk.index)
    pages = desk.cluster.search_pages(desk.index, size=301, source=["v"], sort=sort, version=True, seq_no=True)
    found = next(pages)
    assert len(found) == 301
    writer = desk.writer()
    writer.write([Action(desk.index, one, 2, None, 0) for one in ids[:500]])
    writer.write([Action(desk.index, one, 2, {"v": 2}, 0) for one in [*ids[500:], "new"]])
    desk.cluster.refresh(desk.index)
    rest = list(pages)
    assert max(map(len, rest)) <= 301
    found = [*found, *(hit for hits in rest for hit in hits)]
    assert sorted(hit["_id"] for hit in found) == sorted(ids)
    assert {(hit["_version"], hit["_source"]["v"], hit["_primary_term"]) for hit in found} == {(1, 1, 1)}
    assert all("_seq_no" in hit for hit in found)
    assert desk.versions() == dict.fromkeys([*ids[500:], "new"], 2)
    assert desk.open_searches() == 0


def test_parts_that_are_read_one_after_the_other_have_each_document_once(desk: Desk) -> None:
    few = {"index.number_of_shards": 2, "index.number_of_replicas": 0}
    desk.cluster.create_index(desk.index, {"settings": few})
    ids = [str(n) for n in range(1000)]
    desk.put(*ids)
    desk.cluster.refresh(desk.index)
    found: list[str] = []
    with desk.cluster.moment(desk.index) as moment:
        for number in range(5):
            pages = desk.cluster.search_pages(desk.index, size=70, source=False, part=(number, 5), moment=moment)
            some = [hit["_id"] for hits in pages for hit in hits]
            assert 0 < len(some) < 500
            found += some
            # Written again, a document stands elsewhere in the index, and in the same part.
            desk.writer().write([Action(desk.index, one, 2 + number, {"v": 2}, 0) for one in ids])
            desk.cluster.refresh(desk.index)
    assert sorted(found) == sorted(ids)
    assert desk.open_searches() == 0


def test_pages_that_are_left_keep_nothing_open(desk: Desk) -> None:
    desk.put(*map(str, range(20)))
    desk.cluster.refresh(desk.index)
    pages = desk.cluster.search_pages(desk.index, {"term": {"v": 1}}, size=3, source=False)
    assert [set(hit) & {"_source", "_version"} for hit in next(pages)] == [set(), set(), set()]
    assert desk.open_searches() > 0
    pages.close()
    assert desk.open_searches() == 0
    assert list(desk.cluster.search_pages(desk.index, {"term": {"v": 9}})) == []
    with pytest.raises(ApiError, match="404 index_not_found_exception"):
        list(desk.cluster.search_pages(f"{desk.index}.none"))
    with pytest.raises(ApiError, match="400 "):
        list(desk.cluster.search_pages(desk.index, {"no_such_query": {}}))
    assert desk.open_searches() == 0


def test_documents_by_their_ids(desk: Desk) -> None:
    shards = {"index.number_of_shards": 5, "index.number_of_replicas": 0, "index.gc_deletes": "1h"}
    desk.cluster.create_index(desk.index, {"settings": shards})
    actions = [
        Action(desk.index, f"{n}/保", n + 1, {"n": n, "m": {"a": 1, "b": 2}}, 0, routing=f"r{n}") for n in range(8)
    ]
    assert desk.writer().write(actions) == []
    ids, routings = [f"{n}/保" for n in range(9)], [f"r{n}" for n in range(9)]
    found = desk.cluster.get_many(desk.index, ids, ["m.a"], routings)
    assert [one["found"] for one in found] == [True] * 8 + [False]
    assert [(one["_id"], one["_version"], one["_source"]) for one in found[:8]] == [
        (f"{n}/保", n + 1, {"m": {"a": 1}}) for n in range(8)
    ]
    assert all({"_seq_no", "_primary_term"} <= one.keys() for one in found[:8])
    assert "_source" not in desk.cluster.get_many(desk.index, ids[:1], False, routings[:1])[0]
    with pytest.raises(ApiError, match="404 index_not_found_exception"):
        desk.cluster.get_many(f"{desk.index}.none", ids)
