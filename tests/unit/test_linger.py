"""How often a source is read that gives little: changes that come one by one share readings, and a stream that has more
than that is never held up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import runtime
from headrace.destination import reading as module
from tests.made_binlog import Binlog
from tests.streams import HeldSink, begin, settings, three, until

LINGER = 0.321


class Sleeps:
    """What reading slept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = list[float]()
        real = asyncio.sleep

        async def sleep(seconds: float, *more: Any) -> None:
            if seconds in (LINGER, 4 * LINGER):  # nobody else sleeps so long
                self.seconds.append(seconds)
                seconds = 0
            await real(seconds, *more)

        monkeypatch.setattr(module.asyncio, "sleep", sleep)


@pytest.fixture
def sleeps(unhurried: None, monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    return Sleeps(monkeypatch)


async def test_reading_rests_after_a_few_changes(store: Any, sleeps: Sleeps) -> None:
    log, _, packets = three()
    data = bytes(log.packets)
    run = await begin(store, data[: packets[1]], data[packets[1] :], config=settings(queue={"linger": LINGER}))
    task = run.task()
    await until(lambda: run.status.published.messages == 6)
    run.stop.set()
    await task
    assert sleeps.seconds == [LINGER, LINGER]


async def test_it_rests_until_the_sink_confirms_again(
    store: Any, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RESTS", 4 * LINGER)
    log, _, packets = three()
    data, sink = bytes(log.packets), HeldSink()
    sink.rests_until = runtime.monotonic() + 3600
    config = settings(queue={"linger": LINGER})
    run = await begin(store, data[: packets[1]], data[packets[1] :], config=config, sink=sink)
    task = run.task()
    await until(lambda: run.status.published.messages == 6)
    run.stop.set()
    await task
    assert sleeps.seconds == [LINGER, 4 * LINGER] * 2


async def test_it_rests_longer_after_nothing_that_is_published(store: Any, sleeps: Sleeps) -> None:
    log = Binlog()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    log.event(16, bytes(8))
    run = await begin(store, bytes(log.packets), config=settings(queue={"linger": LINGER}))
    task = run.task()
    await until(lambda: run.status.published.transactions == 1)
    run.stop.set()
    await task
    assert sleeps.seconds == [4 * LINGER]


@pytest.mark.parametrize("linger", [0, LINGER])
async def test_a_stream_that_has_much_is_not_held_up(
    store: Any, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch, linger: float
) -> None:
    monkeypatch.setattr(module, "_LITTLE", 16 if linger else 1 << 20)
    log, _, _ = three()
    run = await begin(store, bytes(log.packets), config=settings(queue={"linger": linger}))
    task = run.task()
    await until(lambda: run.status.published.messages == 6)
    run.stop.set()
    await task
    assert sleeps.seconds == []


async def test_what_has_come_while_it_rested_is_little_only_up_to_a_limit(
    store: Any, sleeps: Sleeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an endless backlog would be read once in each rest."""
    log, _, packets = three()
    data, sink = bytes(log.packets), HeldSink()
    monkeypatch.setattr(module, "_RESTS", 4 * LINGER)
    monkeypatch.setattr(module, "_LITTLE", (len(data) - packets[0]) // 4 - 1)
    sink.rests_until = runtime.monotonic() + 3600
    run = await begin(
        store, data[: packets[0]], data[packets[0] :], config=settings(queue={"linger": LINGER}), sink=sink
    )
    task = run.task()
    await until(lambda: run.status.published.messages == 6)
    run.stop.set()
    await task
    assert sleeps.seconds == [4 * LINGER] * 2, "after the first read, of nothing that is published"
