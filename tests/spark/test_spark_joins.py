"""Documents of several tables with a real Kafka, a real Elasticsearch and a real Spark."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.joined_tables import SERVICES, canal_message, message

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
    empty = {"_pos": "70", "database": "shop", "table": "price", "isDdl": True, "type": "TRUNCATE", "id": 1, "es": 1}
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

    await pipeline.send([orjson.dumps(empty)])
    pipeline.drain()
    assert bodies(pipeline, name) == {"1": {**expected, "prices": []}}
    assert not [key for key in pipeline.documents(f"headrace-rows.{name}") if key.startswith("prices|")]
