"""The simulation itself: a seed replays, and some seeds of the present code find nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sim import plan as plans
from sim.__main__ import parse

ROOT = Path(__file__).parents[2]


def simulation(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "daemon", ROOT / "common", ROOT)))}
    command = [sys.executable, "-m", "sim", "--no-shrink", *words]
    return subprocess.run(command, cwd=ROOT, env={**env, **environment}, capture_output=True, text=True, timeout=500)


def test_a_seed_gives_the_same_trace_whatever_the_hashes_and_addresses_are() -> None:
    digests = set[str]()
    for number in range(2):
        done = simulation("--seed", "13", PYTHONHASHSEED=str(number), MOVES_ADDRESSES="x" * number * 3000)
        found = re.search(r"trace (\w+)", done.stdout)
        assert found is not None, done.stdout + done.stderr
        digests.add(found[1])
    assert len(digests) == 1


def test_seeds_find_nothing() -> None:
    done = simulation("--seeds", "1..12", "--seconds", "30", "--workers", "1")
    assert done.returncode == 0, done.stdout
    assert "12 seeds, 0 failed" in done.stdout


@pytest.mark.long
def test_more_seeds_find_nothing() -> None:
    done = simulation("--seeds", "1000..1200")
    assert done.returncode == 0, done.stdout


def test_a_plan_is_made_from_its_seed_alone() -> None:
    assert plans.make(5, 60) == plans.make(5, 60)
    assert plans.make(5, 60) != plans.make(6, 60)


@pytest.mark.parametrize("words", [["--seed", "1"], ["--seeds", "1..2", "--seconds", "10"], ["--trace"], []])
def test_the_options_that_docs_name_are_there(words: list[str]) -> None:
    parse(words)
