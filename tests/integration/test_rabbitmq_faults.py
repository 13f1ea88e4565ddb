"""The RabbitMQ sink and a broker that is killed, frozen, out of memory, or behind TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from devstack.servers.base import Tls
from headrace.errors import SinkError
from tests import versions
from tests.certificates import Authority
from tests.rabbit import connected_to, ids, last_words, numbered, sink_to

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=versions.RABBITMQ)
def own(request: pytest.FixtureRequest, stack: Stack, authority: Authority) -> Iterator[Any]:
    """A broker that may be hurt; for TLS it wants certificates of its clients."""
    _, _, both = authority.make("server")
    server = stack.rabbitmq(kind=request.param, name=f"hurt-{request.param}", tls=Tls(both, authority.path))
    yield server
    server.thaw()
    server.kill()


@pytest.fixture
def broker(own: Any) -> Iterator[Any]:
    yield own
    own.thaw()
    if not own.running:
        own.start()


async def test_a_broker_killed_with_a_thousand_in_flight_loses_nothing(broker: Any) -> None:
    name = "killed"
    async with connected_to(broker.url) as reader:
        await reader.queue(name)
    broker.sync()  # the queue itself must outlive the kill
    batches = [numbered(i, 100, name, b"x" * 300) for i in range(0, 5000, 100)]
    confirmed = 0
    sink = sink_to(broker)
    await sink.start()

    async def publish() -> None:
        nonlocal confirmed
        waiting = []
        for batch in batches[confirmed:]:
            waiting.append(await sink.publish(batch))
            while waiting and waiting[0].done():
                await waiting.pop(0)
                confirmed += 1
                if confirmed == 10:
                    broker.kill()
        for one in waiting:
            await one
            confirmed += 1

    with pytest.raises(SinkError, match=r"connection to RabbitMQ at \S+:\d+ is lost"):
        async with asyncio.timeout(20):
            await publish()
    assert 10 <= confirmed < 50
    await sink.abort()
    broker.start()
    sink = sink_to(broker)
    await sink.start()
    async with asyncio.timeout(20):
        await publish()
    await sink.close()
    async with connected_to(broker.url) as reader:
        queue = await reader.channel.get_queue(name)
        found = ids(await reader.read(queue, lambda found: found[-1].message_id == "4999"))
    assert last_words(found) == list(range(5000))


async def test_a_frozen_broker_is_given_up_after_the_time_limit_and_gets_nothing_after_an_abort(broker: Any) -> None:
    async with connected_to(broker.url) as reader:
        await reader.queue("frozen")
    sink = sink_to(broker, request_timeout=1, max_in_flight=10_000)
    await sink.start()
    await (await sink.publish(numbered(0, 1, "frozen")))
    broker.freeze()
    with pytest.raises(SinkError, match="did not confirm a message within 1 s"):
        await asyncio.wait_for(_publish_all(sink, "frozen", 5000), 10)
    async with asyncio.timeout(3):
        await sink.abort()
    assert len(asyncio.all_tasks()) == 1
    with pytest.raises(SinkError, match="takes connections and does not answer"):
        async with asyncio.timeout(5):
            await sink_to(broker, request_timeout=1).start()
    broker.thaw()
    async with connected_to(broker.url) as reader:
        queue = await reader.channel.get_queue("frozen")
        await reader.channel.default_exchange.publish(_mark(), "frozen")
        found = await reader.read(queue, lambda found: found[-1].message_id == "-1")
    assert ids(found)[0] == 0
    assert len(found) < 3000  # the kernels' buffers hold some; what lay in ours is gone


def _mark() -> Any:
    import aio_pika

    return aio_pika.Message(b"", message_id="-1")


@pytest.mark.long
async def test_while_the_memory_alarm_lasts_the_sink_waits_and_then_goes_on(broker: Any) -> None:
    async with connected_to(broker.url) as reader:
        queue = await reader.queue("alarm")
        sink = sink_to(broker, request_timeout=3, heartbeat=1)
        await sink.start()
        await (await sink.publish(numbered(0, 1, "alarm")))
        broker.raise_memory_alarm()
        try:
            publishing = asyncio.ensure_future(_publish_all(sink, "alarm", 3000))
            await asyncio.sleep(4)  # longer than an answer may take: nothing may end the wait
            assert not publishing.done()
            assert sink._paused()
        finally:
            broker.end_memory_alarm()
        async with asyncio.timeout(20):
            await publishing
        assert not sink._paused()
        await sink.close()
        found = ids(await reader.read(queue, lambda found: found[-1].message_id == "3000"))
    assert found == list(range(3001))


async def _publish_all(sink: Any, name: str, size: int) -> None:
    done = [await sink.publish(numbered(i, 300, name, b"x" * size)) for i in range(1, 3001, 300)]
    await asyncio.gather(*done)


async def test_tls_with_an_authority_and_a_certificate_of_ours(
    broker: Any, authority: Authority, tmp_path: Path
) -> None:
    certificate, key, _ = authority.make("headrace")
    secure = {"hosts": f"{broker.host}:{broker.secure_port}", "tls": "required"}
    good = {**secure, "tls_ca": authority.path, "tls_certificate": certificate, "tls_key": key}
    async with connected_to(broker.url) as reader:
        queue = await reader.queue("tls")
        sink = sink_to(broker, **good)
        await sink.start()
        async with asyncio.timeout(10):
            await (await sink.publish(numbered(0, 500, "tls", b"x" * 3000)))
        await sink.close()
        assert ids(await reader.read(queue, lambda found: len(found) == 500)) == list(range(500))

    (problem,) = await sink_to(broker, **secure, tls_certificate=certificate, tls_key=key).check()
    assert "certificate verify failed" in str(problem)
    (tmp_path / "other").mkdir()
    (problem,) = await sink_to(broker, **{**good, "tls_ca": Authority(tmp_path / "other").path}).check()
    assert "certificate verify failed" in str(problem)
    (problem,) = await sink_to(broker, **secure, tls_ca=authority.path).check()  # none of ours
    assert "can't be reached" in str(problem)
    (tmp_path / "empty.pem").touch()
    (problem,) = await sink_to(broker, **{**good, "tls_ca": tmp_path / "empty.pem"}).check()
    assert "tls_ca" in str(problem)
    (problem,) = await sink_to(broker, tls="required").check()
    assert "can't be reached" in str(problem)
