"""The sink of a run: started under a proved lock only, cut when that fails, made anew after a lapse."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace.destination import publisher as module
from headrace.destination.dependencies import Context
from headrace.destination.publisher import Publisher
from headrace.destination.status import DestinationStatus
from headrace.errors import Fenced, LeaseLapsed, SinkError
from headrace.lease import Lease
from headrace.tasks import cancel
from tests.configured import parts_of
from tests.streams import HeldSink, Sleeping, daemon_settings, settings, until


class Sink(HeldSink):
    """Notes its start."""

    fails, made = False, list[Any]()

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)
        self.store: Any = f"store {len(self.made)}"
        self.started = self.closed = False

    async def start(self) -> None:
        self.started = True
        if self.fails:
            raise SinkError("away")

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def sinks(monkeypatch: pytest.MonkeyPatch) -> list[Sink]:
    """Those that the publishers below have made."""
    made = list[Sink]()
    monkeypatch.setattr(module, "_PROOF_LIMIT", 0.2)
    monkeypatch.setattr(Sink, "made", made)
    return made


def publisher(lease: Lease, watchdog: Any = None) -> Publisher:
    context = Context(settings(), daemon_settings(), DestinationStatus("shop"))
    return Publisher(
        context, replace(parts_of(settings()), new_sink=lambda *_: Sink()), lease, None, watchdog or Sleeping()
    )


async def test_a_sink_is_started_once_the_lock_is_proved(sinks: list[Sink]) -> None:
    lease = Lease(5.0)
    starting = asyncio.create_task(publisher(lease).start())
    await asyncio.sleep(0.02)
    assert not sinks[0].started
    lease.prove(time.monotonic())
    await asyncio.wait_for(starting, 1)
    assert sinks[0].started


async def test_without_a_proof_no_sink_is_started(sinks: list[Sink]) -> None:
    with pytest.raises(LeaseLapsed):
        await publisher(Lease(5.0)).start()
    lost = Lease(5.0)
    lost.lose("gone")
    with pytest.raises(Fenced):
        await publisher(lost).start()
    assert [sink.started for sink in sinks] == [False, False]


async def test_a_sink_whose_start_fails_is_aborted(sinks: list[Sink], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sink, "fails", True)
    with pytest.raises(SinkError):
        await publisher(Lease()).start()
    assert sinks[0].aborted


async def test_after_a_lapse_another_sink_takes_the_place_and_is_watched_until_it_is_closed(
    sinks: list[Sink],
) -> None:
    covers = set[Any]()

    class Dog:
        def cover(self, lease: Lease, note: Callable[[], str]) -> object:
            covers.add(cover := object())
            return cover

        def uncover(self, cover: object) -> None:
            covers.remove(cover)

    now = 100.0
    lease = Lease(5.0, monotonic=lambda: now, wall=lambda: now)
    lease.prove(now)
    made = publisher(lease, Dog())
    await made.start()
    assert covers == set(), "nothing was handed over"
    running = asyncio.create_task(made.run(lambda _: None))
    await until(lambda: len(covers) == 1)
    now += 6
    await until(lambda: made.suspended, limit=3)
    assert (covers, sinks[0].aborted) == (set(), True)
    now += 1
    lease.prove(now)
    await until(lambda: len(covers) == 1)
    assert (made.sink, made.store, sinks[1].started) == (sinks[1], "store 2", True)
    await cancel(running)
    await made.close()
    assert (covers, sinks[1].closed, sinks[1].aborted) == (set(), True, False)


async def test_a_run_that_ends_during_an_abort_ends_though_the_sink_drops_its_cancellation(
    sinks: list[Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    aborting = asyncio.Event()

    async def abort(self: Sink) -> None:
        aborting.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    monkeypatch.setattr(Sink, "abort", abort)
    now = 100.0
    lease = Lease(5.0, monotonic=lambda: now, wall=lambda: now)
    lease.prove(now)
    made = publisher(lease)
    await made.start()
    running = asyncio.create_task(made.run(lambda _: None))
    await asyncio.sleep(0)
    now += 6
    await asyncio.wait_for(aborting.wait(), 5)
    now += 1
    lease.prove(now)
    await cancel(running, limit=5)
    assert running.cancelled()


async def test_messages_are_sent_again_only_through_a_sink_that_has_started_and_is_not_ended(
    sinks: list[Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    lease = Lease(5.0, monotonic=lambda: now, wall=lambda: now)
    lease.prove(now)
    made, starting, go = publisher(lease), asyncio.Event(), asyncio.Event()
    assert made.resending is None
    await made.start()
    assert made.resending is sinks[0]
    running = asyncio.create_task(made.run(lambda _: None))
    await asyncio.sleep(0)
    now += 6
    await until(lambda: made.suspended, limit=3)
    assert made.resending is None

    async def slow(self: Sink) -> None:
        starting.set()
        await go.wait()

    monkeypatch.setattr(Sink, "start", slow)
    now += 1
    lease.prove(now)
    await starting.wait()
    assert (made.sink, made.resending) == (sinks[1], None)
    go.set()
    await until(lambda: made.resending is sinks[1])
    await cancel(running)
    await made.rest(resent=True)
    assert made.resending is None
    await made.close()
