"""Heartbeats on MariaDB: a replica gets none, a promoted one does, and one that is read-only is streamed DEGRADED."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server


def ids(out: Path) -> list[str]:
    return [row["id"] for message in read_jsonl(out) for row in message["data"]]


def tables(server: Any) -> list[Any]:
    return list(server.sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'headrace'"))


def test_heartbeats_go_only_to_a_mariadb_server_that_is_writable_and_replicates_from_nobody(
    stack: Stack, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    first = stack.mariadb(None, name="beats-source-m", server_id=211)
    second = stack.mariadb(None, "--log-slave-updates", name="beats-replica-m", server_id=212)
    try:
        (place,) = first.sql("SELECT @@gtid_binlog_pos")[0]
        second.sql(
            f"RESET MASTER; SET GLOBAL gtid_slave_pos = '{place}'; CHANGE MASTER TO MASTER_HOST='127.0.0.1',"
            f" MASTER_PORT={first.port}, MASTER_USER='root', MASTER_PASSWORD='root', MASTER_USE_GTID=slave_pos;"
            " START SLAVE"
        )
        first.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY)")
        eventually(lambda: bool(second.sql("SHOW TABLES IN shop LIKE 't'")) if has_shop(second) else False)
        text = destination_toml(
            second, "shop", f'type = "jsonl"\npath = "{out}"', more='[heartbeat]\ninterval = "200ms"'
        )
        process = daemon(rep=text).start()
        process.wait_state("rep", "STREAMING")
        first.sql("INSERT INTO shop.t VALUES (1)")
        eventually(lambda: ids(out) == ["1"], 30, process.log.read_text)
        status = process.wait("rep", lambda s: s["state_seconds"] > 2)
        assert (status["state"], status["troubles"], status["heartbeat"]["seen_seconds"]) == ("STREAMING", {}, None)
        assert tables(second) == []

        second.sql("STOP SLAVE; RESET SLAVE ALL")  # promoted
        process.wait("rep", lambda s: s["heartbeat"]["seen_seconds"] is not None, 15)
        assert len(second.sql("SELECT destination FROM headrace.heartbeat")) == 1

        second.sql("SET GLOBAL read_only = 1")
        status = process.wait_state("rep", "DEGRADED", 15)
        assert (status["reason"], process.health()[0]) == ("heartbeat", 200)
        assert "read-only" in status["message"]
        with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics", timeout=5) as answer:
            assert 'headrace_state{destination="rep",state="DEGRADED"} 1.0' in answer.read().decode()
        second.sql("INSERT INTO shop.t VALUES (2)")  # root may
        eventually(lambda: ids(out) == ["1", "2"])
        second.sql("SET GLOBAL read_only = 0; INSERT INTO shop.t VALUES (3)")
        status = process.wait_state("rep", "STREAMING", 15)
        eventually(lambda: ids(out) == ["1", "2", "3"])
        assert (status["restarts"], status["reconnects"]) == (0, 0)
        assert process.terminate() == 0
    finally:
        first.kill()
        second.kill()


def has_shop(server: Any) -> bool:
    return bool(server.sql("SHOW DATABASES LIKE 'shop'"))
