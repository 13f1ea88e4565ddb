"""Sinks with confirms against a model: whatever a broker answers, and when, each row's last message is the newest."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.model import MessageBatch, Unit
from headrace.parking.ordering import Blocks
from headrace.ports.sink import MessageRefused
from tests import virtual_time
from tests.brokers import FakeParking, FakeSink, batch_of, row
from tests.examples import examples

RETRIES = 2
UNITS = [row("a"), row("b"), row("c"), row("a", "b"), row("d"), Unit(("shop.t",)), Unit(("shop.u",), ("e",)), Unit(())]
WEIGHTS = [6, 6, 6, 2, 6, 1, 3, 1]


class World:
    """One run: a producer, a broker with moods, and with `parks` somebody who sends again what was parked."""

    def __init__(self, random: Random, *, parks: bool, distinguished: bool) -> None:
        self.random, self.distinguished = random, distinguished
        self.parking = FakeParking() if parks else None
        self.limit, self.byte_limit = random.choice([1, 2, 5, 1000]), random.choice([1024, 3000, 1 << 20])
        self.sink = FakeSink(
            self.parking,
            max_in_flight=self.limit,
            max_in_flight_bytes=self.byte_limit,
            retries=RETRIES,
            retry_delay=random.choice([0.001, 1.0]),
            request_timeout=100_000,
        )
        self.sink.refuses = self.refuses
        self.sink.pace = lambda: random.choice([0, 0, 0.01])
        self.moods: dict[str, int] = {}
        """How often each message is still refused."""
        self.order: list[tuple[str, Unit]] = []
        self.batches: list[MessageBatch] = []
        self.finished: list[int] = []
        self.published = False

    def refuses(self, name: str) -> str:
        count, size = len(self.sink.waiting) + 1, self.sink.in_flight[1]
        assert count <= self.limit
        assert count == 1 or size < self.byte_limit
        if self.moods[name]:
            self.moods[name] -= 1
            if self.random.random() < 0.2:  # one of two queues took it
                self.sink.seen.append(name)
            return "no"
        return ""

    def make(self) -> None:
        worst = 2 * RETRIES + 2 if self.parking is not None else RETRIES
        for number in range(self.random.randrange(1, 8)):
            units = self.random.choices(UNITS, WEIGHTS, k=self.random.randrange(1, 12))
            names = [f"{number}.{i}" for i in range(len(units))]
            for name, unit in zip(names, units, strict=True):
                self.moods[name] = self.random.randrange(worst + 1) if self.random.random() < 0.25 else 0
                self.order.append((name, unit if self.distinguished else Unit(())))
            size = self.random.choice([10, 500, 2000])
            self.batches.append(batch_of(*names, units=units if self.distinguished else None, size=size))

    async def produce(self) -> None:
        futures = []
        for number, batch in enumerate(self.batches):
            futures.append(await self.sink.publish(batch))
            futures[-1].add_done_callback(lambda _, number=number: self.finished.append(number))
            await asyncio.sleep(self.random.choice([0, 0, 0.5, 5]))
        await asyncio.gather(*futures)

    async def answer(self) -> None:
        sink, random = self.sink, self.random
        while True:
            await asyncio.sleep(random.choice([0, 0.01, 0.3]))
            if not sink.waiting:
                continue
            tags = sorted(sink.waiting)
            if random.random() < 0.5:
                sink.answer(random.choice(tags))
                continue
            same = [tag for tag in tags if sink.waiting[tag][2] == sink.waiting[tags[0]][2]]
            last = next((a for a, b in zip(same, tags, strict=False) if a != b), None)
            upper = tags[-1] if last is None and len(same) == len(tags) else None
            sink.answer_up_to(upper if upper is not None else tags[0])

    async def compensate(self, parking: FakeParking) -> None:
        """Sends the first of a unit again, sooner or later."""
        while True:
            await asyncio.sleep(self.random.choice([0.1, 3]))
            before, at = Blocks(), 0
            while at < len(parking.parked):
                batch, index, _, _ = parking.parked[at]
                unit = parking.unit(at)
                if before.blocks("x", unit) or self.random.random() < 0.3:
                    before.add("x", unit)
                    at += 1
                    continue
                name = batch.headers[index][0][1].decode()
                one = batch_of(name, units=[unit])
                try:
                    await self.sink.resend(one)
                except MessageRefused:
                    before.add("x", unit)
                    at += 1
                else:
                    parking.take(at)

    async def run(self) -> None:
        self.make()
        await self.sink.start()
        helpers = [asyncio.create_task(self.answer())]
        if self.parking is not None:
            helpers.append(asyncio.create_task(self.compensate(self.parking)))
        producing = asyncio.create_task(self.produce_all())
        done, late = await asyncio.wait({producing, *helpers}, timeout=3000, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await self.sink.close()
        for task in done:
            task.result()
        assert producing in done, f"it came to a standstill: {self.sink.waiting}"

    async def produce_all(self) -> None:
        """Until nothing is parked any more."""
        await self.produce()
        while self.parking is not None and self.parking.parked:  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(1)

    def judge(self) -> None:
        assert self.finished == list(range(len(self.batches)))
        last = {name: place for place, name in enumerate(self.sink.seen)}
        for at, (name, unit) in enumerate(self.order):
            assert name in last, f"{name} was lost"
            alone = Blocks()
            alone.add("x", unit)
            for other, later in self.order[at + 1 :]:
                if alone.blocks("x", later):
                    assert last[name] < last[other], f"the last {name} comes behind the last {other}"


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_whatever_the_broker_answers_the_last_message_of_each_row_is_the_newest(
    seed: int, parks: bool, distinguished: bool
) -> None:
    world = World(Random(seed), parks=parks, distinguished=distinguished or parks)
    virtual_time.run(world.run())
    world.judge()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans(), st.integers(1, 40))
def test_a_connection_that_is_lost_at_any_time_ends_every_confirmation(seed: int, parks: bool, after: int) -> None:
    world = World(Random(seed), parks=parks, distinguished=True)

    async def break_it() -> None:
        world.make()
        await world.sink.start()
        answering = asyncio.create_task(world.answer())
        producing = asyncio.create_task(world.produce())
        for _ in range(after):
            await asyncio.sleep(0.05)
        world.sink._lost(HeadraceError("away"))
        seen = len(world.sink.handed)
        outcome = await asyncio.gather(producing, return_exceptions=True)
        assert outcome == [None] or isinstance(outcome[0], HeadraceError)
        await asyncio.sleep(100)
        assert len(world.sink.handed) == seen
        answering.cancel()
        await world.sink.abort()

    virtual_time.run(break_it())
    assert world.finished == sorted(world.finished)
