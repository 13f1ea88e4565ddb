"""Options of messages, masks and conditions do the same in native code and in Python."""

from __future__ import annotations

import random
import re
import struct
from typing import Any
from unittest import mock

import pytest

from headrace.mysql.values import column_types as ct
from headrace.pipeline.message_builder import MessageBuilder
from tests import native_differential
from tests.made_binlog import NAME, Binlog
from tests.native_ways import (
    MODULE,
    RABBITMQ,
    SOURCE,
    TINY,
    WHOLE,
    both_ways_of,
    needs_native,
    settings_of,
    table,
    used,
)
from tests.random_tables import Column as Column_
from tests.random_tables import Table, transaction


def both(binlog: Binlog, config: Any) -> list[Any]:
    """What comes of a binlog by Python, and then by native code."""
    return [native_differential.outcome(bytes(binlog.packets), config, module, WHOLE) for module in (None, MODULE)]


@needs_native
def test_a_row_without_columns_is_an_object_of_the_added_fields() -> None:
    binlog = Binlog().begin_file()
    one = Table(random.Random(1), "t1", 8, [Column_(ct.LONG, b"", ct.LONG, 0)])
    for gno in (1, 2, 3):
        binlog.gtid(gno, 1_700_000_000_000_000)
        binlog.query("BEGIN")
        binlog.event(19, one.body())
        binlog.event(30, one.event(30, [b"\0" + struct.pack("<i", gno)]))
        binlog.event(16, bytes(8))
    message = {"format": "debezium", "debezium": {"schemas": False, "unwrap": True, "add_fields": ["op"]}}
    config = settings_of(message, filter={"exclude_columns": 'shop\\.t1:c"\\0名'})
    python, native_code = both(binlog, config)
    assert python == native_code
    assert [entry[0] for entry in native_code if isinstance(entry, tuple) and entry[0] == b'{"__op":"c"}']


@needs_native
@pytest.mark.parametrize("message", [{}, {"format": "maxwell"}, {"format": "debezium"}], ids=str)
def test_no_way_makes_a_message_of_more_than_twice_max_event(message: dict[str, Any]) -> None:
    binlog = Binlog().begin_file()
    for gno, text in ((1, "a"), (2, "\x01" * 900_000)):
        transaction_of(binlog, gno, table("t", 1, Column_(ct.BLOB, b"\x04", ct.BLOB, 4, "utf8mb4")), text.encode())
    config = settings_of(message, source={**SOURCE, "max_event": "1MiB"})
    python, native_code = both(binlog, config)
    assert python == native_code
    assert "makes a message of more than 2097152 bytes" in str(native_code)


def transaction_of(binlog: Binlog, gno: int, one: Table, text: bytes) -> None:
    """Inserts a row with a key and a text."""
    binlog.gtid(gno, 1_700_000_000_000_000)
    binlog.query("BEGIN")
    binlog.event(19, one.body())
    row = b"\0" + struct.pack("<i", gno) + struct.pack("<I", len(text)) + text
    binlog.event(30, one.event(30, [row]))
    binlog.event(16, bytes(8))


@needs_native
def test_a_delete_without_a_message_leaves_the_time_of_its_batch() -> None:
    binlog, one = Binlog().begin_file(), table("t", 1, Column_(ct.BLOB, b"\x04", ct.BLOB, 4, "utf8mb4"))
    transaction_of(binlog, 1, one, b"a")
    binlog.gtid(2, 1_700_000_001_000_000)
    binlog.query("BEGIN")
    binlog.event(19, one.body())
    row = b"\0" + struct.pack("<i", 1) + struct.pack("<I", 100_000) + b"t" * 100_000
    binlog.event(32, one.event(32, [row]))
    binlog.event(16, bytes(8))
    config = settings_of({"format": "debezium", "debezium": {"unwrap": True, "deletes": "drop"}})
    python, native_code = both(binlog, config)
    assert python == native_code
    assert [entry[4] for entry in native_code if isinstance(entry, tuple) and len(entry) == 6] == [
        1_700_000_000_000_000
    ]


@needs_native
@pytest.mark.parametrize("message", [{}, {"old": "uniform"}, {"format": "debezium"}, {"format": "canal-protobuf"}])
@pytest.mark.parametrize(
    "mask",
    [
        {"mask": "hash", "salt": "s"},
        {"mask": "hash", "salt": "long" * 30},
        {"mask": "null"},
        {"mask": "fixed", "value": "7"},
        {"mask": "truncate", "length": 1},
    ],
)
def test_masked_columns_are_the_same_both_ways(message: dict[str, Any], mask: dict[str, Any]) -> None:
    text = mask["mask"] != "fixed"
    columns = [
        Column_(ct.BLOB, b"\x04", ct.BLOB, 4, "utf8mb4"),
        Column_(ct.BLOB, b"\x04", ct.BLOB, 4, "gbk"),
        Column_(ct.VAR_STRING, struct.pack("<H", 40), ct.VAR_STRING, 40, "latin1"),
        Column_(ct.BLOB, b"\x02", ct.BLOB, 2, "binary") if text else Column_(ct.LONG, b"", ct.LONG, 0),
        Column_(ct.DOUBLE, b"\x08", ct.DOUBLE, 8),
        Column_(ct.TIMESTAMP2, b"\x03", ct.TIMESTAMP2, 3),
    ]
    rng, binlog = random.Random(str(mask)), Binlog().begin_file()
    one = table("t", 1, *columns)
    one.broken = 0.0
    for gno in range(1, 40):
        transaction(rng, binlog, gno, [one], damage=0.0)
    masked = [f"c{number}" for number in range(1, 7 if mask["mask"] in ("hash", "null") else 5)]
    if "format" in message and not text:
        masked.remove("c4")  # a number is no text in Debezium's messages
    config = settings_of(message, filter={"mask": [{"tables": ".*", "columns": masked, **mask}]})
    data = bytes(binlog.packets)
    python, native_ = [native_differential.outcome(data, config, module, WHOLE) for module in (None, MODULE)]
    assert native_ == python
    assert len(python) > 20
    assert used(data, config) == {("shop", "t"): ""}


@needs_native
def test_a_masked_column_may_be_left_out_too() -> None:
    binlog = Binlog().begin_file()
    binlog.transaction(1, 1_700_000_000_000_000, [(1, "x")])
    masks = [{"tables": ".*", "columns": [NAME], "mask": "fixed", "value": "7"}]
    wanted = {"mask": masks, "include_columns": r"shop\.t:id"}
    assert used(bytes(binlog.packets), settings_of({}, filter=wanted)) == {("shop", "t"): ""}


CONDITIONS = [
    "c1 = 'a' or c1 like '%\\u540d%'",
    "c1 like '_%a_%' and not c1 in ('a', 'b')",
    "c2 > 9000000000000000000",
    "c2 between 1.5 and 1e40 or c2 = 0.5 or c2 != 0.5",
    "c3 < 0",
    "c3 in (0, 99999999.99, 0.00) or c3 >= 12345.678",
    "c4 >= 1.1 and c4 < 1e300",
    "c6 = '2026-01-31' or c6 > '2000-01-01 12:00:00.5'",
    "c7 > '-01:00:00'",
    "c8 = 0 or c8 between 1970 and 2026",
    "c9 = 'x' or c9 = ''",
    "c11 like 'x%' and c11 != 'x,y'",
    "c12 <= '2024-02-29'",
    "c13 is null or c13 > 0",
    "c14 >= 255",
    "c16 < '2026-01-01'",
    "not (c1 is null or c2 is null or c3 is null) and (c4 is not null or c6 is null)",
]


def every_type() -> list[Column_]:
    """Returns columns of all types that can be compared; every fifth, whose name is strange, is not one of these."""
    column = Column_
    made = [
        column(ct.BLOB, b"\x04", ct.BLOB, 4, "utf8mb4"),
        column(ct.LONGLONG, b"", ct.LONGLONG, 0, unsigned=True),
        column(ct.NEWDECIMAL, b"\x0a\x02", ct.NEWDECIMAL, 10 | 2 << 8),
        column(ct.DOUBLE, b"\x08", ct.DOUBLE, 8),
        column(ct.DATETIME2, b"\x03", ct.DATETIME2, 3),
        column(ct.TIME2, b"\x00", ct.TIME2, 0),
        column(ct.YEAR, b"", ct.YEAR, 0, unsigned=True),
        column(ct.STRING, bytes([ct.ENUM, 1]), ct.ENUM, 1, labels=("x", "y")),
        column(ct.STRING, bytes([ct.SET, 1]), ct.SET, 1, labels=("x", "y", "z")),
        column(ct.DATE, b"", ct.DATE, 0),
        column(ct.FLOAT, b"\x04", ct.FLOAT, 0),
        column(ct.BIT, b"\x01\x01", ct.BIT, 9),
        column(ct.TIMESTAMP2, b"\x00", ct.TIMESTAMP2, 0),
    ]
    for at in (4, 9, 14):
        made.insert(at, column(ct.LONG, b"", ct.LONG, 0))
    return made


@needs_native
@pytest.mark.parametrize(
    "message", [{}, {"rows_per_message": 3}, {"format": "debezium"}, {"format": "canal-protobuf", "enum": "label"}]
)
def test_conditions_choose_the_same_rows_both_ways(message: dict[str, Any]) -> None:
    rng, binlog, one = random.Random(5), Binlog().begin_file(), table("t", 1, *every_type())
    one.broken = 0.0
    for gno in range(1, 60):
        transaction(rng, binlog, gno, [one], damage=0.0)
    data = bytes(binlog.packets)
    for condition in CONDITIONS:
        config = settings_of(message, filter={"where": [{"tables": ".*", "rows": condition}]})
        outcomes, emitted = list[Any](), list[int]()
        for module in (None, MODULE):
            with mock.patch.object(MessageBuilder, "emit", autospec=True, side_effect=MessageBuilder.emit) as emit:
                outcomes.append(native_differential.outcome(data, config, module, WHOLE))
                emitted.append(emit.call_count)
        assert outcomes[0] == outcomes[1], condition
        assert used(data, config) == {("shop", "t"): ""}, condition
        assert emitted[1] < emitted[0] * 0.6, condition  # updates that begin or cease to meet it are Python's


@needs_native
@pytest.mark.parametrize(
    "sink",
    [
        RABBITMQ,
        {"type": "rocketmq", "hosts": "h:8081", "tag": "{table}-{type}"},
        {"type": "kafka", "bootstrap_servers": "k:9092", "on_oversize": "park"},
    ],
)
@pytest.mark.parametrize("message", [{"rows_per_message": 1}, {}, {"format": "debezium"}])
def test_native_code_says_what_each_message_is_about(sink: dict[str, Any], message: dict[str, Any]) -> None:
    config, binlog = settings_of(message, sink=sink), Binlog().begin_file()
    for gno in range(1, 20):
        binlog.transaction(gno, 1_700_000_000_000_000 + gno, [(gno, "x"), (gno + 100, "y")])
    outcomes, data = list[Any](), bytes(binlog.packets)
    with mock.patch.object(MessageBuilder, "emit", autospec=True, side_effect=MessageBuilder.emit) as emit:
        outcomes += [native_differential.outcome(data, config, module, WHOLE) for module in (None, MODULE)]
    assert outcomes[0] == outcomes[1]
    assert emit.call_count <= 20, "Python's run makes all, and native code's the first rows of the table"
    assert any(unit is not None or tag for one in outcomes[1] if _is_about(one) for unit, tag in one)


def _is_about(one: Any) -> bool:
    """Whether a part of an outcome is units and tags."""
    return isinstance(one, list) and bool(one) and len(one[0]) == 2


@needs_native
@pytest.mark.parametrize("message", [{}, {"compat": "canal"}, {"key": ["$pk$"]}, {"format": "canal-protobuf"}])
def test_native_code_makes_the_begin_and_end_of_transactions(message: dict[str, Any]) -> None:
    config, binlog = settings_of(message, filter={"transactions": True}), Binlog().begin_file()
    for gno in range(1, 20):
        binlog.transaction(gno, 1_700_000_000_000_000 + gno, [(gno, "x")])
    outcomes, data = list[Any](), bytes(binlog.packets)
    with mock.patch.object(MessageBuilder, "emit_mark", autospec=True, side_effect=MessageBuilder.emit_mark) as emit:
        outcomes += [native_differential.outcome(data, config, module, WHOLE) for module in (None, MODULE)]
    assert outcomes[0] == outcomes[1]
    assert emit.call_count < 2 * 19 + 5  # Python's run makes them all


def updates_of(of: Table, *groups: list[tuple[tuple[int, int, int], tuple[int, int, int]]]) -> bytes:
    """A binlog of updates of a table with three numbers, each group one event, behind events that make it known."""
    image = lambda row: b"\0" + struct.pack("<iBB", *row)  # noqa: E731
    binlog = Binlog().begin_file()
    known = [[((0, 0, 0), (0, 1, 1))]] * 5
    for gno, pairs in enumerate([*known, *groups], 1):
        binlog.gtid(gno, 1_700_000_000_000_000)
        binlog.query("BEGIN")
        binlog.event(19, of.body())
        binlog.event(31, of.event(31, [image(row) for pair in pairs for row in pair]))
        binlog.event(16, bytes(8))
    return bytes(binlog.packets)


@needs_native
@pytest.mark.parametrize(
    "message",
    [{}, {"old": "uniform"}, {"rows_per_message": 2, "old": "uniform"}, {"format": "debezium"}, {"key": ["$pk$"]}],
)
@pytest.mark.parametrize("kind", ["kafka", "jsonl"])
def test_what_an_update_does_decides_in_the_same_way_both_ways(message: dict[str, Any], kind: str) -> None:
    same, other = ((1, 1, 1), (1, 1, 2)), ((2, 1, 1), (2, 2, 1))
    data = updates_of(table("t", 1, TINY, TINY), [same], [other], [same, same], [same, other, same, other], [other] * 3)
    filters = {"unchanged_updates": "skip", "exclude_columns": "shop\\.t:c2"}
    more = {"sink": {"type": "jsonl", "path": "-"}, "route": {}} if kind == "jsonl" else {}
    config = settings_of(message, filter=filters, **more)
    assert used(data, config) == {("shop", "t"): ""}
    both = [native_differential.outcome(data, config, one, WHOLE) for one in (MODULE, None)]
    assert both[0] == both[1]
    assert "('shop', 't', 0, 11, 0)" in str(both[0])
    if message == {"old": "uniform"}:
        mixed = updates_of(table("t", 1, TINY, TINY), [((1, 1, 1), (1, 1, 2)), ((2, 1, 1), (2, 2, 1))])
        both = [native_differential.outcome(mixed, settings_of(message), one, WHOLE) for one in (MODULE, None)]
        assert both[0] == both[1]
        assert '"old":[{"c1":"1","c2":"1"},{"c1":"1","c2":"1"}]' in str(both[0])
    without = settings_of(message, filter={"operations": ["insert", "delete"]}, **more)
    assert used(data, without) == {("shop", "t"): ""}
    assert [native_differential.outcome(data, without, one, WHOLE) for one in (MODULE, None)] == [
        native_differential.outcome(data, without, None, WHOLE)
    ] * 2
    assert "headrace-id" not in str(native_differential.outcome(data, without, MODULE, WHOLE))


@needs_native
@pytest.mark.parametrize("fmt", ["canal", "canal-protobuf"])
@pytest.mark.parametrize("operations", [["update"], ["insert", "update", "delete"]])
def test_rows_that_are_spread_have_the_same_numbers_both_ways(fmt: str, operations: list[str]) -> None:
    rows = [((number, 1, 1), (number, 1, 2)) for number in range(1, 9)]
    data = updates_of(table("t", 1, TINY, TINY), rows, rows[:1], rows)
    config = settings_of(
        {"format": fmt, "rows_per_message": 1},
        filter={"operations": operations},
        sink={"type": "kafka", "bootstrap_servers": "k:9092"},
        route={"topic": "shop", "partitions": 3, "partition_hash": ".*\\..*:$pk$"},
    )
    assert used(data, config) == {("shop", "t"): ""}
    both = [native_differential.outcome(data, config, one, WHOLE) for one in (MODULE, None)]
    assert both[0] == both[1]
    assert len({partition for _, partition, *_ in filter(is_batch, both[0])}) == 3


def is_batch(one: object) -> bool:
    """Whether an entry of an outcome is about a batch."""
    return isinstance(one, tuple) and len(one) == 6 and one[0] == "shop"


@needs_native
def test_the_statement_of_rows_is_in_their_source_if_configured() -> None:
    binlog = Binlog().begin_file()
    for gno in range(1, 6):
        binlog.gtid(gno, 1_700_000_000_000_000)
        binlog.query("BEGIN")
        if gno != 4:
            binlog.event(29, b"\x01" + f"INSERT {gno}".encode())
        binlog.table()
        binlog.insert((gno, "x"))
        binlog.event(16, bytes(8))
    python, native_code = both_ways_of(binlog, {"format": "debezium", "debezium": {"query": True}})
    assert python == native_code
    found = re.findall(r'"query":(null|"[^"]*")', str(python))
    assert found == ['"INSERT 1"', '"INSERT 2"', '"INSERT 3"', "null", '"INSERT 5"']
