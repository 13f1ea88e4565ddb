"""Exactly once into Kafka: what consumers that read committed are shown, whoever dies and whoever takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from devstack import Stack
from headrace.adapters.kafka.state import KafkaStore
from headrace.errors import Fenced, LeaseLapsed, SinkError, SinkRejected
from headrace.lease import Lease, Term
from headrace.ports.state import Guard, StateChange
from tests.once import Cluster, Run, batch, cluster, consumed, make_topic, new_name, position, run, written

pytestmark = pytest.mark.server

WHILE = 20
SELDOM: dict[str, Any] = {"transaction_interval": 30.0, "transaction_timeout": 120.0}
"""Even a slow machine has finished a test's steps before the sink commits by itself."""


@pytest.fixture(scope="module")
def kafka(stack: Stack) -> Iterator[Cluster]:
    with cluster(stack) as made:
        yield made


async def confirmed(*futures: asyncio.Future[None]) -> None:
    async with asyncio.timeout(WHILE):
        await asyncio.gather(*futures)


async def test_messages_and_their_position_come_together(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(**SELDOM), name) as first:
        confirmations = [await first.publish(b"1", b"2", at=100), await first.publish(b"3", at=200)]
        first.sink.flush()
        await confirmed(*confirmations)
        assert first.sink.version == 1, "both in one Kafka transaction"
        await first.sink.close()
    async with run(kafka.settings(), name) as second:
        assert second.stored.position == position(200)
        assert second.stored.last_pos == 200
        assert (second.guard.epoch, second.guard.version) == (2, 1)
    assert await consumed(kafka.direct, name) == [b"1", b"2", b"3"]


async def test_what_a_dead_daemon_left_in_a_transaction_is_sent_once(kafka: Cluster) -> None:
    name, slow = new_name(), kafka.settings(**SELDOM)
    async with run(kafka.settings(), name) as first:
        await confirmed(await first.publish(b"1", at=100))
        await first.sink.close()
    async with run(slow, name) as dying:
        await dying.publish(b"2", b"3", at=200)
        await written(kafka.direct, name, b"3")
        await dying.sink.abort()
    async with run(kafka.settings(), name) as second:
        assert second.stored.position == position(100)
        await confirmed(await second.publish(b"2", b"3", at=200))
    assert await consumed(kafka.direct, name) == [b"1", b"2", b"3"]
    assert await consumed(kafka.direct, name, committed=False) == [b"1", b"2", b"3", b"2", b"3"]


async def test_a_zombie_can_neither_commit_nor_fence_back(kafka: Cluster) -> None:
    name, slow = new_name(), kafka.settings(**SELDOM)
    async with run(slow, name) as zombie:
        waiting = await zombie.publish(b"zombie", at=100)
        await written(kafka.direct, name, b"zombie")
        async with run(kafka.settings(), name) as second:
            assert second.stored.position is None
            zombie.sink.hurry()
            with pytest.raises(Fenced, match=f"transactional id headrace-{name}"):
                await confirmed(waiting)
            with pytest.raises(Fenced):
                await zombie.publish(b"again", at=200)
            await confirmed(await second.publish(b"ours", at=100))
            await confirmed(await second.publish(b"and on", at=200))
    assert await consumed(kafka.direct, name) == [b"ours", b"and on"]


async def test_a_zombie_is_refused_at_its_next_message(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(), name) as zombie:
        await confirmed(await zombie.publish(b"1", at=100))
        async with run(kafka.settings(), name) as second:
            with pytest.raises(Fenced):
                await confirmed(await zombie.publish(b"zombie", at=200))
            await confirmed(await second.publish(b"2", at=200))
    assert await consumed(kafka.direct, name) == [b"1", b"2"]


async def test_nobody_is_fenced_without_a_proof_of_the_lock(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(), name) as holder:
        await confirmed(await holder.publish(b"1", at=100))
        lost, unproved = Lease(), Lease(5.0)
        lost.lose("another daemon holds the lock")
        for lease, error in ((lost, Fenced), (unproved, LeaseLapsed)):
            other = Run(kafka.settings(), name, lease)
            with pytest.raises(error):
                await other.start()
        await confirmed(await holder.publish(b"2", at=200))
    assert await consumed(kafka.direct, name) == [b"1", b"2"]


async def test_nothing_is_committed_once_the_lease_has_lapsed(kafka: Cluster) -> None:
    name, lease = new_name(), Lease()
    async with run(kafka.settings(**SELDOM), name, lease=lease) as first:
        waiting = await first.publish(b"1", at=100)
        await written(kafka.direct, name, b"1")
        lease.lose("the session is over")
        first.sink.hurry()
        with pytest.raises(Fenced, match="the session is over"):
            await confirmed(waiting)
    async with run(kafka.settings(), name) as second:
        assert second.stored.position is None
    assert await consumed(kafka.direct, name) == []


async def test_nothing_is_committed_when_the_lease_lapses_at_the_last_moment(kafka: Cluster) -> None:
    name, lease = new_name(), Lease()
    async with run(kafka.settings(), name, lease=lease) as first:
        original: Callable[..., Awaitable[Any]] = first.transactor._producer.send_batch

        async def send_batch(part: Any, topic: str, *, partition: int) -> Any:
            delivery = await original(part, topic, partition=partition)
            if topic == first.settings.state_topic:
                lease.lose("the session is over")
            return delivery

        first.transactor._producer.send_batch = send_batch
        with pytest.raises(Fenced, match="the session is over"):
            await confirmed(await first.publish(b"1", at=100))
    async with run(kafka.settings(), name) as second:
        assert second.stored.position is None
    assert await consumed(kafka.direct, name) == []


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_refused_message_takes_the_whole_transaction_with_it(kafka: Cluster, at_once: bool) -> None:
    name, small = new_name(), f"{new_name()}-small"
    await make_topic(kafka.direct, name)
    await make_topic(kafka.direct, small, max_message_bytes="2000")
    async with run(kafka.settings(max_request_size="1MiB"), name) as first:  # so that the brokers have to refuse
        good = await first.sink.publish(batch(name, (b"good",), None))
        if at_once:  # the commit follows before the brokers have refused anything
            first.sink.hurry()
        with pytest.raises(SinkRejected, match="the largest message has 9000 bytes"):
            await confirmed(good, await first.publish(b"x" * 9000, at=200, topic=small))
    async with run(kafka.settings(), name) as second:
        assert second.stored.position is None
        await confirmed(await second.publish(b"good", at=100))
    assert await consumed(kafka.direct, name) == [b"good"]
    assert await consumed(kafka.direct, small) == []


async def test_a_batch_without_position_is_never_committed_without_what_follows(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(transaction_interval=0.05), name) as first:
        part = await first.sink.publish(batch(name, (b"1",), None))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await asyncio.shield(part)
        await confirmed(part, await first.publish(b"2", at=100))
    assert await consumed(kafka.direct, name) == [b"1", b"2"]


async def test_positions_alone_are_committed_about_once_a_second_and_at_once_before_a_stop(
    kafka: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_name()
    async with run(kafka.settings(), name) as first:
        loop = asyncio.get_running_loop()
        began, futures = loop.time(), []
        while loop.time() - began < 2.2:
            version = first.sink.version  # of that time: a publish may take longer
            futures.append(await first.publish(at=len(futures) + 1))
            await asyncio.sleep(0.01)
        assert version <= 3
        monkeypatch.setattr("headrace.adapters.kafka.exactly_once._IDLE_INTERVAL", 60.0)
        last = await first.publish(at=1000)
        assert not last.done()
        first.sink.hurry()
        async with asyncio.timeout(15):
            await last
        await confirmed(*futures)
        await first.sink.close()
    async with run(kafka.settings(), name) as second:
        assert second.stored.position == position(1000)


async def test_a_closed_sink_has_committed_what_was_complete(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(**SELDOM), name) as first:
        waiting = await first.publish(b"1", at=100)
        await first.sink.close()
        assert waiting.done()
    async with run(kafka.settings(**SELDOM), name) as second:
        assert second.stored.position == position(100)
        await second.sink.publish(batch(name, (b"half",), None))
        await second.sink.close()
        # Aborted in order, so that consumers do not have to wait for its timeout.
    assert await consumed(kafka.direct, name) == [b"1"]


async def test_a_flush_commits_what_is_complete_and_nothing_after_that(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(**SELDOM), name) as first:
        waiting = await first.publish(b"1", at=100)
        first.sink.flush()
        async with asyncio.timeout(15):
            await confirmed(waiting)
        later = await first.publish(b"2", at=200)
        await asyncio.sleep(0.5)
        assert not later.done(), "what comes behind it gathers again"
        half = await first.sink.publish(batch(name, (b"half",), None))
        first.sink.flush()
        await asyncio.sleep(0.5)
        assert not half.done()
        await confirmed(await first.publish(b"3", at=300), half, later)
        await first.sink.close()


async def test_much_goes_out_in_transactions_of_a_limited_size(kafka: Cluster) -> None:
    name = new_name()
    settings = kafka.settings(transaction_interval=15.0, transaction_bytes="1MiB", max_in_flight_bytes="256KiB")
    values = [b"%06d" % i + b"x" * 1000 for i in range(4000)]
    async with run(settings, name) as first:
        futures = []
        for i in range(0, 4000, 100):
            futures.append(await first.publish(*values[i : i + 100], at=i + 100))
            assert first.transactor.in_flight <= 1_000_000, "one record batch passes alone"
        assert 3 <= first.sink.version <= 8
        await first.sink.close()
        await confirmed(*futures)
    assert await consumed(kafka.direct, name) == values


async def test_a_higher_epoch_that_is_stored_makes_us_step_down(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(), name, term=Term(7, 0)) as first:
        assert first.guard.epoch == 7
        await first.commit(100)
        assert (await first.store.begin_epoch(name, term=Term(7, 0))).version == 1, "the same holder begins again"
        with pytest.raises(Fenced, match="version 1 in the state topic"):
            await first.store.commit(name, Guard(7, 0), StateChange(position(7)))
        with pytest.raises(Fenced, match="epoch 7"):
            await first.store.begin_epoch(name, term=Term(6, 0))
        with pytest.raises(Fenced, match="epoch 9"):
            await first.store.begin_epoch(name, above=9, term=Term(9, 0))
        assert (await first.store.begin_epoch(name, above=11)).epoch == 12, "without a lock service it is counted here"
        await first.sink.close()
    assert (await KafkaStore(kafka.settings(), name).load(name)).epoch == 12


async def test_a_reader_of_the_state_fences_nobody_and_a_writer_does(kafka: Cluster) -> None:
    name = new_name()
    command = KafkaStore(kafka.settings(), name)
    async with run(kafka.settings(), name) as daemon:
        await daemon.commit(100, {"table": "t"})
        async with asyncio.timeout(10):  # the broker shows a commit to others a moment after it has answered
            while (stored := await command.load(name)).position is None:  # noqa: ASYNC110 - another client knows
                await asyncio.sleep(0.05)
        assert (stored.position, stored.epoch, stored.version) == (position(100), 1, 1)
        assert await command.schema_entries(name) == [{"table": "t"}]
        assert [(entry.actor, entry.version) for entry in await command.history(name)] == [("checkpoint", 1)]
        for refused in (
            command.commit(name, Guard(1, 0), StateChange(position(7), actor="policy")),
            command.begin_epoch(name, above=3, term=Term(2, 0)),
        ):
            with pytest.raises(Fenced, match=r"under epoch [13]"):
                await refused
        # Whoever is behind does not fence the one who is not.
        await confirmed(await daemon.publish(b"1", at=200))
        guard = await command.begin_epoch(name)
        assert (guard.epoch, guard.version) == (2, 2)
        with pytest.raises(Fenced):
            await confirmed(await daemon.publish(b"zombie", at=300))
    assert await consumed(kafka.direct, name) == [b"1"]


async def test_a_broken_sink_stays_broken(kafka: Cluster) -> None:
    name = new_name()
    async with run(kafka.settings(), name) as first:
        await first.sink.abort()
        await first.sink.abort()
        await first.sink.close()
        with pytest.raises(SinkError):
            await first.publish(b"1", at=100)
