"""What `headrace status` says about a destination, in the last column of its line."""

from __future__ import annotations

from headrace.cli import status as command
from headrace.destination.status import DestinationStatus
from headrace.errors import SourceUnreachable
from headrace.http.health import describe
from headrace.model import State


def about(status: DestinationStatus) -> str:
    (row,) = command._rows({"destinations": {"shop": describe(status)}}, {}, 0.0)
    return str(row[-1])


def test_while_a_further_attempt_is_made_the_last_failure_says_why_changes_do_not_flow() -> None:
    status = DestinationStatus("shop")
    assert about(status) == ""
    status.fail(SourceUnreachable("MySQL at db:3306 can't be reached"))
    why = about(status)
    assert why.startswith("MySQL at db:3306 can't be reached")
    status.enter(State.STARTING)
    assert about(status) == f"last error: {why}"
    status.enter(State.STREAMING)
    assert about(status) == ""
