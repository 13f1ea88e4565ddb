"""A worker over a channel, with actors that do what the test says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from headrace.destination.status import DestinationStatus
from headrace.errors import StateStoreError
from headrace.model import State
from headrace.settings.destination import DestinationSettings
from headrace.supervisor.supervisor import Supervisor
from headrace.workers.channel import Channel, ChannelEnded
from headrace.workers.messages import Answer, Call, Farewell, Snapshot
from headrace.workers.worker import Worker
from tests.supervision import settings, stream, supervisor

LIMIT = 30


class Made:
    """A worker, and the daemon's end of its channel."""

    def __init__(self, boss: Supervisor, theirs: Channel, ours: Channel, release: asyncio.Event) -> None:
        self.boss, self.ours, self.release = boss, ours, release
        self.worker = Worker(theirs, boss, lambda: None)

    def start(self, opening: Any = None) -> None:
        async def nothing() -> None:
            pass

        self.task = asyncio.create_task(self.worker.run(opening or nothing))

    async def message(self, kind: type[Any]) -> Any:
        """The next of this kind."""
        async with asyncio.timeout(LIMIT):
            while not isinstance(message := await self.ours.receive(), kind):
                pass
            return message

    async def told(self, name: str, state: State) -> None:
        while (await self.message(Snapshot)).statuses.get(name, {}).get("state") is not state:
            pass

    async def ended(self) -> int:
        return await asyncio.wait_for(self.task, LIMIT)


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    one, other = socket.socketpair()
    release = asyncio.Event()

    async def stuck(status: DestinationStatus, stop: asyncio.Event) -> None:
        await stream(status, stop)
        await release.wait()

    runs = {"a": stream, "b": stream, "stuck": stuck}
    boss = supervisor(settings("a", "stuck"), runs)
    built = Made(boss, await Channel.open(one), await Channel.open(other), release)
    yield built
    release.set()
    built.ours.close()
    built.task.cancel()
    await asyncio.wait([built.task])


def wanted(*names: str) -> Mapping[str, DestinationSettings]:
    return settings(*names).destinations


async def test_a_worker_tells_how_it_is_and_does_what_it_is_told(made: Made) -> None:
    made.release.set()
    made.start()
    await made.told("a", State.STREAMING)
    made.ours.write(Call(1, "end", (["a"],)))
    assert await made.message(Answer) == Answer(1)
    made.ours.write(Call(2, "apply", (wanted("a", "b", "stuck"),)))
    await made.told("b", State.STREAMING)
    made.ours.write(Call(3, "operate", ("nobody", "pause", "me")))
    while (answer := await made.message(Answer)).number != 3:
        pass
    assert answer.failure.refused
    made.ours.write(Call(4, "stop"))
    assert await made.ended() == 0
    with pytest.raises(ChannelEnded):
        await made.message(Farewell)


async def test_a_call_that_is_cancelled_ends_in_the_worker(made: Made) -> None:
    made.release.set()
    made.start()
    await made.told("a", State.STREAMING)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def operate(*_: Any) -> dict[str, Any]:
        begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    made.boss.statuses["a"].operate = operate
    made.ours.write(Call(1, "operate", ("a", "position", "me")))
    await asyncio.wait_for(begun.wait(), LIMIT)
    made.ours.write(Call(2, "cancel", (1,)))
    assert (await made.message(Answer)).number == 2
    await asyncio.wait_for(ended.wait(), LIMIT)
    made.ours.write(Call(3, "stop"))
    assert await made.ended() == 0


async def test_a_change_that_a_stop_overtakes_starts_nothing_and_is_not_called_done(made: Made) -> None:
    made.start()
    await made.told("stuck", State.STREAMING)
    made.ours.write(Call(1, "end", (["stuck"],)))
    made.ours.write(Call(2, "apply", (wanted("a", "b"),)))
    made.ours.write(Call(3, "stop"))
    assert (await made.message(Answer)).number == 3
    made.release.set()
    assert await made.ended() == 0
    assert "b" not in made.boss.statuses
    with pytest.raises(ChannelEnded):
        await made.message(Answer)


async def test_a_worker_that_can_t_open_what_it_needs_says_why(made: Made) -> None:
    async def opening() -> None:
        raise StateStoreError("the store is away", remedy="look")

    made.start(opening)
    assert str((await made.message(Farewell)).failure.error()) == "the store is away -> look"
    with pytest.raises(StateStoreError):
        await made.ended()


async def test_a_worker_whose_daemon_is_gone_drains_and_stops(made: Made) -> None:
    made.release.set()
    made.start()
    await made.told("a", State.STREAMING)
    made.ours.close()
    assert await made.ended() == 0
    assert {status.state for status in made.boss.statuses.values()} == {State.STOPPED}
