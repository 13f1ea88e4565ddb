"""What a destination has still to work off, and how that is told."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.destination import backlog as module
from headrace.destination.backlog import Backlog
from headrace.destination.lag import Lag
from headrace.destination.parts import Context
from headrace.destination.status import DestinationStatus
from headrace.model import State
from tests.clock import Clock
from tests.streams import daemon_settings, settings


class Wall:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self) -> float:
        return 1_700_000_000 + self._clock.now


@pytest.fixture
def status(clock: Clock) -> DestinationStatus:
    made = DestinationStatus("shop", lag=Lag(Wall(clock)))
    made.enter(State.STREAMING)
    return made


@pytest.fixture
def backlog(status: DestinationStatus, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    monkeypatch.setattr(module.time, "monotonic", clock)
    return Backlog(Context(settings(), daemon_settings(), status))


def behind(status: DestinationStatus, clock: Clock, seconds: float) -> None:
    """All is confirmed up to so many seconds ago."""
    status.lag.confirmed(int((1_700_000_000 + clock.now - seconds) * 1e6))


def test_catching_up_is_told_at_once_then_every_ten_seconds_and_at_its_end(
    backlog: Backlog, status: DestinationStatus, clock: Clock
) -> None:
    lines: list[Any] = []
    for second in range(41):
        behind(status, clock, 100 - 2.5 * second)
        status.bytes_received = 1_000_000 * second
        with capture_logs() as said:
            backlog.look()
            if second % 3 == 0:
                backlog.measured(80_000_000 - 2_000_000 * second)
        lines += [(second, one) for one in said]
        clock.now += 1
    assert [(second, one["event"]) for second, one in lines] == [
        (0, "catching up"), (10, "catching up"), (20, "catching up"), (30, "catching up"), (40, "caught up"),
    ]  # fmt: skip
    at_twenty = lines[2][1]
    assert at_twenty["destination"] == "shop"
    assert at_twenty["lag_seconds"] == 50.0
    assert at_twenty["bytes_behind"] == 44_000_000
    assert at_twenty["bytes_per_second"] == 1_000_000
    assert at_twenty["eta_seconds"] == 22.0
    assert lines[-1][1]["seconds"] == 40.0


def test_a_backlog_that_does_not_become_less_has_no_end(
    backlog: Backlog, status: DestinationStatus, clock: Clock
) -> None:
    for size in (5_000_000, 6_000_000):
        backlog.measured(size)
        clock.now += 3
    assert (status.backlog_bytes, status.backlog_eta) == (6_000_000, None)
    backlog.measured(None)
    assert (status.backlog_bytes, status.backlog_rate, status.backlog_eta) == (None, None, None)
    backlog.measured(0)
    clock.now += 3
    backlog.measured(0)
    assert status.backlog_eta == 0.0


@pytest.mark.parametrize("state", [State.STALLED, State.FAILED, State.STARTING])
def test_a_destination_that_does_not_stream_catches_up_with_nothing(
    backlog: Backlog, status: DestinationStatus, clock: Clock, state: State
) -> None:
    behind(status, clock, 100)
    status.enter(state, "why", "a sentence")
    with capture_logs() as said:
        backlog.look()
    assert said == []
    assert not backlog.catching_up
