"""Commands that a daemon does: whoever interrupts one waits for nothing, and the daemon learns of it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import control
from headrace.cli.main import main
from tests import prefork


class Daemon(ThreadingHTTPServer):
    """Answers /health, and no command."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked, self.gone = threading.Event(), threading.Event()
        self.search: dict[str, Any] | None = None


class _Handler(BaseHTTPRequestHandler):
    server: Daemon

    def do_GET(self) -> None:
        search = self.server.search
        if search is not None:
            search["done"] += 1
        page = json.dumps({"node": "n1", "destinations": {"shop": {"state": "STREAMING", "search": search}}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.set()
        self.connection.recv(1)
        self.server.gone.set()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    server = Daemon()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def config(daemon: Daemon, tmp_path: Path) -> Path:
    (tmp_path / "destinations").mkdir()
    (tmp_path / "destinations" / "shop.toml").write_text(
        '[source]\nhost = "127.0.0.1"\nport = 1\nuser = "u"\npassword = "p"\n[route]\ntopic = "t"\n'
        '[sink]\ntype = "null"\n'
    )
    (tmp_path / "headrace.toml").write_text(
        f'[daemon]\nnode = "n1"\n[state]\npath = "{tmp_path}/var/headrace.db"\n'
        f'[http]\nlisten = "127.0.0.1:{daemon.server_port}"\n'
    )
    return tmp_path / "headrace.toml"


@pytest.mark.parametrize("words", [["position", "set", "shop", "latest", "--yes"], ["restart", "shop"]])
def test_ctrl_c_ends_a_command_at_once_and_the_daemon_is_asked_no_more(
    daemon: Daemon, config: Path, tmp_path: Path, words: list[str]
) -> None:
    env = {**os.environ, "HEADRACE_TOKEN": "a-token-of-the-tests"}
    with (tmp_path / "out").open("wb") as out:
        process = prefork.start([*words, "--config", str(config)], tmp_path, env, out, out)
    assert daemon.asked.wait(20), (tmp_path / "out").read_text()
    process.send_signal(signal.SIGINT)
    assert process.wait(3) == 130
    assert daemon.gone.wait(3)


def test_a_daemon_whose_search_comes_no_further_is_asked_no_more(
    daemon: Daemon, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "a-token-of-the-tests")
    monkeypatch.setattr(control, "ANSWER", 1.0)
    monkeypatch.setattr("headrace.cli.position_set._POLL_UNSEEN", 0.1)
    daemon.search = {"file": "b.000001", "done": 1, "total": 400}
    late = threading.Timer(3, lambda: setattr(daemon, "search", None))
    late.start()
    assert main(["position", "set", "shop", "latest", "--yes", "--config", str(config)]) == 1
    assert late.finished.is_set(), "it was asked while it came further"
    late.join()
    assert "has not come further within 1 s" in capsys.readouterr().err
    assert daemon.gone.wait(3)
