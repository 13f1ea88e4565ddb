"""The monitor of the simulator: which answers of a daemon's HTTP server it calls wrong."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from sim.loop import SimLoop
from sim.monitor import Monitor

DAEMON: Any = SimpleNamespace(name="a")


@pytest.fixture
def found() -> list[str]:
    return []


@pytest.fixture
def monitor(found: list[str]) -> Monitor:
    plan, checker = SimpleNamespace(destinations=["d1", "d2"]), SimpleNamespace(violation=found.append)
    world: Any = SimpleNamespace(loop=SimLoop(random.Random(1)), plan=plan, checker=checker)
    return Monitor(world)


def page(first: str, second: str, *, well: bool, node: str = "a") -> bytes:
    destinations = {"d1": {"state": first}, "d2": {"state": second}}
    return orjson.dumps({"status": "ok" if well else "failing", "node": node, "destinations": destinations})


def metrics(state: str, healthy: int, *names: str) -> bytes:
    lines = [f'headrace_state{{destination="{name}",state="{state}"}} 1.0' for name in names]
    lines += [f'headrace_healthy{{destination="{name}"}} {healthy}.0' for name in names]
    return "\n".join([*lines, ""]).encode()


@pytest.mark.parametrize(
    ("status", "body", "wrong"),
    [
        (200, page("STREAMING", "STANDBY", well=True), False),
        (503, page("STREAMING", "STALLED", well=False), False),
        (200, page("STREAMING", "STALLED", well=True), True),
        (200, page("STREAMING", "FAILED", well=False), True),
        (503, page("STREAMING", "PAUSED", well=True), True),
        (200, page("STREAMING", "STANDBY", well=True, node="b"), True),
    ],
)
def test_health_is_answered_as_the_states_are(
    monitor: Monitor, found: list[str], status: int, body: bytes, wrong: bool
) -> None:
    monitor.judge_health(DAEMON, status, body)
    assert bool(found) is wrong


@pytest.mark.parametrize(
    ("path", "status", "body", "wrong"),
    [
        ("/metrics", 200, metrics("STREAMING", 1, "d1", "d2"), False),
        ("/metrics", 200, metrics("STREAMING", 0, "d1", "d2"), True),
        ("/metrics", 200, metrics("STREAMING", 1, "d1"), True),
        ("/metrics", 200, b"", True),
        ("/readyz", 503, b'{"ready": false}', False),
        ("/readyz", 200, b'{"ready": false}', True),
        (
            "/readyz?destination=d1",
            200,
            b'{"ready": true, "destination": "d1", "role": "ACTIVE", "state": "STREAMING"}',
            False,
        ),
        (
            "/readyz?destination=d1",
            200,
            b'{"ready": true, "destination": "d1", "role": "STANDBY", "state": "STANDBY"}',
            True,
        ),
        ("/livez", 200, b'{"live": true}', False),
        ("/livez", 503, b'{"live": true}', True),
        ("/health/d2", 200, b'{"state": "STREAMING", "healthy": true}', False),
        ("/health/d2", 200, b'{"state": "FAILED", "healthy": true}', True),
        ("/health/d2", 503, b'{"state": "STREAMING", "healthy": false}', True),
        ("/health/unknown", 404, b'{"error": "there is no destination unknown"}', False),
        ("/health/unknown", 200, b"{}", True),
    ],
)
def test_other_answers_fit_their_status(
    monitor: Monitor, found: list[str], path: str, status: int, body: bytes, wrong: bool
) -> None:
    monitor.judge(DAEMON, path, status, body)
    assert bool(found) is wrong
