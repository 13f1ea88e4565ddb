"""The message builder: which batch a message goes into, in what order, with what headers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.formats.canal.format import CanalFormat
from headrace.model import (
    Column,
    DdlKind,
    MessageBatch,
    Operation,
    Origin,
    Position,
    Row,
    RowsChange,
    SchemaChange,
    TableSchema,
    TransactionMark,
)
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.ports.format import KeyedFormat, Messages, ValueFormat
from tests.streams import settings

SCHEMA = TableSchema("shop", "t", (Column("id", "int", 4), Column("name", "varchar(9)", 12)), (0,))
END = Position("u", "bin.000001", 900)
ORIGIN = Origin("bin.000001", 4, 4, 2)


class TwoTopics(KeyedFormat):
    """Rows with keys, each followed by a tombstone; statements and marks into topics of their own."""

    def rows(self, change: RowsChange, now_ms: int) -> Messages:
        made = Messages()
        for i, row in enumerate(change.rows):
            key = b"%d" % row[0]
            made.add(b"row", key, i)
            made.add(None, key, i)
        made.headers[1] = ("extra", b"x")
        return made

    def record_key(self, schema: TableSchema) -> Callable[[Row], bytes]:
        return lambda row: b"%d" % row[0]

    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        made = Messages(topic="schema")
        made.add(b"ddl")
        return [made]

    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        made = Messages(topic="marks")
        made.add(b"begin" if mark.begin else b"end", b"tx")
        return [made]


def builder(fmt: ValueFormat | KeyedFormat, *, rows_per_message: int = 0, one_log: bool = False) -> MessageBuilder:
    projections = Projections(settings(route={"topic": "shop"}), fmt)
    return MessageBuilder(fmt, projections, rows_per_message=rows_per_message, server_uuid="uuid", one_log=one_log)


def rows(*values: tuple[Any, ...], gtid: str = "g:1", pos: int = 100, partial: bool = False) -> RowsChange:
    return RowsChange(SCHEMA, Operation.INSERT, list(values), None, pos, 5_000_000, gtid, partial, ORIGIN)


def statement(pos: int = 50, gtid: str = "g:0") -> SchemaChange:
    return SchemaChange(DdlKind.CREATE, "ddl", "shop", "t", "CREATE TABLE t (id INT)", (), pos, 4_000_000, gtid, ORIGIN)


def mark(begin: bool) -> TransactionMark:
    return TransactionMark(begin, 100, 5_000_000, "g:1", origin=ORIGIN)


def ids(batch: MessageBatch) -> list[str]:
    return [dict(headers)["headrace-id"].decode() for headers in batch.headers]


def reported(batches: list[MessageBatch]) -> list[tuple[str, list[bytes | None]]]:
    return [(batch.topic, batch.values) for batch in batches]


def test_nothing_gives_one_batch_that_only_moves_the_position() -> None:
    (batch,) = builder(CanalFormat()).take(END, 1.5)
    assert (batch.values, batch.position, batch.received) == ([], END, 1.5)


def test_a_statement_comes_between_the_rows_before_and_after_it() -> None:
    made = builder(CanalFormat())
    made.emit(rows((1, "a")))
    made.emit_schema(statement())
    made.emit(rows((2, "b")))
    (batch,) = made.take(END, 0)
    assert [b'"isDdl":true' in (value or b"") for value in batch.values] == [False, True, False]
    assert ids(batch) == ["g:1#2", "g:0#2q", "g:1#2"]
    assert len(batch.headers) == 3
    assert batch.keys is None


def test_without_gtids_the_id_is_the_position() -> None:
    made = builder(CanalFormat())
    made.emit_schema(statement(gtid=""))
    assert ids(made.take(END, 0)[0]) == ["uuid/bin.000001:4#2q"]


@pytest.mark.parametrize("size", [0, 1])
def test_rows_that_lack_columns_say_so_in_a_header(size: int) -> None:
    made = builder(CanalFormat(), rows_per_message=size)
    made.emit(rows((1, "a"), (2, "b"), partial=True))
    made.emit(rows((3, "c")))
    (batch,) = made.take(END, 0)
    images = [dict(headers).get("headrace-image") for headers in batch.headers]
    assert images == [b"partial"] * (len(images) - 1) + [None]


def test_each_value_has_its_key_tombstone_and_headers() -> None:
    made = builder(TwoTopics())
    made.emit(rows((1, "a"), (2, "b")))
    (batch,) = made.take(END, 0)
    assert batch.values == [b"row", None, b"row", None]
    assert batch.keys == [b"1", b"1", b"2", b"2"]
    assert ids(batch) == ["g:1#2.0", "g:1#2.0/1", "g:1#2.1", "g:1#2.1/1"]
    assert [dict(headers)["headrace-pos"] for headers in batch.headers] == [b"100", b"100", b"101", b"101"]
    assert [dict(headers).get("extra") for headers in batch.headers] == [None, b"x", None, None]
    assert batch.rows == 2
    assert batch.commit_time_us == 5_000_000


def emit_two_transactions(made: MessageBuilder) -> None:
    for _ in range(2):
        made.emit_mark(mark(True))
        made.emit(rows((1, "a")))
        made.emit_mark(mark(False))


def test_batches_of_several_topics_fill_in_parallel() -> None:
    made = builder(TwoTopics())
    emit_two_transactions(made)
    made.emit_schema(statement())
    batches = made.take(END, 7.0)
    assert reported(batches) == [
        ("marks", [b"begin", b"end"] * 2),
        ("shop", [b"row", None] * 2),
        ("schema", [b"ddl"]),
    ]
    assert [batch.position for batch in batches] == [None, None, END]
    assert {batch.received for batch in batches} == {7.0}


def test_one_log_keeps_the_order_of_the_binlog() -> None:
    made = builder(TwoTopics(), one_log=True)
    emit_two_transactions(made)
    batches = made.take(END, 0)
    assert reported(batches) == [
        ("marks", [b"begin"]),
        ("shop", [b"row", None]),
        ("marks", [b"end", b"begin"]),
        ("shop", [b"row", None]),
        ("marks", [b"end"]),
    ]
    assert [batch.position for batch in batches] == [None] * 4 + [END]


@pytest.mark.parametrize("one_log", [False, True])
def test_every_topic_counts_for_when_a_batch_is_full(one_log: bool) -> None:
    made = builder(TwoTopics(), one_log=one_log)
    for _ in range(320):
        made.emit_mark(mark(True))
        made.emit(rows((1, "a")))
        made.emit_mark(mark(False))
    assert not made.full()
    for _ in range(5):
        emit_two_transactions(made)
    assert made.full()
    made.take(END, 0)
    assert not made.full()
