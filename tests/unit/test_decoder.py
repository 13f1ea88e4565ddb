"""The decoder fed with hand-made packets: cutting, place, resume, numbers, and clean errors for broken input."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError, NotUnderstood, PositionLost, ServerIdTaken
from headrace.model import POS_ROOM, Operation, Position, RowsChange
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.events.statements import Statement, classify
from headrace.mysql.sql.dialect import Dialect
from headrace.mysql.values.column_types import Field
from headrace.mysql.values.rowcode import make_decoder
from tests.made_binlog import NAME, SID, Binlog, close_all, decoder, feed

FUZZ = int(os.environ.get("HEADRACE_FUZZ", "500"))
"""Damaged streams that are tried; more of them by hand."""


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def two_transactions() -> Binlog:
    log = Binlog().begin_file()
    log.transaction(1, 1_700_000_000_000_000, [(1, "a"), (2, None)], [(3, "家庭保洁")])
    log.transaction(2, 1_600_000_000_000_000, [(4, "")])
    return log


@given(st.lists(st.integers(1, 300), min_size=1))
def test_packets_may_be_cut_anywhere(sizes: list[int]) -> None:
    changes: list[RowsChange] = []
    d = decoder(changes)
    feed(d, bytes(two_transactions().packets), (s for _ in iter(int, 1) for s in sizes))
    assert [c.rows for c in changes] == [[(1, "a"), (2, None)], [(3, "家庭保洁")], [(4, "")]]
    assert changes[0].schema.columns[1].name == NAME
    assert changes[0].schema.keys == (0,)
    assert changes[0].operation is Operation.INSERT
    assert d.position().gtid_set == f"{SID}:1-2"


def test_pos_grows_by_rows_and_never_goes_back_with_the_clock() -> None:
    changes: list[RowsChange] = []
    feed(decoder(changes), bytes(two_transactions().packets))
    first = 1_700_000_000_000_000 << 11
    assert [c.pos for c in changes] == [first, first + 2, first + 3 + POS_ROOM]


def test_a_resume_inside_a_transaction_skips_what_was_done_and_keeps_the_numbers() -> None:
    log = two_transactions()
    whole: list[RowsChange] = []
    feed(decoder(whole), bytes(log.packets))
    start = len(Binlog().begin_file().packets)
    begin = Binlog().begin_file().at
    resumed: list[RowsChange] = []
    position = Position("server", "b.000001", begin, events_done=1, last_pos=whole[0].pos + 1)
    d = decoder(resumed, position)
    assert d.position() == position, "before anything came, the stored position stands"
    feed(d, bytes(log.packets[start:]))
    assert [(c.rows, c.pos) for c in resumed] == [(c.rows, c.pos) for c in whole[1:]]


GROUPS = st.tuples(
    st.integers(0, 2),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.sampled_from((0, 0, 0, 1, 700, 5_000, 1 << 42)),
)


@given(st.lists(GROUPS, min_size=1, max_size=8))
def test_a_resume_at_any_event_gives_the_numbers_that_the_first_reading_gave(
    groups: list[tuple[int, list[bool], int]],
) -> None:
    """Commit times often have seconds only, transactions that nobody wants stand between others, and snapshots ask for
    numbers; a position behind which some were passed is stored before anything else is read."""
    log = Binlog().begin_file()
    head = len(log.packets)
    starts, ends, when = dict[int, int](), [head], 1_700_000_000
    asked = dict[int, int]()
    for number, (seconds, wanted, room) in enumerate(groups, 1):
        starts[log.at] = len(log.packets)
        when += seconds // 2
        log.gtid(number, when * 1_000_000)
        log.query("BEGIN")
        for one in wanted:
            log.table("t" if one else "dropped")
            log.insert((number, "x"), (number, "y"))
            ends.append(len(log.packets))
        log.event(16, struct.pack("<Q", number))
        ends.append(len(log.packets))
        asked[len(log.packets)] = room
    starts[log.at] = len(log.packets)
    first: list[RowsChange] = []
    reading = decoder(first)
    places: list[tuple[Position, int]] = []
    for begin, end in zip([0, *ends], ends, strict=False):
        feed(reading, bytes(log.packets[begin:end]))
        if room := asked.get(end, 0):
            passed = reading.position().last_pos + room
            assert reading.transactions.pass_numbers(passed)
            assert reading.position().last_pos == passed
            places.clear()
        places.append((reading.position(), len(first)))
    numbers = [change.pos for change in first]
    assert numbers == sorted(set(numbers))
    for position, done in places:
        again: list[RowsChange] = []
        resumed = decoder(again, position)
        feed(resumed, bytes(log.packets[starts[position.offset] :]) if position.offset in starts else b"")
        assert [change.pos for change in again] == numbers[done:]
    close_all()


def test_the_position_inside_a_transaction_is_its_start_and_the_events_done() -> None:
    log = Binlog().begin_file()
    begin = log.at
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.table("dropped")
    log.insert((1, "x"))
    log.table()
    log.insert((2, "y"))
    changes: list[RowsChange] = []
    d = decoder(changes)
    feed(d, bytes(log.packets))
    assert (d.position().offset, d.position().events_done) == (begin, 2), "dropped tables count too"
    assert len(changes) == 1


def test_a_wrong_checksum_stops() -> None:
    log = Binlog().begin_file()
    log.event(16, bytes(8), flip=1)
    with pytest.raises(NotUnderstood, match="CRC32"):
        feed(decoder([]), bytes(log.packets))


@pytest.mark.parametrize("kind", [26, 43, 99, 164, 200])
def test_an_event_that_is_not_known_stops_and_is_named(kind: int) -> None:
    log = Binlog().begin_file()
    log.event(kind, bytes(20))
    with pytest.raises(NotUnderstood, match=f"event type {kind}"):
        feed(decoder([]), bytes(log.packets))


def test_a_group_with_rows_that_ends_in_rollback_stops() -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1)
    log.query("BEGIN")
    log.table()
    log.insert((1, "x"))
    log.query("ROLLBACK")
    with pytest.raises(NotUnderstood, match="ROLLBACK"):
        feed(decoder([]), bytes(log.packets))


ERRORS = {
    "Could not find first log file name in binary log index file": PositionLost,
    "Client requested source to start replication from position > file size": PositionLost,
    "A replica with the same server_uuid/server_id as this replica has connected to the source": ServerIdTaken,
    "bogus data in log event; the first event": NotUnderstood,
}


@pytest.mark.parametrize("text", ERRORS)
def test_the_server_s_words_become_the_right_error(text: str) -> None:
    payload = b"\xff" + struct.pack("<H", 1236) + b"#HY000" + text.encode()
    with pytest.raises(ERRORS[text], match="errno 1236"):
        feed(decoder([]), len(payload).to_bytes(3, "little") + b"\0" + payload)


@settings(max_examples=FUZZ, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 7), st.booleans())
def test_flipped_bits_and_cut_streams_give_a_clean_error_or_nothing(at: int, bit: int, fix_crc: bool) -> None:
    """With the checksum made good again the damage reaches the parsers themselves."""
    data = bytearray(two_transactions().packets)
    at %= len(data)
    data[at] ^= 1 << bit
    if fix_crc:
        data = _fix(data)
    with contextlib.suppress(HeadraceError):  # any other exception, and a hang, is the fault that this looks for
        feed(decoder([]), bytes(data))


def _fix(data: bytearray) -> bytearray:
    at = 0
    while at + 28 < len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        end = at + 4 + size
        if end > len(data) or size < 24:
            break
        data[end - 4 : end] = struct.pack("<I", zlib.crc32(data[at + 5 : end - 4]))
        at = end
    return data


def test_column_names_never_reach_the_generated_source() -> None:
    fields = [Field("fixed", "i", 4), Field("var", "B", 1, codec="utf-8")]
    decode = make_decoder(fields)
    assert decode(b"\xfc\x05\0\0\0\x02hi", 0, 8) == [(5, "hi")]
    with pytest.raises(ValueError, match="ends at byte"):
        decode(b"\xfc\x05\0\0\0\x09hi", 0, 8)


def test_variables_for_one_statement_do_not_hide_it() -> None:
    """MariaDB writes them with it."""
    mariadb = Dialect(mariadb=True, version=101106)
    assert classify(b"SET STATEMENT max_statement_time=5 FOR INSERT INTO t VALUES (1)", mariadb) is Statement.DML
    assert classify(b"SET STATEMENT a=1, b='FOR' FOR ALTER TABLE t ADD c INT", mariadb) is Statement.OTHER


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("INSERT INTO t VALUES (1)", Statement.DML),
        ("/* hint */ update t set a = 1", Statement.DML),
        ("-- note\n DELETE FROM t", Statement.DML),
        ("/*!50003 REPLACE INTO t VALUES (1) */", Statement.DML),
        ("XA START X'78',X'',1", Statement.XA_START),
        ("XA END X'78'", Statement.INSIDE),
        ("SAVEPOINT a", Statement.SAVEPOINT),
        ("ROLLBACK TO SAVEPOINT a", Statement.ROLLBACK_TO),
        ("ROLLBACK TO `a`", Statement.ROLLBACK_TO),
        ("rollback /* */ work to b", Statement.ROLLBACK_TO),
        ("RELEASE SAVEPOINT a", Statement.INSIDE),
        ("ROLLBACK", Statement.ROLLBACK),
        ("COMMIT", Statement.COMMIT),
        ("CREATE TABLE `t` (id int) START TRANSACTION", Statement.ATOMIC_DDL),
        ("CREATE PROCEDURE p() START TRANSACTION", Statement.OTHER),
        ("CREATE DEFINER=`a`@`%` EVENT e ON SCHEDULE EVERY 1 DAY DO START TRANSACTION", Statement.OTHER),
        ("CREATE TABLE t (id int) -- START TRANSACTION", Statement.OTHER),
        ("CREATE TABLE t (id int) /* then START TRANSACTION", Statement.OTHER),
        ("CREATE TABLE t (a int) COMMENT 'x' # START TRANSACTION", Statement.OTHER),
        ("INSERT INTO t VALUES ('no end", Statement.DML),
        ("ALTER TABLE t ADD COLUMN updated INT", Statement.OTHER),
        ("", Statement.OTHER),
    ],
)
def test_statements_are_distinguished_by_their_first_words(text: str, kind: Statement) -> None:
    assert classify(text.encode(), Dialect(mariadb=False, version=90700)) is kind


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 5)), max_size=12))
def test_gtid_sets_hold_exactly_what_was_added(ranges: list[tuple[int, int]]) -> None:
    grown, numbers = GtidSet(), set()
    for first, more in ranges:
        for gno in range(first, first + more + 1):
            grown.add(SID, gno)
            numbers.add(gno)
    again = GtidSet(str(grown))
    assert str(again) == str(grown)
    assert str(GtidSet.unpack(grown.pack())) == str(grown)
    for gno in range(1, 70):
        assert again.contains(GtidSet(f"{SID}:{gno}")) == (gno in numbers)


@pytest.mark.parametrize("text", ["garbage", f"{SID}:0", f"{SID}:5-3", f"{SID}:tag", f"{SID}:1:1tag:2", SID])
def test_what_is_no_gtid_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"GTID set|interval|tag"):
        GtidSet(text)
