"""The queue between reader and sink: bounded by bytes from entry to confirmation."""

from __future__ import annotations

import asyncio

import pytest

from headrace.model import MessageBatch
from headrace.pipeline.byte_queue import ByteQueue


def batch(size: int) -> MessageBatch:
    return MessageBatch("shop", 0, values=[b"v"], size=size)


async def test_a_batch_waits_until_others_are_confirmed_and_not_only_taken() -> None:
    queue = ByteQueue(100)
    await queue.put(batch(60))
    assert not queue.fits(batch(41))
    assert queue.fits(batch(40))
    waiting = asyncio.create_task(queue.put(batch(41)))
    assert (await queue.get()).size == 60
    await asyncio.sleep(0.02)
    assert not waiting.done()
    queue.release(60)
    async with asyncio.timeout(1):
        await waiting
    assert (queue.used, len(queue)) == (41, 1)


async def test_a_batch_that_is_larger_than_the_budget_passes_alone() -> None:
    queue = ByteQueue(100)
    assert queue.fits(batch(1000))
    async with asyncio.timeout(1):
        await queue.put(batch(1000))
    assert not queue.fits(batch(1))


async def test_it_is_empty_once_all_is_confirmed_also_what_has_no_size() -> None:
    queue = ByteQueue(100)
    await queue.put(batch(0))
    emptied = asyncio.create_task(queue.empty())
    await queue.get()
    await asyncio.sleep(0.02)
    assert not emptied.done()
    queue.release(0)
    async with asyncio.timeout(1):
        await emptied


async def test_a_put_that_is_given_up_leaves_nothing() -> None:
    queue = ByteQueue(100)
    await queue.put(batch(100))
    waiting = asyncio.create_task(queue.put(batch(50)))
    await asyncio.sleep(0.02)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (queue.used, len(queue)) == (100, 1)


async def test_the_sink_is_notified_when_no_further_batch_can_come() -> None:
    reported = list[int]()
    queue = ByteQueue(100, starved=lambda: reported.append(queue.used))
    await queue.put(batch(60))
    await queue.put(batch(40))
    waiting = asyncio.create_task(queue.put(batch(10)))
    await queue.get()
    await asyncio.sleep(0.02)
    assert reported == [], "there is one more to take"
    await queue.get()
    more = asyncio.create_task(queue.get())
    await asyncio.sleep(0.02)
    assert reported == [100]
    queue.release(60)
    async with asyncio.timeout(1):
        await asyncio.gather(waiting, more)
    assert reported == [100]
    waiting = asyncio.create_task(queue.put(batch(90)))
    await asyncio.sleep(0.02)
    assert reported == [100, 50], "all was taken before it had to wait"
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    queue.release(40)
    asyncio.get_running_loop().call_later(0.02, queue._filled.set)
    async with asyncio.timeout(1):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await queue.get()
    assert reported == [100, 50], "nobody waits any more"
