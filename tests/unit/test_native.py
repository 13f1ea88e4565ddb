"""Native code does what Python does: the same messages, positions and errors, from sound and from damaged binlogs."""

from __future__ import annotations

import random
import struct
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest

from headrace.cli.wiring import new_format
from headrace.destination.facts import TableTotals
from headrace.errors import NotUnderstood
from headrace.model import Column, RowsChange, TableRows, TableSchema
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.transactions import Transactions
from headrace.mysql.native_reader import NativeReader
from headrace.mysql.table_maps import TableMaps
from headrace.mysql.values import column_types as ct
from headrace.mysql.wire.binlog_file import packets
from headrace.pipeline.message_builder import MessageBuilder, make_builder
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from tests import native_differential
from tests.canal_entries import RECORDED
from tests.examples import examples
from tests.made_binlog import SID, Binlog, captured, decoder, feed, payload
from tests.native_ways import (
    MODULE,
    WHOLE,
    both_ways_of,
    needs_native,
    plain,
    settings_of,
    table,
)
from tests.own_tables import BEAT, image, own_rows, own_table
from tests.random_tables import Column as Column_
from tests.random_tables import table as a_table


@needs_native
@pytest.mark.hypothesis
def test_random_tables_become_the_same_messages_both_ways() -> None:
    assert native_differential.made(examples(120), seed=11) > 8 * examples(120)


@needs_native
@pytest.mark.hypothesis
def test_damaged_binlogs_end_in_the_same_messages_and_errors_both_ways() -> None:
    native_differential.damaged(examples(250), seed=12)


class Failing:
    """Native code that reads nothing, and says so each time."""

    def __init__(self) -> None:
        self.runs = 0

    def ready(self) -> bool:
        return True

    def run(self, data: bytes, at: int, *, eager: bool, inner: bool = False) -> tuple[int, int, int, bool]:
        self.runs += 1
        return at, 0, 0, True


def test_native_code_that_reads_nothing_is_asked_less_and_less_often(unhurried: None) -> None:
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


@needs_native
def test_heartbeats_of_other_destinations_are_passed_over_by_native_code_and_those_of_ours_are_seen() -> None:
    binlog = Binlog().begin_file()
    for gno in range(1, 301):
        binlog.gtid(gno, gno)
        binlog.query("BEGIN")
        own_table(binlog)
        own_rows(binlog, image(BEAT if gno == 150 else replace(BEAT, destination=f"other{gno % 50}")))
        binlog.event(16, gno.to_bytes(8, "little"))
    data = bytes(binlog.packets)
    python = native_differential.outcome(data, plain(), None, WHOLE)
    with mock.patch.object(Transactions, "commit", autospec=True, side_effect=Transactions.commit) as committed:
        native_code = native_differential.outcome(data, plain(), MODULE, WHOLE)
    assert python == native_code
    assert native_code.count(("heartbeat", BEAT)) == 1
    assert f"'own_gtids': '{SID}:1-300'" in str(native_code)
    assert committed.call_count < 10, "Python has read the first one and ours"


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
    output = MODULE.Output("uuid", 1, 0, 400, False, False, 1 << 20)
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
def test_tables_that_are_counted_with_others_have_one_counter_together() -> None:
    totals, config = TableTotals(limit=2), plain()
    totals.add(TableRows("shop", "t9", inserted=1))  # in an earlier run
    for more in ([("shop", f"t{number}") for number in range(4)], []):
        builder = make_builder(config, new_format(config), "server", 1, MODULE)
        assert builder.native is not None
        builder.native.named = totals.named
        column = Column("id", "int", 4)
        for number in (*range(100), *range(100)):
            builder.native.table(TableSchema("shop", f"t{number}", (column,), (0,)), [("int", 4, True)])
        known = [("", ""), ("shop", "t9")] if more else [("", ""), ("shop", "t5"), ("shop", "t9")]
        assert builder.native._counted == [*more, *known], "some may have no rows that are published"
        totals.add(TableRows("shop", "t5", inserted=1))


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
def test_python_reads_no_event_of_usual_transactions(version: bytes, unhurried: None) -> None:
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
