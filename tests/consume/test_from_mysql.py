"""MySQL -> headrace -> RabbitMQ -> headrace-consume -> Elasticsearch, with the names of the search example itself."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from demo.catalog import CITIES, DATABASE
from demo.compare import compare, read_documents
from devstack.servers.rabbitmq import RabbitmqServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings
from tests import serve_sync
from tests.support import DaemonProcess, destination_toml

from .conftest import Line

pytestmark = pytest.mark.server

VHOST, ACCOUNT = "/xzb", "xzb"
EXCHANGE, TOPIC = "exchange.canal-jzo2o", "canal-mq-jzo2o-foundations"


@pytest.fixture
def source(mysql: Any, line: Line) -> Iterator[Any]:
    serve_sync.create(mysql)
    yield mysql
    mysql.sql(f"DROP DATABASE {DATABASE}")
    line.elastic.indices.delete(index=serve_sync.INDEX, ignore_unavailable=True)


async def test_services_are_found_by_name_and_the_documents_are_the_rows_after_kills(
    source: Any, rabbitmq: RabbitmqServer, line: Line, daemon: Callable[..., DaemonProcess]
) -> None:
    rabbitmq.add_vhost(VHOST)
    rabbitmq.add_user(ACCOUNT, ACCOUNT, VHOST)
    sink = f"""type = "rabbitmq"
hosts = "{rabbitmq.address}"
virtual_host = "{VHOST}"
user = "{ACCOUNT}"
password = "{ACCOUNT}"
exchange = "{EXCHANGE}"
declare = true
queue = "{TOPIC}"
binding = "{TOPIC}"
"""
    destination = destination_toml(source, DATABASE, sink)
    destination = destination.replace(f'topic = "{DATABASE}"', f'topic = "{TOPIC}"')
    process = daemon(shop=destination).start()
    process.wait_state("shop", "STREAMING")
    account = {"virtual_host": VHOST, "user": ACCOUNT, "password": ACCOUNT}
    line.configure(
        rabbitmq={**account, "queue": TOPIC, "prefetch": 20},
        duplicates={"store": "sqlite", "path": str(line.folder / "ids.db")},
    )
    line.start()
    cluster = Cluster(ElasticsearchSettings(hosts=[line.elastic_server.url]))
    chance = random.Random(3)
    rows = serve_sync.services(chance)
    serve_sync.fill(source, rows)
    await line.wait_for(lambda: len(read_documents(cluster, serve_sync.INDEX)) == len(rows))
    assert compare(serve_sync.read_rows(source), read_documents(cluster, serve_sync.INDEX)).differences == []
    assert serve_sync.count_found(cluster, "家庭保洁") == 2 * len(CITIES)

    def hurt(number: int) -> None:
        if number == 40:
            os.killpg(line.processes[-1].pid, signal.SIGKILL)
            line.start()
        if number == 80:
            process.kill()
            process.start()

    serve_sync.change(source, chance, 120, hurt)
    serve_sync.alter(source, chance)
    process.wait_state("shop", "STREAMING")
    await line.wait_for(
        lambda: compare(serve_sync.read_rows(source), read_documents(cluster, serve_sync.INDEX)).identical
    )
    assert line.count("dead_letters") == 0
    assert process.terminate() == 0
    line.stop()
    cluster.close()
