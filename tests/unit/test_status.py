"""What a destination's status tells an operator: the text, and the section of the manual that says more."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headrace
from headrace.destination import facts
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


SOURCES = Path(headrace.__file__).parent
OWNERS = {
    "holding": {"checkpointer.py", "destination.py", "standby.py", "publisher.py"},
    "source": {"destination.py", "reading.py"},
    "received": {"reading.py"},
    "published": {"reading.py", "run.py"},
    "stored": {"checkpointer.py"},
    "heartbeat": {"heartbeat_writer.py"},
    "retention": {"binlogs.py"},
    "archive": {"archiving.py"},
    "backlog": {"binlogs.py"},
    "moves": {"destination.py"},
    "snapshots": {"control.py", "snapshotting.py"},
    "search": {"operator.py"},
}
"""Which file may call the methods of each group of facts that write."""


def chain(node: ast.expr) -> list[str]:
    """`self._status.lag` as its names."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(names)]


def of_status(node: ast.expr) -> list[str]:
    """What comes after the status in such a chain; [] where there is none."""
    names = chain(node)
    for i, one in enumerate(names[:-1]):
        if one in ("status", "_status"):
            return names[i + 1 :]
    return []


def targets_of(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def test_each_group_of_facts_is_written_by_its_owner_alone() -> None:
    shown = vars(DestinationStatus("d")).items()
    groups = {name for name, value in shown if type(value).__module__ == facts.__name__}
    assert groups == OWNERS.keys()
    writers: dict[str, set[str]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        if path.parts[-2:] == ("destination", "status.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for one in (inner for target in targets_of(node) for inner in ast.walk(target)):
                assert not (isinstance(one, ast.Attribute) and of_status(one)), f"{path.name}:{one.lineno}"
            if isinstance(node, ast.Call) and len(found := of_status(node.func)) == 2 and found[0] in groups:
                writers.setdefault(found[0], set()).add(path.name)
    assert writers == OWNERS


OF_THE_SOURCE = {"file", "offset", "gtid_set", "events_done", "rows_done", "open_xa", "own_gtids", "last_transaction"}
KNOW_THE_SOURCE = ("mysql", "moving", "canal_wire")
"""Canal's cursors are places in MySQL's binlog too."""


def test_a_position_is_opaque_outside_its_source() -> None:
    for path in sorted(SOURCES.rglob("*.py")):
        if path.relative_to(SOURCES).parts[0] in KNOW_THE_SOURCE or path.name == "model.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in OF_THE_SOURCE:
                assert chain(node)[-2] not in ("position", "_position"), f"{path.name}:{node.lineno}: {node.attr}"
