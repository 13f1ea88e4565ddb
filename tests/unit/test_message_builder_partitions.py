"""The builder with several partitions: what each message is called and numbered, and where schema changes stand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.formats.canal.format import CanalFormat
from headrace.formats.debezium.format import NEW_KEY, OLD_KEY, DebeziumFormat
from headrace.formats.debezium.settings import DebeziumSettings
from headrace.model import (
    Column,
    DdlKind,
    MessageBatch,
    Operation,
    Origin,
    Position,
    Row,
    RowsChange,
    SchemaChange,
    TableChange,
    TableSchema,
    TransactionMark,
    Unit,
)
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.rules.hashes import kafka_partition
from headrace.rules.templates import Template
from tests.streams import settings

SCHEMA = TableSchema("shop", "t", (Column("id", "int", 4), Column("n", "int", 4)), (0,))
END = Position("u", "bin.000001", 900)
ORIGIN = Origin("bin.000001", 4, 4, 2)
PARTITIONS = 4
KEY = {"partition_hash": r"shop\.t:$pk$", "partitions": PARTITIONS}


def builder(fmt: Any = None, *, sink: dict[str, Any] | None = None, **more: Any) -> MessageBuilder:
    fmt = fmt or CanalFormat()
    route = {"topic": "shop", **KEY, **more.pop("route", {})}
    projections = Projections(settings(route=route, sink=sink or {"type": "null"}), fmt)
    return MessageBuilder(fmt, projections, server_uuid="uuid", **more)


def insert(*ids: int) -> RowsChange:
    return RowsChange(SCHEMA, Operation.INSERT, [(i, 1) for i in ids], None, 100, 5_000_000, "g:1", origin=ORIGIN)


def update(*pairs: tuple[Row, Row]) -> RowsChange:
    return RowsChange(
        SCHEMA, Operation.UPDATE, [b for _, b in pairs], [a for a, _ in pairs], 100, 5_000_000, "g:1", origin=ORIGIN
    )


def ddl() -> SchemaChange:
    tables = (TableChange(DdlKind.ALTER, "shop", "t"),)
    return SchemaChange(
        DdlKind.ALTER, "ddl", "shop", "t", "ALTER TABLE t ...", tables, 200, 5_000_000, "g:2", origin=ORIGIN
    )


def partition_of(id_: int) -> int:
    return kafka_partition(b"%d" % id_, PARTITIONS)


def moving(id_: int) -> int:
    """A key of another partition."""
    return next(i for i in range(1000, 1100) if partition_of(i) != partition_of(id_))


def headers(batches: list[MessageBatch], name: str) -> list[str]:
    return [dict(one)[name].decode() for batch in batches for one in batch.headers if name in dict(one)]


def read(batch: MessageBatch) -> list[dict[str, Any]]:
    return [json.loads(value) for value in batch.values if value is not None]


@pytest.mark.parametrize("operation", ["insert", "update"])
def test_a_message_a_row_goes_to_its_partition_with_the_number_it_has_in_the_event(operation: str) -> None:
    change = insert(*range(40)) if operation == "insert" else update(*[((i, 1), (i, 2)) for i in range(40)])
    made, alone = builder(rows_per_message=1), builder(rows_per_message=1, route={"partitions": 1})
    made.emit(change)
    alone.emit(change)
    batches, (whole,) = made.take(END, 1.0), alone.take(END, 1.0)
    assert {batch.partition for batch in batches} == set(range(PARTITIONS))
    found = {}
    for batch in batches:
        assert batch.rows == len(batch.values)
        assert batch.commit_time_us == 5_000_000
        for value, its in zip(batch.values, batch.headers, strict=True):
            assert value is not None
            message = json.loads(value)
            assert partition_of(int(message["data"][0]["id"])) == batch.partition
            found[dict(its)["headrace-id"]] = value, its
    expected = {dict(its)["headrace-id"]: (value, its) for value, its in zip(whole.values, whole.headers, strict=True)}
    assert found == expected
    assert sum(batch.size for batch in batches) == whole.size
    assert [batch.position for batch in batches] == [None] * (len(batches) - 1) + [END]


def test_messages_of_many_rows_hold_those_of_their_partition() -> None:
    made = builder()
    made.emit(insert(*range(40)))
    batches = made.take(END, 1.0)
    rows = [[int(row["id"]) for row in read(batch)[0]["data"]] for batch in batches]
    assert sorted(id_ for ids in rows for id_ in ids) == list(range(40))
    assert [read(batch)[0]["_pos"] for batch in batches] == [str(100 + ids[0]) for ids in rows]
    assert headers(batches, "headrace-id") == [f"g:1#2.{ids[0]}" for ids in rows]


@pytest.mark.parametrize("size", [0, 1])
def test_a_moved_row_is_two_messages_with_ids_and_numbers_of_their_own(size: int) -> None:
    new = moving(1)
    made = builder(rows_per_message=size)
    made.emit(update(((5, 1), (5, 2)), ((1, 1), (new, 1)), ((5, 2), (5, 3))))
    batches = made.take(END, 1.0)
    reported = {
        (message["type"], message["data"][0]["id"], int(message["_pos"]))
        for batch in batches
        for message in read(batch)
    }
    assert ("DELETE", "1", 101) in reported
    assert ("INSERT", str(new), 102) in reported
    ids = headers(batches, "headrace-id")
    assert len(ids) == len(set(ids))
    assert {"g:1#2.1", "g:1#2.1/2"} <= set(ids)


def test_a_lone_moved_row_keeps_the_event_s_id() -> None:
    made = builder()
    made.emit(update(((1, 1), (moving(1), 1))))
    assert headers(made.take(END, 1.0), "headrace-id") == ["g:1#2", "g:1#2/2"]


def test_debezium_s_halves_name_each_other_and_its_records_keep_their_keys() -> None:
    new, fmt = moving(1), DebeziumFormat(DebeziumSettings(schemas=False))
    key = json.dumps({"id": 1}, separators=(",", ":")).encode()
    made = builder(fmt)
    place = kafka_partition(key, PARTITIONS)
    other = next(i for i in range(new, new + 99) if kafka_partition(b'{"id":%d}' % i, PARTITIONS) != place)
    made.emit(update(((1, 1), (other, 1)), ((1, 7), (1, 8))))
    batches = {batch.partition: batch for batch in made.take(END, 1.0)}
    gone, come = batches[place], next(batch for partition, batch in batches.items() if partition != place)
    assert gone.keys is not None
    assert gone.keys[:2] == [key, key]
    assert gone.values[1] is None
    assert [dict(one).get(NEW_KEY) for one in gone.headers[:2]] == [b'{"id":%d}' % other] * 2
    assert dict(come.headers[0])[OLD_KEY] == key
    assert headers([gone], "headrace-id")[:2] == ["g:1#2.0", "g:1#2.0/1"]
    assert headers([come], "headrace-id") == ["g:1#2.0/2"]
    assert [message["source"]["row"] for message in read(gone)] == [0, 1]
    assert read(come)[0]["op"] == "c"


@pytest.mark.parametrize(("where", "copies"), [("first", [0]), ("all", [0, 1, 2, 3])])
def test_a_schema_change_is_separate_from_the_rows_before_and_after_it(where: str, copies: list[int]) -> None:
    made = builder(route={"ddl_partition": where})
    made.emit(insert(*range(9)))
    made.emit_schema(ddl())
    made.emit(insert(*range(9)))
    batches = made.take(END, 1.0)
    barriers = [i for i, batch in enumerate(batches) if batch.barrier]
    assert [batches[i].partition for i in barriers] == copies
    assert barriers == list(range(barriers[0], barriers[0] + len(copies)))
    for i, batch in enumerate(batches):
        kinds = {message["type"] for message in read(batch)}
        assert kinds == ({"ALTER"} if i in barriers else {"INSERT"})
    assert 0 < barriers[0] < barriers[-1] + 1 < len(batches)
    ids = headers([batches[i] for i in barriers], "headrace-id")
    assert ids == (["g:2#2q"] if where == "first" else [f"g:2#2q.{n}" for n in copies])


def test_without_partitions_a_schema_change_needs_no_barrier() -> None:
    made = builder(route={"partitions": 1})
    made.emit(insert(1))
    made.emit_schema(ddl())
    (batch,) = made.take(END, 1.0)
    assert not batch.barrier


def test_what_may_be_parked_says_what_it_is_about() -> None:
    made = builder(units=True, route={"partitions": 1})
    made.emit(insert(1, 2))
    made.emit(update(((1, 1), (3, 1))))
    made.emit_schema(ddl())
    made.emit_mark(TransactionMark(False, 1, 5, "g:1", origin=ORIGIN))
    (batch,) = made.take(END, 1.0)
    tables = ("shop.t",)
    one, two, three = "shop.t 1", "shop.t 2", "shop.t 3"
    assert batch.units == [Unit(tables, (one, two)), Unit(tables, (one, three)), Unit(tables), Unit(())]
    each = builder(units=True, rows_per_message=1)
    each.emit(insert(*range(9)))
    for batch in each.take(END, 1.0):
        ids = [str(message["data"][0]["id"]) for message in read(batch)]
        assert batch.units == [Unit(tables, (f"shop.t {id_}",)) for id_ in ids]


def test_debezium_s_messages_are_about_their_row() -> None:
    made = builder(DebeziumFormat(DebeziumSettings(schemas=False)), units=True, route={"partitions": 1})
    change = RowsChange(SCHEMA, Operation.DELETE, [(1, 1), (2, 1)], None, 100, 5, "g:1", origin=ORIGIN)
    made.emit(change)
    (batch,) = made.take(END, 1.0)
    assert batch.units is not None
    first, second = ('shop.t {"id":1}',), ('shop.t {"id":2}',)
    assert [unit.keys for unit in batch.units] == [first, first, second, second]


def test_routing_keys_and_tags_are_made_of_names() -> None:
    sink = {
        "type": "rabbitmq",
        "hosts": "127.0.0.1:5672",
        "user": "u",
        "password": "p",
        "exchange": "ex",
        "routing_key": "{schema}.{table}.{partition}",
    }
    made = builder(sink=sink, tag=Template.parse("{table}-{type}", ("table", "type")))
    made.emit(insert(1, 2, 3))
    for batch in made.take(END, 1.0):
        assert batch.topic == f"shop.t.{batch.partition}"
        assert batch.tags == ["t-INSERT"] * len(batch.values)
