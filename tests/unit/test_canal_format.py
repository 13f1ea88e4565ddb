"""Canal's flat JSON: parsed back, field by field, whatever stands in names and values."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.wiring import new_format
from headrace.formats.canal.format import CanalFormat, CompatFormat
from headrace.model import (
    ABSENT,
    Column,
    DdlKind,
    Operation,
    RowsChange,
    SchemaChange,
    TableChange,
    TableSchema,
    TransactionMark,
)
from headrace.ports.format import Messages
from headrace.settings.destination import DestinationSettings
from headrace_common.numbers import float_text
from tests.configured import destination_of

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
VALUES = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))


def change(
    names: list[str], rows: list[tuple[object, ...]], before: list[tuple[object, ...]] | None = None
) -> RowsChange:
    columns = tuple(Column(name, "int" if i == 0 else "varchar(9)", 12) for i, name in enumerate(names))
    operation = Operation.INSERT if before is None else Operation.UPDATE
    return RowsChange(
        TableSchema("shop", "t", columns, (0,)), operation, rows, before, 1 << 40, 1_700_000_000_123_456, "u:1"
    )


@given(st.lists(NAMES, min_size=2, max_size=5, unique=True), st.data())
def test_any_names_and_values_come_back(names: list[str], data: st.DataObject) -> None:
    rows = [(n, *(data.draw(VALUES) for _ in names[1:])) for n in range(data.draw(st.integers(1, 4)))]
    fmt, made = CanalFormat(), change(names, rows)
    expected = [{k: None if v is None else str(v) for k, v in zip(names, row, strict=True)} for row in rows]
    whole = json.loads(fmt.encode(made, 5))
    assert whole["data"] == expected
    single = [json.loads(message) for message in fmt.encode_each(made, 5)]
    assert [m["data"] for m in single] == [[row] for row in expected]
    assert [int(m["_pos"]) for m in single] == [made.pos + i for i in range(len(rows))]


def test_the_fields_are_those_of_a_flat_message() -> None:
    message = json.loads(CanalFormat().encode(change(["id", "名"], [(1, "b")], [(1, "a")]), 1_700_000_000_999))
    assert message == {
        "data": [{"id": "1", "名": "b"}],
        "database": "shop",
        "es": 1_700_000_000_123,
        "gtid": "u:1",
        "id": 1,
        "isDdl": False,
        "mysqlType": {"id": "int", "名": "varchar(9)"},
        "old": [{"名": "a"}],
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": 12, "名": 12},
        "table": "t",
        "ts": 1_700_000_000_999,
        "type": "UPDATE",
        "_pos": str(1 << 40),
    }


def test_messages_of_one_process_are_counted() -> None:
    fmt = CanalFormat()
    made = change(["id", "a"], [(1, "x"), (2, "y")])
    ids = [json.loads(m)["id"] for m in (fmt.encode(made, 1), *fmt.encode_each(made, 1), fmt.encode(made, 1))]
    assert ids == [1, 2, 3, 4]


def one(fmt: CanalFormat, mysql_type: str, value: Any, sql_type: int = 12) -> Any:
    """The one value of a row, written all three ways: among values, beside a NULL, as an old value."""
    schema = TableSchema("s", "t", (Column("a", mysql_type, sql_type), Column("b", "int", 4)), ())
    rows = [(value, 1), (value, None)]
    change = RowsChange(schema, Operation.UPDATE, rows, [(None, 1), (value, 2)], 1, 0, "")
    message = json.loads(fmt.encode(change, 0))
    back = RowsChange(schema, Operation.UPDATE, [(None, 1)], [(value, 1)], 1, 0, "")
    texts = [row["a"] for row in message["data"]] + [json.loads(fmt.encode(back, 0))["old"][0]["a"]]
    assert texts == texts[:1] * 3
    assert message["old"] == [{"a": None}, {"b": "2"}]
    return texts[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (0.1, "0.1"),
        (100000.0, "100000"),
        (1e14, "100000000000000"),
        (999999999999999.9, "999999999999999.9"),
        (1e15, "1e15"),
        (1e20, "1e20"),
        (-1.2345678901234568e17, "-1.2345678901234568e17"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (3.4028235e38, "3.4028235e38"),
        (1.23e-7, "0.000000123"),
        (1.2345678901234568e-05, "0.000012345678901234568"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"),
        (5e-324, "5e-324"),
    ],
)
def test_floats_are_printed_as_mysql_prints_them(value: float, text: str) -> None:
    assert float_text(value) == text
    assert one(CanalFormat(), "double", value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_float_is_its_value(value: float) -> None:
    assert struct.pack("<d", float(float_text(value))) == struct.pack("<d", value)


def test_floats_declared_with_decimals_have_them() -> None:
    assert one(CanalFormat(), "float(10,2)", 1234567.9) == "1234567.88"  # the FLOAT next to it is 1234567.875
    assert one(CanalFormat(), "double(20,3) unsigned", 2.5) == "2.500"
    assert one(CanalFormat(), "float(12)", 1.5) == "1.5"


def test_binary_strings_are_base64_unless_asked_otherwise() -> None:
    raw = b'\x00\xff"\\'
    for kind in ("binary(4)", "varbinary(9)", "blob", "geometry"):
        assert one(CanalFormat(), kind, raw) == b64encode(raw).decode()
        assert one(CanalFormat("hex"), kind, raw) == "00ff225c"
        assert one(CanalFormat("latin1"), kind, raw) == raw.decode("latin-1")


def test_enums_are_labels_or_numbers() -> None:
    assert one(CanalFormat(), "enum('a','b')", 'it\'s "b"') == 'it\'s "b"'
    assert one(CanalFormat(enum_index=True), "set('a','b')", 3) == "3"
    schema = TableSchema("s", "t", (Column("e", "enum('a')", 12), Column("s", "set('a')", 12)), ())
    change = RowsChange(schema, Operation.INSERT, [(1, 1)], None, 1, 0, "")
    assert json.loads(CanalFormat(enum_index=True).encode(change, 0))["sqlType"] == {"e": 4, "s": -7}
    assert json.loads(CanalFormat().encode(change, 0))["sqlType"] == {"e": 12, "s": 12}


def test_a_vector_is_its_text() -> None:
    assert one(CanalFormat(), "vector(2)", "[1,2]") == "[1,2]"


def test_types_that_nobody_knew_are_printed_by_their_value() -> None:
    assert one(CanalFormat(), "inet6", "::1") == "::1"
    assert one(CanalFormat(), "uuid", b"\x01") == "AQ=="


def test_absent_columns_are_missing_and_null_ones_are_null() -> None:
    columns = tuple(Column(name, "int", 4) for name in ("id", "a", "b", "c"))
    schema = TableSchema("s", "t", columns, (0,))
    change = RowsChange(
        schema,
        Operation.UPDATE,
        [(1, 5, ABSENT, None), (2, 6, ABSENT, None)],
        [(1, ABSENT, ABSENT, ABSENT), (3, 6, ABSENT, 4)],
        1,
        0,
        "",
        partial=True,
    )
    fmt = CanalFormat()
    whole, each = json.loads(fmt.encode(change, 0)), [json.loads(value) for value in fmt.encode_each(change, 0)]
    assert whole["data"] == [{"id": "1", "a": "5", "c": None}, {"id": "2", "a": "6", "c": None}]
    assert whole["old"] == [{}, {"id": "3", "c": "4"}]
    assert [message["data"] + message["old"] for message in each] == [
        [row, old] for row, old in zip(whole["data"], whole["old"], strict=True)
    ]
    assert whole["mysqlType"].keys() == {"id", "a", "b", "c"}


def only(messages: list[Messages]) -> dict[str, Any]:
    ((value,),) = (made.values for made in messages)
    assert value is not None
    return dict(json.loads(value))


def ddl(sql: str = 'ALTER TABLE t ADD `a"b` INT', kind: DdlKind = DdlKind.ALTER, category: str = "ddl") -> SchemaChange:
    return SchemaChange(kind, category, "shop", "t", sql, (), 1 << 40, 1_700_000_000_123_456, "u:1")


def test_a_schema_change_has_the_fields_of_a_flat_message_and_no_rows() -> None:
    fmt = CanalFormat()
    message = only(fmt.schema_change(ddl(), 7))
    assert list(message) == list(json.loads(fmt.encode(change(["id"], [(1,)]), 5)))
    assert message == {
        "data": None,
        "database": "shop",
        "es": 1_700_000_000_123,
        "gtid": "u:1",
        "id": 1,
        "isDdl": True,
        "mysqlType": None,
        "old": None,
        "pkNames": None,
        "sql": 'ALTER TABLE t ADD `a"b` INT',
        "sqlType": None,
        "table": "t",
        "ts": 7,
        "type": "ALTER",
        "_pos": str(1 << 40),
    }


@pytest.mark.parametrize("kind", list(DdlKind))
def test_the_type_of_a_schema_change_is_canals_word(kind: DdlKind) -> None:
    assert only(CanalFormat().schema_change(ddl(kind=kind), 7))["type"] == kind.value


def test_a_rename_has_the_new_name_as_in_canal() -> None:
    made = SchemaChange(
        DdlKind.RENAME,
        "ddl",
        "shop",
        "old",
        "RENAME TABLE old TO arch.new, x TO y",
        (
            TableChange(DdlKind.RENAME, "arch", "new", None, ("shop", "old")),
            TableChange(DdlKind.RENAME, "shop", "y", None, ("shop", "x")),
        ),
        1,
        0,
        "",
    )
    message = only(CanalFormat().schema_change(made, 7))
    assert (message["database"], message["table"]) == ("arch", "new")


def test_key_columns_are_in_the_keys_order_and_canals_in_the_tables() -> None:
    schema = TableSchema("s", "t", (Column("b", "int", 4), Column("a", "int", 4)), (1, 0))
    made = RowsChange(schema, Operation.INSERT, [(1, 2)], None, 1, 0, "")
    assert json.loads(CanalFormat().encode(made, 0))["pkNames"] == ["a", "b"]
    assert json.loads(CompatFormat().encode(made, 0))["pkNames"] == ["b", "a"]


def test_texts_of_statements_are_queries_that_are_no_ddl() -> None:
    message = only(CanalFormat().schema_change(ddl("DELETE FROM t", DdlKind.QUERY, False), 7))
    assert (message["type"], message["isDdl"], message["sql"]) == ("QUERY", False, "DELETE FROM t")


def test_marks_name_their_kind_and_transaction() -> None:
    for begin, kind in ((True, "TRANSACTIONBEGIN"), (False, "TRANSACTIONEND")):
        message = only(CanalFormat().mark(TransactionMark(begin, 9, 5_000_000, "u:1"), 7))
        assert (message["type"], message["gtid"], message["es"], message["_pos"]) == (kind, "u:1", 5000, "9")


def test_canals_own_way_has_whole_seconds_and_no_pos() -> None:
    fmt = CompatFormat("latin1", enum_index=True)
    made = change(["id", ',"_pos":"'], [(1, ',"_pos":"1"}'), (2, "y")])
    messages = [json.loads(value) for value in (fmt.encode(made, 1), *fmt.encode_each(made, 1))]
    messages.append(only(fmt.schema_change(ddl(), 1)))
    messages.append(only(fmt.mark(TransactionMark(True, 9, 1_700_000_000_123_456, "u:1"), 7)))
    for message in messages:
        assert "_pos" not in message
        assert message["es"] == 1_700_000_000_000
    assert messages[0]["data"][0][',"_pos":"'] == ',"_pos":"1"}'
    assert [message["id"] for message in messages] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("sql", "category", "is_ddl"),
    [("GRANT SELECT ON *.* TO a", "dcl", True), ("/* by hand */ -- really\n DELETE FROM t", "dml", False)],
)
def test_to_canal_every_statement_is_ddl_that_is_not_dml(sql: str, category: str, is_ddl: bool) -> None:
    assert only(CompatFormat().schema_change(ddl(sql, DdlKind.QUERY, category), 7))["isDdl"] is is_ddl


def test_to_canal_a_view_that_is_made_or_dropped_is_no_message() -> None:
    view = replace(ddl("CREATE VIEW v AS SELECT 1", DdlKind.QUERY), view=True)
    assert CompatFormat().schema_change(view, 7) == []
    assert only(CompatFormat().schema_change(replace(view, alters=True), 7))["type"] == "QUERY"
    assert only(CanalFormat().schema_change(view, 7))["type"] == "QUERY"


@pytest.mark.parametrize("made", [CanalFormat, CompatFormat])
def test_uniform_old_values_have_the_columns_that_changed_in_any_row_of_the_message(made: type[CanalFormat]) -> None:
    before = [(1, "a", "p"), (2, "b", "q"), (3, None, "r")]
    updates = change(["id", "x", "y"], [(1, "A", "p"), (2, "b", "Q"), (3, None, "r")], list(before))
    olds = [{"x": "a", "y": "p"}, {"x": "b", "y": "q"}, {"x": None, "y": "r"}]
    fmt = made(uniform=True)
    assert json.loads(fmt.encode(updates, 1))["old"] == olds
    assert [json.loads(one)["old"] for one in fmt.encode_each(updates, 1)] == [[{"x": "a"}], [{"y": "q"}], [{}]]
    assert json.loads(made().encode(updates, 1))["old"] == [{"x": "a"}, {"y": "q"}, {}]
    updates.before = [(1, "a", "p"), (2, ABSENT, "q"), (3, None, "r")]
    assert json.loads(fmt.encode(updates, 1))["old"] == [olds[0], {"y": "q"}, olds[2]]


def settings(**message: Any) -> DestinationSettings:
    source = {"host": "h", "user": "u", "password": "p"}
    return destination_of({"name": "shop", "source": source, "message": message, "sink": {"type": "null"}})


def test_the_format_follows_the_settings() -> None:
    plain, compat = new_format(settings()), new_format(settings(compat="canal", binary="hex"))
    assert isinstance(plain, CanalFormat)
    assert not isinstance(plain, CompatFormat)
    assert one(plain, "blob", b"\x01") == "AQ=="
    assert isinstance(compat, CompatFormat)
    assert one(compat, "blob", b"\x01") == "01"
