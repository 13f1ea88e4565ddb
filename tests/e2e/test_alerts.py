"""The alert rules, played to by promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from devstack import Stack
from devstack.servers import PROMETHEUS

pytestmark = [pytest.mark.server, pytest.mark.long]

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"


def run(stack: Stack, *words: str) -> str:
    done = subprocess.run(
        [*PROMETHEUS.promtool(stack.cache), *words], cwd=RULES, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("file", ["headrace.rules.yml", "headrace-spark.rules.yml"])
def test_promtool_takes_the_rules(stack: Stack, file: str) -> None:
    assert "SUCCESS" in run(stack, "check", "rules", file)


def test_what_a_consumer_missed_while_it_was_stopped_is_reported(stack: Stack) -> None:
    assert "SUCCESS" in run(stack, "test", "rules", "headrace-spark.test.yml")


def test_each_alert_fires_for_its_own_series_and_for_no_other(stack: Stack) -> None:
    assert "SUCCESS" in run(stack, "test", "rules", "headrace.test.yml")
    text = (RULES / "headrace.test.yml").read_text()
    for line in (RULES / "headrace.rules.yml").read_text().splitlines():
        if "alert:" in line:
            name = line.split()[-1]
            assert text.count(f"alertname: {name}}}") == 1, f"{name} is not told of what is well"
            assert text.count(f"alertname: {name}\n") == 1, f"{name} is told once"
