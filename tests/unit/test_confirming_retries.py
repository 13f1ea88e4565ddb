"""Sinks that confirm message by message: what is refused, sent again, and parked, and in which order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.errors import SinkRejected
from headrace.ports.sink import MessageRefused
from tests.brokers import TABLE, A, B, FakeParking, batch_of, no, now, row, settle, started
from tests.virtual_time import timeless

# -- retries -----------------------------------------------------------------------------------------------------------


@timeless
async def test_a_refused_message_is_sent_again_with_growing_waits_and_then_the_sink_fails() -> None:
    sink = await started()
    sink.refuses = no("1")
    done = await sink.publish(batch_of("1"))
    times = []
    for _ in range(4):
        while not sink.waiting:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.01)
        times.append(round(now(), 1))
        sink.answer()
    with pytest.raises(SinkRejected, match=r"refuses message 1 for t \(full\), 4 times") as caught:
        await done
    assert 'on_failure = "park"' in str(caught.value)
    assert times == [0, 3.0, 7.5, 14.3]
    with pytest.raises(SinkRejected):
        await sink.publish(batch_of("2"))
    await sink.abort()


@timeless
async def test_messages_about_other_rows_go_on_while_one_waits() -> None:
    sink = await started()
    sink.refuses = no("1")
    first = await sink.publish(batch_of("1", "2", units=[A, B]))
    sink.answer_all()
    await settle()
    second = await sink.publish(batch_of("3", "4", units=[A, B]))
    await settle()
    assert sink.seen == ["2", "4"]
    sink.refuses = no()
    sink.answer_all()
    await asyncio.sleep(3.1)
    assert sink.seen == ["2", "4", "1"]
    sink.answer_all()
    await settle()
    assert sink.seen == ["2", "4", "1", "3"]
    assert first.done()
    sink.answer_all()
    await second
    await sink.close()


@timeless
async def test_messages_after_a_refused_message_are_sent_again_after_it() -> None:
    sink = await started()
    sink.refuses = no("1")
    batches = [await sink.publish(batch_of(name, units=[unit])) for name, unit in (("1", A), ("2", TABLE), ("3", B))]
    sink.answer(3)
    sink.answer(2)  # confirmed, and yet it goes once more
    sink.answer(1)
    sink.refuses = no()
    await asyncio.sleep(3.1)
    assert sink.handed[3:] == ["1"]  # alone: it may be refused again
    sink.answer_all()
    await settle()
    assert batches[0].done()
    assert not batches[1].done()
    sink.answer_all()
    await settle()
    assert sink.handed[3:] == ["1", "2", "3"]
    sink.answer_all()
    await asyncio.gather(*batches)
    await sink.close()


@timeless
async def test_a_refusal_of_a_message_after_a_refused_one_does_not_count() -> None:
    sink = await started(retries=1)
    sink.refuses = no("1", "2", "3")
    done = await sink.publish(batch_of("1", "2", "3"))
    for refused in (("2", "3"), ("2", "3"), ("3",), ("3",), (), ()):
        sink.answer_all()
        await settle()
        sink.refuses = no(*refused)
        await asyncio.sleep(3.1)
    sink.answer_all()
    await done
    assert sink.seen == ["1", "2", "3"]
    await sink.close()


@timeless
async def test_many_messages_after_a_refused_one_are_sent_again_a_few_at_first() -> None:
    sink = await started()
    sink.refuses = no("0")
    done = await sink.publish(batch_of(*(str(i) for i in range(100))))
    sink.answer_all()
    sink.refuses = no()
    await asyncio.sleep(3.1)
    bursts = []
    while not done.done():
        bursts.append(len(sink.waiting))
        sink.answer_all()
        await settle()
    assert bursts == [1, 1, 2, 4, 8, 16, 32, 36]
    await sink.close()


@timeless
async def test_an_answer_to_an_earlier_sending_changes_nothing() -> None:
    sink = await started()
    sink.refuses = no("1")
    done = await sink.publish(batch_of("1", "2"))
    sink.answer(1)
    sink.refuses = no()
    await asyncio.sleep(3.1)
    sink.answer(3)
    await settle()
    assert sink.handed == ["1", "2", "1", "2"]
    sink.answer(2)
    await settle()
    assert not done.done()
    sink.answer(4)
    await done
    await sink.close()


@timeless
async def test_publishing_waits_while_too_much_is_held_back() -> None:
    sink = await started(max_in_flight=10)
    sink.refuses = no("1")
    await sink.publish(batch_of("1", units=[A]))
    sink.answer()
    await settle()
    hundred = batch_of(*(f"h{i}" for i in range(100)), units=[A] * 100)
    publishing = asyncio.create_task(sink.publish(hundred))
    further = asyncio.create_task(sink.publish(batch_of("other", units=[B])))
    await settle()
    assert publishing.done()
    assert not further.done()
    assert "other" not in sink.handed
    sink.refuses = no()
    while not {"other", "h99"} <= set(sink.handed):
        sink.answer_all()
        await asyncio.sleep(0.1)
    assert sink.handed.index("1") < sink.handed.index("h0") < sink.handed.index("h99")
    await sink.abort()


@timeless
async def test_messages_without_units_wait_in_publish_after_a_refusal() -> None:
    sink = await started()
    sink.refuses = no("1")
    await sink.publish(batch_of("1"))
    sink.answer()
    await settle()
    publishing = asyncio.create_task(sink.publish(batch_of("2")))
    await asyncio.sleep(1)
    assert not publishing.done()
    sink.refuses = no()
    await asyncio.sleep(3)
    sink.answer()
    await settle()
    assert publishing.done()
    assert sink.seen == ["1", "2"]
    await sink.abort()


# -- parking -----------------------------------------------------------------------------------------------------


@timeless
async def test_after_the_last_retry_a_message_and_those_after_it_are_parked() -> None:
    parking = FakeParking()
    sink = await started(parking=parking, retries=1)
    sink.refuses = no("1")
    done = await sink.publish(batch_of("1", "2", "3", "4", units=[A, B, TABLE, B]))
    sink.answer_all()
    await asyncio.sleep(3.1)
    sink.answer_all()
    await done
    assert [(name, attempts) for name, (*_, attempts) in zip(parking.names, parking.parked, strict=True)] == [
        ("1", 2),
        ("3", 0),
        ("4", 0),
    ]
    assert [reason for _, _, reason, _ in parking.parked] == ["full", "", ""]
    await sink.close()


@timeless
async def test_new_messages_after_a_parked_one_are_parked_and_others_continue() -> None:
    parking = FakeParking()
    parking.park("x", batch_of("0", units=[A]), 0, "full", 4)
    sink = await started(parking=parking)
    done = await sink.publish(batch_of("1", "2", units=[A, B]))
    await settle()
    assert sink.seen == ["2"]
    sink.answer_all()
    await done
    assert parking.names == ["0", "1"]
    parking.take(0)
    parking.take(0)
    done = await sink.publish(batch_of("3", units=[A]))
    sink.answer_all()
    await done
    assert sink.seen == ["2", "3"]
    await sink.close()


@timeless
async def test_nothing_is_parked_before_an_earlier_message_of_its_row_is_answered() -> None:
    parking = FakeParking()
    sink = await started(parking=parking, retries=0)
    sink.refuses = no("1", "2")
    done = await sink.publish(batch_of("1", "2", units=[A, A]))
    sink.answer(2)
    await asyncio.sleep(1)
    assert parking.names == []
    sink.answer(1)
    await done
    assert parking.names == ["1", "2"]
    await sink.close()


@timeless
async def test_where_an_address_is_hopeless_the_next_refused_message_waits_for_no_retry() -> None:
    parking = FakeParking()
    sink = await started(parking=parking, retries=1)
    sink.refuses = no("1", "2", "3")
    done = await sink.publish(batch_of("1", units=[A]))
    sink.answer()
    await asyncio.sleep(3.1)
    sink.answer()
    await done
    begun = now()
    done = await sink.publish(batch_of("2", units=[B]))
    sink.answer()
    await done
    assert now() == begun
    assert [attempts for *_, attempts in parking.parked] == [2, 1]
    done = await sink.publish(batch_of("ok", units=[row("c")]))
    sink.answer()
    await done
    await sink.publish(batch_of("3", units=[row("d")]))
    sink.answer()
    await asyncio.sleep(1)
    assert parking.names == ["1", "2"]
    await sink.abort()


@timeless
async def test_a_full_parking_ends_the_sink() -> None:
    class FullDesk(FakeParking):
        def park(self, *_: Any) -> None:
            raise SinkRejected("too many messages are parked")

    sink = await started(parking=FullDesk(), retries=0)
    sink.refuses = no("1")
    done = await sink.publish(batch_of("1", units=[A]))
    sink.answer()
    with pytest.raises(SinkRejected, match="too many"):
        await done
    await sink.abort()


@timeless
async def test_a_parking_is_not_used_when_messages_may_not_be_parked() -> None:
    sink = await started(parking=FakeParking(), on_failure="halt", retries=0)
    sink.refuses = no("1")
    done = await sink.publish(batch_of("1", units=[A]))
    sink.answer()
    with pytest.raises(SinkRejected):
        await done
    await sink.abort()


@timeless
async def test_a_message_that_is_sent_again_from_where_it_was_parked_may_be_refused() -> None:
    sink = await started(parking=FakeParking())
    sink.refuses = no("1")
    resending = asyncio.create_task(sink.resend(batch_of("1", units=[A])))
    await settle()
    sink.answer()
    with pytest.raises(MessageRefused, match="full"):
        await resending
    sink.refuses = no()
    done = await sink.publish(batch_of("2", units=[A]))
    resending = asyncio.create_task(sink.resend(batch_of("1", units=[A])))
    await settle()
    sink.answer_all()
    await asyncio.gather(resending, done)
    await sink.close()
