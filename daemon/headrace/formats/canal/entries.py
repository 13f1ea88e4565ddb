"""Canal's protobuf entries (com.alibaba.otter.canal.protocol.CanalEntry): one for each rows event, statement or mark.

A message is a packet of one entry (CanalPacket), as Canal writes it to brokers with `canal.mq.flatMessage = false`."""

from __future__ import annotations

from base64 import b64encode
from binascii import hexlify
from collections.abc import Callable, Sequence
from typing import Any

from headrace.canal_wire import canal_pb2 as pb
from headrace.canal_wire.wire import field, packet_of, varint
from headrace.formats.canal.format import INDEX_SQL_TYPES, named_by
from headrace.formats.canal.text import NUMBERS_AND_TIMES, fixed_decimals, native_style
from headrace.model import (
    ABSENT,
    Column,
    Operation,
    Origin,
    Row,
    RowsChange,
    SchemaChange,
    TableSchema,
    TransactionMark,
)
from headrace.ports.format import Messages, NativeTable, ValueFormat, per_schema
from headrace_common.numbers import float_text

_BINARY: dict[str, Callable[[bytes], bytes]] = {
    "base64": b64encode,
    "hex": hexlify,
    "latin1": lambda value: value.decode("latin-1").encode(),
}
_BEFORE, _AFTER = b"\x0a", b"\x12"
"""The row's list that a column belongs to."""
_UPDATED, _IS_NULL = b"\x28\x01", b"\x30\x01"
_MYSQL, _UTF8 = 2, "UTF-8"
_SIGNED = {
    "tinyint": (-6, 0x7F),
    "smallint": (5, 0x7FFF),
    "mediumint": (4, 0x7FFFFF),
    "int": (4, 0x7FFFFFFF),
    "bigint": (-5, 0x7FFFFFFFFFFFFFFF),
}
"""java.sql.Types of integers as signed ones, and the largest value: in Canal an unsigned column has another type only
if its value is larger."""
_NULL_TYPES = {"set": 2004, "json": 1111}
"""java.sql.Types that Canal gives to NULL."""
_OPERATIONS = {Operation.INSERT: pb.INSERT, Operation.UPDATE: pb.UPDATE, Operation.DELETE: pb.DELETE}


def _written(message: Any) -> bytes:
    written: bytes = message.SerializeToString()
    return written


class _Column:
    """The constant parts of a column's values."""

    def __init__(
        self, index: int, column: Column, key: bool, sql_type: int, null_type: int, binary: Callable[[bytes], bytes]
    ) -> None:
        fixed = pb.Column(index=index, sql_type=sql_type, name=column.name, is_key=key)
        self.head = _written(fixed)
        self.tail = _written(pb.Column(mysql_type=column.mysql_type))
        self.text = _text_of(column, binary)
        fixed.sql_type = null_type
        self.null_head = _written(fixed)
        self._null = self.null_head + _IS_NULL + self.tail, self.null_head + _UPDATED + _IS_NULL + self.tail

    def native(self) -> tuple[bytes, bytes, bytes, tuple[int, bytes] | None]:
        """Returns what is before a value, after it, and before NULL; and what is before a value that is no larger than
        a number."""
        return self.head, self.tail, self.null_head, None

    def cell(self, value: Any, updated: bool) -> bytes:
        """Returns a CanalEntry.Column."""
        if value is None:
            return self._null[updated]
        text, mark = self.text(value), _UPDATED if updated else b""
        if not text:
            return b"%b%b\x30\x00%b" % (self.head, mark, self.tail)
        return b"%b%b\x30\x00\x42%b%b%b" % (self.head, mark, varint(len(text)), text, self.tail)


class _Unsigned(_Column):
    """A column of unsigned integers, whose type in java.sql.Types depends in Canal on the value."""

    def __init__(
        self, index: int, column: Column, key: bool, sql_type: int, null_type: int, binary: Callable[[bytes], bytes]
    ) -> None:
        super().__init__(index, column, key, sql_type, null_type, binary)
        signed, self._largest = _SIGNED[column.kind]
        self._signed = _Column(index, column, key, signed, signed, binary)

    def native(self) -> tuple[bytes, bytes, bytes, tuple[int, bytes] | None]:
        return self.head, self.tail, self._signed.null_head, (self._largest, self._signed.head)

    def cell(self, value: Any, updated: bool) -> bytes:
        if value is None or value <= self._largest:
            return self._signed.cell(value, updated)
        return super().cell(value, updated)


def _text_of(column: Column, binary: Callable[[bytes], bytes]) -> Callable[[Any], bytes]:
    """Returns a function that prints a column's values that are not NULL."""
    if column.kind in NUMBERS_AND_TIMES:
        return lambda value: str(value).encode()
    if (fixed := fixed_decimals(column)) is not None:
        return lambda value: fixed(value).encode()

    def text(value: Any) -> bytes:
        if type(value) is str:
            return value.encode()
        if type(value) is bytes:
            return binary(value)
        return (float_text(value) if type(value) is float else str(value)).encode()

    return text


class _Table:
    """The constant parts of a table schema's entries."""

    def __init__(
        self, schema: TableSchema, binary: str, enum_index: bool, keys: Sequence[int], *, by_value: bool
    ) -> None:
        special, nulls = INDEX_SQL_TYPES if enum_index else {}, _NULL_TYPES if by_value and enum_index else {}
        self.columns = []
        for i, column in enumerate(schema.columns):
            made = _Unsigned if by_value and column.unsigned and column.kind in _SIGNED else _Column
            sql_type = special.get(column.kind, column.sql_type)
            null_type = nulls.get(column.kind, sql_type)
            self.columns.append(made(i, column, i in keys, sql_type, null_type, _BINARY[binary]))
        self.header = _header_of(schema.schema, schema.table)

    def row(self, operation: Operation, row: Row, before: Row | None) -> bytes:
        """Returns a CanalEntry.RowData, as a field of RowChange."""
        if operation is Operation.DELETE:
            image = self._image(_BEFORE, row, None, changed=False)
        elif before is None:
            image = self._image(_AFTER, row, None, changed=True)
        else:
            image = self._image(_BEFORE, before, None, changed=False) + self._image(_AFTER, row, before, changed=True)
        return field(b"\x62", image)

    def _image(self, tag: bytes, row: Row, before: Row | None, *, changed: bool) -> bytes:
        parts = []
        for i, (column, value) in enumerate(zip(self.columns, row, strict=True)):
            if value is not ABSENT:
                cell = column.cell(value, changed and (before is None or before[i] != value))
                parts.append(b"%b%b%b" % (tag, varint(len(cell)), cell))
        return b"".join(parts)


def _header_of(schema: str, table: str) -> bytes:
    made = pb.Header(version=1, server_encode=_UTF8, source_type=_MYSQL, schema_name=schema, table_name=table)
    return _written(made)


class EntryFormat(ValueFormat):
    """One entry a rows event, or one a row; statements and marks are entries, too. With `whole_seconds` they equal
    Canal's also in its peculiarities: times are those at which the statements began, CREATE VIEW and DROP VIEW have no
    entry, and the type of some columns depends on the value. Each header has the property `_pos`, the number of the
    first row."""

    takes_large = False  # a protobuf string begins with its length

    def __init__(self, binary: str, enum_index: bool, *, whole_seconds: bool) -> None:
        self._table = per_schema(
            lambda schema: _Table(schema, binary, enum_index, self._keys(schema), by_value=whole_seconds)
        )
        self._binary, self._compat = binary, whole_seconds
        self.number = 0

    @staticmethod
    def _keys(schema: TableSchema) -> Sequence[int]:
        return () if schema.promoted else schema.keys

    def native(self, schema: TableSchema) -> NativeTable:
        table = self._table(schema)
        cells = [column.native() for column in table.columns]
        # An entry has no names in JSON.
        columns = [("", native_style(column, self._binary)) for column in schema.columns]
        return NativeTable(columns, ("entries", table.header, cells, self._compat))

    def native_marks(self) -> tuple[Any, ...]:
        return "entries", _header_of("", ""), self._compat

    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        return self._rows(change, change.pos, self._row_datas(change))

    def encode_each(self, change: RowsChange, now_ms: int) -> list[bytes]:
        return [self._rows(change, change.pos + i, [row]) for i, row in enumerate(self._row_datas(change))]

    def _row_datas(self, change: RowsChange) -> list[bytes]:
        table = self._table(change.schema)
        before: Sequence[Row | None] = change.before or [None] * len(change.rows)
        return [table.row(change.operation, row, old) for row, old in zip(change.rows, before, strict=True)]

    def _rows(self, change: RowsChange, pos: int, rows: list[bytes]) -> bytes:
        kind = _OPERATIONS[change.operation]
        number = b"\x08" + varint(change.origin.table_id) if change.origin.table_id else b""
        store = b"%b\x10%b\x50\x00%b" % (number, varint(kind), b"".join(rows))
        header = self._header(self._table(change.schema).header, kind, change, pos, len(rows))
        return self._packet(header, pb.ROWDATA, store)

    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        if self._compat and change.view and not change.alters:
            return []
        kind, (schema, table) = pb.EventType.Value(str(change.kind)), named_by(change)
        store = pb.RowChange(event_type=kind, sql=change.sql, ddl_schema_name=change.session_schema)
        if change.category == "dml":
            schema = ""
        else:
            store.is_ddl = True
        header = self._header(_header_of(schema, table), kind, change, change.pos)
        return [_alone(self._packet(header, pb.ROWDATA, _written(store)))]

    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        store: pb.TransactionBegin | pb.TransactionEnd
        if mark.begin:
            store, kind = pb.TransactionBegin(thread_id=mark.origin.thread), pb.TRANSACTIONBEGIN
        else:
            store, kind = pb.TransactionEnd(transaction_id=str(mark.xid)), pb.TRANSACTIONEND
        header = self._header(_header_of("", ""), None, mark, mark.pos)
        return [_alone(self._packet(header, kind, _written(store)))]

    def _header(
        self,
        begin: bytes,
        kind: int | None,
        change: RowsChange | SchemaChange | TransactionMark,
        pos: int,
        rows: int = 0,
    ) -> bytes:
        origin: Origin = change.origin
        props = b"\x62" + _pair("_pos", b"%d" % pos)
        if rows:
            props += b"\x62" + _pair("rowsCount", b"%d" % rows)
        if change.gtid:
            gtid = change.gtid.encode()
            props += b"\x62" + _pair("curtGtid", gtid) + field(b"\x6a", gtid)
        if self._compat:
            time = (origin.time or change.commit_time_us // 1_000_000) * 1_000
        else:
            time = change.commit_time_us // 1_000
        return b"%b%b\x18%b\x20%b\x30%b\x50%b%b%b" % (
            begin,
            field(b"\x12", origin.file.encode()),
            varint(origin.offset),
            varint(origin.server_id),
            varint(time),
            varint(origin.length),
            b"\x58" + varint(kind) if kind is not None else b"",
            props,
        )

    def _packet(self, header: bytes, kind: int, store: bytes) -> bytes:
        """Returns the packet of one entry; its number is that of the batch."""
        self.number += 1
        return packet_of(self.number, header, kind, store)


def _alone(packet: bytes) -> Messages:
    made = Messages()
    made.add(packet)
    return made


def _pair(key: str, value: bytes) -> bytes:
    return field(b"", field(b"\x0a", key.encode()) + field(b"\x12", value))
