"""Adapters of a package that headrace has never heard of: that of docs/adapters.md, installed, and run by a daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import DaemonProcess, destination_toml, eventually
from tests.unit.test_docs import blocks

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adapters.md"
HEADRACE = (sys.executable, "-m", "headrace.cli.main")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has the package of the page installed, with the toys as its modules."""
    source, target = tmp_path_factory.mktemp("headrace-toys"), tmp_path_factory.mktemp("site")
    (project,) = blocks(PAGE, "toml")
    files = f'[tool.hatch.build.targets.wheel.force-include]\n"{ROOT / "tests" / "toys"}" = "toys"\n'
    (source / "pyproject.toml").write_text(f"{project}\n{files}")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, timeout=120)
    return {**os.environ, "PYTHONPATH": str(target), "TEST_PASSWORD": "canal"}


def test_the_page_shows_the_toys_as_they_are() -> None:
    toy = (ROOT / "tests" / "toys" / "sink.py").read_text()
    for block in blocks(PAGE, "python"):
        assert block in toy


def test_a_daemon_runs_with_adapters_of_a_package_that_is_installed(
    installed: dict[str, str],
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))")
    shelf, cellar = tmp_path / "shelf", tmp_path / "cellar"
    more = f'[message]\nformat = "toy"\nloud = true\n[state]\nstore = "cellar"\nfile = "{cellar}"'
    process = daemon(shop=destination_toml(mysql, schema, f'type = "toy"\nshelf = "{shelf}"', more=more))
    config = ("--config", str(process.folder / "headrace.toml"))

    def command(*words: str) -> str:
        done = subprocess.run(
            [*HEADRACE, *words], env=installed, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert {"sink.toy headrace-toys 1.0", "state.cellar headrace-toys 1.0"} <= set(command("version").splitlines())
    shown = json.loads(command("config", "show", *config))["destinations"]["shop"]
    assert (shown["sink"], shown["message"]["loud"], shown["state"]["file"]) == (
        {"type": "toy", "shelf": str(shelf)},
        True,
        str(cellar),
    )
    with (
        process.log.open("ab") as log,
        subprocess.Popen([*HEADRACE, "run", *config], env=installed, cwd=process.folder, stdout=log, stderr=log) as run,
    ):
        try:
            process.wait_state("shop", "STREAMING")
            execute("INSERT INTO t VALUES (1, 'a')")
            eventually(lambda: shelf.exists() and b"(1, 'A')" in shelf.read_bytes(), explain=process.log.read_text)
        finally:
            run.terminate()
        assert run.wait(30) == 0
    assert cellar.exists()
    assert shelf.read_text() == f"{schema} 0 INSERT {schema.upper()}.T [(1, 'A')]\n"
