"""Events of servers that do not run here, and places that no test reaches: made by hand from the documented layouts."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from headrace.errors import NotUnderstood
from headrace.model import ABSENT, OpenXa, Operation, Position, RowsChange, SchemaChange, TransactionMark
from headrace.mysql.compressed import decompress
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.gtid_event import parse_tagged, varint
from headrace.mysql.query_event import parse_query
from headrace.mysql.transactions import dump_place
from headrace.mysql.xa import xid_of_statement
from tests.made_binlog import RAW_SID, SID, Binlog, close_all, decoder, feed


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def rows_of(changes: list[RowsChange]) -> list[Any]:
    return [row for change in changes for row in change.rows]


def inner(kind: int, body: bytes) -> bytes:
    """An event as it stands within another: no checksum, no place."""
    return struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(body), 0, 0) + body


def captured(log: Binlog, *calls: Any) -> bytes:
    """What `calls` write on the log, as inner events."""
    before, at, sequence = bytes(log.packets), log.at, log.sequence
    log.packets.clear()
    for call in calls:
        call()
    events, p = b"", 0
    while p < len(log.packets):
        size = int.from_bytes(log.packets[p : p + 3], "little")
        raw = bytes(log.packets[p + 5 : p + 4 + size])
        events += inner(raw[4], raw[19:-4])
        p += 4 + size
    log.packets, log.at, log.sequence = bytearray(before), at, sequence
    return events


def payload(events: bytes, *, algorithm: int = 0, said: int | None = None, frames: int = 1) -> bytes:
    """The body of a TRANSACTION_PAYLOAD event."""
    if algorithm == 255:
        packed = events
    else:
        step = -(-len(events) // frames)
        packed = b"".join(
            zstandard.ZstdCompressor().compress(events[i : i + step]) for i in range(0, len(events), step)
        )
    sizes = [
        bytes([2, 3 if algorithm > 250 else 1]) + (b"\xfc\xff\0" if algorithm > 250 else bytes([algorithm])),
        b"\x03\x09\xfe" + struct.pack("<Q", len(events) if said is None else said),
        b"\x01\x09\xfe" + struct.pack("<Q", len(packed)),
    ]
    return b"".join(sizes) + b"\0" + packed


def compressed(log: Binlog, **how: Any) -> None:
    """A transaction of two rows, compressed."""
    log.gtid(1, 1_700_000_000_000_000)
    events = captured(log, lambda: log.query("BEGIN"), log.table, lambda: log.insert((1, "a"), (2, None)))
    log.event(40, payload(events + inner(16, struct.pack("<Q", 9)), **how))


@pytest.mark.parametrize("how", [{}, {"algorithm": 255}, {"frames": 3}])
def test_a_compressed_transaction_is_read_and_its_place_is_behind_it(how: dict[str, int]) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    compressed(log, **how)
    d = decoder(changes)
    feed(d, bytes(log.packets))
    assert rows_of(changes) == [(1, "a"), (2, None)]
    assert d.position() == Position(
        "server", "b.000001", log.at, f"{SID}:1", last_pos=changes[0].pos + 1, commit_time_us=1_700_000_000_000_000
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


@pytest.mark.parametrize("size", [25, 42])
def test_gtid_events_of_mysql_5_have_no_commit_time(size: int) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.event(33, (b"\0" + RAW_SID + struct.pack("<Q", 7) + b"\x02" + bytes(16))[:size], when=1_500_000_000)
    log.query("BEGIN")
    log.table()
    log.insert((1, "a"))
    log.event(16, struct.pack("<Q", 9))
    feed(decoder(changes), bytes(log.packets))
    assert changes[0].gtid == f"{SID}:7"
    assert changes[0].commit_time_us == 1_500_000_000_000_000


def test_rows_events_of_version_1_and_of_mysql_5_1_are_read() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.query("BEGIN")
    log.table()
    body = struct.pack("<IHH", 7, 0, 1) + b"\x02\xff" + b"\xfc" + struct.pack("<i", 5) + b"\x01a"
    log.event(23, body)
    log.event(16, struct.pack("<Q", 9))
    feed(decoder(changes), bytes(log.packets))
    assert rows_of(changes) == [(5, "a")]
    assert changes[0].operation is Operation.INSERT


def test_positions_go_on_beyond_four_gib() -> None:
    """Headers hold 32 bits; a transaction of 5 GB makes a file longer than that."""
    start = (1 << 32) - 500
    log, changes = Binlog(), list[RowsChange]()
    log.event(4, struct.pack("<Q", start) + b"b.000001", when=0, artificial=True)
    log.at = start
    for number in range(1, 20):
        log.transaction(number, 1_700_000_000_000_000, [(number, "x")])
    d = decoder(changes, Position("server", "b.000001", start))
    feed(d, bytes(log.packets))
    assert [row[0] for row in rows_of(changes)] == list(range(1, 20))
    assert d.position().offset == log.at > 1 << 32


def test_a_place_beyond_what_the_dump_command_can_say_is_reached_from_the_file_s_beginning() -> None:
    assert dump_place(Position("s", "b.000007", 5 << 30), 0) == ("b.000007", 4)
    assert dump_place(Position("s", "b.000007", 5000), 0) == ("b.000007", 5000)
    held = OpenXa("1:61:", "b.000003", 700)
    assert dump_place(Position("s", "b.000007", 5000, open_xa=(held,)), 0) == ("b.000003", 700)


def test_events_without_a_position_stand_behind_the_one_before() -> None:
    """MariaDB since 11.4 within transactions."""
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    ends = []
    for write in (lambda: log.query("BEGIN"), log.table, lambda: log.insert((1, "a"))):
        before = len(log.packets)
        write()
        raw = bytearray(log.packets[before + 5 : -4])
        raw[13:17] = bytes(4)
        log.packets[before + 5 :] = raw + struct.pack("<I", zlib.crc32(bytes(raw)))
        ends.append(log.at)
    d = decoder(changes)
    feed(d, bytes(log.packets))
    assert d.end == ends[-1]
    log.event(16, struct.pack("<Q", 9))
    d = decoder(changes)
    feed(d, bytes(log.packets))
    assert d.position().offset == log.at


def test_an_incident_stops_and_the_operator_can_go_past_it() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    at = log.at
    log.event(26, struct.pack("<H", 1) + b"\x04lost")
    log.transaction(1, 1_700_000_000_000_000, [(1, "a")])
    with pytest.raises(NotUnderstood, match=rf"b\.000001:{at}: .*INCIDENT") as stopped:
        feed(decoder([]), bytes(log.packets))
    assert "skip_event" in stopped.value.remedy
    d = decoder(changes, options=DecoderOptions(skip_events=frozenset({f"b.000001:{at}"})))
    feed(d, bytes(log.packets))
    assert rows_of(changes) == [(1, "a")]
    assert d.skipped == 1


def test_skipping_a_broken_rows_event_skips_only_that_one_and_its_number_stays_taken() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table()
    at = log.at
    log.event(30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\xff" + b"\xfc\x01")
    log.table()
    log.insert((2, "kept"))
    d = decoder(changes, options=DecoderOptions(skip_events=frozenset({f"b.000001:{at}"})))
    feed(d, bytes(log.packets))
    assert rows_of(changes) == [(2, "kept")]
    assert d.position().events_done == 2
    with pytest.raises(NotUnderstood, match="do not fit"):
        feed(decoder([]), bytes(log.packets))


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


def test_rows_of_a_prepared_transaction_are_bounded() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1)
    log.query("XA START X'61',X'',1")
    log.table()
    for number in range(40):
        log.insert((number, "x" * 100))
    with pytest.raises(NotUnderstood, match="more than 2000 bytes"):
        feed(decoder([], options=DecoderOptions(max_spool=2000)), bytes(log.packets))


def test_a_restart_reads_the_rows_of_open_xa_transactions_again_by_gtid_and_by_place() -> None:
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


def test_marks_frame_the_rows_and_count_them() -> None:
    log, told = Binlog().begin_file(), list[Any]()
    log.transaction(1, 1_700_000_000_000_000, [(1, "a"), (2, "b")], [(3, "c")])
    log.gtid(2, 1_700_000_000_000_001)
    log.query("BEGIN")
    log.event(16, struct.pack("<Q", 9))
    feed(decoder(told, emit_mark=told.append), bytes(log.packets))
    assert [type(item) for item in told] == [TransactionMark, RowsChange, RowsChange, TransactionMark]
    assert told[-1].counts == {"shop.t": 3}
    assert [item.pos for item in told] == sorted(item.pos for item in told)


def test_with_marks_a_position_never_lies_inside_a_transaction() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table()
    log.insert((1, "a"))
    d = decoder([], emit_mark=lambda mark: None)
    feed(d, bytes(log.packets))
    assert d.position().events_done == 0
    assert d.position().last_pos == 0


def test_an_image_that_lacks_columns_keeps_them_absent_and_takes_what_the_other_has() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table()
    head = struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02"
    log.event(31, head + b"\x01\x02" + b"\0" + struct.pack("<i", 5) + b"\0\x03new")
    log.event(32, head + b"\x01" + b"\0" + struct.pack("<i", 5))
    feed(decoder(changes), bytes(log.packets))
    update, delete = changes
    assert update.before == [(5, ABSENT)]
    assert update.rows == [(5, "new")]
    assert delete.rows == [(5, ABSENT)]
    assert update.partial
    assert delete.partial
    with pytest.raises(NotUnderstood, match="row_image"):
        feed(decoder([], options=DecoderOptions(partial_images=False)), bytes(log.packets))


@pytest.mark.parametrize("tail", [b"", b"\0\0\0\0"])
def test_row_images_without_any_column_stop_rather_than_vanish_or_hang(tail: bytes) -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table()
    log.event(30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\x00" + tail)
    with pytest.raises(NotUnderstood, match="no columns at all"):
        feed(decoder([]), bytes(log.packets))


def test_status_variables_of_all_versions_are_passed() -> None:
    variables = (
        b"\x00\0\0\0\0"
        b"\x01" + struct.pack("<Q", 1 << 2 | 1 << 20) + b"\x06\x03std"
        b"\x03\x01\0\x01\0"
        b"\x04\x21\0\x21\0\x08\0"
        b"\x05\x03UTC"
        b"\x07\0\0"
        b"\x08\x1c\0" + b"\x09" + bytes(8) + b"\x0a" + bytes(4) + b"\x0b\x01u\x01h"
        b"\x0c\x01shop\0"
        b"\x0d\x01\x02\x03"
        b"\x10\x01"
        b"\x11" + bytes(8) + b"\x12\xff\0"
        b"\x13\x01"
        b"\x14\x00"
        b"\x80\0\0\0"
        b"\x81" + bytes(8) + b"\x82\x02"
        b"\xc8\x99"
    )
    body = struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0ALTER TABLE t"
    query = parse_query(body, 0, len(body))
    assert (query.schema, query.text) == ("shop", b"ALTER TABLE t")
    assert query.ansi_quotes
    assert query.no_backslash_escapes
    assert (query.client_collation, query.server_collation, query.database_collation) == (33, 8, 28)
    assert query.utf8mb4_collation == 255
    assert query.alter_phase == "start"


@pytest.mark.parametrize("number", [0, 1, 63, 127, 128, 16383, 16384, 1 << 32, (1 << 64) - 1])
def test_numbers_of_the_serialization_library_are_read(number: int) -> None:
    size = next((n for n in range(1, 9) if number < 1 << (7 * n)), 9)
    ones = (1 << (size - 1)) - 1
    raw = (number << size | ones).to_bytes(size, "little") if size < 9 else b"\xff" + number.to_bytes(8, "little")
    assert varint(raw + b"tail", 0) == (number, size)


def test_a_tagged_gtid_that_ends_too_early_is_refused() -> None:
    body = bytes.fromhex(
        "027600000002688102c9031d039503190322c503cd022004f103000000020404060a6d7974616708080a0c0c7f748fef9ccb6006"
        "1009051283120b"
    )
    assert parse_tagged(body, 0, len(body))[0].endswith(":mytag")
    for size in range(len(body)):
        with pytest.raises((ValueError, IndexError)):
            parse_tagged(body[:size], 0, size)


def test_mariadb_s_compressed_part_that_lies_is_refused() -> None:
    packed = zlib.compress(b"rows" * 100)
    assert decompress(b"\x82\x01\x90" + packed, 0, 3 + len(packed)) == b"rows" * 100
    for head in (b"\x82\x01\x91", b"\x82\x00\x10", b"\x92\x01\x90", b"\x80", b"\x85\0\0\0\0\0"):
        with pytest.raises(ValueError, match="compressed"):
            decompress(head + packed, 0, len(head) + len(packed))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"XA COMMIT X'7831',X'',1", (True, "1:7831:")),
        (b"xa rollback x'7832', X'6B', -7", (False, "-7:7832:6b")),
    ],
)
def test_the_xid_of_a_decision_is_read(text: bytes, expected: tuple[bool, str]) -> None:
    assert xid_of_statement(text) == expected


def test_statement_texts_are_told_before_their_rows() -> None:
    log, told = Binlog().begin_file(), list[Any]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.event(29, b"\x05INSERT INTO t VALUES (1, 'a')")
    log.table()
    log.insert((1, "a"))
    log.insert((2, "b"))
    feed(decoder(told, emit_schema=told.append, options=DecoderOptions(dml_queries=True)), bytes(log.packets))
    assert [type(item) for item in told] == [SchemaChange, RowsChange, RowsChange]
    assert told[0].sql == "INSERT INTO t VALUES (1, 'a')"
    assert told[0].pos < told[1].pos


def test_the_server_and_session_of_a_transaction_are_kept_when_a_format_tells_them() -> None:
    log = Binlog().begin_file()
    log.transaction(1, 1_700_000_000_000_000, [(1, "a")])
    for wanted, expected in ((False, (0, 0)), (True, (1, 1))):
        d = decoder([], options=DecoderOptions(origins=wanted))
        feed(d, bytes(log.packets))
        assert (d.server_id, d.thread_id) == expected
