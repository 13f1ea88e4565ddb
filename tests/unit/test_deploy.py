"""What is shipped for Prometheus and Grafana names metrics that there are."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.cluster.cluster import Cluster
from headrace.destination.status import DestinationStatus
from headrace.http.facts import Facts
from headrace.http.metrics import Metrics
from headrace.model import Position
from headrace.ports.lock import ClusterCounts
from tests.handles import handles_of

DEPLOY = Path(__file__).parents[2] / "deploy"
_SUFFIXES = ("", "_bucket", "_sum", "_count", "_total")


def metrics() -> set[str]:
    status = DestinationStatus("d")
    status.stored.note(Position("u", "mysql-bin.000001", 4, commit_time_us=1))
    facts = Facts(handles_of({"d": status}), "node", cluster=Mock(spec=Cluster, counts=ClusterCounts("zookeeper")))
    printed = asyncio.run(Metrics(facts).text()).decode()
    return {metric.name + suffix for metric in text_string_to_metric_families(printed) for suffix in _SUFFIXES}


@pytest.mark.parametrize(
    "file", ["grafana/headrace.json", "prometheus/headrace.rules.yml", "prometheus/headrace.test.yml"]
)
def test_each_metric_of_a_dashboard_or_an_alert_exists(file: str) -> None:
    named = set(re.findall(r"\bheadrace_\w+", (DEPLOY / file).read_text()))
    assert len(named) > 5
    assert named <= metrics()


def test_each_panel_of_the_dashboard_has_a_query_and_a_place_of_its_own() -> None:
    board = json.loads((DEPLOY / "grafana" / "headrace.json").read_text())
    panels = board["panels"]
    assert all(panel["targets"] and panel["title"] for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
