"""What every format promises (ports.format), tried with each of them; and that message builder and settings take it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.canal_wire import canal_pb2
from headrace.model import (
    Column,
    DdlKind,
    Operation,
    Origin,
    Position,
    RowsChange,
    SchemaChange,
    TableSchema,
    TransactionMark,
)
from headrace.pipeline.message_builder import make_builder
from tests.contracts.conftest import TOYS, loader

TABLE = TableSchema(
    "shop", "t", (Column("id", "bigint", -5, nullable=False), Column("名", "varchar(20)", 12, charset="utf8mb4")), (0,)
)
POSITION = Position("server", "b.000001", 400)
FORMATS = TOYS.names("message")


def settings(fmt: str, **message: Any) -> Any:
    raw = {
        "name": "shop",
        "source": {"host": "h", "user": "u", "password": "p"},
        "message": {"format": fmt, **message},
        "route": {"topic": "shop"},
        "sink": {"type": "null"},
    }
    return loader().make_destination(raw)


def made_builder(fmt: str, **message: Any) -> Any:
    made = settings(fmt, **message)
    builder = make_builder(made, TOYS.format_adapter(fmt).format(made.message, "shop"), "server", 3)
    builder.tick()
    return builder


def change(operation: Operation, *rows: Any, before: Any = None) -> RowsChange:
    origin = Origin("b.000001", 4, 100, 1)
    return RowsChange(TABLE, operation, list(rows), before, 1 << 40, 1_700_000_000_000_000, "u:1", origin=origin)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(
    ("operation", "rows", "before"),
    [
        (Operation.INSERT, [(1, "家庭"), (2, None)], None),
        (Operation.UPDATE, [(1, "b")], [(1, "a")]),
        (Operation.DELETE, [(1, "b"), (2, None), (3, "")], None),
    ],
)
def test_rows_become_messages_with_id_and_number(fmt: str, operation: Operation, rows: Any, before: Any) -> None:
    builder = made_builder(fmt)
    builder.emit(change(operation, *rows, before=before))
    (batch,) = builder.take(POSITION, 1.0)
    assert batch.topic == "shop"
    assert batch.position == POSITION
    assert batch.values
    headers = [dict(one) for one in batch.headers]
    assert len(headers) == len(batch.values)
    ids = [one["headrace-id"] for one in headers]
    assert len(set(ids)) == len(ids), "an id tells a message from all others"
    assert all(one["headrace-pos"].isdigit() and one["headrace-epoch"] == b"3" for one in headers)
    read = {"canal-protobuf": canal_pb2.Packet.FromString}.get(fmt, bytes.decode)
    assert all(value is None or read(value) for value in batch.values)


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_same_change_has_the_same_ids_again(fmt: str) -> None:
    ids = []
    for _ in range(2):
        builder = made_builder(fmt)
        builder.emit(change(Operation.INSERT, (1, "a"), (2, "b")))
        (batch,) = builder.take(POSITION, 1.0)
        ids.append([dict(one)["headrace-id"] for one in batch.headers])
    assert ids[0] == ids[1]


@pytest.mark.parametrize("fmt", FORMATS)
def test_one_row_a_message_is_one_row_a_message(fmt: str) -> None:
    builder = made_builder(fmt, rows_per_message=1)
    builder.emit(change(Operation.INSERT, (1, "a"), (2, "b"), (3, "c")))
    (batch,) = builder.take(POSITION, 1.0)
    assert len(batch.values) == 3
    assert [int(dict(one)["headrace-pos"]) - (1 << 40) for one in batch.headers] == [0, 1, 2]


@pytest.mark.parametrize("fmt", FORMATS)
def test_statements_and_marks_are_taken_or_passed_over(fmt: str) -> None:
    builder = made_builder(fmt)
    origin = Origin("b.000001", 4, 100, 1)
    sql = "ALTER TABLE t ADD c INT"
    builder.emit_schema(
        SchemaChange(DdlKind.ALTER, "ddl", "shop", "t", sql, (), 9, 1_700_000_000_000_000, "u:1", origin)
    )
    builder.emit_mark(TransactionMark(True, 9, 1_700_000_000_000_000, "u:1", origin=origin))
    for batch in builder.take(POSITION, 1.0):
        assert len(batch.headers) == len(batch.values)
