"""Moves of a position without a server: how a position is written, what is given up, the schema history, the
numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock

import pytest

from headrace.errors import LostKind, PositionLost, SourceChanged
from headrace.model import POS_ROOM, POS_SHIFT, Position
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position import by_hand
from headrace.mysql.position.by_hand import trail
from headrace.mysql.position.move import NextFile, _Mover, _schema_pos, on_another_history, parse_where
from headrace.mysql.position.scan import limit_after
from headrace.mysql.position.scans import TransactionBoundary
from headrace.mysql.schema.ddl.definition import TableDefinition
from headrace.mysql.schema.entries import back_entry, definition_fields, doubt_entry, in_force, table_entry
from headrace.mysql.schema.states import NEVER, States
from headrace.ports.source import Move
from headrace.ports.state import HistoryEntry, Stored
from headrace.settings.destination import SourceSettings
from headrace.settings.values import StartAt, StartEarliest, StartGtid, StartLatest, StartTime
from tests.unit.test_position_scan import INVENTORY

SOURCE = SourceSettings.model_validate({"host": "h", "user": "u", "password": "p"})
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ABOVE_ALL = limit_after(0)
"""No number is above it, by the clock of INVENTORY."""
STORED = Position("u", "b.000005", 300, last_pos=9000 << POS_SHIFT, commit_time_us=9000)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("b.000003:4", StartAt("b.000003", 4)),
        (" latest ", StartLatest()),
        ("earliest", StartEarliest()),
        ("next-file", NextFile()),
        ("2026-01-31T12:00:00+0800", StartTime(datetime(2026, 1, 31, 4, tzinfo=UTC))),
        (f"{UUID}:1-7", StartGtid(f"{UUID}:1-7")),
        ("0-1-100", StartGtid("0-1-100")),
        ("2026-01-31T12:00:00.000001Z", StartTime(datetime(2026, 1, 31, 12, 0, 0, 1, UTC))),
    ],
)
def test_a_position_is_read_as_it_is_written(text: str, where: Any) -> None:
    assert parse_where(text) == where


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "next_file",
        "b.000003",
        "b.000003:3",
        "b.000003:4+1",
        "2026-01-31T12:00:00",
        "1-2",
    ],
)
def test_anything_else_is_refused_with_what_could_be(text: str) -> None:
    with pytest.raises(ValueError, match=r"next-file|offset should|zone"):
        parse_where(text)


def mover(stored: Position | None, first: int = 0, **more: Any) -> _Mover:
    """On INVENTORY, where the first transaction behind any place was committed at `first`."""
    made = _Mover(SOURCE, replace(INVENTORY, **more), stored, "operator", 77)

    class Finder:
        async def first_from(self, boundary: TransactionBoundary) -> int:
            return first

    made._finder = Finder()  # type: ignore[assignment]
    return made


async def test_a_move_forward_keeps_the_numbers_and_trusts_no_schema() -> None:
    stored = replace(STORED, file="b.000003", offset=100)
    move = await mover(stored).move(TransactionBoundary("b.000005", 50), [], [])
    assert (move.position.last_pos, move.position.commit_time_us) == (ABOVE_ALL, stored.commit_time_us)
    assert (move.gap.bytes, move.gap.files, move.gap.backward) == (200 + 400 + 50, 2, False)
    assert move.entries == (doubt_entry(ABOVE_ALL, "b.000005:50", move.entries[0]["why"]),)
    assert str(move.gap) == "b.000003:100 -> b.000005:50: 2 files, 650 bytes given up"


async def test_a_move_to_where_it_is_costs_nothing() -> None:
    move = await mover(STORED).move(TransactionBoundary("b.000005", 300), [], [])
    assert move.entries == ()
    assert (move.gap.bytes, move.gap.files) == (0, 0)
    assert move.position == replace(STORED)


async def test_without_a_stored_position_nothing_is_given_up_and_numbers_go_on() -> None:
    move = await mover(None).move(TransactionBoundary("b.000005", 50), [], [])
    assert (move.position.last_pos, move.gap.start, move.gap.bytes, move.entries) == (ABOVE_ALL, "", None, ())
    first = _Mover(SOURCE, INVENTORY, None, "operator", 0)
    assert (await first.move(TransactionBoundary("b.000005", 50), [], [])).position.last_pos == 0, (
        "nothing was published"
    )
    move = await mover(None).move(TransactionBoundary("b.000005", 50), [{"kind": "listed", "pos": 1, "at": "x"}], [])
    assert [entry["kind"] for entry in move.entries] == ["doubt"]


async def test_gtids_say_what_is_given_up_and_what_comes_again() -> None:
    stored = replace(STORED, gtid_set=f"{UUID}:1-10", own_gtids=f"{UUID}:9-10")
    forward = await mover(stored).move(TransactionBoundary("b.000005", 400, GtidSet(f"{UUID}:1-15")), [], [])
    assert (forward.gap.transactions, forward.gap.gtids, forward.gap.backward) == (5, f"{UUID}:11-15", False)
    assert forward.position.own_gtids == f"{UUID}:9-10"
    back = await mover(stored, 5).move(TransactionBoundary("b.000003", 50, GtidSet(f"{UUID}:1-7")), [], [])
    assert (back.gap.transactions, back.gap.gtids, back.gap.backward) == (3, f"{UUID}:8-10", True)
    assert back.position.own_gtids == ""
    assert [entry["kind"] for entry in back.entries] == ["back", "doubt"]
    assert {entry["pos"] for entry in back.entries} == {back.position.last_pos}
    both = await mover(stored, 5).move(TransactionBoundary("b.000003", 50, GtidSet(f"{UUID}:1-7:12")), [], [])
    assert (both.gap.transactions, both.gap.gtids, both.gap.backward) == (1, f"{UUID}:12", False)
    assert any("3 transactions are published again" in note for note in both.notes)
    purged = mover(stored, purged=f"{UUID}:1-12")
    move = await purged.move(TransactionBoundary("b.000003", 4, GtidSet(f"{UUID}:1-11")), [], [])
    assert move.position.gtid_set == f"{UUID}:1-12"  # with less the server would refuse the dump


async def test_a_server_with_restarted_file_numbers_is_not_an_earlier_position() -> None:
    stored = replace(STORED, file="b.000050")
    move = await mover(stored, 1).move(TransactionBoundary("b.000003", 4), [], [])
    assert (move.gap.backward, move.position.last_pos) == (False, ABOVE_ALL)
    assert [entry["kind"] for entry in move.entries] == ["doubt"]


async def _moved_back() -> Move:
    """Returns a move to a place whose schemas are known."""
    earlier = [replace(STORED, file="b.000001", offset=4, last_pos=1)]
    entries = [{"kind": "listed", "pos": 2, "at": "b.000001:157"}]
    move = await mover(STORED, 5).move(TransactionBoundary("b.000003", 50), entries, earlier)
    assert [entry["kind"] for entry in move.entries] == ["back"]
    return move


async def test_on_a_server_that_was_reset_an_earlier_place_is_no_move_back() -> None:
    move = on_another_history(await _moved_back(), STORED)
    assert [entry["kind"] for entry in move.entries] == ["doubt"]
    assert move.position.last_pos == move.entries[0]["pos"] > limit_after(1_700_000_000)


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (SourceChanged("it was reset"), ["doubt"]),
        (PositionLost("the file is shorter", kind=LostKind.BEYOND_END), ["doubt"]),
        (PositionLost("the file was removed", kind=LostKind.POSITION_PURGED), ["back"]),
    ],
)
async def test_a_move_by_hand_trusts_no_schema_if_the_files_may_be_others(
    error: Exception, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_hand.SourceConnection, "open", AsyncMock())
    monkeypatch.setattr(by_hand, "compare_server", AsyncMock(side_effect=error))
    monkeypatch.setattr(by_hand, "relocate", AsyncMock(return_value=await _moved_back()))
    stored = Stored(STORED, 1, 1)
    move = await by_hand.move_by_hand([SOURCE], NextFile(), stored, [], [], read_schemas=False)
    assert [entry["kind"] for entry in move.entries] == kinds
    assert bool(move.notes) == (kinds == ["doubt"])


async def test_another_server_gets_numbers_above_all_earlier_ones() -> None:
    stored = replace(STORED, server_uuid="other", gtid_set=f"{UUID}:1-10")
    move = await mover(stored, 1).move(TransactionBoundary("b.000003", 4, GtidSet(f"{UUID}:1-7")), [], [])
    assert (move.gap.backward, move.position.last_pos, move.position.server_uuid) == (True, ABOVE_ALL, "u")
    assert (move.gap.bytes, move.gap.transactions) == (None, 3)
    assert [entry["kind"] for entry in move.entries] == ["doubt"]


SPOT = TransactionBoundary("b.000004", 200, pos_limit=4000 << POS_SHIFT)


async def rewound(first: int, *earlier: Position) -> int:
    begin = replace(STORED, file="b.000003", offset=4, last_pos=1)
    return (await mover(STORED, first).move(SPOT, [], [*earlier, begin])).position.last_pos


async def test_rows_that_come_again_get_the_numbers_that_they_had() -> None:
    assert await rewound(5000) == (5000 << POS_SHIFT) - 1 - POS_ROOM
    # a stored position of the very position knows better: numbers ran over into that microsecond
    here = replace(STORED, file="b.000004", offset=200, last_pos=(5000 << POS_SHIFT) + 3)
    assert await rewound(5000, STORED, here) == here.last_pos
    # in the middle of that transaction it says only how high the numbers may have been
    assert await rewound(5000, replace(here, events_done=1)) == (5000 << POS_SHIFT) - 1 - POS_ROOM
    before = replace(here, offset=100, last_pos=3999 << POS_SHIFT)
    assert await rewound(5000, replace(here, offset=300), before) == (5000 << POS_SHIFT) - 1 - POS_ROOM


async def test_where_numbers_may_still_run_over_none_is_given_out_twice() -> None:
    assert await rewound(9000) == ABOVE_ALL  # all within one unit of the commit time
    assert await rewound(0) == ABOVE_ALL
    here = replace(STORED, file="b.000004", offset=200, last_pos=(5000 << POS_SHIFT) + 3)
    assert await rewound(5000, replace(here, offset=100)) == ABOVE_ALL
    assert await rewound(5000, replace(here, offset=300, last_pos=4000 << POS_SHIFT)) == ABOVE_ALL
    for limit in (5000 << POS_SHIFT, 0):  # an earlier transaction of the same time, or unknown ones
        move = await mover(STORED, 5000).move(replace(SPOT, pos_limit=limit), [], [])
        assert move.position.last_pos == ABOVE_ALL


async def test_numbers_go_on_above_the_newest_where_statements_show_that_they_had_run_over() -> None:
    begin = replace(STORED, file="b.000003", offset=4, last_pos=1)
    ran_over = entry((5000 << POS_SHIFT) + 7, "b.000004:150")
    move = await mover(STORED, 5000).move(SPOT, [ran_over], [begin])
    assert move.position.last_pos == ABOVE_ALL
    assert move.entries == (back_entry((5000 << POS_SHIFT) + 7, str(SPOT)),)


async def test_statements_after_the_place_are_void_although_numbers_go_on_above_the_newest() -> None:
    begin = replace(STORED, file="b.000003", offset=4, last_pos=1)
    before, after = entry(10, "b.000004:150"), entry(20, "b.000004:260", "u")
    move = await mover(STORED, 9000).move(SPOT, [before, after], [begin])
    assert move.position.last_pos == ABOVE_ALL
    states = States(lambda schema, table: True, 0)
    states.restore([before, after, *move.entries], move.position.last_pos)
    assert [type(states.get(("s", name))) for name in ("t", "u")] == [TableDefinition, type(NEVER)]


@pytest.mark.parametrize("stored", [STORED, replace(STORED, file="b.000003", offset=9)], ids=["back", "forward"])
async def test_numbers_of_rows_that_were_published_beyond_the_stored_position_are_not_given_out_again(
    stored: Position,
) -> None:
    now = 1_700_000_000
    move = await mover(stored, 9000, now=now + 0.5).move(SPOT, [], [])
    assert move.position.last_pos == (now + 1) * 1_000_000 << POS_SHIFT
    stays = await mover(stored, 9000, now=now).move(TransactionBoundary(stored.file, stored.offset), [], [])
    assert stays.position.last_pos == stored.last_pos


async def test_xa_transactions_that_are_forgotten_are_named() -> None:
    from headrace.model import OpenXa

    stored = replace(STORED, open_xa=(OpenXa("1:61:", "b.000003", 4),))
    move = await mover(stored).move(TransactionBoundary("b.000005", 400), [], [])
    assert move.position.open_xa == ()
    assert "1:61:" in move.notes[0]


def entry(pos: int, at: str, table: str = "t") -> dict[str, Any]:
    return table_entry("s", table, pos, at, **definition_fields(TableDefinition((), (), "")))


def test_statements_and_numbers_must_agree_about_what_lies_before_a_position() -> None:
    begin = replace(STORED, file="b.000003", offset=50, last_pos=100)
    entries = [entry(50, "reading"), entry(100, "reading"), entry(200, "b.000004:150"), entry(300, "b.000004:260")]
    assert _schema_pos(entries, [begin], SPOT, 250) == (250, True)
    assert _schema_pos(entries, [begin], SPOT, 150) == (200, True)  # the number ran over
    assert _schema_pos(entries, [begin], SPOT, 400) == (299, True)
    torn = [entry(300, "b.000004:150"), entry(200, "b.000004:260")]
    assert _schema_pos(torn, [begin], SPOT, 250) == (250, False)
    assert _schema_pos(entries, [], SPOT, 250) == (250, False)
    assert _schema_pos(entries, [replace(begin, file="b.000005")], SPOT, 250) == (250, False)
    # what an earlier move back has made void has no say
    assert _schema_pos([entry(260, "b.000004:150"), back_entry(240, "x"), *entries], [begin], SPOT, 250) == (250, True)


def test_after_a_move_back_only_what_lay_before_it_and_what_came_since_counts() -> None:
    entries = [entry(1, "a", "old"), entry(5, "a", "void"), back_entry(3, "a"), entry(4, "a", "new")]
    assert [known.get("table") for known in in_force(entries)] == ["old", "new"]
    states = States(lambda schema, table: True, 0)
    states.restore(entries, 100)
    assert isinstance(states.get(("s", "old")), TableDefinition)
    assert isinstance(states.get(("s", "new")), TableDefinition)
    assert isinstance(states.get(("s", "void")), str)
    states = States(lambda schema, table: True, 0)
    states.restore([*entries, back_entry(-1, "reset")], 100)
    assert isinstance(states.get(("s", "old")), str)


def test_after_a_move_to_before_a_compaction_no_schema_is_known() -> None:
    begin = replace(STORED, file="b.000003", offset=50, last_pos=100)
    again = [entry(40, "a", "void"), back_entry(-1, "b.000004:260"), entry(300, "b.000004:260")]
    later = [entry(310, "b.000005:10", "u")]
    for numbers in (250, 400):  # the second: nothing has shown where the numbers were in step again
        last_pos, _ = _schema_pos(again + later, [begin], SPOT, numbers)
        states = States(lambda schema, table: True, 0)
        states.restore([*again, *later, back_entry(last_pos, str(SPOT))], last_pos)
        assert [states.get(("s", name)) for name in ("t", "u", "void", "other")] == [NEVER] * 4
    last_pos, sure = _schema_pos(again + later, [begin], replace(SPOT, offset=400), 305)
    assert (last_pos, sure) == (305, True)
    assert _schema_pos(again + later, [], SPOT, 400) == (400, False), "all is in doubt then"


def history(*entries: tuple[str, Position | None]) -> list[HistoryEntry]:
    return [HistoryEntry(actor, 1, 1, position, {}, 1) for actor, position in entries]


def test_the_trail_ends_at_the_last_jump_and_at_another_server() -> None:
    a, b, c = (replace(STORED, offset=offset) for offset in (30, 20, 10))
    other = replace(STORED, server_uuid="other")
    assert trail(history(("checkpoint", a), ("checkpoint", b), ("checkpoint", c))) == [a, b, c]
    assert trail(history(("checkpoint", a), ("operator", b), ("checkpoint", c))) == [a, b]
    assert trail(history(("checkpoint", a), ("checkpoint", other), ("checkpoint", c))) == [a]
    assert trail(history(("checkpoint", a), ("operator", None), ("checkpoint", c))) == [a]
    assert trail(history(("operator", None), ("checkpoint", c))) == []
    assert trail([]) == []


def test_a_position_is_written_by_file_and_offset_or_by_gtids() -> None:
    assert str(STORED) == "b.000005:300"
    assert str(replace(STORED, events_done=2)) == "b.000005:300+2"
    assert str(replace(STORED, file="", gtid_set=f"{UUID}:1")) == f"{UUID}:1"
