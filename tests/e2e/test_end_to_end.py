"""End to end: the join of changed tables becomes the same documents, through a SIGKILL and a message not of ours."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from demo import catalog
from demo.__main__ import kill_in_the_middle, require_identical
from demo.pipeline import Pipeline
from demo.search import search
from tests.support import eventually, read_topic

pytestmark = pytest.mark.server

ALIEN = "这不是我们的消息 {".encode()


async def send(bootstrap: str, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        await producer.send_and_wait(topic, value, partition=0)


def assert_ranked(pipeline: Pipeline) -> None:
    """Those that are called so come first, then those of which a description says it, then those of the type."""
    found = search(pipeline.cluster, "家庭保洁", 1000)
    names = [hit.source["item_name"] for hit in found.hits]
    called, described = 2 * len(catalog.CITIES), 2 * len(catalog.CITIES)
    assert found.total == len(names) == len(catalog.CITIES) * (len(catalog.ITEMS["保洁清洗"]) + 2)
    assert set(names[:called]) == {"家庭保洁", "家庭保洁(四小时)"}
    assert set(names[called : called + described]) == {"新居开荒", "钟点工"}
    first = found.hits[0]
    assert first.marked["item_name"][0] == ("家庭保洁", True)
    assert first.marked["type.name"] == [("保洁", True), ("清洗", False)]


def test_every_row_is_a_document_after_a_kill_and_a_message_that_is_not_ours(pipeline: Pipeline) -> None:
    chance = random.Random(int(time.time()))
    pipeline.consumer.start()
    pipeline.start_daemon()
    catalog.create(pipeline.source)
    rows = catalog.fill(pipeline.source, chance)
    # Between our messages: the query has to pass it to reach what follows.
    asyncio.run(send(pipeline.kafka.bootstrap_servers, pipeline.topic, ALIEN))
    pipeline.wait_consumer()
    loaded = pipeline.wait_identical()
    require_identical(pipeline, loaded)
    assert loaded.rows == rows
    assert_ranked(pipeline)

    kill_in_the_middle(pipeline, chance)
    catalog.alter(pipeline.source, chance)
    changed = pipeline.wait_identical(90)
    require_identical(pipeline, changed)
    assert changed.rows != loaded.rows

    letters: list[Any] = []

    def arrived() -> bool:
        letters[:] = asyncio.run(read_topic(pipeline.kafka.bootstrap_servers, pipeline.dead_letters))
        return bool(letters)

    eventually(arrived, 30, pipeline.consumer.tail)
    assert [letter.value for letter in letters] == [ALIEN]
    headers = dict(letters[0].headers)
    assert b"not JSON" in headers["headrace-dead-reason"]
    assert headers["headrace-dead-topic"] == pipeline.topic.encode()
    assert pipeline.consumer.stop(30) == 0, pipeline.consumer.tail()
    assert pipeline.daemon.stop() == 0, pipeline.daemon.tail()
