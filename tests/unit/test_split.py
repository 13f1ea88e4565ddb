"""The two sets of tests, what `scripts/test` runs and what `scripts/test long` runs: together they are all."""

from __future__ import annotations

import re

import pytest

from tests.collected import ROOT, collected
from tests.conftest import TOGETHER


def test_each_test_is_run_by_one_of_the_two_commands() -> None:
    script = (ROOT / "scripts" / "test").read_text()
    assert re.findall(r"^ *(?:long\) )?servers_and_tests -m (.+?)(?: ;;)?$", script, re.MULTILINE) == [
        '"not long"',
        '"long or hypothesis"',
    ]
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    assert {nodeid.partition("::")[0] for nodeid in collected()} == files


def test_the_marker_is_registered_and_neither_set_is_empty(pytestconfig: pytest.Config) -> None:
    assert any(line.startswith("long:") for line in pytestconfig.getini("markers"))
    assert set(collected().values()) == {True, False}


def test_unit_tests_are_never_long() -> None:
    assert not [nodeid for nodeid, long in collected().items() if long and nodeid.startswith("tests/unit/")]


def test_what_runs_in_one_worker_exists() -> None:
    assert [path for path in TOGETHER if not [*ROOT.glob(f"{path.rstrip('/')}*")]] == []
