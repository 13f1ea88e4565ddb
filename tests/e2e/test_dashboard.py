"""The dashboard and the alerts with a real Prometheus, over an outage of Kafka: each panel shows something."""

from __future__ import annotations

import json
import os
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests import board
from tests.browser import opened
from tests.proxy import Proxy
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = [pytest.mark.server, pytest.mark.long]

DEPLOY = Path(__file__).parents[2] / "deploy"
PICTURES = "HEADRACE_PICTURES"
"""A variable of the environment that names a folder: docs/images/{dashboard,alerts}.png are made with it."""
MORE = """[heartbeat]
interval = "500ms"
[message]
format = "debezium"
debezium.schemas = false
"""
PER_TRANSACTION = 50


@pytest.fixture
def resources() -> Iterator[ExitStack]:
    with ExitStack() as held:
        yield held


def ask(url: str, path: str, **parameters: str) -> Any:
    """The data of an answer of Prometheus' API."""
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
        return json.load(answer)["data"]


def reported(url: str) -> dict[str, str]:
    """The state of each alert."""
    groups = ask(url, "rules")["groups"]
    return {rule["name"]: rule["state"] for group in groups for rule in group["rules"]}


async def test_each_panel_has_data_of_a_real_daemon_and_an_outage_fires_its_alert(
    stack: Stack, mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess],
    resources: ExitStack, tmp_path: Path,
) -> None:  # fmt: skip
    def grow(transactions: int) -> None:
        for _ in range(transactions):
            execute("INSERT INTO t (name) SELECT name FROM t LIMIT 5000")

    cluster = stack.kafka(brokers=1)
    execute("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(200))")
    execute("INSERT INTO t (name) VALUES " + ", ".join(["(REPEAT('a', 100))"] * 5000))
    grow(120)
    sink = f'type = "kafka"\nbootstrap_servers = "{cluster.bootstrap_servers}"'
    link = resources.enter_context(Proxy(mysql.host, mysql.port))
    # So that a snapshot and a backlog take a while on any machine: Prometheus looks once a second.
    link.limit(5_000_000)
    process = daemon(shop=destination_toml(link, schema, sink, snapshot="initial", more=MORE))
    prometheus = stack.prometheus(
        [f"127.0.0.1:{process.port}"], [DEPLOY / "prometheus" / "headrace.rules.yml"], name="prometheus-board"
    )
    begun = time.time()
    process.start()
    process.wait_state("shop", "STREAMING")

    def asked(expression: str) -> board.Series:
        answer = ask(
            prometheus.url, "query_range", query=expression.replace("$destination", ".*"), start=f"{begun:.0f}",
            end=f"{time.time():.0f}", step="1",
        )  # fmt: skip
        series: board.Series = answer["result"]
        return series

    rows = "INSERT INTO t (name) VALUES " + ", ".join(["(REPEAT('b', 100))"] * PER_TRANSACTION)
    with pymysql.connect(**mysql.connection("root"), database=schema, autocommit=True) as writer:

        def write_until(condition: Callable[[], bool], limit: float) -> None:
            deadline = time.monotonic() + limit
            while not condition():
                assert time.monotonic() < deadline, reported(prometheus.url)
                with writer.cursor() as cursor:
                    cursor.execute(rows)
                time.sleep(0.02)  # the rate of the writer

        write_until(lambda: time.time() - begun > 30, 60)
        cluster.kill()
        write_until(lambda: reported(prometheus.url)["HeadraceNotHealthy"] == "firing", 240)
        groups = ask(prometheus.url, "rules")["groups"]
        grow(120)
        cluster.start()
        process.wait_state("shop", "STREAMING", 60)
        eventually(lambda: asked('headrace_backlog_eta_seconds{destination="shop"} > 0'), 120)
        write_until(lambda: reported(prometheus.url)["HeadraceNotHealthy"] == "inactive", 60)
        write_until(lambda: process.health()[1]["destinations"]["shop"]["lag_seconds"] < 5, 60)
    firing = [rule for group in groups for rule in group["rules"] if rule["state"] == "firing"]
    assert "shop" in firing[0]["alerts"][0]["annotations"]["summary"]
    layout = json.loads((DEPLOY / "grafana" / "headrace.json").read_text())
    found: dict[int, list[board.Series]] = {}
    for panel in layout["panels"]:
        found[panel["id"]] = [asked(target["expr"]) for target in panel["targets"]]
        for target, series in zip(panel["targets"], found[panel["id"]], strict=True):
            assert series, f"{panel['title']}: {target['expr']} gives nothing"
    lags = [float(value) for _, value in asked('headrace_lag_seconds{destination="shop"}')[0]["values"]]
    assert max(lags) > 100, "the outage is seen in the lag"
    async with opened(stack.chromium().url) as page:
        for name, text, height in (
            ("dashboard", board.dashboard(layout, found), 1470),
            ("alerts", board.alerts(groups), 620),
        ):
            file = tmp_path / f"{name}.html"
            file.write_text(text)
            await page.size(1130, height)
            await page.go(file.as_uri())
            assert "no data" not in str(await page.value("document.body.innerText"))
            if folder := os.environ.get(PICTURES):
                (Path(folder) / f"{name}.png").write_bytes(await page.picture())
        assert page.errors == []
    assert process.terminate() == 0
