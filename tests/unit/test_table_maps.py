"""Tables by their numbers, which the server gives anew for ever: what is remembered of them is bounded."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from unittest import mock

import pytest

from headrace.model import RowsChange, TableSchema
from headrace.mysql import table_maps
from headrace.mysql.values import column_types as ct
from headrace.ports.format import per_schema
from tests.made_binlog import Binlog, close_all, decoder, feed
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


def test_what_is_made_of_a_table_schema_is_kept_for_two_schemas_of_a_table() -> None:
    made: list[str] = []
    of = per_schema(lambda schema: made.append(schema.table) or schema.table)
    schemas = [TableSchema("shop", f"t{i % 3}", (), ()) for i in range(300)]
    for schema in schemas:
        assert of(schema) == schema.table
        assert of(schema) == schema.table
    assert len(made) == 300
    kept = next(cell.cell_contents for cell in of.__closure__ or () if isinstance(cell.cell_contents, dict))
    assert len(kept) <= 6
