"""The Kafka Connect schemas of Debezium's keys and values, in the form of the JSON converter (schemas.enable)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

Schema = dict[str, Any]


def dump(schema: Schema) -> str:
    """Returns a schema as text."""
    return orjson.dumps(schema).decode()


def fields(text: str) -> list[Schema]:
    """Returns fields of plain types, each given as `name:type`, with a `?` at its end if it is optional."""
    pairs = (word.split(":") for word in text.split())
    return [{"type": kind.rstrip("?"), "optional": kind.endswith("?"), "field": name} for name, kind in pairs]


def _strings(name: str) -> Schema:
    return {"type": "array", "items": {"type": "string", "optional": False}, "optional": True, "field": name}


def struct(name: str, fields: list[Schema], *, version: int = 0, optional: bool = False, of: str = "") -> Schema:
    """Returns a struct; `of` is its name as a field of another."""
    made: Schema = {"type": "struct", "fields": fields, "optional": optional}
    if name:
        made["name"] = name
    if version:
        made["version"] = version
    if of:
        made["field"] = of
    return made


def placed(schema: Schema, name: str, *, optional: bool) -> Schema:
    """Returns a column's schema as a field: `optional` comes before the name, `field` at the end."""
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
        *fields("version:string connector:string name:string ts_ms:int64"),
        _SNAPSHOT,
        *fields("db:string sequence:string? ts_us:int64? ts_ns:int64? table:string? server_id:int64 gtid:string?"),
        *fields("file:string pos:int64 row:int32 thread:int64? query:string?"),
    ],
    version=1,
    of="source",
)
_TRANSACTION = struct(
    "event.block",
    fields("id:string total_order:int64 data_collection_order:int64"),
    version=1,
    optional=True,
    of="transaction",
)


def envelope(prefix: str, columns: list[Schema]) -> Schema:
    """Returns the value of a change of a row; `prefix` is name.schema.table."""
    value = f"{prefix}.Value"
    return struct(
        f"{prefix}.Envelope",
        [
            struct(value, columns, optional=True, of="before"),
            struct(value, columns, optional=True, of="after"),
            SOURCE,
            _TRANSACTION,
            *fields("op:string ts_ms:int64? ts_us:int64? ts_ns:int64?"),
        ],
        version=2,
    )


_SOURCE_FIELDS = {one["field"]: one for one in SOURCE["fields"]}
_ENVELOPE_FIELDS = {one["field"]: one for one in fields("op:string ts_ms:int64? ts_us:int64? ts_ns:int64?")}


def added_field(name: str) -> tuple[str, str, Schema]:
    """Returns a field that is added to rows without an envelope: its struct ("" for the envelope), its name there, and
    its schema under its new name. A bare name is first searched in the envelope. Raises LookupError."""
    struct_, _, field = name.rpartition(".")
    if struct_ not in ("", "source"):
        raise LookupError(name)
    if not struct_ and field not in _ENVELOPE_FIELDS:
        return "source", field, {**_SOURCE_FIELDS[field], "field": f"__{field}"}
    known = _SOURCE_FIELDS if struct_ else _ENVELOPE_FIELDS
    return struct_, field, {**known[field], "field": f"__{name.replace('.', '_')}"}


def row_of(prefix: str, columns: list[Schema], names: Sequence[str], *, deleted: bool) -> Schema:
    """Returns the value of a row without an envelope."""
    added = [added_field(name)[2] for name in names]
    if deleted:
        added.append({"type": "string", "optional": True, "field": "__deleted"})
    return struct(f"{prefix}.Value", columns + added, optional=not added)


TRANSACTION = (
    struct("io.debezium.connector.common.TransactionMetadataKey", fields("id:string"), version=1),
    struct(
        "io.debezium.connector.common.TransactionMetadataValue",
        [
            *fields("status:string id:string event_count:int64?"),
            {
                "type": "array",
                "items": struct(
                    "event.collection", fields("data_collection:string event_count:int64"), version=1, optional=True
                ),
                "optional": True,
                "field": "data_collections",
            },
            *fields("ts_ms:int64"),
        ],
        version=1,
    ),
)
"""The schemas of key and value."""
_COLUMN = struct(
    "io.debezium.connector.schema.Column",
    [
        *fields("name:string jdbcType:int32 nativeType:int32? typeName:string typeExpression:string?"),
        *fields("charsetName:string? length:int32? scale:int32? position:int32 optional:boolean?"),
        *fields("autoIncremented:boolean? generated:boolean? comment:string? defaultValueExpression:string?"),
        _strings("enumValues"),
    ],
    version=1,
)
_TABLE = struct(
    "io.debezium.connector.schema.Table",
    [
        *fields("defaultCharsetName:string?"),
        _strings("primaryKeyColumnNames"),
        {"type": "array", "items": _COLUMN, "optional": False, "field": "columns"},
        *fields("comment:string?"),
    ],
    version=1,
    optional=True,
    of="table",
)
_CHANGE = struct("io.debezium.connector.schema.Change", [*fields("type:string id:string"), _TABLE], version=1)
SCHEMA_CHANGE = (
    struct("io.debezium.connector.mysql.SchemaChangeKey", fields("databaseName:string"), version=1),
    struct(
        "io.debezium.connector.mysql.SchemaChangeValue",
        [
            SOURCE,
            *fields("ts_ms:int64 databaseName:string? schemaName:string? ddl:string?"),
            {"type": "array", "items": _CHANGE, "optional": False, "field": "tableChanges"},
        ],
        version=1,
    ),
)
"""The schemas of key and value."""
