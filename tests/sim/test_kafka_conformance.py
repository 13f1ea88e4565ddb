"""The model of Kafka against a real one: the same requests, the same answers."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from aiokafka.protocol.admin import ApiVersionRequest

from sim.kafka.wire import VERSIONS
from tests.sim.kafka_models import listening
from tests.sim.kafka_raw import raw
from tests.sim.kafka_script import script

pytestmark = pytest.mark.server


async def test_the_same_script_has_the_same_answers(kafka: Any) -> None:
    prefix = f"conform-{uuid.uuid4().hex[:8]}"
    async with raw(kafka.bootstrap_servers) as real:
        expected = await script(real, prefix)
    async with listening() as cluster, raw(cluster.bootstrap_servers) as modelled:
        found = await script(modelled, prefix)
    assert found == expected


async def test_a_real_broker_knows_each_version_that_the_model_announces(kafka: Any) -> None:
    async with raw(kafka.bootstrap_servers) as real:
        offered = {key: (low, high) for key, low, high in (await real.send(ApiVersionRequest())).api_versions}
    for key, (low, high) in VERSIONS.items():
        assert offered[key][0] <= low <= high <= offered[key][1], key
