"""The project's own tests of RabbitMQ's adapter, against the model: the contract of sinks, and what brokers do."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.cli.wiring import ADAPTERS
from headrace.lease import Lease
from headrace.ports.sink import Sink, SinkRouting, SinkUse
from tests.contracts.test_sinks import *  # noqa: F403
from tests.integration.test_rabbitmq import *  # noqa: F403
from tests.sim.rabbit_models import Listening, listening

pytestmark = pytest.mark.long


@pytest.fixture
async def rabbitmq() -> AsyncIterator[Listening]:
    async with listening() as server:
        yield server


@pytest.fixture
def server(rabbitmq: Listening) -> Listening:
    return rabbitmq


@pytest.fixture
def name() -> str:
    return f"contract{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_sink(rabbitmq: Listening, name: str) -> Any:
    adapter = ADAPTERS.sink_adapter("rabbitmq")
    login = {"type": "rabbitmq", "hosts": rabbitmq.address, "user": "guest", "password": "guest"}
    names = {"declare": True, "queue": name, "exchange": name, "exchange_type": "fanout"}
    settings = adapter.section.model_validate(login | names)

    def make(lease: Lease | None = None) -> Sink:
        made = adapter.sink(settings, SinkUse("shop", lease or Lease(), SinkRouting(("shop",))))
        made.topic, made.value = name, lambda number: b"value %d" % number  # type: ignore[attr-defined]
        return made

    return make
