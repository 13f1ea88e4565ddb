"""Commands over HTTP: who is heard, and what is refused; and what operators may ask of snapshots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from headrace.destination.status import DestinationStatus
from headrace.http.access import Access, Denied
from headrace.http.facts import Facts, Options
from headrace.http.server import HttpServer
from headrace.model import State
from headrace.snapshot.commands import SnapshotCommand, SnapshotRefused
from headrace.snapshots import Snapshot
from tests.clock import Clock
from tests.handles import FakeOperator, handles_of, served

TOKEN = "a-token-of-the-tests"
SNAPSHOT = "/api/v1/destinations/shop/snapshot"
PAUSE = "/api/v1/destinations/shop/pause"
HEARD = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}


@pytest.fixture
def status() -> DestinationStatus:
    return DestinationStatus("shop")


@pytest.fixture
def operator() -> FakeOperator:
    return FakeOperator()


@pytest.fixture
async def url(status: DestinationStatus, operator: FakeOperator) -> AsyncIterator[str]:
    facts = Facts({"shop": served(status, operator)}, "relay-1")
    server = HttpServer(("127.0.0.1", 0), facts, Options(TOKEN))
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.close()


async def post(url: str, body: str = '{"command": "pause"}', **headers: str) -> tuple[int, dict[str, Any]]:
    sent = HEARD | {name.replace("_", "-"): text for name, text in headers.items()}
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=sent) as answer:
        return answer.status, await answer.json()


async def test_a_command_is_given_to_the_destination_that_this_daemon_runs(url: str) -> None:
    assert await post(url + SNAPSHOT) == (200, {"taken": "pause"})
    assert await post(url + PAUSE, "{}") == (200, {"done": True})


async def test_a_snapshot_command_at_the_end_of_a_run_is_refused_with_the_reason(
    url: str, status: DestinationStatus, operator: FakeOperator
) -> None:
    status.enter(State.STREAMING)
    operator.streams = False
    code, answer = await post(url + SNAPSHOT)
    assert code == 409
    assert "shop is about to restart or to stop: try again once it streams" in json.dumps(answer)


@pytest.mark.parametrize(
    ("path", "body", "headers", "code"),
    [
        (SNAPSHOT, "{}", {}, 400),
        (SNAPSHOT, "no json", {}, 400),
        (SNAPSHOT, "[]", {}, 400),
        (SNAPSHOT, '{"command": "pause", "colour": 1}', {}, 400),
        pytest.param(SNAPSHOT, " " * 100_000, {}, 413, id="too large"),
        (SNAPSHOT, "{}", {"content_type": "text/plain"}, 415),
        (SNAPSHOT, "{}", {"authorization": "Bearer another-token"}, 401),
        (SNAPSHOT, "{}", {"authorization": f"Basic {TOKEN}"}, 401),
        (SNAPSHOT, "{}", {"authorization": ""}, 401),
        (PAUSE, "{}", {"authorization": ""}, 401),
        (PAUSE, '{"by": "nobody"}', {}, 409),
        ("/api/v1/destinations/none/snapshot", '{"command": "pause"}', {}, 404),
        ("/api/v1/destinations/shop/explode", "{}", {}, 404),
        ("/health", "{}", {}, 405),
    ],
)
async def test_what_is_no_command_is_refused_with_a_sentence(
    url: str, path: str, body: str, headers: dict[str, str], code: int
) -> None:
    answered, page = await post(url + path, body, **headers)
    assert answered == code
    assert page["error"]
    assert TOKEN not in str(page)


async def test_another_node_is_named_where_that_runs_the_destination(
    url: str, status: DestinationStatus, operator: FakeOperator
) -> None:
    operator.streams = False
    status.holding.wait("relay-2")
    code, page = await post(url + SNAPSHOT)
    assert code == 409
    assert "run by relay-2: give the command there" in page["error"]
    assert page["help"] == "docs/troubleshooting.md#refused"


async def test_a_daemon_without_a_token_hears_nobody(status: DestinationStatus) -> None:
    server = HttpServer(("127.0.0.1", 0), Facts(handles_of({"shop": status}), "relay-1"))
    await server.start()
    for given in ("Bearer ", "Bearer"):
        assert (await post(f"http://127.0.0.1:{server.port}{PAUSE}", "{}", authorization=given))[0] == 401
    await server.close()


def scope(client: str, scheme: str = "http", token: str = TOKEN) -> dict[str, Any]:
    headers = [(b"Authorization", f"bearer {token}".encode())]
    return {"client": (client, 4711), "server": ("192.0.2.8", 9180), "scheme": scheme, "headers": headers}


@pytest.mark.parametrize(
    ("client", "scheme", "allow_plain", "heard"),
    [
        ("192.0.2.7", "http", False, False),
        ("192.0.2.7", "https", False, True),
        ("192.0.2.7", "http", True, True),
        ("192.0.2.8", "http", False, True),
        ("127.0.0.1", "http", False, True),
        ("::1", "http", False, True),
        ("nonsense", "http", False, False),
    ],
)
def test_another_machine_s_commands_need_tls_unless_that_is_allowed(
    client: str, scheme: str, allow_plain: bool, heard: bool
) -> None:
    access = Access(TOKEN, allow_plain=allow_plain)
    if heard:
        access.check(scope(client, scheme))
        return
    with pytest.raises(Denied, match="need TLS") as denied:
        access.check(scope(client, scheme))
    assert denied.value.status == 403


def test_guesses_and_floods_of_commands_are_slowed_down(clock: Clock) -> None:
    access = Access(TOKEN, clock=clock)
    codes = []
    for _ in range(12):
        with pytest.raises(Denied) as denied:
            access.check(scope("127.0.0.1", token="guess"))
        codes.append(denied.value.status)
    assert codes == [401] * 10 + [429] * 2
    for _ in range(20):
        access.check(scope("127.0.0.1"))  # whoever has the token is not held up by those who guess
    with pytest.raises(Denied) as denied:
        access.check(scope("127.0.0.1"))
    assert (denied.value.status, denied.value.headers) == (429, {"retry-after": "1"})
    clock.now += 0.2
    access.check(scope("127.0.0.1"))


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
        {"command": "resync", "tables": "shop.t", "where": " "},
        {"command": "resync", "tables": "shop.t", "columns": []},
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


async def test_what_somebody_asked_who_is_gone_is_cancelled(url: str, operator: FakeOperator) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def act(what: str, who: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    operator.act = act  # type: ignore[method-assign]
    asked = asyncio.create_task(post(url + PAUSE, "{}"))
    async with asyncio.timeout(5):
        await begun.wait()
        assert not ended.is_set()
        asked.cancel()
        await ended.wait()
