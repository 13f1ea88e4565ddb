"""The budget of the process: what all queues hold together, and that none of them stops another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.model import MessageBatch
from headrace.pipeline import process_budget
from headrace.pipeline.byte_queue import ByteQueue
from headrace.pipeline.process_budget import ProcessBudget

TOTAL, OWN = 1000, 400


def batch(size: int) -> MessageBatch:
    return MessageBatch("shop", 0, values=[b"v"], size=size)


def queues(count: int, total: int = TOTAL) -> list[ByteQueue]:
    budget = ProcessBudget(total)
    made = [ByteQueue(OWN, budget) for _ in range(count)]
    for queue in made:
        queue.join()
    return made


async def fill(queue: ByteQueue, size: int = 10) -> int:
    """Puts batches in until one does not fit; the bytes that the queue holds."""
    while queue.fits(batch(size)):
        await queue.put(batch(size))
    return queue.used


def used(made: Sequence[ByteQueue]) -> int:
    return sum(queue.used for queue in made)


async def test_one_destination_has_all_that_its_own_budget_allows() -> None:
    (queue,) = queues(1)
    assert await fill(queue) == OWN


async def test_many_have_no_more_together_than_the_process_may() -> None:
    made = queues(20)
    for queue in made:
        await fill(queue)
    assert TOTAL - 200 <= used(made) <= TOTAL


async def test_destinations_whose_sinks_are_away_leave_each_other_its_part() -> None:
    *away, live = queues(10)
    for queue in away:
        await fill(queue)
    assert not away[-1].fits(batch(10))
    # The live one puts and has confirmed, for as long as it likes.
    for _ in range(100):
        async with asyncio.timeout(1):
            await live.put(batch(10))
            await live.put(batch(10))
        for _ in range(2):
            live.release((await live.get()).size)
    assert await fill(live) >= TOTAL // 20


async def test_a_batch_larger_than_everything_passes_alone_next_to_full_ones() -> None:
    *away, live = queues(5)
    for queue in away:
        await fill(queue)
    async with asyncio.timeout(1):
        await live.put(batch(10 * TOTAL))
    assert not live.fits(batch(1))


async def test_who_waits_goes_on_when_another_one_releases_longest_first() -> None:
    hog, *others = queues(3, 600)
    await fill(hog, 50)
    for queue in others:
        await fill(queue, 50)
    order: list[int] = []

    async def wait(number: int) -> None:
        await others[number].put(batch(50))
        order.append(number)

    tasks = []
    for number in (1, 0):
        tasks.append(asyncio.create_task(wait(number)))
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert not order
    hog.release((await hog.get()).size)
    await asyncio.sleep(0.01)
    assert order == [1]
    hog.release((await hog.get()).size)
    async with asyncio.timeout(1):
        await asyncio.gather(*tasks)
    assert order == [1, 0]


async def test_the_end_of_a_run_gives_back_what_nobody_has_confirmed() -> None:
    hog, other = queues(2, 500)
    await fill(hog)
    await fill(other)
    waiting = asyncio.create_task(other.put(batch(10)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    hog.clear()
    hog.leave()
    async with asyncio.timeout(1):
        await waiting


async def test_a_cancelled_put_takes_no_memory() -> None:
    hog, other = queues(2, 500)
    await fill(hog)
    held = await fill(other)
    waiting = asyncio.create_task(other.put(batch(10)))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    hog.release((await hog.get()).size)
    await asyncio.sleep(0.01)
    assert other.used == held


async def test_any_mixture_ends_and_keeps_to_the_budget() -> None:
    """Twenty destinations with batches of many sizes and sinks of many paces; two sinks come back late."""
    made, most, largest = queues(20), 0, 90
    back = asyncio.Event()

    async def read(number: int, queue: ByteQueue) -> None:
        nonlocal most
        for i in range(100):
            await queue.put(batch(1 + (i * 37 + number * 11) % largest))
            most = max(most, used(made))

    async def confirm(number: int, queue: ByteQueue) -> None:
        if number < 2:
            await back.wait()
        for i in range(100):
            one = await queue.get()
            if (i + number) % 3 == 0:
                await asyncio.sleep(0)
            queue.release(one.size)

    async with asyncio.timeout(20):
        live = [work(number, queue) for number, queue in enumerate(made) if number >= 2 for work in (read, confirm)]
        away = [work(number, queue) for number, queue in enumerate(made[:2]) for work in (read, confirm)]
        late = [asyncio.create_task(one) for one in away]
        await asyncio.gather(*live)
        assert not any(task.done() for task in late)
        back.set()
        await asyncio.gather(*late)
    assert used(made) == 0
    assert most <= TOTAL + 20 * largest  # a batch passes alone wherever nothing is held


def test_fewer_bytes_are_received_ahead_where_many_destinations_run() -> None:
    budget = ProcessBudget(128 << 20)
    made = [ByteQueue(OWN, budget) for _ in range(100)]
    made[0].join()
    assert budget.ahead() == 2 << 20
    for queue in made[1:20]:
        queue.join()
    assert budget.ahead() == (128 << 20) // 320
    for queue in made[20:]:
        queue.join()
    assert budget.ahead() == 256 << 10


async def test_large_values_of_several_destinations_are_in_memory_one_after_the_other() -> None:
    budget = ProcessBudget(TOTAL)
    one, two = ByteQueue(OWN, budget), ByteQueue(OWN, budget)
    await one.alone()
    await one.put(MessageBatch("t", 0, size=10))
    later = asyncio.create_task(two.alone())
    await one.alone()  # the same destination's next one waits for nothing
    one.end_alone()
    await asyncio.sleep(0)
    assert not later.done(), "what is not confirmed is still in memory"
    one.release((await one.get()).size)
    one.end_alone()
    await later
    third = asyncio.create_task(one.alone())
    await asyncio.sleep(0)
    assert not third.done()
    two.leave()
    await third


async def test_a_sink_that_takes_nothing_holds_up_the_large_values_of_others_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_budget, "ALONE", 0.01)
    budget = ProcessBudget(TOTAL)
    one, two = ByteQueue(OWN, budget), ByteQueue(OWN, budget)
    await one.alone()
    await two.alone()


async def test_however_many_wait_only_a_turn_that_does_not_end_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_budget, "ALONE", 0.1)
    budget, within, most = ProcessBudget(TOTAL), 0, 0

    async def read(queue: ByteQueue) -> None:
        nonlocal within, most
        await queue.alone()
        within += 1
        most = max(most, within)
        await asyncio.sleep(0.03)
        within -= 1
        queue.end_alone()

    async with asyncio.timeout(5):
        await asyncio.gather(*(read(ByteQueue(OWN, budget)) for _ in range(10)))
    assert most == 1
