"""Exactly once into Kafka while a broker dies that leads the messages, the positions, or the transactions."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from devstack import Stack
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state_topic import partition_of
from headrace.errors import HeadraceError
from tests.once import consumed, make_topic, new_name, run

pytestmark = pytest.mark.server

TOTAL, KILLS_AT = 300, (80, 180)


async def leader_of(bootstrap: str, topic: str, partition: int) -> int:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        (found,) = await admin.describe_topics([topic])
        return next(int(one["leader"]) for one in found["partitions"] if one["partition"] == partition)
    finally:
        await admin.close()


@pytest.mark.long
async def test_leaders_that_die_lose_no_message_and_repeat_none(stack: Stack) -> None:
    cluster = stack.kafka(brokers=3, name="once-three")
    name, bootstrap = new_name(), cluster.bootstrap_servers
    await make_topic(bootstrap, name, copies=3)
    raw = {"type": "kafka", "bootstrap_servers": bootstrap, "request_timeout": 5.0, "transaction_timeout": 10.0}
    settings = KafkaSinkSettings.model_validate(raw | {"delivery": "exactly_once"})
    victims = iter(((settings.state_topic, partition_of(name)), (name, 0)))
    kills, dead = list(KILLS_AT), None
    async with asyncio.timeout(240):
        while True:
            try:
                async with run(settings, name) as one:
                    at = one.stored.position.offset if one.stored.position else 0
                    while at < TOTAL:
                        last = await one.publish(b"%d" % at, at=at + 1)
                        at += 1
                        if kills and at >= kills[0]:
                            kills.pop(0)
                            if dead is not None:
                                await asyncio.to_thread(dead.start)
                            leader = await leader_of(bootstrap, *next(victims))
                            dead = next(broker for broker in cluster.brokers if broker.node_id == leader)
                            dead.kill()
                        await asyncio.sleep(0.002)
                    await last
                    break
            except HeadraceError:
                await asyncio.sleep(0.2)  # as the supervisor would, and then from what is stored
    assert not kills
    assert await consumed(bootstrap, name) == [b"%d" % i for i in range(TOTAL)]
    cluster.kill()
