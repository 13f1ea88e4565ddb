"""Native code does what Python does: the same messages, positions and errors, from sound and from damaged binlogs."""

from __future__ import annotations

import contextlib
import random
import re
import struct
import sys
import tomllib
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from headrace import __version__, native
from headrace.cli.check_native import native_use
from headrace.cli.wiring import new_format
from headrace.errors import NotUnderstood
from headrace.model import Column, RowsChange, TableSchema
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.native_reader import NativeReader
from headrace.mysql.table_maps import TableMaps
from headrace.mysql.values import column_types as ct
from headrace.mysql.wire.binlog_file import packets
from headrace.pipeline.message_builder import MessageBuilder, make_builder
from headrace.pipeline.native_output import reason_of_destination
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings
from tests import native_differential
from tests.canal_entries import RECORDED
from tests.configured import destination_of
from tests.examples import examples
from tests.made_binlog import NAME, Binlog, captured, decoder, feed, payload
from tests.random_tables import Column as Column_
from tests.random_tables import Table, stream, transaction
from tests.random_tables import table as a_table

MODULE: Any = native.find().module
needs_native = pytest.mark.skipif(MODULE is None, reason="headrace-native is not installed: scripts/build-native")
WHOLE = native_differential.Reading(native_differential.WHOLE, [1 << 30])
RABBITMQ = {"type": "rabbitmq", "hosts": "h:5672", "user": "u", "password": "p", "exchange": "e"}


@needs_native
@pytest.mark.hypothesis
def test_random_tables_become_the_same_messages_both_ways() -> None:
    assert native_differential.made(examples(120), seed=11) > 8 * examples(120)


@needs_native
@pytest.mark.hypothesis
def test_damaged_binlogs_end_in_the_same_messages_and_errors_both_ways() -> None:
    native_differential.damaged(examples(250), seed=12)


@pytest.fixture
def unknown() -> Iterator[None]:
    """find() searches again, before and afterwards."""
    native.find.cache_clear()
    before = sys.modules.pop("headrace_native", None)
    yield
    native.find.cache_clear()
    sys.modules.pop("headrace_native", None)
    if before is not None:
        sys.modules["headrace_native"] = before


@pytest.mark.usefixtures("unknown")
def test_what_is_found_says_why_it_is_python() -> None:
    assert str(native.find("off")) == 'Python (off: [daemon] native = "off")'
    sys.modules["headrace_native"] = types.ModuleType("headrace_native")
    assert str(native.find()) == f"Python (headrace-native unknown has interface None, not {native.INTERFACE})"
    native.find.cache_clear()
    old = sys.modules["headrace_native"] = types.ModuleType("headrace_native")
    old.INTERFACE, old.__version__ = native.INTERFACE, "0.0.9"  # type: ignore[attr-defined]
    assert str(native.find()) == f"Python (headrace-native 0.0.9 is not of version {__version__}, which headrace has)"
    native.find.cache_clear()
    sys.modules["headrace_native"] = None  # type: ignore[assignment]
    assert native.find().module is None
    native.find.cache_clear()
    del sys.modules["headrace_native"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [])
        found = str(native.find())
    assert found.startswith(
        "Python (installed without native code, which takes about five times the CPU: docs/install.md"
    )


class Failing:
    """Native code that reads nothing, and says so each time."""

    def __init__(self) -> None:
        self.runs = 0

    def ready(self) -> bool:
        return True

    def run(self, data: bytes, at: int, *, eager: bool, inner: bool = False) -> tuple[int, int, int, bool]:
        self.runs += 1
        return at, 0, 0, True


def test_native_code_that_reads_nothing_is_asked_less_and_less_often() -> None:
    binlog = Binlog().begin_file()
    for gno in range(1, 201):
        binlog.transaction(gno, gno, [(gno, "x")])
    changes: list[RowsChange] = []
    one, failing = decoder(changes), Failing()
    one.splitter.fast = failing
    feed(one, bytes(binlog.packets))
    assert len(changes) == 200
    assert 0 < failing.runs < 30


def test_a_piece_that_ends_with_a_packet_asks_for_no_more_than_the_next_ones_head() -> None:
    binlog = Binlog().begin_file()
    binlog.transaction(1, 1, [(1, "x" * 200)])
    data, one = bytes(binlog.packets), decoder([])
    cut = data.rindex(b"x") - 50
    at, _ = one.feed(data[:cut], 0, lambda: False)
    assert one.splitter.need > 100
    one.splitter.eager = True
    rest = data[at:]
    done, more = 0, True
    while more:
        done, more = one.feed(rest, done, lambda: True)
    assert done == len(rest)
    assert one.splitter.need == 4  # and not that of the packet before, for which the next read would wait


@needs_native
def test_an_error_names_the_event_that_native_code_left() -> None:
    binlog = Binlog().begin_file()
    for gno in range(1, 50):
        binlog.transaction(gno, gno, [(gno, "x")])
    good = len(binlog.packets)
    binlog.gtid(50, 50)
    data = bytearray(binlog.packets)
    data[good + 40] ^= 1
    outcomes = [native_differential.outcome(bytes(data), plain(), module, WHOLE) for module in (None, MODULE)]
    assert outcomes[0] == outcomes[1]
    assert any("CRC32" in str(one) for one in outcomes[1])


def plain(message: dict[str, Any] | None = None, **source: Any) -> DestinationSettings:
    """A destination's settings, without routing."""
    return destination_of(
        {
            "name": "shop",
            "source": {"host": "h", "user": "u", "password": "p", **source},
            "route": {"topic": "shop"},
            "message": message or {},
            "sink": {"type": "null"},
        }
    )


def both_ways_of(binlog: Binlog, message: dict[str, Any] | None = None, **source: Any) -> list[Any]:
    """What comes of a binlog by Python, and then by native code, fed whole."""
    config, data = plain(message, **source), bytes(binlog.packets)
    return [native_differential.outcome(data, config, module, WHOLE) for module in (None, MODULE)]


@needs_native
def test_a_table_that_gets_another_id_is_not_described_by_python_again() -> None:
    binlog, tables = Binlog().begin_file(), [a_table(random.Random(n), n, broken=0) for n in range(3)]
    for gno in range(1, 300):
        table = tables[gno % 3]
        table.id = gno
        binlog.gtid(gno, gno)
        binlog.query("BEGIN")
        binlog.event(19, table.body())
        kind = 30 if gno % 50 else 32
        binlog.event(kind, table.event(kind, [table.row()] * (1 if gno % 7 else 6_000)))
        binlog.event(16, gno.to_bytes(8, "little"))
    python = native_differential.outcome(bytes(binlog.packets), plain(), None, WHOLE)
    with mock.patch.object(TableMaps, "on_table_map", autospec=True, side_effect=TableMaps.on_table_map) as described:
        native_code = native_differential.outcome(bytes(binlog.packets), plain(), MODULE, WHOLE)
    assert python == native_code
    assert described.call_count == 3


@needs_native
@pytest.mark.parametrize("micros", [1 << 51, 1 << 53, (1 << 55) - 1])
@pytest.mark.parametrize("message", [{}, {"format": "debezium"}])
def test_a_commit_time_beyond_what_numbers_hold_stops_both_ways(micros: int, message: dict[str, Any]) -> None:
    binlog = Binlog().begin_file()
    for gno in range(1, 6):
        binlog.transaction(gno, 1_700_000_000_000_000 + gno, [(gno, "x")])
    binlog.transaction(6, micros, [(6, "x")], [(7, "x")])
    python, native_code = both_ways_of(binlog, message)
    assert python == native_code


@needs_native
def test_the_last_number_that_a_gtid_may_have_is_no_panic() -> None:
    binlog = Binlog().begin_file()
    for gno in (1, 2, (1 << 64) - 1, 3, 4):
        binlog.transaction(gno, 1_700_000_000_000_000 + (gno & 7), [(gno & 7, "x")])
    python, native_code = both_ways_of(binlog)
    assert python == native_code


@needs_native
def test_a_set_of_more_members_than_bits_is_pythons() -> None:
    output = MODULE.Output("uuid", 1, 0, 400, False, False)
    counter, route = output.add_counter(), ("one", output.add_slot())
    columns, fmt = [(0, '"c":', ("text", "base64"), None)], ("canal", "", "", "", False, False, "", [])
    labels = [f"l{i}" for i in range(65)]
    with pytest.raises(ValueError, match="native"):
        output.table([("set", 8, labels)], columns, fmt, route, [], False, None, [0], None, False, counter)
    assert output.table([("set", 8, labels[:64])], columns, fmt, route, [], False, None, [0], None, False, counter)


@needs_native
def test_a_table_that_was_passed_over_once_is_not_dropped_for_good() -> None:
    """The operator has named one TABLE_MAP that could not be read; the next one stops the destination."""
    binlog = Binlog().begin_file()
    for gno in range(1, 6):
        binlog.transaction(gno, 1_700_000_000_000_000 + gno, [(gno, "x")])
    places = []
    for gno in range(6, 12):
        binlog.gtid(gno, 1_700_000_000_000_000 + gno)
        binlog.query("BEGIN")
        places.append(binlog.at)
        body = struct.pack("<IHH", 99, 0, 1) + b"\x04shop\0\x01u\0" + b"\x01\x03\x00\x01"  # without names
        binlog.event(19, body)
        binlog.event(30, struct.pack("<IHHH", 99, 0, 1, 2) + b"\x01\xff\xfe" + struct.pack("<i", gno))
        binlog.event(16, struct.pack("<Q", gno))
    python, native_code = both_ways_of(binlog, skip_event=[f"b.000001:{places[0]}"])
    assert python == native_code
    assert any(one[0] == "error" for one in python if isinstance(one, tuple))


@needs_native
def test_a_table_that_is_described_again_and_again_has_one_counter() -> None:
    config = plain()
    builder = make_builder(config, new_format(config), "server", 1, MODULE)
    assert builder.native is not None
    column = Column("id", "int", 4)
    for _ in range(100):
        assert builder.native.table(TableSchema("shop", "t", (column,), (0,)), [("int", 4, True)]) is not None
    assert builder.native._counted == [("shop", "t")]


@needs_native
def test_a_column_whose_layout_native_code_lacks_is_named() -> None:
    config = plain()
    native_rows = make_builder(config, new_format(config), "server", 1, MODULE).native
    assert native_rows is not None
    columns = Column("id", "int", 4), Column("strange", "int", 4)
    assert native_rows.table(TableSchema("shop", "t", columns, (0,)), [("int", 4, True), None]) is None
    assert native_rows.use.tables == {("shop", "t"): "it does not know the type of column strange"}


class Panicking:
    """Native code with a fault."""

    def clear(self) -> None: ...

    def run(self, *_: Any) -> Any:
        raise type("PanicException", (BaseException,), {})("a fault")


@needs_native
def test_a_fault_of_native_code_stops_the_destination_with_a_remedy() -> None:
    config = plain()
    builder = make_builder(config, new_format(config), "server", 1, MODULE)
    one = decoder([], native=builder.native)
    one.splitter.fast._reader = Panicking()  # type: ignore[union-attr]
    binlog = Binlog().begin_file()
    binlog.transaction(1, 1, [(1, "x")])
    with pytest.raises(NotUnderstood, match="native code fails after this position") as raised:
        feed(one, bytes(binlog.packets))
    assert 'native = "off"' in raised.value.remedy


def used(data: bytes, config: DestinationSettings) -> dict[tuple[str, str], str]:
    """By table, why Python makes its rows."""
    builder = make_builder(config, new_format(config), "server", 5, MODULE)
    into = Receiver(rows=builder.emit, large=builder.emit_large, native=builder.native)
    made = Decoder(
        native_differential.WHOLE,
        into,
        captures=builder.captures,
        options=DecoderOptions.of(config, DaemonSettings()),
    )
    read_whole(made, data)
    assert builder.native is not None
    return builder.native.use.tables


def captured_schemas(data: bytes, config: DestinationSettings) -> dict[tuple[str, str], TableSchema]:
    schemas: dict[tuple[str, str], TableSchema] = {}

    def note(change: RowsChange) -> None:
        schemas[change.schema.schema, change.schema.table] = change.schema

    captures = make_builder(config, new_format(config), "server", 5).captures
    with contextlib.suppress(NotUnderstood):
        into = Receiver(rows=note)
        read_whole(Decoder(native_differential.WHOLE, into, captures=captures, options=DecoderOptions()), data)
    return schemas


def read_whole(reader: Decoder, data: bytes) -> None:
    at, more = 0, True
    while more:
        at, more = reader.feed(data, at, lambda: False)


def table(name: str, number: int, *columns: Column_) -> Table:
    keyed = [Column_(ct.LONG, b"", ct.LONG, 4), *columns]
    return Table(random.Random(1), name, number, keyed, [0])


@needs_native
def test_it_is_said_of_each_table_whether_native_code_makes_its_rows_and_why_not() -> None:
    text = lambda charset: Column_(ct.BLOB, b"\x04", ct.BLOB, 4, charset)  # noqa: E731
    tables = [
        table("plain", 1, text("utf8mb4"), text("latin1"), text("binary")),
        table("chinese", 2, text("gbk")),
        table("times", 3, Column_(ct.TIMESTAMP2, b"\0", ct.TIMESTAMP2, 0)),
        table("masked", 4, text("utf8mb4")),
        table("some", 5, text("utf8mb4")),
        table("deflated", 6, Column_(ct.VARCHAR_COMPRESSED, b"\xff\x00", ct.VARCHAR_COMPRESSED, 255, "utf8mb4")),
    ]
    binlog = Binlog().begin_file()
    binlog.gtid(1, 1_700_000_000_000_000)
    binlog.query("BEGIN")
    for one in tables:
        binlog.event(19, one.body())
    data = bytes(binlog.packets)
    filters = {
        "mask": [{"tables": "shop\\.masked", "columns": ["c1"], "mask": "null"}],
        "where": [{"tables": "shop\\.some", "rows": "c1 is not null"}],
    }
    config = settings_of({"time_zone": "Asia/Shanghai"}, filter=filters)
    assert used(data, config) == {
        ("shop", "plain"): "",
        ("shop", "chinese"): "",
        ("shop", "times"): "",
        ("shop", "deflated"): "",
        ("shop", "masked"): "",
        ("shop", "some"): "",
    }
    for message in ({}, {"format": "debezium"}, {"format": "canal-protobuf"}):
        assert used(data, settings_of(message))["shop", "times"] == "", message


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
@pytest.mark.parametrize("rows", [1, 40_000])
def test_rows_of_compressed_transactions_are_made_by_native_code(rows: int) -> None:
    binlog = Binlog().begin_file()
    binlog.transaction(1, 1_700_000_000_000_000, [(0, "x")])  # the schema is known then
    for gno in range(2, 30 if rows == 1 else 4):
        groups = [[(at, "text " * 8) for at in range(first, first + 20)] for first in range(0, rows, 20)]
        binlog.gtid(gno, 1_700_000_000_000_000 + gno)
        calls = [partial(binlog.query, "BEGIN")]
        calls += [call for group in groups for call in (binlog.table, partial(binlog.insert, *group))]
        events = captured(binlog, *calls, partial(binlog.event, 16, struct.pack("<Q", gno)))
        binlog.event(40, payload(events))
    data, config = bytes(binlog.packets), plain()
    outcomes, emitted = list[Any](), list[int]()
    for module in (None, MODULE):
        with mock.patch.object(MessageBuilder, "emit", autospec=True, side_effect=MessageBuilder.emit) as emit:
            outcomes.append(native_differential.outcome(data, config, module, WHOLE))
            emitted.append(emit.call_count)
    assert outcomes[0] == outcomes[1]
    assert emitted[1] < max(5, emitted[0] / 20)


@needs_native
@pytest.mark.parametrize("version", [b"9.7", b"10.11.6-MariaDB"])
def test_python_reads_no_event_of_usual_transactions(version: bytes) -> None:
    binlog = Binlog().begin_file(version=version)
    for gno in range(1, 1001):
        binlog.transaction(gno, 1_700_000_000_000_000 + gno, [(gno, "x")])
    with mock.patch.object(NativeReader, "run", autospec=True, side_effect=NativeReader.run) as run:
        made = native_differential.outcome(bytes(binlog.packets), plain(), MODULE, WHOLE)
    assert run.call_count < 10
    assert made == native_differential.outcome(bytes(binlog.packets), plain(), None, WHOLE)


@needs_native
def test_python_sees_the_rows_of_a_table_while_that_is_read_and_of_no_other() -> None:
    binlog = Binlog().begin_file()
    for gno in range(1, 61):
        binlog.gtid(gno, 1_700_000_000_000_000 + gno)
        binlog.query("BEGIN")
        for one in (table("a", 1), table("b", 2)):
            binlog.event(19, one.body())
            binlog.event(30, one.event(30, [one.row()]))
        binlog.event(16, bytes(8))
    config, data, seen = settings_of({}), bytes(binlog.packets), Counter[str]()
    builder = make_builder(config, new_format(config), "server", 5, MODULE)
    assert builder.native is not None

    def emit(change: RowsChange) -> None:
        seen[change.schema.table] += 1
        builder.emit(change)

    into, options = Receiver(rows=emit, native=builder.native), DecoderOptions.of(config, DaemonSettings())
    reader, at = Decoder(native_differential.WHOLE, into, captures=builder.captures, options=options), 0
    for watched, until in ([], len(data) // 2), ([("shop", "a")], len(data)):
        builder.native.watch = partial(frozenset, watched)
        while (after := reader.feed(data[:until], at, lambda: False)[0]) > at:
            at = after
        few = {"a": 30, "b": 0} if watched else {}  # the first ones are always Python's
        assert all(few.get(name, 0) <= seen[name] < few.get(name, 0) + 5 for name in "ab"), (
            seen
        )  # the first are Python's
        seen.clear()
    assert at == len(data)
    reader.close()


@needs_native
def test_the_end_of_an_xa_transaction_has_the_length_of_its_own_event_both_ways() -> None:
    binlog = Binlog().begin_file()
    binlog.transaction(1, 1_700_000_000_000_000, [(1, "x")])
    binlog.gtid(2, 1_700_000_000_000_001)
    binlog.query("XA START X'61',X'',1")
    binlog.table()
    binlog.insert((2, "y"), (3, "a longer text than that of the other row"))
    binlog.query("XA END X'61',X'',1")
    binlog.event(38, struct.pack("<BIII", 1, 1, 1, 0) + b"a")
    config = settings_of({"format": "canal-protobuf"}, filter={"transactions": True})
    data = bytes(binlog.packets)
    python, native_ = [native_differential.outcome(data, config, module, WHOLE) for module in (None, MODULE)]
    assert native_ == python
    (end,) = [one[0] for one in python if isinstance(one, tuple) and b"2#end" in str(one).encode()]
    assert bytes([0x50, 19 + 14 + 4]) in end


SOURCE = {"host": "h", "user": "u", "password": "p"}


def settings_of(message: dict[str, Any], **more: Any) -> DestinationSettings:
    return destination_of(
        {
            "name": "shop",
            "source": SOURCE,
            "route": {"topic": "shop"},
            "sink": {"type": "jsonl", "path": "-"},
            "message": message,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, ""),
        ({"filter": {"transactions": True}}, ""),
        (
            {"message": {"format": "debezium", "debezium": {"transaction_topic": "x"}}},
            "the begin and end of transactions are published",
        ),
        ({"sink": RABBITMQ}, ""),
    ],
)
def test_it_is_said_of_a_destination_why_native_code_makes_none_of_its_rows(more: dict[str, Any], reason: str) -> None:
    config = settings_of(**({"message": {}} | more))
    assert reason_of_destination(config, new_format(config), "") == reason
    without = reason_of_destination(config, new_format(config), "headrace-native is not installed")
    assert without.startswith("headrace-")


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


@needs_native
@pytest.mark.parametrize(("sink", "reason"), [("jsonl", ""), ("rabbitmq", "a key that is not published unchanged")])
def test_the_check_knows_that_messages_may_have_to_wait_for_others_about_their_row(sink: str, reason: str) -> None:
    binlog = Binlog().begin_file()
    binlog.transaction(1, 1_700_000_000_000_000, [(1, "x")])
    masked = {"mask": [{"tables": ".*", "columns": ["id"], "mask": "hash", "salt": "s"}]}
    more = {"sink": RABBITMQ} if sink == "rabbitmq" else {}
    spread = {"route": {"topic": "shop", "partitions": 4, "partition_hash": r".*\..*:$pk$", "hash": "canal"}}
    more |= spread if sink == "rabbitmq" else {}
    config, data = settings_of({"format": "debezium"}, filter=masked, **more), bytes(binlog.packets)
    found = used(data, config)["shop", "t"]
    assert reason in found
    assert bool(found) == bool(reason)
    schemas = captured_schemas(data, config)
    said = " ".join(one.sentence for one in native_use(DaemonSettings(), config, new_format(config), schemas))
    assert (f"shop.t ({found})" in said) == bool(reason), said


@needs_native
@pytest.mark.parametrize("seed", range(20))
def test_the_check_says_before_what_a_stream_finds(seed: int) -> None:
    rng = random.Random(seed)
    config = native_differential.settings(rng)
    if reason_of_destination(config, new_format(config), ""):
        return
    data = stream(rng, broken=0)
    schemas = captured_schemas(data, config)
    with contextlib.suppress(NotUnderstood):
        found = used(data, config)
        expected = " ".join(one.sentence for one in native_use(DaemonSettings(), config, new_format(config), schemas))
        for name in schemas:
            if name in found:
                assert (f"{'.'.join(name)} (" in expected) == bool(found[name]), (found, expected)


def test_headrace_and_its_native_code_have_one_version() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    crates = tomllib.loads((root / "native/Cargo.toml").read_text())["workspace"]["package"]
    assert project["version"] == crates["version"] == __version__


@needs_native
@pytest.mark.parametrize("kind", [30, 31, 32])
@pytest.mark.parametrize("columns", [13, 300])
@pytest.mark.parametrize("more", [0, 1])
def test_a_large_event_goes_out_in_the_same_parts_both_ways(kind: int, columns: int, more: int) -> None:
    """`more` rows than go out as a whole: 5,000, or those that have 100,000 values."""
    of = table("t", 1, *[Column_(ct.TINY, b"", ct.TINY, 1)] * (columns - 1))
    images = 2 if kind == 31 else 1
    rows = more + min(5_000, 99_999 // (images * columns) + 1)
    no_null = bytes((columns + 7) // 8)
    row = [no_null + struct.pack("<i", number) + bytes(columns - 1) for number in range(rows)]
    binlog = Binlog().begin_file()
    for gno in range(1, 11):  # by the last one native code knows the table
        binlog.gtid(gno, 1_700_000_000_000_000)
        binlog.query("BEGIN")
        binlog.event(19, of.body())
        some = row if gno == 10 else row[:1]
        binlog.event(kind, of.event(kind, [image for image in some for _ in range(images)]))
        binlog.event(16, bytes(8))
    data, config = bytes(binlog.packets), settings_of({})
    both = [native_differential.outcome(data, config, one, WHOLE) for one in (MODULE, None)]
    assert both[0] == both[1]
    messages = [one for one in both[0] if isinstance(one, tuple) and len(one) == 3 and isinstance(one[1], list)]
    assert len(messages) == 9 + 1 + more


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


TINY = Column_(ct.TINY, b"", ct.TINY, 1)


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


@needs_native
@pytest.mark.parametrize("name", ["mysql97", "mysql56", "mariadb"])
def test_recorded_binlogs_become_the_same_entries_both_ways(name: str) -> None:
    data = b"".join(packets(RECORDED / f"{name}.binlog"))
    source = {"host": "h", "user": "u", "password": "p", "row_image": "any"}
    config = settings_of({"format": "canal-protobuf"}, filter={"transactions": True}, source=source)
    way = replace(WHOLE, mariadb=name == "mariadb")
    python, native_code = (native_differential.outcome(data, config, one, way) for one in (None, MODULE))
    assert python == native_code
    assert sum(isinstance(one, tuple) and isinstance(one[0], bytes) for one in python) > 80


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
