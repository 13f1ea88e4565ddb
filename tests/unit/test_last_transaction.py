"""The place of the last transaction in a position: wherever a stream is cut, the server still shows the same there."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import pytest

from headrace.model import OpenXa, Position, RowsChange
from headrace.mysql.position.scans import Begins
from tests.made_binlog import SID, Binlog, close_all, decoder, feed

Write = Callable[[Binlog], None]
WHEN = 1_700_000_000_000_000


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def pieces(log: Binlog) -> list[bytes]:
    """The stream's packets."""
    data, at, found = bytes(log.packets), 0, list[bytes]()
    while at < len(data):
        size = 4 + int.from_bytes(data[at : at + 3], "little")
        found.append(data[at : at + size])
        at += size
    return found


def on_server(log: Binlog, place: str) -> int | None:
    """The commit time of the transaction that begins at a place of the stream, as the opening looks for it."""
    file, _, offset = place.rpartition(":")
    scan = Begins(file, 4, int(offset))
    scan.cursor.checksums = True
    inside = False
    for packet in pieces(log):
        if packet[9] == 4 and not any(packet[18:22]):  # the ROTATE that opens a file in a dump
            inside = packet[5 + 19 + 8 : -4].decode() == file
        at, more = 0, inside
        while more and not scan.done:
            at, more = scan.feed(packet, at, lambda: False)
    return scan.found


def with_gtids(log: Binlog) -> None:
    for number in (1, 2, 3):
        log.transaction(number, WHEN + number, [(number, "a")], [(number, "b")])


def several_files(log: Binlog) -> None:
    with_gtids(log)
    log.event(4, struct.pack("<Q", 4) + b"b.000002")
    log.at = 4
    log.begin_file("b.000002")
    log.transaction(4, WHEN + 9, [(4, "a")])
    log.event(3, b"")
    log.at = 4
    log.begin_file("b.000003")
    log.transaction(5, WHEN + 10, [(4, "a")])


def statements(log: Binlog) -> None:
    log.gtid(1, WHEN)
    log.query("CREATE TABLE u (id INT PRIMARY KEY)")
    log.transaction(2, WHEN + 5, [(1, "a")])
    log.gtid(3, WHEN + 7)
    log.query("DROP TABLE u")


def xa(log: Binlog) -> None:
    log.gtid(1, WHEN)
    log.query("XA START X'61',X'',1")
    log.table()
    log.insert((1, "held"))
    log.query("XA END X'61',X'',1")
    log.event(38, struct.pack("<BiII", 0, 1, 1, 0) + b"a")
    log.transaction(2, WHEN + 5, [(2, "a")])
    log.gtid(3, WHEN + 6)
    log.query("XA COMMIT X'61',X'',1")


def without_gtids(log: Binlog) -> None:
    for number in range(3):
        for kind, body in ((2, "BEGIN"), (0, ""), (16, "")):
            if kind == 2:
                log.event(
                    2, struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + body.encode(), when=1_700_000_000 + number
                )
            elif kind == 16:
                log.event(16, bytes(8), when=1_700_000_100)
            else:
                log.table()
                log.insert((number, "a"))


def mariadb(log: Binlog) -> None:
    for number in range(3):  # all within one second
        log.event(162, struct.pack("<QIB", number + 1, 0, 2) + bytes(6))
        log.table()
        log.insert((number, "a"))
        log.event(16, bytes(8))
        log.event(161, struct.pack("<I", 8) + b"b.000001")


def beyond_4_gib(log: Binlog) -> None:
    with_gtids(log)
    log.at = (1 << 32) - 100  # the packets between are left out
    log.transaction(4, WHEN + 9, [(4, "a")])
    log.transaction(5, WHEN + 10, [(5, "a")])


@pytest.mark.parametrize("write", [with_gtids, several_files, statements, xa, without_gtids, mariadb])
def test_position_and_commit_time_match_wherever_the_stream_ends(write: Write) -> None:
    log = Binlog().begin_file()
    write(log)
    changes = list[RowsChange]()
    d = decoder(changes)
    seen = list[str]()
    for packet in pieces(log):
        feed(d, packet)
        position = d.position()
        if position.last_transaction:
            assert on_server(log, position.last_transaction) == position.commit_time_us, position
            seen.append(position.last_transaction)
    assert len(set(seen)) >= 3
    # and a decoder that begins at any of these positions knows them from the start
    assert decoder([], position).position() == position


def test_a_position_beyond_4_gib_is_not_truncated() -> None:
    log = Binlog().begin_file()
    beyond_4_gib(log)
    d = decoder([])
    feed(d, bytes(log.packets))
    assert int(d.position().last_transaction.rpartition(":")[2]) > 1 << 32


def test_a_restart_that_breaks_off_before_new_rows_loses_nothing_of_what_was_done() -> None:
    log = Binlog().begin_file()
    begin, packet = log.at, len(log.packets)
    log.gtid(4, WHEN)
    log.query("BEGIN")
    for number in range(4):
        log.table()
        log.insert((number, "a"))
    log.event(16, bytes(8))
    before = {"last_transaction": "b.000001:77", "commit_time_us": WHEN - 9, "last_pos": 5}
    start = Position("server", "b.000001", begin, f"{SID}:1-3", events_done=2, **before)  # type: ignore[arg-type]
    changes = list[RowsChange]()
    d = decoder(changes, start)
    at = 0
    done = list[int]()
    for part in pieces(log)[2:]:
        at += len(part)
        feed(d, part)
        position = d.position()
        if position.offset == begin:
            assert (position.last_transaction, position.commit_time_us) == ("b.000001:77", WHEN - 9)
            done.append(position.events_done)
    assert at == len(log.packets) - packet
    assert done == [2, 2, 2, 2, 2, 2, 2, 3, 3, 4]
    assert [row[0] for change in changes for row in change.rows] == [2, 3]


def test_reading_rows_of_a_prepared_transaction_again_does_not_move_the_position_past_the_start() -> None:
    log = Binlog().begin_file()
    xa(log)
    d = decoder([])
    packets = pieces(log)
    for packet in packets[:-2]:
        feed(d, packet)
    start = d.position()
    assert start.open_xa[0].gtid == f"{SID}:1"
    again = decoder([], start)
    held: OpenXa = start.open_xa[0]
    assert held.offset < start.offset
    for packet in packets[:8]:  # by GTID the source sends the prepared transaction first
        feed(again, packet)
        assert again.position() == start


def test_a_dump_by_gtids_that_begins_with_the_file_stores_no_place_before_its_start() -> None:
    start = Position("server", "b.000002", 900, f"{SID}:1-3")
    log = Binlog().begin_file("b.000001")
    read = decoder([], start)
    feed(read, bytes(log.packets))
    assert (read.position().file, read.position().offset) == ("b.000002", 900)
    log.packets.clear()
    log.transaction(4, 1_700_000_000_000_004, [(4, "row")])
    feed(read, bytes(log.packets))
    position = read.position()
    assert (position.file, position.offset, position.gtid_set) == ("b.000001", log.at, f"{SID}:1-4")
