"""Long searches by a daemon: the stream goes on beside them, and they end with whoever asked, and at a stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import prefork
from tests.proxy import Proxy
from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = pytest.mark.server

RATE = 150_000
"""Bytes a second of each connection to the source."""


def test_a_long_search_delays_neither_the_stream_nor_a_stop_and_ends_with_its_client(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path, tmp_path: Path
) -> None:
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, name LONGTEXT)", "FLUSH BINARY LOGS")
    for _ in range(100):
        mysql_site.run("INSERT INTO t (name) VALUES (REPEAT('x', 100000))")
    where = f"{datetime.now(UTC) + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"
    dumps = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'"
    with Proxy(mysql_site.server.host, mysql_site.server.port) as proxy:
        process = daemon(shop=destination_toml(proxy, mysql_site.schema, f'type = "jsonl"\npath = "{out}"')).start()
        process.wait_state("shop", "STREAMING")
        own = mysql_site.run(dumps)[0][0]
        proxy.limit(RATE)
        words = ["position", "set", "shop", where, "--yes", "--config", str(process.folder / "headrace.toml")]

        def ask(name: str) -> Any:
            with (tmp_path / name).open("wb") as said:
                return prefork.start(words, process.folder, {**os.environ, "TEST_PASSWORD": "canal"}, said, said)

        first = ask("first")
        status = process.wait("shop", lambda status: (status["search"] or {"done": 0})["done"] > 0)
        assert status["search"]["done"] < status["search"]["total"]
        code, text = process.command(*words[:-2])
        assert (code, "already running" in text) == (1, True), text
        mysql_site.run("INSERT INTO t (name) VALUES ('beside the search')")
        rows = status["rows"]
        beside = process.wait("shop", lambda status: status["rows"] > rows)
        assert (beside["state"], beside["search"] is None) == ("STREAMING", False)
        first.send_signal(signal.SIGINT)
        assert first.wait(5) == 130
        process.wait("shop", lambda status: status["search"] is None, 5)
        eventually(lambda: mysql_site.run(dumps)[0][0] == own)
        second = ask("second")
        process.wait("shop", lambda status: (status["search"] or {"done": 0})["done"] > 0)
        assert process.terminate() == 0
        assert second.wait(5) == 1
        assert "shop is stopped" in (tmp_path / "second").read_text()
        assert "not drained" not in process.log.read_text()
