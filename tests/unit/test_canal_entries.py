"""Canal's protobuf entries, read by protobuf's own library."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.canal_wire import canal_pb2 as pb
from headrace.canal_wire.wire import entry_in, varint
from headrace.formats.canal.entries import EntryFormat
from headrace.model import (
    ABSENT,
    Column,
    DdlKind,
    Operation,
    Origin,
    RowsChange,
    SchemaChange,
    TableSchema,
    TransactionMark,
)

COLUMNS = (
    Column("id", "bigint unsigned", 3, True, False),
    Column("name", "varchar(20)", 12, charset="utf8mb4"),
    Column("price", "float(7,2)", 7),
    Column("x", "double", 8),
    Column("b", "blob", 2004, charset="binary"),
    Column("kind", "enum('a','b')", 12, labels=("a", "b")),
)
SCHEMA = TableSchema("shop", "orders", COLUMNS, (0,))
ORIGIN = Origin("mysql-bin.000007", 4, 300, 1, 17, 9)


def change(operation: Operation, rows: list[Any], before: list[Any] | None = None, **more: Any) -> RowsChange:
    return RowsChange(SCHEMA, operation, rows, before, 77, 1_700_000_000_123_456, "uuid:5", origin=ORIGIN, **more)


def entries(packet: bytes | None) -> list[pb.Entry]:
    assert packet is not None
    outer = pb.Packet.FromString(packet)
    assert (outer.type, outer.version) == (pb.MESSAGES, 1)
    messages = pb.Messages.FromString(outer.body)
    assert b"".join(b"\x12" + varint(len(one)) + one for one in messages.messages) == bytes(entry_in(packet))
    return [pb.Entry.FromString(one) for one in messages.messages]


def rows_of(packet: bytes) -> tuple[pb.Header, pb.RowChange]:
    (entry,) = entries(packet)
    assert entry.entry_type == pb.ROWDATA
    return entry.header, pb.RowChange.FromString(entry.store_value)


ROW = (1 << 63, "保洁", 1.5, 0.1, b"\0\xff", "b")


def test_an_insert_has_every_column_with_all_that_is_known_of_it() -> None:
    fmt = EntryFormat("latin1", enum_index=False, whole_seconds=True)
    header, made = rows_of(fmt.encode(change(Operation.INSERT, [ROW, (2, *(None,) * 5)]), 0))
    assert (header.logfile_name, header.logfile_offset, header.server_id) == ("mysql-bin.000007", 300, 17)
    assert (header.schema_name, header.table_name, header.event_type) == ("shop", "orders", pb.INSERT)
    assert (header.version, header.source_type, header.server_encode) == (1, 2, "UTF-8")
    assert (header.execute_time, header.gtid) == (1_700_000_000_000, "uuid:5")
    assert {p.key: p.value for p in header.props} == {"_pos": "77", "rowsCount": "2", "curtGtid": "uuid:5"}
    assert (made.event_type, made.is_ddl, made.HasField("is_ddl")) == (pb.INSERT, False, True)
    first, second = made.row_datas
    assert not first.before_columns
    assert [c.value for c in first.after_columns] == ["9223372036854775808", "保洁", "1.50", "0.1", "\0ÿ", "b"]
    assert [c.index for c in first.after_columns] == list(range(6))
    assert [c.is_key for c in first.after_columns] == [True, *[False] * 5]
    assert all(c.updated and c.HasField("is_null") and not c.is_null for c in first.after_columns)
    assert [(c.name, c.mysql_type, c.sql_type) for c in first.after_columns] == [
        (c.name, c.mysql_type, c.sql_type) for c in COLUMNS
    ]
    assert [c.is_null for c in second.after_columns] == [False, *[True] * 5]
    assert all(not c.value for c in second.after_columns[1:])


def test_an_update_has_both_images_and_says_what_changed() -> None:
    fmt = EntryFormat("base64", enum_index=True, whole_seconds=False)
    before = (1, "a", None, ABSENT, b"x", 1)
    header, made = rows_of(
        fmt.encode(change(Operation.UPDATE, [(1, "", 2.0, 0.5, b"x", 2)], [before], partial=True), 0)
    )
    assert header.execute_time == 1_700_000_000_123
    (row,) = made.row_datas
    assert [c.name for c in row.before_columns] == ["id", "name", "price", "b", "kind"]
    assert not any(c.updated for c in row.before_columns)
    assert {c.name: c.updated for c in row.after_columns} == {
        "id": False, "name": True, "price": True, "x": True, "b": False, "kind": True,
    }  # fmt: skip
    assert (row.after_columns[1].value, row.after_columns[1].is_null) == ("", False)
    assert (row.after_columns[4].value, row.after_columns[5].value, row.after_columns[5].sql_type) == ("eA==", "2", 4)


def test_a_delete_has_the_image_before() -> None:
    fmt = EntryFormat("hex", enum_index=False, whole_seconds=True)
    _, made = rows_of(fmt.encode(change(Operation.DELETE, [ROW]), 0))
    (row,) = made.row_datas
    assert not row.after_columns
    assert row.before_columns[4].value == "00ff"


def test_a_message_a_row_counts_on() -> None:
    fmt = EntryFormat("hex", enum_index=False, whole_seconds=True)
    both = fmt.encode_each(change(Operation.INSERT, [ROW, ROW]), 0)
    assert [{p.key: p.value for p in rows_of(one)[0].props}["_pos"] for one in both] == ["77", "78"]


@pytest.mark.parametrize("begin", [True, False])
def test_marks_are_entries_of_their_own(begin: bool) -> None:
    fmt = EntryFormat("hex", enum_index=False, whole_seconds=True)
    (made,) = fmt.mark(TransactionMark(begin, 77, 1_700_000_000_123_456, "uuid:5", ORIGIN, 99), 0)
    (entry,) = entries(made.values[0])
    assert entry.entry_type == (pb.TRANSACTIONBEGIN if begin else pb.TRANSACTIONEND)
    if begin:
        assert pb.TransactionBegin.FromString(entry.store_value).thread_id == 9
    else:
        assert pb.TransactionEnd.FromString(entry.store_value).transaction_id == "99"


@pytest.mark.parametrize("kind", list(DdlKind))
def test_statements_have_their_kind_text_and_schema(kind: DdlKind) -> None:
    fmt = EntryFormat("hex", enum_index=False, whole_seconds=True)
    of = SchemaChange(kind, "ddl", "shop", "orders", "ALTER …", (), 77, 1_700_000_000_123_456, "", ORIGIN)
    of.session_schema = "session"
    (made,) = fmt.schema_change(of, 0)
    assert made.values[0] is not None
    header, row_change = rows_of(made.values[0])
    assert pb.EventType.Name(header.event_type) == pb.EventType.Name(row_change.event_type) == str(kind)
    assert (row_change.is_ddl, row_change.sql, row_change.ddl_schema_name) == (True, "ALTER …", "session")


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16383, 16384, 1 << 31, (1 << 63) - 1, -1, -6, -(1 << 63)])
def test_numbers_are_those_of_protobuf(number: int) -> None:
    assert pb.Header.FromString(b"\x18" + varint(number)).logfile_offset == number
