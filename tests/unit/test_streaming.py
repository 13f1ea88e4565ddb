"""One run of a destination: what is confirmed and stored when reading ends in one way or another."""

from __future__ import annotations

import asyncio
import gc
import itertools
import struct
import time
from typing import Any

import pytest

from headrace.destination.status import DestinationStatus
from headrace.errors import Fenced, HeadraceError, PositionLost, SourceSilent, SourceUnreachable
from headrace.model import Column, MessageBatch, Position, State
from headrace.mysql.schema.ddl.definition import TableDefinition
from headrace.mysql.schema.history import Reading
from tests.made_binlog import SID, Binlog
from tests.streams import (
    IDS,
    QUICK,
    Heartbeats,
    HeldSink,
    begin,
    daemon_settings,
    error_packet,
    settings,
    stored,
    three,
    until,
)

pytestmark = pytest.mark.usefixtures("both_ways")


async def test_a_stop_waits_for_what_is_in_flight_and_stores_its_end(store: Any) -> None:
    log, starts, _ = three()
    run = await begin(store, bytes(log.packets), sink=HeldSink(held=True))
    task = run.task()
    await until(lambda: run.sink.messages == 6)
    run.stop.set()
    await asyncio.sleep(0.1)
    assert not task.done()
    run.sink.flow()
    await task
    position = await stored(store)
    assert (position.offset, position.gtid_set) == (starts[3], f"{SID}:1-3")
    assert position.last_transaction == f"b.000001:{starts[2]}"
    assert position.commit_time_us == 1_700_000_000_000_003
    assert run.unconfirmed.oldest == 0.0
    assert not run.unconfirmed.any
    assert run.dump.closed


@pytest.mark.parametrize(("limit", "written"), [(2, True), (1_000, False)])
async def test_a_checkpoint_comes_after_a_number_of_transactions_or_at_its_time(
    limit: int, written: bool, store: Any
) -> None:
    log, starts, _ = three()
    daemon = daemon_settings(checkpoint_interval=60, checkpoint_transactions=limit)
    run = await begin(store, bytes(log.packets), daemon=daemon)
    task = run.task()
    if written:
        await until(lambda: run.status.stored.position is not None)
        assert (await stored(store)).offset in (starts[2], starts[3])  # the third may come in a slice of its own
    else:
        await until(lambda: run.status.published.transactions == 3)
        await asyncio.sleep(1.5)  # the clock's task has checked by then
        assert (await store.load("shop")).position is None
    run.stop.set()
    await task
    assert (await stored(store)).offset == starts[3]


async def test_a_stop_in_the_middle_of_a_store_write_loses_neither_it_nor_the_last_one(store: Any) -> None:
    log, starts, packets = three()
    write, writing, more = store._commit, asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(writing.set)
        time.sleep(0.3)
        return write(*arguments)

    store._commit = slow
    data = bytes(log.packets)
    run = await begin(store, data[: packets[1]], more, data[packets[1] :])
    task = run.task()
    await writing.wait()  # of the first transaction's end
    more.set()
    await until(lambda: run.status.published.rows == 6)
    run.stop.set()
    await task
    position = await stored(store)
    assert position.offset == starts[3]
    assert run.checkpointer.version == (await store.load("shop")).version


async def test_what_carries_no_message_moves_the_position_too_in_its_turn(store: Any) -> None:
    log, starts, packets = three()
    log.event(161, b"checkpoint")
    data, more = bytes(log.packets), asyncio.Event()
    sink = HeldSink(held=True)
    run = await begin(store, data[: packets[3]], more, data[packets[3] :], sink=sink)
    task = run.task()
    await until(lambda: sink.messages == 6)
    more.set()
    await asyncio.sleep(0.1)
    before = (await store.load("shop")).position
    assert before is None or before.offset == starts[0]  # what comes before the first may be a slice of its own
    sink.flow()
    run.stop.set()
    await task
    assert (await stored(store)).offset == log.at


async def test_a_dump_that_has_sent_nothing_is_no_stream(store: Any) -> None:
    run = await begin(store)
    task = run.task()
    await asyncio.sleep(0.2)
    assert run.status.state is State.STARTING
    run.stop.set()
    await task


async def test_when_reading_fails_what_was_read_is_confirmed_first(store: Any) -> None:
    log, starts, _ = three()
    run = await begin(store, bytes(log.packets), SourceSilent("nothing came"), sink=HeldSink(held=True))
    task = run.task()
    await until(lambda: run.status.state is State.STALLED)
    assert run.status.last_error == "nothing came -> see docs/troubleshooting.md#source"
    await asyncio.sleep(0.1)
    assert not task.done()
    run.sink.flow()
    with pytest.raises(SourceSilent):
        await task
    assert (await stored(store)).offset == starts[3]


async def test_what_came_before_the_servers_refusal_is_published_and_the_lost_position_is_behind_it(store: Any) -> None:
    log, starts, _ = three()
    refusal = error_packet(1236, "Could not find first log file name in binary log index file")
    run = await begin(store, bytes(log.packets) + refusal)
    with pytest.raises(PositionLost):
        await run.stream.run(run.stop)
    assert run.sink.ids == IDS
    assert (await stored(store)).offset == starts[3]
    assert (run.status.state, run.status.lost_kind) == (State.POSITION_LOST, "position_purged")


async def test_a_lost_position_is_shown_once_the_position_before_it_is_stored(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, starts, _ = three()
    refusal = error_packet(1236, "Could not find first log file name in binary log index file")
    run = await begin(store, bytes(log.packets) + refusal, sink=HeldSink(held=True))
    seen: list[int] = []
    fail = DestinationStatus.fail

    def note(status: DestinationStatus, error: HeadraceError) -> None:
        fail(status, error)
        seen.append(status.stored.position.offset if status.stored.position is not None else 0)

    monkeypatch.setattr(DestinationStatus, "fail", note)
    task = run.task()
    await until(lambda: run.sink.messages == len(IDS))
    await asyncio.sleep(0)
    assert run.status.state is not State.POSITION_LOST, "what was read before it is not confirmed"
    run.sink.flow()
    with pytest.raises(PositionLost):
        await task
    assert seen == [starts[3]]


async def test_what_is_not_confirmed_in_time_remains_and_is_reported(store: Any) -> None:
    log, starts, _ = three()
    daemon = daemon_settings(drain_timeout=0.1)
    run = await begin(store, bytes(log.packets), SourceSilent("silence"), sink=HeldSink(held=True), daemon=daemon)
    with pytest.raises(SourceSilent):
        await run.stream.run(run.stop)
    assert run.unconfirmed.any
    assert run.unconfirmed.oldest > 0
    stored = (await store.load("shop")).position  # a slow reader may have stored where the first transaction begins
    assert stored is None or (stored.offset, stored.events_done) == (starts[0], 0)


async def test_a_run_that_has_ended_keeps_no_messages_however_long_a_cycle_keeps_it(store: Any) -> None:
    log, _, packets = three()
    for _ in range(20):
        log.event(161, b"checkpoint")
    data = bytes(log.packets)
    cuts = [0, *packets[1:], len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(cuts)]

    def batches() -> list[MessageBatch]:
        return [each for each in gc.get_objects() if type(each) is MessageBatch]

    # What earlier tests left in cycles would be counted now, and be collected before the next count.
    gc.collect()
    before = len(batches())
    daemon = daemon_settings(drain_timeout=0.1)
    run = await begin(store, *pieces, SourceSilent("silence"), sink=HeldSink(held=True), daemon=daemon)
    task = run.task()
    await until(lambda: len(run.sink.batches) == len(packets) - 1)
    held = len(batches()) - before
    with pytest.raises(SourceSilent):
        await task
    del task
    run.sink.batches.clear()
    gc.collect()
    left = len(batches()) - before
    assert (held >= 3, left <= 2) == (True, True), "at most what its two tasks had in their hands"


@pytest.mark.parametrize("end", [("b.000001", 1 << 20), ("b.000002", 4), SourceUnreachable("away"), TimeoutError()])
async def test_a_source_that_has_more_or_answers_nowhere_is_silent_and_what_was_read_is_confirmed(
    end: Any, store: Any
) -> None:
    log, starts, _ = three()
    config = settings(source=QUICK)
    run = await begin(store, bytes(log.packets), sink=HeldSink(held=True), config=config, companion=Heartbeats(end))
    task = run.task()
    await until(lambda: run.status.last_error.startswith("no byte came"))
    await asyncio.sleep(0.05)
    assert not task.done(), "the messages in flight are waited for"
    run.sink.flow()
    with pytest.raises(SourceSilent, match=r"no byte came from the source at h:3306 for 0\.2 s"):
        await task
    assert (await stored(store)).offset == starts[3]


async def test_a_source_that_has_nothing_more_is_no_stall(store: Any) -> None:
    log, starts, _ = three()
    run = await begin(
        store, bytes(log.packets), config=settings(source=QUICK), companion=Heartbeats(("b.000001", starts[3]))
    )
    task = run.task()
    await until(lambda: run.companion.asked >= 3)
    assert not task.done()
    assert run.status.state is State.STREAMING
    run.stop.set()
    await task


async def test_no_source_is_asked_while_nobody_reads(store: Any) -> None:
    log, _, _ = three()
    never = asyncio.Event()
    run = await begin(store, bytes(log.packets), never, config=settings(source=QUICK))
    task = run.task()
    await until(lambda: run.status.state is State.STREAMING)
    await asyncio.sleep(0.5)
    assert run.companion.asked == 0
    run.stop.set()
    await task


async def test_a_sink_that_confirms_nothing_is_a_stall_and_one_that_is_slow_is_none(store: Any) -> None:
    log, _, packets = three()
    data, more = bytes(log.packets), asyncio.Event()
    run = await begin(
        store,
        *(data[a:b] for a, b in zip([0, *packets[1:3]], packets[1:], strict=True)),
        more,
        config=settings(source={"stall_after": 0.6}),
        sink=HeldSink(held=True),
    )
    task = run.task()
    await until(lambda: run.sink.messages == 6)
    count = len(run.sink.waiting)
    assert count >= 3
    for _ in range(count - 1):
        await asyncio.sleep(0.3)
        run.sink.flow(1)
        await asyncio.sleep(0.05)
        assert run.status.state is State.STREAMING
    await until(lambda: run.status.state is State.STALLED)
    assert run.status.reason == "sink"
    run.sink.flow()
    await until(lambda: run.status.state is State.STREAMING)
    assert (run.status.published.transactions, run.status.published.rows, run.status.published.messages) == (3, 6, 6)
    run.status.troubles["heartbeat"] = "no grant"
    await until(lambda: run.status.state is State.DEGRADED)
    assert (run.status.reason, run.status.message) == ("heartbeat", "no grant")
    run.stop.set()
    await task


async def test_a_schema_that_the_binlog_does_not_contain_is_searched_and_the_rows_follow(store: Any) -> None:
    log = Binlog().begin_file()
    log.gtid(1, 1_700_000_000_000_000)
    log.query("BEGIN")
    body = struct.pack("<IHH", 7, 0, 1) + b"\x04shop\0\x01t\0\x02\x03\x0f\x02" + struct.pack("<H", 160) + b"\x02"
    log.event(19, body)
    log.insert((1, "a"))
    log.event(16, bytes(8))
    run = await begin(store, bytes(log.packets))
    asked = list[tuple[tuple[str, str], Position]]()

    async def learn(table: tuple[str, str], position: Position) -> str:
        asked.append((table, position))
        columns = (Column("id", "int", 4, nullable=False), Column("v", "varchar(40)", 12, charset="utf8mb4", length=40))
        run.schemas.history.adopt(Reading({("shop", "t"): (TableDefinition(columns, (0,), "utf8mb4"), None)}))
        return ""

    run.schemas.learn = learn
    task = run.task()
    await until(lambda: run.sink.messages == 1)
    run.stop.set()
    await task
    assert [table for table, _ in asked] == [("shop", "t")]
    assert asked[0][1].events_done == 0


async def test_a_higher_epoch_in_the_binlog_ends_the_run_at_once_and_is_no_failure_of_ours(store: Any) -> None:
    log, _, _ = three()
    run = await begin(store, bytes(log.packets), Fenced("another one runs it"), sink=HeldSink(held=True))
    with pytest.raises(Fenced, match="another one"):
        await asyncio.wait_for(run.stream.run(run.stop), 3)  # well below drain_timeout: nothing is waited for
    assert run.sink.aborted
    assert run.status.last_error == ""


async def test_a_higher_epoch_that_a_heartbeat_has_met_ends_the_run(store: Any) -> None:
    class Met(Heartbeats):
        fenced = False

        def check(self) -> None:
            if self.fenced:
                raise Fenced("another one runs it")

    companion = Met()
    run = await begin(store, companion=companion)
    task = run.task()
    await asyncio.sleep(0.05)
    assert not task.done()
    companion.fenced = True
    with pytest.raises(Fenced, match="another one"):
        await asyncio.wait_for(task, 3)


async def test_a_library_that_cancels_our_task_is_a_failure_that_is_reported(store: Any) -> None:
    class Sink(HeldSink):
        async def publish(self, batch: Any) -> Any:
            raise asyncio.CancelledError

    log, _, _ = three()
    run = await begin(store, bytes(log.packets), sink=Sink())
    with pytest.raises(HeadraceError, match="'publish' was cancelled from within"):
        await asyncio.wait_for(run.task(), 5)
