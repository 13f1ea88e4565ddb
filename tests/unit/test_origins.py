"""A change says where it stands: file, transaction, event, its number there, and who made it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.model import Origin, Position, RowsChange, SchemaChange, TransactionMark
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.schema.history import SchemaHistory
from tests.made_binlog import Binlog, close_all, decoder, feed


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def history() -> SchemaHistory:
    return SchemaHistory(lambda s, t: True, mariadb=False, version="9.7.4", lower_case_table_names=0)


def test_rows_statements_and_marks_have_the_position_of_their_event() -> None:
    log, reported = Binlog().begin_file(), list[Any]()
    first = log.at
    log.gtid(1, 1_700_000_000_000_000)
    begin = log.at
    log.query("BEGIN")
    begun = log.at - begin
    events = []
    for row in ((1, "a"), (2, "b")):
        log.table()
        events.append(log.at)
        log.insert(row)
    size, end = log.at - events[1], log.at
    log.event(16, (99).to_bytes(8, "little"))
    second = log.at
    log.gtid(2, 1_700_000_000_000_001)
    ddl = log.at
    log.query("CREATE TABLE u (id INT PRIMARY KEY)")
    made = decoder(reported, statement=reported.append, mark=reported.append, history=history())
    feed(made, bytes(log.packets))
    when, table = 1_700_000_000, 7
    expected = [
        (TransactionMark, Origin("b.000001", first, begin, 0, 0, 0, begun, when)),
        (RowsChange, Origin("b.000001", first, events[0], 1, 0, 0, size, when, table)),
        (RowsChange, Origin("b.000001", first, events[1], 2, 0, 0, size, when, table)),
        (TransactionMark, Origin("b.000001", first, end, 2, 0, 0, second - end, when)),
        (SchemaChange, Origin("b.000001", second, ddl, 0, 0, 0, log.at - ddl, when)),
    ]
    assert [(type(item), item.origin) for item in reported] == expected
    assert [item.xid for item in reported if isinstance(item, TransactionMark)] == [0, 99]


def test_rows_of_a_table_that_nobody_wants_count_too() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    for name in ("dropped", "t", "dropped", "t"):
        log.table(name)
        log.insert((1, "a"))
    feed(decoder(changes), bytes(log.packets))
    assert [change.origin.ordinal for change in changes] == [2, 4]


def test_a_restart_within_a_transaction_gives_the_rest_the_same_origins() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    start, packet = log.at, len(log.packets)
    log.transaction(1, 1_700_000_000_000_000, [(1, "a")], [(2, "b")], [(3, "c")])
    feed(decoder(changes), bytes(log.packets))
    again = list[RowsChange]()
    feed(decoder(again, Position("server", "b.000001", start, events_done=2)), bytes(log.packets[packet:]))
    assert [change.origin for change in again] == [changes[2].origin]


def test_rows_of_an_xa_transaction_have_the_position_of_its_commit() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("XA START X'61',X'',1")
    log.table()
    log.insert((1, "held"))
    log.query("XA END X'61',X'',1")
    log.event(38, struct.pack("<BiII", 0, 1, 1, 0) + b"a")
    group = log.at
    log.gtid(2, 1_700_000_000_000_001)
    event = log.at
    log.query("XA COMMIT X'61',X'',1")
    feed(decoder(changes), bytes(log.packets))
    places = [(one.origin.transaction, one.origin.offset, one.origin.ordinal) for one in changes]
    assert places == [(group, event, 1)]


def test_the_parts_of_a_change_keep_its_origin() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.transaction(1, 1_700_000_000_000_000, [(1, "a"), (2, "b"), (3, "c")])
    feed(decoder(changes, options=DecoderOptions(origins=True)), bytes(log.packets))
    (change,) = changes
    assert {part.origin for part in change.parts(1)} == {change.origin}
    assert (change.origin.server_id, change.origin.thread) == (1, 1)


def test_rows_after_a_skipped_gtid_are_skipped_too() -> None:
    """They would look like those of the transaction before: MariaDB begins one with nothing else."""
    log, changes = Binlog().begin_file(), list[RowsChange]()
    places = []
    for number in (1, 2, 3):
        places.append(log.at)
        log.event(162, struct.pack("<QIB", number, 0, 2) + bytes(6) if number != 2 else b"broken")
        log.table()
        log.insert((number, "a"))
        log.event(16, bytes(8))
    feed(decoder(changes, options=DecoderOptions(skip_events=frozenset({f"b.000001:{places[1]}"}))), bytes(log.packets))
    assert [(change.gtid, change.origin.transaction) for change in changes] == [
        ("0-1-1", places[0]),
        ("0-1-3", places[2]),
    ]
