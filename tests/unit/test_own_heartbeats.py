"""Our own heartbeats in the stream: seen whatever the server writes of them, never published, known as our own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import zstandard

from headrace.errors import NotUnderstood
from headrace.model import Position, RowsChange
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.gtid import GtidSet
from headrace.ports.source import Heartbeat
from tests.made_binlog import SID, Binlog, close_all, decoder, feed
from tests.own_tables import BEAT, MINIMAL, image, own_rows, own_table
from tests.unit.test_compressed import captured, payload


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def beating(log: Binlog, gno: int, *, kind: int = 31, **table: Any) -> None:
    """A transaction that writes BEAT."""
    log.gtid(gno, 1_700_000_000_000_000 + gno)
    log.query("BEGIN")
    own_table(log, **table)
    before = [image(replace(BEAT, sequence=16))] if kind == 31 else []
    own_rows(log, *before, image(BEAT), kind=kind)
    log.event(16, struct.pack("<Q", gno))


def read(log: Binlog, start: Position | None = None) -> tuple[Any, list[Heartbeat], list[RowsChange]]:
    heartbeats, changes = list[Heartbeat](), list[RowsChange]()
    d = decoder(changes, start, heartbeat=heartbeats.append)
    feed(d, bytes(log.packets))
    return d, heartbeats, changes


@pytest.mark.parametrize("kind", [30, 31])
@pytest.mark.parametrize("metadata", [MINIMAL, b""])
def test_a_heartbeat_is_seen_without_column_names_and_is_not_published(kind: int, metadata: bytes) -> None:
    log = Binlog().begin_file()
    beating(log, 1, kind=kind, metadata=metadata)
    d, heartbeats, changes = read(log)
    assert (heartbeats, changes) == ([BEAT], [])
    assert (d.position().own_gtids, d.position().gtid_set) == (f"{SID}:1", f"{SID}:1")


def test_a_deleted_row_is_no_heartbeat_and_its_transaction_still_our_own() -> None:
    log = Binlog().begin_file()
    beating(log, 1, kind=32)
    d, heartbeats, _ = read(log)
    assert heartbeats == []
    assert d.position().own_gtids == f"{SID}:1"


@pytest.mark.parametrize(
    "broken",
    [
        lambda log: (own_table(log), own_rows(log, image(BEAT), columns=b"\x0f")),
        lambda log: (own_table(log), own_rows(log, image(BEAT), count=4)),
        lambda log: (own_table(log, nulls=b"\x0f"), own_rows(log, image(BEAT))),
        lambda log: (own_table(log, b"other"), own_rows(log, b"whatever")),
        lambda log: (own_table(log), own_rows(log, image(BEAT)[:-3])),
        lambda log: (own_table(log), own_rows(log, image(BEAT).replace(b"node", b"n\xe9de"))),
    ],
    ids=["image lacks a column", "fewer columns", "other columns", "another table", "cut off", "latin1"],
)
def test_a_row_that_is_not_our_kind_of_heartbeat_is_ignored(broken: Any) -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1)
    log.query("BEGIN")
    broken(log)
    log.event(16, bytes(8))
    log.transaction(2, 2, [(1, "a")])
    d, heartbeats, changes = read(log)
    assert heartbeats == []
    assert [change.rows for change in changes] == [[(1, "a")]]
    assert d.position().own_gtids == f"{SID}:1"


def test_a_heartbeat_within_a_compressed_transaction_is_seen_and_its_transaction_our_own() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1)
    events = captured(
        log,
        lambda: log.query("BEGIN"),
        lambda: own_table(log),
        lambda: own_rows(log, image(BEAT)),
        lambda: log.event(16, bytes(8)),
    )
    log.event(40, payload(events))
    d, heartbeats, _ = read(log)
    assert heartbeats == [BEAT]
    assert d.position().own_gtids == f"{SID}:1"
    assert zstandard.__version__


def test_a_transaction_that_changes_anything_else_too_is_not_our_own() -> None:
    for also in ("t", "dropped"):
        log = Binlog().begin_file()
        log.gtid(1, 1)
        log.query("BEGIN")
        own_table(log)
        own_rows(log, image(BEAT))
        log.table(also)
        log.insert((1, "a"))
        log.event(16, bytes(8))
        d, heartbeats, _ = read(log)
        assert heartbeats == [BEAT]
        assert d.position().own_gtids == "", also


def test_after_a_restart_within_a_transaction_a_heartbeat_is_not_seen_twice_and_it_is_still_our_own() -> None:
    log = Binlog().begin_file()
    begin, packet = log.at, len(log.packets)
    log.gtid(5, 1)
    log.query("BEGIN")
    for _ in range(2):
        own_table(log)
        own_rows(log, image(BEAT))
    log.event(16, bytes(8))
    start = Position("server", "b.000001", begin, f"{SID}:1-4", events_done=1, own_gtids=f"{SID}:3")
    del log.packets[:packet]
    d, heartbeats, _ = read(log, start)
    assert heartbeats == [BEAT]
    assert d.position().own_gtids == f"{SID}:3:5"


def test_heartbeats_before_the_position_where_reading_begins_are_not_seen() -> None:
    log = Binlog().begin_file()
    beating(log, 1)
    wanted = log.at
    beating(log, 2)
    heartbeats = list[Heartbeat]()
    d = decoder([], Position("server", "b.000001", wanted), heartbeat=heartbeats.append, skip_before=wanted)
    feed(d, bytes(log.packets))
    assert heartbeats == [BEAT]


def test_only_the_newest_own_transactions_are_remembered() -> None:
    log = Binlog().begin_file()
    for number in range(1, 201, 2):  # somebody else writes in between
        beating(log, number)
        log.transaction(number + 1, number, [(number, "a")])
    d, _, _ = read(log)
    own = GtidSet(d.position().own_gtids)
    assert (own.intervals, own.count) == (64, 64)
    assert own.contains(GtidSet(f"{SID}:199"))


def test_without_gtids_no_own_ones_are_stored() -> None:
    log = Binlog().begin_file()
    log.query("BEGIN")
    own_table(log)
    own_rows(log, image(BEAT))
    log.event(16, bytes(8))
    assert read(log)[0].position().own_gtids == ""


def test_rows_of_a_table_that_was_not_described_before_them_stop_the_decoder() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1)
    log.query("BEGIN")
    own_rows(log, image(BEAT))
    with pytest.raises(NotUnderstood, match="not described before them"):
        read(log)


@pytest.mark.parametrize("name", ["shop", "sho", "shop2", "other"])
def test_heartbeats_of_others_are_ignored_and_their_transactions_count_as_own(name: str) -> None:
    log = Binlog()
    beating(log, 1)
    heartbeats = list[Heartbeat]()
    options = DecoderOptions(destination=name.encode())
    d = decoder([], None, heartbeat=heartbeats.append, options=options)
    feed(d, bytes(log.packets))
    # Whose it is decides the receiver; a name within another one is looked at.
    assert heartbeats == ([BEAT] if name in BEAT.destination else [])
    assert d.position().own_gtids == f"{SID}:1"
