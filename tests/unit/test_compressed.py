"""Compressed transactions and events: read as a stream, through files when large, and refused when they lie."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NotUnderstood
from headrace.model import Position, RowsChange
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.inner import open_payload
from headrace.mysql.values.mariadb import decompressed_event
from tests.made_binlog import SID, Binlog, captured, close_all, decoder, feed, inner, payload


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def rows_of(changes: list[RowsChange]) -> list[Any]:
    return [row for change in changes for row in change.rows]


def compressed(log: Binlog, **how: Any) -> None:
    """A transaction of two rows, compressed."""
    log.gtid(1, 1_700_000_000_000_000)
    events = captured(log, lambda: log.query("BEGIN"), log.table, lambda: log.insert((1, "a"), (2, None)))
    log.event(40, payload(events + inner(16, struct.pack("<Q", 9)), **how))


@pytest.mark.parametrize("how", [{}, {"algorithm": 255}, {"frames": 3}])
def test_a_compressed_transaction_is_read_and_the_position_is_after_it(how: dict[str, int]) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    compressed(log, **how)
    d = decoder(changes)
    feed(d, bytes(log.packets))
    assert rows_of(changes) == [(1, "a"), (2, None)]
    assert d.position() == Position(
        "server",
        "b.000001",
        log.at,
        f"{SID}:1",
        last_pos=changes[0].pos + 1,
        commit_time_us=1_700_000_000_000_000,
        last_transaction="b.000001:125",
    )


@pytest.mark.parametrize("how", [{"said": 10}, {"said": 1 << 60}, {"algorithm": 7}])
def test_a_compressed_transaction_that_lies_stops(how: dict[str, int]) -> None:
    log = Binlog().begin_file()
    compressed(log, **how)
    with pytest.raises(NotUnderstood, match=r"at b\.000001:\d+: .*(event|algorithm)"):
        feed(decoder([]), bytes(log.packets))


def test_a_compressed_transaction_of_many_packets_goes_through_a_file(tmp_path: Path) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.packets.clear()
    begin = captured(log, lambda: log.query("BEGIN"), log.table)
    one = captured(log, lambda: log.insert((1, "x" * 150)))
    events = begin + one * 90_000 + inner(16, struct.pack("<Q", 9))
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    body = payload(events, algorithm=255)
    raw = struct.pack("<IBIIIH", 1_700_000_000, 40, 1, 23 + len(body), log.at + 23 + len(body), 0) + body
    raw = b"\0" + raw + struct.pack("<I", zlib.crc32(raw))
    stream = bytes(log.packets) + b"".join(
        len(part).to_bytes(3, "little") + b"\0" + part
        for part in (raw[i : i + 0xFFFFFF] for i in range(0, len(raw) + 1, 0xFFFFFF))
    )
    d = decoder(changes, options=DecoderOptions(spool=tmp_path))
    feed(d, stream, iter(lambda: 1_000_003, 0))
    assert len(changes) == 90_000
    assert d.position().offset == log.at + 23 + len(body)
    assert not list(tmp_path.iterdir()), "the file has no name"


def test_a_broken_compressed_transaction_that_is_skipped_is_counted_as_executed() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    at = log.at
    events = captured(log, lambda: log.query("BEGIN"), log.table, lambda: log.event(99, b"?"))
    log.event(40, payload(events))
    log.transaction(2, 1_700_000_000_000_000, [(2, "behind")])
    d = decoder(changes, options=DecoderOptions(skip_events=frozenset({f"b.000001:{at}"})))
    feed(d, bytes(log.packets))
    assert rows_of(changes) == [(2, "behind")]
    assert d.position().gtid_set == f"{SID}:1-2"


def test_mariadb_s_compressed_part_that_lies_is_refused() -> None:
    packed = zlib.compress(b"rows" * 100)
    assert decompressed_event(b"\x82\x01\x90" + packed, 0, 3 + len(packed)) == b"rows" * 100
    for head in (b"\x82\x01\x91", b"\x82\x00\x10", b"\x92\x01\x90", b"\x80", b"\x85\0\0\0\0\0"):
        with pytest.raises(ValueError, match="compressed"):
            decompressed_event(head + packed, 0, len(head) + len(packed))


def test_two_compressed_transactions_are_read_at_a_time_also_after_one_was_closed_twice() -> None:
    one = inner(99, b"x" * 100_000)
    body = payload(one * 20)
    closed = open_payload(io.BytesIO(body), len(body))
    closed.close()
    closed.close()
    both = [open_payload(io.BytesIO(body), len(body)) for _ in range(2)]
    for _ in range(20):
        for events in both:
            event = events.peek()
            assert event is not None
            assert event[3][event[4] : event[5]] == b"x" * 100_000
            events.advance()
    assert [events.peek() for events in both] == [None, None]


def test_compressed_transactions_that_came_together_are_read_together(unhurried: None) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    for _ in range(3):
        compressed(log)
    d = decoder(changes)
    assert d.feed(bytes(log.packets), 0, lambda: False) == (len(log.packets), False), "a batch each would be slow"
    assert rows_of(changes) == [(1, "a"), (2, None)] * 3


def test_a_payload_of_another_size_than_it_says_stops() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.event(40, payload(inner(16, bytes(8))) + b"more")
    with pytest.raises(NotUnderstood, match="says it has"):
        feed(decoder([]), bytes(log.packets))
