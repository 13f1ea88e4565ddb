"""Who gives which destination to whom: even in the end, one at a time, and never in circles."""

from __future__ import annotations

import random

import pytest

from headrace.cluster.rebalance import choose
from headrace.cluster.view import Assignment, View

NOW = 1_000_000_000
LONG_AGO = NOW - 60_000_000


def cluster(loads: dict[str, int], *, limits: dict[str, int] | None = None, drained: tuple[str, ...] = ()) -> View:
    """Daemons that run so many destinations each, while all others wait for them."""
    view = View({node: {"max": (limits or {}).get(node, 0)} for node in loads}, frozenset(drained))
    for node, count in loads.items():
        for number in range(count):
            name = f"{node}-{number}"
            others = frozenset(loads) - {node} - set(drained)
            view.assignments[name] = Assignment(
                name, node, since_us=LONG_AGO + number, ready=others, waiting=tuple(sorted(others))
            )
    return view


def give(view: View, name: str, taker: str) -> None:
    assignment = view.assignments[name]
    giver = assignment.holder
    assignment.holder, assignment.since_us = taker, LONG_AGO
    assignment.ready = (assignment.ready | {giver}) - {taker} - view.drained


@pytest.mark.parametrize("loads", [{"a": 3, "b": 3}, {"a": 4, "b": 3}, {"a": 1, "b": 0}, {"a": 0, "b": 0}, {"a": 5}])
def test_what_is_even_stays(loads: dict[str, int]) -> None:
    view = cluster(loads)
    assert [choose(view, node, NOW) for node in loads] == [None] * len(loads)


def test_a_newcomer_gets_the_one_that_began_last() -> None:
    view = cluster({"a": 4, "b": 0})
    assert choose(view, "a", NOW) == ("a-3", "b")
    assert choose(view, "b", NOW) is None


def test_what_has_just_begun_stays_a_while() -> None:
    view = cluster({"a": 2, "b": 0})
    for assignment in view.assignments.values():
        assignment.since_us = NOW - 1_000_000
    assert choose(view, "a", NOW) is None


def test_what_an_operator_has_put_somewhere_stays_there() -> None:
    view = cluster({"a": 2, "b": 0})
    for assignment in view.assignments.values():
        assignment.by_hand = True
    assert choose(view, "a", NOW) is None
    view.members["a"]["max"] = 1
    assert choose(view, "a", NOW) == ("a-1", "b")


def test_one_goes_at_a_time() -> None:
    view = cluster({"a": 6, "b": 0})
    view.assignments["a-0"].move_to, view.assignments["a-0"].move_us = "b", NOW
    assert choose(view, "a", NOW) is None


def test_only_as_many_daemons_hand_over_as_a_new_daemon_can_take() -> None:
    view = cluster({**{f"n{number}": 4 for number in range(9)}, "new": 0})
    givers = [node for node in view.members if choose(view, node, NOW)]
    assert givers == ["n0", "n1", "n2"], "36 over 10 daemons: three of them come now, and nobody has less than it then"


def test_who_is_not_ready_drained_or_full_gets_nothing() -> None:
    view = cluster({"a": 4, "b": 0})
    for assignment in view.assignments.values():
        assignment.ready = frozenset()
    assert choose(view, "a", NOW) is None
    assert choose(cluster({"a": 4, "b": 0}, drained=("b",)), "a", NOW) is None
    assert choose(cluster({"a": 6, "b": 1}, limits={"b": 1}), "a", NOW) is None


def test_more_than_a_daemon_may_run_goes_at_once_and_even_to_one_that_has_more() -> None:
    view = cluster({"a": 3, "b": 3}, limits={"a": 2})
    for assignment in view.assignments.values():
        assignment.since_us = NOW
    assert choose(view, "a", NOW) == ("a-2", "b")


def test_a_daemon_that_is_not_alive_gives_nothing() -> None:
    assert choose(cluster({"a": 4, "b": 0}), "gone", NOW) is None


@pytest.mark.parametrize("seed", range(20))
def test_it_ends_even_whatever_it_begins_with(seed: int) -> None:
    moments = random.Random(seed)
    view = cluster({f"n{number}": moments.randrange(8) for number in range(moments.randrange(2, 7))})
    moves = 0
    while True:
        chosen = [found for node in view.members if (found := choose(view, node, NOW))]
        if not chosen:
            break
        for name, taker in chosen:  # all decide by the same view
            give(view, name, taker)
            moves += 1
        assert moves < 100, "in circles"
    assert max(view.loads.values()) - min(view.loads.values()) <= 1


def test_a_wish_that_nobody_grants_holds_nothing_up_for_ever() -> None:
    view = cluster({"a": 6, "b": 0})
    view.assignments["a-0"].move_to, view.assignments["a-0"].move_us = "gone", NOW - 59_000_000
    assert choose(view, "a", NOW) is None
    view.assignments["a-0"].move_us = NOW - 61_000_000
    assert choose(view, "a", NOW) == ("a-5", "b")


def test_what_a_hand_wrote_into_a_node_is_taken_for_nothing() -> None:
    view = cluster({"a": 2, "b": 0})
    view.members["b"]["max"] = "many"
    assert choose(view, "a", NOW) == ("a-1", "b")
