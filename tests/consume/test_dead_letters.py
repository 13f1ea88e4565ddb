"""Messages that can't be applied: their retries, the dead letters, the scan, and what people do with the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiormq
import pytest

from devstack.servers.rabbitmq import RabbitmqServer
from headrace_consume.broker import BrokerError
from headrace_consume.dead_letter_queues import DeadLetterQueues
from headrace_consume.settings import load_settings
from tests.canal_messages import START, TYPES, change, row
from tests.once import until

from .conftest import Line, channel_to

pytestmark = pytest.mark.server


def refused(table: str, at: int, key: int) -> bytes:
    """A message that Elasticsearch refuses once `sold` is a number in the index."""
    return change(table, at, "INSERT", row(key, sold="many"), mysqlType={**TYPES, "sold": "varchar(9)"})


def letters(line: Line, *words: str) -> list[dict[str, Any]]:
    done = line.command("dead-letters", "list", "--json", *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(text) for text in done.stdout.splitlines()]


async def test_poison_is_retried_then_a_dead_letter_then_sent_again_and_stays_for_an_operator(line: Line) -> None:
    table = line.name
    line.configure(retry={"delay": 0.25, "factor": 2}, dead_letters={"scan_interval": 0.3, "attempts": 2})
    await line.make_queues()
    async with channel_to(line.broker.url) as channel:
        await channel.exchange_declare(exchange=f"x.{table}", exchange_type="topic", durable=True)
        await channel.queue_bind(queue=line.name, exchange=f"x.{table}", routing_key="shop.#")
    line.start()
    await line.wait_for(lambda: line.status().get("state") == "RUNNING")
    await line.send([change(table, START, "INSERT", row(1))], ids=["good"])
    await line.wait_settled()
    await line.send([refused(table, START + 10, 2)], "shop.t", f"x.{table}", ids=["refused"])
    await line.send([b"not json at all \xff"], ids=["garbage"])
    await line.wait_for(lambda: line.status()["held"] == 2)
    # Behind the poison: it is written while that waits for its next try.
    await line.send([change(table, START + 20, "INSERT", row(3))])
    await line.wait_for(lambda: line.count("applied") == 2)
    assert line.status()["held"] == 2
    assert line.count("dead_letters") == 0
    await line.wait_for(lambda: line.status()["needs_operator"] == 2)
    # At first and after each of the two resends: 3 retries, then a dead letter.
    waits = [entry["seconds"] for entry in line.events("a message can't be applied; it is tried again")]
    assert sorted(waits) == [0.25] * 6 + [0.5] * 6 + [1.0] * 6
    published = line.events("dead letter")
    assert sorted((entry["id"], entry["resends"], entry["waits_for"]) for entry in published) == [
        ("garbage", 0, "the scan"),
        ("garbage", 1, "the scan"),
        ("garbage", 2, "an operator"),
        ("refused", 0, "the scan"),
        ("refused", 1, "the scan"),
        ("refused", 2, "an operator"),
    ]
    assert line.count("resent") == 4
    assert line.events("dead letters need an operator: headrace-consume dead-letters list")
    await line.wait_settled()
    # It stays: more scans leave it alone.
    line.broker.sync()
    line.stop()
    assert (await line.ready(".dead"), await line.ready(".dead.operator")) == (0, 2)
    assert line.documents().keys() == {"1", "3"}

    found = {letter["id"]: letter for letter in letters(line)}
    assert found.keys() == {"refused", "garbage"}
    reported = found["refused"]
    assert (reported["state"], reported["attempts"], reported["resends"]) == ("NEEDS_OPERATOR", 12, 2)
    assert (reported["table"], reported["key"]) == (f"shop.{table}", "2")
    assert (reported["exchange"], reported["routing_key"]) == (f"x.{table}", "shop.t")
    assert "Elasticsearch refuses row 0: 400 document_pars" in reported["reason"]
    assert reported["time"] < reported["last"]
    done = line.command("dead-letters", "show", "refused", "--json")
    whole = json.loads(done.stdout)
    assert (json.loads(whole["body"])["_pos"], whole["headers"]["headrace-id"]) == (str(START + 10), "refused")
    assert "not JSON" in found["garbage"]["reason"]
    assert letters(line, "--state", "pending") == []

    # People mend the cause and send it again; what can't be mended is taken away, and printed whole.
    line.elastic.indices.delete(index=f"shop.{table}")
    done = line.command("dead-letters", "retry", "refused")
    assert (done.returncode, done.stdout) == (0, "1 sent again\n")
    assert line.command("dead-letters", "discard", "garbage").returncode == 1
    assert len(letters(line)) == 1
    done = line.command("dead-letters", "discard", "garbage", "--yes")
    assert done.returncode == 0
    assert json.loads(done.stdout)["body"].startswith("not json at all")
    assert letters(line) == []
    assert line.command("dead-letters", "retry", "garbage").returncode == 1
    line.start()
    await line.wait_settled()
    assert line.documents().keys() == {"2"}


async def test_a_dead_letter_that_no_queue_takes_keeps_its_message_where_it_is(line: Line) -> None:
    line.configure(retry={"attempts": 1})
    line.start()
    await line.wait_for(lambda: line.status().get("state") == "RUNNING")
    async with channel_to(line.broker.url) as channel:
        await channel.queue_delete(queue=f"{line.name}.dead")
        await line.send([b"garbage"])
        await line.wait_for(lambda: "no queue takes it" in line.status()["troubles"].get("dead letters", ""))
        assert line.in_hand() == 1
        # Others pass.
        await line.send([change(line.name, START, "INSERT", row(1))])
        await line.wait_for(lambda: line.count("applied") == 1)
        await channel.queue_declare(queue=f"{line.name}.dead", durable=True)
    await line.wait_settled()
    assert await line.ready(".dead") == 1


async def test_a_flood_of_poison_leaves_room_for_what_can_be_applied(line: Line) -> None:
    # Ten minutes until the first retry: without a bound the twelve would fill the prefetch for that long.
    line.configure(rabbitmq={"prefetch": 8}, retry={"attempts": 1, "delay": 600})
    await line.make_queues()
    await line.send([b"garbage %d" % number for number in range(12)])
    line.start()
    await line.send([change(line.name, START, "INSERT", row(1))])
    await line.wait_for(lambda: line.count("applied") == 1)
    assert (line.status()["held"], line.count("dead_letters")) == (4, 8)
    line.stop()
    assert (await line.ready(), await line.ready(".dead")) == (4, 8)


async def test_a_broker_short_of_memory_still_gets_its_acknowledgements(
    make_line: Callable[[RabbitmqServer], Line], rabbitmq: RabbitmqServer
) -> None:
    line = make_line(rabbitmq)
    line.configure(retry={"attempts": 0}, rabbitmq={"prefetch": 10, "timeout": 1.0})
    await line.make_queues()
    good = [change(line.name, START + 10 * number, "INSERT", row(number)) for number in range(200)]
    # Two dead letters: the first makes the broker block the connection that publishes.
    await line.send([b"garbage", b"garbage", *good])
    rabbitmq.raise_memory_alarm()
    try:
        line.start()
        await line.wait_for(lambda: line.count("applied") == 200)
        failures = "a dead letter can't be published; its message stays in the queue"
        await line.wait_for(lambda: len(line.events(failures)) >= 4)
        assert line.in_hand() == 2
    finally:
        rabbitmq.end_memory_alarm()
    await line.wait_settled()
    # What was sent before the broker blocked us may be there twice; nothing is sent while it does.
    assert 2 <= await line.ready(".dead") <= 3
    line.stop()


async def test_queues_that_the_consumer_makes_never_drop_what_is_handed_back(line: Line) -> None:
    line.configure()
    line.start()
    await line.wait_for(lambda: line.status().get("state") == "RUNNING")
    line.stop()
    async with channel_to(line.broker.url) as channel:
        for queue in (line.name, f"{line.name}.dead", f"{line.name}.dead.operator"):
            # Refused by the broker when it has other arguments; the daemon makes the first with the same.
            arguments = {"x-queue-type": "quorum", "x-delivery-limit": 2_000_000_000}
            await channel.queue_declare(queue=queue, durable=True, arguments=arguments)


async def test_a_scan_that_fails_leaves_each_letter_in_its_queue_as_it_was(line: Line) -> None:
    line.configure()
    await line.make_queues()
    dead_letters = DeadLetterQueues(load_settings(line.config))
    async with channel_to(line.broker.url) as channel:
        # It expires and belongs to an account: a dead letter must do neither.
        properties = aiormq.spec.Basic.Properties(
            content_type="text/plain", expiration="86400000", user_id="guest", headers={"headrace-id": "a#1", "more": 7}
        )
        await channel.basic_publish(b"v", routing_key=f"{line.name}.dead", properties=properties)
        await channel.queue_delete(queue=line.name)
        with pytest.raises(BrokerError, match="no queue takes it"):
            await dead_letters.scan()

        async def handed_back() -> bool:
            return await dead_letters.counts() == (1, 0)

        await until(handed_back)  # the broker has to notice the end of the connection
        assert line.in_hand(".dead") == 0
        await channel.queue_declare(queue=line.name, durable=True, arguments={"x-queue-type": "quorum"})
        assert await dead_letters.scan() == 1
        assert await dead_letters.scan() == 0
        sent = await channel.basic_get(line.name)
        found = sent.header.properties
        assert (found.content_type, found.expiration, found.user_id) == ("text/plain", None, None)
        assert found.delivery_mode == 2
        wanted = {"headrace-id": "a#1", "more": 7, "headrace-dead-resends": 1, "x-delivery-count": 0}
        assert found.headers == wanted
    await dead_letters.close()
