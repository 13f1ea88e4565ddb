"""Native code makes the same messages of rows that were read from a table as Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace import native
from headrace.cli.wiring import new_format
from headrace.large_values import numbered
from headrace.model import ABSENT, Column, Operation, Position, RowsChange, TableSchema
from headrace.mysql.values.large import large_text
from headrace.mysql.wire.query_stream import RowBytes
from headrace.pipeline.message_builder import make_builder
from tests import native_selected
from tests.configured import destination_of
from tests.examples import examples
from tests.native_selected import Read, packet

MODULE: Any = native.find().module
pytestmark = pytest.mark.skipif(MODULE is None, reason="headrace-native is not installed: scripts/build-native")
SCHEMA = TableSchema("shop", "t", (Column("id", "int", 4), Column("name", "text", 12, charset="utf8mb4")), (0,))


def config(message: dict[str, Any] | None = None) -> Any:
    """A destination that publishes to Kafka."""
    return destination_of(
        {
            "name": "shop",
            "source": {"host": "h", "user": "u", "password": "p"},
            "route": {"topic": "shop"},
            "message": message or {},
            "sink": {"type": "kafka", "bootstrap_servers": "k:9092"},
        }
    )


def read(*rows: tuple[int, str | bytes]) -> Read:
    """A chunk of SCHEMA's table with these rows."""
    packets = [packet([b"%d" % id_, name if isinstance(name, bytes) else name.encode()]) for id_, name in rows]
    return Read(SCHEMA, [[RowBytes(b"".join(packets), len(packets), last=sum(map(len, packets[:-1])))]])


def both(table: Read, kind: str = "resync", **options: Any) -> list[tuple[list[Any], int]]:
    """What comes of a table by Python and by native code, and how many rows native code has made."""
    return [native_selected.counted(table, config(), module, kind, **options) for module in (None, MODULE)]


@pytest.mark.hypothesis
def test_random_tables_with_all_types_and_options_give_the_same() -> None:
    messages, rows = native_selected.compare(examples(240), seed=3)
    assert messages > 1500
    assert rows > 1500


@pytest.mark.parametrize("kind", ["resync", "initial"])
def test_rows_are_made_by_native_code_but_for_those_with_a_marker_of_their_own(kind: str) -> None:
    table = read(*((i, "a" * 50) for i in range(1000)))
    (python, none), (native_code, rows) = both(table, kind)
    assert python == native_code
    assert none == 0
    together = 8192 * 1000 // len(table.chunks[0][0].data)
    first_and_last = together + (1000 % together or together)
    assert rows == 1000 - (together if kind == "resync" else first_and_last)


@pytest.mark.parametrize("lacks", [False, True], ids=["whole rows", "rows that lack columns"])
def test_rows_that_the_stream_has_changed_since_are_left_out(lacks: bool) -> None:
    table, new = read(*((i, "old") for i in range(3000))), ABSENT if lacks else "new"
    changed = RowsChange(SCHEMA, Operation.UPDATE, [(1777, new)], [(1777, new)], 1, 0, "", lacks)
    (python, _), (native_code, rows) = both(table, changed=changed)
    assert python == native_code
    assert (rows > 1000) != lacks
    values = b"".join(entry[0] for entry in python if isinstance(entry, tuple) and isinstance(entry[0], bytes))
    assert b'{"id":"1776","name":"old"}' in values
    assert (b'{"id":"1777","name":"old"}' in values) == lacks


@pytest.mark.parametrize("odd", ["x" * 600_000, b"\xa1\x40"], ids=["too large", "has no Unicode characters"])
def test_python_reads_a_row_that_native_code_can_not_and_native_code_goes_on(odd: str | bytes) -> None:
    columns = SCHEMA.columns[0], replace(SCHEMA.columns[1], charset="gbk")
    table = read(*((i, odd if i == 300 else "a" * 50) for i in range(600)))
    (python, _), (native_code, rows) = both(replace(table, schema=replace(SCHEMA, columns=columns)))
    assert python == native_code
    assert 300 < rows < 600


@pytest.mark.parametrize("message", [{}, {"format": "debezium"}, {"format": "maxwell"}], ids=str)
def test_a_document_is_read_by_native_code_in_all_formats(message: dict[str, Any]) -> None:
    table = read(*((i, '{"a": [1, "b"]}') for i in range(600)))
    table = replace(table, schema=replace(SCHEMA, columns=(SCHEMA.columns[0], Column("name", "json", 12))))
    made = [native_selected.counted(table, config(message), module, "resync") for module in (None, MODULE)]
    assert made[0][0] == made[1][0]
    assert made[1][1] > 200


def test_large_rows_come_into_the_batch_of_those_before_them_also_with_keys() -> None:
    small = RowsChange(SCHEMA, Operation.INSERT, [(1, "a")], None, 1, 0, "")
    value = large_text("utf8mb4")
    name = b"b" * 70_000
    large: Any = value(name, 0, len(name), 1)
    assert large is not None
    rows = [(2, large)]
    batches = []
    for module in (None, MODULE):
        builder = make_builder(
            config({"format": "debezium"}), new_format(config({"format": "debezium"})), "s", 5, module
        )
        builder.emit(small)
        for _ in builder.emit_large(replace(small, rows=rows, pos=2, large=numbered(rows))):
            pass
        (batch,) = builder.take(Position("s", "b.000001", 4), 0.0)
        batches.append(list(zip(batch.values, batch.headers, batch.keys or (), strict=True)))
    assert batches[0] == batches[1]
    assert len(batches[0]) == 2
