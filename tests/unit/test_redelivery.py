"""Sending again over the end of a sink, a lapse of the lease, the end of a run, and addresses that take nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog

from headrace import runtime
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.sink import KafkaSink
from headrace.adapters.sqlite.parking import SqliteParkingStore
from headrace.adapters.sqlite.state import SqliteStore
from headrace.errors import LeaseLapsed, SinkError
from headrace.lease import Guard, Lease
from headrace.model import MessageBatch
from headrace.parking.parking import OrderedParking
from headrace.parking.redelivery import Redelivery
from headrace.ports.parking import ParkingState
from headrace.ports.sink import MessageRefused, Sink
from headrace.settings.adapters import ParkingSettings
from headrace.tasks import set_within
from tests.brokers import FakeSink
from tests.parked import RefusingSink, batch, new_parking, unit, until


class Rig:
    """A redelivery loop with a parking; `sink` is what it is given."""

    def __init__(self, store: SqliteParkingStore, guard: Guard, attempts: int) -> None:
        self.store, self.guard = store, guard
        self.parking: OrderedParking = new_parking(store, attempts=attempts)
        self.sink: Sink | None = None
        self.asked = 0
        settings = ParkingSettings.model_validate({"delay": 0.02, "max_delay": 0.05, "attempts": attempts})
        log = structlog.get_logger()
        self.loop = Redelivery(settings, self.parking, self._sink, lambda: guard, log)
        self.task: asyncio.Task[None]

    def _sink(self) -> Sink | None:
        self.asked += 1
        return self.sink

    async def start(self, sink: Sink | None, *messages: MessageBatch) -> None:
        await self.parking.open(self.guard)
        for message in messages:
            for index in range(len(message.values)):
                self.parking.park("shop", message, index, "NO_ROUTE", 1)
        await self.parking.flush(self.guard)
        # All are due when the loop begins, so that it takes them together however slow the machine is.
        await until(lambda: all(entry.due_us <= time.time_ns() // 1000 for entry in self.parking.waiting()))
        self.sink = sink
        self.task = asyncio.create_task(self.loop.run())

    async def passes(self, count: int = 3) -> None:
        """Until it has made so many passes more."""
        asked = self.asked
        await until(lambda: self.asked >= asked + count or self.task.done())
        assert not self.task.done()


@pytest.fixture
async def rig(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Rig]:
    monkeypatch.setattr("headrace.parking.redelivery._POLL", 0.01)
    made = Rig(SqliteParkingStore(store, "shop"), await store.begin_epoch("shop"), getattr(request, "param", 3))
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)


def attempts(rig: Rig) -> list[int]:
    return [entry.attempts for entry in rig.parking.waiting()]


class CancellingSink(RefusingSink):
    """What waits for its confirmation is cancelled with the sink, as where futures belong to a client library."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = list[asyncio.Future[None]]()

    async def resend(self, batch: MessageBatch) -> None:
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]

    async def abort(self) -> None:
        for done in self.waiting:
            done.cancel()


@pytest.mark.parametrize("make", [CancellingSink, FakeSink])
async def test_messages_in_flight_when_the_sink_was_aborted_go_through_the_next_one(
    rig: Rig, make: Callable[[], Any]
) -> None:
    first = make()
    await first.start()
    await rig.start(first, batch(unit("7"), unit("8")))
    await until(lambda: len(first.waiting) == 2)
    rig.sink = None
    await first.abort()
    await rig.passes()
    assert attempts(rig) == [1, 1], "that was no refusal"
    rig.sink = second = RefusingSink()
    await until(lambda: second.sent == [b"body 1", b"body 2"])


async def test_nothing_is_asked_of_the_store_or_a_sink_while_there_is_no_sink(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    changes = rig.store.changes

    async def noted() -> int:
        asked.append(1)
        return await changes()

    monkeypatch.setattr(rig.store, "changes", noted)
    await rig.start(None, batch(unit("7")))
    await rig.passes(5)
    assert not asked
    rig.sink = sink = RefusingSink()
    await until(lambda: sink.sent == [b"body 1"])


async def test_a_kafka_sink_that_was_ended_says_so_and_the_loop_goes_on(rig: Rig) -> None:
    keys = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "on_oversize": "park"}
    ended = KafkaSink(KafkaSinkSettings.model_validate(keys), Lease())
    with pytest.raises(SinkError, match="the producer was ended") as caught:
        await ended.resend(batch(unit("7")))
    assert not isinstance(caught.value, MessageRefused)
    await rig.start(ended, batch(unit("7")))
    await rig.passes()
    assert attempts(rig) == [1]


async def test_a_sink_that_has_ended_by_itself_ends_the_run_for_nobody_else_may_use_it(rig: Rig) -> None:
    sink = FakeSink()
    await sink.start()
    await rig.start(sink, batch(unit("7")))
    await until(lambda: sink.waiting)
    sink._lost(SinkError("the broker closed the connection"))
    with pytest.raises(SinkError, match="the broker closed the connection"):
        await asyncio.wait_for(rig.task, 5)
    assert attempts(rig) == [1], "that was no refusal"
    assert not rig.loop.idle, "the broker may still take it"
    await sink.abort()


async def test_a_sink_that_ended_because_the_lease_lapsed_is_left_to_the_sender(rig: Rig) -> None:
    sink = FakeSink()
    await sink.start()
    await rig.start(sink, batch(unit("7")))
    await until(lambda: sink.waiting)
    sink._lost(LeaseLapsed("not proved"))
    await rig.passes()
    assert attempts(rig) == [1]
    await sink.abort()


class PartlyDeadSink(RefusingSink):
    """The topic "gone" takes nothing: its messages fail, or are refused."""

    refusal: type[SinkError] = SinkError
    tried = tried_first = 0
    """How often something was sent there, and before the first that went elsewhere."""

    async def resend(self, batch: MessageBatch) -> None:
        if batch.topic == "gone":
            self.tried += 1
            raise self.refusal("there is no topic gone")
        self.tried_first = self.tried_first or self.tried
        await super().resend(batch)


async def test_an_address_that_fails_holds_up_no_other_and_keeps_its_order(rig: Rig) -> None:
    sink = PartlyDeadSink()
    gone = batch(unit("1"), unit("2"), unit("1"), first=1, topic="gone")
    await rig.start(sink, gone, batch(unit("3"), unit("3"), unit("3"), first=4))
    await until(lambda: sink.sent == [b"body 4", b"body 5", b"body 6"])
    await until(lambda: sink.tried > 6)
    assert attempts(rig) == [1, 1, 1]
    sink.refusal = MessageRefused
    await until(lambda: [entry.state for entry in rig.parking.waiting()].count(ParkingState.NEEDS_OPERATOR) == 2)
    assert [(entry.id, entry.attempts) for entry in rig.parking.waiting()] == [("g#1", 3), ("g#2", 3), ("g#3", 1)]
    assert sink.sent == [b"body 4", b"body 5", b"body 6"]


async def test_in_one_pass_an_address_that_fails_is_tried_with_one_group_only(rig: Rig) -> None:
    sink = PartlyDeadSink()
    gone = batch(*[unit(str(n)) for n in range(200)], topic="gone")
    await rig.start(sink, gone, batch(unit("x"), first=201))
    await until(lambda: sink.sent == [b"body 201"])
    assert sink.tried_first == 50


async def test_a_message_that_a_daemon_with_a_wrong_clock_has_parked_is_sent_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.parking.open(rig.guard)
    with monkeypatch.context() as wrong:
        wrong.setattr(runtime, "now_us", lambda: time.time_ns() // 1000 + 3600 * 10**6)
        rig.parking.park("shop", batch(unit("7")), 0, "NO_ROUTE", 1)
    await rig.parking.flush(rig.guard)
    rig.sink = sink = RefusingSink()
    rig.task = asyncio.create_task(rig.loop.run())
    await until(lambda: sink.sent == [b"body 1"])


@pytest.mark.parametrize("rig", [7], indirect=True)
async def test_waits_begin_with_the_delay_however_often_a_message_was_sent_before_it_was_parked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = runtime.now_us()
    monkeypatch.setattr(runtime, "now_us", lambda: clock)
    await rig.parking.open(rig.guard)
    rig.parking.park("shop", batch(unit("7")), 0, "NO_ROUTE", 4)
    await rig.parking.flush(rig.guard)
    rig.sink = sink = RefusingSink()
    sink.refuses = {b"body 1"}
    rig.task = asyncio.create_task(rig.loop.run())
    waits = list[int]()
    for sent in (4, 5, 6):
        await until(lambda: attempts(rig) == [sent])  # noqa: B023
        (entry,) = rig.parking.waiting()
        waits.append(entry.due_us - entry.tried_us)
        clock = entry.due_us
    assert waits == [20_000, 40_000, 50_000]
    monkeypatch.undo()


class SlowSink(RefusingSink):
    """Takes a while for each message."""

    async def resend(self, batch: MessageBatch) -> None:
        await asyncio.sleep(0.1)
        await super().resend(batch)


@pytest.mark.parametrize("rig", [100], indirect=True)
async def test_after_a_slow_pass_the_next_one_begins_soon_if_it_brought_something(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float | None]()

    async def waiting(event: asyncio.Event, seconds: float | None) -> bool:
        waits.append(seconds)
        return await set_within(event, seconds)

    monkeypatch.setattr("headrace.parking.redelivery.set_within", waiting)
    sink = SlowSink()
    sink.refuses = {b"body 2"}
    await rig.start(sink, batch(unit("7"), unit("8")))
    # A pass that comes before its message is due sends nothing: it takes as long as the machine needs to look.
    await until(lambda: any(wait is not None and wait >= 0.05 for wait in waits))
    assert waits[0] == 0.01, "one message was delivered"
    assert max(wait or 0.0 for wait in waits) == 0.05, "later ones are tried again at least every max_delay"


async def test_an_end_waits_for_what_is_under_way_and_begins_nothing_more(rig: Rig) -> None:
    sink = CancellingSink()
    await rig.start(sink, batch(unit("7"), unit("7")))
    await until(lambda: sink.waiting)
    assert not rig.loop.idle
    rig.loop.end()
    await asyncio.sleep(0.05)
    assert not rig.task.done()
    sink.waiting[0].set_result(None)
    await asyncio.wait_for(rig.task, 5)
    assert rig.loop.idle
    assert [entry.id for entry in rig.parking.waiting()] == ["g#2"]
    assert len(sink.waiting) == 1


async def test_what_was_broken_off_before_its_answer_still_counts_as_under_way(rig: Rig) -> None:
    sink = CancellingSink()
    await rig.start(sink, batch(unit("7")))
    await until(lambda: sink.waiting)
    rig.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rig.task
    assert not rig.loop.idle


async def test_an_end_while_nothing_waits_is_an_end_at_once(rig: Rig) -> None:
    await rig.start(RefusingSink())
    await asyncio.sleep(0.02)
    rig.loop.end()
    await asyncio.wait_for(rig.task, 5)
    assert rig.loop.idle
