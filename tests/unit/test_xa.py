"""XA transactions: held from PREPARE, given out at COMMIT, read again after a restart; bounded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.errors import NotUnderstood
from headrace.model import OpenXa, Position, RowsChange
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.xa import xid_of_statement
from tests.made_binlog import SID, Binlog, close_all, decoder, feed


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def rows_of(changes: list[RowsChange]) -> list[Any]:
    return [row for change in changes for row in change.rows]


def test_rows_of_a_prepared_transaction_are_bounded() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1)
    log.query("XA START X'61',X'',1")
    log.table()
    for number in range(40):
        log.insert((number, "x" * 100))
    with pytest.raises(NotUnderstood, match="more than 2000 bytes"):
        feed(decoder([], options=DecoderOptions(max_spool=2000)), bytes(log.packets))


def test_a_restart_reads_the_rows_of_open_xa_transactions_again_by_gtid_and_by_position() -> None:
    def prepared(log: Binlog) -> None:
        log.gtid(5, 1_700_000_000_000_000)
        log.query("XA START X'61',X'',1")
        log.table()
        log.insert((1, "held"))
        log.query("XA END X'61',X'',1")
        log.event(38, struct.pack("<BiII", 0, 1, 1, 0) + b"a")

    def committed(log: Binlog) -> None:
        log.gtid(7, 1_700_000_000_000_002)
        log.query("XA COMMIT X'61',X'',1")

    log, changes = Binlog().begin_file(), list[RowsChange]()
    where = log.at
    prepared(log)
    log.transaction(6, 1_700_000_000_000_001, [(2, "plain")])
    d = decoder(changes)
    feed(d, bytes(log.packets))
    position = d.position()
    assert rows_of(changes) == [(2, "plain")]
    assert position.open_xa == (OpenXa("1:61:", "b.000001", where, f"{SID}:5"),)
    committed(log)
    # By place the dump begins at the prepared transaction again; what lies between is passed.
    again: list[RowsChange] = []
    d = decoder(again, Position("server", "b.000001", position.offset, open_xa=position.open_xa, last_pos=77))
    feed(d, bytes(log.packets))
    assert rows_of(again) == [(1, "held")]
    assert d.position().open_xa == ()
    # By GTID the source sends only what is not in the set.
    short = Binlog().begin_file()
    prepared(short)
    committed(short)
    again = []
    d = decoder(again, position)
    feed(d, bytes(short.packets))
    assert rows_of(again) == [(1, "held")]
    assert d.position().gtid_set == f"{SID}:5-7"


def test_an_open_xa_transaction_that_the_source_lost_stops() -> None:
    log = Binlog().begin_file()
    log.transaction(9, 1_700_000_000_000_000, [(1, "a")])
    start = Position("server", "b.000001", 4, f"{SID}:1-8", open_xa=(OpenXa("1:61:", "b.000000", 99, f"{SID}:5"),))
    with pytest.raises(NotUnderstood, match=r"1:61:.*not in the binlog"):
        feed(decoder([], start), bytes(log.packets))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"XA COMMIT X'7831',X'',1", (True, "1:7831:")),
        (b"xa rollback x'7832', X'6B', -7", (False, f"{2**32 - 7}:7832:6b")),
    ],
)
def test_the_xid_of_a_decision_is_read(text: bytes, expected: tuple[bool, str]) -> None:
    assert xid_of_statement(text) == expected


def xa_transaction(log: Binlog, gno: int, name: str, *rows: tuple[int, str | None], decision: str = "") -> None:
    """Prepared, and decided when `decision` is COMMIT or ROLLBACK; with `ONE PHASE` it is not prepared before."""
    xid = f"X'{name.encode().hex()}',X'',1"
    log.gtid(gno, 1_700_000_000_000_000)
    log.query(f"XA START {xid}")
    log.table()
    log.insert(*rows)
    log.query(f"XA END {xid}")
    log.event(38, struct.pack("<BiII", decision == "ONE PHASE", 1, len(name), 0) + name.encode())
    if decision in ("COMMIT", "ROLLBACK"):
        log.gtid(gno + 1, 1_700_000_000_000_000)
        log.query(f"XA {decision} {xid}")


def test_rows_of_xa_transactions_come_when_they_are_decided() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    xa_transaction(log, 1, "a", (1, "kept"), decision="COMMIT")
    xa_transaction(log, 3, "b", (2, "dropped"), decision="ROLLBACK")
    xa_transaction(log, 5, "c", (3, "kept"), decision="ONE PHASE")
    xa_transaction(log, 6, "d", (4, "open"))
    d = decoder(changes)
    feed(d, bytes(log.packets))
    assert rows_of(changes) == [(1, "kept"), (3, "kept")]
    assert [xa.xid for xa in d.position().open_xa] == ["1:64:"]
    assert d.position().gtid_set == f"{SID}:1-6"


def test_decided_xa_transactions_give_their_room_back() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    for number in range(30):
        decision = "COMMIT" if number % 2 else "ROLLBACK"
        xa_transaction(log, 1 + 2 * number, "same", (number, "x" * 100), decision=decision)
    feed(decoder(changes, options=DecoderOptions(max_spool=500)), bytes(log.packets))
    assert len(changes) == 15


def test_the_commit_of_an_xa_transaction_that_nobody_saw_prepared_stops() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1)
    log.query("XA COMMIT X'61',X'',1")
    with pytest.raises(NotUnderstood, match="prepared before headrace began to read"):
        feed(decoder([]), bytes(log.packets))
    log = Binlog().begin_file()
    log.gtid(1, 1)
    log.query("XA ROLLBACK X'61',X'',1")
    feed(decoder([]), bytes(log.packets))
