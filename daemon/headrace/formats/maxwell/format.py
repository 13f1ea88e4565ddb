"""Maxwell's JSON: one message a row, with Maxwell's record key."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection
from json.encoder import encode_basestring as quote
from typing import Any, ClassVar

import orjson

from headrace.formats.row_text import Printer, RowText
from headrace.large_values import LargeValue
from headrace.model import ABSENT, Column, Row, RowsChange, SchemaChange, TableSchema, TransactionMark
from headrace.ports.format import KeyedFormat, Messages, NativeTable, per_schema
from headrace_common.numbers import float_text

_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "bit", "decimal"})
"""Types whose text is a JSON number."""
_PLACES = ("position", "gtid", "server_id", "thread_id")
"""Optional fields, in their order in a message."""


def _document(value: Any) -> str:
    """Prints a text that is already JSON."""
    return str(value)


def _labels(value: Any) -> str:
    if type(value) is int:  # the members are unknown
        return f'"{value}"'
    return orjson.dumps(value.split(",") if value else []).decode()


def _other(value: Any) -> str:
    return f'"{b64encode(value).decode()}"' if type(value) is bytes else quote(str(value))


def _printer(column: Column) -> Printer:
    if column.kind in _NUMBERS:
        return str
    if column.kind == "year":
        return lambda value: str(int(value))
    if column.kind in ("json", "vector"):
        return _document
    if column.kind in ("float", "double"):
        return float_text
    return _labels if column.kind == "set" else _other


def _native_style(column: Column) -> tuple[Any, ...] | None:
    """Returns how native code prints a column's values, as _printer() does; None if it can't."""
    kind = column.kind
    if kind in _NUMBERS or kind in ("json", "vector", "float", "double"):
        return ("json",)
    if kind == "year":
        return ("year",)
    if kind != "set" or not column.labels:
        return "text", "base64"
    ambiguous = any(not label or "," in label for label in column.labels)  # its text does not say which members are set
    return None if ambiguous else ("list",)


class _Table(RowText):
    """The constant parts of a table schema's messages."""

    # A piece of a large value is made for a JSON string, which a document is not.
    structured: ClassVar = {_document: LargeValue.__str__}

    def __init__(self, schema: TableSchema) -> None:
        super().__init__(schema, [_printer(column) for column in schema.columns], {str: ""}, "base64")
        self.keys = schema.keys
        self.head = f'{{"database":{quote(schema.schema)},"table":{quote(schema.table)}'
        self.key_columns = orjson.dumps([schema.columns[i].name for i in schema.keys]).decode()
        self.key_names = [f",{quote(f'pk.{schema.columns[i].name}')}:" for i in schema.keys]

    def values(self, row: Row) -> list[str]:
        """Returns the values of the primary key."""
        return ["null" if row[i] is ABSENT else self.cell(self.printers[i], row[i]) for i in self.keys]

    def key(self, row: Row) -> bytes | None:
        """Returns the record's key; None for a table without a primary key."""
        if not self.keys:
            return None
        cells = [name + value for name, value in zip(self.key_names, self.values(row), strict=True)]
        return f"{self.head}{''.join(cells)}}}".encode()

    def old(self, before: Row, after: Row) -> str:
        """Returns the old values of the columns that changed, as far as they are known."""
        changed = [
            name + self.cell(printer, a)
            for name, printer, a, b in zip(self.names, self.printers, before, after, strict=True)
            if a is not b and a != b and a is not ABSENT
        ]
        return "{" + ",".join(changed) + "}"


class MaxwellFormat(KeyedFormat):
    """Rows only: statements and marks have no messages."""

    def __init__(self, fields: Collection[str]) -> None:
        """`fields`: Maxwell's optional fields."""
        self._fields, self._table = frozenset(fields), per_schema(_Table)

    def native(self, schema: TableSchema) -> NativeTable | None:
        styles = [_native_style(column) for column in schema.columns]
        known = [style for style in styles if style is not None]
        if len(known) < len(styles):
            return None
        table, places = self._table(schema), [name for name in _PLACES if name in self._fields]
        keys = list(zip(schema.keys, table.key_names, strict=True))
        format_ = "maxwell", table.head, places, "primary_key" in self._fields, self._key_columns(table), keys
        return NativeTable(list(zip(table.names, known, strict=True)), format_)

    def _key_columns(self, table: _Table) -> str:
        return f',"primary_key_columns":{table.key_columns}' if "primary_key_columns" in self._fields else ""

    def rows(self, change: RowsChange, now_ms: int) -> Messages:
        made, table, fields = Messages(), self._table(change.schema), self._fields
        kind = "bootstrap-insert" if change.snapshot is not None else change.operation.lower()
        head = f'{table.head},"type":"{kind}","ts":{change.commit_time_us // 1_000_000}{self._place(change)}'
        row = table.unusual_row if change.partial or change.large else table.row
        for i, after in enumerate(change.rows):
            keys = f',"primary_key":[{",".join(table.values(after))}]' if "primary_key" in fields else ""
            keys += self._key_columns(table)
            old = f',"old":{table.old(change.before[i], after)}' if change.before is not None else ""
            made.add(f'{head}{keys},"data":{row(after)}{old}}}'.encode(), table.key(after), i)
        return made

    def _place(self, change: RowsChange) -> str:
        origin = change.origin
        known = {
            "position": quote(f"{origin.file}:{origin.offset}"),
            "gtid": quote(change.gtid) if change.gtid else "null",
            "server_id": origin.server_id,
            "thread_id": origin.thread,
        }
        return "".join(f',"{name}":{value}' for name, value in known.items() if name in self._fields)

    def record_key(self, schema: TableSchema) -> None:
        """Returns None: partitions are chosen by the text of the primary key."""

    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        return []

    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        return []
