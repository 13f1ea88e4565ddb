"""What operators ask of a destination, without servers: searches beside the stream, and what becomes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.destination import operator as module
from headrace.destination.requests import RequestRefused
from headrace.model import Gap, State
from headrace.ports.source import Move
from tests.destinations import STORED, DestinationSite
from tests.streams import three, until

TO = replace(STORED, offset=400)


class Searches:
    """Stands in for the searches on the source: each goes on until it is told to end."""

    def __init__(self) -> None:
        self.go, self.begun, self.ended, self.found = asyncio.Event(), 0, 0, list[Any]()
        self.on_progress: Callable[..., Any] = lambda *_: None

    async def __call__(
        self, addresses: Any, where: Any, stored: Any, *_: Any, on_progress: Any, found: Any, **__: Any
    ) -> Move:
        self.begun += 1
        self.found.append(found)
        try:
            if found is None:
                self.on_progress = on_progress
                on_progress("b.000001", self.begun, 400)
                await self.go.wait()
            gap = Gap("operator", str(stored.position), str(TO))
            return Move(TO, gap, found="found")
        finally:
            self.ended += 1


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    made = Searches()
    monkeypatch.setattr("headrace.mysql.source.move_by_hand", made)
    return made


def move(site: DestinationSite, *, commit: bool) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(site.actor.operator.move("b.000001:400", "me", read_schemas=False, commit=commit))


async def streaming(site: DestinationSite) -> asyncio.Task[None]:
    data = bytes(three()[0].packets)
    await site.put()
    site.answers, site.sink.held = [[data], [data]], False
    task = site.task()
    await until(lambda: site.status.holding.role == "ACTIVE" and site.status.state is State.STREAMING)
    return task


async def test_the_stream_continues_during_the_search_of_a_position_and_ends_when_it_is_found(
    store: Any, monkeypatch: pytest.MonkeyPatch, searches: Searches
) -> None:
    site = DestinationSite(store, monkeypatch)
    task = await streaming(site)
    asked = move(site, commit=True)
    await until(lambda: searches.begun == 1)
    assert (site.status.state, len(site.answers)) == (State.STREAMING, 1), "the run has not ended"
    assert site.status.search.now == {"file": "b.000001", "done": 1, "total": 400}
    searches.go.set()
    assert (await asked)["to"] == str(TO)
    assert searches.found == [None, "found"], "it is not searched twice"
    assert (await site.stored()).offset == 400
    assert site.status.search.now is None
    await until(lambda: site.answers == [])
    site.stop.set()
    await task


async def test_a_destination_that_executes_a_command_is_not_healthy(
    store: Any, monkeypatch: pytest.MonkeyPatch, searches: Searches
) -> None:
    site = DestinationSite(store, monkeypatch)
    task = await streaming(site)
    asked = asyncio.create_task(site.actor.requests.ask(asyncio.Event().wait, limit=0.2))
    await until(lambda: site.status.reason == "operator")
    assert (site.status.state, site.status.state.healthy) == (State.STARTING, False)
    assert "what an operator asked for is being done" in site.status.message
    with pytest.raises(RequestRefused, match="is cancelled"):
        await asked
    await until(lambda: site.status.state is State.STREAMING)
    assert (site.status.reason, site.status.message) == ("", "")
    site.stop.set()
    await task


async def test_a_stop_does_not_wait_for_what_was_asked_for(
    store: Any, monkeypatch: pytest.MonkeyPatch, searches: Searches
) -> None:
    site = DestinationSite(store, monkeypatch)
    task = await streaming(site)
    asked = asyncio.create_task(site.actor.requests.ask(asyncio.Event().wait, limit=60))
    await until(lambda: site.status.reason == "operator")
    site.stop.set()
    async with asyncio.timeout(1):
        await task
        with pytest.raises(RequestRefused, match="stopped meanwhile"):
            await asked


async def test_one_position_is_searched_at_a_time_and_a_closed_connection_ends_only_its_own_search(
    store: Any, monkeypatch: pytest.MonkeyPatch, searches: Searches
) -> None:
    site = DestinationSite(store, monkeypatch)
    await site.put()
    first = move(site, commit=False)
    await until(lambda: searches.begun == 1)
    with pytest.raises(RequestRefused, match="already running"):
        await move(site, commit=False)
    assert site.status.search.now == {"file": "b.000001", "done": 1, "total": 400}, "it is the first one's"
    first.cancel()
    await until(lambda: searches.ended == 1)
    await asyncio.gather(first, return_exceptions=True)
    assert site.status.search.now is None
    searches.go.set()
    assert (await move(site, commit=False))["to"] == str(TO)


async def test_a_search_may_take_long_while_it_comes_further_and_is_given_up_when_it_does_not(
    store: Any, monkeypatch: pytest.MonkeyPatch, searches: Searches
) -> None:
    monkeypatch.setattr(module, "_SILENCE", 1.0)
    site = DestinationSite(store, monkeypatch)
    await site.put()
    asked = move(site, commit=False)
    for done in range(24):
        await asyncio.sleep(0.05)
        searches.on_progress("b.000001", done + 2, 400)
    assert not asked.done()
    with pytest.raises(RequestRefused, match=r"came no further for 1 s"):
        await asked
    assert (searches.ended, site.status.search.now) == (1, None)


async def test_a_reset_where_nothing_is_stored_changes_nothing(
    store: Any, monkeypatch: pytest.MonkeyPatch, searches: Searches
) -> None:
    site = DestinationSite(store, monkeypatch)
    before = await store.load("shop")
    shown = await site.actor.operator.move("", "me", read_schemas=False, commit=True)
    assert (shown["from"], shown["gap"]) == ("nothing stored", None)
    assert await store.load("shop") == before
