"""The Spark consumer as a process with a real OpenSearch in Elasticsearch's place."""

from __future__ import annotations

import os
import random
import signal

import pytest

from devstack.servers.elasticsearch import ElasticsearchServer
from devstack.servers.opensearch import OpensearchServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings
from tests.canal_messages import START, TYPES, change, every_kind, row

from .conftest import Pipeline

pytestmark = [pytest.mark.server, pytest.mark.long]


async def test_replays_poison_and_a_kill_end_in_the_exact_documents(
    pipeline: Pipeline, elastic_server: ElasticsearchServer, opensearch_server: OpensearchServer
) -> None:
    text = pipeline.config.read_text()
    assert elastic_server.url in text
    pipeline.config.write_text(text.replace(elastic_server.url, opensearch_server.url))
    table, index = pipeline.topic, f"shop.{pipeline.topic}"
    with Cluster(ElasticsearchSettings(hosts=[opensearch_server.url])) as cluster:

        def documents() -> dict[str, tuple[int, object]]:
            cluster.refresh(index)
            pages = cluster.search_pages(index, version=True)
            return {hit["_id"]: (hit["_version"], hit["_source"]) for hits in pages for hit in hits}

        first, expected = every_kind(table)
        await pipeline.send(first)
        process = pipeline.start()
        pipeline.wait_for(lambda: pipeline.events("batch done"))
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        # Everything again, in any order, with a row that the index refuses, which has a number in this field by now.
        random.Random(7).shuffle(first)
        refused = change(
            table, START + 90, "INSERT", row(93), row(94, sold="many"), mysqlType={**TYPES, "sold": "varchar(9)"}
        )
        await pipeline.send([*first, refused])
        pipeline.drain()
        expected["93"] = (START + 90, {"id": 93, "name": "x", "price": "9.90", "sold": "0"})
        assert documents() == expected
        assert cluster.index_settings(index)[index]["index.gc_deletes"] == "1h"
    [letter] = await pipeline.dead_letters(1)
    assert letter.value == refused
    assert b"refuses row 1: 400 mapper_parsing_exception" in dict(letter.headers)["headrace-dead-reason"]
