"""Kafka with TLS and SASL: every way in, for messages and for exactly once, and what is said of a wrong one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from headrace.adapters.kafka import oauth
from headrace.adapters.kafka.adapter import KafkaAdapter
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.sink import KafkaSink
from headrace.adapters.kafka.state_topic import StateTopic
from headrace.errors import HeadraceError, SinkError, SinkRejected, StateStoreError
from headrace.lease import Lease
from headrace.model import State
from headrace.ports.finding import Level
from headrace.ports.sink import SinkRouting, SinkUse
from tests import once
from tests.certificates import Authority
from tests.secured import PASSWORD, USER, Secured, TokenServer, restrict, secured, token_server

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def broker(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(stack, tmp_path_factory.mktemp("certificates")) as made:
        yield made


@pytest.fixture(autouse=True)
def no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    said = [record.getMessage() for record in caplog.get_records("call")]
    for secret in ("s3cr", "eyJ"):
        assert not any(secret in text for text in said)


@pytest.fixture(autouse=True)
async def connections_end() -> AsyncIterator[None]:
    """The client library does not wait until a connection that it gave up is closed; the loop ends with the test."""
    yield
    loop: Any = asyncio.get_running_loop()
    for transport in list(loop._transports.values()):
        transport.abort()
    for _ in range(3):
        await asyncio.sleep(0)


async def carry(broker: Secured, settings: KafkaSinkSettings) -> None:
    """Publishes, and reads it back by the listener that asks for nothing."""
    topic = once.new_name()
    sink = KafkaSink(settings.model_copy(update={"create_topics": True}), Lease())
    await sink.start()
    await (await sink.publish(once.batch(topic, (b"1", b"2"), 1)))
    await sink.close()
    assert await once.consumed(broker.plain, topic) == [b"1", b"2"]


async def refusal(settings: KafkaSinkSettings) -> SinkError:
    sink = KafkaSink(settings, Lease())
    with pytest.raises(SinkError) as caught:
        await sink.start()
    assert PASSWORD not in str(caught.value)
    return caught.value


WAYS = [
    ("tls", {}),
    ("sasl", {"sasl_mechanism": "PLAIN"}),
    ("sasl", {"sasl_mechanism": "SCRAM-SHA-256"}),
    ("sasl", {}),
    ("sasl_tls", {"sasl_mechanism": "PLAIN"}),
    ("sasl_tls", {"sasl_mechanism": "SCRAM-SHA-256"}),
    ("sasl_tls", {"sasl_mechanism": "SCRAM-SHA-512"}),
]


@pytest.mark.parametrize(("security", "more"), WAYS)
async def test_messages_come_through(broker: Secured, security: str, more: dict[str, Any]) -> None:
    await carry(broker, broker.settings(security, **more))


@pytest.mark.parametrize(("security", "more"), [WAYS[0], WAYS[3], WAYS[4]])
async def test_exactly_once_comes_through(broker: Secured, security: str, more: dict[str, Any]) -> None:
    name = once.new_name()
    settings = broker.settings(security, delivery="exactly_once", create_topics=True, **more)
    async with once.run(settings, name) as one:
        await (await one.publish(b"1", at=10))
        await one.sink.close()
    async with once.run(settings, name) as again:
        assert again.stored.position == once.position(10)
    assert await once.consumed(broker.plain, name) == [b"1"]


async def test_a_broker_that_asks_for_our_certificate_gets_it(broker: Secured) -> None:
    certificate, key, both = broker.authority.make("client")
    await carry(broker, broker.settings("tls", "MUTUAL", tls_certificate=certificate, tls_key=key))
    await carry(broker, broker.settings("tls", "MUTUAL", tls_certificate=both))
    error = await refusal(broker.settings("tls", "MUTUAL", request_timeout=3))
    assert error.remedy


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_said_to_be_one(broker: Secured, mechanism: str) -> None:
    error = await refusal(broker.settings("sasl_tls", sasl_mechanism=mechanism, password="wrong"))
    assert isinstance(error, SinkRejected)
    assert error.state is State.FAILED
    assert f"does not let relay in by {mechanism}" in str(error)
    assert "wrong" not in str(error)
    assert "check [sink] user, password" in error.remedy


async def test_a_wrong_password_is_said_to_be_one_also_by_the_state_topic(broker: Secured) -> None:
    settings = broker.settings("sasl_tls", password="wrong", delivery="exactly_once")
    topic = StateTopic(settings, "shop")
    with pytest.raises(StateStoreError, match="does not let relay in"):
        await topic.ensure()
    (problem,) = await topic.problems()
    assert "does not let relay in" in problem
    one = once.Run(settings, "shop")
    with pytest.raises(HeadraceError, match="does not let relay in"):
        await one.start()
    await one.sink.abort()


async def test_a_ca_that_did_not_sign_is_said_to_be_wrong(broker: Secured, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    error = await refusal(broker.settings("sasl_tls", tls_ca=other.path))
    assert isinstance(error, SinkRejected)
    assert "is not to be trusted" in str(error)
    error = await refusal(broker.settings("tls", tls_ca=None))
    assert "is not to be trusted" in str(error)


async def test_a_certificate_of_another_host_is_refused(broker: Secured) -> None:
    settings = broker.settings("tls")
    port = settings.bootstrap_servers[0].rpartition(":")[2]
    error = await refusal(settings.model_copy(update={"bootstrap_servers": (f"localhost:{port}",)}))
    assert "is not to be trusted" in str(error)
    assert "localhost" in str(error)


async def test_a_file_that_can_t_be_used_is_named(broker: Secured, tmp_path: Path) -> None:
    path = tmp_path / "some.pem"
    path.write_bytes(b"no certificate")
    for key in ("tls_ca", "tls_certificate"):
        with pytest.raises(SinkRejected, match=rf"\[sink\] {key}, .*some.pem, can't be used"):
            await KafkaSink(broker.settings("tls", **{key: path}), Lease()).start()
    assert "can't be used" in (await StateTopic(broker.settings("tls", tls_ca=path), "shop").problems())[0]


async def test_the_wrong_kind_of_listener_is_an_error_that_ends(broker: Secured) -> None:
    error = await refusal(broker.settings("tls", "SASL", request_timeout=3))
    assert 'listeners for tls = "required", sasl_mechanism = "none"' in error.remedy
    assert "can't be reached" in str(await refusal(broker.settings("sasl", "SASLTLS", request_timeout=3)))


async def test_sasl_where_the_listener_asks_for_none_is_not_taken_for_a_wrong_password(broker: Secured) -> None:
    plain = {"bootstrap_servers": broker.plain, "request_timeout": 3}
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        error = await refusal(broker.settings("sasl", sasl_mechanism=mechanism, password="wrong", **plain))
        assert f"the listener of Kafka at {broker.plain} asks for no SASL" in str(error)
        assert 'sasl_mechanism = "none"' in error.remedy
        assert "check [sink] user" not in error.remedy
    error = await refusal(broker.settings("tls", **plain))
    assert 'listeners for tls = "required"' in error.remedy


async def test_rights_on_a_topic_that_are_missing_are_named(broker: Secured) -> None:
    read, write, describe = 3, 4, 8
    for operation, user, words in (
        (write, USER, ""),
        (write, "somebody", "TopicAuthorizationFailedError"),
        (describe, USER, "(Write is not allowed)"),
        (read, USER, "(Write is not allowed)"),
    ):
        topic = once.new_name()
        await once.make_topic(broker.plain, topic)
        await restrict(broker.plain, topic, user, operation)
        found = await KafkaSink(broker.settings("sasl"), Lease(), routing=SinkRouting((topic,))).check()
        assert [one.level for one in found] == ([Level.WRONG] if words else [])
        for one in found:
            assert f"Kafka does not let us use the topic {topic}" in one.sentence
            assert words in one.sentence
            assert f"--operation Write --topic {topic})" in one.remedy


async def test_a_right_on_the_transactional_id_that_is_missing_is_named_and_nobody_is_fenced(broker: Secured) -> None:
    write, describe, transactional_id = 4, 8, 5
    settings = broker.settings("sasl", delivery="exactly_once")
    for user, operation, may in ((USER, write, True), (USER, describe, False), ("somebody", write, False)):
        name = once.new_name()
        probe = KafkaAdapter().probe(settings, SinkUse(name, Lease()))
        assert await probe.check() == [], "which nobody restricts"
        await restrict(broker.plain, f"headrace-{name}", user, operation, transactional_id)
        found = await KafkaAdapter().probe(settings, SinkUse(name, Lease())).check()
        assert [one.level for one in found] == ([] if may else [Level.WRONG])
        for one in found:
            assert one.sentence == f"the brokers do not let us use the transactional id headrace-{name}"
            assert f"--transactional-id headrace-{name})" in one.remedy
    plain = KafkaAdapter().probe(broker.settings("sasl"), SinkUse(name, Lease()))
    assert await plain.check() == [], "which has no transactions"
    name = once.new_name()
    async with once.run(settings.model_copy(update={"create_topics": True}), name) as one:
        await (await one.publish(b"1", at=10))
        assert await KafkaAdapter().probe(settings, SinkUse(name, Lease())).check() == []
        await (await one.publish(b"2", at=20))
        await one.sink.close()
    assert await once.consumed(broker.plain, name) == [b"1", b"2"]


# -- OAUTHBEARER ------------------------------------------------------------------------------------------------------


def by_token(broker: Secured, server: TokenServer, security: str = "sasl_tls", **more: Any) -> KafkaSinkSettings:
    return broker.settings(security, sasl_mechanism="OAUTHBEARER", oauth_token_url=server.url, **more)


@pytest.mark.parametrize("security", ["sasl", "sasl_tls"])
async def test_a_token_lets_us_in_and_is_used_more_than_once(broker: Secured, security: str) -> None:
    async with token_server() as server:
        settings = by_token(broker, server, security, oauth_scope="kafka write")
        await carry(broker, settings)
        name = once.new_name()
        exactly = settings.model_copy(update={"delivery": "exactly_once", "create_topics": True})
        async with once.run(exactly, name) as one:
            await (await one.publish(b"1", at=10))
            await one.sink.close()
        assert await once.consumed(broker.plain, name) == [b"1"]
        # one by each of the three settings: as they stand, with create_topics, and exactly once
        assert server.asked == [{"grant_type": "client_credentials", "scope": "kafka write"}] * 2


async def test_a_token_is_renewed_before_it_ends(broker: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(oauth.runtime, "monotonic", lambda: now)
    async with token_server() as server:
        provider = oauth.TokenProvider(by_token(broker, server))
        first = await provider.token()
        now += 0.79 * server.life
        assert await provider.token() == first
        now += 0.02 * server.life
        server.answer = (503, "busy")
        assert await provider.token() == first, "it still holds"
        server.answer = None
        server.life = 400
        assert await provider.token() != first
        now += 400
        server.answer = (503, "busy")
        with pytest.raises(oauth.NoToken, match=r"HTTP 503, and no JSON object"):
            await provider.token()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {"error": "invalid_client", "error_description": PASSWORD}), r"HTTP 401, invalid_client\)"),
        ((400, {"error": "s3cr=t,w+rd ü"}), r"HTTP 400\)"),
        ((302, {}), "HTTP 302"),
        ((200, "hello"), "no JSON object"),
        ((200, {"access_token": "a b\r\nc"}), "no access_token"),
        ((200, {"token": "x"}), "no access_token"),
        ((200, []), "no JSON object"),
    ],
)
async def test_an_answer_without_a_token_is_reported_without_secrets(
    broker: Secured, answer: tuple[int, Any], said: str
) -> None:
    async with token_server() as server:
        server.answer = answer
        provider = oauth.TokenProvider(by_token(broker, server))
        with pytest.raises(oauth.NoToken, match=said) as caught:
            await provider.token()
    assert PASSWORD not in str(caught.value)
    assert len(server.asked) == 1, "and no redirect was followed"


async def test_a_wrong_client_password_and_a_silent_server_end_the_start(broker: Secured) -> None:
    async with token_server() as server:
        error = await refusal(by_token(broker, server, password="wrong"))
        assert "gives no token to relay (HTTP 401, invalid_client)" in str(error)
        assert "oauth_token_url" in error.remedy
        server.delay = 5
        error = await refusal(by_token(broker, server, request_timeout=1))
        assert "no answer within 1 s" in str(error)
    error = await refusal(by_token(broker, server))
    assert "gives no token" in str(error)


async def test_a_token_that_the_broker_refuses_is_not_used_again(broker: Secured) -> None:
    async with token_server() as server:
        server.token_life = -60  # over before it is given
        settings = by_token(broker, server, create_topics=True)
        error = await refusal(settings)
        assert isinstance(error, SinkRejected)
        assert "does not let relay in by OAUTHBEARER" in str(error)
        server.token_life = 300
        await carry(broker, settings)
