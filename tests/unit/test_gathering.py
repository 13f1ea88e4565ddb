"""Small batches that wait together: one request a topic and partition, and each confirmed as if it went alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headrace.destination.dependencies import Context
from headrace.destination.publisher import Publisher
from headrace.destination.status import DestinationStatus
from headrace.errors import SinkError
from headrace.lease import Lease
from headrace.model import MessageBatch, Position, Unit
from headrace.pipeline.gathering import SMALL, joined, together
from tests.configured import parts_of
from tests.streams import HeldSink, Sleeping, daemon_settings, settings, until


def at(number: int) -> Position:
    return Position("u", "b.000001", number)


def one(number: int, partition: int = 0, *, size: int = 100, **more: Any) -> MessageBatch:
    """A change of one row, whose value is its number."""
    values: list[bytes | None] = [b"%d" % number]
    headers = [[("headrace-id", b"%d" % number)]]
    topic = more.pop("topic", "shop")
    return MessageBatch(topic, partition, values, headers, size, 1, **{"position": at(number), **more})


def nothing(number: int) -> MessageBatch:
    """A transaction of which nothing is published."""
    return MessageBatch("", 0, position=at(number))


def values(batches: Sequence[MessageBatch]) -> list[list[bytes | None]]:
    return [batch.values for batch in batches]


def test_messages_keep_their_order_in_each_partition_and_the_last_batch_has_the_position() -> None:
    batches = [one(1), one(2, 1), nothing(3), one(4), one(5, 1)]
    assert together(batches) == 5
    made = joined(batches)
    assert values(made) == [[b"1", b"4"], [b"2", b"5"]]
    assert [batch.position for batch in made] == [None, at(5)]
    assert [batch.size for batch in made] == [200, 200]
    assert [[dict(one)["headrace-id"] for one in batch.headers] for batch in made] == [[b"1", b"4"], [b"2", b"5"]]


def test_topics_that_share_one_stream_are_not_brought_together() -> None:
    """A statement in a topic of its own has to stay between the rows before it and those behind it."""
    row, statement = one(1), one(2, topic="schema")
    assert together([row, statement, one(3)], one_log=True) == 1
    assert together([row, nothing(2), one(3), statement], one_log=True) == 3
    assert together([row, one(2, position=None), statement], one_log=True) == 1
    assert together([row, statement, one(3)]) == 3


def test_what_is_joined_is_not_changed_itself() -> None:
    batches = [one(1), one(2)]
    before = [replace(batch, values=list(batch.values), headers=list(batch.headers)) for batch in batches]
    joined(batches)
    assert batches == before


def test_joined_batches_keep_each_key_with_its_value_if_only_some_have_keys() -> None:
    (made,) = joined([one(1), one(2, keys=[b"k"]), one(3)])
    assert made.keys == [None, b"k", None]


def test_entries_of_the_schema_history_go_with_the_position() -> None:
    made = joined([one(1, schema_entries=({"n": 1},)), one(2, 1), nothing(3), one(4, schema_entries=({"n": 2},))])
    assert [batch.schema_entries for batch in made] == [(), ({"n": 1}, {"n": 2})]


def test_positions_alone_are_one_position() -> None:
    (made,) = joined([nothing(1), nothing(2)])
    assert (made.values, made.position) == ([], at(2))


@pytest.mark.parametrize(
    "other",
    [
        one(3, barrier=True),
        one(3, size=SMALL + 1),
        one(3, units=[Unit(("shop.t",))]),
        one(3, tags=["a"]),
        one(3, size=0),
    ],
    ids=["statement", "large", "may be parked", "tagged", "on disk"],
)
def test_some_stay_as_they_are(other: MessageBatch) -> None:
    assert together([one(1), one(2), other, one(4)]) == 2
    assert together([other, one(4)]) == 1


def test_a_part_of_what_follows_waits_for_the_rest() -> None:
    part = one(3, position=None)
    assert together([one(1), one(2), part]) == 2
    assert together([one(1), one(2), part, one(3)]) == 4
    assert together([part]) == 1


def test_no_more_goes_together_than_a_request_is_worth() -> None:
    batches = [one(number, size=SMALL // 2) for number in range(100)]
    assert together(batches) == 8


class SlowSink(HeldSink):
    """Takes a batch when it is told to."""

    def __init__(self, *, keeps_position: bool = False) -> None:
        super().__init__(held=True)
        self.keeps_position = keeps_position  # type: ignore[misc]
        self.turns = asyncio.Semaphore(0)

    async def publish(self, batch: MessageBatch) -> asyncio.Future[None]:
        await self.turns.acquire()
        return await super().publish(batch)


async def publishing(sink: SlowSink) -> tuple[Publisher, list[MessageBatch], asyncio.Task[None]]:
    context = Context(settings(), daemon_settings(), DestinationStatus("shop"))
    parts = replace(parts_of(settings()), new_sink=lambda *_: sink)
    publisher, confirmed = Publisher(context, parts, Lease(), None, Sleeping()), list[MessageBatch]()
    return publisher, confirmed, asyncio.create_task(publisher.run(confirmed.append))


@pytest.mark.parametrize("keeps_position", [False, True])
async def test_what_gathers_while_the_sink_takes_its_time_goes_together(keeps_position: bool) -> None:
    sink = SlowSink(keeps_position=keeps_position)
    publisher, confirmed, task = await publishing(sink)
    batches = [one(1), one(2), nothing(3), one(4, 1), one(5)]
    for batch in batches:
        await publisher.queue.put(batch)
        await asyncio.sleep(0.01)  # the first is being taken when the others come
    for _ in range(3):
        sink.turns.release()
    await until(lambda: sum(len(batch.values) for batch in sink.batches) == 4)
    assert values(sink.batches) == [[b"1"], [b"2", b"5"], [b"4"]]
    assert not confirmed
    sink.flow()
    await until(lambda: len(confirmed) == 5)
    assert confirmed == batches
    await publisher.queue.empty()
    assert publisher.queue.used == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_nothing_of_what_went_together_is_confirmed_when_one_part_fails() -> None:
    sink = SlowSink()
    publisher, confirmed, task = await publishing(sink)
    for batch in [one(1), one(2), one(3, 1), one(4)]:
        await publisher.queue.put(batch)
        await asyncio.sleep(0.01)  # the first is being taken when the others come
    for _ in range(3):
        sink.turns.release()
    await until(lambda: len(sink.waiting) == 3)
    first, together_, other = sink.waiting
    other.set_result(None)
    first.set_result(None)
    await until(lambda: len(confirmed) == 1)
    together_.set_exception(SinkError("refused"))
    with pytest.raises(SinkError, match="refused"):
        await asyncio.wait_for(task, 5)
    assert [batch.position for batch in confirmed] == [at(1)]
