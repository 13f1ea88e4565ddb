"""Declared indexes: which documents rows become, and what of a declaration is refused before anything is written."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from pydantic import ValidationError

from headrace_documents.documents import TOMBSTONE, Action
from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Row, Rows
from headrace_documents.indexes.plans import Indexes
from headrace_documents.indexes.projection import UnfitTable, point
from headrace_documents.indexes.settings import IndexSettings

TYPES = {
    "id": "bigint",
    "name": "varchar(50)",
    "price": "decimal(10,2)",
    "on_sale": "tinyint(1)",
    "tags": "varchar(90)",
}
ROW: Row = {"id": "7", "name": "家庭保洁", "price": "199.00", "on_sale": "1", "tags": "a, b"}


def message(*rows: Row, operation: Any = "INSERT", olds: Any = None, table: str = "serve", **more: Any) -> Rows:
    made = Rows(
        "shop", table, operation, ("id",), TYPES, [dict(row) for row in rows], olds or [None] * len(rows), 50, 1, 0
    )
    return made._replace(**more)


def index(**settings: Any) -> IndexSettings:
    return IndexSettings.model_validate({"name": "services", "tables": r"shop\.serve.*", **settings})


def actions(rows: Rows, *, tombstones: bool = False, **settings: Any) -> list[Action]:
    (plan,) = Indexes([index(**settings)], tombstones=tombstones).plans(rows)
    return plan.actions(rows)


def body(row: Row, **settings: Any) -> Any:
    (action,) = actions(message(row), **settings)
    return action.body


def test_a_row_is_a_document_with_values_by_type() -> None:
    assert actions(message(ROW)) == [
        Action(
            "services", "7", 50, {"id": 7, "name": "家庭保洁", "price": "199.00", "on_sale": 1, "tags": "a, b"}, 0, ()
        )
    ]


def test_fields_are_renamed_cut_dropped_and_set() -> None:
    fields = {"title": {"column": "name"}, "tags": {"convert": "split"}, "kind": {"constant": "service"}}
    made = body(ROW, fields=fields, drop=["price"], booleans=True)
    assert made == {"id": 7, "title": "家庭保洁", "on_sale": True, "tags": ["a", "b"], "kind": "service"}
    assert body(ROW, fields={"title": {"column": "name"}}, columns="listed") == {"title": "家庭保洁"}


def test_json_and_points_are_objects() -> None:
    types = {"id": "bigint", "j": "json", "at": "point", "lat": "double", "lon": "double"}
    stored = struct.pack("<IBIdd", 4326, 1, 1, 121.47, 31.23)
    row = {"id": "1", "j": '{"a": [1]}', "at": base64.b64encode(stored).decode(), "lat": "31.23", "lon": None}
    fields = {
        "j": {"convert": "json", "type": "object"},
        "at": {"convert": "geo_point"},
        "l": {"geo_point": ["lat", "lon"]},
    }
    rows = message(row, types=types)
    (plan,) = Indexes([index(fields=fields)]).plans(rows)
    (made,) = plan.actions(rows)
    where = {"lat": 31.23, "lon": 121.47}
    assert made.body == {"id": 1, "lat": 31.23, "lon": None, "j": {"a": [1]}, "at": where, "l": None}
    assert plan.properties["at"] == plan.properties["l"] == {"type": "geo_point"}
    assert plan.properties["j"] == {"type": "object"}
    with pytest.raises(ValueError, match="no POINT"):
        point(base64.b64encode(stored[:-1]).decode())


def test_mappings_are_those_of_the_types_unless_a_field_says_otherwise() -> None:
    fields = {
        "price": {"type": "scaled_float", "mapping": {"scaling_factor": 100}},
        "title": {"column": "name", "type": "keyword"},
    }
    (plan,) = Indexes([index(fields=fields)]).plans(message(ROW))
    assert plan.properties["price"] == {"type": "scaled_float", "scaling_factor": 100}
    assert plan.properties["title"] == {"type": "keyword"}
    assert plan.properties["id"] == {"type": "long"}


def test_sharded_tables_share_an_index_and_ids_name_the_table() -> None:
    indexes = Indexes([index(id="{table}:{id}", tables=[r"shop\.serve_\d+", "other.x"])])
    shards = [message(ROW, table=table) for table in ("serve_1", "serve_2")]
    found = [action for rows in shards for plan in indexes.plans(rows) for action in plan.actions(rows)]
    assert [(action.target, action.id) for action in found] == [("services", "serve_1:7"), ("services", "serve_2:7")]
    assert indexes.plans(message(ROW, table="serves_1")) == ()


def test_a_document_that_gets_another_id_or_routing_leaves_its_old_place() -> None:
    rows = message({**ROW, "name": "b"}, operation="UPDATE", olds=[{"name": "a"}])
    assert [(a.id, a.routing, a.body is None) for a in actions(rows, routing="{name}")] == [
        ("7", "a", True),
        ("7", "b", False),
    ]
    assert [(a.id, a.body is None) for a in actions(rows, id="{name}-{id}")] == [("a-7", True), ("b-7", False)]
    assert [a.body is None for a in actions(rows)] == [False]


def test_rows_that_count_as_deleted_are() -> None:
    soft = {"column": "on_sale", "values": ["0"]}
    rows = message({**ROW, "on_sale": "0"}, ROW)
    assert [a.body is None for a in actions(rows, soft_delete=soft)] == [True, False]
    assert actions(rows, soft_delete=soft, tombstones=True)[0].body == TOMBSTONE


def test_a_row_without_columns_that_its_document_needs_is_refused_as_a_whole() -> None:
    part = {"id": "7", "name": "x"}
    with pytest.raises(MessageError, match="it lacks on_sale, price, tags"):
        actions(message(ROW, part))
    assert body(part, columns="listed", fields={"name": {}}) == {"name": "x"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"id": "{tabel}:{id}"}, r"id of index services names \{tabel\}, and shop\.serve has no such column"),
        ({"routing": "{city}"}, r"routing of index services names \{city\}"),
        ({"fields": {"title": {"column": "titel"}}}, "names column 'titel'"),
        ({"fields": {"at": {"geo_point": ["lat", "lon"]}}}, "names column 'lat'"),
        ({"soft_delete": {"column": "gone"}}, "names column 'gone'"),
    ],
)
def test_a_missing_column_is_reported_before_a_document_is_made(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UnfitTable, match=words):
        Indexes([index(**settings)]).plans(message(ROW))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "{tabel}"}, r"knows \{database\} and \{table\} only, not \{tabel\}"),
        ({"tables": "shop.(x"}, "is no regular expression"),
        ({"fields": {"a": {"type": "longg"}}}, "there is no mapping type 'longg'; did you mean 'long'"),
        (
            {"mappings": {"properties": {"a": {"properties": {"b": {"type": "txt"}}}}}},
            "a.b: there is no mapping type 'txt'",
        ),
        ({"fields": {"a": {"column": "b", "constant": 1}}}, "column and constant exclude each other"),
        ({"fields": {"a": {"constant": 1, "convert": "json"}}}, "convert has no meaning with constant"),
        ({"zone": "Asia/Nowhere"}, "neither an offset"),
        ({"columns": "listed"}, "leaves nothing"),
        ({"id": "same"}, "has no column in braces"),
        ({"template": True, "settings": {"index.number_of_shards": 1}}, "leaves settings and mappings"),
        ({"shards": 3}, "Extra inputs are not permitted"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        index(**settings)
