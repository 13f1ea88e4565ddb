"""Commands over HTTP: who is heard, and what is refused; and what operators may ask of snapshots."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from headrace.destination.status import DestinationStatus
from headrace.http.commands import take_command
from headrace.http.server import HttpServer
from headrace.snapshot.commands import SnapshotCommand, SnapshotRefused
from headrace.snapshots import Snapshot

PATH = "/api/v1/destinations/shop/snapshot"


@pytest.fixture
def status() -> DestinationStatus:
    made = DestinationStatus("shop")

    async def command(raw: Mapping[str, Any]) -> dict[str, Any]:
        return {"taken": SnapshotCommand.of(raw).command}

    made.command = command
    return made


@pytest.fixture
async def url(status: DestinationStatus) -> AsyncIterator[str]:
    server = HttpServer(("127.0.0.1", 0), {"shop": status}, "relay-1")
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.close()


async def post(url: str, body: str = '{"command": "pause"}', **headers: str) -> tuple[int, dict[str, Any]]:
    sent = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=sent) as answer:
        return answer.status, await answer.json()


async def test_a_command_is_given_to_the_destination_that_this_daemon_runs(url: str) -> None:
    assert await post(url + PATH) == (200, {"taken": "pause"})


@pytest.mark.parametrize(
    ("path", "body", "headers", "code"),
    [
        (PATH, "{}", {}, 400),
        (PATH, "no json", {}, 400),
        (PATH, "[]", {}, 400),
        (PATH, '{"command": "pause", "colour": 1}', {}, 400),
        (PATH, " " * 100_000, {}, 413),
        (PATH, "{}", {"content_type": "text/plain"}, 415),
        (PATH, "{}", {"host": "headrace.example:9180"}, 403),
        ("/api/v1/destinations/none/snapshot", "{}", {}, 404),
        ("/health", "{}", {}, 404),
    ],
)
async def test_what_is_no_command_is_refused_with_a_sentence(
    url: str, path: str, body: str, headers: dict[str, str], code: int
) -> None:
    answered, page = await post(url + path, body, **headers)
    assert answered == code
    assert page["error"]


async def test_another_node_is_named_where_that_runs_the_destination(url: str, status: DestinationStatus) -> None:
    status.command, status.holder = None, "relay-2"
    code, page = await post(url + PATH)
    assert code == 409
    assert "run by relay-2: give the command there" in page["error"]


@pytest.mark.parametrize(("client", "code"), [("192.0.2.7", 403), ("192.0.2.8", 409), ("127.0.0.1", 409)])
async def test_other_machines_are_not_heard(status: DestinationStatus, client: str, code: int) -> None:
    status.command = None
    scope = {
        "path": PATH,
        "client": (client, 4711),
        "server": ("192.0.2.8", 9180),
        "headers": [(b"host", b"localhost:9180"), (b"content-type", b"application/json")],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    answered, page = await take_command(scope, receive, {"shop": status})
    assert (answered, "this machine only" in page["error"]) == (code, code == 403)


def resync(**more: Any) -> SnapshotCommand:
    return SnapshotCommand.of({"command": "resync", "tables": "shop.t", **more})


def test_commands_change_the_snapshots_that_they_name() -> None:
    snapshots = resync().apply(resync(id="a").apply((Snapshot("first", "initial"),)))
    assert [one.kind for one in snapshots] == ["initial", "resync", "resync"]
    pause = SnapshotCommand.of({"command": "pause"})
    assert [one.paused for one in pause.apply(snapshots)] == [True, False, False]
    assert [one.paused for one in SnapshotCommand("pause", id="a").apply(snapshots)] == [False, True, False]
    assert [one.paused for one in SnapshotCommand("resume").apply(pause.apply(snapshots))] == [False] * 3
    assert [one.id for one in SnapshotCommand("cancel", id="a").apply(snapshots)][:1] == ["first"]
    stored = [one.to_dict() for one in snapshots]
    assert tuple(Snapshot.from_dict(one) for one in json.loads(json.dumps(stored))) == snapshots


@pytest.mark.parametrize(
    "raw",
    [
        {"command": "resinc"},
        {"command": "resync", "tables": "shop.("},
        {"command": "resync", "where": "id > 5"},
        {"command": "resync", "tables": 5},
        {"command": "resync", "tables": "t" * 100_000},
        {"command": "resync", "columns": "id"},
        {"command": "pause", "tables": "shop.t"},
        {"command": "pause", "id": "nobody"},
    ],
)
def test_a_command_that_can_not_be_done_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(SnapshotRefused):
        SnapshotCommand.of(raw).apply((Snapshot("first", "initial"),))


def test_no_more_snapshots_wait_than_a_state_store_has_room_for() -> None:
    snapshots: tuple[Snapshot, ...] = ()
    for _ in range(50):
        snapshots = resync(where="x" * 4_000).apply(snapshots)
    with pytest.raises(SnapshotRefused, match="wait already"):
        resync().apply(snapshots)
    assert len(json.dumps([one.to_dict() for one in snapshots])) < 400_000
