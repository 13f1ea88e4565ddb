"""Fixtures of the end-to-end tests: the chain of the demo, with a topic and an index of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from demo import catalog
from demo.compare import INDEX
from demo.pipeline import Pipeline
from devstack import Stack


@pytest.fixture
def pipeline(stack: Stack, mysql: Any, kafka: Any, elastic_server: Any) -> Iterator[Pipeline]:
    mysql.sql("DROP DATABASE IF EXISTS headrace")  # the heartbeat row of another test's destination of this name
    topic = f"shop-{secrets.token_hex(4)}"
    with Pipeline(stack, mysql, kafka, elastic_server, stack.directory / topic, topic) as made:
        yield made
        made.daemon.kill()
        made.consumer.kill()
        for index in (INDEX, f"headrace-rows.{INDEX}"):
            made.cluster.call("DELETE", (index,), ignore_unavailable="true")
    for schema in (catalog.DATABASE, "headrace"):
        mysql.sql(f"DROP DATABASE IF EXISTS {schema}")
