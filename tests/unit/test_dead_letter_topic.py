"""Dead letters of the Spark consumer: their ids, which are open after notes, and what a terminal gets of them."""

from __future__ import annotations

import json
import random

import pytest

from headrace_common.printable import printable, printable_json
from headrace_documents.dead_letters import kind_of, pretty, subject
from headrace_spark.dead_letters.records import (
    Fold,
    Header,
    OpenDeadLetter,
    Origin,
    dead_headers,
    dead_letter_id,
    note_headers,
    own_headers,
)
from headrace_spark.dead_letters.topic import runs
from tests.canal_messages import START, change, row

OWN: list[Header] = [("headrace-id", b"a"), ("headrace-pos", None)]


def letter(number: int, reason: str = "why") -> tuple[str, bytes, list[Header]]:
    origin, value = Origin("shop", 0, number), b"message %d" % number
    return dead_letter_id(origin, reason, None, value), value, dead_headers(OWN, reason, origin, None, value, 7)


def test_the_id_is_the_same_for_a_batch_done_again_and_another_one_for_another_message() -> None:
    origin = Origin("shop.orders", 3, 17)
    name = dead_letter_id(origin, "why", b"k", b"v")
    assert name.startswith("shop.orders-3-17-")
    assert len(name) == len("shop.orders-3-17-") + 8
    others = [("other", b"k", b"v"), ("why", None, b"v"), ("why", b"k", b"w"), ("why", b"kv", b""), ("why", b"", b"kv")]
    assert len({name, *(dead_letter_id(origin, *one) for one in others)}) == 6


def test_a_letter_has_the_headers_of_its_message_once_and_ours() -> None:
    first = dead_headers(OWN, "x" * 2000, Origin("t", 1, 2), b"k", b"v", 7)
    again = dead_headers(first, "y", Origin("t", 1, 9), b"k", b"v", None)
    assert own_headers(again) == OWN
    reported = dict(again)
    assert len(reported) == len(again)
    assert (reported["headrace-dead-offset"], "headrace-dead-batch" in reported) == (b"9", False)
    assert dict(first)["headrace-dead-batch"] == b"7"
    assert len(dict(first)["headrace-dead-reason"] or b"") == 1000
    assert (dict(first)["headrace-dead-time"] or b"").endswith(b"+00:00")


class Topic:
    """The dead-letter topic: what was published, and what fold makes of it."""

    def __init__(self, partitions: int = 1) -> None:
        self.parts: list[list[tuple[bytes | None, list[Header]]]] = [[] for _ in range(partitions)]

    def add(self, number: int, partition: int = 0) -> str:
        name, value, headers = letter(number)
        self.parts[partition].append((value, headers))
        return name

    def note(self, *names: str, partition: int = 0) -> None:
        self.parts[partition].append((None, note_headers("retried", names, "me@here")))

    def fold(self) -> Fold:
        made = Fold()
        for partition, records in enumerate(self.parts):
            for offset, (value, headers) in enumerate(records):
                made.take((partition, offset), 1_700_000_000_000, None, value, headers)
        return made

    def ends(self) -> dict[int, int]:
        return {number: len(records) for number, records in enumerate(self.parts)}


def test_a_letter_that_came_twice_is_one_and_a_note_closes_both() -> None:
    topic = Topic()
    first = topic.add(1)
    assert topic.add(1) == first
    second = topic.add(2)
    assert topic.fold().open.keys() == {first, second}
    assert topic.fold().open[first].places == {0: 1}
    topic.note(first)
    assert topic.fold().open.keys() == {second}
    assert topic.fold().floors(topic.ends()) == {0: 2}
    assert topic.fold().floors(topic.ends(), [second]) == {0: 4}


def test_a_letter_that_comes_after_its_note_is_open_again() -> None:
    topic = Topic()
    name = topic.add(1)
    topic.note(name)
    assert not topic.fold().open
    topic.add(1)
    assert topic.fold().open[name].places == {0: 2}


def test_copies_in_two_partitions_need_a_note_in_each() -> None:
    topic = Topic(2)
    name = topic.add(1, 0)
    topic.add(1, 1)
    topic.note(name, partition=1)
    assert topic.fold().open[name].places == {0: 0}
    topic.note(name, partition=0)
    assert not topic.fold().open


def test_records_of_others_are_counted_and_nothing_behind_them_is_deleted() -> None:
    topic = Topic()
    name = topic.add(1)
    topic.parts[0].append((b"x", []))
    topic.parts[0].append((b"x", [("headrace-dead-topic", b"t"), ("headrace-dead-partition", b"no number")]))
    topic.note(name)
    fold = topic.fold()
    assert (fold.foreign, fold.floors(topic.ends())) == (2, {0: 1})


def test_a_letter_without_id_and_time_has_them_all_the_same() -> None:
    name, value, headers = letter(5)
    late = {"headrace-dead-id", "headrace-dead-time", "headrace-dead-batch"}
    fold = Fold()
    fold.take((0, 0), 1_700_000_000_000, None, value, [one for one in headers if one[0] not in late])
    assert fold.open[name].time == "2023-11-14T22:13:20.000+00:00"


@pytest.mark.parametrize("seed", range(30))
def test_folding_is_what_a_list_of_all_that_happened_says(seed: int) -> None:
    rng, topic = random.Random(seed), Topic(2)
    copies: set[tuple[str, int]] = set()
    for _ in range(60):
        partition = rng.randrange(2)
        if rng.random() < 0.6:
            copies.add((topic.add(rng.randrange(8), partition), partition))
        else:
            name = letter(rng.randrange(8))[0]
            topic.note(name, "unknown", partition=partition)
            copies.discard((name, partition))
    fold = topic.fold()
    assert {(one.id, partition) for one in fold.open.values() for partition in one.places} == copies
    for partition, floor in fold.floors(topic.ends()).items():
        # What is deleted takes no open letter along, and what stays is folded into the same.
        del topic.parts[partition][:floor]
    assert topic.fold().open.keys() == fold.open.keys()


def test_what_a_message_is_about() -> None:
    assert subject(None, change("t", START, "INSERT", row(5), row(6)), {}) == ("shop.t", "5 (+1 rows)")
    assert subject(b"k", change("t", START, "INSERT", row(5), pkNames=None), {}) == ("shop.t", "k")
    # Not understood as a whole.
    assert subject(b"k", change("t", 0, "INSERT", row(5)), {}) == ("shop.t", "k")
    assert subject(b"k", b'{"source": {"db": "d", "table": "u"}, "op": "?"}', {}) == ("d.u", "k")
    for value in (b"\xff", b"[1]", b'{"payload": 1}', b"", None, b'{"source": [], "op": "c"}'):
        assert subject(b"\xffk", value, {}) == ("", "\ufffdk")


def test_texts_of_messages_do_not_reach_the_terminal_as_they_are() -> None:
    hostile = "\x1b[2J\r\n\x07\x9b\u202e\u2028\U000e0041保洁é"
    assert printable(hostile) == "\\u001b[2J\\u000d\\u000a\\u0007\\u009b\\u202e\\u2028\\udb40\\udc41保洁é"
    assert json.loads(printable_json({"a": hostile})) == {"a": hostile}
    shown = OpenDeadLetter(hostile, hostile, hostile, hostile, hostile, 0, Origin("t", 0, 1), "").line()
    assert printable(shown) == shown
    for data in (hostile.encode(), b'"\\u001b[2J"', b"\xff\x1b"):
        assert "\x1b" not in pretty(data)
    assert pretty(b'{"a":18446744073709551617}') == '{\n  "a": 18446744073709551617\n}'
    assert pretty(None) == "(none)"
    assert pretty(b"[" * 100_000) == "[" * 100_000


def test_reasons_that_differ_in_values_alone_are_of_one_kind() -> None:
    one = "Elasticsearch refuses row 3: 400 x: failed to parse field [sold] of type [long] in document with id '93'"
    other = "Elasticsearch refuses row 12: 400 x: failed to parse field [sold] of type [long] in document with id '7'"
    assert kind_of(one) == kind_of(other)
    assert kind_of(one) != kind_of("not JSON")


def test_letters_that_lie_close_are_read_in_one_go() -> None:
    assert list(runs([1, 2, 5, 400, 401, 1000])) == [(1, 6), (400, 402), (1000, 1001)]
    assert list(runs([])) == []
    assert list(runs([7])) == [(7, 8)]
