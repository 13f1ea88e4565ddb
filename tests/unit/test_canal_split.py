"""A Canal message cut into messages of fewer rows: nothing lost, order and `_pos` kept, none larger than asked."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from headrace.adapters.kafka.oversize import _numbered
from headrace.formats.canal.format import CanalFormat, CompatFormat
from headrace.formats.debezium.format import DebeziumFormat
from headrace.model import Column, Operation, Row, RowsChange, TableSchema

TABLE = TableSchema("shop", "t", (Column("id", "int", 4), Column("名", "text", 2005)), (0,))


def change(rows: list[Row], before: list[Row] | None = None) -> RowsChange:
    operation = Operation.INSERT if before is None else Operation.UPDATE
    return RowsChange(TABLE, operation, rows, before, pos=5000, commit_time_us=1_700_000_000_123_456, gtid="g:7")


def rows_of(seed: int, count: int = 60) -> list[Row]:
    random = Random(seed)
    texts = ['家"\\庭\n\u2028\u0001', "a" * 400, "", None, "😀" * 30]
    return [(n, random.choice(texts)) for n in range(count)]


def joined(parts: list[tuple[int, bytes]], key: str) -> list[Any]:
    return [row for _, part in parts for row in json.loads(part)[key]]


@pytest.mark.parametrize("room", [600, 1000, 3000])
@pytest.mark.parametrize("update", [False, True])
def test_the_parts_are_the_message(room: int, update: bool) -> None:
    value = CanalFormat().encode(change(rows_of(1), rows_of(2) if update else None), 99)
    whole, parts = json.loads(value), CanalFormat().split(value, room)
    assert len(parts) >= 3
    assert joined(parts, "data") == whole["data"]
    if update:
        assert joined(parts, "old") == whole["old"]
    first = 0
    for row, text in parts:
        part = json.loads(text)
        assert row == first
        assert part["_pos"] == str(5000 + first)
        assert list(part) == list(whole), "also the order of the fields"
        same = {"data", "old", "_pos"}
        assert {key: part[key] for key in part if key not in same} == {
            key: whole[key] for key in whole if key not in same
        }
        assert len(text) <= room or len(part["data"]) == 1
        assert update or part["old"] is None
        first += len(part["data"])
    assert first == 60


def test_the_parts_are_as_large_as_they_may_be() -> None:
    value = CanalFormat().encode(change([(n, "x" * 100) for n in range(100)]), 99)
    sizes = [len(text) for _, text in CanalFormat().split(value, 2000)]
    assert all(1850 < size <= 2000 for size in sizes[:-1])


def test_one_row_can_t_be_cut_and_nor_can_a_statement() -> None:
    one = CanalFormat().encode(change([(1, "x")]), 99)
    assert CanalFormat().split(one, 10) == []
    assert CanalFormat().split(b'{"data":null,"old":null}', 10) == []
    assert CanalFormat().split(b'{"data":"\xff', 10) == []


def test_a_message_without_pos_is_cut_too() -> None:
    value = CompatFormat().encode(change(rows_of(3)), 99)
    parts = CompatFormat().split(value, 1000)
    assert joined(parts, "data") == json.loads(value)["data"]
    assert not any("_pos" in json.loads(part) for _, part in parts)


def test_ids_and_pos_of_parts_follow_from_their_first_row() -> None:
    headers = [("headrace-id", b"g#3"), ("headrace-pos", b"5000"), ("headrace-epoch", b"1")]
    assert _numbered(headers, 0)[:2] == [("headrace-id", b"g#3.0"), ("headrace-pos", b"5000")]
    assert _numbered(headers, 17) == [("headrace-id", b"g#3.17"), ("headrace-pos", b"5017"), headers[2]]


def test_debezium_s_messages_have_one_row() -> None:
    assert not hasattr(DebeziumFormat, "cut")
