"""The project's own tests of Kafka's topics and compressions, against the model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.kafka.settings import ClusterSettings
from tests.integration.test_kafka_topics import *  # noqa: F403
from tests.sim.kafka_models import ProxiedModel, ThreadedCluster, proxied, threaded

pytestmark = pytest.mark.long

# They want MySQL, or start brokers of their own with devstack.
del test_the_daemon_makes_a_topic_for_each_table  # noqa: F821
del test_check_reports_what_is_wrong_with_topics  # noqa: F821
del test_copies_that_do_not_fit_min_insync_replicas_are_reported  # noqa: F821
del test_resends_that_no_broker_answers_end_the_sink_in_time_also_where_they_wait_for_room  # noqa: F821


@pytest.fixture(scope="module")
def kafka() -> Iterator[ProxiedModel]:
    with proxied() as model:
        yield model


@pytest.fixture(scope="module")
def strict() -> Iterator[ThreadedCluster]:
    with threaded(ClusterSettings(auto_create_topics=False)) as model:
        yield model
