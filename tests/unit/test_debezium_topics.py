"""Debezium's topics beside those of rows: transactions with their counts, and schema changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.model import Column, DdlKind, Operation, SchemaChange, TableChange, TableSchema, TransactionMark
from headrace.mysql.decoder_options import DecoderOptions
from headrace.ports.format import Messages
from tests.streams import daemon_settings, settings
from tests.unit.test_debezium_format import ANNE, BOB, CUSTOMERS, ORIGIN, US, change, check, debezium, read

# -- transactions -------------------------------------------------------------------------------------------------


def mark(begin: bool, gtid: str = "u:10") -> TransactionMark:
    return TransactionMark(begin, 1, US, gtid, ORIGIN)


def only(messages: list[Messages]) -> tuple[str, Any, Any]:
    (made,) = messages
    ((key, value),) = read(made)
    return made.topic, key, value


@pytest.mark.parametrize(("gtid", "id_"), [("u:10", "u:10"), ("", "file=mysql-bin.000003,pos=570")])
def test_the_end_of_a_transaction_has_its_counts(gtid: str, id_: str) -> None:
    fmt = debezium(transaction_topic="tx")
    other = TableSchema("inventory", "orders", CUSTOMERS.columns, (0,))
    for _ in range(2):  # the second counts anew
        assert only(fmt.mark(mark(True, gtid), 5)) == (
            "tx",
            {"id": id_},
            {"status": "BEGIN", "id": id_, "event_count": None, "data_collections": None, "ts_ms": US // 1000},
        )
        blocks = [
            value["transaction"]
            for made in (
                fmt.rows(change(Operation.INSERT, ANNE, gtid=gtid), 1),
                fmt.rows(change(Operation.DELETE, BOB, schema=other, gtid=gtid), 1),
                fmt.rows(change(Operation.UPDATE, BOB, before=[ANNE], gtid=gtid), 1),
            )
            for _, value in read(made)
            if value is not None
        ]
        assert blocks == [
            {"id": id_, "total_order": total, "data_collection_order": order}
            for total, order in ((1, 1), (2, 1), (3, 2), (4, 3))
        ]
        assert only(fmt.mark(mark(False, gtid), 5))[2] == {
            "status": "END",
            "id": id_,
            "event_count": 4,
            "data_collections": [
                {"data_collection": "inventory.customers", "event_count": 3},
                {"data_collection": "inventory.orders", "event_count": 1},
            ],
            "ts_ms": US // 1000,
        }


def test_transactions_are_not_published_without_a_topic() -> None:
    assert debezium().mark(mark(True), 5) == []


# -- schema changes -----------------------------------------------------------------------------------------------


def ddl(
    kind: DdlKind, *tables: TableChange, category: str = "ddl", sql: str = "ALTER TABLE x", alters: bool = False
) -> SchemaChange:
    return SchemaChange(
        kind, category, "inventory", "customers", sql, tables, 1, US, "u:9", origin=ORIGIN, alters=alters
    )


def test_a_schema_change_describes_the_table_after_it() -> None:
    fmt = debezium(schema_topic="server-1")
    alter = TableChange(DdlKind.ALTER, "inventory", "customers", CUSTOMERS)
    topic, key, value = only(fmt.schema_change(ddl(DdlKind.ALTER, alter), 77))
    assert (topic, key) == ("server-1", {"databaseName": "inventory"})
    assert list(value) == ["source", "ts_ms", "databaseName", "schemaName", "ddl", "tableChanges"]
    assert (value["source"]["pos"], value["source"]["table"], value["source"]["row"]) == (805, "customers", 0)
    assert (value["ts_ms"], value["databaseName"], value["ddl"]) == (77, "inventory", "ALTER TABLE x")
    (made,) = value["tableChanges"]
    assert (made["type"], made["id"]) == ("ALTER", '"inventory"."customers"')
    assert made["table"]["primaryKeyColumnNames"] == ["id"]
    assert made["table"]["columns"][0] == {
        "name": "id",
        "jdbcType": 4,
        "nativeType": None,
        "typeName": "INT",
        "typeExpression": "INT",
        "charsetName": None,
        "length": None,
        "scale": None,
        "position": 1,
        "optional": False,
        "autoIncremented": True,
        "generated": True,
        "comment": None,
        "defaultValueExpression": None,
        "enumValues": None,
    }
    last = made["table"]["columns"][2]
    assert (last["typeName"], last["length"], last["charsetName"], last["jdbcType"]) == ("VARCHAR", 255, "utf8mb4", 12)
    assert (last["optional"], last["defaultValueExpression"], last["comment"]) == (True, "x", "where to")


def test_kinds_of_table_changes() -> None:
    fmt = debezium(schema_topic="s")
    changes = (
        TableChange(DdlKind.CREATE, "a", "b", CUSTOMERS),
        TableChange(DdlKind.ERASE, "a", 'q"b'),
        TableChange(DdlKind.RENAME, "a", "new", CUSTOMERS, ("z", "old")),
        TableChange(DdlKind.CREATE_INDEX, "a", "b", CUSTOMERS),
        TableChange(DdlKind.TRUNCATE, "a", "b", CUSTOMERS),
    )
    made = only(fmt.schema_change(ddl(DdlKind.CREATE, *changes, alters=True), 1))[2]["tableChanges"]
    assert [(one["type"], one["id"], one["table"] is None) for one in made] == [
        ("CREATE", '"a"."b"', False),
        ("DROP", '"a"."q""b"', True),
        ("ALTER", '"a"."new"', False),
        ("ALTER", '"a"."b"', False),
    ]


def test_a_rename_is_about_the_new_name_and_of_several_tables_each_has_a_record() -> None:
    fmt = debezium(schema_topic="s")
    one = TableChange(DdlKind.RENAME, "arch", "new", CUSTOMERS, ("inventory", "customers"))
    _, key, value = only(fmt.schema_change(ddl(DdlKind.RENAME, one, sql="RENAME TABLE customers TO arch.new"), 1))
    assert (key["databaseName"], value["databaseName"], value["source"]["db"]) == ("arch",) * 3
    assert (value["source"]["table"], value["ddl"]) == ("new", "RENAME TABLE customers TO arch.new")
    two = TableChange(DdlKind.RENAME, "inventory", "q`b", CUSTOMERS, ("inventory", "b"))
    (made,) = fmt.schema_change(ddl(DdlKind.RENAME, one, two), 1)
    assert [value["ddl"] for _, value in read(made)] == [
        "RENAME TABLE `inventory`.`customers` TO `arch`.`new`",
        "RENAME TABLE `inventory`.`b` TO `inventory`.`q``b`",
    ]
    assert [[of["id"] for of in value["tableChanges"]] for _, value in read(made)] == [
        ['"arch"."new"'],
        ['"inventory"."q`b"'],
    ]
    assert made.rows == [0, 0], "so that their ids differ"


def test_rows_say_which_statement_made_them_when_asked_for() -> None:
    text = ddl(DdlKind.QUERY, category="dml", sql='INSERT INTO customers VALUES ("x")')
    for query, expected in ((True, text.sql), (False, None)):
        fmt = debezium(query=query)
        assert fmt.schema_change(text, 1) == []
        ((_, value),) = read(fmt.rows(change(Operation.INSERT, ANNE), 1))
        assert value["source"]["query"] == expected
        later = replace(ORIGIN, transaction=ORIGIN.transaction + 1)
        ((_, value),) = read(fmt.rows(change(Operation.INSERT, ANNE, origin=later), 1))
        assert value["source"]["query"] is None, "of another transaction"
    config = settings(message={"format": "debezium", "debezium": {"query": True}})
    assert DecoderOptions.of(config, daemon_settings()).dml_queries


def test_an_index_changes_a_table_only_by_an_alter() -> None:
    fmt = debezium(schema_topic="s")
    index = TableChange(DdlKind.CREATE_INDEX, "a", "b", CUSTOMERS)
    for alters in (False, True):
        made = only(fmt.schema_change(ddl(DdlKind.CREATE_INDEX, index, alters=alters), 1))
        assert len(made[2]["tableChanges"]) == alters


def test_schema_changes_fit_their_schema_and_so_do_transactions() -> None:
    fmt = debezium(schemas=True, schema_topic="s", transaction_topic="t")
    column = Column("c", "decimal(10,2) unsigned", 3, length=10, scale=2)
    enum = Column("e", "enum('a','it''s')", 12, labels=("a", "it's"), charset="latin1")
    table = TableSchema("a", "b", (*CUSTOMERS.columns, column, enum), ())
    made = fmt.schema_change(ddl(DdlKind.CREATE, TableChange(DdlKind.CREATE, "a", "b", table)), 1)
    columns = only(made)[2]["payload"]["tableChanges"][0]["table"]["columns"]
    assert (columns[3]["typeName"], columns[3]["length"], columns[3]["scale"]) == ("DECIMAL UNSIGNED", 10, 2)
    assert (columns[4]["typeName"], columns[4]["enumValues"]) == ("ENUM", ["'a'", "'it''s'"])
    for messages in (made, fmt.mark(mark(True), 1), fmt.mark(mark(False), 1)):
        _, key, value = only(messages)
        check(key["schema"], key["payload"])
        check(value["schema"], value["payload"])


def test_only_ddl_has_a_place_and_only_with_a_topic() -> None:
    assert debezium().schema_change(ddl(DdlKind.ALTER), 1) == []
    assert debezium(schema_topic="s").schema_change(ddl(DdlKind.QUERY, category="dcl"), 1) == []
