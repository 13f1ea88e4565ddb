"""Documents of several tables with a real Kafka, a real Elasticsearch and a real Spark."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

import orjson
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.joined_tables import SERVICES, Source, canal_message, message

from .conftest import Pipeline

pytestmark = pytest.mark.server


def declare(pipeline: Pipeline, **more: Any) -> str:
    """Adds the index with its joins to the config; its name."""
    name = f"services-{pipeline.topic}".lower()
    index = {**SERVICES, "name": name, **more}

    def keys(section: dict[str, Any]) -> str:
        made = ""
        for key, value in section.items():
            if isinstance(value, dict):
                value = "{ " + ", ".join(f"{one} = {orjson.dumps(to).decode()}" for one, to in value.items()) + " }"
                made += f"{key} = {value}\n"
            elif key != "join":
                made += f"{key} = {orjson.dumps(value).decode()}\n"
        return made

    text = f"\n[[index]]\n{keys(index)}" + "".join(f"\n[[index.join]]\n{keys(one)}" for one in index["join"])
    pipeline.config.write_text(pipeline.config.read_text() + text)
    return name


def bodies(pipeline: Pipeline, index: str) -> dict[str, Any]:
    return {name: body for name, (_, body) in pipeline.documents(index).items()}


@pytest.mark.long
async def test_tables_become_one_document_and_what_is_refused_is_a_dead_letter(pipeline: Pipeline) -> None:
    name = declare(pipeline)
    pipeline.elastic.indices.create(index=name, mappings={"properties": {"city": {"type": "integer"}}})
    serve = {"id": "1", "name": "保洁", "item_id": "7", "city": "10"}
    item = {"id": "7", "title": "日常保洁", "type_id": "3"}
    price = {"id": "5", "serve_id": "1", "unit": "次", "amount": "9.90"}
    refused = canal_message(message("serve", "INSERT", {**serve, "id": "2", "city": "北京"}, None, 60))
    emptied = {"_pos": "70", "database": "shop", "table": "price", "isDdl": True, "type": "TRUNCATE", "id": 1, "es": 1}
    await pipeline.send(
        [
            canal_message(message("price", "INSERT", price, None, 10)),
            canal_message(message("serve", "INSERT", serve, None, 30)),
            canal_message(message("item", "INSERT", item, None, 50)),
            refused,
        ]
    )
    pipeline.drain()
    expected = {"id": 1, "name": "保洁", "city": "10", "item_title": "日常保洁", "type": None}
    assert bodies(pipeline, name) == {"1": {**expected, "prices": [{"id": 5, "unit": "次", "amount": "9.90"}]}}
    [letter] = await pipeline.dead_letters(1)
    assert letter.value == refused
    assert f"document 2 of index {name}: 400".encode() in dict(letter.headers)["headrace-dead-reason"]

    await pipeline.send([orjson.dumps(emptied)])
    pipeline.drain()
    assert bodies(pipeline, name) == {"1": {**expected, "prices": []}}
    assert not [key for key in pipeline.documents(f"headrace-rows.{name}") if key.startswith("prices|")]


@pytest.mark.long
async def test_a_consumer_of_joins_that_is_killed_again_and_again_ends_with_the_join(pipeline: Pipeline) -> None:
    chance = random.Random(11)
    name, source = declare(pipeline), Source(chance)
    admin = AIOKafkaAdminClient(bootstrap_servers=pipeline.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(pipeline.topic, 3, 1)])
    finally:
        await admin.close()
    for _ in range(4000):
        source.step()
    values = [canal_message(one) for one in source.messages]
    values += chance.choices(values, k=300)
    chance.shuffle(values)
    for start in range(0, len(values), 700):
        for key in (b"a", b"b", b"c", b"d"):
            await pipeline.send(values[start : start + 700][b"abcd".index(key) :: 4], key=key)
        process = pipeline.start()
        seen = len(pipeline.events("batch done"))
        pipeline.wait_for(lambda seen=seen: len(pipeline.events("batch done")) > seen)
        await asyncio.sleep(chance.random())
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    pipeline.drain()
    assert bodies(pipeline, name) == source.join()
