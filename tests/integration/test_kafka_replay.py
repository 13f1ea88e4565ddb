"""A topic read back: which part of it was given."""

from __future__ import annotations

import uuid
from typing import Any

import aiokafka
import pytest

from headrace.adapters.kafka.replay import KafkaReplay
from headrace.adapters.kafka.settings import KafkaSinkSettings
from tests.once import make_topic

pytestmark = pytest.mark.server


async def test_it_says_which_part_of_all_partitions_it_has_given(kafka: Any) -> None:
    topic = f"replay-{uuid.uuid4().hex[:8]}"
    await make_topic(kafka.bootstrap_servers, topic, partitions=3)
    settings = KafkaSinkSettings(type="kafka", bootstrap_servers=kafka.bootstrap_servers)
    replay = KafkaReplay(settings, topic)
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:

        async def write(count: int) -> None:
            for number in range(count):
                await producer.send(topic, b"x" * 100, partition=number % 3)
            await producer.flush()

        await write(9_000)
        assert replay.share() is None
        given, shares = 0, []
        async for block in replay.read():
            given += len(block)
            shares.append(replay.share())
            assert shares[-1] == given / 9_000
        assert shares[-1] == 1
        assert len(shares) > 1
        await write(3)
        async for _ in replay.read():
            pass
        assert replay.share() == 1, "of what came since then"
    await replay.close()


async def test_a_block_of_messages_that_were_compressed_well_is_bounded_in_bytes(kafka: Any) -> None:
    topic = f"replay-{uuid.uuid4().hex[:8]}"
    await make_topic(kafka.bootstrap_servers, topic)
    settings = KafkaSinkSettings(type="kafka", bootstrap_servers=kafka.bootstrap_servers)
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, compression_type="zstd", max_batch_size=1 << 20
    ) as producer:
        for _ in range(1_000):  # 64 MB, which are a few hundred kB in the topic
            await producer.send(topic, b"x" * 64_000)
        await producer.flush()
    replay, sizes = KafkaReplay(settings, topic), []
    async for block in replay.read():
        sizes.append(sum(len(message.value or b"") for message in block))
    await replay.close()
    assert sum(sizes) == 64_000_000
    assert max(sizes) <= 1 << 20
