"""How far a destination is behind, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.destination.lag import Lag


@dataclass
class Flow:
    """A run of which a test says what it does."""

    reading: bool = True
    confirming: bool = True

    def reading_waits(self) -> bool:
        return self.reading

    def confirming_waits(self) -> bool:
        return self.confirming


class Wall:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def us(self, ago: float = 0.0) -> int:
        """A commit time so many seconds ago."""
        return int((self.now - ago) * 1e6)


def running(flow: Flow, ago: float) -> tuple[Lag, Wall]:
    """The lag of a run that begins behind a change of so many seconds ago."""
    wall = Wall()
    lag = Lag(wall)
    lag.stored(wall.us(ago))
    lag.begin(flow)
    return lag, wall


def test_nothing_is_known_before_the_first_run() -> None:
    assert (Lag().seconds, Lag().reading, Lag().publishing) == (0.0, 0.0, 0.0)


def test_the_position_that_an_earlier_process_stored_shows_the_lag() -> None:
    wall = Wall()
    lag = Lag(wall)
    lag.stored(wall.us(3600))
    assert round(lag.seconds) == 3600


def test_nothing_that_waits_is_no_lag() -> None:
    lag, wall = running(Flow(), 3600)
    wall.now += 100
    assert (lag.seconds, lag.reading, lag.publishing) == (0.0, 0.0, 0.0)


def test_it_grows_while_a_change_waits_for_its_confirmation() -> None:
    flow = Flow()
    lag, wall = running(flow, 3600)
    assert lag.seconds == 0.0
    flow.confirming = False  # a change was read
    lag.read(wall.us())
    wall.now += 61
    assert round(lag.seconds) == round(lag.publishing) == 61, "and not the hour in which the source rested"
    assert lag.reading == 0.0
    lag.confirmed(wall.us(61))
    flow.confirming = True
    assert lag.seconds == 0.0


def test_a_backlog_that_is_read_has_both_parts() -> None:
    flow = Flow(reading=False, confirming=False)
    lag, wall = running(flow, 1000)
    lag.read(wall.us(300))
    lag.confirmed(wall.us(400))
    assert [round(one) for one in (lag.seconds, lag.reading, lag.publishing)] == [400, 300, 100]


def test_it_grows_while_no_run_knows_what_the_source_has() -> None:
    flow = Flow()
    lag, wall = running(flow, 3600)
    lag.end()
    wall.now += 20
    assert round(lag.seconds) == 20
    assert round(lag.reading) == 20
    lag.stored(wall.us(3620))
    lag.begin(flow)
    assert lag.seconds == 0.0


def test_what_waits_for_a_sink_that_ended_the_run_is_lag_of_publishing() -> None:
    flow = Flow()
    lag, wall = running(flow, 3600)
    lag.end()
    lag.note_failure(sink=True)
    wall.now += 20
    assert [round(one) for one in (lag.seconds, lag.reading, lag.publishing)] == [20, 0, 20]
    lag.begin(Flow(reading=False, confirming=False))
    assert round(lag.reading) == 20, "what came meanwhile has to be read"


def test_a_statement_s_own_time_in_the_future_hides_nothing_for_long() -> None:
    flow = Flow(reading=False, confirming=False)
    lag, wall = running(flow, 5)
    lag.confirmed(wall.us(-1e6))
    assert lag.seconds == 0.0
    lag.confirmed(wall.us(7))
    assert round(lag.seconds) == 7


def test_a_standby_has_none() -> None:
    lag, wall = running(Flow(), 5)
    lag.forget()
    wall.now += 20
    assert lag.seconds == 0.0
