"""The RabbitMQ sink on a real broker: properties, what is missing, returns, full queues, rights."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

import pytest
from aio_pika.exceptions import ChannelNotFoundEntity

from headrace.errors import SinkError, SinkRejected
from headrace.model import MessageBatch
from headrace.ports.finding import Level
from headrace.ports.sink import SinkRouting
from tests import versions
from tests.rabbit import connected_to, ids, last_words, numbered, sink_to

pytestmark = pytest.mark.server


@pytest.fixture(params=versions.RABBITMQ)
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of the test's exchange and queue."""
    return f"x{abs(hash(request.node.nodeid)) % 10**9}"


async def test_a_message_carries_id_headers_key_and_time_and_lasts(rabbitmq: Any, name: str) -> None:
    large = bytes(i % 251 for i in range(400_000))  # more than a frame
    batch = MessageBatch(
        f"{name}.shop",
        5,
        [b'{"id": 1}', None, large],
        [[("headrace-id", b"a:1#%d" % i), ("headrace-pos", b"%d" % i)] for i in range(3)],
        keys=[b"k1", b"k2", None],
        commit_time_us=1_700_000_000_500_000,
    )
    async with connected_to(rabbitmq.url) as broker:
        queue = await broker.queue(name, exchange=name, binding=f"{name}.*")
        sink = sink_to(rabbitmq, exchange=name)
        await sink.start()
        async with asyncio.timeout(10):
            await (await sink.publish(batch))
        await sink.close()
        first, tombstone, last = await broker.read(queue, lambda found: len(found) == 3)
    assert first.message_id == "a:1#0"
    assert first.content_type == "application/json"
    assert first.delivery_mode == 2
    assert int(first.timestamp.timestamp()) == 1_700_000_000
    assert first.routing_key == f"{name}.shop"
    assert first.headers == {"headrace-pos": "0", "headrace-partition": "5", "headrace-key": "k1"}
    assert (first.body, tombstone.body, last.body == large) == (b'{"id": 1}', b"", True)


async def test_a_quorum_queue_that_we_make_never_drops_what_consumers_hand_back(rabbitmq: Any, name: str) -> None:
    sink = sink_to(rabbitmq, exchange=name, declare=True, queue=name)
    await sink.start()
    await sink.close()
    async with connected_to(rabbitmq.url) as broker:
        # Refused by the broker when it has other arguments; the consumer's tests say the same of the consumer.
        await broker.queue(name, x_queue_type="quorum", x_delivery_limit=2_000_000_000)


async def test_thousands_of_messages_come_in_order_each_once(rabbitmq: Any, name: str) -> None:
    sink = sink_to(rabbitmq, exchange=name, declare=True, queue=name)
    await sink.start()
    async with asyncio.timeout(30):
        done = [await sink.publish(numbered(i, 500, name)) for i in range(0, 5000, 500)]
        await asyncio.gather(*done)
    await sink.close()
    assert len(asyncio.all_tasks()) == 1
    async with connected_to(rabbitmq.url) as broker:
        queue = await broker.channel.get_queue(name)
        assert queue.declaration_result.message_count == 5000
        assert ids(await broker.read(queue, lambda found: len(found) == 5000)) == list(range(5000))
        with pytest.raises(Exception, match="PRECONDITION_FAILED"):  # it is a quorum queue
            await broker.channel.declare_queue(name, durable=True, arguments={"x-queue-type": "classic"})


async def test_a_missing_exchange_is_named_at_the_start_and_by_check(rabbitmq: Any, name: str) -> None:
    with pytest.raises(SinkRejected, match=f"no exchange '{name}'") as caught:
        await sink_to(rabbitmq, exchange=name).start()
    assert "declare = true" in caught.value.remedy
    (problem,) = await sink_to(rabbitmq, exchange=name).check()
    assert f"no exchange '{name}'" in str(problem)
    assert await sink_to(rabbitmq, exchange=name, declare=True).check() == []
    (problem,) = await sink_to(rabbitmq, exchange=name).check()  # a check makes nothing
    sink = sink_to(rabbitmq, exchange=name, declare=True)
    await sink.start()
    await sink.close()
    assert await sink_to(rabbitmq, exchange=name).check() == []


async def test_an_exchange_of_another_type_is_not_declared_over(rabbitmq: Any, name: str) -> None:
    async with connected_to(rabbitmq.url) as broker:
        await broker.channel.declare_exchange(name, "fanout", durable=True)
    with pytest.raises(SinkRejected, match="PRECONDITION_FAILED") as caught:
        await sink_to(rabbitmq, exchange=name, declare=True).start()
    assert "exchange_type" in caught.value.remedy


async def test_an_exchange_that_goes_away_stops_the_sink_with_the_brokers_text(rabbitmq: Any, name: str) -> None:
    async with connected_to(rabbitmq.url) as broker:
        await broker.queue(name, exchange=name)
        sink = sink_to(rabbitmq, exchange=name)
        await sink.start()
        await (await sink.publish(numbered(0, 1, name)))
        await broker.channel.exchange_delete(name)
    done = await sink.publish(numbered(1, 1, name))
    with pytest.raises(SinkRejected, match=f"NOT_FOUND - no exchange '{name}'"):
        async with asyncio.timeout(10):
            await done
    with pytest.raises(SinkRejected):
        await sink.publish(numbered(2, 1, name))
    await sink.abort()


async def test_returned_messages_are_sent_again_and_then_the_sink_fails(rabbitmq: Any, name: str) -> None:
    sink = sink_to(rabbitmq, retry_delay=0.05)
    await sink.start()
    done = await sink.publish(numbered(0, 300, name))
    with pytest.raises(SinkRejected, match=rf"message 0 for {name} \(returned: NO_ROUTE\), 4 times"):
        async with asyncio.timeout(10):
            await done
    await sink.abort()


async def test_a_queue_that_appears_while_messages_are_tried_gets_all_of_them_in_order(
    rabbitmq: Any, name: str
) -> None:
    sink = sink_to(rabbitmq, retry_delay=0.2)
    await sink.start()
    done = await sink.publish(numbered(0, 300, name))
    async with connected_to(rabbitmq.url) as broker:
        while not sink._retries:  # noqa: ASYNC110 - until they came back
            await asyncio.sleep(0.01)
        queue = await broker.queue(name)
        async with asyncio.timeout(10):
            await done
        await sink.close()
        found = ids(await broker.read(queue, lambda found: found[-1].message_id == "299"))
    assert found == list(range(300))


async def test_without_mandatory_the_broker_drops_what_reaches_no_queue(rabbitmq: Any, name: str) -> None:
    sink = sink_to(rabbitmq, mandatory=False)
    await sink.start()
    async with asyncio.timeout(10):
        await (await sink.publish(numbered(0, 10, name)))
    await sink.close()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_full_queue_that_is_emptied_slowly_gets_all_in_order(rabbitmq: Any, name: str, kind: str) -> None:
    sink = sink_to(rabbitmq, retry_delay=0.05, retries=100)
    await sink.start()
    async with connected_to(rabbitmq.url) as broker:
        queue = await broker.queue(name, x_max_length=50, x_overflow="reject-publish", x_queue_type=kind)
        found: list[int] = []

        async def drain() -> None:
            while True:
                if (message := await queue.get(fail=False, timeout=None)) is None:
                    await asyncio.sleep(0.01)
                    continue
                await message.ack()
                found.append(int(message.message_id))

        async def fill() -> None:
            done = [await sink.publish(numbered(i, 100, name)) for i in range(0, 500, 100)]
            await asyncio.gather(*done)
            while not found or found[-1] != 499:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

        tasks = {asyncio.create_task(drain()), filling := asyncio.create_task(fill())}
        ended, _ = await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks - ended:
            task.cancel()
        await asyncio.wait(tasks, timeout=5)
        for task in ended:
            task.result()
        assert filling in ended, f"after {len(found)}: {found[-5:]}; {sink._retries._held[:3]}"
    await sink.close()
    assert last_words(found) == list(range(500))


async def test_an_account_without_rights_is_reported_with_the_missing_right(rabbitmq: Any, name: str) -> None:
    rabbitmq.add_user(name, "secret-word")
    rabbitmq.allow(name, "/", configure="", write="", read=".*")
    account = {"user": name, "password": "secret-word"}
    with pytest.raises(SinkRejected, match="ACCESS_REFUSED"):
        await sink_to(rabbitmq, exchange=name, declare=True, **account).start()
    sink = sink_to(rabbitmq, exchange="amq.topic", **account)
    await sink.start()
    done = await sink.publish(numbered(0, 1, name))
    with pytest.raises(SinkRejected, match="ACCESS_REFUSED") as caught:
        async with asyncio.timeout(10):
            await done
    assert f"set_permissions -p / {name}" in caught.value.remedy
    await sink.abort()


async def test_a_wrong_password_and_a_missing_virtual_host_are_distinguished(rabbitmq: Any) -> None:
    with pytest.raises(SinkRejected, match="refuses the account") as caught:
        await sink_to(rabbitmq, password="not-this-one").start()
    assert "not-this-one" not in str(caught.value)
    assert "user and password" in caught.value.remedy
    with pytest.raises(SinkRejected, match="vhost nowhere/at all not found") as caught:
        await sink_to(rabbitmq, virtual_host="nowhere/at all").start()
    assert "add_vhost" in caught.value.remedy
    rabbitmq.add_vhost("some/where")
    assert await sink_to(rabbitmq, virtual_host="some/where").check() == []


async def test_an_account_that_may_not_write_to_the_exchange_is_reported_and_nothing_is_published(
    rabbitmq: Any, name: str
) -> None:
    rabbitmq.add_user("reader", "secret")
    account = {"user": "reader", "password": "secret", "exchange": name}
    async with connected_to(rabbitmq.url) as broker:
        queue = await broker.queue(name, exchange=name)
        rabbitmq.allow("reader", "/", write="")
        (finding,) = await sink_to(rabbitmq, **account).check()
        assert re.search(f"ACCESS_REFUSED - (write )?access to exchange '{name}'", finding.sentence)
        assert "set_permissions -p / reader" in finding.remedy
        assert await sink_to(rabbitmq, **account).problem() == "", "which nothing is published for"
        rabbitmq.allow("reader", "/")
        assert await sink_to(rabbitmq, **account).check() == []
        again = await broker.channel.declare_queue(name, passive=True)
        assert (again.declaration_result.message_count, queue.name) == (0, name)
    rabbitmq.allow("reader", "/", write="")
    (finding,) = await sink_to(rabbitmq, user="reader", password="secret").check()
    assert "ACCESS_REFUSED" in finding.sentence, "the default exchange too"


async def test_every_server_is_tried(rabbitmq: Any) -> None:
    both = f"127.0.0.1:1,{rabbitmq.host}:{rabbitmq.port}"
    assert await sink_to(rabbitmq, hosts=both).check() == []
    with pytest.raises(SinkError, match=r"can't be reached \(127.0.0.1:1: .*failed.*; 127.0.0.1:2: "):
        async with asyncio.timeout(5):
            await sink_to(rabbitmq, hosts="127.0.0.1:1,127.0.0.1:2").start()


async def test_a_parked_message_is_sent_again_during_the_others(rabbitmq: Any, name: str) -> None:
    async with connected_to(rabbitmq.url) as broker:
        queue = await broker.queue(name)
        sink = sink_to(rabbitmq)
        await sink.start()
        done = await sink.publish(numbered(0, 50, name))
        async with asyncio.timeout(10):
            await sink.resend(numbered(99, 1, name))
            with pytest.raises(SinkRejected, match="NO_ROUTE"):
                await sink.resend(numbered(98, 1, f"{name}-nowhere"))
            await done
            await (await sink.publish(numbered(50, 1, name)))
        await sink.close()
        found = ids(await broker.read(queue, lambda found: len(found) == 52))
    assert sorted(found) == [*range(51), 99]


@pytest.mark.parametrize("there", [False, True], ids=["missing", "there"])
async def test_an_account_that_may_not_declare_is_reported_and_nothing_is_made_or_taken_away(
    server: Any, name: str, there: bool
) -> None:
    user, queue = f"{name}-user", f"{name}-queue"
    server.add_user(user, "secret")
    account = {"user": user, "password": "secret", "exchange": name, "declare": True, "queue": queue}
    if there:
        made = sink_to(server, **account)
        await made.start()
        await made.close()
    names = f"^({name}|{queue})$"
    for rights, refused in (
        ({"configure": "", "write": names, "read": names}, f"exchange '{name}'"),
        ({"configure": f"^{name}$", "write": names, "read": names}, f"queue '{queue}'"),
        ({"configure": names, "write": f"^{name}$", "read": names}, f"queue '{queue}'"),
        ({"configure": names, "write": names, "read": ""}, f"exchange '{name}'"),
        ({"configure": names, "write": f"^{queue}$", "read": names}, f"exchange '{name}'"),
        ({"configure": names, "write": names, "read": names}, ""),
    ):
        server.allow(user, "/", **rights)
        found = await sink_to(server, **account).check()
        assert len(found) == bool(refused), found
        for one in found:
            assert re.search(f"ACCESS_REFUSED - .*access to {refused}", one.sentence)
            assert f"set_permissions -p / {user}" in one.remedy
    async with connected_to(server.url) as broker:
        for what, called in (("exchange", name), ("queue", queue)):
            channel = await broker.connection.channel()
            missing = contextlib.nullcontext() if there else pytest.raises(ChannelNotFoundEntity)
            with missing:
                await getattr(channel, f"declare_{what}")(called, passive=True)


async def test_topic_permissions_are_tried_with_the_keys_that_are_known(server: Any, name: str) -> None:
    user = f"{name}-user"
    server.add_user(user, "secret")
    account = {"user": user, "password": "secret", "exchange": name}
    async with connected_to(server.url) as broker:
        await broker.queue(name, exchange=name)
        server.allow_topics(user, "/", name, write=r"^shop\.")
        assert await sink_to(server, SinkRouting(("shop.a", "shop.b")), **account).check() == []
        (finding,) = await sink_to(server, SinkRouting(("shop.a", "crm.b")), **account).check()
        assert finding.level is Level.WRONG
        assert "access to topic 'crm.b' in exchange" in finding.sentence
        assert f"set_topic_permissions -p / {user} {name}" in finding.remedy
        for routing, more in ((None, {}), (SinkRouting(("shop.a",)), {"routing_key": "{schema}.{table}"})):
            (finding,) = await sink_to(server, routing, **account, **more).check()
            assert finding.level is Level.WARNING
            assert "topic permissions hold for the account" in finding.sentence
        server.allow_topics(user, "/", name, write=".*")
        assert await sink_to(server, **account).check() == []
