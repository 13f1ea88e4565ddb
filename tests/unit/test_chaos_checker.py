"""The chaos suite's checker finds each kind of violation in topics made by hand, and none in a sound one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from sim.topic_checker import Committed, Findings, Record, TopicChecker

EVENTS = [Committed(f"s:{number}#1", 1) for number in range(1, 7)]
TABLE = {"t": {"1": {"id": "1", "n": "2"}, "2": {"id": "2", "n": "6"}}}
CHANGES = [  # key 1 is changed twice, key 3 comes and goes, key 4 becomes key 2
    ("INSERT", {"id": "1", "n": "1"}, None),
    ("UPDATE", {"id": "1", "n": "2"}, {"n": "1"}),
    ("INSERT", {"id": "3", "n": "3"}, None),
    ("DELETE", {"id": "3", "n": "3"}, None),
    ("INSERT", {"id": "4", "n": "6"}, None),
    ("UPDATE", {"id": "2", "n": "6"}, {"id": "4"}),
]


def message(number: int, epoch: int | None = 1, **changed: Any) -> tuple[dict[str, bytes], bytes]:
    """The message of the change with that number, from 1."""
    kind, row, old = CHANGES[number - 1]
    headers = {"headrace-id": EVENTS[number - 1].id.encode(), "headrace-pos": b"%d" % (number * 10)}
    if epoch is not None:
        headers["headrace-epoch"] = b"%d" % epoch
    value = {"isDdl": False, "table": "t", "type": kind, "data": [row], "old": old and [old]}
    headers |= changed.pop("headers", {})
    return headers, orjson.dumps(value | changed)


def check(
    *messages: tuple[dict[str, bytes], bytes],
    delivery: str = "at_least_once",
    bound: int = 100,
    tables: Any = TABLE,
    partitions: Sequence[int] = (),
) -> Findings:
    checker = TopicChecker(EVENTS, 1, delivery, bound)
    for offset, (headers, value) in enumerate(messages):
        checker.feed(Record(partitions[offset] if partitions else 0, offset, headers, value, 60))
    return checker.finish(tables)


ALL = [message(number) for number in range(1, 7)]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_sound_topic_has_no_violation(delivery: str) -> None:
    found = check(*ALL, delivery=delivery)
    assert found.sound, found.texts
    assert (found.messages, found.rows, found.duplicates, found.escaped_messages) == (6, 6, 0, 0)


def test_it_is_complete_once_the_last_change_came_in_a_message_that_counts() -> None:
    checker = TopicChecker(EVENTS, 1, "at_least_once", 100)
    seen = []
    for offset, (headers, value) in enumerate([*ALL[:2], message(2, 2), message(6, 1), message(6, 2)]):
        checker.feed(Record(0, offset, headers, value, 60))
        seen.append(checker.complete)
    assert seen == [False, False, False, False, True]


def test_a_stretch_that_is_sent_again_is_sound_at_least_once_and_a_duplicate_exactly_once() -> None:
    again = [*ALL[:4], message(2, 2), message(3, 2), message(4, 2), message(5, 2), message(6, 2)]
    found = check(*again)
    assert found.sound, found.texts
    assert (found.duplicates, found.epochs) == (3, {1, 2})
    assert check(*again, delivery="exactly_once").counts == {"duplicate": 3}


@pytest.mark.parametrize("number", range(1, 7))
def test_a_missing_row_is_found_even_if_the_table_does_not_show_it(number: int) -> None:
    found = check(*(one for i, one in enumerate(ALL, 1) if i != number))
    assert found.counts["missing"] == 1
    assert f"s:{number}#1" in found.texts[0]


def test_a_missing_part_of_an_event_is_found() -> None:
    checker = TopicChecker([Committed("s:1#1", 3)], 1, "at_least_once", 0)
    for i in (0, 2):
        headers = {"headrace-id": b"s:1#1.%d" % i, "headrace-pos": b"%d" % (10 + i), "headrace-epoch": b"1"}
        row = {"id": str(i)}
        value = orjson.dumps({"isDdl": False, "table": "t", "type": "INSERT", "data": [row], "old": None})
        checker.feed(Record(0, i, headers, value, 60))
    found = checker.finish({"t": {str(i): {"id": str(i)} for i in range(3)}})
    assert found.counts == {"missing": 1, "table": 2}


def test_a_reordered_key_is_found() -> None:
    found = check(ALL[1], ALL[0], *ALL[2:])
    assert found.counts == {"reordered": 1, "table": 1}  # by _pos the table is right all the same


def test_numbers_that_do_not_grow_are_found() -> None:
    found = check(ALL[0], message(2, headers={"headrace-pos": b"5"}), *ALL[2:])
    assert found.counts["numbers"] == 1


def test_a_duplicate_that_differs_is_found() -> None:
    found = check(*ALL[:2], message(1, data=[{"id": "1", "n": "7"}]), *ALL[2:])
    assert found.counts["altered"] == 1


def test_what_escapes_of_an_old_epoch_is_measured_and_bounded() -> None:
    zombie = [*ALL[:2], message(2, 2), message(3, 1), message(3, 2), *(message(n, 2) for n in (4, 5, 6))]
    found = check(*zombie)
    assert found.sound, found.texts
    assert (found.escaped_messages, found.escaped_bytes) == (1, 60)
    assert check(*zombie, bound=59).counts == {"escaped": 1}


def test_a_zombie_that_runs_ahead_does_not_count_as_order_or_as_delivery() -> None:
    ahead = [*ALL[:2], message(2, 2), message(6, 1), *(message(n, 2) for n in (3, 4, 5, 6))]
    assert check(*ahead).sound
    found = check(*ahead[:-1])
    assert found.counts["missing"] == 1
    assert "only a message of an old epoch" in found.texts[0]


def test_epochs_are_judged_in_each_partition() -> None:
    mixed = [*ALL[:2], message(3, 2), message(4, 1), message(5, 2), message(6, 2)]
    assert check(*mixed, partitions=[0, 0, 1, 0, 1, 1]).escaped_messages == 0


def test_a_wrong_final_table_is_found() -> None:
    wrong = {"t": TABLE["t"] | {"9": {"id": "9", "n": "9"}}}
    found = check(*ALL, tables=wrong)
    assert found.counts == {"table": 2}
    assert "9: None instead of" in found.texts[0]


def test_a_message_of_nothing_that_was_committed_is_found() -> None:
    assert check(*ALL, message(6, headers={"headrace-id": b"s:9#1"})).counts["ghost"] == 1


def test_a_message_without_an_epoch_is_found() -> None:
    assert check(*ALL[:5], message(6, None)).counts == {"epochless": 1}


def test_texts_are_few_and_counts_are_whole() -> None:
    found = check(*(message(1, 1) for _ in range(50)), delivery="exactly_once")
    assert found.counts["duplicate"] == 49
    assert sum(text.startswith("duplicate") for text in found.texts) == 8
