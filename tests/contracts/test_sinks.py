"""What every sink promises (ports.sink.Sink), tried with each of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.errors import Fenced, LeaseLapsed
from headrace.lease import Lease
from headrace.model import MessageBatch
from headrace.ports.sink import Sink


def batch(sink: Any, *numbers: int) -> MessageBatch:
    return MessageBatch(
        sink.topic,
        0,
        [sink.value(number) for number in numbers],
        [[("headrace-id", b"id#%d" % number), ("headrace-pos", b"%d" % number)] for number in numbers],
        size=400 * len(numbers),
        rows=len(numbers),
    )


async def ended(*sinks: Sink) -> None:
    for sink in sinks:
        await sink.abort()


async def test_what_is_published_is_confirmed(make_sink: Any) -> None:
    sink = make_sink()
    await sink.start()
    try:
        confirmations = [await sink.publish(batch(sink, number, number + 1)) for number in range(0, 20, 2)]
        async with asyncio.timeout(60):
            await asyncio.gather(*confirmations)
        assert sink.failure is None
    finally:
        await sink.close()


async def test_a_batch_without_messages_is_confirmed(make_sink: Any) -> None:
    sink = make_sink()
    await sink.start()
    try:
        async with asyncio.timeout(30):
            await (await sink.publish(MessageBatch(sink.topic, 0)))
    finally:
        await ended(sink)


async def test_nothing_is_handed_over_without_a_lease(make_sink: Any) -> None:
    now = 100.0
    lease = Lease(5.0, monotonic=lambda: now, wall=lambda: now)
    lease.prove(now)
    sink = make_sink(lease)
    await sink.start()
    try:
        now += 6
        with pytest.raises(LeaseLapsed):
            await sink.publish(batch(sink, 1))
        lease.lose("gone")
        with pytest.raises(Fenced):
            await sink.publish(batch(sink, 2))
    finally:
        await ended(sink)


async def test_after_abort_nobody_waits_for_a_confirmation(make_sink: Any) -> None:
    sink = make_sink()
    await sink.start()
    confirmations = [await sink.publish(batch(sink, number)) for number in range(50)]
    await sink.abort()
    async with asyncio.timeout(30):
        await asyncio.wait(confirmations)
    await sink.abort()
    await sink.close()


async def test_a_sink_that_was_never_started_can_be_ended(make_sink: Any) -> None:
    sink = make_sink()
    await sink.abort()
    await sink.close()


async def test_a_cancelled_start_leaves_a_sink_that_can_be_ended(make_sink: Any) -> None:
    sink = make_sink()
    starting = asyncio.create_task(sink.start())
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting], timeout=30)
    assert starting.done()
    await ended(sink)


async def test_a_check_finds_nothing_wrong_with_what_can_be_written_to(make_sink: Any) -> None:
    started = make_sink()
    await started.start()  # makes what may be made
    try:
        async with asyncio.timeout(60):
            await (await started.publish(batch(started, 1)))
        sink = make_sink()
        assert await sink.check() == []
        await ended(sink)
    finally:
        await started.close()
