"""Documents of several tables where things go wrong: kills at bad moments, dead letters that are retried, keys of all
kinds, and configurations that change between two starts; in a real Elasticsearch."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import orjson
import pytest
from elasticsearch import Elasticsearch

from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.join_store import root_documents
from headrace_documents.formats.changes import Row, Rows
from headrace_documents.indexes.projection import UnfitTable
from headrace_documents.joins.tree import Document, JoinTrees
from headrace_spark.dead_letters.records import DeadLetter
from headrace_spark.transform.joining import RefusedDocument
from tests.joined_tables import SERVICES, canal_message, message

from .batches import Batches, documents
from .test_joining import Killed, statement

pytestmark = pytest.mark.server


def insert(table: str, row: Row, at: int) -> bytes:
    return canal_message(message(table, "INSERT", row, None, at))


def serve(key: str, item: str | None, at: int) -> bytes:
    return insert("serve", {"id": key, "name": "保洁", "item_id": item, "city": "北京"}, at)


def item(key: str, title: str, at: int) -> bytes:
    return insert("item", {"id": key, "title": title, "type_id": "3"}, at)


def dying(at: int) -> Any:
    """Raises Killed before the step of that number."""
    steps = count()

    def step() -> None:
        if next(steps) == at:
            raise Killed

    return step


@pytest.mark.parametrize("deletes", ["remove", "tombstone"])
@pytest.mark.parametrize("table", ["item", "serve", "price"])
def test_a_kill_between_the_rows_and_the_documents_of_an_emptied_table(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str, table: str, deletes: str
) -> None:
    batches = Batches(elastic_server.url, {**SERVICES, "name": name}, deletes=deletes)
    price = {"id": "5", "serve_id": "1", "unit": "次", "amount": "9.90"}
    batches.run([serve("1", "7", 10), serve("2", "7", 20), item("7", "日常", 30), insert("price", price, 40)])
    truncated = [statement("TRUNCATE", table, f"TRUNCATE {table}", 50)]
    with pytest.raises(Killed):
        batches.run(truncated, tasks=1, step=dying(2))  # the rows are gone, and no document was composed
    assert not batches.run(truncated)
    found = {key: body for key, body in documents(elastic, name).items() if body != {"headrace_deleted": True}}
    if table == "serve":
        assert not found
    else:
        assert found.keys() == {"1", "2"}
        assert not [body for body in found.values() if body.get("item_title" if table == "item" else "prices")]
    if deletes == "remove":
        rows = documents(elastic, f"headrace-rows.{name}")
        assert not [key for key in rows if key.startswith({"serve": "-", "price": "prices"}.get(table, table))]


def test_rows_that_were_deleted_and_left_a_mark_have_no_document_that_is_composed_again(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    batches = Batches(elastic_server.url, {**SERVICES, "name": name}, deletes="tombstone")
    row = {"id": "1", "name": "保洁", "item_id": "7", "city": "北京"}
    batches.run([serve("1", "7", 10), serve("2", "7", 20), canal_message(message("serve", "DELETE", row, None, 30))])
    elastic.indices.refresh(index=f"headrace-rows.{name}")
    assert "-" in {hit["_source"]["n"] for hit in hits(elastic, f"headrace-rows.{name}") if "o" not in hit["_source"]}
    tree = JoinTrees(batches.settings.index, tombstones=True).trees[name]
    with Cluster(batches.settings.elasticsearch) as cluster:
        assert list(root_documents(cluster, tree)) == [Document("2")]


def hits(elastic: Elasticsearch, index: str) -> list[dict[str, Any]]:
    return list(elastic.search(index=index, size=100)["hits"]["hits"])


def test_a_message_that_is_retried_composes_the_document_that_was_refused_for_it(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    mappings = {"properties": {"item_title": {"type": "long"}}}
    batches = Batches(elastic_server.url, {**SERVICES, "name": name, "mappings": mappings})
    batches.run([serve(str(key), str(key), 10 + key) for key in range(6)])
    titles = [item(str(key), "no number" if key == 4 else str(key), 100 + key) for key in range(6)]
    [refused] = batches.run(titles, tasks=1)
    assert isinstance(refused, RefusedDocument)
    assert refused.reason.startswith(f"document 4 of index {name}: 400")
    elastic.indices.delete(index=name)
    mended = Batches(elastic_server.url, {**SERVICES, "name": name})
    assert not mended.run([titles[refused.origin.offset]])
    assert documents(elastic, name)["4"]["item_title"] == "no number"


def test_a_statement_that_is_retried_finds_what_its_rows_touched(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    batches = Batches(elastic_server.url, {**SERVICES, "name": name})
    batches.run([serve("1", None, 10), priced("5", "1", 20), serve("2", None, 30)])
    elastic.indices.delete(index=name)
    elastic.indices.create(index=name, mappings={"properties": {"city": {"type": "long"}}})
    truncated = [statement("TRUNCATE", "price", "TRUNCATE price", 40)]
    [refused] = batches.run(truncated)
    assert isinstance(refused, RefusedDocument)
    assert refused.reason.startswith(f"document 1 of index {name}: 400")
    elastic.indices.delete(index=name)
    for found in ({"1"}, set()):  # the third time nothing is left of the rows
        assert not batches.run(truncated)
        assert documents(elastic, name).keys() == found
        elastic.indices.delete(index=name)


def priced(key: str, serve: str | None, at: int) -> bytes:
    return insert("price", {"id": key, "serve_id": serve, "unit": "次", "amount": "9.90"}, at)


def test_rows_of_a_list_come_by_their_keys_also_negative_ones(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    batches = Batches(elastic_server.url, {**SERVICES, "name": name})
    keys = ("10", "-3", "7", "-20", "0")
    batches.run([serve("1", None, 1), *(priced(key, "1", 10 + at) for at, key in enumerate(keys))])
    assert [one["id"] for one in documents(elastic, name)["1"]["prices"]] == [-20, -3, 0, 7, 10]


VALUES = (
    "A",
    "a",
    "a ",
    " a",
    "5",
    "05",
    "1.50",
    "1.5",
    "",
    "x" * 300,
    "é",
    "e\u0301",
    "[1]",
    '"',
    "=",
    "b^",
    "@",
    "|",
)


def test_values_that_a_collation_takes_for_equal_are_not_joined_and_null_is_not_either(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    join = {"name": "b", "tables": r"shop\.b", "on": {"k": "k"}, "shape": "list"}
    batches = Batches(elastic_server.url, {"name": name, "tables": r"shop\.a", "join": [join]})
    messages = []
    # Their types differ, as those of two tables may: what counts is the text.
    for table, kind in (("a", "varchar(300)"), ("b", "decimal(9,2)")):
        for key, value in enumerate((*VALUES, None)):
            row: Row = {"id": str(key), "k": value}
            types = {"id": "bigint", "k": kind}
            rows = Rows("shop", table, "INSERT", ("id",), types, [row], [None], 10 + key, 1, 0)
            messages.append(canal_message(rows))
    assert not batches.run(messages)
    found = {int(key): [one["id"] for one in body["b"]] for key, body in documents(elastic, name).items()}
    assert found == {**{key: [key] for key in range(len(VALUES))}, len(VALUES): []}


def test_more_rows_of_a_list_than_elasticsearch_nests_are_reported_and_fit_without_nesting(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    *others, prices = SERVICES["join"]
    some = [serve("1", None, 1), *(priced(str(key), "1", 10 + key) for key in range(20_000))]
    few = Batches(elastic_server.url, {**SERVICES, "name": name})
    [refused] = few.run(some)
    assert isinstance(refused, RefusedDocument)
    assert refused.reason == f"document 1 of index {name}: more than 10000 rows of prices belong to one row; see `most`"
    more = {**prices, "most": 30_000}
    [refused] = Batches(elastic_server.url, {**SERVICES, "name": name, "join": [*others, more]}).run(some[:1])
    assert isinstance(refused, RefusedDocument)
    assert "nested" in refused.reason
    elastic.indices.delete(index=name)
    flat = {**more, "nested": False}
    assert not Batches(elastic_server.url, {**SERVICES, "name": name, "join": [*others, flat]}).run(some[:1])
    assert [one["id"] for one in documents(elastic, name)["1"]["prices"]] == list(range(20_000))


def test_other_joins_than_those_that_rows_are_kept_for_stop_the_consumer(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    items, types, prices = SERVICES["join"]
    before = {**SERVICES, "name": name, "join": [items, types]}
    assert not Batches(elastic_server.url, before).run([serve("1", "7", 10), item("7", "x", 20)])
    on_other = {**prices, "on": {"id": "id"}}
    for changed in (
        {**before, "join": [items, types, prices]},
        {**before, "join": [items, {**types, "on": {"name": "type_id"}}]},
        {**before, "join": [items]},
        {**before, "id": "s{id}"},
        {**before, "routing": "{city}"},
        {**before, "join": [items, types, on_other]},
    ):
        with pytest.raises(UnfitTable, match=rf"index {name} were made with other joins.* rebuild --index {name}`"):
            Batches(elastic_server.url, changed).run([priced("5", "1", 30), serve("2", "7", 40)])
    # What only says how a row is shown may change.
    shown = {**before, "join": [{**items, "prefix": "i_"}, {**types, "shape": "fields"}], "drop": ["city"]}
    assert not Batches(elastic_server.url, shown).run([serve("2", "7", 40)])
    assert "i_title" not in documents(elastic, name)["1"]
    assert documents(elastic, name)["2"]["name"] == "保洁"


def test_a_first_join_of_an_index_that_has_documents_stops_the_consumer(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    assert not Batches(elastic_server.url, {**SERVICES, "name": name, "join": []}).run([serve("1", "7", 10)])
    elastic.indices.refresh(index=name)
    joined = {**SERVICES, "name": name}
    for _ in range(2):
        with pytest.raises(UnfitTable, match=rf"index {name} were made with other joins.* rebuild --index {name}`"):
            Batches(elastic_server.url, joined).run([item("7", "x", 20)])
    # One that was made beforehand, and has none, is as good as none.
    elastic.delete(index=name, id="1", refresh=True)
    assert not Batches(elastic_server.url, joined).run([item("7", "x", 20), serve("1", "7", 30)])
    assert documents(elastic, name)["1"]["item_title"] == "x"


@pytest.mark.parametrize("joined", [True, False])
def test_messages_of_debezium_without_schemas_have_their_columns_in_declared_indexes(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str, joined: bool
) -> None:
    index = {**SERVICES, "name": name}
    batches = Batches(elastic_server.url, index if joined else {**index, "join": []})

    def event(table: str, at: int, **row: Any) -> bytes:
        time = 1767225600000
        source = {"db": "shop", "table": table, "ts_ms": time, "file": "binlog.000001", "pos": at, "row": 0}
        return orjson.dumps({"before": None, "after": row, "op": "c", "ts_ms": time, "source": source})

    messages = [event("serve", 100, id=1, name="保洁", item_id=7, city=None)]
    if joined:
        messages += [
            event("item", 200, id=7, title="日常", type_id=3),
            event("price", 300, id=1, serve_id=1, unit="次"),
        ]
    assert not batches.run(messages, key=b'{"id": 1}')
    more = {"item_title": "日常", "type": None, "prices": [{"id": 1, "unit": "次"}]} if joined else {}
    assert documents(elastic, name) == {"1": {"id": 1, "name": "保洁", "city": None, **more}}


# -- one table in all places -----------------------------------------------------------------------------------------

_EMPLOYEE = {"id": "bigint", "name": "varchar(9)", "boss_id": "bigint"}
_STAFF = {
    "tables": r"shop\.staff",
    "settings": {"index.number_of_shards": 3},
    "drop": ["boss_id"],
    "join": [
        {"name": "boss", "tables": r"shop\.staff", "on": {"id": "boss_id"}, "drop": ["boss_id"]},
        {"name": "head", "tables": r"shop\.staff", "parent": "boss", "on": {"id": "boss_id"}, "shape": "object"},
        {"name": "reports", "tables": r"shop\.staff", "on": {"boss_id": "id"}, "shape": "list", "drop": ["boss_id"]},
        {
            "name": "under",
            "tables": r"shop\.staff",
            "parent": "reports",
            "on": {"boss_id": "id"},
            "shape": "list",
            "drop": ["boss_id"],
        },
    ],
}


class Staff:
    """A table that is joined with itself, and the messages of what is done to it."""

    def __init__(self, chance: random.Random) -> None:
        self.rows: dict[str, Row] = {}
        self.messages: list[bytes] = []
        self._chance, self._at = chance, 0

    def step(self) -> None:
        """A message of up to three rows."""
        chance, self._at = self._chance, self._at + 100
        pick, keys = chance.random(), [str(key) for key in chance.sample(range(10), chance.randint(1, 3))]
        there = [key for key in keys if key in self.rows]
        if pick < 0.03:
            self.rows.clear()
            self.messages.append(statement("TRUNCATE", "staff", "TRUNCATE staff", self._at))
        elif pick < 0.4:
            new = [self._row(key) for key in keys if key not in self.rows]
            self.rows |= {str(row["id"]): row for row in new}
            self._send("INSERT", new, None)
        elif pick < 0.6:
            self._send("DELETE", [self.rows.pop(key) for key in there], None)
        else:
            olds = [self.rows.pop(key) for key in there]
            rows = [self._changed(old) for old in olds]
            former = [
                {name: value for name, value in old.items() if row[name] != value}
                for old, row in zip(olds, rows, strict=True)
            ]
            self._send("UPDATE", rows, former)

    def _changed(self, old: Row) -> Row:
        row, other = {**old}, self._row(str(self._chance.randrange(10)))
        for column in ("name", "boss_id"):
            if self._chance.random() < 0.5:
                row[column] = other[column]
        if self._chance.random() < 0.2 and other["id"] not in self.rows:
            row["id"] = other["id"]
        if row["id"] in self.rows:  # one of the same message has taken it
            row["id"] = old["id"] if old["id"] not in self.rows else str(10 + len(self.messages))
        self.rows[str(row["id"])] = row
        return row

    def _row(self, key: str) -> Row:
        boss = None if self._chance.random() < 0.1 else str(self._chance.randrange(10))
        return {"id": key, "name": self._chance.choice("abc"), "boss_id": boss}

    def _send(self, kind: Any, rows: list[Row], olds: list[Row] | None) -> None:
        if rows:
            given = [dict(row) for row in rows]
            made = Rows(
                "shop", "staff", kind, ("id",), _EMPLOYEE, given, [*(olds or [None] * len(rows))], self._at, 1, 0
            )
            self.messages.append(canal_message(made))

    def join(self, name: str) -> dict[str, Any]:
        """The documents; `name` is the template of their ids."""
        return {name.format(**row): self._document(row) for row in self.rows.values()}

    def _document(self, row: Row) -> dict[str, Any]:
        made = _shown(row)
        if (boss := self.rows.get(row["boss_id"] or "")) is not None:
            head = self.rows.get(boss["boss_id"] or "")
            boss_id = None if head is None else head["boss_id"] and int(head["boss_id"])
            made |= {"boss_id": int(boss["id"]), "boss_name": boss["name"]}
            made["head"] = None if head is None else {**_shown(head), "boss_id": boss_id}
        made["reports"] = [
            {**_shown(one), "under": [_shown(other) for other in self._below(one)]} for one in self._below(row)
        ]
        return made

    def _below(self, boss: Row) -> list[Row]:
        return sorted(
            (one for one in self.rows.values() if one["boss_id"] == boss["id"]), key=lambda one: int(one["id"])
        )


def _shown(row: Row) -> dict[str, Any]:
    return {"id": int(row["id"]), "name": row["name"]}


@pytest.mark.parametrize("deletes", ["remove", "tombstone"])
@pytest.mark.parametrize("identity", [{}, {"id": "{name}-{id}", "routing": "{name}"}])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_table_that_is_joined_with_itself_in_several_places(
    elastic_server: ElasticsearchServer,
    elastic: Elasticsearch,
    name: str,
    seed: int,
    identity: dict[str, str],
    deletes: str,
) -> None:
    chance = random.Random(seed)
    staff = Staff(chance)
    batches = Batches(elastic_server.url, {**_STAFF, "name": name, **identity}, deletes=deletes)
    for _ in range(200):
        staff.step()
    left = [*staff.messages, *chance.choices(staff.messages, k=10)]
    chance.shuffle(left)

    def dies() -> None:
        if chance.random() < 0.1:
            raise Killed

    while left:
        batch, left = left[:40], left[40:]
        while True:
            try:
                assert not batches.run(batch, tasks=chance.randrange(1, 4), step=dies)
                break
            except Killed:
                chance.shuffle(batch)
    found = {key: body for key, body in documents(elastic, name).items() if body != {"headrace_deleted": True}}
    assert found == staff.join(identity.get("id", "{id}"))


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("update_first", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_a_row_that_moved_while_messages_were_lost_leaves_the_document_that_it_was_in(
    elastic_server: ElasticsearchServer,
    elastic: Elasticsearch,
    name: str,
    tasks: int,
    update_first: bool,
    killed: bool,
) -> None:
    batches = Batches(elastic_server.url, {**SERVICES, "name": name})
    prices = [{"id": "5", "serve_id": key, "unit": "次", "amount": "9.90"} for key in ("1", "2", "3")]
    batches.run([serve(key, "7", 10 + int(key)) for key in ("1", "2", "3")] + [insert("price", prices[0], 20)])
    assert documents(elastic, name)["1"]["prices"]
    # Of its move from 1 to 2 there is no message. The row is read again, and it moves to 3 at the same time.
    changes = [
        insert("price", prices[1], 40),
        canal_message(message("price", "UPDATE", prices[2], {"serve_id": "2"}, 50)),
    ]
    if update_first:
        changes.reverse()
    if killed:
        with pytest.raises(Killed):
            batches.run(changes, tasks=tasks, step=dying(tasks))
    assert not batches.run(changes, tasks=tasks)
    found = documents(elastic, name)
    assert [key for key in ("1", "2", "3") if found[key].get("prices")] == ["3"]


def test_a_message_without_a_column_of_a_join_is_a_dead_letter_and_the_others_go_on(
    elastic_server: ElasticsearchServer, elastic: Elasticsearch, name: str
) -> None:
    batches = Batches(elastic_server.url, {**SERVICES, "name": name})
    older = message("serve", "INSERT", {"id": "1", "name": "保洁", "city": "北京"}, None, 10)
    others = Rows(
        "shop", "item", "INSERT", ("k",), {"k": "int", "type_id": "int"}, [{"k": "1", "type_id": "3"}], [None], 15, 1, 0
    )
    types = {column: kind for column, kind in older.types.items() if column != "item_id"}
    made = batches.run(
        [canal_message(older._replace(types=types)), canal_message(others), serve("2", "7", 20), item("7", "日常", 30)]
    )
    reasons = sorted(dict(one.headers)["headrace-dead-reason"].decode() for one in made if isinstance(one, DeadLetter))
    assert reasons == [
        f"index {name} names column 'item_id', and shop.serve has none of that name",
        f"index {name}, join item, names column 'id', and shop.item has none of that name",
    ]
    assert len(made) == 2
    assert {key: body["item_title"] for key, body in documents(elastic, name).items()} == {"2": "日常"}
    # The row as it is now has its document all the same.
    assert not batches.run([serve("1", "7", 40)])
    assert set(documents(elastic, name)) == {"1", "2"}
