"""From the queue to the sink under a lease: suspended when it lapses, resumed in place, and nothing sent by a loser."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.adapters.sqlite.parking import SqliteParkingStore
from headrace.errors import Fenced, LeaseLapsed, SinkError
from headrace.lease import Lease
from headrace.model import MessageBatch, State
from headrace.parking.parking import OrderedParking
from tests.clock import Clock
from tests.parked import batch, new_parking, unit
from tests.streams import IDS, HeldSink, Run, daemon_settings, three, until


async def begin(store: Any, sink: HeldSink, *, apart: bool = False) -> tuple[Run, Lease, Clock]:
    """`apart`: each transaction comes in a batch of its own, the last one when the sink is asked to `go_on`."""
    clock = Clock()
    lease = Lease(5.0, monotonic=clock, wall=clock)
    lease.prove(clock.now)
    log, _, packets = three()
    data, steps = bytes(log.packets), list[Any]()
    if apart:
        sink.go_on = asyncio.Event()  # type: ignore[attr-defined]
        steps = [data[: packets[1]], data[packets[1] : packets[2]], sink.go_on, data[packets[2] :]]  # type: ignore[attr-defined]
    run = Run(store, await store.begin_epoch("shop"), *(steps or [data]), sink=sink, lease=lease)
    return run, lease, clock


async def test_a_lapsed_lease_aborts_the_sink_and_after_a_proof_unconfirmed_messages_are_sent_again(store: Any) -> None:
    sink = HeldSink(held=True)
    run, lease, clock = await begin(store, sink)
    task = run.task()
    await until(lambda: sink.messages == 6)
    clock.now += 6
    await until(lambda: sink.aborted, limit=3)
    await until(lambda: run.status.state is State.STALLED)
    assert run.status.reason == "lock"
    await asyncio.sleep(0.05)
    assert (run.status.state, run.status.reason) == (State.STALLED, "lock")
    assert sink.messages == 6, "nothing is handed over without a proof"
    sink.held = False
    clock.now += 1
    lease.prove(clock.now)
    await until(lambda: run.status.published.messages == 6)
    assert sink.ids == IDS * 2
    assert (run.publisher.renewed, run.status.holding.resumes) == (1, 1)
    await until(lambda: run.status.state is State.STREAMING)
    run.stop.set()
    await task
    assert (await store.load("shop")).position.gtid_set.endswith(":1-3")


async def test_what_was_confirmed_before_the_lapse_is_not_sent_again(store: Any) -> None:
    sink = HeldSink()
    run, lease, clock = await begin(store, sink)
    task = run.task()
    await until(lambda: run.status.published.messages == 6)
    clock.now += 6
    await until(lambda: sink.aborted, limit=3)
    clock.now += 1
    lease.prove(clock.now)
    await until(lambda: run.status.holding.resumes == 1)
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
    await until(lambda: run.status.published.messages == 6 and run.status.stored.position is not None)
    run.stop.set()
    await task
    assert sink.batches[-1].position == run.status.stored.position
    assert (await store.load("shop")).position is None


async def test_what_was_handed_over_comes_again_in_its_order_and_before_what_was_read_since(store: Any) -> None:
    sink: Any = HeldSink(held=True)
    run, lease, clock = await begin(store, sink, apart=True)
    task = run.task()
    await until(lambda: sink.messages == 4)
    assert run.publisher.watched
    clock.now += 6
    await until(lambda: sink.aborted, limit=3)
    assert not run.publisher.watched, "nothing is in flight, so the process need not end"
    sink.go_on.set()
    await until(lambda: run.publisher.queue.used > 0 and len(run.publisher.queue) == 1)
    sink.held = False
    clock.now += 1
    lease.prove(clock.now)
    await until(lambda: run.status.published.messages == 6)
    assert sink.ids == IDS[:4] + IDS
    assert run.publisher.watched
    assert run.publisher.queue.used == 0
    assert not run.unconfirmed.any
    run.stop.set()
    await task


class AskingSink(HeldSink):
    """Asks the lease before it takes a batch, as real ones do."""

    lease: Lease

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        self.lease.check()
        return await super().publish(batch)


async def test_a_lapse_that_the_sink_sees_first_suspends_as_well(store: Any) -> None:
    sink: Any = AskingSink()
    run, lease, clock = await begin(store, sink, apart=True)
    sink.lease = lease
    task = run.task()
    await until(lambda: run.status.published.messages == 4)
    clock.now += 6
    sink.go_on.set()
    await until(lambda: run.publisher.suspended)
    assert sink.ids == IDS[:4]
    clock.now += 1
    lease.prove(clock.now)
    await until(lambda: run.status.published.messages == 6)
    assert sink.ids == IDS
    run.stop.set()
    await task


async def test_a_lost_lock_counts_for_more_than_what_happens_at_the_same_time(store: Any) -> None:
    sink = HeldSink(held=True)
    run, lease, _ = await begin(store, sink)
    task = run.task()
    await until(lambda: sink.messages == 6)
    lease.lose("the session has expired")
    sink.waiting[0].set_exception(SinkError("the connection was cut"))
    with pytest.raises(Fenced, match="the session has expired"):
        await asyncio.wait_for(task, 3)


class HalfSink(HeldSink):
    """Has taken a part of a batch, and waits for room."""

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        self.batches.append(batch)
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_partly_published_batch_is_aborted_at_the_end_of_the_run(store: Any) -> None:
    sink = HalfSink()
    run, _, _ = await begin(store, sink)
    run.stream._daemon = run.daemon.model_copy(update={"drain_timeout": 0.05})
    task = run.task()
    await until(lambda: sink.messages)
    run.stop.set()
    await task
    assert sink.aborted


async def parked(store: Any, guard: Any) -> OrderedParking:
    """A parking where one message waits and is due."""
    parking = new_parking(SqliteParkingStore(store, "shop"))
    await parking.open(guard)
    parking.park("shop", batch(unit("7")), 0, "", 0)
    await parking.flush(guard)
    return parking


async def test_a_stop_waits_for_what_is_being_sent_again(store: Any) -> None:
    guard = await store.begin_epoch("shop")
    run = Run(store, guard, parking=await parked(store, guard), daemon=daemon_settings(drain_timeout=60))
    task = run.task()
    await until(lambda: run.sink.resent)
    run.stop.set()
    await asyncio.sleep(0.1)
    assert not task.done()
    run.sink.flow()
    await asyncio.wait_for(task, 5)
    assert not run.sink.aborted
    assert await SqliteParkingStore(store, "shop").entries() == []


async def test_resent_messages_without_an_answer_are_aborted_at_the_end_of_the_run(store: Any) -> None:
    guard = await store.begin_epoch("shop")
    run = Run(store, guard, parking=await parked(store, guard), daemon=daemon_settings(drain_timeout=0.2))
    task = run.task()
    await until(lambda: run.sink.resent)
    run.stop.set()
    await task
    assert run.sink.aborted
    assert [entry.attempts for entry in await SqliteParkingStore(store, "shop").entries()] == [0]
