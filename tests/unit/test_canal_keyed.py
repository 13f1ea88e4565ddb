"""Canal's messages with keys: what a compacted topic keeps is the table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.wiring import new_format
from headrace.errors import ConfigError, NotUnderstood
from headrace.formats.canal.format import CanalFormat
from headrace.formats.canal.keyed import KeyedCanalFormat
from headrace.large_values import numbered
from headrace.model import ABSENT, Column, DdlKind, Operation, Row, RowsChange, SchemaChange, TableSchema
from headrace.mysql.values.large import large_text
from headrace.pipeline.projection import Projections
from headrace.ports.format import KeyedFormat, Messages
from tests.streams import settings

SCHEMA = TableSchema("shop", "users", (Column("id", "int", 4), Column("mail", "varchar(90)", 12)), (0,))


def change(
    operation: Operation, *rows: Row, before: list[Row] | None = None, schema: TableSchema = SCHEMA
) -> RowsChange:
    return RowsChange(schema, operation, list(rows), before, 1 << 40, 5_000_000, "u:1")


def read(made: Messages) -> list[tuple[Any, str | None, int]]:
    """Of each message the key's columns, its type, and its row; no type for a tombstone."""
    keys = [None if key is None else json.loads(key).get("key") for key in made.keys]
    types = [None if value is None else json.loads(value)["type"] for value in made.values]
    return list(zip(keys, types, made.rows, strict=True))


def test_a_message_a_row_has_a_key_with_the_table_in_it() -> None:
    fmt, plain = KeyedCanalFormat(CanalFormat(), ["$pk$"]), CanalFormat()
    made = fmt.rows(change(Operation.INSERT, (1, "a"), (2, None)), 7)
    assert made.values == plain.encode_each(change(Operation.INSERT, (1, "a"), (2, None)), 7)
    assert made.keys[0] == b'{"database":"shop","table":"users","key":{"id":"1"}}'
    assert read(made) == [({"id": "1"}, "INSERT", 0), ({"id": "2"}, "INSERT", 1)]


def test_a_tombstone_follows_a_delete_and_a_changed_key() -> None:
    fmt = KeyedCanalFormat(CanalFormat(), ["id"])
    assert read(fmt.rows(change(Operation.DELETE, (1, "a"), (2, "b")), 7)) == [
        ({"id": "1"}, "DELETE", 0),
        ({"id": "1"}, None, 0),
        ({"id": "2"}, "DELETE", 1),
        ({"id": "2"}, None, 1),
    ]
    moved = change(Operation.UPDATE, (3, "c"), (2, "B"), before=[(2, "c"), (2, "b")])
    made = fmt.rows(moved, 7)
    assert read(made) == [({"id": "3"}, "UPDATE", 0), ({"id": "2"}, None, 0), ({"id": "2"}, "UPDATE", 1)]
    assert [json.loads(value)["id"] for value in made.values if value] == [3, 4], "a tombstone has no number"


def test_a_key_may_be_of_other_columns_than_the_primary_key() -> None:
    fmt = KeyedCanalFormat(CanalFormat(), ["MAIL", "id"])
    (key,) = fmt.rows(change(Operation.INSERT, (1, None)), 7).keys
    assert json.loads(key or b"")["key"] == {"mail": None, "id": "1"}


def test_what_an_image_lacks_has_not_changed_and_a_row_without_its_key_stops() -> None:
    fmt = KeyedCanalFormat(CanalFormat(), ["id"])
    partial = change(Operation.UPDATE, (1, "b"), before=[(ABSENT, "a")])
    partial.partial = True
    assert read(fmt.rows(partial, 7)) == [({"id": "1"}, "UPDATE", 0)]
    lacking = change(Operation.INSERT, (ABSENT, "b"))
    lacking.partial = True
    with pytest.raises(NotUnderstood, match="lacks the column id"):
        fmt.rows(lacking, 7)


def test_a_large_value_is_in_a_key_as_a_whole() -> None:
    raw = b"x" * 100_000
    large = large_text("utf8mb4")(raw, 0, len(raw), 1000)
    rows = change(Operation.INSERT, (1, large))
    rows.large = numbered(rows.rows)
    (key,) = KeyedCanalFormat(CanalFormat(), ["mail"]).rows(rows, 7).keys
    assert json.loads(key or b"")["key"] == {"mail": "x" * 100_000}


def test_a_table_without_a_primary_key_has_no_keys_and_a_column_that_is_not_there_stops() -> None:
    keyless = TableSchema("shop", "log", (Column("a", "int", 4),), ())
    fmt = KeyedCanalFormat(CanalFormat(), ["$pk$"])
    assert read(fmt.rows(change(Operation.DELETE, (1,), schema=keyless), 7)) == [(None, "DELETE", 0)]
    config = settings(message={"key": ["id"]}, filter={"exclude_columns": "shop\\.log:a"})
    projections = Projections(config, new_format(config))
    projections.project(SCHEMA)
    with pytest.raises(NotUnderstood, match=r"does not fit the table shop\.log: it publishes no column id"):
        projections.project(keyless)


def test_statements_have_keys_by_their_kind_so_that_a_truncate_is_kept() -> None:
    fmt = KeyedCanalFormat(CanalFormat(), ["id"])
    kinds = (DdlKind.TRUNCATE, DdlKind.ALTER)
    statements = [SchemaChange(kind, "ddl", "shop", "users", "...", (), 1, 0, "") for kind in kinds]
    keys = [json.loads(made.keys[0] or b"") for one in statements for made in fmt.schema_change(one, 7)]
    assert keys == [{"database": "shop", "table": "users", "type": str(kind)} for kind in kinds]


def test_several_rows_a_message_can_not_have_a_key() -> None:
    assert isinstance(new_format(settings(message={"key": ["id"], "rows_per_message": 1})), KeyedFormat)
    with pytest.raises(ConfigError, match="a message has one row"):
        settings(message={"key": ["id"], "rows_per_message": 2})


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 4)), max_size=30))
def test_what_compaction_leaves_is_the_table(steps: list[tuple[int, int, int]]) -> None:
    fmt, table, topic = KeyedCanalFormat(CanalFormat(), ["id"]), dict[int, Row](), dict[bytes, bytes | None]()
    for number, (key, wish, to) in enumerate(steps):
        if key not in table:
            table[key] = (key, f"v{number}")
            made = fmt.rows(change(Operation.INSERT, table[key]), 7)
        elif wish == 0:
            made = fmt.rows(change(Operation.DELETE, table.pop(key)), 7)
        else:
            old, to = table.pop(key), key if to in table else to
            table[to] = (to, f"v{number}")
            made = fmt.rows(change(Operation.UPDATE, table[to], before=[old]), 7)
        for one, value in zip(made.keys, made.values, strict=True):
            assert one is not None
            topic[one] = value
    left = [json.loads(value)["data"][0] for value in topic.values() if value is not None]
    assert sorted(left, key=str) == sorted(({"id": str(a), "mail": b} for a, b in table.values()), key=str)
