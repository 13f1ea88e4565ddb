"""How near the position is to being purged: seconds, bytes, and a warning before it happens."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from devstack.ports import free_port
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl
from tests.versions import long

pytestmark = pytest.mark.server

Make = Callable[..., DaemonProcess]


def metric(process: DaemonProcess, name: str) -> float | None:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f'headrace_binlog_retention_{name}{{destination="shop"}}'):
                return float(line.split()[1])
    return None


@pytest.mark.parametrize("kind", ["mysql", *long("mariadb")])
def test_a_destination_that_falls_behind_is_warned_of_before_its_binlog_is_purged(
    kind: str, stack: Stack, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    make: Any = stack.mysql if kind == "mysql" else stack.mariadb
    server = make(None, "--binlog-expire-logs-seconds=20", name=f"expiring-{kind}", server_id=501)
    try:
        server.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY)")
        good = f'type = "jsonl"\npath = "{out}"'
        source = "retention_warning = 0.9"
        process = daemon(shop=destination_toml(server, "shop", good, source=source)).start()
        process.wait_state("shop", "STREAMING")
        server.sql("INSERT INTO shop.t VALUES (1)")
        eventually(lambda: len(read_jsonl(out)) == 1)
        process.wait("shop", lambda s: s["retention"]["seconds"] == 20)
        assert metric(process, "seconds") == 20
        assert process.terminate() == 0

        # The sink is away, so nothing is read, and the position stays in a file that is no longer the newest.
        file = process.folder / "destinations" / "shop.toml"
        away = f'type = "kafka"\nbootstrap_servers = "127.0.0.1:{free_port()}"\nrequest_timeout = "1s"'
        file.write_text(destination_toml(server, "shop", away, source=source))
        server.sql("INSERT INTO shop.t VALUES (2); FLUSH BINARY LOGS; INSERT INTO shop.t VALUES (3)")
        process.start()
        seen = process.wait("shop", lambda s: s["retention"]["warning"] != "", 60)
        assert "may purge the binlog of our position" in seen["retention"]["warning"]
        assert 0 <= seen["retention"]["seconds"] < 18
        assert seen["retention"]["bytes"] > 0
        assert metric(process, "bytes") is not None
        assert '"retention is running out"' in process.log.read_text()

        # Back again, it catches up, and the warning goes.
        file.write_text(destination_toml(server, "shop", good, source=source))
        process.wait_state("shop", "STREAMING", 30)
        eventually(lambda: len(read_jsonl(out)) == 3)
        process.wait("shop", lambda s: s["retention"]["warning"] == "" and s["troubles"] == {})
        assert process.terminate() == 0
    finally:
        server.kill()


def test_a_source_that_purges_nothing_has_no_seconds_and_its_bytes_warn(
    stack: Stack, daemon: Make, tmp_path: Path
) -> None:
    server = stack.mysql(None, "--binlog-expire-logs-seconds=0", name="keeping", server_id=502)
    try:
        server.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY)")
        out = tmp_path / "out.jsonl"
        text = destination_toml(server, "shop", f'type = "jsonl"\npath = "{out}"')
        process = daemon(shop=text).start()
        process.wait_state("shop", "STREAMING")
        status = process.wait("shop", lambda s: s["retention"]["bytes"] is not None)
        assert status["retention"]["seconds"] is None
        assert metric(process, "seconds") is None
        assert status["retention"]["warning"] == ""
        assert process.terminate() == 0
    finally:
        server.kill()
