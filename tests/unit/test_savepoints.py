"""Rows behind a SAVEPOINT wait for the end of their transaction: what a ROLLBACK TO undoes is never given out."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import NotUnderstood
from headrace.model import Position, RowsChange
from headrace.mysql.decoder_options import DecoderOptions
from tests.made_binlog import SID, Binlog, close_all, decoder, feed


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_all()


def rows_of(changes: list[RowsChange]) -> list[Any]:
    return [row[0] for change in changes for row in change.rows]


Step = tuple[str, str | int]
NAMES = ("a", "A", "b", "we`ird", "名")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 999)),
        st.tuples(st.just("dropped"), st.integers(0, 999)),
        st.tuples(st.just("savepoint"), st.sampled_from(NAMES)),
        st.tuples(st.just("back"), st.sampled_from(NAMES)),
    ),
    max_size=25,
)


def kept(done: list[Step]) -> tuple[list[Step], list[int]]:
    """The steps that a server takes, those that name no savepoint left out, and the rows that are there in the end."""
    taken: list[Step] = []
    rows: list[int] = []
    marks: list[tuple[str, int]] = []
    for what, value in done:
        if what == "insert":
            rows.append(int(value))
        elif what == "savepoint":
            marks = [mark for mark in marks if mark[0] != str(value).casefold()]
            marks.append((str(value).casefold(), len(rows)))
        elif what == "back":
            names = [name for name, _ in marks]
            if str(value).casefold() not in names:
                continue
            del marks[names.index(str(value).casefold()) + 1 :]
            del rows[marks[-1][1] :]
        taken.append((what, value))
    return taken, rows


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def write(log: Binlog, done: list[Step]) -> None:
    for what, value in done:
        if what == "savepoint":
            log.query(f"SAVEPOINT {quoted(str(value))}")
        elif what == "back":
            log.query(f"ROLLBACK TO {quoted(str(value))}")
        else:
            log.table("dropped" if what == "dropped" else "t")
            log.insert((int(value), "x"))


def transaction(log: Binlog, gno: int, done: list[Step], *, compressed: bool = False) -> None:
    log.gtid(gno, 1_700_000_000_000_000 + gno)
    into = Binlog() if compressed else log
    into.query("BEGIN")
    write(into, done)
    into.event(16, struct.pack("<Q", gno))
    if compressed:
        log.event(40, payload(into))


def payload(inner: Binlog) -> bytes:
    """The events without their packets' heads and checksums, compressed."""
    data, at, events = bytes(inner.packets), 0, b""
    while at < len(data):
        size = int.from_bytes(data[at : at + 3], "little")
        event = bytearray(data[at + 5 : at + 4 + size - 4])
        event[9:13] = struct.pack("<I", len(event))
        events += bytes(event)
        at += 4 + size
    packed = zstandard.ZstdCompressor().compress(events)

    def number(value: int) -> bytes:
        return b"\xfe" + struct.pack("<Q", value)

    fields = b"".join(bytes([kind, 9]) + number(value) for kind, value in ((2, 0), (3, len(events)), (1, len(packed))))
    return fields + b"\0" + packed


@pytest.mark.parametrize("compressed", [False, True])
@given(data=st.data())
def test_what_is_given_out_is_what_is_there_in_the_end(data: st.DataObject, compressed: bool) -> None:
    taken, rows = kept(data.draw(steps))
    log, changes = Binlog().begin_file(), list[RowsChange]()
    transaction(log, 1, taken, compressed=compressed)
    transaction(log, 2, [("insert", 1000)])
    d = decoder(changes)
    feed(d, bytes(log.packets))
    close_all()
    assert rows_of(changes) == [*rows, 1000]
    assert d.position().gtid_set == f"{SID}:1-2"
    assert d.position().offset == log.at
    numbers = [change.pos for change in changes]
    assert numbers == sorted(set(numbers))


@given(data=st.data())
def test_a_restart_within_a_transaction_with_savepoints_gives_each_row_once(data: st.DataObject) -> None:
    taken, rows = kept(data.draw(steps))
    log, before = Binlog().begin_file(), list[RowsChange]()
    begin = log.at
    transaction(log, 1, taken)
    d = decoder(before)
    feed(d, bytes(log.packets))
    total = d.position()
    whole = [(change.pos, change.rows, change.origin.ordinal) for change in before]
    for done in {0, *(change.origin.ordinal for change in before)}:
        again = list[RowsChange]()
        last = max((pos for pos, _, ordinal in whole if ordinal <= done), default=0)
        start = Position("server", "b.000001", begin, "", done, last_pos=last)
        feed(decoder(again, start), bytes(log.packets))
        assert [(change.pos, change.rows) for change in again] == [one[:2] for one in whole if one[2] > done]
    close_all()
    assert [row[0] for _, group, _ in whole for row in group] == rows
    assert replace(total, gtid_set="").offset == log.at


def test_a_transaction_that_ends_in_a_rollback_gives_nothing_of_what_waited() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    write(log, [("savepoint", "a"), ("insert", 1)])
    log.query("ROLLBACK")
    transaction(log, 2, [("insert", 2)])
    feed(decoder(changes), bytes(log.packets))
    assert rows_of(changes) == [2]


def test_a_savepoint_that_the_transaction_does_not_have_stops() -> None:
    log = Binlog().begin_file()
    transaction(log, 1, [("savepoint", "a"), ("insert", 1), ("back", "b")])
    with pytest.raises(NotUnderstood, match="rolled back to the savepoint 'b', which it does not have"):
        feed(decoder([]), bytes(log.packets))


def test_events_held_after_a_savepoint_are_bounded() -> None:
    log = Binlog().begin_file()
    transaction(log, 1, [("savepoint", "a"), *[("insert", n) for n in range(40)]])
    with pytest.raises(NotUnderstood, match="of those after a SAVEPOINT, take more than 2000 bytes"):
        feed(decoder([], options=DecoderOptions(max_spool=2000)), bytes(log.packets))


def test_the_rows_of_an_xa_transaction_go_back_to_its_savepoints_too() -> None:
    log, changes = Binlog().begin_file(), list[RowsChange]()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("XA START X'61',X'',1")
    write(log, [("insert", 1), ("savepoint", "a"), ("insert", 2), ("back", "a"), ("insert", 3)])
    log.query("XA END X'61',X'',1")
    log.event(38, struct.pack("<BiII", 0, 1, 1, 0) + b"a")
    log.gtid(2, 1_700_000_000_000_002)
    log.query("XA COMMIT X'61',X'',1")
    feed(decoder(changes), bytes(log.packets))
    assert rows_of(changes) == [1, 3]
