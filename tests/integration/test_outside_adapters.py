"""Adapters of a package that headrace has never heard of: that of docs/adapters.md, installed, and run by a daemon."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def command(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run([*HEADRACE, *words], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(process: DaemonProcess, environment: dict[str, str]) -> Iterator[None]:
    """A daemon of an environment of its own."""
    words = [*HEADRACE, "run", "--config", str(process.folder / "headrace.toml")]
    with process.log.open("ab") as log, subprocess.Popen(words, env=environment, cwd=process.folder, stderr=log) as run:
        try:
            yield
        finally:
            run.terminate()
        assert run.wait(30) == 0


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

    assert {"sink.toy headrace-toys 1.0", "state.cellar headrace-toys 1.0"} <= set(
        command(installed, "version").splitlines()
    )
    assert '"shelf"' in command(installed, "config", "schema")
    config = command(installed, "config", "show", "--config", str(process.folder / "headrace.toml"))
    shown = json.loads(config)["destinations"]["shop"]
    assert shown["sink"] == {"type": "toy", "shelf": str(shelf)}
    assert (shown["message"]["loud"], shown["state"]["file"]) == (True, str(cellar))
    with running(process, installed):
        process.wait_state("shop", "STREAMING")
        execute("INSERT INTO t VALUES (1, 'a')")
        eventually(lambda: shelf.exists() and b"(1, 'A')" in shelf.read_bytes(), explain=process.log.read_text)
    assert cellar.exists()
    assert shelf.read_text() == f"{schema} 0 INSERT {schema.upper()}.T [(1, 'A')]\n"


class Registry(socketserver.ThreadingTCPServer):
    """Has a number for each table schema that it is asked for, in the order they come; answers while it is `open`, and
    none while it is `broken`."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.known: list[str] = []
        self.asked, self.broken, self.open = 0, True, threading.Event()
        self.open.set()


class Asked(socketserver.StreamRequestHandler):
    server: Registry

    def handle(self) -> None:
        asked = self.rfile.readline().decode().strip()
        if asked not in self.server.known:
            self.server.known.append(asked)
        self.server.asked += 1
        self.server.open.wait(20)
        if not self.server.broken:
            self.wfile.write(b"%d\n" % self.server.known.index(asked))


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_rows_wait_for_what_a_format_asks_and_none_is_lost_when_that_fails(
    installed: dict[str, str],
    mysql: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    registry: Registry,
    tmp_path: Path,
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    execute("INSERT INTO t VALUES (1)")
    shelf = tmp_path / "shelf"
    address = "{}:{}".format(*registry.server_address)
    text = destination_toml(
        mysql,
        schema,
        f'type = "toy"\nshelf = "{shelf}"',
        more=f'[message]\nformat = "toy"\nregistry = "{address}"',
        snapshot="initial",
    )
    process = daemon(shop=text)

    def rows() -> list[str]:
        lines = shelf.read_text().splitlines() if shelf.exists() else []
        return [line.partition(" 0 ")[2].replace(f"{schema}.", "") for line in lines]

    def come(*more: str) -> None:
        expected.extend(more)
        eventually(lambda: len(rows()) >= len(expected), explain=process.log.read_text)
        assert rows() == expected

    expected: list[str] = []
    with running(process, installed):
        # the snapshot's rows
        process.wait_state("shop", "FAILED")
        shop = process.health()[1]["destinations"]["shop"]
        assert shop["reason"] == "format"
        assert f"[message] format can't prepare for the table {schema}.t (IncompleteReadError: " in shop["message"]
        assert not rows()
        registry.broken = False
        come("0 INSERT t [(1,)]")
        # a slow answer: neither the rows that it is about nor those after them go out before it
        registry.open.clear()
        execute("CREATE TABLE u (name VARCHAR(9) PRIMARY KEY)")
        asked = registry.asked
        execute("INSERT INTO t VALUES (2)")
        execute("INSERT INTO u VALUES ('a')")
        execute("INSERT INTO t VALUES (3)")
        eventually(lambda: registry.asked > asked)
        come("0 INSERT t [(2,)]")
        registry.open.set()
        come("1 INSERT u [('a',)]", "0 INSERT t [(3,)]")
        # another schema, whose preparation fails at first
        asked, registry.broken = registry.asked, True
        execute("ALTER TABLE t ADD COLUMN n INT")
        execute("INSERT INTO t VALUES (4, 4), (5, 5)")
        execute("INSERT INTO u VALUES ('b')")
        eventually(lambda: registry.asked >= asked + 2, explain=process.log.read_text)
        registry.broken = False
        come("2 INSERT t [(4, 4), (5, 5)]", "1 INSERT u [('b',)]")
    assert registry.known == [f"{schema}.t id", f"{schema}.u name", f"{schema}.t id n"]
