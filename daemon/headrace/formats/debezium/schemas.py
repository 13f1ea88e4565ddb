"""The Kafka Connect schemas of Debezium's keys and values, in the form of the JSON converter (schemas.enable)."""

from __future__ import annotations

from typing import Any

import orjson

Schema = dict[str, Any]


def dump(schema: Schema) -> str:
    """A schema as text."""
    return orjson.dumps(schema).decode()


def field(name: str, kind: str, *, optional: bool = False) -> Schema:
    """A field of a plain type."""
    return {"type": kind, "optional": optional, "field": name}


def struct(name: str, fields: list[Schema], *, version: int = 0, optional: bool = False, of: str = "") -> Schema:
    """A struct; `of` is its name as a field of another."""
    made: Schema = {"type": "struct", "fields": fields, "optional": optional}
    if name:
        made["name"] = name
    if version:
        made["version"] = version
    if of:
        made["field"] = of
    return made


def placed(schema: Schema, name: str, *, optional: bool) -> Schema:
    """A column's schema as a field: `optional` stands before the name, `field` at the end."""
    made = {key: schema[key] for key in ("type", "fields", "items") if key in schema}
    made["optional"] = optional
    return {**made, **schema, "field": name}


_SNAPSHOT = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"},
    "default": "false",
    "field": "snapshot",
}

SOURCE = struct(
    "io.debezium.connector.mysql.Source",
    [
        field("version", "string"),
        field("connector", "string"),
        field("name", "string"),
        field("ts_ms", "int64"),
        _SNAPSHOT,
        field("db", "string"),
        field("sequence", "string", optional=True),
        field("ts_us", "int64", optional=True),
        field("ts_ns", "int64", optional=True),
        field("table", "string", optional=True),
        field("server_id", "int64"),
        field("gtid", "string", optional=True),
        field("file", "string"),
        field("pos", "int64"),
        field("row", "int32"),
        field("thread", "int64", optional=True),
        field("query", "string", optional=True),
    ],
    version=1,
    of="source",
)
_TRANSACTION = struct(
    "event.block",
    [field("id", "string"), field("total_order", "int64"), field("data_collection_order", "int64")],
    version=1,
    optional=True,
    of="transaction",
)


def envelope(prefix: str, columns: list[Schema]) -> Schema:
    """The value of a change of a row; `prefix` is name.schema.table."""
    value = f"{prefix}.Value"
    return struct(
        f"{prefix}.Envelope",
        [
            struct(value, columns, optional=True, of="before"),
            struct(value, columns, optional=True, of="after"),
            SOURCE,
            _TRANSACTION,
            field("op", "string"),
            *(field(name, "int64", optional=True) for name in ("ts_ms", "ts_us", "ts_ns")),
        ],
        version=2,
    )


TRANSACTION_KEY = struct("io.debezium.connector.common.TransactionMetadataKey", [field("id", "string")], version=1)
TRANSACTION_VALUE = struct(
    "io.debezium.connector.common.TransactionMetadataValue",
    [
        field("status", "string"),
        field("id", "string"),
        field("event_count", "int64", optional=True),
        {
            "type": "array",
            "items": struct(
                "event.collection",
                [field("data_collection", "string"), field("event_count", "int64")],
                version=1,
                optional=True,
            ),
            "optional": True,
            "field": "data_collections",
        },
        field("ts_ms", "int64"),
    ],
    version=1,
)


def _strings(name: str) -> Schema:
    return {"type": "array", "items": {"type": "string", "optional": False}, "optional": True, "field": name}


_COLUMN = struct(
    "io.debezium.connector.schema.Column",
    [
        field("name", "string"),
        field("jdbcType", "int32"),
        field("nativeType", "int32", optional=True),
        field("typeName", "string"),
        field("typeExpression", "string", optional=True),
        field("charsetName", "string", optional=True),
        field("length", "int32", optional=True),
        field("scale", "int32", optional=True),
        field("position", "int32"),
        field("optional", "boolean", optional=True),
        field("autoIncremented", "boolean", optional=True),
        field("generated", "boolean", optional=True),
        field("comment", "string", optional=True),
        field("defaultValueExpression", "string", optional=True),
        _strings("enumValues"),
    ],
    version=1,
)
_TABLE = struct(
    "io.debezium.connector.schema.Table",
    [
        field("defaultCharsetName", "string", optional=True),
        _strings("primaryKeyColumnNames"),
        {"type": "array", "items": _COLUMN, "optional": False, "field": "columns"},
        field("comment", "string", optional=True),
    ],
    version=1,
    optional=True,
    of="table",
)
_CHANGE = struct(
    "io.debezium.connector.schema.Change", [field("type", "string"), field("id", "string"), _TABLE], version=1
)
SCHEMA_CHANGE_KEY = struct("io.debezium.connector.mysql.SchemaChangeKey", [field("databaseName", "string")], version=1)
SCHEMA_CHANGE_VALUE = struct(
    "io.debezium.connector.mysql.SchemaChangeValue",
    [
        SOURCE,
        field("ts_ms", "int64"),
        field("databaseName", "string", optional=True),
        field("schemaName", "string", optional=True),
        field("ddl", "string", optional=True),
        {"type": "array", "items": _CHANGE, "optional": False, "field": "tableChanges"},
    ],
    version=1,
)
