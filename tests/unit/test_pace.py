"""What runs at once on a slow machine: `tests/pace.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pace import ALWAYS, SLOW, Turns, seconds_of_work

Make = Callable[[Callable[[], float]], Turns]


def never() -> float:
    raise AssertionError("nobody has to measure")


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Make]:
    """Makes workers of one run."""
    made: list[Turns] = []

    def make(work: Callable[[], float]) -> Turns:
        made.append(Turns(tmp_path, work))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_two_have_a_turn_however_slow_the_machine_is(worker: Make) -> None:
    for _ in range(ALWAYS):
        worker(never).next()


def test_a_third_one_waits_while_the_machine_is_slow(worker: Make) -> None:
    first = [worker(never) for _ in range(ALWAYS)]
    for one in first:
        one.next()
    left = [SLOW * 3, SLOW * 2, SLOW, SLOW * 3]
    worker(lambda: left.pop(0)).next()
    assert left == [SLOW * 3]


def test_a_third_one_waits_until_one_of_the_two_has_ended_its_turn(worker: Make) -> None:
    first = [worker(never) for _ in range(ALWAYS)]
    for one in first:
        one.next()
    measured = 0

    def slow() -> float:
        nonlocal measured
        measured += 1
        if measured == 2:
            first[1].end()
        return SLOW * 2

    worker(slow).next()
    assert measured == 2


def test_a_worker_that_goes_on_leaves_its_turn_first(worker: Make) -> None:
    one = worker(never)
    for _ in range(ALWAYS + 1):
        one.next()


def test_work_takes_time() -> None:
    assert 0 < seconds_of_work() < 10
