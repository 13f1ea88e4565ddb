"""Debezium's change events in JSON, as its MySQL connector 3.6 makes them: rows, transactions, schema changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from json.encoder import encode_basestring as quote
from typing import Any, ClassVar

import orjson

from headrace import __version__
from headrace.formats.debezium import schemas
from headrace.formats.debezium.settings import DebeziumSettings
from headrace.formats.debezium.tables import table_changes
from headrace.formats.debezium.types import field_of, geometry, large_geometry, large_point, native_style, point
from headrace.formats.row_text import RowText
from headrace.model import (
    ABSENT,
    DdlKind,
    Operation,
    Origin,
    Row,
    RowsChange,
    SchemaChange,
    TableChange,
    TableSchema,
    TransactionMark,
)
from headrace.ports.format import KeyedFormat, Messages, NativeTable, per_schema

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Headers of the delete and the create that are made from a changed primary key."""
_NO_VALUE = (None, ABSENT)
_Value = Callable[[str, str, str, int], bytes]
"""Prints a message's value: op, both rows as JSON, and the index of the row in the change."""


class _Table(RowText):
    """The constant parts of a table schema's messages: schemas, names and printers."""

    structured: ClassVar = {geometry: large_geometry, point: large_point}

    def __init__(self, schema: TableSchema, settings: DebeziumSettings) -> None:
        fields = [field_of(column, settings) for column in schema.columns]
        style = {"bytes": "base64"}.get(settings.binary, settings.binary)
        super().__init__(schema, [printer for _, printer in fields], {int.__repr__: ""}, style)
        self.name = schema.name
        self.keys = schema.keys
        self.value_head, self.key_head, self.tail = "", "", ""
        if settings.schemas:
            prefix = f"{settings.name}.{schema.schema}.{schema.table}"
            columns = [
                schemas.placed(made, column.name, optional=column.nullable)
                for (made, _), column in zip(fields, schema.columns, strict=True)
            ]
            key = schemas.struct(f"{prefix}.Key", [columns[i] for i in schema.keys])
            value = schemas.envelope(prefix, columns)
            if settings.unwrap:
                value = schemas.row_of(prefix, columns, settings.add_fields, deleted="rewrite" in settings.deletes)
            self.value_head = f'{{"schema":{schemas.dump(value)},"payload":'
            self.key_head, self.tail = f'{{"schema":{schemas.dump(key)},"payload":', "}"

    def key(self, row: Row) -> bytes | None:
        """Returns the record's key; None for a table without a primary key."""
        if not self.keys:
            return None
        parts = [self.names[i] + ("null" if row[i] in _NO_VALUE else self.printers[i](row[i])) for i in self.keys]
        return f"{self.key_head}{{{','.join(parts)}}}{self.tail}".encode()


class DebeziumFormat(KeyedFormat):
    """One message a row. Keeps the count of the open transaction if there is a topic for transactions."""

    def __init__(self, settings: DebeziumSettings) -> None:
        self._settings = settings
        self._table = per_schema(lambda schema: _Table(schema, settings))
        self._tombstones = "tombstone" in settings.deletes if settings.unwrap else settings.tombstones
        self._writes_deletes = not settings.unwrap or "rewrite" in settings.deletes
        self._added = [schemas.added_field(name) for name in settings.add_fields]
        self._counts: dict[str, int] = {}
        """Events of the open transaction, by table."""
        self._total = 0
        self.only_python = "rows have the text of their statement" if settings.query else ""
        self._query, self._query_at = "null", ("", 0)
        """The statement that made the rows, as JSON, and its transaction."""

    def _source(
        self, origin: Origin, schema: str, table: str, us: int, gtid: str, snapshot: str = "false", query: str = "null"
    ) -> tuple[str, str]:
        """Returns the source block in two halves; the row's number goes between them."""
        return (
            f'{{"version":"{__version__}","connector":"mysql","name":{quote(self._settings.name)},"ts_ms":{us // 1000}'
            f',"snapshot":"{snapshot}","db":{quote(schema)},"sequence":null,"ts_us":{us},"ts_ns":{us * 1000}'
            f',"table":{quote(table) if table else "null"},"server_id":{origin.server_id}'
            f',"gtid":{quote(gtid) if gtid else "null"},"file":{quote(origin.file)},"pos":{origin.offset},"row":',
            f',"thread":{origin.thread or "null"},"query":{query}}}',
        )

    def native(self, schema: TableSchema) -> NativeTable | None:
        styles = [native_style(column, self._settings) for column in schema.columns]
        known = [style for style in styles if style is not None]
        if len(known) < len(styles) or self._settings.transaction_topic or self.only_python:
            return None
        table = self._table(schema)
        source = (
            f'{{"version":"{__version__}","connector":"mysql","name":{quote(self._settings.name)},"ts_ms":',
            f',"db":{quote(schema.schema)}',
            f',"table":{quote(schema.table)}',
        )
        heads = table.value_head, table.key_head, table.tail
        return NativeTable(
            list(zip(table.names, known, strict=True)),
            (
                *("debezium", *heads, *source, self._tombstones, list(schema.keys)),
                *(self._writes_deletes, self._native_row(schema) if self._settings.unwrap else None),
            ),
        )

    def _native_row(self, schema: TableSchema) -> list[tuple[str, str]]:
        """Returns how native code prints the fields that a row without an envelope gets: for each what is the same in
        all messages about a table, and the name of the rest."""
        constants = {
            "version": f'"{__version__}"',
            "connector": '"mysql"',
            "name": quote(self._settings.name),
            "db": quote(schema.schema),
            "sequence": "null",
            "table": quote(schema.table),
            "query": "null",
        }
        added = []
        for of, name, field in self._added:
            begin = f"{quote(field['field'])}:"
            if of and name in constants:
                added.append((begin + constants[name], ""))
            else:
                added.append((begin, f"{of}.{name}" if of else name))
        return added

    # -- rows -----------------------------------------------------------------------------------------------------

    def rows(self, change: RowsChange, now_ms: int) -> Messages:
        table, read = self._table(change.schema), change.snapshot
        made = Messages()
        source, thread = self._source(
            change.origin,
            change.schema.schema,
            change.schema.table,
            change.commit_time_us,
            change.gtid,
            "false" if read is None else read.marker,
            self._query_of(change) if self._settings.query and read is None else "null",
        )
        transaction = ""
        if self._settings.transaction_topic and read is None:  # rows of a snapshot belong to no transaction
            transaction = self._transaction_id(change.gtid, change.origin)
        row = table.unusual_row if change.partial or change.large else table.row
        row_indexes = change.row_indexes
        middle = f',"source":{source}'
        tail = f',"ts_ms":{now_ms},"ts_us":{now_ms * 1000},"ts_ns":{now_ms * 1_000_000}}}{table.tail}'

        def enveloped(op: str, before: str, after: str, i: int) -> bytes:
            block = self._block(transaction, table.name) if transaction else "null"
            number = i if row_indexes is None else row_indexes[i]
            return (
                f'{table.value_head}{{"before":{before},"after":{after}{middle}{number}{thread},"transaction":{block}'
                f',"op":"{op}"{tail}'
            ).encode()

        value: _Value = enveloped
        if self._settings.unwrap:
            value = self._unwrapped(table, change, f"{source}0{thread}", now_ms)
        if change.operation is Operation.INSERT:
            op = "c" if read is None else "r"
            for i, after in enumerate(change.rows):
                made.add(value(op, "null", row(after), i), table.key(after), i)
        elif change.operation is Operation.DELETE:
            for i, before in enumerate(change.rows):
                self._delete(made, value("d", row(before), "null", i), table.key(before), i)
        else:
            assert change.before is not None
            for i, (before, after) in enumerate(zip(change.before, change.rows, strict=True)):
                key = table.key(after)
                old = key if _same_key(table.keys, before, after) else table.key(_filled(before, after))
                if old == key:
                    made.add(value("u", row(before), row(after), i), key, i)
                    continue
                assert key is not None
                assert old is not None
                at = len(made.values)
                self._delete(made, value("d", row(before), "null", i), old, i)
                for index in range(at, len(made.values)):
                    made.headers[index] = (NEW_KEY, key)
                made.headers[len(made.values)] = (OLD_KEY, old)
                made.add(value("c", "null", row(after), i), key, i)
        if change.other is not None:
            self._link(made, table, change.rows[0], change.other, gone=change.operation is Operation.DELETE)
        return made

    def _unwrapped(self, table: _Table, change: RowsChange, source: str, now_ms: int) -> _Value:
        """Returns a function that prints the row itself, with the configured fields."""
        event = {"source": orjson.loads(source), "ts_ms": now_ms, "ts_us": now_ms * 1000, "ts_ns": now_ms * 1_000_000}
        numbered = change.row_indexes

        def value(op: str, before: str, after: str, i: int) -> bytes:
            event["op"], event["source"]["row"] = op, i if numbered is None else numbered[i]
            parts = [
                f"{quote(field['field'])}:{orjson.dumps((event['source'] if of else event)[name]).decode()}"
                for of, name, field in self._added
            ]
            if self._writes_deletes:
                parts.append(f'"__deleted":"{"true" if op == "d" else "false"}"')
            row = (before if op == "d" else after)[1:-1]
            return f"{table.value_head}{{{','.join(filter(None, (row, *parts)))}}}{table.tail}".encode()

        return value

    def _link(self, made: Messages, table: _Table, row: Row, other: Row, *, gone: bool) -> None:
        """Adds the other half's key to half of an update whose halves go to different partitions."""
        key, name = table.key(_filled(other, row)), NEW_KEY if gone else OLD_KEY
        if key is not None and made.keys and key != made.keys[0]:
            made.headers = dict.fromkeys(range(len(made.values)), (name, key))

    def _query_of(self, change: RowsChange) -> str:
        return self._query if self._query_at == (change.origin.file, change.origin.transaction) else "null"

    def record_key(self, schema: TableSchema) -> Callable[[Row], bytes]:
        key = self._table(schema).key
        return lambda row: key(row) or b""

    def _delete(self, made: Messages, value: bytes, key: bytes | None, i: int) -> None:
        if self._writes_deletes:
            made.add(value, key, i)
        if self._tombstones and key is not None:
            made.add(None, key, i)

    # -- transactions ---------------------------------------------------------------------------------------------

    def _transaction_id(self, gtid: str, origin: Origin) -> str:
        return gtid or f"file={origin.file},pos={origin.transaction}"

    def _block(self, transaction: str, table: str) -> str:
        self._total += 1
        order = self._counts[table] = self._counts.get(table, 0) + 1
        return f'{{"id":{quote(transaction)},"total_order":{self._total},"data_collection_order":{order}}}'

    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        if not self._settings.transaction_topic:
            return []
        key = {"id": self._transaction_id(mark.gtid, mark.origin)}
        value: dict[str, Any] = {"status": "BEGIN" if mark.begin else "END", **key}
        if mark.begin:
            self._counts, self._total = {}, 0
            value |= {"event_count": None, "data_collections": None}
        else:
            counts = [{"data_collection": name, "event_count": n} for name, n in self._counts.items()]
            value |= {"event_count": self._total, "data_collections": counts}
        value["ts_ms"] = mark.commit_time_us // 1000
        return [self._record(self._settings.transaction_topic, schemas.TRANSACTION, key, value)]

    # -- schema changes -------------------------------------------------------------------------------------------

    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        """Returns the messages of DDL, one for each table that a RENAME names. Other statements have none; the text of
        DML is that of the following rows."""
        if change.category == "dml":
            self._query, self._query_at = quote(change.sql), (change.origin.file, change.origin.transaction)
        if not self._settings.schema_topic or not change.is_ddl:
            return []
        if change.kind is not DdlKind.RENAME or not change.tables:
            return [self._schema_change(change, change.schema, change.table, change.sql, change.tables, now_ms)]
        alone, made = change.alters or len(change.tables) == 1, Messages(topic=self._settings.schema_topic)
        for of in change.tables:
            sql = change.sql if alone else _rename(of)
            one = self._schema_change(change, of.schema, of.table, sql, (of,), now_ms)
            made.add(one.values[0], one.keys[0])
        return [made]

    def _schema_change(
        self, change: SchemaChange, schema: str, table: str, sql: str, tables: tuple[TableChange, ...], now_ms: int
    ) -> Messages:
        head, tail = self._source(change.origin, schema, table, change.commit_time_us, change.gtid)
        key = {"databaseName": schema}
        value = {
            "source": orjson.loads(f"{head}0{tail}"),
            "ts_ms": now_ms,
            "databaseName": schema,
            "schemaName": None,
            "ddl": sql,
            "tableChanges": table_changes(tables, alters=change.alters),
        }
        return self._record(self._settings.schema_topic, schemas.SCHEMA_CHANGE, key, value)

    def _record(self, topic: str, of: tuple[schemas.Schema, schemas.Schema], key: object, value: object) -> Messages:
        if self._settings.schemas:
            key, value = {"schema": of[0], "payload": key}, {"schema": of[1], "payload": value}
        return Messages([orjson.dumps(value)], [orjson.dumps(key)], [0], topic=topic)


def _rename(of: TableChange) -> str:
    """Returns a statement for one of the tables that a RENAME TABLE names."""
    old, new = (".".join(f"`{part.replace('`', '``')}`" for part in name) for name in _names_of(of))
    return f"RENAME TABLE {old} TO {new}"


def _names_of(of: TableChange) -> tuple[tuple[str, str], tuple[str, str]]:
    new = of.schema, of.table
    return of.renamed_from or new, new


def _same_key(keys: Iterable[int], before: Row, after: Row) -> bool:
    return all(before[i] is ABSENT or before[i] == after[i] for i in keys)


def _filled(before: Row, after: Row) -> Row:
    """Returns the old row, with the new one's values for missing ones: what the image lacks did not change."""
    return tuple(b if a is ABSENT else a for a, b in zip(before, after, strict=True))
