"""The Spark consumer with a real Kafka, a real Elasticsearch and a real Spark: the final state is always exact."""

from __future__ import annotations

import asyncio
import os
import random
import signal

import pytest

from devstack.servers.elasticsearch import ElasticsearchServer
from tests.canal_messages import START, TYPES, change, every_kind, history, row

from .conftest import Pipeline

pytestmark = [pytest.mark.server, pytest.mark.long]


async def test_changes_replays_and_poison(pipeline: Pipeline) -> None:
    table, at = pipeline.topic, START
    first, expected = every_kind(table)
    poison = [
        b"not json at all \xff",
        b"",
        change(table, 0, "INSERT", row(90)),
        change(table, at + 80, "INSERT", row(91), pkNames=None),
        change(table, at + 81, "INSERT", {"id": "92"}),
        # `sold` is a number in the index by now; this row says otherwise.
        change(table, at + 82, "INSERT", row(93), row(94, sold="many"), mysqlType={**TYPES, "sold": "varchar(9)"}),
    ]
    await pipeline.send(first)
    pipeline.drain()
    assert pipeline.documents() == expected
    index = f"shop.{table}"
    hits = pipeline.elastic.search(index=index, query={"match_phrase": {"name": "保洁"}})["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["1"]
    made = pipeline.elastic.indices.get_settings(index=index)[index]["settings"]["index"]
    assert made["gc_deletes"] == "1h"

    # Everything again, in a batch of its own, in any order, with poison between; then one change that is new.
    random.Random(7).shuffle(first)
    await pipeline.send([*first, *poison], key=b"the key")
    await pipeline.send([change(table, at + 100, "UPDATE", row(1, "新"), old=[{"name": "家庭保洁服务"}])])
    pipeline.drain()
    expected["1"] = (at + 100, {"id": 1, "name": "新", "price": "9.90", "sold": 0})
    expected["93"] = (at + 82, {"id": 93, "name": "x", "price": "9.90", "sold": "0"})
    assert pipeline.documents() == expected

    letters = {letter.value: dict(letter.headers) for letter in await pipeline.dead_letters(len(poison))}
    assert letters.keys() == set(poison)
    reasons = [letters[value]["headrace-dead-reason"].decode() for value in poison]
    for reason, text in zip(
        reasons,
        (
            "not JSON",
            "empty",
            "_pos is not between",
            "no primary key",
            "is not whole",
            "refuses row 1: 400 document_pars",
        ),
        strict=True,
    ):
        assert text in reason
    assert letters[poison[0]]["headrace-dead-topic"] == table.encode()
    assert letters[poison[0]]["headrace-dead-partition"] == b"0"
    assert letters[poison[0]]["headrace-dead-offset"] == str(2 * len(first)).encode()
    assert letters[poison[0]]["headrace-id"] == b"test"


async def test_killed_twice_and_stopped_once(pipeline: Pipeline) -> None:
    messages, expected = history(pipeline.topic, 8000)
    half = len(messages) // 2
    await pipeline.send(messages[:half])
    index = f"shop.{pipeline.topic}"
    # First between a batch's last write and its mark in the checkpoint, then while a batch is being written.
    for batches, delay in ((1, 0.0), (2, 0.15)):
        wanted = len(pipeline.events("batch done")) + batches
        process = pipeline.start()
        pipeline.wait_for(lambda wanted=wanted: len(pipeline.events("batch done")) >= wanted)
        await asyncio.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    assert pipeline.elastic.indices.exists(index=index)
    await pipeline.send(messages[half:])

    process = pipeline.start()
    seen = len(pipeline.events("batch done"))
    pipeline.wait_for(lambda: len(pipeline.events("batch done")) > seen)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, pipeline.text()
    assert "Traceback" not in pipeline.text()
    before_drain = pipeline.events("batch done")

    pipeline.drain()
    # The batch that ran at the signal was finished and noted: none is done a second time.
    drained = pipeline.events("batch done")[len(before_drain) :]
    assert drained[0]["batch"] == before_drain[-1]["batch"] + 1
    assert pipeline.documents() == expected


async def test_elasticsearch_away_for_a_while(pipeline: Pipeline, elastic_server: ElasticsearchServer) -> None:
    table = pipeline.topic
    await pipeline.send([change(table, START, "INSERT", row(1))])
    process = pipeline.start()
    pipeline.wait_for(lambda: pipeline.events("batch done"))
    elastic_server.freeze()
    try:
        await pipeline.send([change(table, START + 10, "INSERT", row(2))])
        pipeline.wait_for(lambda: pipeline.events("outage begins"), 60)
    finally:
        elastic_server.thaw()
    pipeline.wait_for(lambda: len(pipeline.events("batch done")) > 1)
    assert pipeline.documents().keys() == {"1", "2"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, pipeline.text()
    await pipeline.dead_letters(0)
