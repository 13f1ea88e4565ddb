"""`headrace resync`: what it prints, and how it ends."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import pytest

from headrace.cli import control, resync
from headrace.cli.common import CommandRefused


@pytest.mark.parametrize(("outcome", "status"), [("done", 0), ("cancelled", 1), ("given up: no", 1)])
async def test_json_is_one_object_also_when_the_end_is_waited_for(
    outcome: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def command(*_: Any) -> dict[str, Any]:
        return {"id": "abc", "snapshots": []}

    async def health_of(*_: Any) -> dict[str, Any]:
        ended = [{"id": "abc", "kind": "resync", "outcome": outcome}]
        return {"snapshot": None, "position": None, "snapshots_ended": ended, "state": "STREAMING"}

    monkeypatch.setattr(control, "command", command)
    monkeypatch.setattr(control, "health_of", health_of)
    settings: Any = None
    given = {"name": "shop", "tables": "shop.t", "all": False, "where": None, "columns": None}
    assert await resync._resync(settings, Namespace(**given, wait=True, json=True)) == status
    assert json.loads(capsys.readouterr().out) == {"id": "abc", "snapshots": [], "outcome": outcome}
    assert await resync._resync(settings, Namespace(**given, wait=True, json=False)) == status
    assert capsys.readouterr().out.endswith(f"shop: abc: {outcome}\n")
    assert await resync._resync(settings, Namespace(**given, wait=False, json=True)) == 0
    assert json.loads(capsys.readouterr().out) == {"id": "abc", "snapshots": []}


async def test_a_named_snapshot_is_waited_for_while_the_daemon_is_started_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = [{"id": "abc", "kind": "resync", "outcome": "done"}]
    page = {"snapshot": None, "position": None, "snapshots_ended": ended, "state": "STREAMING"}
    answers = iter([CommandRefused("no daemon answers"), CommandRefused("no daemon answers"), page])

    async def health_of(*_: Any) -> dict[str, Any]:
        answer = next(answers)
        if isinstance(answer, CommandRefused):
            raise answer
        return answer

    monkeypatch.setattr(control, "health_of", health_of)
    monkeypatch.setattr(resync, "_POLL", 0.0)
    settings: Any = None
    assert await resync._wait(settings, Namespace(name="shop", id="abc")) == 0
    assert capsys.readouterr().out == "shop: abc: done\n"
