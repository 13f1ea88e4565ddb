"""What a destination has still to work off, and how that is told."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.destination import binlogs as module
from headrace.destination.binlogs import Backlog
from headrace.destination.dependencies import Context
from headrace.destination.lag import Lag
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
    made = DestinationStatus("shop")
    made.lag = Lag(Wall(clock))
    made.enter(State.STREAMING)
    return made


@pytest.fixture
def backlog(status: DestinationStatus, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    monkeypatch.setattr(module.runtime, "monotonic", clock)
    return Backlog(Context(settings(), daemon_settings(), status))


def behind(status: DestinationStatus, clock: Clock, seconds: float) -> None:
    """All is confirmed up to so many seconds ago."""
    status.lag.confirmed(int((1_700_000_000 + clock.now - seconds) * 1e6))


def test_catching_up_is_logged_at_once_then_every_ten_seconds_and_at_its_end(
    backlog: Backlog, status: DestinationStatus, clock: Clock
) -> None:
    lines: list[Any] = []
    for second in range(41):
        behind(status, clock, 100 - 2.5 * second)
        status.received.bytes = 1_000_000 * second
        with capture_logs() as said:
            backlog.check()
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
    assert (status.backlog.bytes, status.backlog.eta) == (6_000_000, None)
    backlog.measured(None)
    assert (status.backlog.bytes, status.backlog.rate, status.backlog.eta) == (None, None, None)
    backlog.measured(0)
    clock.now += 3
    backlog.measured(0)
    assert status.backlog.eta == 0.0


@pytest.mark.parametrize("state", [State.STALLED, State.FAILED, State.STARTING, State.PAUSED])
def test_a_destination_that_does_not_stream_catches_up_with_nothing(
    backlog: Backlog, status: DestinationStatus, clock: Clock, state: State
) -> None:
    behind(status, clock, 100)
    status.enter(state, "why", "a sentence")
    with capture_logs() as said:
        backlog.check()
    assert said == []
    assert not backlog.catching_up


def test_nothing_is_caught_up_with_while_the_sink_confirms_nothing(
    backlog: Backlog, status: DestinationStatus, clock: Clock
) -> None:
    """The outage has lines of its own, and these would deny it."""
    said: list[Any] = []
    for second in range(60):
        if second == 15:
            status.trouble("sink", "Kafka can't be reached")
        if second == 45:
            status.clear("sink")
        behind(status, clock, 100 + second)
        with capture_logs() as lines:
            backlog.check()
        said += [second for one in lines if one["event"] == "catching up"]
        clock.now += 1
    assert said == [0, 10, 45, 55]


def test_what_was_written_since_the_last_checkpoint_has_no_time_to_its_end(
    backlog: Backlog, status: DestinationStatus, clock: Clock
) -> None:
    behind(status, clock, 0.1)
    for size in (5000, 4900):
        backlog.check()
        backlog.measured(size)
        clock.now += 15
    assert (status.backlog.bytes, status.backlog.eta) == (4900, None)
