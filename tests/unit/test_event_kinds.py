"""Events of servers that do not run here, and positions that no test reaches: made by hand from the documented table
schemas."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import NotUnderstood
from headrace.model import ABSENT, Column, OpenXa, Operation, Position, RowsChange, SchemaChange, TransactionMark
from headrace.mysql.decoder_options import DecoderOptions
from headrace.mysql.events.dump_start import dump_position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.gtid_event import parse_tagged, varint
from headrace.mysql.events.partial_update import MissingBase, PartialUpdates
from headrace.mysql.events.query_event import parse_query
from headrace.mysql.schema.history import SchemaHistory
from headrace.mysql.values.column_types import ValueOptions, field_of
from tests.made_binlog import RAW_SID, SID, Binlog, close_all, decoder, feed


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def rows_of(changes: list[RowsChange]) -> list[Any]:
    return [row for change in changes for row in change.rows]


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


def test_a_dump_by_gtid_may_begin_at_the_start_of_a_file_whose_end_is_known() -> None:
    """The stored place is far into the file; that is no sign that positions began anew."""
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.transaction(8, 1_700_000_000_000_000, [(1, "a")])
    d = decoder(changes, Position("server", "b.000001", 3 << 30, f"{SID}:1-7"))
    feed(d, bytes(log.packets))
    assert rows_of(changes) == [(1, "a")]
    assert d.position().offset == log.at


def test_a_position_beyond_what_the_dump_command_can_say_is_reached_from_the_file_s_beginning() -> None:
    assert dump_position(Position("s", "b.000007", 5 << 30), 0) == ("b.000007", 4)
    assert dump_position(Position("s", "b.000007", 5000), 0) == ("b.000007", 5000)
    held = OpenXa("1:61:", "b.000003", 700)
    assert dump_position(Position("s", "b.000007", 5000, open_xa=(held,)), 0) == ("b.000003", 700)


def test_events_without_a_position_come_after_the_event_before() -> None:
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
    assert d.cursor.end == ends[-1]
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
    assert d.cursor.skipped == 1


@pytest.mark.parametrize(("kind", "flags"), [(3, 0), (5, 0), (28, 0x80), (29, 0x80), (164, 0x80)])
def test_events_that_change_nothing_are_passed_and_the_position_moves(kind: int, flags: int) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.event(kind, b"whatever it holds", flags=flags)
    d = decoder(changes)
    feed(d, bytes(log.packets))
    assert d.position().offset == log.at
    log.transaction(1, 1_700_000_000_000_000, [(1, "a")])
    feed(decoder(changes), bytes(log.packets))
    assert rows_of(changes) == [(1, "a")]


@pytest.mark.parametrize("flags", [0, 0x80])
@pytest.mark.parametrize("kind", [99, 172, 200])
def test_an_event_that_may_hold_rows_stops_also_where_the_server_lets_replicas_ignore_it(kind: int, flags: int) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    at = log.at
    log.event(kind, b"whatever it holds", flags=flags)
    log.transaction(1, 1_700_000_000_000_000, [(1, "a")])
    with pytest.raises(NotUnderstood, match=rf"b\.000001:{at}: event type {kind} \(.* is not supported") as stopped:
        feed(decoder([]), bytes(log.packets))
    assert stopped.value.remedy
    d = decoder(changes, options=DecoderOptions(skip_events=frozenset({f"b.000001:{at}"})))
    feed(d, bytes(log.packets))
    assert rows_of(changes) == [(1, "a")]


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


def test_marks_frame_the_rows_of_a_transaction() -> None:
    log, reported = Binlog().begin_file(), list[Any]()
    log.transaction(1, 1_700_000_000_000_000, [(1, "a"), (2, "b")], [(3, "c")])
    log.gtid(2, 1_700_000_000_000_001)
    log.query("BEGIN")
    log.event(16, struct.pack("<Q", 9))
    feed(decoder(reported, mark=reported.append), bytes(log.packets))
    assert [type(item) for item in reported] == [TransactionMark, RowsChange, RowsChange, TransactionMark]
    assert [(reported[0].begin, reported[0].gtid), (reported[-1].begin, reported[-1].gtid)] == [
        (True, f"{SID}:1"),
        (False, f"{SID}:1"),
    ]
    assert [item.pos for item in reported] == sorted(item.pos for item in reported)


def test_with_marks_a_position_never_lies_inside_a_transaction() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table()
    log.insert((1, "a"))
    d = decoder([], mark=lambda mark: None)
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


def without_columns(kind: int, tail: bytes) -> bytes:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table()
    log.event(kind, struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\x00" + (b"\0" if kind == 31 else b"") + tail)
    return bytes(log.packets)


def test_an_insert_without_any_column_is_one_row() -> None:
    """MySQL refuses to write more than one of them in an event."""
    changes = list[RowsChange]()
    feed(decoder(changes), without_columns(30, b""))
    assert [change.rows for change in changes] == [[(ABSENT, ABSENT)]]
    assert changes[0].partial


@pytest.mark.parametrize(("kind", "tail"), [(30, b"\0\0\0\0"), (31, b""), (31, b"\0\0\0\0")])
def test_other_row_images_without_any_column_stop_rather_than_vanish_or_hang(kind: int, tail: bytes) -> None:
    with pytest.raises(NotUnderstood, match=r"without columns|no columns at all"):
        feed(decoder([]), without_columns(kind, tail))


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
    assert query.sql_mode == 1 << 2 | 1 << 20
    assert (query.client_collation, query.server_collation) == (33, 8)
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


def test_statement_texts_are_reported_before_their_rows() -> None:
    log, reported = Binlog().begin_file(), list[Any]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.event(29, b"\x05INSERT INTO t VALUES (1, 'a')")
    log.table()
    log.insert((1, "a"))
    log.insert((2, "b"))
    feed(decoder(reported, statement=reported.append, options=DecoderOptions(dml_queries=True)), bytes(log.packets))
    assert [type(item) for item in reported] == [SchemaChange, RowsChange, RowsChange]
    assert reported[0].sql == "INSERT INTO t VALUES (1, 'a')"
    assert reported[0].pos < reported[1].pos


def test_a_restart_after_the_first_rows_of_a_statement_does_not_publish_its_text_again() -> None:
    log, whole, rest = Binlog().begin_file(), list[Any](), list[Any]()
    begin = log.at
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.event(29, b"\x05INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    log.table()
    log.insert((1, "a"))
    log.insert((2, "b"))
    options = DecoderOptions(dml_queries=True)
    feed(decoder(whole, statement=whole.append, options=options), bytes(log.packets))
    start = Position("server", "b.000001", begin, "", 1, last_pos=whole[1].pos)
    feed(decoder(rest, start, statement=rest.append, options=options), bytes(log.packets))
    assert [(one.rows, one.pos) for one in rest] == [(whole[2].rows, whole[2].pos)]


def test_server_and_session_of_a_transaction_are_kept_if_a_format_publishes_them() -> None:
    log = Binlog().begin_file()
    log.transaction(1, 1_700_000_000_000_000, [(1, "a")])
    for wanted, expected in ((False, (0, 0)), (True, (1, 1))):
        changes = list[RowsChange]()
        feed(decoder(changes, options=DecoderOptions(origins=wanted)), bytes(log.packets))
        (origin,) = (change.origin for change in changes)
        assert (origin.server_id, origin.thread) == expected


def test_a_large_event_with_a_wrong_checksum_stops() -> None:
    body = bytes(17 << 20)
    raw = struct.pack("<IBIIIH", 1_700_000_000, 29, 1, 23 + len(body), 4 + 23 + len(body), 0) + body
    for flip, fails in ((0, False), (1, True)):
        payload_ = b"\0" + raw + struct.pack("<I", zlib.crc32(raw) ^ flip)
        stream = b"".join(
            len(part).to_bytes(3, "little") + b"\0" + part
            for part in (payload_[i : i + 0xFFFFFF] for i in range(0, len(payload_) + 1, 0xFFFFFF))
        )
        d = decoder([])
        if fails:
            with pytest.raises(NotUnderstood, match="CRC32"):
                feed(d, stream)
        else:
            feed(d, stream)
            assert d.cursor.end == 4 + 23 + len(body)


def test_single_gtids_are_taken_out_of_a_set_wherever_they_lie() -> None:
    whole = GtidSet(f"{SID}:1-3:7:tag:1-2")
    assert str(whole.minus(GtidSet(f"{SID}:1"))) == f"{SID}:2-3:7:tag:1-2"
    assert str(whole.minus(GtidSet(f"{SID}:2,{SID}:7"))) == f"{SID}:1:3:tag:1-2"
    assert str(whole.minus(GtidSet(f"{SID}:3,{SID}:tag:1,{SID}:99"))) == f"{SID}:1-2:7:tag:2"


@pytest.mark.parametrize("known", [True, False])
def test_dml_as_text_stops_inside_of_a_transaction_and_alone(known: bool) -> None:
    for begin in (True, False):
        log = Binlog().begin_file()
        log.gtid(1, 1_700_000_000_000_000)
        if begin:
            log.query("BEGIN")
        log.query("UPDATE t SET a = 1")
        history = SchemaHistory(lambda s, t: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
        with pytest.raises(NotUnderstood, match="written as text"):
            feed(decoder([], history=history if known else None), bytes(log.packets))


def test_a_restart_within_create_select_does_not_publish_the_statement_again() -> None:
    def stream() -> Binlog:
        log = Binlog().begin_file()
        log.gtid(1, 1_700_000_000_000_000)
        log.query("BEGIN")
        log.query("CREATE TABLE t (id int, a varchar(40)) START TRANSACTION")
        for row in ((1, "a"), (2, "b")):
            log.table()
            log.insert(row)
        return log

    def made(reported: list[Any], start: Position | None = None) -> Any:
        history = SchemaHistory(lambda s, t: True, mariadb=False, version="9.7.4", lower_case_table_names=0)
        return decoder(reported, start, statement=reported.append, history=history)

    log, reported = stream(), list[Any]()
    d = made(reported)
    feed(d, bytes(log.packets))
    assert [type(item) for item in reported] == [SchemaChange, RowsChange, RowsChange]
    middle = replace(d.position(), events_done=2, last_pos=reported[1].pos)
    again: list[Any] = []
    feed(made(again, middle), bytes(log.packets))
    assert [(type(item), item.pos) for item in again] == [(RowsChange, reported[2].pos)]


def test_the_phases_of_an_alter_have_their_own_lengths() -> None:
    after = b"\x04\x21\0\x21\0\x08\0"
    for phase, variables in (
        ("start", b"\x82\x02"),
        ("commit", b"\x82\x04" + bytes(8)),
        ("rollback", b"\x82\x08" + bytes(8)),
    ):
        size = len(variables + after)
        body = struct.pack("<IIBHH", 1, 0, 4, 0, size) + variables + after + b"shop\0ALTER TABLE t"
        query = parse_query(body, 0, len(body))
        assert (query.alter_phase, query.server_collation) == (phase, 8)


def test_each_document_of_a_partial_update_has_its_own_bit() -> None:
    """One bit a JSON column of the table, whether the image has the column or not."""
    one = bytes.fromhex("000100" + "0d00" + "0b000100" + "050100" + "61")  # {"a": 1}
    number = field_of(3, 0, Column("id", "int", 4), ValueOptions())
    document = field_of(245, 4, Column("j", "json", 12), ValueOptions())
    decode = PartialUpdates((number, document, document), (3, 245, 245), 0b111, 0b101)
    raw = struct.pack("<I", len(one)) + one
    diff = b"\0\x03$.a\x03\x05\x02\0"  # replace $.a by 2
    before = b"\0" + struct.pack("<i", 7) + raw + raw
    after = b"\x01\x02" + b"\0" + struct.pack("<i", 8) + struct.pack("<I", len(diff)) + diff
    rows = decode(before + after, 0, len(before + after))
    assert rows == [(7, '{"a": 1}', '{"a": 1}'), (8, '{"a": 1}', '{"a": 2}')]
    alone = PartialUpdates((number, document, document), (3, 245, 245), 0b111, 0b100)
    after_alone = b"\x01\x02" + b"\0" + struct.pack("<I", len(diff)) + diff
    rows = alone(before + after_alone, 0, len(before + after_alone))
    assert rows[1] == (7, '{"a": 1}', '{"a": 2}')
    lacking = PartialUpdates((number, document, document), (3, 245, 245), 0b001, 0b101)
    with pytest.raises(MissingBase):
        lacking(b"\0" + struct.pack("<i", 7) + after, 0, 5 + len(after))


def table_of_kind(kind: int) -> bytes:
    """The table shop.t with one column, of this type."""
    return struct.pack("<IHH", 7, 0, 1) + b"\x04shop\0\x01t\0\x01" + bytes([kind]) + b"\0\x01" + b"\x04\x02\x01v"


@pytest.mark.parametrize("captured", [True, False])
def test_a_column_type_that_is_not_decoded_stops_where_the_table_is_captured(captured: bool) -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    body = table_of_kind(200)
    log.event(19, body if captured else body.replace(b"\x01t\0", b"\x07dropped\0"))
    log.event(30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\x01\xff\0\x01")
    log.event(16, struct.pack("<Q", 1))
    log.transaction(2, 1_700_000_000_000_001, [(9, "behind")])
    d = decoder(changes)
    if captured:
        with pytest.raises(NotUnderstood, match=r"table shop\.t is not understood: .*200"):
            feed(d, bytes(log.packets))
    else:
        feed(d, bytes(log.packets))
    assert rows_of(changes) == ([] if captured else [(9, "behind")])


@pytest.mark.parametrize(
    ("version", "header", "checksums", "what"),
    [
        (3, 19, 1, "binlog version 3 with headers of 19 bytes"),
        (4, 27, 1, "binlog version 4 with headers of 27 bytes"),
        (4, 19, 2, "checksum algorithm 2 is unknown"),
    ],
)
def test_another_binlog_version_and_other_checksums_stop(version: int, header: int, checksums: int, what: str) -> None:
    log, changes = Binlog(), list[RowsChange]()
    log.event(4, struct.pack("<Q", 4) + b"b.000001", when=0, artificial=True)
    log.event(15, struct.pack("<H50sIB", version, b"9.7", 0, header) + bytes(40) + bytes([checksums]))
    log.transaction(1, 1_700_000_000_000_000, [(9, "behind")])
    with pytest.raises(NotUnderstood, match=what):
        feed(decoder(changes), bytes(log.packets))
    assert changes == []
