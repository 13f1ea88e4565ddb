"""Canal's flat JSON, one keyed message a row: for compacted topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json.encoder import encode_basestring as quote
from typing import Any

from headrace.errors import NotUnderstood
from headrace.formats.canal.format import CanalFormat
from headrace.large_values import LargeValue
from headrace.model import ABSENT, Operation, Row, RowsChange, SchemaChange, TableSchema, TransactionMark
from headrace.ports.format import KeyedFormat, Messages, NativeTable, per_schema

PRIMARY_KEY = "$pk$"


class KeyedCanalFormat(KeyedFormat):
    """The messages of another format, with the key `{"database":...,"table":...,"key":{...}}`. A tombstone follows each
    DELETE, and each UPDATE that changes the key, with the old key."""

    def __init__(self, plain: CanalFormat, columns: Sequence[str]) -> None:
        """`columns`: the names of the key's columns, or `$pk$` for the primary key of each table."""
        self._plain, self._names = plain, columns
        self._key = per_schema(self._key_of)

    @property
    def number(self) -> int:
        """Returns the number of the last message; a tombstone has none."""
        return self._plain.number

    @number.setter
    def number(self, value: int) -> None:
        self._plain.number = value

    def check(self, schema: TableSchema) -> None:
        known = {column.name.lower() for column in schema.columns}
        for name in self._names:
            if name != PRIMARY_KEY and name.lower() not in known:
                raise ValueError(f"it publishes no column {name}, which [message] key names")

    def _columns(self, schema: TableSchema) -> list[int]:
        """Returns the numbers of the key's columns; none for a table without a primary key."""
        numbers = {column.name.lower(): i for i, column in enumerate(schema.columns)}
        columns = [schema.keys if name == PRIMARY_KEY else [numbers.get(name.lower())] for name in self._names]
        return [number for some in columns for number in some if number is not None]

    def _head(self, schema: TableSchema) -> str:
        return f'{{"database":{quote(schema.schema)},"table":{quote(schema.table)},"key":{{'

    def _key_of(self, schema: TableSchema) -> Callable[[Row], bytes | None]:
        columns, table, head = self._columns(schema), self._plain.table(schema), self._head(schema)
        if not columns:
            return lambda row: None

        def cell(i: int, value: Any) -> str:
            if value is ABSENT:
                raise NotUnderstood(
                    f"a row of {schema.name} lacks the column {schema.columns[i].name}, which [message] key names",
                    remedy="set the server's binlog_row_image to FULL, and let old sessions reconnect",
                )
            whole = value.whole() if type(value) is LargeValue else value
            return table.names[i] + table.cell(table.printers[i], whole)

        def key(row: Row) -> bytes:
            return f"{head}{','.join(cell(i, row[i]) for i in columns)}}}}}".encode()

        return key

    def native_marks(self) -> tuple[Any, ...]:
        return *self._plain.native_marks()[:-1], self._key_without_rows("", "", "TRANSACTION")

    def native(self, schema: TableSchema) -> NativeTable:
        made = self._plain.native(schema)
        return NativeTable(made.columns, (*made.format[:-2], self._head(schema), self._columns(schema)))

    def rows(self, change: RowsChange, now_ms: int) -> Messages:
        made, key = Messages(), self._key(change.schema)
        before = change.before or change.rows
        gone = change.operation is Operation.DELETE
        for i, value in enumerate(self._plain.encode_each(change, now_ms)):
            new, old = key(change.rows[i]), None
            if gone:
                old = new
            elif before[i] is not change.rows[i]:
                old = key(tuple(b if a is ABSENT else a for a, b in zip(before[i], change.rows[i], strict=True)))
                old = old if old != new else None
            made.add(value, new, i)
            if old is not None:
                made.add(None, old, i)
        return made

    def record_key(self, schema: TableSchema) -> None:
        """Returns None: partitions are chosen by the text of the primary key, as without keys."""

    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        return [
            self._keyed(one, change.schema, change.table, str(change.kind))
            for one in self._plain.schema_change(change, now_ms)
        ]

    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        return [self._keyed(one, "", "", "TRANSACTION") for one in self._plain.mark(mark, now_ms)]

    def _keyed(self, made: Messages, schema: str, table: str, kind: str) -> Messages:
        """Uses a separate key for each kind, so that compaction keeps the last TRUNCATE of a table whatever follows
        it."""
        key = self._key_without_rows(schema, table, kind).encode()
        made.keys = [key for _ in made.values]
        return made

    @staticmethod
    def _key_without_rows(schema: str, table: str, kind: str) -> str:
        return f'{{"database":{quote(schema)},"table":{quote(table)},"type":{quote(kind)}}}'
