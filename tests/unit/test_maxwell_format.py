"""Maxwell's JSON: fields, keys and values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.cli.wiring import new_format
from headrace.errors import ConfigError
from headrace.formats.maxwell.format import MaxwellFormat
from headrace.large_values import numbered, spliced
from headrace.model import (
    ABSENT,
    NO_ORIGIN,
    Column,
    DdlKind,
    Operation,
    Origin,
    Position,
    Row,
    RowsChange,
    SchemaChange,
    SnapshotRows,
    TableSchema,
    TransactionMark,
)
from headrace.mysql.values.large import large_text
from headrace.pipeline.message_builder import make_builder
from headrace.pipeline.native_output import reason_of_table
from headrace.pipeline.projection import Projections
from tests.streams import settings

SCHEMA = TableSchema("shop", "users", (Column("id", "int", 4), Column("name", "varchar(9)", 12)), (0,))


def change(operation: Operation, *rows: Row, before: list[Row] | None = None, **more: Any) -> RowsChange:
    schema = more.pop("schema", SCHEMA)
    return RowsChange(schema, operation, list(rows), before, 1 << 40, 1_700_000_000_900_000, "u:1", **more)


def messages(fmt: MaxwellFormat, made: RowsChange) -> list[Any]:
    return [json.loads(value or b"") for value in fmt.rows(made, 7).values]


def test_rows_have_maxwells_fields_in_its_order() -> None:
    fmt = MaxwellFormat(())
    head = {"database": "shop", "table": "users"}
    (one, two) = messages(fmt, change(Operation.INSERT, (1, "a"), (2, None)))
    assert one == {**head, "type": "insert", "ts": 1_700_000_000, "data": {"id": 1, "name": "a"}}
    assert list(one) == ["database", "table", "type", "ts", "data"]
    assert two["data"] == {"id": 2, "name": None}
    updates = change(Operation.UPDATE, (1, "b"), (4, "c"), before=[(1, "a"), (3, "c")])
    assert [one["old"] for one in messages(fmt, updates)] == [{"name": "a"}, {"id": 3}]
    (gone,) = messages(fmt, change(Operation.DELETE, (1, "b")))
    assert gone == {**head, "type": "delete", "ts": 1_700_000_000, "data": {"id": 1, "name": "b"}}
    (read,) = messages(fmt, change(Operation.INSERT, (1, "b"), snapshot=SnapshotRows("s", "initial", "true")))
    assert read["type"] == "bootstrap-insert"


def test_a_record_s_key_is_the_primary_key() -> None:
    fmt = MaxwellFormat(())
    keys = fmt.rows(change(Operation.UPDATE, (2, "b"), before=[(1, "b")]), 7).keys
    assert keys == [b'{"database":"shop","table":"users","pk.id":2}']
    keyless = TableSchema("shop", "log", SCHEMA.columns, ())
    assert fmt.rows(change(Operation.INSERT, (1, "a"), schema=keyless), 7).keys == [None]


def test_a_set_is_a_list_of_its_members_and_a_number_if_they_are_unknown() -> None:
    def printed(column: Column, value: Any) -> Any:
        made = change(Operation.INSERT, (value,), schema=TableSchema("shop", "users", (column,), ()))
        return messages(MaxwellFormat(()), made)[0]["data"]["tags"]

    known = Column("tags", "set('a','b')", 12, labels=("a", "b"))
    assert [printed(known, value) for value in ("a,b", "b", "")] == [["a", "b"], ["b"], []]
    assert printed(Column("tags", "set", 12), 3) == "3"


def test_the_fields_that_are_asked_for_are_there() -> None:
    names = ("position", "gtid", "server_id", "thread_id", "primary_key", "primary_key_columns")
    origin = Origin("b.000001", 4, 99, 1, 5, 6)
    (one,) = messages(MaxwellFormat(names), change(Operation.INSERT, (1, "a"), origin=origin))
    assert tuple(one)[4:-1] == names
    assert [one[name] for name in names] == ["b.000001:99", "u:1", 5, 6, [1], ["id"]]
    (two,) = messages(MaxwellFormat(("gtid",)), RowsChange(SCHEMA, Operation.INSERT, [(1, "a")], None, 1, 0, ""))
    assert two["gtid"] is None


@pytest.mark.parametrize(
    ("mysql_type", "value", "text"),
    [
        ("bigint unsigned", 18446744073709551615, "18446744073709551615"),
        ("decimal(10,2)", "-0.50", "-0.50"),
        ("bit(3)", 5, "5"),
        ("year", "0000", "0"),
        ("double", 1e20, "1e20"),
        ("enum('a')", "a", '"a"'),
        ("set('a','b')", "a,b", '["a","b"]'),
        ("set('a','b')", "", "[]"),
        ("json", '{"a": [1, null]}', '{"a": [1, null]}'),
        ("vector(2)", "[1,-2.5]", "[1,-2.5]"),
        ("datetime(3)", "0000-00-00 00:00:00.000", '"0000-00-00 00:00:00.000"'),
        ("blob", b"\0\xff", '"AP8="'),
        ("varchar(9)", '"\u4e00', '"\\"\u4e00"'),
    ],
)
def test_values_are_of_jsons_kinds(mysql_type: str, value: Any, text: str) -> None:
    schema = TableSchema("s", "t", (Column("a", mysql_type, 12), Column("b", "int", 4)), ())
    made = MaxwellFormat(()).rows(
        change(Operation.UPDATE, (value, 1), (value, None), before=[(None, 1)] * 2, schema=schema), 7
    )
    assert [f'"data":{{"a":{text},' in (one or b"").decode() for one in made.values] == [True, True]
    assert [json.loads(one or b"")["old"]["a"] for one in made.values] == [None, None]


def test_large_values_and_absent_columns_keep_their_form() -> None:
    schema = TableSchema("s", "t", (Column("j", "json", 12), Column("x", "text", 12), Column("y", "int", 4)), ())
    raw = json.dumps(["x" * 70_000]).encode()
    rows = change(
        Operation.INSERT,
        (*(large_text("utf8mb4")(raw, 0, len(raw), 1000) for _ in "jx"), ABSENT),
        schema=schema,
        partial=True,
    )
    rows.large = numbered(rows.rows)
    (value,) = MaxwellFormat(()).rows(rows, 7).values
    pieces = spliced(value or b"", rows.large, 1 << 30)
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            whole = json.loads(end.value)
            break
    assert whole["data"] == {"j": ["x" * 70_000], "x": raw.decode()}


def test_statements_and_marks_have_no_messages() -> None:
    fmt = MaxwellFormat(())
    assert fmt.schema_change(SchemaChange(DdlKind.ALTER, "ddl", "s", "t", "...", (), 1, 0, ""), 7) == []
    assert fmt.mark(TransactionMark(True, 1, 0, "", NO_ORIGIN), 7) == []


def test_the_format_is_chosen_by_its_name_and_native_code_knows_it() -> None:
    config = settings(message={"format": "maxwell", "fields": ["gtid"]})
    fmt = new_format(config)
    builder = make_builder(config, fmt, "server", 1)
    builder.emit(change(Operation.INSERT, (1, "a"), (2, "b")))
    (batch,) = builder.take(Position("", "b.000001", 4), 0.0)
    assert (len(batch.values), batch.keys) == (2, fmt.rows(change(Operation.INSERT, (1, "a"), (2, "b")), 7).keys)

    def reason(*columns: Column) -> str:
        schema = replace(SCHEMA, columns=SCHEMA.columns + columns)
        return reason_of_table(Projections(config, fmt).of(schema), fmt, (), one_log=False)

    assert reason() == reason(Column("tags", "set('a')", 12, labels=("a",))) == ""
    assert (
        reason(Column("tags", "set('','a')", 12, labels=("", "a")))
        == "it does not know how [message] prints column tags"
    )
    with pytest.raises(ConfigError, match="a message has one row"):
        settings(message={"format": "maxwell", "rows_per_message": 5})
