"""The last fence: a process whose loop hangs past its lease ends, one that was only frozen gets time to stop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

import pytest

from headrace.cluster import watchdog as module
from headrace.cluster.watchdog import EXIT_STATUS, Watchdog
from headrace.destination.dependencies import Context
from headrace.destination.publisher import Publisher
from headrace.destination.status import DestinationStatus
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.runtime import Runtime
from headrace.tasks import cancel
from tests.configured import parts_of
from tests.runtimes import of_process
from tests.streams import HeldSink, daemon_settings, settings, until


class Process(Runtime):
    """Its watchdog's ticks are the test's."""

    def watch(self, interval: float, check: Callable[[float], None], name: str) -> None:
        pass


@pytest.fixture
def ended() -> list[int]:
    return []


@pytest.fixture
def watchdog(ended: list[int], monkeypatch: pytest.MonkeyPatch) -> Watchdog:
    monkeypatch.setattr(os, "_exit", ended.append)
    return of_process(Process(), Watchdog)


def lapsed() -> Lease:
    lease = Lease(1.0, margin=1.0)
    lease.prove(time.monotonic() - 2)
    return lease


def ticks(watchdog: Watchdog, count: int, passed: float = 0.25) -> None:
    for _ in range(count):
        watchdog.tick(passed)


def test_a_lapsed_lease_that_nobody_honours_ends_the_process(watchdog: Watchdog, ended: list[int]) -> None:
    watchdog.cover(lapsed())
    ticks(watchdog, 4)
    assert ended == []
    ticks(watchdog, 1)
    assert ended == [EXIT_STATUS]


def test_an_aborted_transport_does_not_end_the_process(watchdog: Watchdog, ended: list[int]) -> None:
    cover = watchdog.cover(lapsed())
    ticks(watchdog, 4)
    watchdog.uncover(cover)
    ticks(watchdog, 10)
    assert ended == []


def publisher(lease: Lease, watchdog: Watchdog) -> Publisher:
    context = Context(settings(), daemon_settings(), DestinationStatus("shop"))
    return Publisher(context, parts_of(settings(), sink=HeldSink(held=True)), lease, None, watchdog)


async def test_a_lapse_ends_the_process_only_when_something_was_handed_over(
    watchdog: Watchdog, ended: list[int]
) -> None:
    """A source that opens slowly, or a broker that answers slowly, may take longer than the lease."""
    lease = Lease(60.0, margin=1.0)
    lease.prove(time.monotonic())
    made = publisher(lease, watchdog)
    await made.start()
    lease.lose("gone")
    ticks(watchdog, 10)
    assert ended == []
    lease = Lease(60.0, margin=1.0)
    lease.prove(time.monotonic())
    made = publisher(lease, watchdog)
    await made.start()
    running = asyncio.create_task(made.run(lambda _: None))
    await asyncio.sleep(0)
    await made.abort()
    lease.lose("gone")
    ticks(watchdog, 10)
    assert ended == [], "its connections were cut in time"
    await cancel(running)
    lease = Lease(60.0, margin=1.0)
    lease.prove(time.monotonic())
    made = publisher(lease, watchdog)
    await made.start()
    running = asyncio.create_task(made.run(lambda _: None))
    await asyncio.sleep(0)
    lease.lose("gone")
    ticks(watchdog, 5)
    assert ended == [EXIT_STATUS]
    await cancel(running)


def test_a_lost_lock_counts_like_a_lapsed_lease(watchdog: Watchdog, ended: list[int]) -> None:
    lease = Lease(100.0, margin=1.0)
    lease.prove(time.monotonic())
    watchdog.cover(lease)
    ticks(watchdog, 10)
    assert ended == []
    lease.lose("gone")
    ticks(watchdog, 5)
    assert ended == [EXIT_STATUS]


def test_a_frozen_process_gets_its_time_when_it_wakes(watchdog: Watchdog, ended: list[int]) -> None:
    watchdog.cover(lapsed())
    watchdog.tick(40.0)
    assert ended == []
    ticks(watchdog, 4)
    assert ended == [EXIT_STATUS]


def test_a_lock_that_can_not_be_lost_is_not_watched(watchdog: Watchdog, ended: list[int]) -> None:
    watchdog.cover(Lease())
    assert watchdog._covers == ()


async def test_at_the_end_of_a_run_unconfirmed_messages_are_aborted_and_an_idle_sink_may_end_slowly(
    watchdog: Watchdog, ended: list[int]
) -> None:
    for idle in (True, False):
        lease = Lease(1.0, margin=1.0)
        lease.prove(time.monotonic())
        made = publisher(lease, watchdog)
        await made.start()
        running = asyncio.create_task(made.run(lambda _: None))
        if not idle:
            await made.queue.put(MessageBatch("t", 0, [b"value"]))
        await until(lambda made=made, idle=idle: made.idle is idle)
        await asyncio.sleep(0)
        await cancel(running)
        await made.rest(resent=True)
        assert made.sink.aborted is not idle  # type: ignore[attr-defined]
        lease.lose("gone")
        ticks(watchdog, 10)
        assert ended == []


def test_a_lapse_that_is_over_does_not_count_towards_the_next(watchdog: Watchdog, ended: list[int]) -> None:
    lease = lapsed()
    watchdog.cover(lease)
    ticks(watchdog, 4)
    lease.prove(time.monotonic())
    ticks(watchdog, 1)
    lease.lose("gone")
    ticks(watchdog, 4)
    assert ended == []
    ticks(watchdog, 1)
    assert ended == [EXIT_STATUS]


def test_ticks_that_are_late_on_a_busy_machine_count_in_full(watchdog: Watchdog, ended: list[int]) -> None:
    watchdog.cover(lapsed())
    ticks(watchdog, 1, 0.9)
    assert ended == []
    ticks(watchdog, 1, 0.9)
    assert ended == [EXIT_STATUS]


@pytest.mark.parametrize("fault", ["the note raises", "standard error takes nothing"])
def test_a_failing_report_does_not_stop_the_watchdog_from_ending_the_process(
    watchdog: Watchdog, ended: list[int], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def note() -> str:
        raise OSError(fault)

    blocked = threading.Event()
    if fault != "the note raises":
        monkeypatch.setattr(module, "_report", lambda where: blocked.wait())
    watchdog.cover(lapsed(), note if fault == "the note raises" else str)
    ticks(watchdog, 5)
    assert ended == [EXIT_STATUS]
    blocked.set()
