"""Sinks with confirms, rule by rule: windows, retries, what waits behind a refused message, parking."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from headrace.errors import LeaseLapsed, SinkError
from headrace.lease import Lease
from tests.brokers import batch_of, no, now, settle, started
from tests.virtual_time import timeless

# -- windows -----------------------------------------------------------------------------------------------------------


@timeless
async def test_no_more_messages_than_the_limit_are_unconfirmed() -> None:
    sink = await started(max_in_flight=3)
    publishing = asyncio.create_task(sink.publish(batch_of(*"12345")))
    await settle()
    assert sink.handed == ["1", "2", "3"]
    sink.answer()
    await settle()
    assert sink.handed == ["1", "2", "3", "4"]
    sink.answer_all()
    await settle()
    sink.answer_all()
    await (await publishing)
    await sink.close()


@timeless
async def test_no_more_bytes_than_the_limit_are_unconfirmed_and_a_larger_message_goes_alone() -> None:
    sink = await started(max_in_flight_bytes=1024)
    publishing = asyncio.create_task(sink.publish(batch_of(*"123", size=500)))
    await settle()
    assert sink.handed == ["1", "2"]
    sink.answer_all()
    await settle()
    sink.answer_all()
    await (await publishing)
    large = asyncio.create_task(sink.publish(batch_of("L", size=5000)))
    behind = asyncio.create_task(sink.publish(batch_of("S", size=1)))
    await settle()
    assert sink.handed[3:] == ["L"]
    sink.answer()
    await settle()
    sink.answer()
    await asyncio.gather(await large, await behind)
    await sink.close()


@timeless
async def test_a_batch_is_confirmed_once_all_of_it_and_of_those_before_it_is() -> None:
    sink = await started()
    first, second = await sink.publish(batch_of("1", "2")), await sink.publish(batch_of("3"))
    sink.answer(3)
    sink.answer(1)
    await settle()
    assert not first.done()
    assert not second.done()
    sink.answer(2)
    assert first.done()
    assert second.done()
    await sink.close()


@timeless
async def test_a_batch_without_messages_is_confirmed_after_the_earlier_batches() -> None:
    sink = await started()
    first, empty = await sink.publish(batch_of("1")), await sink.publish(batch_of())
    assert not empty.done()
    sink.answer()
    assert first.done()
    assert empty.done()
    await sink.close()


@timeless
async def test_many_messages_are_handed_over_in_few_slices() -> None:
    sink = await started()
    done = await sink.publish(batch_of(*(str(i) for i in range(1000))))
    assert len(sink.slices) <= 5
    sink.answer_up_to(1000)
    await done
    await sink.close()


@timeless
async def test_the_lease_is_asked_before_each_hand_over() -> None:
    clock = [0.0]
    lease = Lease(10, monotonic=lambda: clock[0], wall=lambda: clock[0])
    lease.prove(1)
    sink = await started(lease=lease, max_in_flight=200)
    publishing = asyncio.create_task(sink.publish(batch_of(*(str(i) for i in range(300)))))
    await settle()
    clock[0] = 20
    sink.answer_all()
    with pytest.raises(LeaseLapsed):
        await publishing
    assert len(sink.handed) == 200
    await sink.abort()


@timeless
async def test_a_retry_asks_for_the_lease_too() -> None:
    clock = [0.0]
    lease = Lease(10, monotonic=lambda: clock[0], wall=lambda: clock[0])
    lease.prove(1)
    sink = await started(lease=lease)
    sink.refuses = no("1")
    done = await sink.publish(batch_of("1"))
    clock[0] = 20
    sink.answer()
    with pytest.raises(LeaseLapsed):
        await done
    assert sink.handed == ["1"]
    await sink.abort()


# -- time limits -------------------------------------------------------------------------------------------------------


@timeless
async def test_no_answer_within_the_limit_ends_the_sink() -> None:
    sink = await started(request_timeout=30)
    first = await sink.publish(batch_of("1"))
    await asyncio.sleep(20)
    assert not first.done()
    second = await sink.publish(batch_of("2"))
    with pytest.raises(SinkError, match="did not confirm a message within 30 s"):
        await first
    assert 30 <= now() <= 32
    assert second.exception() is first.exception()
    await sink.abort()


@timeless
async def test_while_the_broker_blocks_us_there_is_no_limit_and_after_it_there_is_one_again() -> None:
    sink = await started(request_timeout=30)
    done = await sink.publish(batch_of("1"))
    sink.blocked = True
    await asyncio.sleep(100_000)
    assert not done.done()
    sink.blocked, ended = False, now()
    with pytest.raises(SinkError):
        await done
    assert 29 <= now() - ended <= 32
    await sink.abort()


@timeless
async def test_a_broker_that_takes_nothing_ends_the_sink_too() -> None:
    sink = await started(request_timeout=30)
    sink.stuck = asyncio.Event()
    with pytest.raises(SinkError, match="within 30 s"):
        await sink.publish(batch_of("1"))
    await sink.abort()


@timeless
async def test_an_abort_ends_publishing_confirmations_and_tasks() -> None:
    sink = await started(max_in_flight=1)
    first = await sink.publish(batch_of("1"))
    await sink.abort()
    with pytest.raises(SinkError, match="the sink was ended"):
        await first
    assert len(asyncio.all_tasks()) == 1


@timeless
async def test_answers_to_one_message_after_the_other_are_no_dead_connection_and_silence_after_them_is() -> None:
    sink = await started(max_in_flight=100, request_timeout=30)
    done = await sink.publish(batch_of(*map(str, range(100))))
    for _ in range(99):
        await asyncio.sleep(0.5)
        sink.answer()
    heard = now()
    assert not done.done()
    with pytest.raises(SinkError, match="did not confirm a message within 30 s"):
        await done
    assert 30 <= now() - heard <= 32
    await sink.abort()


@timeless
async def test_a_resend_that_waits_for_space_fails_when_the_sink_ends() -> None:
    sink = await started(max_in_flight=1)
    await sink.publish(batch_of("1"))
    resending = asyncio.create_task(sink.resend(batch_of("2")))
    await settle()
    await sink.abort()
    with pytest.raises(SinkError, match="the sink was ended"):
        await resending
    assert sink.handed == ["1"]


@timeless
async def test_a_fault_of_ours_ends_the_sink_and_the_log_says_where() -> None:
    sink = await started()
    waiting = await sink.publish(batch_of("1"))

    def fault() -> bool:
        raise ValueError("a fault")

    sink._paused = fault  # type: ignore[method-assign]
    with capture_logs() as logs, pytest.raises(SinkError, match="an unexpected error, ValueError: a fault"):
        await waiting
    assert [(entry["event"], entry["exc_info"]) for entry in logs] == [("unexpected error of the sink", True)]
    await sink.close()
