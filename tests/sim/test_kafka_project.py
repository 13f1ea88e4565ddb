"""The project's own tests of Kafka's adapter, against the model: contracts of sinks and state stores, and replay."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cli.wiring import ADAPTERS
from headrace.lease import Lease
from headrace.ports.sink import Sink, SinkRouting, SinkUse
from headrace.ports.state import StateStore
from tests.contracts.test_sinks import *  # noqa: F403
from tests.contracts.test_state_stores import *  # noqa: F403
from tests.integration.test_kafka_replay import *  # noqa: F403
from tests.sim.kafka_models import ProxiedModel, proxied

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedModel]:
    with proxied() as model:
        yield model


@pytest.fixture
def name() -> str:
    return f"contract{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_sink(kafka: ProxiedModel, name: str) -> Any:
    adapter = ADAPTERS.sink_adapter("kafka")
    raw = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "create_topics": True}
    settings = adapter.section.model_validate(raw)

    def make(lease: Lease | None = None) -> Sink:
        made = adapter.sink(settings, SinkUse("shop", lease or Lease(), SinkRouting(("shop",))))
        made.topic, made.value = name, lambda number: b"value %d" % number  # type: ignore[attr-defined]
        return made

    return make


@pytest.fixture
def make_state(kafka: ProxiedModel, name: str) -> Any:
    adapter = ADAPTERS.sink_adapter("kafka")
    raw = {"type": "kafka", "bootstrap_servers": kafka.bootstrap_servers, "delivery": "exactly_once"}
    settings = adapter.section.model_validate({**raw, "state_topic": f"{name}-state"})

    def make() -> StateStore:
        return adapter.state_store(settings, "shop")

    return make
