"""What libraries say again and again."""

from __future__ import annotations

import logging

import structlog

from headrace_common.logs import Repeats
from tests.clock import Clock


def say(repeats: Repeats, text: str, *arguments: object, name: str = "aiokafka.client") -> str | None:
    record = logging.LogRecord(name, logging.ERROR, "", 0, text, arguments, None)
    return record.getMessage() if repeats.filter(record) else None


def test_one_line_a_minute_goes_on_with_the_number_of_the_others(clock: Clock) -> None:
    repeats = Repeats(60.0, clock)
    said = []
    for second in range(130):
        clock.now = 1000.0 + second
        said.append(say(repeats, "Unable connect to node with id %s", second))
    assert [(at, one) for at, one in enumerate(said) if one] == [
        (0, "Unable connect to node with id 0"),
        (60, "Unable connect to node with id 60 (59 more like this in 60 s)"),
        (120, "Unable connect to node with id 120 (59 more like this in 60 s)"),
    ]


def test_other_lines_and_other_destinations_are_not_held_back(clock: Clock) -> None:
    repeats = Repeats(60.0, clock)
    assert say(repeats, "a")
    assert say(repeats, "b")
    assert say(repeats, "a", name="kazoo")
    with structlog.contextvars.bound_contextvars(destination="shop"):
        assert say(repeats, "a")
        assert say(repeats, "a") is None


def test_our_own_lines_all_go_on(clock: Clock) -> None:
    repeats = Repeats(60.0, clock)
    assert [say(repeats, "a", name="headrace.destination") for _ in range(3)] == ["a"] * 3


def test_what_structlog_has_made_is_ours_under_any_name(clock: Clock) -> None:
    record = logging.LogRecord("tests", logging.INFO, "", 0, {"event": "table read"}, (), None)  # type: ignore[arg-type]
    repeats = Repeats(60.0, clock)
    assert [repeats.filter(record) for _ in range(2)] == [True, True]


def test_lines_of_ever_new_kinds_take_no_more_than_so_much_memory(clock: Clock) -> None:
    repeats = Repeats(60.0, clock)
    for number in range(5000):
        assert say(repeats, f"kind {number}")
    assert len(repeats._seen) <= 1000
