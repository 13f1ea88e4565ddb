"""Debezium's change events: envelope, keys, tombstones, changed keys, absent columns, schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headrace import __version__
from headrace.cli.wiring import new_format
from headrace.formats.debezium.format import DebeziumFormat
from headrace.formats.debezium.settings import DebeziumSettings
from headrace.model import ABSENT, Column, Operation, Origin, RowsChange, TableSchema
from headrace.ports.format import Messages
from tests.configured import destination_of

ORIGIN = Origin("mysql-bin.000003", 570, 805, 1, 223344, 7)
US = 1_465_581_902_300_123
CUSTOMERS = TableSchema(
    "inventory",
    "customers",
    (
        Column("id", "int", 4, nullable=False, auto_increment=True),
        Column("first_name", "varchar(255)", 12, nullable=False, charset="utf8mb4", length=255),
        Column("email", "varchar(255)", 12, charset="utf8mb4", length=255, default="x", comment="where to"),
    ),
    (0,),
)
ANNE, BOB = (1004, "Anne", "annek@noanswer.org"), (1005, "Bob", None)


def debezium(**settings: Any) -> DebeziumFormat:
    return DebeziumFormat(DebeziumSettings(**{"name": "server-1", "schemas": False, **settings}))


def change(
    operation: Operation,
    *rows: tuple[Any, ...],
    before: list[tuple[Any, ...]] | None = None,
    schema: TableSchema = CUSTOMERS,
    gtid: str = "u:1",
    partial: bool = False,
    origin: Origin = ORIGIN,
) -> RowsChange:
    return RowsChange(schema, operation, list(rows), before, 1 << 40, US, gtid, partial, origin)


def read(made: Messages) -> list[tuple[Any, Any]]:
    """Key and value of each message; None is a tombstone."""
    return [
        (json.loads(key) if key is not None else None, json.loads(value) if value is not None else None)
        for key, value in zip(made.keys, made.values, strict=True)
    ]


def test_an_insert_is_a_create_with_key_and_source() -> None:
    made = debezium().rows(change(Operation.INSERT, ANNE, BOB), 1465581902461)
    (key, first), (_, second) = read(made)
    assert key == {"id": 1004}
    assert list(first) == ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
    assert first == {
        "before": None,
        "after": {"id": 1004, "first_name": "Anne", "email": "annek@noanswer.org"},
        "source": {
            "version": __version__,
            "connector": "mysql",
            "name": "server-1",
            "ts_ms": 1465581902300,
            "snapshot": "false",
            "db": "inventory",
            "sequence": None,
            "ts_us": 1465581902300123,
            "ts_ns": 1465581902300123000,
            "table": "customers",
            "server_id": 223344,
            "gtid": "u:1",
            "file": "mysql-bin.000003",
            "pos": 805,
            "row": 0,
            "thread": 7,
            "query": None,
        },
        "transaction": None,
        "op": "c",
        "ts_ms": 1465581902461,
        "ts_us": 1465581902461000,
        "ts_ns": 1465581902461000000,
    }
    assert second["after"] == {"id": 1005, "first_name": "Bob", "email": None}
    assert second["source"] == {**first["source"], "row": 1}
    assert made.rows == [0, 1]


def test_what_is_not_known_of_the_source_is_null() -> None:
    ((_, value),) = read(debezium().rows(change(Operation.INSERT, BOB, gtid="", origin=Origin("f", 4, 4, 1)), 1))
    assert {key for key, of in value["source"].items() if of is None} == {"sequence", "gtid", "thread", "query"}


def test_a_clock_at_1970_is_a_number_too() -> None:
    ((_, value),) = read(debezium().rows(change(Operation.INSERT, BOB), 0))
    assert (value["ts_ms"], value["ts_us"], value["ts_ns"]) == (0, 0, 0)


def test_an_update_has_both_images() -> None:
    ((key, value),) = read(debezium().rows(change(Operation.UPDATE, BOB, before=[(1005, "Rob", None)]), 1))
    assert (key, value["op"]) == ({"id": 1005}, "u")
    assert (value["before"]["first_name"], value["after"]["first_name"]) == ("Rob", "Bob")


def test_a_delete_is_followed_by_a_tombstone() -> None:
    made = debezium().rows(change(Operation.DELETE, ANNE, BOB), 1)
    messages = read(made)
    assert [key["id"] for key, _ in messages] == [1004, 1004, 1005, 1005]
    assert [value and value["op"] for _, value in messages] == ["d", None, "d", None]
    assert (messages[0][1]["before"]["id"], messages[0][1]["after"]) == (1004, None)
    assert made.rows == [0, 0, 1, 1]
    assert len(debezium(tombstones=False).rows(change(Operation.DELETE, ANNE), 1).values) == 1


@pytest.mark.parametrize("tombstones", [True, False])
def test_a_changed_key_is_a_delete_and_a_create_that_name_each_other(tombstones: bool) -> None:
    same = ((1, "a", None), (1, "b", None))
    update = change(Operation.UPDATE, BOB, same[1], before=[ANNE, same[0]])
    made = debezium(tombstones=tombstones).rows(update, 1)
    messages = read(made)
    dead = [({"id": 1004}, None)] if tombstones else []
    assert [(key, value and value["op"]) for key, value in messages] == [
        ({"id": 1004}, "d"),
        *dead,
        ({"id": 1005}, "c"),
        ({"id": 1}, "u"),
    ]
    assert (messages[0][1]["before"]["id"], messages[0][1]["after"]) == (1004, None)
    create = messages[1 + tombstones][1]
    assert (create["before"], create["after"]["id"]) == (None, 1005)
    old, new = made.keys[0], made.keys[1 + tombstones]
    expected = {0: ("__debezium.newkey", new), 1 + tombstones: ("__debezium.oldkey", old)}
    if tombstones:
        expected[1] = ("__debezium.newkey", new)
    assert made.headers == expected
    assert made.rows == ([0, 0, 0, 1] if tombstones else [0, 0, 1])


def test_an_unwrapped_row_has_the_fields_that_are_asked_for() -> None:
    fmt = debezium(unwrap=True, add_fields=["op", "table", "source.ts_ms", "source.row"])
    update = change(Operation.UPDATE, BOB, ANNE, before=[(1005, "Rob", None), (1004, "Ann", None)])
    assert read(fmt.rows(update, 1))[1] == (
        {"id": 1004},
        {
            **dict(zip((column.name for column in CUSTOMERS.columns), ANNE, strict=True)),
            "__op": "u",
            "__table": "customers",
            "__source_ts_ms": US // 1000,
            "__source_row": 1,
        },
    )
    ((_, plain),) = read(debezium(unwrap=True).rows(change(Operation.INSERT, BOB), 1))
    assert list(plain.values()) == list(BOB)


@pytest.mark.parametrize(
    ("deletes", "reported"),
    [
        ("tombstone", [None]),
        ("rewrite", ["true"]),
        ("rewrite-with-tombstone", ["true", None]),
        ("drop", []),
    ],
)
def test_a_delete_is_unwrapped_as_asked_for(deletes: str, reported: list[str | None]) -> None:
    fmt = debezium(unwrap=True, deletes=deletes)
    gone = read(fmt.rows(change(Operation.DELETE, ANNE), 1))
    assert [value and value["__deleted"] for _, value in gone] == reported
    assert {key["id"] for key, _ in gone} <= {1004}
    ((_, made),) = read(fmt.rows(change(Operation.INSERT, ANNE), 1))
    assert made.get("__deleted") == ("false" if "rewrite" in deletes else None)
    moved = read(fmt.rows(change(Operation.UPDATE, BOB, before=[ANNE]), 1))
    assert [(key["id"], value and value["first_name"]) for key, value in moved] == [
        *[(1004, one and "Anne") for one in reported],
        (1005, "Bob"),
    ]


def test_an_unwrapped_row_fits_the_schema_that_it_carries() -> None:
    fmt = debezium(unwrap=True, schemas=True, add_fields=["op", "ts_ms", "gtid", "source.snapshot"], deletes="rewrite")
    for operation in Operation:
        before = [ANNE] if operation is Operation.UPDATE else None
        for _, value in read(fmt.rows(change(operation, ANNE, before=before), 1)):
            assert value["schema"]["name"].endswith("customers.Value")
            check(value["schema"], value["payload"])
    ((_, plain),) = read(debezium(unwrap=True, schemas=True).rows(change(Operation.INSERT, ANNE), 1))
    check(plain["schema"], plain["payload"])
    assert plain["schema"]["optional"]


def test_fields_that_are_not_there_and_options_without_unwrap_are_refused() -> None:
    for wrong in ({"unwrap": True, "add_fields": ["source.nothing"]}, {"unwrap": True, "add_fields": ["x.y"]}):
        with pytest.raises(ValidationError, match="is no field of the envelope or of source"):
            debezium(**wrong)
    with pytest.raises(ValidationError, match="deletes has no meaning without unwrap"):
        debezium(deletes="drop")


def test_a_table_without_a_primary_key_has_neither_keys_nor_tombstones() -> None:
    schema = TableSchema("s", "t", CUSTOMERS.columns, ())
    fmt = debezium()
    for operation in Operation:
        before = [ANNE] if operation is Operation.UPDATE else None
        made = fmt.rows(change(operation, BOB, before=before, schema=schema), 1)
        assert [(key, value["op"]) for key, value in read(made)] == [(None, operation[0].lower().replace("i", "c"))]


def test_columns_of_a_key_are_in_its_order() -> None:
    schema = TableSchema("s", "t", CUSTOMERS.columns, (1, 0))
    made = debezium().rows(change(Operation.INSERT, ANNE, schema=schema), 1)
    assert made.keys == [b'{"first_name":"Anne","id":1004}']


def test_absent_columns_are_left_out() -> None:
    fmt = debezium()
    update = change(Operation.UPDATE, (1, ABSENT, None), before=[(1, ABSENT, ABSENT)], partial=True)
    ((key, value),) = read(fmt.rows(update, 1))
    assert (key, value["op"]) == ({"id": 1}, "u")
    assert (value["before"], value["after"]) == ({"id": 1}, {"id": 1, "email": None})
    moved = change(Operation.UPDATE, (2, ABSENT, None), before=[(1, ABSENT, ABSENT)], partial=True)
    assert [key["id"] for key, _ in read(fmt.rows(moved, 1))] == [1, 1, 2]
    ((key, value), (_, dead)) = read(fmt.rows(change(Operation.DELETE, (1, ABSENT, ABSENT), partial=True), 1))
    assert (key, value["before"], value["after"], dead) == ({"id": 1}, {"id": 1}, None, None)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.lists(NAMES, min_size=2, max_size=4, unique=True), st.data())
def test_any_names_and_values_come_back(names: list[str], data: st.DataObject) -> None:
    columns = tuple(Column(name, "int" if i == 0 else "varchar(9)", 12) for i, name in enumerate(names))
    values = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))
    row = (5, *(data.draw(values) for _ in names[1:]))
    schema = TableSchema(names[0], names[1], columns, (0,))
    made = debezium(schemas=data.draw(st.booleans())).rows(change(Operation.INSERT, row, schema=schema), 1)
    ((key, value),) = read(made)
    assert value.get("payload", value)["after"] == dict(zip(names, row, strict=True))
    assert value.get("payload", value)["source"]["table"] == names[1]
    assert key.get("payload", key) == {names[0]: 5}


# -- schemas ------------------------------------------------------------------------------------------------------


def check(schema: dict[str, Any], value: Any) -> None:
    """That Kafka Connect's JSON converter would take the value for one of the schema."""
    if value is None:
        assert schema["optional"] or "default" in schema, schema
        return
    kinds: dict[str, Any] = {
        "string": str,
        "bytes": str,
        "boolean": bool,
        "double": (int, float),
        "float": (int, float),
        "array": list,
        "struct": dict,
    }
    assert isinstance(value, kinds.get(schema["type"], int)), (schema, value)
    if schema["type"].startswith("int"):
        bits = int(schema["type"][3:]) - 1
        assert -(1 << bits) <= value < 1 << bits, (schema, value)
    if schema["type"] == "array":
        for item in value:
            check(schema["items"], item)
    if schema["type"] == "struct":
        assert list(value) == [field["field"] for field in schema["fields"]]
        for field in schema["fields"]:
            check(field, value[field["field"]])


@pytest.mark.parametrize("operation", list(Operation))
def test_every_value_fits_the_schema_that_it_carries(operation: Operation) -> None:
    columns = (
        Column("id", "bigint unsigned", -5, unsigned=True, nullable=False),
        Column("price", "decimal(10,2)", 3, length=10, scale=2),
        Column("bits", "bit(9)", -7, length=9),
        Column("e", "enum('a')", 12, labels=("a",)),
        Column("at", "datetime(6)", 93, length=6),
        Column("p", "point", 0),
        Column("v", "vector(1)", 0),
    )
    rows = [(1, "1.50", 300, "a", "2026-11-21 09:30:00.000000", bytes(4) + b"\x01" + bytes(20), "[1.5]")]
    rows.append((2, None, None, None, None, None, None))  # type: ignore[arg-type]
    before = [(1, *rows[1][1:]), (3, *rows[0][1:])] if operation is Operation.UPDATE else None
    fmt = debezium(schemas=True, transaction_topic="tx")
    made = fmt.rows(
        change(operation, *rows, before=before, schema=TableSchema("s", "t", columns, (0,))), 1_465_581_902_461
    )
    assert len(made.values) >= 2
    for key, value in read(made):
        check(key["schema"], key["payload"])
        if value is not None:
            check(value["schema"], value["payload"])


def test_the_names_of_schemas_are_debeziums() -> None:
    ((key, value),) = read(debezium(schemas=True).rows(change(Operation.INSERT, ANNE), 1))
    assert key == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "int32", "optional": False, "field": "id"}],
            "optional": False,
            "name": "server-1.inventory.customers.Key",
        },
        "payload": {"id": 1004},
    }
    schema = value["schema"]
    assert (schema["name"], schema["version"], schema["optional"]) == (
        "server-1.inventory.customers.Envelope",
        2,
        False,
    )
    fields = {field["field"]: field for field in schema["fields"]}
    assert fields["before"] == {
        "type": "struct",
        "fields": [
            {"type": "int32", "optional": False, "field": "id"},
            {"type": "string", "optional": False, "field": "first_name"},
            {"type": "string", "optional": True, "field": "email"},
        ],
        "optional": True,
        "name": "server-1.inventory.customers.Value",
        "field": "before",
    }
    assert fields["after"] == {**fields["before"], "field": "after"}
    assert (fields["source"]["name"], fields["source"]["version"]) == ("io.debezium.connector.mysql.Source", 1)
    assert (fields["transaction"]["name"], fields["transaction"]["optional"]) == ("event.block", True)
    assert fields["op"] == {"type": "string", "optional": False, "field": "op"}


def test_the_name_is_the_destinations_unless_given() -> None:
    def name(**more: Any) -> str:
        settings = destination_of(
            {
                "name": "shop",
                "source": {"host": "h", "user": "u", "password": "p"},
                "message": {"format": "debezium", "debezium": {"schemas": False, **more}},
                "sink": {"type": "null"},
            }
        )
        ((_, value),) = read(new_format(settings).rows(change(Operation.INSERT, BOB), 1))
        return str(value["source"]["name"])

    assert (name(), name(name="server-1")) == ("shop", "server-1")
