"""Documents of several tables: in whatever order changes come and whatever is done again, the end is the join."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from headrace_documents.documents import Action
from headrace_documents.errors import BulkError, MessageError
from headrace_documents.formats.changes import Rows
from headrace_documents.indexes.projection import UnfitTable
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.joins.composing import Composer, DocumentStore, Outcome, RowStore, Seen, Write, resolve
from headrace_documents.joins.tree import Document, JoinTrees, MemberRow, keep_former, stored_row
from tests.joined_tables import SERVICES, TYPES, Source, message


def trees(**more: Any) -> JoinTrees:
    return JoinTrees([IndexSettings.model_validate(SERVICES | more)])


class ToyRows(RowStore):
    """Versions as Elasticsearch has them; searches see what was refreshed."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.there: dict[str, Any] = {}
        self._found: dict[str, Any] = {}

    def apply(self, action: Action) -> None:
        if action.version >= self.versions.get(action.id, 0):
            self.versions[action.id] = action.version
            self.there.pop(action.id, None)
            if action.body is not None:
                self.there[action.id] = copy.deepcopy(action.body)

    def get(self, names: Sequence[str]) -> list[MemberRow]:
        return [stored_row(name, self.there[name]) for name in names if name in self.there]

    def find(self, tokens: Iterable[str], *, fields: bool) -> Iterator[list[MemberRow]]:
        wanted = set(tokens)
        rows = [stored_row(name, body) for name, body in self._found.items() if wanted & set(body["j"])]
        for start in range(0, len(rows), 2):
            yield rows[start : start + 2]

    def refresh(self) -> None:
        self._found = dict(self.there)


class ToyDocuments(DocumentStore):
    def __init__(self) -> None:
        self.bodies: dict[Document, Any] = {}
        self.writes = 0
        self._numbers: dict[Document, int] = {}

    def seen(self, documents: Sequence[Document]) -> dict[Document, Seen]:
        return {one: Seen(self._numbers[one], 1) for one in documents if one in self.bodies}

    def write(self, writes: Sequence[Write]) -> Outcome:
        beaten = []
        for one in writes:
            now = Seen(self._numbers[one.document], 1) if one.document in self.bodies else None
            if now != one.seen:
                beaten.append(one.document)
                continue
            self.writes += 1
            self._numbers[one.document] = self.writes
            if one.body is None:
                del self.bodies[one.document]
            else:
                self.bodies[one.document] = copy.deepcopy(one.body)
        return Outcome(beaten, [])


class Crash(Exception):
    pass


class Consumer:
    """The steps of a batch: rows are written, then documents found, then composed."""

    def __init__(self, **more: Any) -> None:
        self.trees = trees(**more)
        (self.tree,) = self.trees.trees.values()
        self.rows, self.documents = ToyRows(), ToyDocuments()

    def batch(self, messages: Iterable[Rows], dies: float = 0.0, chance: random.Random | None = None) -> None:
        def step() -> None:
            if chance is not None and chance.random() < dies:
                raise Crash

        touched: dict[Any, None] = {}
        for one in messages:
            for plan in self.trees.plans(one):
                for change in plan.changes(one):
                    kept = {row.id: row for row in self.rows.get([action.id for action in change.actions])}
                    touched |= dict.fromkeys(keep_former(change.actions, kept, change.before))
                    touched |= dict.fromkeys(change.touched)
                    for action in change.actions:
                        self.rows.apply(action)
                        step()
        self.rows.refresh()
        documents = [one for one in touched if isinstance(one, Document)]
        tokens = {one: one for one in touched if isinstance(one, str)}
        documents += [document for document, _ in resolve(self.rows, tokens)]
        for document in dict.fromkeys(documents):
            step()
            assert not list(Composer(self.tree, self.rows, self.documents).run([document]))

    def found(self) -> dict[str, Any]:
        return {document.id: body for document, body in self.documents.bodies.items()}


@pytest.mark.parametrize("seed", range(60))
def test_batches_in_commit_order_give_the_join_at_the_end_of_each(seed: int) -> None:
    chance = random.Random(seed)
    source, consumer, done = Source(chance), Consumer(), 0
    for _ in range(12):
        for _ in range(chance.randrange(1, 30)):
            source.step()
        consumer.batch(source.messages[done:])
        done = len(source.messages)
        assert consumer.found() == source.join()


@pytest.mark.parametrize("seed", range(120))
def test_whatever_comes_late_or_twice_or_is_done_again_after_a_kill_the_end_is_the_join(seed: int) -> None:
    chance = random.Random(seed)
    source, consumer = Source(chance), Consumer()
    for _ in range(chance.randrange(20, 200)):
        source.step()
    left = [*source.messages, *chance.choices(source.messages, k=20)]
    chance.shuffle(left)  # across partitions, and within one
    while left:
        count = chance.randrange(1, 40)
        batch, left = left[:count], left[count:]
        for dies in (0.05, 0.02, 0.01, 0):  # a killed batch is done again, from its beginning
            try:
                consumer.batch(batch, dies, chance)
                break
            except Crash:
                chance.shuffle(batch)
    assert consumer.found() == source.join()


@pytest.mark.parametrize("seed", range(120))
def test_tables_that_are_read_again_heal_lost_updates_whatever_is_killed_meanwhile(seed: int) -> None:
    chance = random.Random(seed)
    source, consumer = Source(chance), Consumer()
    for _ in range(60):
        source.step()
    consumer.batch(source.messages)
    done = len(source.messages)
    for _ in range(20):
        source.step()
    # Updates alone: nothing that is read from a table says which rows are gone from it.
    reported = [one for one in source.messages[done:] if one.operation != "UPDATE" or one.olds[0].keys() & {"id"}]
    again = source.read_again()
    chance.shuffle(again)
    left = [*reported, *again]
    while left:
        batch, left = left[:15], left[15:]
        for dies in (0.2, 0.1, 0.05, 0):
            try:
                consumer.batch(batch, dies, chance)
                break
            except Crash:
                pass
    assert consumer.found() == source.join()


def consumed(*messages: Rows, **more: Any) -> dict[str, Any]:
    consumer = Consumer(**more)
    consumer.batch(messages)
    return consumer.found()


SERVE = message("serve", "INSERT", {"id": "1", "name": "保洁", "item_id": "7", "city": "北京"}, None, 10)
ITEM = message("item", "INSERT", {"id": "7", "title": "日常保洁", "type_id": "3"}, None, 20)
TYPE = message("type", "INSERT", {"id": "3", "name": "清洗"}, None, 30)


def price(key: str, unit: str, version: int) -> Rows:
    return message("price", "INSERT", {"id": key, "serve_id": "1", "unit": unit, "amount": "9.90"}, None, version)


def joined(number: int, **more: Any) -> dict[str, Any]:
    """SERVICES with one of its joins changed."""
    joins = copy.deepcopy(SERVICES["join"])
    joins[number] |= more
    return {"join": joins}


def test_rows_of_a_list_come_in_the_order_of_their_keys() -> None:
    made = consumed(SERVE, price("10", "天", 40), price("9", "次", 50))["1"]
    assert [one["unit"] for one in made["prices"]] == ["次", "天"]


def test_a_required_row_that_is_not_there_takes_the_document_away() -> None:
    required = joined(1, required=True)  # of the type, and the item is not required
    assert consumed(SERVE, **required)["1"]["name"] == "保洁"
    assert "item_title" not in consumed(SERVE, ITEM, **required)["1"]
    assert consumed(SERVE, ITEM, TYPE, **required)["1"]["item_title"] == "日常保洁"
    both = joined(1, required=True)
    both["join"][0]["required"] = True
    assert consumed(SERVE, ITEM, **both) == {}
    assert consumed(SERVE, ITEM, TYPE, **both)["1"]["type"] == {"id": 3, "name": "清洗"}


def test_a_row_that_counts_as_deleted_does_not_belong() -> None:
    soft = joined(2, soft_delete={"column": "unit", "values": ["次"]})
    assert [
        one["id"] for one in consumed(SERVE, price("9", "次", 50), price("8", "天", 50), **soft)["1"]["prices"]
    ] == [8]


def test_fields_of_joined_rows_get_a_prefix_if_they_are_on_the_level_of_the_parent() -> None:
    assert consumed(SERVE, ITEM, **joined(0, prefix="i_"))["1"]["i_title"] == "日常保洁"
    assert consumed(SERVE, ITEM, **joined(0, shape="object"))["1"]["item"] == {"title": "日常保洁", "type": None}


def test_the_mapping_of_each_table_is_where_its_fields_are() -> None:
    (tree,) = trees().trees.values()
    mapping = {table: tree.plans(message(table, "INSERT", {}, None, 1))[0].properties for table in TYPES}
    assert mapping["serve"].keys() == {"id", "name", "city"}
    assert mapping["item"].keys() == {"item_title"}
    assert mapping["type"]["type"]["properties"]["id"] == {"type": "long"}
    assert mapping["price"]["prices"]["type"] == "nested"
    assert mapping["price"]["prices"]["properties"]["amount"]["type"] == "keyword"


def test_a_document_with_more_rows_than_it_may_have_is_refused_and_the_others_are_not() -> None:
    consumer = Consumer(**joined(2, most=2))
    more = message("serve", "INSERT", {"id": "2", "name": "x", "item_id": None, "city": "y"}, None, 90)
    for one in (SERVE, more, price("1", "次", 40), price("2", "天", 50), price("3", "月", 60)):
        for plan in consumer.trees.plans(one):
            for change in plan.changes(one):
                for action in change.actions:
                    consumer.rows.apply(action)
    consumer.rows.refresh()
    refused = list(Composer(consumer.tree, consumer.rows, consumer.documents).run([Document("1"), Document("2")]))
    assert [(document.id, reason) for document, reason in refused] == [
        ("1", "more than 2 rows of prices belong to one row; see `most`")
    ]
    assert consumer.found().keys() == {"2"}


def test_a_document_that_is_written_by_somebody_else_meanwhile_is_composed_again() -> None:
    consumer = Consumer()
    consumer.batch([SERVE])
    late = consumer.documents.seen([Document("1")])
    consumer.batch([ITEM])
    with_item = consumer.found()["1"]
    beaten = consumer.documents.write([Write(Document("1"), {"name": "older"}, late[Document("1")])])
    assert beaten.beaten == [Document("1")]
    assert consumer.found()["1"] == with_item

    class Busy(ToyDocuments):
        def write(self, writes: Sequence[Write]) -> Outcome:
            return Outcome([one.document for one in writes], [])

    with pytest.raises(BulkError, match="written by others again and again"):
        list(Composer(consumer.tree, consumer.rows, Busy()).run([Document("1")]))


def test_shards_of_a_table_are_one_and_ids_and_routings_are_templates() -> None:
    more = {"tables": r"shop\.serve_\d", "id": "{table}:{id}", "routing": "{city}"}
    rows = [SERVE._replace(table=f"serve_{number}") for number in (1, 2)]
    consumer = Consumer(**more)
    consumer.batch([*rows, price("5", "次", 60)])
    assert consumer.documents.bodies.keys() == {Document("serve_1:1", "北京"), Document("serve_2:1", "北京")}
    moved = {"id": "1", "name": "保洁", "item_id": "7", "city": "上海"}
    consumer.batch([message("serve", "UPDATE", moved, {"city": "北京"}, 100)._replace(table="serve_1")])
    assert consumer.documents.bodies.keys() == {Document("serve_1:1", "上海"), Document("serve_2:1", "北京")}
    assert all(len(body["prices"]) == 1 for body in consumer.documents.bodies.values())


def test_a_row_without_its_former_self_touches_what_the_kept_one_did() -> None:
    consumer = Consumer()
    consumer.batch([SERVE, SERVE._replace(rows=[{**SERVE.rows[0], "id": "2"}]), price("5", "次", 60)])
    moved = {"id": "5", "serve_id": "2", "unit": "次", "amount": "9.90"}
    consumer.batch([message("price", "INSERT", moved, None, 100)])  # as a table that is read again has it
    assert {key: len(body["prices"]) for key, body in consumer.found().items()} == {"1": 0, "2": 1}
    consumer.batch([message("price", "DELETE", {"id": "5"}, None, 110)])  # as binlog_row_image=MINIMAL has it
    assert {key: len(body["prices"]) for key, body in consumer.found().items()} == {"1": 0, "2": 0}


def test_a_change_of_columns_that_are_in_no_document_touches_none() -> None:
    consumer = Consumer(**joined(0, columns="listed", fields={"title": {}}, drop=[]))
    consumer.batch([SERVE, ITEM])
    writes = consumer.documents.writes
    consumer.batch([message("type", "INSERT", {"id": "9", "name": "x"}, None, 50)])
    same = {"id": "1", "name": "保洁", "item_id": "7", "city": "北京"}
    consumer.batch([message("serve", "UPDATE", same, {}, 60)])
    assert consumer.documents.writes == writes


def test_long_keys_and_values_are_found_all_the_same() -> None:
    long = "k" * 400
    types = {"id": "varchar(400)", "name": "varchar(64)", "item_id": "varchar(400)", "city": "varchar(20)"}
    serve = SERVE._replace(rows=[{**SERVE.rows[0], "item_id": long, "id": long}], types=types)
    item = ITEM._replace(
        rows=[{**ITEM.rows[0], "id": long}], table="item", types=TYPES["item"] | {"id": "varchar(400)"}
    )
    assert consumed(serve, item)[long]["item_title"] == "日常保洁"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "{table}"}, "an index with joins has one name"),
        ({"name": "services*"}, "'services\\*' is a name that no index can have"),
        ({"name": "s" * 245}, "the name is too long: headrace-rows.NAME"),
        (joined(1, parent="itm"), "there is no join 'itm' before it; did you mean 'item'"),
        (joined(1, name="item"), "join item is there twice"),
        (joined(2, prefix="p_"), "prefix has a meaning with shape"),
        (joined(1, nested=True), "nested has a meaning with shape"),
        (joined(2, on={}), "at least 1 item"),
        (joined(2, columns="listed"), "leaves nothing"),
    ],
)
def test_joins_that_mean_nothing_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        trees(**change)


def test_a_table_that_does_not_fit_or_a_row_that_is_not_whole_is_an_error() -> None:
    with pytest.raises(UnfitTable, match=r"index services, join item, names column 'code', and shop\.item has none"):
        trees(**joined(0, on={"code": "item_id"})).plans(ITEM)
    with pytest.raises(UnfitTable, match=r"index services names column 'item_code', and shop\.serve has none"):
        trees(**joined(0, on={"id": "item_code"})).plans(SERVE)
    for rows, words in (
        ([{"id": "7", "title": "x"}], "lacks type_id"),
        ([{"title": "x", "type_id": "3"}], "lacks id"),
    ):
        with pytest.raises(MessageError, match=words):
            list(itertools.chain.from_iterable(one.changes(ITEM._replace(rows=rows)) for one in trees().plans(ITEM)))
    with pytest.raises(MessageError, match=r"shop\.item has no primary key"):
        consumed(ITEM._replace(keys=()))
