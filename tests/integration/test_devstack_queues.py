"""devstack's RabbitMQ and RocketMQ: messages go through, a crash keeps them, and nothing listens beyond loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import aiormq
import pytest

from devstack import DevstackError, Stack, ports
from devstack.servers.base import Tls
from devstack.servers.rabbitmq import RabbitmqServer
from devstack.servers.rocketmq import RocketmqServer
from tests.certificates import Authority

pytestmark = pytest.mark.server

SECONDS = 20


@contextlib.asynccontextmanager
async def channel_to(url: str, **options: Any) -> AsyncIterator[Any]:
    async with asyncio.timeout(SECONDS):
        connection = await aio_pika.connect(url, **options)
        async with connection:
            yield await connection.channel()


async def publish(channel: Any, queue: str, body: bytes) -> None:
    message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, queue, mandatory=True)


async def read(channel: Any, queue: Any) -> bytes:
    message = await queue.get(timeout=SECONDS)
    await message.ack()
    return bytes(message.body)


def descendants(pid: int) -> set[int]:
    """A process and all processes below it."""
    found, todo = {pid}, [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").iterdir():
            children = {int(word) for word in (task / "children").read_text().split()}
            todo += children - found
            found |= children
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


async def end(processes: set[int]) -> bool:
    """Whether all of them end by themselves within a moment: Erlang's helpers see that it is gone, and follow."""
    deadline = time.monotonic() + 5
    while not all(is_gone(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


def addresses(pid: int) -> set[str]:
    return {address for process in descendants(pid) for address, _ in ports.listeners(process)}


async def test_a_message_goes_through_rabbitmq_in_a_virtual_host_of_an_account(rabbitmq: RabbitmqServer) -> None:
    rabbitmq.add_vhost("shop/ü")
    rabbitmq.add_user("o'brien", 'se"cret\\', "shop/ü")
    async with channel_to(rabbitmq.url_of("shop/ü", "o'brien", 'se"cret\\')) as channel:
        queue = await channel.declare_queue("orders")
        await publish(channel, "orders", b"hello")
        assert await read(channel, queue) == b"hello"
    async with channel_to(rabbitmq.url) as channel:
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await channel.declare_queue("orders", passive=True)
    with pytest.raises(aiormq.exceptions.AMQPError):
        async with channel_to(rabbitmq.url_of(user="o'brien", password='se"cret\\')):
            pass


@pytest.fixture
def broker(rabbitmq: RabbitmqServer) -> Iterator[RabbitmqServer]:
    """The shared broker, which is well again after a test that did something to it."""
    yield rabbitmq
    rabbitmq.thaw()
    rabbitmq.start()
    rabbitmq.end_memory_alarm()


@pytest.mark.long
async def test_rabbitmq_keeps_durable_messages_through_a_kill_and_leaves_no_process(broker: RabbitmqServer) -> None:
    kinds = {"classic": {}, "quorum": {"x-queue-type": "quorum"}}
    async with channel_to(broker.url) as channel:
        for name, arguments in kinds.items():
            await channel.declare_queue(name, durable=True, arguments=arguments)
            await publish(channel, name, name.encode())
    broker.sync()
    port, processes = broker.port, descendants(broker.pid)
    assert addresses(broker.pid) == {"127.0.0.1"}
    broker.kill()
    assert len(processes) > 1
    assert await end(processes)
    broker.start()
    assert broker.port == port
    async with channel_to(broker.url) as channel:
        for name in kinds:
            queue = await channel.declare_queue(name, passive=True)
            assert await read(channel, queue) == name.encode()
    processes = descendants(broker.pid)
    broker.stop()
    assert await end(processes)


async def test_the_memory_alarm_blocks_publishers_until_it_ends(broker: RabbitmqServer) -> None:
    async with channel_to(broker.url) as channel:
        queue = await channel.declare_queue("orders")
        broker.raise_memory_alarm()
        assert broker.has_alarm()
        blocked = asyncio.create_task(publish(channel, "orders", b"late"))
        done, _ = await asyncio.wait([blocked], timeout=0.5)
        assert not done
        assert broker.log_since_start().count("memory resource limit alarm set") == 1
        broker.end_memory_alarm()
        assert not broker.has_alarm()
        await blocked
        assert await read(channel, queue) == b"late"


@pytest.mark.long
async def test_a_frozen_rabbitmq_answers_again_when_it_thaws(broker: RabbitmqServer) -> None:
    async with channel_to(broker.url) as channel:
        queue = await channel.declare_queue("orders")
        broker.freeze()
        waiting = asyncio.create_task(publish(channel, "orders", b"late"))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        broker.thaw()
        await waiting
        assert await read(channel, queue) == b"late"


@pytest.mark.long
def test_what_rabbitmq_refuses_is_said(broker: RabbitmqServer) -> None:
    with pytest.raises(DevstackError, match="undef"):
        broker.evaluate("no_such:thing()")
    with pytest.raises(DevstackError, match="no_such_vhost"):
        broker.allow("guest", "missing")
    broker.kill()
    with pytest.raises(DevstackError, match="rabbitmq could not evaluate 1"):
        broker.evaluate("1")


@pytest.mark.long
async def test_rabbitmq_over_tls_asks_for_the_clients_certificate(stack: Stack, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = stack.rabbitmq(name="rabbitmq-tls", tls=Tls(authority.make("server")[2], authority.path))
    trusting = ssl.create_default_context(cafile=authority.path)
    with pytest.raises((ssl.SSLError, ConnectionError, aiormq.exceptions.AMQPError)):
        async with channel_to(server.secure_url, ssl_context=trusting):
            pass
    certificate, key, _ = authority.make("client")
    trusting.load_cert_chain(certificate, key)
    async with channel_to(server.secure_url, ssl_context=trusting) as channel:
        queue = await channel.declare_queue("orders")
        await publish(channel, "orders", b"sealed")
        assert await read(channel, queue) == b"sealed"
    server.kill()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """RocketMQ's client, which at its import opens a log below the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        import rocketmq as module
    return module


def send(client: Any, server: RocketmqServer, topic: str, body: bytes, group: str | None = None) -> None:
    producer = client.Producer(client.ClientConfiguration(server.endpoints, client.Credentials()), (topic,))
    producer.startup()
    try:
        message = client.Message()
        message.topic, message.body = topic, body
        if group is not None:
            message.message_group = group
        producer.send(message)
    finally:
        producer.shutdown()


def receive(client: Any, server: RocketmqServer, topic: str, readers: str) -> Any:
    from rocketmq.v5.exception import InternalErrorException

    configuration = client.ClientConfiguration(server.endpoints, client.Credentials())
    consumer = client.SimpleConsumer(configuration, readers, {topic: client.FilterExpression()}, 5)
    consumer.startup()
    try:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            # the first requests can come before the proxy knows the client's settings, and fail
            with contextlib.suppress(InternalErrorException):
                for message in consumer.receive(1, 30):
                    consumer.ack(message)
                    return message
        raise AssertionError(f"no message came out of {topic}")
    finally:
        consumer.shutdown()


@pytest.mark.long
def test_a_fifo_message_goes_through_rocketmqs_proxy(rocketmq: RocketmqServer, client: Any) -> None:
    rocketmq.create_topic("orders", 2, "FIFO")
    rocketmq.create_group("readers", in_order=True)
    send(client, rocketmq, "orders", b"hello", "customer 7")
    message = receive(client, rocketmq, "orders", "readers")
    assert (message.body, message.message_group) == (b"hello", "customer 7")
    rocketmq.create_topic("plain")
    with pytest.raises(Exception, match="FIFO"):  # the type of a topic is kept to
        send(client, rocketmq, "plain", b"hello", "customer 7")


@pytest.mark.long
def test_rocketmq_keeps_messages_through_a_kill_and_leaves_no_process(rocketmq: RocketmqServer, client: Any) -> None:
    rocketmq.create_topic("stock")
    send(client, rocketmq, "stock", b"kept")
    first, port = rocketmq.pid, rocketmq.port
    assert addresses(first) == {"127.0.0.1"}
    rocketmq.kill()
    assert is_gone(first)
    rocketmq.start()
    assert rocketmq.port == port
    rocketmq.create_group("buyers")
    assert receive(client, rocketmq, "stock", "buyers").body == b"kept"


def test_a_listener_beyond_loopback_would_be_seen() -> None:
    with socket.socket() as wide, socket.socket(socket.AF_INET6) as six:
        wide.bind(("0.0.0.0", 0))
        wide.listen()
        six.bind(("::1", 0))
        six.listen()
        found = ports.listeners(os.getpid())
        assert ("0.0.0.0", wide.getsockname()[1]) in found
        assert ("::1", six.getsockname()[1]) in found
