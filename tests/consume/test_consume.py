"""The RabbitMQ consumer with a real broker and a real Elasticsearch: the final state is always exact."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import devstack
from devstack.servers.base import Tls
from devstack.servers.elasticsearch import ElasticsearchServer
from devstack.servers.rabbitmq import RabbitmqServer
from tests.canal_messages import START, change, every_kind, history, row
from tests.certificates import Authority
from tests.ill_elastic import IllElastic

from .conftest import Line

pytestmark = pytest.mark.server


async def test_changes_repeats_and_reordering_end_in_the_exact_state(line: Line) -> None:
    table, at = line.name, START
    messages, expected = every_kind(table)
    line.start()
    await line.wait_for(lambda: line.status().get("state") == "RUNNING")
    await line.send(messages)
    await line.wait_settled()
    assert line.documents() == expected
    hits = line.elastic.search(index=f"shop.{table}", query={"match_phrase": {"name": "家庭保洁"}})["hits"]["hits"]
    assert [hit["_id"] for hit in hits] == ["1"]
    assert [entry["table"] for entry in line.events("a table was emptied: its documents are gone")] == [f"shop.{table}"]

    # Everything again in any order, each for itself so that none hides behind another, and one change that is new.
    random.Random(7).shuffle(messages)
    for message in messages:
        await line.send([message])
    await line.send([change(table, at + 100, "UPDATE", row(1, "新"), old=[{"name": "家庭保洁服务"}])])
    await line.wait_settled()
    expected["1"] = (at + 100, {"id": 1, "name": "新", "price": "9.90", "sold": 0})
    assert line.documents() == expected
    line.stop()
    assert line.count("applied") == 2 * len(messages) + 1
    assert await line.ready(".dead") == 0
    checked = line.command("check")
    assert checked.returncode == 0
    assert [text.split()[:2] for text in checked.stdout.splitlines()] == [
        ["ok", "RabbitMQ:"],
        *[["ok", "queue"]] * 3,
        ["ok", "Elasticsearch:"],
        ["all", "is"],
    ]


@pytest.mark.long
async def test_killed_three_times_in_five_thousand_messages(line: Line) -> None:
    messages, expected = history(line.name, 5000)
    await line.make_queues()
    await line.send(messages)
    for share in (0.15, 0.4, 0.65):
        process = line.start()
        left = len(messages) * (1 - share)
        while await asyncio.to_thread(line.left) > left:
            assert process.poll() is None, line.text()
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    assert await line.ready() > 0
    line.start()
    await line.wait_settled()
    assert line.documents() == expected
    line.stop()
    # What the last kill left unacknowledged came again.
    assert line.count("redelivered") > 0
    assert await line.ready(".dead") == 0


async def test_a_stop_finishes_what_is_in_hand(line: Line) -> None:
    messages, expected = history(line.name, 2500)
    await line.make_queues()
    await line.send(messages)
    process = line.start()
    while await asyncio.to_thread(line.left) > len(messages) * 0.8:
        assert process.poll() is None, line.text()
    line.stop()
    left = await line.ready()
    assert 0 < left < len(messages)
    # Everything that came was applied and acknowledged.
    assert line.count("received") == line.count("applied") == len(messages) - left
    line.start()
    await line.wait_settled()
    line.stop()
    # Each message reached one of the two processes, and nothing was done a second time. The mark of redelivery does not
    # say that: the broker also sets it on what it sent while the consumer was ending, and which nobody has seen.
    assert line.count("received") == line.count("applied") == left
    assert line.documents() == expected


async def test_no_more_than_the_prefetch_is_taken_while_elasticsearch_is_frozen(line: Line) -> None:
    messages, expected = history(line.name, 400)
    line.configure(rabbitmq={"prefetch": 37}, run={"drain_timeout": 0.5})
    await line.make_queues()
    line.elastic_server.freeze()
    try:
        line.start()
        await line.wait_for(lambda: line.status().get("state") == "RUNNING")
        await line.send(messages)
        await line.wait_for(lambda: line.status()["state"] == "WAITING")
        assert line.in_hand() == 37
        assert await line.ready() == len(messages) - 37
        # Stopped without Elasticsearch: in time, and what was in hand goes back.
        line.stop()
        assert await line.ready() == len(messages)
    finally:
        line.elastic_server.thaw()
    line.start()
    await line.wait_settled()
    assert line.documents() == expected
    assert await line.ready(".dead") == 0


@pytest.mark.long
async def test_elasticsearch_killed_and_started_again(line: Line, elastic_server: ElasticsearchServer) -> None:
    messages, expected = history(line.name, 1500)
    half = len(messages) // 2
    line.start()
    await line.wait_for(lambda: line.status().get("state") == "RUNNING")
    await line.send(messages[:half])
    await line.wait_for(lambda: line.count("applied") > 0)
    elastic_server.kill()
    try:
        await line.send(messages[half:])
        await line.wait_for(lambda: line.status()["state"] == "WAITING")
        # Longer than all retries of a message: an outage is the fault of none.
        await line.wait_for(lambda: len(line.events("Elasticsearch takes nothing; the messages wait")) >= 4)
    finally:
        await asyncio.to_thread(elastic_server.start)
    await line.wait_settled()
    assert line.documents() == expected
    assert line.status()["state"] == "RUNNING"
    line.stop()
    assert (line.count("retried"), line.count("dead_letters")) == (0, 0)
    assert await line.ready(".dead") == 0


@pytest.mark.long
async def test_the_broker_killed_and_started_again_over_tls(
    make_line: Callable[[RabbitmqServer], Line], stack: devstack.Stack, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    broker = stack.rabbitmq(name="rabbitmq-consume", tls=Tls(authority.make("server")[2], authority.path))
    certificate, key, _ = authority.make("client")
    line = make_line(broker)
    line.configure(
        rabbitmq={
            "hosts": ["127.0.0.1:1", f"127.0.0.1:{broker.secure_port}"],
            "tls": "required",
            "tls_ca": str(authority.path),
            "tls_certificate": str(certificate),
            "tls_key": str(key),
            "prefetch": 20,
        }
    )
    messages, expected = history(line.name, 1000)
    await line.make_queues()
    await line.send(messages)
    line.start()
    await line.wait_for(lambda: line.count("applied") > 100)
    try:
        broker.kill()
        await line.wait_for(lambda: line.status()["state"] == "WAITING")
    finally:
        await asyncio.to_thread(broker.start)
    await line.wait_settled()
    assert line.documents() == expected
    line.stop()
    assert line.count("connections") == 2


async def test_a_session_that_the_broker_ends_is_followed_by_another(line: Line) -> None:
    """The queue is deleted under the consumer, which is told so and makes it again."""
    line.start()
    await line.wait_for(lambda: line.status().get("state") == "RUNNING")
    line.broker.evaluate(
        f'begin {{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{line.name}">>)), '
        '{ok, _} = rabbit_amqqueue:delete(Q, false, false, <<"test">>), ok end'
    )
    await line.wait_for(lambda: line.count("connections") == 2)
    await line.send([change(line.name, START, "INSERT", row(1))])
    await line.wait_settled()
    assert line.documents().keys() == {"1"}
    [lost] = line.events("no connection to RabbitMQ; it is tried again")
    assert "was the queue deleted?" in lost["reason"]


async def test_wrong_accounts_and_hosts_are_reported_with_what_to_do(line: Line) -> None:
    line.configure(rabbitmq={"password": "wr0ng", "virtual_host": "/"})
    line.start()
    await line.wait_for(lambda: line.status().get("causes"))
    [reason] = [one["cause"] for one in line.status()["causes"]]
    assert "ACCESS_REFUSED" in reason
    assert "Check hosts, virtual_host, user and password in [rabbitmq]" in reason
    line.stop()
    line.configure(rabbitmq={"password": "guest", "virtual_host": "nowhere"})
    line.start()
    await line.wait_for(lambda: line.status().get("causes"))
    done = line.command("status")
    assert (done.returncode, done.stdout.startswith("state")) == (0, True)
    assert "virtual host was refused" in done.stdout
    line.stop()
    assert "wr0ng" not in line.text()


@pytest.mark.parametrize("mode", ["whole", "items"])
async def test_an_elasticsearch_that_answers_500_makes_no_dead_letter(line: Line, mode: str) -> None:
    """For longer than all retries of a message: 22 s of it made dead letters of documents that were well."""
    messages, expected = history(line.name, 300)
    half = len(messages) // 2
    with IllElastic(line.elastic_server.url).running() as ill:
        line.configure(elasticsearch={"hosts": [ill.url], "retries": 1, "retry_wait": 0.1})
        line.start()
        await line.wait_for(lambda: line.status().get("state") == "RUNNING")
        await line.send(messages[:half])
        await line.wait_for(lambda: line.count("applied") > 0)
        ill.mode = mode
        await line.send(messages[half:])
        await line.wait_for(lambda: line.status()["state"] == "WAITING")
        await line.wait_for(lambda: ill.refused >= 8)
        assert (line.count("retried"), line.count("dead_letters"), await line.ready(".dead")) == (0, 0, 0)
        ill.mode = ""
        await line.wait_settled()
        assert line.documents() == expected
        line.stop()
    assert (line.count("retried"), line.count("dead_letters")) == (0, 0)
