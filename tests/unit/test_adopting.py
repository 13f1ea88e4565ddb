"""Where `headrace adopt` goes on: after the last event whose messages the other system has published."""

from __future__ import annotations

from typing import Any

from headrace.model import Origin
from headrace.moving.adopting import Handover, Resume
from headrace.moving.shadow.canal_rules import CanalRules
from headrace.moving.shadow.changes import Change
from headrace.moving.shadow.comparison import Comparison

BEGIN = 50
"""Where the cursor's transaction begins."""
CURSOR = 100
"""The cursor covers events up to this offset."""


def change(id_: int, value: str, *, at: int = 5_000, kind: str = "UPDATE") -> Change:
    return Change("shop.t", str(id_), kind, {"data.v": value, "es": at}, at, at)


def handed(published: list[Change], events: list[tuple[Origin, list[Change]]]) -> Handover:
    rules = CanalRules()
    comparison = Comparison(rules.explain, rules.alone)
    made = Handover(published, ("bin.000001", BEGIN), lambda origin: origin.offset <= CURSOR, comparison)
    for origin, changes in events:
        made.take(origin, changes, origin.ordinal - 1)
    return made


def event(offset: int, *changes: Change, transaction: int = 50, ordinal: int = 1) -> tuple[Origin, list[Change]]:
    return Origin("bin.000001", transaction, offset, ordinal), list(changes)


def test_it_goes_on_at_the_first_event_that_is_not_published() -> None:
    events = [
        event(100, change(1, "a")),
        event(110, change(1, "b"), change(2, "b"), ordinal=2),
        event(120, change(1, "c"), ordinal=3),
        event(200, change(1, "d"), transaction=150),
    ]
    made = handed([change(1, "a"), change(1, "b"), change(2, "b")], events)
    assert (made.resume, made.found, made.again) == (Resume("bin.000001", 50, 2), 2, 0)


def test_when_all_is_published_it_goes_on_after_the_last_event() -> None:
    events = [event(110, change(1, "a")), event(120), event(130, change(1, "b"), ordinal=2)]
    made = handed([change(1, "a"), change(1, "b")], events)
    assert made.resume is None
    assert made.last is not None
    assert (made.last.offset, made.found) == (130, 2)


def test_an_event_of_which_a_message_is_missing_comes_again_as_a_whole() -> None:
    made = handed([change(1, "a")], [event(110, change(1, "a"), change(2, "a"))])
    assert (made.resume, made.found, made.again) == (Resume("bin.000001", 50, 0), 0, 1)


def test_what_is_published_after_a_hole_is_counted() -> None:
    events = [event(110, change(1, "a")), event(200, change(2, "a"), transaction=150)]
    made = handed([change(2, "a")], events)
    assert (made.resume, made.again) == (Resume("bin.000001", 50, 0), 1)


def test_events_that_the_cursor_covers_need_no_message() -> None:
    covered = event(100, change(1, "a"))
    made = handed([], [event(20, change(1, "b"), transaction=10), covered, event(110)])
    assert (made.resume, made.last, made.found) == (None, covered[0], 0)


def test_an_equal_change_of_a_row_is_not_taken_for_a_later_one() -> None:
    """The covered events take their messages away first, in the order of the row's changes."""
    same: dict[str, Any] = {"at": 5_000}
    events = [event(100, change(1, "x", **same)), event(110, change(1, "x", **same), transaction=105)]
    made = handed([change(1, "x", **same)], events)
    assert made.resume == Resume("bin.000001", 105, 0)


def test_a_change_that_was_sent_twice_is_left_over() -> None:
    made = handed([change(1, "a"), change(1, "a")], [event(110, change(1, "a"))])
    assert made.left_over() == 1


def test_a_change_sent_twice_that_resembles_a_later_one_is_noticed() -> None:
    first, second = change(1, "a", at=5_000), change(1, "b", at=5_000)
    later = change(1, "a", at=9_000)
    events = [event(90, first), event(100, second, transaction=95), event(200, later, transaction=150)]
    made = handed([first, second, first, second], events)
    assert (made.resume, made.left_over()) == (None, 1)


def test_marks_of_transactions_are_not_searched() -> None:
    mark = Change("tx", "", "TRANSACTIONBEGIN", {}, 5_000, 5_000)
    made = handed([mark], [event(110, mark, change(1, "a"))])
    assert (made.resume, made.left_over()) == (Resume("bin.000001", 50, 0), 0)


def test_what_the_other_system_alone_publishes_is_not_left_over() -> None:
    text = Change("(no table)", "", "QUERY", {"isDdl": False, "sql": "INSERT"}, 5_000, 5_000)
    made = handed([change(1, "a"), text], [event(110, change(1, "a"))])
    assert made.left_over() == 0
