"""[sink.options] of Kafka: arguments of aiokafka's clients; and topics that brokers do not show yet."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from aiokafka.errors import KafkaError, TopicAlreadyExistsError
from pydantic import ValidationError

from headrace.adapters.kafka import topics
from headrace.adapters.kafka.connection import make_admin, make_consumer
from headrace.adapters.kafka.producer import make_producer
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.errors import SinkError, SinkRejected


def settings(**options: Any) -> KafkaSinkSettings:
    raw = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "options": options}
    return KafkaSinkSettings.model_validate(raw)


async def test_each_client_gets_those_that_it_has() -> None:
    given = settings(metadata_max_age_ms=60_000, fetch_max_wait_ms=70, retry_backoff_ms=30)
    producer = make_producer(given)
    consumer, admin = make_consumer(given, fetch_max_wait_ms=100, fetch_min_bytes=2), make_admin(given)
    for client in (producer.client, consumer._client, admin._client):
        assert (client._metadata_max_age_ms, client._retry_backoff) == (60_000, 0.03)
    assert (consumer._fetch_max_wait_ms, consumer._fetch_min_bytes) == (70, 2)
    for one in (producer, consumer):
        await one.stop()
    await admin.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"acks": 1}, "acks can't be set here: it is always all"),
        ({"enable_idempotence": False}, "enable_idempotence can't be set here: it is always true"),
        ({"compression_type": "lz4"}, "compression_type can't be set here: set compression"),
        ({"sasl_plain_password": "p"}, "sasl_plain_password can't be set here: set password"),
        ({"linger_ms": 5}, "linger_ms can't be set here: set linger in [queue]"),
        (
            {"metadata_max_age": 5},
            "metadata_max_age is no argument of aiokafka's clients, did you mean metadata_max_age_",
        ),
        ({"linger": "x"}, "linger is no argument of aiokafka's clients"),
        ({"value_serializer": "x"}, "value_serializer can't be set in a file"),
        ({"metadata_max_age_ms": "5m"}, "metadata_max_age_ms should be as its default in aiokafka, 300000"),
        ({"acks": 1, "linger": 2}, "acks can't be set here: it is always all; linger is no"),
    ],
)
def test_what_can_t_be_set_is_an_error_that_says_what_to_do(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**options)
    (error,) = caught.value.errors()
    assert error["loc"] == ("options",)
    assert error["msg"].removeprefix("Value error, ").startswith(problem)


@pytest.mark.parametrize("create", [True, False])
async def test_a_topic_that_exists_and_is_not_shown_yet_is_waited_for_and_not_refused(
    create: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a broker that has just started: it refuses to make a topic that it does not show."""

    async def describe(*_: Any, **__: Any) -> tuple[Any, int, frozenset[int]]:
        return KafkaError, 0, frozenset()

    async def make(*_: Any) -> tuple[int, str]:
        return TopicAlreadyExistsError.errno, "it exists"

    monkeypatch.setattr(topics, "describe_topic", describe)
    monkeypatch.setattr(topics, "create_topic", make)
    raw = {"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "request_timeout": 0.4, "create_topics": create}
    sought = topics.Topics(KafkaSinkSettings.model_validate(raw), lambda _: 1)
    with pytest.raises(SinkError) as caught:
        await sought.ensure(MagicMock(), "shop")
    assert isinstance(caught.value, SinkRejected) is not create
    shown = "Kafka at 127.0.0.1:1 has the topic shop, and does not show its partitions yet"
    assert (str(caught.value) == shown) is create
