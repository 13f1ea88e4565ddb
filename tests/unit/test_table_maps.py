"""Tables by their numbers, which the server gives anew for ever: what is remembered of them is bounded."""

from __future__ import annotations

import gc
import random
import struct
import weakref
from collections.abc import Iterator
from unittest import mock

import pytest

from headrace.cli.wiring import new_format
from headrace.model import RowsChange, TableSchema
from headrace.mysql import table_maps
from headrace.mysql.decoder import Decoder
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.schema import comparison
from headrace.mysql.schema.comparison import SchemaComparison
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.schema.states import ALWAYS
from headrace.mysql.values import column_types as ct
from headrace.pipeline.message_builder import make_builder
from headrace.pipeline.table_projection import TableProjection
from headrace.ports.format import per_schema
from headrace.ports.source import Receiver
from headrace.settings.daemon import DaemonSettings
from tests.made_binlog import Binlog, close_all, decoder, feed
from tests.native_differential import events_of
from tests.native_ways import WHOLE, read_whole, settings_of
from tests.random_tables import Column, Table


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def table_of(name: str, number: int) -> Table:
    return Table(random.Random(1), name, number, [Column(ct.LONG, b"", ct.LONG, 4)], [0])


def write(log: Binlog, gno: int, *tables: Table) -> None:
    """A transaction whose statement describes all tables first, and then has a row of each."""
    log.gtid(gno, 1_700_000_000_000_000 + gno)
    log.query("BEGIN")
    for one in tables:
        log.event(19, one.body())
    for one in tables:
        log.event(30, one.event(30, [b"\0" + struct.pack("<i", gno)]))
    log.event(16, struct.pack("<Q", gno))


@pytest.mark.parametrize("names", [1, 30])
def test_numbers_that_grow_for_ever_take_no_memory(names: int) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    for gno in range(1, 400):
        write(log, gno, table_of(f"t{gno % names}", 100 + gno))
    with mock.patch.multiple(table_maps, _MAPS=8, _NUMBERS=8):
        d = decoder(changes)
        feed(d, bytes(log.packets))
        maps = d.maps
        assert len(maps.tables) + len(maps._older) <= 16
        assert len(maps._maps) + len(maps._older_maps) <= 16
    assert [row[0] for change in changes for row in change.rows] == list(range(1, 400))


def test_a_table_that_a_statement_has_described_is_known_whatever_it_describes_after_it() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    for gno in range(1, 60):
        write(
            log, gno, table_of("a", 1), *(table_of(f"t{i}", 1000 * gno + i) for i in range(gno % 7)), table_of("b", 2)
        )
    with mock.patch.multiple(table_maps, _MAPS=8, _NUMBERS=8):
        feed(decoder(changes), bytes(log.packets))
    assert sum(len(change.rows) for change in changes) == sum(gno % 7 + 2 for gno in range(1, 60))
    assert {change.schema.table for change in changes} >= {"a", "b", "t5"}


def test_a_table_in_use_is_not_made_again_while_others_come_and_go() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    for gno in range(1, 100):
        write(log, gno, table_of("a", gno))
        write(log, 1000 + gno, table_of(f"t{gno}", 5000 + gno))
    with mock.patch.multiple(table_maps, _MAPS=8, _NUMBERS=8):
        feed(decoder(changes), bytes(log.packets))
    assert len({id(change.schema) for change in changes if change.schema.table == "a"}) == 1


def test_names_of_tables_that_come_and_go_are_forgotten_with_them() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    names = ["kept", *(f"t{number}" for number in range(300))]
    for number, name in enumerate(names):
        log.gtid(2 * number + 1, 1_700_000_000_000_000)
        log.query(f"CREATE TABLE {name} (a int)")
        log.gtid(2 * number + 2, 1_700_000_000_000_000)
        log.query("BEGIN")
        for one in {"kept": 1000 + number, name: number}.items():
            body = one[1].to_bytes(6, "little") + b"\1\0\4shop\0" + bytes([len(one[0])]) + one[0].encode() + b"\0"
            log.event(19, body + b"\1\3\0\1")
            log.event(30, one[1].to_bytes(6, "little") + b"\1\0\2\0\1\xff\0" + struct.pack("<i", number))
        log.event(16, struct.pack("<Q", number))
        if name != "kept":
            log.gtid(1000 + number, 1_700_000_000_000_000)
            log.query(f"DROP TABLE {name}")
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    compared = SchemaComparison("shop", mock.Mock(), history)
    with mock.patch.object(table_maps, "_NUMBERS", 20), mock.patch.object(comparison, "_FORGET_FROM", 20):
        compared._most = 20
        d = decoder(changes, history=history, comparison=compared)
        data, done = bytes(log.packets), 0
        while done < len(data):
            done, _ = d.feed(data, done, lambda: False)
            if d.described.wanted:
                d.described.learned()
    assert len(changes) == 601
    for held in (d.maps._ids, compared._nameless, compared._agreed):
        assert len(held) < 50
    assert "shop.kept" in d.maps._ids
    assert ("shop", "kept") in compared._nameless


def test_a_table_whose_schema_was_read_needs_no_comparison_up_to_where_the_binlog_ended_then() -> None:
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    compared, name = SchemaComparison("shop", mock.Mock(), history), ("shop", "t")
    assert compared.agreed_until(name, "b.000002") == 0
    compared.agree({name}, ("b.000002", 500))
    assert [compared.agreed_until(name, f"b.00000{number}") for number in (1, 2, 3)] == [ALWAYS, 500, 0]
    assert compared.agreed(name, ("b.000002", 500))
    assert not compared.agreed(name, ("b.000002", 501))


class Made:
    """Refers to its schema, as projections do."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema


def test_what_is_made_of_a_table_schema_is_made_once_and_lasts_as_long_as_the_schema() -> None:
    of, other = per_schema(Made), per_schema(lambda schema: schema.table if schema.keys else None)
    schema = TableSchema("shop", "t", (), ())
    made = weakref.ref(of(schema))
    assert of(schema) is made() is not of(TableSchema("shop", "t", (), ()))
    assert (other(schema), len(schema.derived)) == (None, 2)
    del schema
    gc.collect()
    assert made() is None


@pytest.mark.parametrize("message", [{}, {"format": "canal-protobuf"}, {"format": "debezium"}, {"format": "maxwell"}])
def test_of_tables_with_new_names_that_are_dropped_again_nothing_is_left(message: dict[str, str]) -> None:
    config, log = settings_of(message), Binlog().begin_file()
    builder = make_builder(config, new_format(config), "server", 5)
    log.query("CREATE DATABASE shop CHARACTER SET utf8mb4")
    for number in range(50):
        log.query(f"CREATE TABLE own{number} (id INT PRIMARY KEY)")
        write(log, number + 1, table_of(f"own{number}", 100 + number))
        log.query(f"DROP TABLE own{number}")
    history = SchemaHistory(lambda *_: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
    gc.collect()
    before = _projections()
    into = Receiver(rows=builder.emit, large=builder.emit_large, statement=builder.emit_schema)
    options = DecoderOptions.of(config, DaemonSettings())
    reader = Decoder(WHOLE.start, into, captures=builder.captures, history=history, options=options)
    read_whole(reader, bytes(log.packets))
    assert sum(batch.rows for batch in builder.take(reader.position(), 0.0)) == 50
    gc.collect()
    assert _projections() - before < 3


def _projections() -> int:
    return sum(isinstance(one, TableProjection) for one in gc.get_objects())


def test_tables_with_the_same_columns_share_their_decoder() -> None:
    """Most of the memory of a table is its decoder: many schemas with the same tables are a usual thing."""
    log, changes = Binlog().begin_file(), list[RowsChange]()
    write(log, 1, *(table_of(f"t{number}", 100 + number) for number in range(3)))
    d = decoder(changes)
    feed(d, bytes(log.packets))
    made = [one for table in d.maps.tables.values() for one in table.decoders.values()]
    assert len(made) == len(changes) == 3
    assert len(set(made)) == 1


def test_tables_of_one_statement_are_known_while_others_of_it_are_learned() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    write(log, 1, *(table_of(name, number) for number, name in enumerate("abc", 1)))
    d = decoder(changes)
    for at, kind, _ in events_of(bytes(log.packets)):
        feed(d, one_packet(bytes(log.packets), at))
        if kind == 19:
            d.refresh()  # as after a schema was read
    assert [change.schema.table for change in changes] == ["a", "b", "c"]


def one_packet(data: bytes, at: int) -> bytes:
    return data[at : at + 4 + int.from_bytes(data[at : at + 3], "little")]
