"""Exactly once into Kafka when answers are lost, daemons freeze, and transactions stay open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition

from devstack import Stack
from headrace.adapters.kafka.producer import build_records
from headrace.adapters.kafka.state import KafkaStore
from headrace.adapters.kafka.transactor import Transactor
from headrace.errors import Fenced, SinkError, StateStoreError
from headrace.ports.state import StateChange
from tests.once import (
    Cluster,
    Run,
    cluster,
    consumed,
    make_topic,
    neighbour_of,
    new_name,
    nothing_open,
    position,
    run,
    written,
)

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def kafka(stack: Stack) -> Iterator[Cluster]:
    with cluster(stack) as made:
        yield made


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_commit_of_unknown_outcome_is_settled_by_reading(kafka: Cluster, arrives: bool) -> None:
    name = new_name()
    async with run(kafka.settings(), name) as before:
        await before.commit(50)
        await before.sink.close()
    try:
        async with run(kafka.settings(proxied=True, transaction_timeout=3.0), name) as first:
            break_commit(first, kafka, arrives)
            with pytest.raises(SinkError, match="did not end a transaction"):
                await (await first.publish(b"1", at=100))
            assert first.sink.version == 1, "nobody may believe that it was committed"
            await first.sink.abort()
        async with run(kafka.settings(), name) as second:
            assert second.stored.position == position(100 if arrives else 50)
            if not arrives:
                await (await second.publish(b"1", at=100))
            kafka.proxy.thaw()  # what was held back arrives now
            await (await second.publish(b"2", at=200))
    finally:
        kafka.proxy.thaw()
    assert await consumed(kafka.direct, name) == [b"1", b"2"]


def break_commit(one: Run, kafka: Cluster, arrives: bool) -> None:
    """The request is held up on its way, or its answer never comes."""
    original: Callable[[], Awaitable[None]] = one.transactor._producer.commit_transaction

    async def commit() -> None:
        if arrives:
            await original()
            await asyncio.Event().wait()
        kafka.proxy.freeze()
        await original()

    one.transactor._producer.commit_transaction = commit


@pytest.mark.parametrize("connected", [True, False])
async def test_nothing_leaves_an_aborted_sink(kafka: Cluster, connected: bool) -> None:
    name = new_name()
    await make_topic(kafka.direct, name)
    try:
        async with run(kafka.settings(proxied=True), name) as first:
            await (await first.publish(b"1", at=100))
            if connected:
                kafka.proxy.freeze()
            else:  # the client is about to connect anew
                kafka.proxy.blackhole()
                kafka.proxy.close_all()
            publishing = asyncio.create_task(first.publish(b"2", at=200))  # it may commit at once
            first.sink.hurry()
            await asyncio.sleep(0.3)
            async with asyncio.timeout(3):
                await first.sink.abort()
                await asyncio.gather(publishing, return_exceptions=True)
            assert not {task for task in asyncio.all_tasks() if "aiokafka" in str(task.get_coro())}
            connections = kafka.proxy.connections
            kafka.proxy.thaw()
            await asyncio.sleep(0.5)
            if connected:
                assert kafka.proxy.connections == connections
    finally:
        kafka.proxy.thaw()
    async with run(kafka.settings(), name) as second:
        assert second.stored.position == position(100)
    assert await consumed(kafka.direct, name) == [b"1"]


@pytest.mark.parametrize("notices", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_daemon_that_was_frozen_for_too_long_begins_again(kafka: Cluster, notices: bool) -> None:
    name = new_name()
    await make_topic(kafka.direct, name)
    async with run(kafka.settings(transaction_timeout=1.5, transaction_interval=10.0), name) as first:
        first.sink.rests_until += 60  # nothing is committed before it freezes, however slow the machine is
        waiting = await first.publish(b"1", at=100)
        if not notices:  # as if the clock had stood still meanwhile
            first.transactor._deadline += 60
        await written(kafka.direct, name, b"1")
        time.sleep(3)  # noqa: ASYNC251 - frozen, with its whole loop
        if not notices:  # the brokers end a transaction that is too long now and then
            await nothing_open(kafka.direct, TopicPartition(name, 0))
        first.sink.hurry()
        with pytest.raises(SinkError if notices else Fenced, match="transaction_timeout"):
            await waiting
        with pytest.raises((SinkError, Fenced)):
            await first.publish(b"2", at=200)
    async with run(kafka.settings(), name) as second:
        assert second.stored.position is None
        await (await second.publish(b"1", at=100))
    assert await consumed(kafka.direct, name) == [b"1"]


async def test_a_transaction_of_mysql_may_last_longer_than_one_of_kafka(kafka: Cluster) -> None:
    name, sent = new_name(), []
    async with run(kafka.settings(transaction_timeout=1.0, transaction_interval=10.0), name) as first:
        began = time.monotonic()
        while time.monotonic() - began < 3:
            sent.append(b"%d" % len(sent))
            last = await first.publish(sent[-1], at=len(sent))
            await asyncio.sleep(0.02)
        await last
        assert first.sink.version > 5
    assert await consumed(kafka.direct, name) == sent


async def leave_open(one: Run) -> None:
    """A transaction in the state topic that nobody ends."""
    (part,) = build_records(one.transactor._producer, [(f"{one.name}/history/test/0".encode(), b'{"layout":1}')])
    await one.transactor.send(part, one.settings.state_topic, one.transactor.topic.partition)
    await asyncio.gather(*one.transactor._deliveries)


async def test_the_open_transaction_of_a_neighbour_hides_nothing(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(transaction_timeout=3.0), neighbour_of(name)) as neighbour:
        async with run(kafka.settings(), name) as first:
            await leave_open(neighbour)
            await (await first.publish(b"1", at=100))
            await first.sink.close()
        command = KafkaStore(kafka.settings(), name)
        assert (await command.load(name)).position is None, "a command does not wait for it"
        await neighbour.sink.abort()
    async with run(kafka.settings(), name) as second:
        assert second.stored.position == position(100)
    assert await consumed(kafka.direct, name) == [b"1"]


async def test_what_a_command_has_written_is_shown_to_the_next_reader(
    kafka: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers confirm a commit before they show it; a neighbour's transaction makes that moment a long one."""
    name = new_name()
    commit = Transactor.commit
    async with run(kafka.settings(transaction_timeout=1.0), neighbour_of(name)) as neighbour:

        async def commit_behind_a_neighbour(transactor: Transactor, change: StateChange) -> None:
            await leave_open(neighbour)
            await commit(transactor, change)

        command = KafkaStore(kafka.settings(), name)
        guard = await command.begin_epoch(name)
        monkeypatch.setattr(Transactor, "commit", commit_behind_a_neighbour)
        await command.commit(name, guard, StateChange(position(100), ({"n": 1},)))
        for one in (command, KafkaStore(kafka.settings(), name)):
            assert (await one.load(name)).position == position(100)
            assert await one.schema_entries(name) == [{"n": 1}]


async def test_a_reading_that_was_not_whole_is_noticed_before_the_first_commit(kafka: Cluster) -> None:
    """As from a broker that no longer leads the partition, and does not know."""
    name = new_name()
    async with run(kafka.settings(), name) as first:
        await first.commit(100)
        stale = await first.transactor.read()
        await first.commit(200)
        await first.sink.close()
    second = Run(kafka.settings(), name)
    try:
        await second.sink.start()
        await second.store.load(name)
        second.transactor.head, second.transactor._read_to = stale.head, stale.end
        with pytest.raises(StateStoreError, match="records of its own come after that"):
            await second.store.begin_epoch(name)
    finally:
        await second.sink.abort()
    async with run(kafka.settings(), name) as third:
        assert third.stored.position == position(200)


async def test_what_a_neighbour_writes_in_between_is_no_harm(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(), neighbour_of(name)) as neighbour:
        one = Run(kafka.settings(), name)
        try:
            await one.sink.start()
            await one.store.load(name)
            await neighbour.commit(5)
            assert (await one.store.begin_epoch(name)).epoch == 1
        finally:
            await one.sink.abort()


async def test_a_neighbour_that_stays_is_waited_for_no_longer_than_the_brokers_would(kafka: Cluster) -> None:
    name = new_name()
    alone = {"state_topic": new_name()}  # the transaction stays open for a minute, and no other test is to wait for it
    async with run(kafka.settings(transaction_timeout=60.0, **alone), neighbour_of(name)) as neighbour:
        async with run(kafka.settings(**alone), name) as first:
            await leave_open(neighbour)
            await first.commit(100)
        with pytest.raises(StateStoreError, match="another destination's transaction is open there"):
            async with run(kafka.settings(request_timeout=1.0, transaction_timeout=0.5, **alone), name):
                pass


async def test_a_schema_history_of_many_megabytes_comes_back_whole(kafka: Cluster) -> None:
    name = new_name()
    noise = [bytes((i * 7919 + j * j * 31 + (j >> 3) * i) & 255 for j in range(900_000)).hex() for i in (3, 5)]
    entries: list[dict[str, Any]] = [{"n": i, "ddl": text} for i, text in enumerate(noise)]
    async with run(kafka.settings(), name) as first:
        await first.commit(100, {"n": -1}, {"n": -2})
        batch = await first.publish(at=150)
        await batch
        await first.sink.close()
    async with run(kafka.settings(), name) as second:
        await second.commit(200, *entries)
        await second.sink.close()
    async with run(kafka.settings(), name) as third:
        assert await third.store.schema_entries(name) == [{"n": -1}, {"n": -2}, *entries]
        assert [entry.version for entry in await third.store.history(name)] == [1], "one of a minute"


async def test_a_state_topic_that_would_lose_positions_is_refused(kafka: Cluster) -> None:
    few, fleeting = new_name(), new_name()
    await make_topic(kafka.direct, few, 2, cleanup_policy="compact")
    await make_topic(kafka.direct, fleeting, 16, cleanup_policy="delete")
    for topic, words in ((few, "has 2 partitions"), (fleeting, "cleanup.policy delete")):
        one = Run(kafka.settings(state_topic=topic), new_name())
        with pytest.raises(StateStoreError, match=words) as caught:
            await one.start()
        assert not caught.value.retriable
        assert words in str((await one.sink.check())[0])
    missing = Run(kafka.settings(state_topic=new_name()), new_name())
    assert await missing.sink.check() == []
    assert (await KafkaStore(missing.settings, missing.name).load(missing.name)).version == 0


async def test_brokers_that_are_away_are_an_error_in_time(kafka: Cluster) -> None:
    kafka.proxy.blackhole()
    try:
        one = Run(kafka.settings(proxied=True, request_timeout=1.0), new_name())
        for attempt in (one.start(), KafkaStore(one.settings, one.name).load(one.name)):
            async with asyncio.timeout(20):
                with pytest.raises(StateStoreError, match="can't be used"):
                    await attempt
        assert "can't be used" in (await one.sink.check())[0].sentence
    finally:
        kafka.proxy.thaw()
