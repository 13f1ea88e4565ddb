"""Numbers after moves of a position: what comes again has the number that it had, or one above all that were given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.model import POS_ROOM, POS_SHIFT, Position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.move import _with_gtids, on_another_history
from headrace.mysql.position.scan import limit_after
from headrace.mysql.position.scans import At, TransactionBoundary
from headrace.ports.source import Move
from tests.made_binlog import SID, Binlog
from tests.unit.test_position_move import mover
from tests.unit.test_position_scan import feed, rotate

NOW = 1_700_000_000
"""The source's clock."""


def number(seconds: float) -> int:
    """The number of a row that was committed then, if numbers are in step."""
    return int(seconds * 1e6) << POS_SHIFT


def stored_at(ago: float, **more: object) -> Position:
    """A position before which the last transaction was committed so many seconds ago."""
    made = Position("u", "b.000005", 300, last_pos=number(NOW - ago), commit_time_us=int((NOW - ago) * 1e6))
    return replace(made, **more)  # type: ignore[arg-type]


def place(ago: float, file: str = "b.000003", offset: int = 50) -> TransactionBoundary:
    """A place in step, with a transaction that was committed so many seconds ago."""
    time = int((NOW - ago) * 1e6)
    return TransactionBoundary(file, offset, commit_time_us=time, pos_limit=number(NOW - ago - 1))


async def moved(stored: Position | None, to: TransactionBoundary, *trail: Position, now: float = NOW) -> Move:
    return await mover(stored, to.commit_time_us, now=now).move(to, [], trail)


def after(move: Move, ago: float) -> int:
    """The number of the first row after a move, if it was committed so many seconds ago."""
    return max(number(NOW - ago), move.position.last_pos + POS_ROOM + 1)


async def test_after_a_move_to_new_numbers_a_second_one_further_back_has_none_below_them() -> None:
    first = await moved(stored_at(10), replace(place(1000, "b.000004"), pos_limit=0))
    assert first.position.last_pos == limit_after(NOW)
    older_state = after(first, 1000)
    meanwhile = replace(first.position, offset=250, last_pos=older_state + 5, commit_time_us=int((NOW - 990) * 1e6))
    second = await moved(meanwhile, place(2000), meanwhile, first.position, now=NOW + 60)
    assert after(second, 500) > older_state


async def test_a_floor_stays_when_numbers_are_in_step_again() -> None:
    stored = stored_at(-90, snapshot_pos=limit_after(NOW))
    assert (await moved(stored, place(500), now=NOW + 100)).position.last_pos == limit_after(NOW + 100)


@pytest.mark.parametrize("ahead", [3600, 3], ids=["an hour", "seconds"])
async def test_numbers_that_are_ahead_of_the_clock_are_not_taken_for_those_of_commit_times(ahead: float) -> None:
    stored = stored_at(10, last_pos=number(NOW + ahead))
    assert after(await moved(stored, place(2000), stored), 0) > stored.last_pos
    beyond = stored.last_pos + 50_000
    for to in (place(500, "b.000006"), TransactionBoundary("b.000005", 500)):
        assert after(await moved(stored, to), 0) > beyond


async def test_two_moves_in_one_second_give_no_number_twice() -> None:
    stored = stored_at(1000, last_pos=limit_after(NOW))
    assert after(await moved(stored, TransactionBoundary("b.000005", 500), now=NOW + 0.9), 0) > stored.last_pos + 50_000


async def test_on_another_history_no_former_number_comes_again() -> None:
    stored = stored_at(10)
    move = on_another_history(await moved(stored, place(2000)), stored)
    assert after(move, 2000) > stored.last_pos + 50_000
    assert move.position.snapshot_pos == move.position.last_pos


def test_a_set_that_leaves_something_out_after_the_place_changes_the_numbers_of_the_rest() -> None:
    boundary = replace(place(10), gtids=GtidSet(f"{SID}:1-3"))
    assert _with_gtids(boundary, GtidSet(f"{SID}:1-3:5")).pos_limit == 0
    assert _with_gtids(boundary, GtidSet(f"{SID}:1-3")).pos_limit == boundary.pos_limit


def in_step(made: Binlog, start: int) -> bool:
    """Whether the numbers before the transaction there are known to end before its time."""
    scan = At("b.000001", start)
    scan.cursor.checksums = True
    feed(scan, bytes(made.packets))
    assert scan.found is not None
    return 0 < scan.found.pos_limit < (scan.found.commit_time_us << POS_SHIFT) - POS_ROOM


def test_a_file_may_begin_with_an_older_time_than_the_one_before_it_ended_with() -> None:
    made = Binlog().begin_file(version=b"10.11-MariaDB")
    made.transaction(1, (NOW - 600) * 10**6, [(1, "a")])
    start = made.at
    made.transaction(2, NOW * 10**6, [(2, "b")])
    later = made.at
    made.transaction(3, (NOW + 2) * 10**6, [(3, "c")])
    rotate(made)
    assert not in_step(made, start)
    assert in_step(made, later)


def test_the_end_of_an_xa_transaction_and_compressed_rows_may_take_any_number() -> None:
    for what in ("xa", "compressed", "plain"):
        made, time = Binlog().begin_file(), (NOW + 20) * 10**6
        made.gtid(1, time)
        if what == "xa":
            made.query("XA COMMIT X'61',X'',1")
        else:
            made.query("BEGIN")
            made.event(40 if what == "compressed" else 16, bytes(100 if what == "compressed" else 8))
        start = made.at
        made.transaction(2, time + 40, [(1, "x")])
        later = made.at
        made.transaction(3, time + 2_000_000, [(1, "x")])
        rotate(made)
        assert in_step(made, start) == (what == "plain"), what
        assert in_step(made, later)
