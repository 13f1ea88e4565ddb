"""A dump that ended within a run: when it is begun again in place, and when its end is a failure."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from headrace.destination import reading as streaming
from headrace.errors import ContinuesElsewhere, SourceEnded, SourceUnreachable
from headrace.model import Position
from tests.streams import IDS, QUICK, START, Dump, Heartbeats, begin, opened, settings, stored, three, until

pytestmark = pytest.mark.usefixtures("both_ways")
ENDED = SourceEnded("the source closed the binlog stream")


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dump counts as one that has lasted."""
    monkeypatch.setattr(streaming, "_STEADY", 0.0)


@pytest.mark.parametrize("cut", ["between", "inside"])
async def test_an_ended_dump_is_begun_again_in_place_and_nothing_comes_twice(
    cut: str, steady: None, store: Any
) -> None:
    log, starts, packets = three()
    data = bytes(log.packets)
    inside = data.index(b"\x0c\0\0\0\x01b")  # the row of the second rows event of the second transaction
    inside = data.rindex(b"\x04shop", 0, inside) - 22  # in the event that describes its table
    where = packets[2] if cut == "between" else inside
    config = settings()
    run = await begin(store, data[:where], ENDED, config=config)
    task = run.task()
    again = data[packets[2] if cut == "between" else packets[1] :]

    async def reopen(position: Position) -> Any:
        run.asked.append(position)
        return opened(Dump(again), position, config.source)

    run.reopen = reopen
    await until(lambda: run.sink.messages == 6)
    run.stop.set()
    await task
    assert run.sink.ids == IDS
    ((asked),) = run.asked
    expected = (starts[2], 0) if cut == "between" else (starts[1], 1)
    assert (asked.offset, asked.events_done) == expected
    assert run.status.source.reconnects == 1
    assert run.dump.closed
    numbers = [int(dict(h)["headrace-pos"]) for batch in run.sink.batches for h in batch.headers]
    assert numbers == sorted(set(numbers))
    assert (run.status.published.transactions, (await stored(store)).offset) == (3, starts[3])


async def test_a_dump_that_ends_soon_is_a_failure(store: Any) -> None:
    run = await begin(store, ENDED)
    with pytest.raises(SourceEnded):
        await run.stream.run(run.stop)
    assert run.asked == []


async def test_a_dump_that_ends_soon_after_the_sink_held_us_up_is_begun_again(store: Any) -> None:
    log, _, _ = three()
    config = settings()
    again = opened(Dump(bytes(log.packets)), START, config.source)
    run = await begin(store, ENDED, config=config, reopened=[again])
    run.stream._reading._blocked_until = time.monotonic()
    task = run.task()
    await until(lambda: run.sink.messages == 6)
    run.stop.set()
    await task
    assert run.asked == [START]


async def test_a_stream_that_goes_on_elsewhere_again_and_again_is_a_failure(store: Any) -> None:
    moved, config = ContinuesElsewhere("the archive ends"), settings()
    again = [opened(Dump(moved), START, config.source) for _ in range(streaming._MOVES + 1)]
    run = await begin(store, moved, config=config, reopened=again)
    with pytest.raises(ContinuesElsewhere):
        await run.stream.run(run.stop)
    assert run.asked == [START] * streaming._MOVES


async def test_when_it_can_not_be_begun_again_the_end_of_the_dump_is_the_failure(steady: None, store: Any) -> None:
    log, starts, _ = three()
    run = await begin(store, bytes(log.packets), ENDED, reopened=[SourceUnreachable("away")])
    with pytest.raises(SourceEnded) as reported:
        await run.stream.run(run.stop)
    assert isinstance(reported.value.__cause__, SourceUnreachable)
    assert (await stored(store)).offset == starts[3]
    assert run.status.source.reconnects == 0


async def test_another_server_at_the_address_restarts_the_destination(steady: None, store: Any) -> None:
    log, _, _ = three()
    config = settings()
    other = Dump(bytes(log.packets))
    run = await begin(
        store, ENDED, config=config, reopened=[opened(other, replace(START, server_uuid="other"), config.source)]
    )
    with pytest.raises(SourceEnded):
        await run.stream.run(run.stop)
    assert other.closed
    assert run.sink.batches == []


async def test_a_transaction_whose_begin_was_published_is_not_resumed_in_place(steady: None, store: Any) -> None:
    log, _, packets = three()
    data = bytes(log.packets)
    config = settings(filter={"transactions": True})
    run = await begin(store, data[: packets[3] - 60], ENDED, config=config)
    with pytest.raises(SourceEnded):
        await run.stream.run(run.stop)
    assert run.asked == []
    assert (await stored(store)).events_done == 0


async def test_a_stop_while_the_dump_is_begun_again_ends_at_once(steady: None, store: Any) -> None:
    log, starts, _ = three()
    run = await begin(store, bytes(log.packets), ENDED)
    waiting = asyncio.Event()

    async def reopen(position: Position) -> Any:
        waiting.set()
        await asyncio.Event().wait()

    run.reopen = reopen
    task = run.task()
    await waiting.wait()
    run.stop.set()
    async with asyncio.timeout(2):
        await task
    assert (await stored(store)).offset == starts[3]


async def test_a_dump_that_takes_long_to_begin_again_is_no_silence(steady: None, store: Any) -> None:
    log, starts, _ = three()
    run = await begin(
        store, bytes(log.packets), ENDED, config=settings(source=QUICK), companion=Heartbeats(("b.000002", 4))
    )

    async def reopen(position: Position) -> Any:
        await asyncio.sleep(0.6)
        raise SourceUnreachable("away")

    run.reopen = reopen
    with pytest.raises(SourceEnded):
        await run.stream.run(run.stop)
    assert (await stored(store)).offset == starts[3]


async def test_a_slow_write_of_the_position_at_the_end_of_a_run_finds_the_sink_unwatched(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the watchdog would end the process if the lease lapsed meanwhile."""
    log, _, _ = three()
    commit, writing, slow = store.commit, asyncio.Event(), asyncio.Event()

    async def commit_slowly(*of: Any) -> Any:
        writing.set()
        await slow.wait()
        return await commit(*of)

    monkeypatch.setattr(store, "commit", commit_slowly)
    run = await begin(store, bytes(log.packets))
    task = run.task()
    await writing.wait()
    assert run.publisher.watched
    run.stop.set()
    await until(lambda: not run.publisher.watched)
    assert not task.done()
    slow.set()
    await task
