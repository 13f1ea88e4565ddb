"""Scans of hand-made binlogs: where transactions begin on servers of any age, and events that no packet holds."""

from __future__ import annotations

import struct
import zlib

import pytest

from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.inventory import Binlog, Inventory, expire_seconds
from headrace.mysql.position.scan import SECOND, BinlogScan
from headrace.mysql.position.scans import At, FirstMissing, FirstSince
from headrace.mysql.position.search import PositionError, distance, mariadb_state
from headrace.mysql.wire.binlog_file import packet
from tests.made_binlog import SID
from tests.made_binlog import Binlog as Made

INVENTORY = Inventory(
    server_uuid="u",
    version="9.7.4",
    mariadb=False,
    gtid_mode=True,
    files=(Binlog("b.000003", 300), Binlog("b.000004", 400), Binlog("b.000005", 500)),
    end=("b.000005", 500),
    executed="",
    purged="",
    expire_seconds=60,
)


class Groups(BinlogScan):
    """Notes the groups and the positions between them."""

    def __init__(self) -> None:
        super().__init__("b.000001")
        self.cursor.checksums = True
        self.groups: list[tuple[int, int]] = []
        self.file_positions: list[int] = []

    def on_group(self, start: int) -> None:
        self.groups.append((start, self.commit_time_us))

    def on_boundary(self, start: int) -> None:
        self.file_positions.append(start)


def feed(scan: BinlogScan, data: bytes, piece: int = 0) -> None:
    rest = b""
    for at in range(0, len(data), piece or len(data)):
        rest += data[at : at + (piece or len(data))]
        done, more = 0, True
        while more:
            done, more = scan.feed(rest, done, scan.over)
        rest = rest[done:]


def rotate(made: Made, file: str = "b.000002") -> None:
    made.event(4, struct.pack("<Q", 4) + file.encode())


@pytest.mark.parametrize("piece", [0, 1, 7, 100])
def test_groups_begin_with_their_gtid_and_end_where_the_next_begins(piece: int) -> None:
    made, starts = Made().begin_file(), []
    format_end = made.at
    for number in range(1, 4):
        starts.append(made.at)
        made.transaction(number, 1_000_000 * number + 7, [(number, "a")])
    starts.append(made.at)
    made.gtid(4, 4_000_007)
    made.query("CREATE TABLE x (i int)")
    closed = made.at
    rotate(made)
    scan = Groups()
    feed(scan, bytes(made.packets), piece)
    assert scan.groups == [(start, 1_000_000 * (i + 1) + 7) for i, start in enumerate(starts)]
    assert scan.file_positions == [4, *starts, closed]
    assert format_end == starts[0]
    assert (scan.left, scan.idle, scan.last) == (True, False, made.at)
    assert str(scan.gtids) == f"{SID}:1-4"


def test_a_place_limits_the_numbers_of_what_is_before_it() -> None:
    begun, made, starts = 1_700_000_000, Made().begin_file(), []
    for number, seconds in ((1, 5.0), (2, 5.0), (3, 5.5), (4, 4.0), (5, 8.0)):
        starts.append(made.at)
        made.transaction(number, int((begun + seconds) * 1_000_000), [(number, "a")])
    starts.append(made.at)
    rotate(made)
    limits = []
    for start in starts:
        scan = At("b.000001", start)
        scan.cursor.checksums = True
        feed(scan, bytes(made.packets))
        assert scan.found is not None
        limits.append(scan.found.pos_limit - begun * SECOND)
    first, second, third, fourth, fifth, end = limits
    assert first == SECOND  # another file may have ended in the second in which this one was begun
    assert 5 * SECOND < second < third < 5.5 * SECOND < fourth < fifth < 5.51 * SECOND
    assert 8 * SECOND < end < 8.01 * SECOND


def test_without_gtid_events_groups_begin_with_begin_or_with_the_statement() -> None:
    made, starts = Made().begin_file(), []
    for end in ("xid", "COMMIT", "ROLLBACK"):
        starts.append(made.at)
        made.query("BEGIN")
        made.table()
        made.insert((1, "a"))
        made.query("SAVEPOINT a")
        if end == "xid":
            made.event(16, struct.pack("<Q", 1))
        else:
            made.query(end)
    starts.append(made.at)
    made.query("CREATE TABLE x (i int)")
    starts.append(made.at)
    made.query("BEGIN")
    made.event(16, struct.pack("<Q", 1))
    end = made.at
    made.event(27, b"b.000001", artificial=True)
    scan = Groups()
    feed(scan, bytes(made.packets))
    assert scan.groups == [(start, 1_700_000_000_000_000) for start in starts]
    assert scan.file_positions == [4, *starts, end]
    assert (scan.left, scan.idle, scan.last) == (False, True, end)


def test_a_file_that_was_never_closed_ends_with_its_last_event() -> None:
    made = Made().begin_file()
    made.transaction(1, 1_000_000, [(1, "a")])
    end = made.at
    made.event(4, struct.pack("<Q", 4) + b"b.000002", when=0, artificial=True)
    scan = Groups()
    feed(scan, bytes(made.packets))
    assert (scan.left, scan.last, scan.file_positions[-1]) == (True, end, end)


def test_an_event_of_more_than_a_packet_is_passed_over_and_not_kept() -> None:
    made = Made().begin_file()
    made.gtid(1, 1_000_000)
    made.query("BEGIN")
    size = 19 + (17 << 20) + 4
    raw = struct.pack("<IBIIIH", 1_700_000_000, 30, 1, size, made.at + size, 0) + bytes(17 << 20)
    raw += struct.pack("<I", zlib.crc32(raw))
    made.at += size
    made.packets += packet(raw)
    made.event(16, struct.pack("<Q", 1))
    start = made.at
    made.transaction(2, 2_000_000, [(1, "a")])
    scan = Groups()
    files = []
    data, rest = bytes(made.packets), b""
    for at in range(0, len(data), 1 << 20):
        rest += data[at : at + (1 << 20)]
        done, more = 0, True
        while more:
            done, more = scan.feed(rest, done, lambda: False)
        rest = rest[done:]
        large = scan._splitter._large
        if large is not None:
            files.append(large.file)
    assert [group[0] for group in scan.groups] == [scan.groups[0][0], start]
    assert files
    assert not any(files), "nothing of it is kept"


def test_the_first_transaction_of_a_time_is_exact_to_the_microsecond() -> None:
    made, starts = Made().begin_file(), []
    for number, micros in enumerate((5_000_000, 5_000_001, 5_000_001, 4_999_999, 5_000_002), 1):
        starts.append(made.at)
        made.transaction(number, micros, [(number, "a")])
    for since, index in ((0, 0), (5_000_000, 0), (5_000_001, 1), (5_000_002, 4)):
        scan = FirstSince("b.000001", since)
        scan.cursor.checksums = True
        feed(scan, bytes(made.packets))
        assert scan.found is not None
        assert (scan.found.offset, str(scan.found.gtids or "")) == (
            starts[index],
            "" if index == 0 else f"{SID}:1" + (f"-{index}" if index > 1 else ""),
        )
    scan = FirstSince("b.000001", 5_000_003)
    scan.cursor.checksums = True
    feed(scan, bytes(made.packets))
    assert scan.found is None


def test_the_first_transaction_that_a_set_lacks_may_lie_before_others_that_it_has() -> None:
    made, starts = Made().begin_file(), []
    for number in range(1, 6):
        starts.append(made.at)
        made.transaction(number, number, [(number, "a")])
    scan = FirstMissing("b.000001", GtidSet(f"{SID}:1-2:4"))
    scan.cursor.checksums = True
    feed(scan, bytes(made.packets))
    assert scan.found is not None
    assert scan.found.offset == starts[2]


def test_an_offset_within_a_transaction_has_its_neighbours() -> None:
    made = Made().begin_file()
    made.transaction(1, 1, [(1, "a")])
    start = made.at
    made.gtid(2, 2)
    inside = made.at
    made.query("BEGIN")
    made.event(16, struct.pack("<Q", 1))
    end = made.at
    made.transaction(3, 3, [(1, "a")])
    for offset, in_event in ((inside, False), (inside + 1, True)):
        scan = At("b.000001", offset)
        scan.cursor.checksums = True
        feed(scan, bytes(made.packets))
        assert (scan.found, scan.below, scan.above, scan.in_event) == (None, start, end, in_event)


def test_bytes_and_files_between_positions() -> None:
    assert distance(INVENTORY, ("b.000003", 100), ("b.000003", 250)) == (150, 0)
    assert distance(INVENTORY, ("b.000003", 100), ("b.000005", 50)) == (200 + 400 + 50, 2)
    assert distance(INVENTORY, ("b.000003", 900), ("b.000004", 4)) == (4, 1)  # it was beyond the end
    assert distance(INVENTORY, ("b.000001", 100), ("b.000004", 4)) == (None, 3)
    assert distance(INVENTORY, ("c.000001", 100), ("b.000004", 4)) == (None, None)
    assert distance(INVENTORY, ("b.000009", 100), ("b.000004", 4)) == (None, None)


def test_files_before_a_hole_are_not_readable() -> None:
    files = (Binlog("b.1", 300), Binlog("b.2", 0), Binlog("b.3", 200), Binlog("b.4", 10))
    inventory = Inventory("u", "9", False, False, files, ("b.4", 10), "", "", 0)
    assert [binlog.name for binlog in inventory.readable] == ["b.3", "b.4"]
    assert (inventory.index("b.3"), inventory.index("b.9"), inventory.size("b.3"), inventory.size("b.9")) == (
        2,
        None,
        200,
        0,
    )


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"binlog_expire_logs_seconds": "2592000", "binlog_expire_logs_auto_purge": "ON"}, 2592000),
        ({"binlog_expire_logs_seconds": "2592000", "binlog_expire_logs_auto_purge": "OFF"}, 0),
        ({"binlog_expire_logs_seconds": "0", "expire_logs_days": "2"}, 172800),
        ({"expire_logs_days": "0.500000"}, 43200),
        ({"expire_logs_days": "0.000000"}, 0),
        ({}, 0),
    ],
)
def test_how_long_a_server_keeps_its_binlogs(variables: dict[str, str], seconds: int) -> None:
    assert expire_seconds(variables) == seconds


def test_a_mariadb_position_is_read_or_refused() -> None:
    assert mariadb_state("0-1-100,1-7-5") == {0: 100, 1: 5}
    assert mariadb_state("") == {}
    for text in ("0-1", "0-1-5,0-2-7", "a-b-c"):
        with pytest.raises(PositionError, match="no GTID position"):
            mariadb_state(text)


def test_what_begins_where_a_scan_is_to_end_counts_no_more() -> None:
    made = Made().begin_file()
    for number in (1, 2, 3):
        until = made.at
        made.transaction(number, 1_000_000 * number, [(number, "a")])
    scan = Groups()
    scan.until = until
    feed(scan, bytes(made.packets))
    scan.end()
    assert [start for start, _ in scan.groups][-1] < until
    assert scan.file_positions[-1] == scan.last == until
    assert (scan.idle, scan.left, str(scan.gtids)) == (True, False, f"{SID}:1-2")


def test_a_scan_that_is_to_end_later_ends_as_it_would() -> None:
    made = Made().begin_file()
    made.transaction(1, 1_000_000, [(1, "a")])
    rotate(made)
    scan = Groups()
    scan.until = 10_000
    feed(scan, bytes(made.packets))
    scan.end()
    assert (scan.idle, scan.left, scan.last) == (False, True, made.at)
