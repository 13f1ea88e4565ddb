"""Canal's flat JSON (com.alibaba.otter.canal.protocol.FlatMessage), with `_pos` added as the row order of consumers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from json.encoder import encode_basestring as quote
from typing import Any, TypeVar

import orjson

from headrace.formats.canal.text import Texts, native_style, quoted
from headrace.formats.row_text import RowText
from headrace.model import ABSENT, DdlKind, Row, RowsChange, SchemaChange, TableSchema, TransactionMark
from headrace.ports.format import Messages, NativeTable, ValueFormat, per_schema

INDEX_SQL_TYPES = {"enum": 4, "set": -7}
"""java.sql.Types of ENUM and SET when their numbers are published: INTEGER and BIT, as in Canal."""


class _Table(RowText):
    """The constant parts of a table schema's messages."""

    def __init__(self, schema: TableSchema, texts: Texts, enum_index: bool, numbers_of_keys: Sequence[int]) -> None:
        printers = [texts.printer(column) for column in schema.columns]
        super().__init__(schema, printers, {quoted: '"'}, texts.style)
        types = {column.name: column.mysql_type for column in schema.columns}
        special = INDEX_SQL_TYPES if enum_index else {}
        numbers = {column.name: special.get(column.kind, column.sql_type) for column in schema.columns}
        keys = [schema.columns[i].name for i in numbers_of_keys]
        self.middle = f'"database":{_json(schema.schema)},"es":'
        self.types = f',"isDdl":false,"mysqlType":{_json(types)},"old":'
        pk = _json(keys) if keys else "null"
        self.tail = f',"pkNames":{pk},"sql":"","sqlType":{_json(numbers)},"table":{_json(schema.table)},"ts":'
        self.bytes = self.middle.encode(), self.types.encode(), self.tail.encode()
        """The same as bytes: for each message only what varies is encoded."""

    @property
    def constants(self) -> tuple[str, str, str]:
        """Returns the constant parts between the variable ones of a message."""
        return self.middle, self.types, self.tail

    def old(self, before: Row, after: Row) -> str:
        """Returns the old values of the columns that changed, as far as they are known."""
        # Unchanged values are mostly the same object (see rowcode.make_decoder), which is checked before they are
        # compared.
        changed = [
            name + self.cell(printer, a)
            for name, printer, a, b in zip(self.names, self.printers, before, after, strict=True)
            if a is not b and a != b and a is not ABSENT
        ]
        return "{" + ",".join(changed) + "}"

    def olds(self, before: Sequence[Row], after: Sequence[Row]) -> list[str]:
        """Returns the old values of each row, of the columns that changed in any, as far as they are known."""
        changed = [
            i
            for i in range(len(self.names))
            if any(a[i] is not b[i] and a[i] != b[i] and a[i] is not ABSENT for a, b in zip(before, after, strict=True))
        ]
        return [
            "{"
            + ",".join(self.names[i] + self.cell(self.printers[i], row[i]) for i in changed if row[i] is not ABSENT)
            + "}"
            for row in before
        ]


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


class CanalFormat(ValueFormat):
    """One message a rows event, or one a row. `id` counts messages since the destination's start."""

    _compat = False
    """Whether messages have exactly Canal's fields."""

    def __init__(self, binary: str = "base64", enum_index: bool = False, *, uniform: bool = False) -> None:
        """`uniform`: in `old` all rows of a message have the same columns."""
        texts, self._uniform = Texts(binary), uniform
        self.table = per_schema(lambda schema: _Table(schema, texts, enum_index, self._keys(schema)))
        """The constant parts of a table schema's messages."""
        self._binary = binary
        self.number = 0

    def _keys(self, schema: TableSchema) -> Sequence[int]:
        """Returns the numbers of the columns in pkNames."""
        return schema.keys

    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        table = self.table(change.schema)
        middle, types, tail = table.bytes
        self.number += 1
        row = table.unusual_row if change.partial or change.large else table.row
        rows = row(change.rows[0]) if len(change.rows) == 1 else ",".join(map(row, change.rows))
        old = b"null"
        if change.before is not None:
            several = self._uniform and len(change.rows) > 1
            olds = table.olds if several else partial(map, table.old)
            old = b"[%b]" % ",".join(olds(change.before, change.rows)).encode()
        return b'{"data":[%b],%b%d,"gtid":"%b","id":%d%b%b%b%d,"type":"%b","_pos":"%d"}' % (
            rows.encode(),
            middle,
            change.commit_time_us // 1000,
            change.gtid.encode(),
            self.number,
            types,
            old,
            tail,
            now_ms,
            change.operation.encode(),
            change.pos,
        )

    def encode_each(self, change: RowsChange, now_ms: int) -> list[bytes]:
        """Prints only what differs between messages: the row, its old values, the id and `_pos`."""
        table = self.table(change.schema)
        middle, types, tail = table.bytes
        head = b'],%b%d,"gtid":"%b","id":' % (middle, change.commit_time_us // 1000, change.gtid.encode())
        tail = b'%b%d,"type":"%b","_pos":"' % (tail, now_ms, change.operation.encode())
        row = table.unusual_row if change.partial or change.large else table.row
        pos, number = change.pos, self.number + 1
        self.number += len(change.rows)
        if change.before is None:
            tail = b"null" + tail
            return [
                b'{"data":[%b%b%d%b%b%d"}' % (row(r).encode(), head, number + i, types, tail, pos + i)
                for i, r in enumerate(change.rows)
            ]
        old = table.old
        return [
            b'{"data":[%b%b%d%b[%b]%b%d"}'
            % (row(r).encode(), head, number + i, types, old(b, r).encode(), tail, pos + i)
            for i, (b, r) in enumerate(zip(change.before, change.rows, strict=True))
        ]

    def native(self, schema: TableSchema) -> NativeTable:
        table = self.table(schema)
        styles = [native_style(column, self._binary) for column in schema.columns]
        columns = list(zip(table.names, styles, strict=True))
        return NativeTable(columns, ("canal", *table.constants, self._compat, self._uniform, "", []))

    def native_marks(self) -> tuple[Any, ...]:
        return "canal", self._compat, None

    def split(self, value: bytes, room: int) -> list[tuple[int, bytes]]:
        """Splits a message: all values of rows are texts, so parsing and printing them again changes none."""
        try:
            message = orjson.loads(value)
        except orjson.JSONDecodeError:
            return []
        rows, olds = message["data"], message["old"]
        if not rows or len(rows) < 2:
            return []
        sizes = [len(orjson.dumps(row)) + 1 for row in rows]
        if olds is not None:
            sizes = [size + len(orjson.dumps(old)) + 1 for size, old in zip(sizes, olds, strict=True)]
        around = len(value) - sum(sizes)
        parts, first, size = [], 0, around
        for i, more in enumerate((*sizes, room)):  # the last one marks the end
            if i > first and size + more > room:
                parts.append((first, _part(message, first, i)))
                first, size = i, around
            size += more
        return parts

    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        """Returns a message like those of rows, without rows, keys and types. A RENAME has the new name."""
        text = self._bare(*named_by(change), str(change.kind), change.is_ddl, change.sql, change, now_ms)
        return [Messages([text], [None], [0])]

    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        """Returns a message that Canal's flat format lacks; the types are those of its entries."""
        kind = "TRANSACTIONBEGIN" if mark.begin else "TRANSACTIONEND"
        return [Messages([self._bare("", "", kind, False, "", mark, now_ms)], [None], [0])]

    def _bare(
        self, schema: str, table: str, kind: str, ddl: bool, sql: str, of: SchemaChange | TransactionMark, now_ms: int
    ) -> bytes:
        self.number += 1
        return (
            f'{{"data":null,"database":{quote(schema)},"es":{of.commit_time_us // 1000},"gtid":"{of.gtid}"'
            f',"id":{self.number},"isDdl":{"true" if ddl else "false"},"mysqlType":null,"old":null,"pkNames":null'
            f',"sql":{quote(sql)},"sqlType":null,"table":{quote(table)},"ts":{now_ms},"type":"{kind}","_pos":"{of.pos}"}}'
        ).encode()


def named_by(change: SchemaChange) -> tuple[str, str]:
    """Returns the schema and table in a message about a statement: for a RENAME the new ones."""
    where = (change.schema, change.table)
    if change.kind is DdlKind.RENAME:
        return next(((of.schema, of.table) for of in change.tables if of.renamed_from == where), where)
    return where


def _part(message: dict[str, Any], first: int, end: int) -> bytes:
    """Returns some rows of a message; `id` is kept, as that of one change."""
    part = message | {"data": message["data"][first:end]}
    if message["old"] is not None:
        part["old"] = message["old"][first:end]
    if "_pos" in message:
        part["_pos"] = str(int(message["_pos"]) + first)
    return orjson.dumps(part)


_Change = TypeVar("_Change", bound=RowsChange | SchemaChange | TransactionMark)


class CompatFormat(CanalFormat):
    """Exactly Canal's fields: no `_pos`, `es` in whole seconds, statements about rights as `isDdl`, its `pkNames`, and
    nothing of CREATE VIEW and DROP VIEW."""

    _compat = True

    def _keys(self, schema: TableSchema) -> Sequence[int]:
        """Returns them in the order of the table's columns, and none for a unique key, as Canal does."""
        return () if schema.promoted else sorted(schema.keys)

    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        return _without_pos(super().encode(_whole_seconds(change), now_ms))

    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        """Returns none for CREATE VIEW and DROP VIEW, as Canal does."""
        return [] if change.view and not change.alters else super().schema_change(change, now_ms)

    def encode_each(self, change: RowsChange, now_ms: int) -> list[bytes]:
        return [_without_pos(value) for value in super().encode_each(_whole_seconds(change), now_ms)]

    def _bare(
        self, schema: str, table: str, kind: str, ddl: bool, sql: str, of: SchemaChange | TransactionMark, now_ms: int
    ) -> bytes:
        """Returns a message without rows. Canal calls every statement a DDL that is not DML."""
        ddl = ddl or (isinstance(of, SchemaChange) and of.category != "dml")
        return _without_pos(super()._bare(schema, table, kind, ddl, sql, _whole_seconds(of), now_ms))


def _whole_seconds(change: _Change) -> _Change:
    return replace(change, commit_time_us=change.commit_time_us // 1_000_000 * 1_000_000)


def _without_pos(value: bytes) -> bytes:
    return value[: value.rindex(b',"_pos":"')] + b"}"
