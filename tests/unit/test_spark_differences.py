"""What counts as a difference between rows and documents, and what of it is only on its way."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_spark.verify.differences import (
    DIFFERENT,
    DOCUMENT,
    EXTRA,
    MISSING,
    Compared,
    Difference,
    as_written,
    equal,
)
from headrace_spark.verify.rechecks import Rechecks, Settle
from headrace_spark.verify.report import KEPT, Report


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (0.1, 0.1, True),
        (-0.0, 0, True),
        (2**53 + 1, float(2**53), False),
        (1, True, False),
        (0, False, False),
        (None, 0, False),
        ("1", 1, False),
        ([1, 2], [1, 2, 3], False),
        ({"a": [1.0, {"b": None}]}, {"a": [1, {"b": None}]}, True),
        ({"a": [1, {"b": None}]}, {"a": [1, {}]}, False),
    ],
)
def test_values_of_json_are_equal_by_what_they_say(one: Any, other: Any, same: bool) -> None:
    assert equal(one, other) is same
    assert equal(other, one) is same


def test_a_document_is_compared_as_it_is_written() -> None:
    assert as_written({"a": 2**70, "b": (1, 2)})[0] == {"a": str(2**70), "b": [1, 2]}


class FakeConsumer:
    """At the edge: whether Kafka's ends are reached."""

    def __init__(self, *, keeps_up: bool = True) -> None:
        self.keeps_up, self.asked = keeps_up, 0

    def catches_up(self, wait: float) -> bool:
        self.asked += 1
        return self.keeps_up


def difference(key: str, wanted: int = 1, version: int = 5, kind: str = DIFFERENT) -> Difference:
    return Difference(DOCUMENT, kind, key, "", (), wanted, version)


def rechecked(
    answers: list[list[Difference]], *, repair: bool = False, keeps_up: bool = True
) -> tuple[Report, int, int]:
    """The report, how often it was compared, and how often the consumer was waited for."""
    report, consumer, left = Report("x"), FakeConsumer(keeps_up=keeps_up), list(answers)
    again = Rechecks(Settle(0, 0, repair), consumer, report)  # type: ignore[arg-type]
    again.at(left.pop(0), lambda before: Compared(differences=tuple(one for one in left.pop(0) if one.place in before)))
    return report, len(answers) - len(left), consumer.asked


def test_a_difference_in_two_comparisons_counts_and_one_that_disappears_does_not() -> None:
    first = [difference("stays"), difference("arrives"), difference("gone", kind=EXTRA)]
    report, times, _ = rechecked([first, [difference("stays"), difference("new")]])
    assert (report.differences, report.unsettled, times) == ([difference("stays")], 0, 2)
    assert not report.equal


def test_a_difference_that_changes_in_every_comparison_is_unsettled() -> None:
    report, times, _ = rechecked([[difference("hot", number, number)] for number in range(9)])
    assert (report.differences, report.unsettled, times) == ([], 1, 6)
    assert report.equal


def test_a_row_that_changes_while_its_document_does_not_is_on_its_way() -> None:
    report, _, _ = rechecked([[difference("a", wanted=1)], [difference("a", wanted=2)], []])
    assert (report.differences, report.unsettled) == ([], 0)


def test_a_consumer_that_does_not_catch_up_is_waited_for_once() -> None:
    hot = [[difference("hot", number, number)] for number in range(9)]
    report, _, waited = rechecked(hot, keeps_up=False)
    assert (report.behind, waited) == (True, 1)


def test_a_difference_that_can_not_be_repaired_ends_the_comparisons() -> None:
    report, times, _ = rechecked([[difference("a", kind=MISSING)]] * 9, repair=True)
    assert (report.count(MISSING), times) == (1, 3)


def test_a_report_keeps_so_many_differences_and_each_once() -> None:
    report = Report("x")
    report.add([difference("a"), difference("a")])
    assert report.count(DIFFERENT) == 1
    report.add(difference(str(number)) for number in range(KEPT + 5))
    assert (len(report.differences), report.more) == (KEPT, True)


def test_rows_that_can_not_be_documents_and_a_missing_index_are_differences() -> None:
    assert not Report("x", refused=1).equal
    assert not Report("x", absent="x").equal
    assert "rebuild --index x" in "".join(Report("x", absent="x").lines())
