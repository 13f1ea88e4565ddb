"""The model of Kafka: what aiokafka, the project's sinks and raw requests meet with, and each of its faults."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.protocol.admin import ListGroupsRequest

from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.sink import KafkaSink
from headrace.errors import SinkError, SinkRejected
from headrace.lease import Lease
from headrace.model import MessageBatch
from sim.kafka import codes
from sim.kafka.cluster import Cluster
from sim.kafka.faults import Fault, Kind
from sim.kafka.settings import ClusterSettings
from sim.kafka.wire import VERSIONS, Api
from tests import once
from tests.sim.kafka_models import listening
from tests.sim.kafka_raw import batch, raw, until

QUICK = ClusterSettings(session_timeout=0.1, rejoin_time=0.02, timeout_scan=0.1, lag_time=0.1, request_timeout=0.1)


def address(cluster: Cluster, number: int = 1) -> str:
    host, port = cluster.brokers[number].address[:2]
    return f"{host}:{port}"


def leader_of(cluster: Cluster, topic: str = "shop") -> str:
    return address(cluster, cluster.partition(topic, 0).leader)


def values(cluster: Cluster, topic: str = "shop", *, committed: bool = True) -> list[bytes | None]:
    return [one.value for one in cluster.records(topic, 0, committed=committed)]


async def becomes(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await until(holds, bool)


async def producer_of(cluster: Cluster, **more: Any) -> AIOKafkaProducer:
    made = AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        acks="all",
        enable_idempotence=True,
        retry_backoff_ms=20,
        request_timeout_ms=2000,
        **more,
    )
    await made.start()
    return made


def sink_settings(cluster: Cluster, **more: Any) -> KafkaSinkSettings:
    raw_settings = {"type": "kafka", "bootstrap_servers": cluster.bootstrap_servers, "request_timeout": 5.0, **more}
    return KafkaSinkSettings.model_validate(raw_settings)


# -- clients run unchanged ---------------------------------------------------------------------------------------------


async def test_an_idempotent_producer_and_a_consumer_agree_with_the_checker() -> None:
    async with listening(3) as cluster:
        cluster.create_topic("shop")
        producer = await producer_of(cluster, compression_type="gzip")
        sent = [b"%d" % number for number in range(50)]
        await asyncio.gather(*[await producer.send("shop", value, b"k", headers=[("h", b"x")]) for value in sent])
        await producer.stop()
        assert await once.consumed(cluster.bootstrap_servers, "shop") == sent == values(cluster)
        record = next(cluster.records("shop", 0, start=7))
        assert (record.offset, record.key, record.headers) == (7, b"k", (("h", b"x"),))


async def test_a_reader_of_committed_data_is_shown_what_the_checker_sees() -> None:
    async with listening(3) as cluster:
        cluster.create_topic("shop")
        producer = await producer_of(cluster, transactional_id="t")
        for number in range(6):
            await producer.begin_transaction()
            await producer.send_and_wait("shop", b"%d" % number)
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
        await producer.begin_transaction()
        await producer.send_and_wait("shop", b"open")
        shown = await once.consumed(cluster.bootstrap_servers, "shop", settled=False)
        assert shown == [b"0", b"2", b"4"] == values(cluster)
        assert values(cluster, committed=False) == [*(b"%d" % number for number in range(6)), b"open"]
        await producer.abort_transaction()
        await producer.stop()


async def test_a_consumer_waits_for_data_without_asking_again() -> None:
    async with listening() as cluster:
        cluster.create_topic("shop")
        producer = await producer_of(cluster)
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([TopicPartition("shop", 0)])
        waiting = asyncio.create_task(consumer.getone())
        await becomes(lambda: cluster.requests.get("FETCH", 0) == 1)
        await producer.send_and_wait("shop", b"1")
        assert (await waiting).value == b"1"
        await consumer.stop()
        await producer.stop()


def test_the_same_conversation_gives_the_same_bytes_under_any_hash_seed() -> None:
    digests = [
        subprocess.run(
            [sys.executable, "-m", "tests.sim.kafka_bytes"],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1] != b""


async def test_a_request_that_the_model_does_not_know_is_recorded() -> None:
    async with listening() as cluster:
        producer = await producer_of(cluster)
        node = producer.client.get_random_node()
        await producer.client.ready(node)
        connection = next(iter(producer.client._conns.values()))
        connection._versions[16] = (0, 2)
        with pytest.raises(errors.KafkaConnectionError):
            await producer.client.send(node, ListGroupsRequest())
        assert cluster.unknown == [(1, 16, 1, producer.client._client_id)]
        cluster.unknown.clear()
        await producer.stop()
    assert 16 not in VERSIONS


# -- leaders and replicas ----------------------------------------------------------------------------------------------


async def test_a_former_leader_refuses_and_names_the_new_epoch() -> None:
    async with listening(3) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        old, new = partition.leader, partition.isr[1]
        async with raw(address(cluster, old)) as former, raw(address(cluster, new)) as present:
            assert await former.produce("shop", batch(b"1")) == (0, 0)
            cluster.move_leader("shop", 0, new)
            assert (await former.produce("shop", batch(b"2")))[0] == codes.NOT_LEADER_OR_FOLLOWER
            assert (await former.fetch("shop", 0))[0] == codes.NOT_LEADER_OR_FOLLOWER
            assert (await former.offset("shop", -1))[0] == codes.NOT_LEADER_OR_FOLLOWER
            assert await present.fetch_at("shop", 0, 0) == codes.FENCED_LEADER_EPOCH
            assert await present.fetch_at("shop", 0, 1) == 0
            assert await present.produce("shop", batch(b"2")) == (0, 1)


async def test_a_producer_follows_its_leader() -> None:
    async with listening(3) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        producer = await producer_of(cluster)
        for number in range(6):
            await producer.send_and_wait("shop", b"%d" % number)
            cluster.move_leader("shop", 0, partition.replicas[number % 3])
        await producer.stop()
        assert values(cluster) == [b"%d" % number for number in range(6)]


async def test_a_crash_of_the_leader_loses_nothing_that_was_confirmed() -> None:
    async with listening(3, QUICK) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        producer, confirmed = await producer_of(cluster), []
        for number in range(30):
            if number in (5, 15):
                cluster.brokers[partition.leader].crash()
            if number in (10, 20):
                for broker in cluster.brokers.values():
                    broker.start()
                await becomes(lambda: len(partition.isr) == 3)
            await producer.send_and_wait("shop", b"%d" % number)
            confirmed.append(b"%d" % number)
        await producer.stop()
        assert values(cluster) == confirmed
        assert not cluster.lost
        assert partition.epoch >= 2


async def test_too_few_replicas_refuse_and_no_replica_is_no_leader() -> None:
    async with listening(3, QUICK) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        others = [number for number in cluster.brokers if number != partition.leader]
        async with raw(leader_of(cluster)) as kafka:
            cluster.brokers[others[0]].stop()
            assert await kafka.produce("shop", batch(b"1")) == (0, 0)
            cluster.brokers[others[1]].stop()
            assert (await kafka.produce("shop", batch(b"2")))[0] == codes.NOT_ENOUGH_REPLICAS
            assert await kafka.produce("shop", batch(b"2"), acks=1) == (0, 1)
        cluster.brokers[partition.leader].stop()
        assert partition.leader == -1
        cluster.brokers[others[0]].start()
        async with raw(address(cluster, others[0])) as kafka:
            await asyncio.sleep(0.05)
            assert await kafka.metadata("shop") == (0, [(codes.LEADER_NOT_AVAILABLE, -1, [partition.isr[0]])])
            cluster.brokers[partition.isr[0]].start()
            await kafka.exists("shop")
        assert values(cluster) == [b"1", b"2"], "the last in-sync replica had all"


async def test_what_a_follower_does_not_fetch_is_not_confirmed_until_it_is_out_of_sync() -> None:
    async with listening(3, QUICK) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        follower = next(one for one in partition.isr if one != partition.leader)
        async with raw(leader_of(cluster)) as kafka:
            cluster.brokers[follower].hold_replication()
            waiting = asyncio.create_task(kafka.produce("shop", batch(b"1")))
            await becomes(lambda: partition.log.end == 1)
            assert partition.log.high_watermark == 0
            assert values(cluster) == []
            assert await waiting == (0, 0)
            assert follower not in partition.isr
            cluster.brokers[follower].resume_replication()
            assert follower in partition.isr


async def test_too_few_replicas_after_the_append_are_an_error_though_the_record_is_there() -> None:
    async with listening(3, QUICK) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        async with raw(leader_of(cluster)) as kafka:
            for follower in partition.replicas:
                if follower != partition.leader:
                    cluster.brokers[follower].hold_replication()
            assert (await kafka.produce("shop", batch(b"1")))[0] == codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        assert partition.isr == [partition.leader]
        assert values(cluster) == [b"1"]


async def test_an_answer_that_the_replicas_do_not_allow_in_time_is_an_error() -> None:
    async with listening(3) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        follower = next(one for one in partition.isr if one != partition.leader)
        cluster.brokers[follower].hold_replication()
        async with raw(leader_of(cluster)) as kafka:
            assert (await kafka.produce("shop", batch(b"1"), wait=50))[0] == codes.REQUEST_TIMED_OUT
        assert partition.log.end == 1


async def test_records_that_no_replica_has_vanish_with_the_leader() -> None:
    async with listening(3, QUICK) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        followers = [one for one in partition.isr if one != partition.leader]
        async with raw(leader_of(cluster)) as kafka:
            await kafka.produce("shop", batch(b"1"))
            for follower in followers:
                cluster.brokers[follower].hold_replication()
            waiting = asyncio.create_task(kafka.produce("shop", batch(b"2")))
            await becomes(lambda: partition.log.end == 2)
            cluster.move_leader("shop", 0, followers[0])
            assert (await waiting)[0] == codes.NOT_LEADER_OR_FOLLOWER
        assert values(cluster, committed=False) == [b"1"]
        (lost,) = cluster.lost
        assert (lost.first, lost.end, lost.confirmed) == (1, 2, 1)


async def test_an_unclean_election_loses_confirmed_records_and_what_is_known_of_producers() -> None:
    async with listening(3) as cluster:
        cluster.create_topic("shop")
        async with raw(leader_of(cluster)) as kafka:
            _, producer = await kafka.init(None)
            for sequence in range(4):
                await kafka.produce("shop", batch(b"%d" % sequence, producer=producer, sequence=sequence))
            cluster.unclean_election("shop", 0, 2)
            assert values(cluster) == [b"0", b"1"]
            assert (cluster.lost[0].first, cluster.lost[0].end, cluster.lost[0].confirmed) == (2, 4, 4)
            assert (await kafka.fetch("shop", 4))[0] == codes.OFFSET_OUT_OF_RANGE
            next_one = batch(b"4", producer=producer, sequence=4)
            assert (await kafka.produce("shop", next_one))[0] == codes.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert await kafka.produce("shop", batch(b"2", producer=producer, sequence=2)) == (0, 2)


async def test_a_topic_may_allow_unclean_elections_by_itself() -> None:
    async with listening(3, QUICK) as cluster:
        partition = cluster.create_topic("shop", config={"unclean.leader.election.enable": "true"}).partitions[0]
        leader, *others = partition.replicas
        async with raw(leader_of(cluster)) as kafka:
            await kafka.produce("shop", batch(b"1"))
            for other in others:
                cluster.brokers[other].stop()
            await kafka.produce("shop", batch(b"2"), acks=1)
        cluster.brokers[leader].stop()
        cluster.brokers[others[0]].start()
        await becomes(lambda: partition.leader == others[0])
        assert values(cluster) == [b"1"]
        assert cluster.lost


async def test_a_broker_that_is_cut_off_reads_old_data_and_confirms_nothing() -> None:
    async with listening(3, QUICK) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        old = partition.leader
        async with raw(leader_of(cluster)) as stale:
            await stale.produce("shop", batch(b"1"))
            cluster.brokers[old].isolate()
            unheard = asyncio.create_task(stale.produce("shop", batch(b"lost"), wait=300))
            await becomes(lambda: partition.leader != old)
            assert not unheard.done(), "the old leader has not heard of the new one"
            assert (await unheard)[0] == codes.REQUEST_TIMED_OUT
            async with raw(leader_of(cluster)) as present:
                assert await present.produce("shop", batch(b"2")) == (0, 1)
                assert await stale.values("shop") == [(0, b"1")]
                assert await stale.offset("shop", -1) == (0, 1)
                assert (await stale.metadata("shop"))[1][0][1] == old
                assert (await present.metadata("shop"))[1][0][1] == partition.leader
                assert (await stale.produce("shop", batch(b"3"), wait=50))[0] == codes.REQUEST_TIMED_OUT
                assert await stale.create("other") == (codes.REQUEST_TIMED_OUT, None)
                waiting = asyncio.create_task(stale.produce("shop", batch(b"3")))
                await asyncio.sleep(0.02)
                cluster.brokers[old].rejoin()
                assert (await waiting)[0] == codes.NOT_LEADER_OR_FOLLOWER
        assert values(cluster) == [b"1", b"2"]
        await becomes(lambda: old in partition.isr)


async def test_a_leader_that_was_cut_off_for_a_moment_goes_on() -> None:
    async with listening(3) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        broker = cluster.brokers[partition.leader]
        async with raw(leader_of(cluster)) as kafka:
            broker.isolate()
            waiting = asyncio.create_task(kafka.produce("shop", batch(b"1")))
            await becomes(lambda: partition.log.end == 1)
            assert partition.log.high_watermark == 0, "nobody fetches it"
            broker.rejoin()
            assert await waiting == (0, 0)
        assert (partition.leader, partition.epoch, len(partition.isr)) == (broker.number, 0, 3)


async def test_right_after_an_election_the_end_is_unknown() -> None:
    async with listening(3, ClusterSettings(settle_time=0.05)) as cluster:
        partition = cluster.create_topic("shop").partitions[0]
        new = partition.isr[1]
        async with raw(address(cluster, new)) as kafka:
            cluster.move_leader("shop", 0, new)
            assert await kafka.offset("shop", -1) == (codes.LEADER_NOT_AVAILABLE, -1)
            assert await kafka.offset("shop", -2) == (0, 0)
            await until(lambda: kafka.offset("shop", -1), lambda found: found == (0, 0))


# -- topics ------------------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_made_again_is_another_one() -> None:
    async with listening() as cluster:
        first = cluster.create_topic("shop")
        async with raw(address(cluster)) as kafka:
            await kafka.produce("shop", batch(b"1"))
            reading = asyncio.create_task(kafka.fetch("shop", 1, wait=5000))
            await becomes(lambda: bool(first.partitions[0].readers))
            cluster.delete_topic("shop")
            assert (await reading)[0] == codes.UNKNOWN_TOPIC_OR_PARTITION
            second = cluster.create_topic("shop", 2)
            assert first.topic_id != second.topic_id
            assert await kafka.produce("shop", batch(b"2")) == (0, 0)
        assert [one.value for one in cluster.deleted[0].partitions[0].log.records(0, committed=True)] == [b"1"]


async def test_brokers_that_make_no_topics_make_none() -> None:
    async with listening(settings=ClusterSettings(auto_create_topics=False)) as cluster:
        sink = KafkaSink(sink_settings(cluster, request_timeout=0.4), Lease())
        await sink.start()
        with pytest.raises(SinkRejected, match="there is no topic shop"):
            await sink.publish(MessageBatch("shop", 0, [b"1"], [[]]))
        assert "there is no topic shop" in str((await _check(sink, "shop"))[0])
        await sink.abort()


async def _check(sink: KafkaSink, topic: str) -> list[Any]:
    return await sink._topics.findings(sink._producer.client, [topic])


async def test_retention_moves_the_begin() -> None:
    async with listening() as cluster:
        cluster.create_topic("shop")
        async with raw(address(cluster)) as kafka:
            for number in range(4):
                await kafka.produce("shop", batch(b"%d" % number))
            cluster.retain("shop", 0, 3)
            assert await kafka.offset("shop", -2) == (0, 3)
            assert (await kafka.fetch("shop", 2))[0] == codes.OFFSET_OUT_OF_RANGE
            assert await kafka.values("shop", 3) == [(3, b"3")]
        assert values(cluster) == [b"3"]


async def test_a_full_disk_refuses_writes_until_there_is_room() -> None:
    async with listening() as cluster:
        cluster.create_topic("shop")
        cluster.brokers[1].disk_full = True
        producer = await producer_of(cluster)
        sending = await producer.send("shop", b"1")
        await becomes(lambda: cluster.requests.get("PRODUCE", 0) > 1)
        assert not sending.done()
        cluster.brokers[1].disk_full = False
        assert (await sending).offset == 0
        await producer.stop()


async def test_rights_that_are_missing_are_named() -> None:
    async with listening() as cluster:
        cluster.create_topic("shop")
        async with raw(address(cluster)) as kafka:
            producer = await kafka.started("t")
            cluster.deny("Topic", "shop")
            denied = codes.TOPIC_AUTHORIZATION_FAILED
            assert (await kafka.produce("shop", batch(b"1")))[0] == denied
            assert (await kafka.fetch("shop", 0))[0] == denied
            assert (await kafka.offset("shop", -1))[0] == denied
            assert await kafka.metadata("shop") == (denied, [])
            assert await kafka.add("t", producer, ("shop", 0)) == [denied]
            assert (await kafka.create("shop"))[0] == denied
            cluster.allow("Topic", "shop")
            cluster.deny("TransactionalId", "t")
            denied = codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert (await kafka.coordinator("t"))[0] == denied
            assert (await kafka.init("t"))[0] == denied
            assert await kafka.add("t", producer, ("shop", 0)) == [denied]
            assert await kafka.end("t", producer, True) == denied
            data = batch(b"1", producer=producer, sequence=0, transactional=True)
            assert (await kafka.produce("shop", data, name="t"))[0] == denied


async def test_the_sink_names_a_right_that_is_missing() -> None:
    async with listening() as cluster:
        cluster.create_topic("shop")
        cluster.deny("Topic", "shop", "Write")
        sink = KafkaSink(sink_settings(cluster), Lease())
        await sink.start()
        assert "Write is not allowed" in str((await _check(sink, "shop"))[0])
        done = await sink.publish(MessageBatch("shop", 0, [b"1"], [[]]))
        with pytest.raises(SinkRejected, match="TopicAuthorizationFailed"):
            await done
        await sink.abort()


# -- requests and answers ----------------------------------------------------------------------------------------------

Make = Callable[[Cluster], Fault]
LOST: dict[str, Make] = {
    "dropped": lambda cluster: cluster.faults.drop_requests(Api.PRODUCE),
    "lost": lambda cluster: cluster.faults.lose_answers(Api.PRODUCE, count=2),
    "torn": lambda cluster: cluster.faults.tear_answers(Api.PRODUCE, after=9),
    "late": lambda cluster: cluster.faults.delay_answers(0.2, Api.PRODUCE),
    "refused": lambda cluster: cluster.faults.refuse(codes.NOT_ENOUGH_REPLICAS, Api.PRODUCE, count=3),
    "unanswered": lambda cluster: cluster.faults.lose_answers(Api.PRODUCE, silent=True),
}


@pytest.mark.parametrize("fault", LOST)
async def test_a_producer_repeats_what_was_not_answered_and_nothing_is_there_twice(fault: str) -> None:
    async with listening(settings=ClusterSettings()) as cluster:
        cluster.create_topic("shop")
        producer = await producer_of(cluster)
        await producer.send_and_wait("shop", b"0")
        LOST[fault](cluster)
        found = await asyncio.gather(*[await producer.send("shop", b"%d" % number) for number in range(1, 5)])
        assert [one.offset for one in found] == [1, 2, 3, 4]
        assert not cluster.faults.rules
        await producer.stop()
        assert values(cluster) == [b"%d" % number for number in range(5)]


async def test_a_fault_may_pass_some_requests_and_be_removed() -> None:
    async with listening() as cluster:
        cluster.create_topic("shop")
        rule = cluster.faults.add(
            Fault(Kind.REFUSE, Api.PRODUCE, topic="shop", skip=1, count=-1, code=codes.UNKNOWN_PRODUCER_ID)
        )
        async with raw(address(cluster)) as kafka:
            assert await kafka.produce("shop", batch(b"1")) == (0, 0)
            for _ in range(2):
                assert (await kafka.produce("shop", batch(b"2")))[0] == codes.UNKNOWN_PRODUCER_ID
            cluster.faults.remove(rule)
            assert await kafka.produce("shop", batch(b"2")) == (0, 1)


async def test_a_quota_delays_the_next_request_and_says_so() -> None:
    async with listening() as cluster:
        cluster.create_topic("shop")
        loop = asyncio.get_running_loop()
        async with raw(address(cluster)) as kafka:
            cluster.throttle(150, "raw")
            began = loop.time()
            assert await kafka.offset("shop", -1) == (0, 0)
            at_once = loop.time() - began
            assert await kafka.offset("shop", -1) == (0, 0)
            assert at_once < 0.15 <= loop.time() - began
            cluster.throttle(0, "raw")


async def test_a_broker_that_is_away_accepts_no_connection() -> None:
    async with listening(settings=QUICK) as cluster:
        cluster.create_topic("shop")
        producer = await producer_of(cluster)
        await producer.send_and_wait("shop", b"0")
        cluster.brokers[1].crash()
        sending = await producer.send("shop", b"1")
        await asyncio.sleep(0.2)
        assert not sending.done()
        with pytest.raises((errors.KafkaConnectionError, OSError)):
            async with raw(address(cluster)):
                pass
        cluster.brokers[1].start()
        assert (await sending).offset == 1
        await producer.stop()


# -- transactions ------------------------------------------------------------------------------------------------------


async def test_a_transaction_that_is_late_is_aborted_and_its_producer_is_fenced() -> None:
    async with listening(settings=QUICK) as cluster:
        cluster.create_topic("shop")
        async with raw(address(cluster)) as kafka:
            producer = await kafka.started("t", timeout=150)
            await kafka.added("t", producer, ("shop", 0))
            data = batch(b"1", producer=producer, sequence=0, transactional=True)
            assert await kafka.produce("shop", data, name="t") == (0, 0)
            await kafka.settled("shop")
            assert (await kafka.fetch("shop", 0, committed=True))[3] == [(producer[0], 0)]
            assert await kafka.end("t", producer, True) == codes.INVALID_PRODUCER_EPOCH
            assert await kafka.started("t") == (producer[0], 2)
        assert values(cluster) == []


async def test_a_commit_survives_the_move_of_its_coordinator() -> None:
    async with listening(3) as cluster:
        cluster.create_topic("shop")
        producer = await producer_of(cluster, transactional_id="t")
        for number in range(4):
            await producer.begin_transaction()
            await producer.send_and_wait("shop", b"%d" % number)
            cluster.move_coordinator("t", cluster.coordinators.of("t") % 3 + 1, load=0.05)
            await producer.commit_transaction()
        await producer.stop()
        await becomes(lambda: len(values(cluster)) == 4)
        assert values(cluster) == [b"%d" % number for number in range(4)]


async def test_a_coordinator_that_has_moved_says_so_and_a_new_one_loads_first() -> None:
    async with listening(3) as cluster:
        cluster.create_topic("shop")
        async with raw(address(cluster)) as any_broker:
            assert (await any_broker.coordinator("t"))[0] == codes.COORDINATOR_NOT_AVAILABLE
            await until(lambda: any_broker.coordinator("t"), lambda found: found[0] == 0)
        old = cluster.coordinators.of("t")
        new = old % 3 + 1
        async with raw(address(cluster, old)) as former, raw(address(cluster, new)) as present:
            producer = await former.started("t")
            cluster.move_coordinator("t", new, load=60)
            assert await former.end("t", producer, True) == codes.NOT_COORDINATOR
            assert (await former.init("t"))[0] == codes.NOT_COORDINATOR
            assert await former.coordinator("t") == (0, new)
            assert await present.add("t", producer, ("shop", 0)) == [codes.COORDINATOR_LOAD_IN_PROGRESS]
            cluster.move_coordinator("t", new, load=0.001)
            await present.added("t", producer, ("shop", 0))
            data = batch(b"1", producer=producer, sequence=0, transactional=True)
            assert await former.metadata("shop") == await present.metadata("shop")
            async with raw(leader_of(cluster)) as leader:
                assert await leader.produce("shop", data, name="t") == (0, 0)
            assert await present.end("t", producer, True) == 0


async def test_markers_wait_for_a_leader_and_hold_back_readers_meanwhile() -> None:
    async with listening(3, QUICK) as cluster:
        cluster.create_topic("__transaction_state", 4)
        number = cluster.coordinators.of("t")
        cluster.create_topic("shop", replication=1)
        while cluster.partition("shop", 0).leader == number:
            cluster.delete_topic("shop")
            cluster.create_topic("padding" + str(len(cluster.topics)))
            cluster.create_topic("shop", replication=1, config={"min.insync.replicas": "1"})
        cluster.topics["shop"].configure({"min.insync.replicas": "1"})
        partition = cluster.partition("shop", 0)
        async with raw(address(cluster, number)) as kafka:
            producer = await kafka.started("t")
            await kafka.added("t", producer, ("shop", 0))
            async with raw(leader_of(cluster)) as leader:
                data = batch(b"1", producer=producer, sequence=0, transactional=True)
                assert await leader.produce("shop", data, name="t") == (0, 0)
            broker = cluster.brokers[partition.leader]
            broker.stop()
            assert await kafka.end("t", producer, True) == 0
            assert await kafka.end("t", producer, True) == codes.CONCURRENT_TRANSACTIONS
            assert await kafka.end("t", producer, False) == codes.INVALID_TXN_STATE
            assert values(cluster) == []
            broker.start()
            assert await kafka.ended("t", producer, True) == 0
        assert values(cluster) == [b"1"]


async def test_producers_that_were_idle_for_a_day_are_forgotten() -> None:
    async with listening() as cluster:
        cluster.create_topic("shop")
        async with raw(address(cluster)) as kafka:
            _, producer = await kafka.init(None)
            await kafka.produce("shop", batch(b"1", producer=producer, sequence=0))
            cluster.expire_producers()
            assert await kafka.produce("shop", batch(b"1", producer=producer, sequence=7)) == (0, 1)


async def test_exactly_once_shows_each_row_once_whatever_happens_to_the_brokers() -> None:
    """Runs end by an error, and the next goes on from the stored position, as the daemon does it."""
    async with listening(3, QUICK) as cluster:
        cluster.create_topic("shop", 1)
        settings = sink_settings(cluster, delivery="exactly_once", transaction_interval=0.01, transaction_timeout=5.0)
        harm: dict[int, Callable[[], Any]] = {
            5: lambda: cluster.faults.lose_answers(Api.END_TXN),
            10: lambda: cluster.brokers[cluster.partition("shop", 0).leader].crash(),
            15: lambda: [broker.start() for broker in cluster.brokers.values()],
            20: lambda: cluster.move_coordinator("headrace-shop", cluster.coordinators.of("headrace-shop") % 3 + 1),
            25: lambda: cluster.faults.lose_answers(Api.PRODUCE),
            30: lambda: cluster.faults.refuse(codes.UNKNOWN_PRODUCER_ID, Api.PRODUCE),
            35: lambda: cluster.faults.drop_requests(Api.ADD_PARTITIONS_TO_TXN),
        }
        done, runs = 0, 0
        while done < 40:
            runs += 1
            one = once.Run(settings, "shop")
            try:
                await one.start()
                done = one.stored.position.last_pos if one.stored.position else 0
                while done < 40:
                    if act := harm.pop(done + 1, None):
                        act()
                    await asyncio.wait_for(await one.publish(b"%d" % (done + 1), at=done + 1), 20)
                    done += 1
            except SinkError:
                pass
            finally:
                await one.sink.abort()
        assert runs > 1
        await becomes(lambda: values(cluster) == [b"%d" % number for number in range(1, 41)])
