"""Whose turn it is to take a lock, by what one view shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace import runtime
from headrace.cluster import lock as module
from headrace.cluster.lock import SharedLock
from headrace.cluster.lock_queue import View
from headrace.cluster.paths import Paths
from headrace.ports.lock_service import Node

OURS, THEIRS = 7, 8


def owned(node: Node | None) -> bool:
    return node is not None and node.owner == OURS


def lock(*, held: bool = False) -> Any:
    proofs = SimpleNamespace(holding=lambda name: held)
    session: Any = SimpleNamespace(paths=Paths("/headrace"), generation=1, proofs=proofs, owns=owned)
    return SharedLock(session, "shop", "b", "b:9180")


def node(owner: int = 0, version: int = 5) -> Node:
    return Node(b"{}", version, owner, 1)


def free(*waiting: str, preferred: str = "") -> View:
    return View(None, waiting, preferred, node() if preferred else None)


def test_what_another_session_holds_is_not_free_and_a_leftover_of_our_own_is() -> None:
    assert not lock()._may_take(View(node(THEIRS), ("b",), "", None), waiting=True)
    assert lock()._may_take(View(node(OURS), (), "", None), waiting=True)
    assert not lock(held=True)._may_take(View(node(OURS), (), "", None), waiting=True)


def test_the_queue_is_kept_and_each_turn_waits_a_step_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(runtime.current(), "monotonic", lambda: now)
    second = lock()
    assert lock()._may_take(free("b", "a"), waiting=True)
    assert not second._may_take(free("a", "b"), waiting=True)
    now += 0.9
    assert not second._may_take(free("a", "b"), waiting=True)
    now += 0.2
    assert second._may_take(free("a", "b"), waiting=True), "whoever stands before it may be frozen"
    assert not second._may_take(View(node(THEIRS), ("a", "b"), "", None), waiting=True)
    assert not second._may_take(free("a", "b"), waiting=True), "counted from when it was missing last"


def test_a_daemon_outside_the_queue_takes_the_lock_only_at_its_first_attempt() -> None:
    assert not lock()._may_take(free("a"), waiting=True)
    assert lock()._may_take(free("a"), waiting=False)


def test_a_preferred_daemon_is_left_its_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(runtime.current(), "monotonic", lambda: now)
    assert lock()._may_take(free("b", "a", preferred="b"), waiting=False)
    other = lock()
    for _ in range(2):
        assert not other._may_take(free("a", "b", preferred="a"), waiting=True)
        assert not other._may_take(free("a", "b", preferred="a"), waiting=False)
        now += module._PREFERENCE - 0.1
    now += 0.2 - module._PREFERENCE + 0.1
    assert other._may_take(free("a", "b", preferred="a"), waiting=True)
    assert not other._may_take(free("a", "b", preferred="a"), waiting=False)
    again = View(None, ("a", "b"), "a", node(version=6))
    assert not other._may_take(again, waiting=True), "another wish has its own time"
