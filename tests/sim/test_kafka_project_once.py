"""The project's own tests of exactly once, against the model: what they ask of a real broker, the model has too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.test_exactly_once import *  # noqa: F403
from tests.integration.test_exactly_once_faults import *  # noqa: F403
from tests.sim.kafka_models import ProxiedModel, proxied

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedModel]:
    with proxied() as model:
        yield model
