"""The Spark consumer with a real Kafka, a real Elasticsearch and a real Spark: the final state is always exact."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from typing import Any

import pytest

from devstack.servers.elasticsearch import ElasticsearchServer

from .conftest import Pipeline

pytestmark = pytest.mark.server

START = 3563400000000000000
TYPES = {"id": "bigint", "name": "varchar(64)", "price": "decimal(10,2)", "sold": "int unsigned"}


def row(key: object, name: str = "x", price: str = "9.90", sold: str | None = "0") -> dict[str, str | None]:
    return {"id": str(key), "name": name, "price": price, "sold": sold}


def change(table: str, position: int, kind: str, *rows: dict[str, Any], **more: Any) -> bytes:
    message = {
        "data": list(rows),
        "database": "shop",
        "es": 1700000000000,
        "gtid": "",
        "id": position - START,
        "isDdl": False,
        "mysqlType": TYPES,
        "old": None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": {"id": -5, "name": 12, "price": 3, "sold": 4},
        "table": table,
        "ts": 1700000000001,
        "type": kind,
        "_pos": str(position),
    }
    return json.dumps({**message, **more}).encode()


async def test_changes_replays_and_poison(pipeline: Pipeline) -> None:
    table, at = pipeline.topic, START
    first = [
        change(table, at + 0, "INSERT", row(1, "家庭保洁服务"), row(2, "家电维修"), row(3), row(4), row(5)),
        change(table, at + 10, "UPDATE", row(2, "家电清洗", sold="7"), old=[{"name": "家电维修", "sold": "0"}]),
        change(table, at + 20, "DELETE", row(3)),
        # The key changes 4 -> 40, and a new row takes the old one's place later.
        change(table, at + 30, "UPDATE", row(40, "moved"), old=[{"id": "4"}]),
        # The same key twice in one message: the later row wins.
        change(table, at + 40, "UPDATE", row(5, "a"), row(5, "b"), old=[{"name": "x"}, {"name": "a"}]),
        change(table, at + 50, "INSERT", row(6)),
        change(table, at + 60, "DELETE", row(6)),
        change(table, at + 61, "INSERT", row(6, "again")),
        change(table, at + 70, "TRUNCATE", data=None, pkNames=None, isDdl=True, sql="TRUNCATE TABLE t"),
    ]
    poison = [
        b"not json at all \xff",
        None,
        change(table, 0, "INSERT", row(90)),
        change(table, at + 80, "INSERT", row(91), pkNames=None),
        change(table, at + 81, "INSERT", {"id": "92"}),
        # `sold` is a number in the index by now; this row says otherwise.
        change(table, at + 82, "INSERT", row(93), row(94, sold="many"), mysqlType={**TYPES, "sold": "varchar(9)"}),
    ]
    await pipeline.send(first)
    pipeline.drain()
    expected = {
        "1": (at, {"id": 1, "name": "家庭保洁服务", "price": "9.90", "sold": 0}),
        "2": (at + 10, {"id": 2, "name": "家电清洗", "price": "9.90", "sold": 7}),
        "40": (at + 30, {"id": 40, "name": "moved", "price": "9.90", "sold": 0}),
        "5": (at + 41, {"id": 5, "name": "b", "price": "9.90", "sold": 0}),
        "6": (at + 61, {"id": 6, "name": "again", "price": "9.90", "sold": 0}),
    }
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


def history(table: str, count: int) -> tuple[list[bytes], dict[str, tuple[int, dict[str, Any]]]]:
    """A random history of one table, with resent stretches, and the state in the end."""
    rng = random.Random(20240607)
    state: dict[str, tuple[int, dict[str, Any]]] = {}
    messages: list[bytes] = []
    free = 10_000
    for i in range(count):
        at = START + 10 * i
        key, name = str(rng.randrange(300)), f"change {i}"
        body = {"name": name, "price": "1.00", "sold": i}
        if key not in state:
            messages.append(change(table, at, "INSERT", row(key, name, "1.00", str(i))))
            state[key] = (at, {"id": int(key), **body})
        elif (what := rng.random()) < 0.25:
            messages.append(change(table, at, "DELETE", row(key)))
            del state[key]
        elif what < 0.35:
            free += 1
            messages.append(change(table, at, "UPDATE", row(free, name, "1.00", str(i)), old=[{"id": key}]))
            del state[key]
            state[str(free)] = (at, {"id": free, **body})
        else:
            messages.append(change(table, at, "UPDATE", row(key, name, "1.00", str(i)), old=[{"name": "before"}]))
            state[key] = (at, {"id": int(key), **body})
        if i % 500 == 499:  # the daemon was restarted and sends its last messages again
            messages += messages[-40:]
    return messages, state


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
        pipeline.wait_for(lambda: pipeline.events("query failed and is started again"), 60)
    finally:
        elastic_server.thaw()
    pipeline.wait_for(lambda: len(pipeline.events("batch done")) > 1)
    assert pipeline.documents().keys() == {"1", "2"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, pipeline.text()
    await pipeline.dead_letters(0)
