"""What a destination's status tells an operator: the text, and the section of the manual that says more."""

from __future__ import annotations

import pytest

from headrace.destination.status import DestinationStatus
from headrace.errors import (
    Fenced,
    HeadraceError,
    LostKind,
    PositionLost,
    ServerIdTaken,
    SinkError,
    SourceChanged,
    StateStoreError,
)
from headrace.model import State

MANUAL = "docs/troubleshooting.md#"


@pytest.mark.parametrize(
    ("error", "section"),
    [
        (HeadraceError("odd"), "error"),
        (SinkError("no broker"), "sink"),
        (StateStoreError("no disk", remedy="make room"), "state"),
        (Fenced("node two runs it"), "fenced"),
        (ServerIdTaken("somebody has 7"), "server_id_taken"),
        (SourceChanged("another server"), "source_changed"),
        *((PositionLost("gone", kind=kind), kind.value) for kind in LostKind),
        *((PositionLost("gone", kind=kind, remedy="put it back"), kind.value) for kind in LostKind),
    ],
)
def test_a_failure_ends_with_the_section_about_it(error: HeadraceError, section: str) -> None:
    status = DestinationStatus("shop")
    status.fail(error)
    assert status.message == status.last_error
    assert status.message.endswith(f"see {MANUAL}{section}")
    assert status.message.count(MANUAL) == 1
    assert error.remedy.replace("DESTINATION", "shop") in status.message


def test_a_text_that_names_a_section_gets_no_other() -> None:
    status = DestinationStatus("shop")
    status.fail(SinkError("no room", remedy=f"see {MANUAL}parked_messages"))
    assert status.message == f"no room -> see {MANUAL}parked_messages"


def test_a_trouble_ends_with_the_section_about_it_and_stays_the_same_trouble() -> None:
    status = DestinationStatus("shop")
    remedy = "GRANT INSERT; ask DESTINATION"
    assert status.trouble("heartbeat", "no grant", remedy=remedy)
    assert status.troubles == {"heartbeat": f"no grant -> GRANT INSERT; ask shop -> see {MANUAL}heartbeat"}
    assert not status.trouble("heartbeat", "no grant", remedy=remedy)


def test_a_state_that_is_not_healthy_names_the_section_of_its_reason_and_a_healthy_one_none() -> None:
    status = DestinationStatus("shop")
    assert status.enter(State.STALLED, "lock", "nothing is published")
    assert status.message == f"nothing is published -> see {MANUAL}lock"
    assert not status.enter(State.STALLED, "lock", "nothing is published")
    status.enter(State.STANDBY, "lock", "run by two")
    assert status.message == "run by two"
