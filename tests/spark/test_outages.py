"""Outages of Elasticsearch and Kafka: nothing is lost, few lines are written, and a stop is quick."""

from __future__ import annotations

import json
import signal
import time

import pytest

from devstack import Stack
from devstack.servers.elasticsearch import ElasticsearchServer
from tests.canal_messages import START, change, row

from .conftest import Pipeline

pytestmark = [pytest.mark.server, pytest.mark.long]

LASTS = 65.0
"""Seconds of an outage."""


def lines(pipeline: Pipeline) -> list[str]:
    """What an operator sees: all but the lines of level debug."""
    found = pipeline.log.read_text(errors="replace").splitlines()
    return [line for line in found if '"level": "debug"' not in line]


def assert_quiet(pipeline: Pipeline, most: int) -> None:
    found = lines(pipeline)
    assert all(line.startswith("{") for line in found), found
    assert len(found) <= most, found
    assert not [line for line in found if "Traceback" in line or "\tat " in line or '"exception"' in line]


def stop(pipeline: Pipeline, within: float) -> None:
    process, began = pipeline.processes[-1], time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(within + 20) == 0, pipeline.text()
    assert time.monotonic() - began < within, pipeline.text()


async def test_elasticsearch_stopped_for_a_minute(pipeline: Pipeline, stack: Stack) -> None:
    server: ElasticsearchServer = stack.elasticsearch(name="outage-elastic")
    pipeline.point_at_elasticsearch(server.url)
    table = pipeline.topic
    await pipeline.send([change(table, START, "INSERT", row(1))])
    pipeline.start()
    pipeline.wait_for(lambda: pipeline.events("batch done"))
    server.stop()
    await pipeline.send([change(table, START + 10 * n, "INSERT", row(n)) for n in range(2, 50)])
    pipeline.wait_for(lambda: pipeline.events("outage begins"), 60)
    page = pipeline.health()
    assert page["state"] == "WAITING"
    [cause] = page["causes"]
    assert cause["cause"] == f"Elasticsearch at {server.url} does not answer: connection refused"
    assert "documents of a task" in cause["waits"]
    assert pipeline.processes[-1].poll() is None
    pipeline.wait_for(lambda: pipeline.events("outage goes on"), LASTS + 30)
    pipeline.wait_for(lambda: pipeline.health()["lag"]["messages"] == 48)
    server.start()
    pipeline.wait_for(lambda: pipeline.events("outage ends"), 60)
    pipeline.wait_for(lambda: pipeline.health()["lag"]["messages"] == 0)
    assert pipeline.documents().keys() == {str(n) for n in range(1, 50)}
    assert pipeline.health()["state"] == "RUNNING"
    assert pipeline.events("query failed and is started again") == []
    stop(pipeline, 30)
    assert_quiet(pipeline, 20)


async def test_a_stop_while_elasticsearch_is_away(pipeline: Pipeline, stack: Stack) -> None:
    server: ElasticsearchServer = stack.elasticsearch(name="outage-elastic-2")
    pipeline.point_at_elasticsearch(server.url)
    table = pipeline.topic
    await pipeline.send([change(table, START, "INSERT", row(1))])
    pipeline.start()
    pipeline.wait_for(lambda: pipeline.events("batch done"))
    server.freeze()
    await pipeline.send([change(table, START + 10, "INSERT", row(2))])
    pipeline.wait_for(lambda: pipeline.events("outage begins"), 60)
    stop(pipeline, 15)
    assert_quiet(pipeline, 15)
    server.thaw()
    server.stop()
    # From the very start: it waits, without Spark, and can be stopped.
    pipeline.start()
    pipeline.wait_for(lambda: len(pipeline.events("outage begins")) > 1, 60)
    assert pipeline.health()["state"] == "WAITING"
    stop(pipeline, 10)
    pipeline.start()
    pipeline.wait_for(lambda: len(pipeline.events("outage begins")) > 2, 60)
    server.start()
    pipeline.wait_for(lambda: pipeline.documents().keys() == {"1", "2"}, 60)
    stop(pipeline, 30)


async def test_kafka_stopped_for_a_minute(pipeline: Pipeline, stack: Stack) -> None:
    kafka = stack.kafka(name="outage-kafka")
    pipeline.point_at_kafka(kafka.bootstrap_servers)
    table = pipeline.topic
    await pipeline.send([change(table, START, "INSERT", row(1))])
    pipeline.start()
    pipeline.wait_for(lambda: pipeline.events("batch done"))
    kafka.stop()
    pipeline.wait_for(lambda: pipeline.events("outage begins"), 60)
    assert pipeline.health()["causes"][0]["cause"] == f"Kafka at {kafka.bootstrap_servers} does not answer"
    pipeline.wait_for(lambda: pipeline.events("outage goes on"), LASTS + 30)
    kafka.start()
    pipeline.wait_for(lambda: pipeline.events("outage ends"), 60)
    await pipeline.send([change(table, START + 10, "INSERT", row(2))])
    pipeline.wait_for(lambda: pipeline.documents().keys() == {"1", "2"}, 60)
    kafka.stop()
    pipeline.wait_for(lambda: len(pipeline.events("outage begins")) > 1, 60)
    stop(pipeline, 15)
    assert_quiet(pipeline, 30)
    assert json.dumps(pipeline.events("Java")).count("reason") <= 5
