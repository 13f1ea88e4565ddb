"""From the queue to the sink under a lease: suspended when it lapses, resumed in place, and nothing sent by a loser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Fenced, LeaseLapsed
from headrace.lease import Lease
from headrace.model import State
from tests.streams import IDS, HeldSink, Run, open_store, three, until


class Clock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Any]:
    made = await open_store(tmp_path)
    yield made
    await made.close()


async def begin(store: Any, sink: HeldSink) -> tuple[Run, Lease, Clock]:
    clock = Clock()
    lease = Lease(5.0, monotonic=clock, wall=clock)
    lease.prove(clock.now)
    log, _, _ = three()
    run = Run(store, await store.begin_epoch("shop"), bytes(log.packets), sink=sink, lease=lease)
    return run, lease, clock


async def test_a_lapsed_lease_cuts_the_sink_and_a_proof_sends_again_what_was_not_confirmed(store: Any) -> None:
    sink = HeldSink(held=True)
    run, lease, clock = await begin(store, sink)
    task = run.task()
    await until(lambda: sink.messages == 6)
    clock.now += 6
    await until(lambda: sink.aborted, limit=3)
    await until(lambda: run.status.state is State.STALLED)
    assert run.status.reason == "lock"
    await asyncio.sleep(0.05)
    assert sink.messages == 6, "nothing is handed over without a proof"
    sink.held = False
    clock.now += 1
    lease.prove(clock.now)
    await until(lambda: run.status.messages == 6)
    assert sink.ids == IDS * 2
    assert (run.delivery.renewed, run.status.resumes) == (1, 1)
    await until(lambda: run.status.state is State.STREAMING)
    run.stop.set()
    await task
    assert (await store.load("shop")).position.gtid_set.endswith(":1-3")


async def test_what_was_confirmed_before_the_lapse_is_not_sent_again(store: Any) -> None:
    sink = HeldSink()
    run, lease, clock = await begin(store, sink)
    task = run.task()
    await until(lambda: run.status.messages == 6)
    clock.now += 6
    await until(lambda: sink.aborted, limit=3)
    clock.now += 1
    lease.prove(clock.now)
    await until(lambda: run.status.resumes == 1)
    run.stop.set()
    await task
    assert sink.ids == IDS


async def test_a_lost_lock_ends_the_run_and_nothing_waits_for_a_confirmation(store: Any) -> None:
    sink = HeldSink(held=True)
    run, lease, _ = await begin(store, sink)
    task = run.task()
    await until(lambda: sink.messages == 6)
    lease.lose("the session has expired")
    with pytest.raises(Fenced, match="the session has expired"):
        await asyncio.wait_for(task, 3)
    assert sink.aborted


async def test_a_sink_that_keeps_the_position_gives_up_its_transaction_when_the_lease_lapses(store: Any) -> None:
    sink = HeldSink(held=True)
    sink.keeps_position = True  # type: ignore[misc]
    run, _, clock = await begin(store, sink)
    task = run.task()
    await until(lambda: sink.messages == 6)
    clock.now += 6
    with pytest.raises(LeaseLapsed):
        await asyncio.wait_for(task, 10)
    assert sink.aborted
    assert (await store.load("shop")).position is None


async def test_a_sink_that_keeps_the_position_gets_every_batch_and_nobody_else_writes_it(store: Any) -> None:
    sink = HeldSink()
    sink.keeps_position = True  # type: ignore[misc]
    run, _, _ = await begin(store, sink)
    task = run.task()
    await until(lambda: run.status.messages == 6 and run.status.position is not None)
    run.stop.set()
    await task
    assert sink.batches[-1].position == run.status.position
    assert (await store.load("shop")).position is None
