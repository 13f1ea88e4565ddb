"""All tests as pytest collects them, each with whether it is marked `long`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_MARK = "collected "


_found: dict[str, bool] = {}


def note(items: list[pytest.Item]) -> None:
    """These are all: a run that has collected everything need not do it a second time."""
    _found.update((item.nodeid, item.get_closest_marker("long") is not None) for item in items)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin: prints each test's node id behind `long` or `short`."""
    for item in items:
        print(_MARK + ("long" if item.get_closest_marker("long") else "short"), item.nodeid)


def collected() -> dict[str, bool]:
    """Of each test in tests/, by its node id, whether it is long."""
    if not _found:
        plugins = ["-p", "tests.collected", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", *plugins, "--collect-only", "-q", "tests"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        for line in done.stdout.splitlines():
            if line.startswith(_MARK):
                length, _, nodeid = line.removeprefix(_MARK).partition(" ")
                _found[nodeid] = length == "long"
    return _found
