"""The project's own tests of messages that are too large for their topic, against the model of Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.test_kafka_oversize import *  # noqa: F403
from tests.sim.kafka_models import ProxiedModel, proxied

pytestmark = pytest.mark.long

# They want a daemon and MySQL, and a request that neither the adapter nor the model has: AlterConfigs.
del test_the_daemon_cuts_a_large_statement_and_halts_at_a_large_row  # noqa: F821
del test_what_was_parked_is_sent_again_once_the_topic_takes_it  # noqa: F821


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedModel]:
    with proxied() as model:
        yield model
