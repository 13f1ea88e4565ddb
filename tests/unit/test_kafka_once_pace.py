"""How often the exactly-once sink commits while brokers are slow, in virtual time; a transactor stands for Kafka."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from headrace.adapters.kafka.exactly_once import ExactlyOnceKafkaSink
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.lease import Lease
from headrace.model import MessageBatch, Position
from headrace.ports.state import StateChange
from tests import virtual_time


class Head:
    version = 0
    position = None


class SlowTransactor:
    """Sending a batch takes 10 ms, a commit as long as is said."""

    def __init__(self, commit_takes: float) -> None:
        self.lease, self.transactional_id, self.head, self.known, self.producer = Lease(), "t", Head(), True, None
        self.commit_takes = commit_takes
        self.sent = 0
        self.commits: list[int] = []
        """How many messages had been sent at each."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def build(self, batch: MessageBatch, limit: int) -> list[MessageBatch]:
        return [batch]

    async def send(self, part: MessageBatch, topic: str, partition: int, *, largest: int) -> None:
        await asyncio.sleep(0.01)
        self.sent += len(part.values)

    async def commit(self, change: StateChange) -> None:
        await asyncio.sleep(self.commit_takes)
        self.commits.append(self.sent)


def one_row(number: int, size: int = 1) -> MessageBatch:
    at = Position("u", "binlog.000001", number)
    return MessageBatch(values=[b"x"], headers=[[]], topic="shop", partition=0, rows=1, size=size, position=at)


async def started(transactor: SlowTransactor, **more: float) -> ExactlyOnceKafkaSink:
    settings = KafkaSinkSettings.model_validate({"type": "kafka", "bootstrap_servers": "x:1", **more})
    sink = ExactlyOnceKafkaSink(settings, transactor)  # type: ignore[arg-type]
    sink._sizes._topics._limits["shop"] = 1 << 20
    await sink.start()
    return sink


async def published(commit_takes: float, count: int, size: int = 1, **more: float) -> tuple[SlowTransactor, float]:
    """A backlog of one-row transactions, and how long it took until all of them were confirmed."""
    transactor = SlowTransactor(commit_takes)
    sink = await started(transactor, **more)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*[await sink.publish(one_row(number, size)) for number in range(count)])
    took = loop.time() - began
    await sink.close()
    return transactor, took


def test_a_backlog_before_slow_brokers_is_not_committed_in_crumbs() -> None:
    transactor, took = virtual_time.run(published(2.0, 1000))
    # 10 s go into sending; were every interval of 15 ms committed by itself, commits would take 1,000 s.
    assert took < 35
    assert len(transactor.commits) <= 12


def test_quick_brokers_get_a_commit_each_interval() -> None:
    transactor, took = virtual_time.run(published(0.01, 1000))
    assert took < 12
    assert len(transactor.commits) >= 80


def test_one_who_catches_up_commits_a_third_as_often() -> None:
    often, _ = virtual_time.run(published(0.01, 1000))
    seldom, _ = virtual_time.run(published(0.01, 1000, size=300_000))
    assert len(often.commits) * 0.3 < len(seldom.commits) < len(often.commits) * 0.45


def test_after_a_slow_commit_quick_ones_are_frequent_again() -> None:
    async def run() -> list[float]:
        transactor = SlowTransactor(20.0)
        sink = await started(transactor)
        await (await sink.publish(one_row(1)))
        transactor.commit_takes = 0.01
        loop, waits = asyncio.get_running_loop(), list[float]()
        for number in (2, 3):
            began = loop.time()
            await (await sink.publish(one_row(number)))
            waits.append(round(loop.time() - began, 2))
        await sink.close()
        return waits

    assert virtual_time.run(run()) == [1.01, 0.02]


def test_after_a_pause_a_change_is_committed_at_once_and_the_next_ones_each_interval() -> None:
    async def run() -> list[float]:
        sink = await started(SlowTransactor(0.001))
        loop, waits = asyncio.get_running_loop(), list[float]()
        await asyncio.sleep(1)
        for number in (1, 2, 3):
            began = loop.time()
            await (await sink.publish(one_row(number)))
            waits.append(round(loop.time() - began, 3))
        await sink.close()
        return waits

    assert virtual_time.run(run()) == [0.011, 0.018, 0.018]


def test_a_backlog_is_committed_once_in_a_longer_interval() -> None:
    transactor, _ = virtual_time.run(published(0.01, 200, transaction_interval=0.2))
    assert 9 <= len(transactor.commits) <= 12


def test_an_interval_of_seconds_is_kept() -> None:
    async def run() -> list[float]:
        sink = await started(SlowTransactor(0.001), transaction_interval=3.0)
        loop, ends = asyncio.get_running_loop(), list[float]()
        began = loop.time()
        await asyncio.sleep(1.5)
        for number in (1, 2):
            await (await sink.publish(one_row(number)))
            ends.append(round(loop.time() - began, 1))
        await (await sink.publish(replace(one_row(3), values=[], headers=[], rows=0, size=0)))
        await sink.close()
        return [*ends, round(loop.time() - began, 1)]

    assert virtual_time.run(run()) == [3.0, 6.0, 7.0], "a position alone waits for a second"


def test_what_publishes_nothing_is_no_backlog() -> None:
    async def run() -> list[float]:
        sink = await started(SlowTransactor(0.005))
        loop, waits = asyncio.get_running_loop(), list[float]()
        await asyncio.sleep(1)
        for number in range(0, 30, 10):
            for other in range(1, 9):
                await sink.publish(replace(one_row(number + other), values=[], headers=[], rows=0, size=0))
            began = loop.time()
            await (await sink.publish(one_row(number + 9)))
            waits.append(round(loop.time() - began, 3))
        await sink.close()
        return waits

    assert max(virtual_time.run(run())) < 0.03
