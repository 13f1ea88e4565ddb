"""What runs at once on a slow machine: `tests/pace.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import pace


def taking(*seconds: float) -> tuple[Callable[[], float], list[float]]:
    """Work that takes these times, one after the other, and what is left of them."""
    left = list(seconds)
    return lambda: left.pop(0), left


@pytest.mark.parametrize("worker", ["", "w0", "w1"])
def test_two_workers_go_on_however_slow_the_machine_is(worker: str) -> None:
    pace.wait_for_room(worker, taking()[0])


@pytest.mark.parametrize("worker", ["w2", "w3", "w4"])
def test_the_others_wait_while_it_is_slow(worker: str) -> None:
    work, left = taking(0.5, 0.2, 0.101, 0.05, 0.5)
    pace.wait_for_room(worker, work)
    assert left == [0.5]


def test_they_begin_one_after_the_other() -> None:
    assert pace.SLOW - 2 * pace.LESS_EACH > 0.05
    for number, seconds in enumerate((0.099, 0.084, 0.069), 2):
        work, left = taking(seconds + 0.002, seconds)
        pace.wait_for_room(f"w{number}", work)
        assert left == []


def test_they_do_not_wait_for_ever() -> None:
    pace.wait_for_room("w4", lambda: 10.0, longest=0.0)


def test_work_takes_time() -> None:
    assert 0 < pace.seconds_of_work() < 10
