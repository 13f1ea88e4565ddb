"""Rows with large values, from real servers: through the stream and a snapshot, by daemons that share a lock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

SESSION = 4
PACKET = 64 << 20
"""MySQL's default, and that of this test's sessions."""
NUMBERS = 200_000


@pytest.fixture
def large_packets(mysql: Any) -> Iterator[None]:
    mysql.sql(f"SET GLOBAL max_allowed_packet = {2 * PACKET}")
    yield
    mysql.sql(f"SET GLOBAL max_allowed_packet = {PACKET}")


def lines(path: Path) -> list[dict[str, Any]]:
    return [row for message in read_jsonl(path) for row in message["data"]]


def most_memory(daemon: DaemonProcess) -> int:
    """Bytes that the process ever had in memory, files that are mapped among them."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


@pytest.mark.parametrize("native", ["auto", "off"])
def test_one_large_document_ends_no_daemon_and_holds_up_no_row_after_it(
    mysql: Any,
    zookeeper: Any,
    schema: str,
    execute: Callable[..., Any],
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
    large_packets: None,
    native: str,
) -> None:
    execute(
        "CREATE TABLE t (id INT PRIMARY KEY, d JSON, b LONGTEXT)",
        f"SET SESSION cte_max_recursion_depth = {NUMBERS + 1}",
        "INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < "
        f"{NUMBERS}) SELECT 1, JSON_OBJECT('a', JSON_ARRAYAGG(i)), REPEAT(CHAR(1), 6000000) FROM n",
    )
    sink, source = f'type = "jsonl"\npath = "{tmp_path / "out.jsonl"}"', 'max_event = "64MiB"'
    text = destination_toml(mysql, schema, sink, source=source, snapshot="initial")
    settings = f'native = "{native}"\n[zookeeper]\nhosts = "{zookeeper.hosts}"\nroot = "/{schema}"\n'
    settings += f'session_timeout = "{SESSION}s"'
    one = daemon(shop=text, settings=settings).start()
    first = one.wait_state("shop", "STREAMING", 60)
    execute(
        "UPDATE t SET d = JSON_SET(d, '$.b', REPEAT('x', 2000000))",
        "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
        "UPDATE t SET d = JSON_REPLACE(d, '$.a[5]', 77)",
        "INSERT INTO t VALUES (2, '1', 'after it')",
    )
    eventually(lambda: any(row["id"] == "2" for row in lines(tmp_path / "out.jsonl")), 60)
    seen = one.health()[1]["destinations"]["shop"]
    assert (seen["epoch"], seen["takeovers"]) == (first["epoch"], first["takeovers"]), "nobody had to take over"
    rows = lines(tmp_path / "out.jsonl")
    assert [row["id"] for row in rows] == ["1", "1", "1", "2"], "the snapshot's, the updates and what comes after them"
    numbers = list(range(1, NUMBERS + 1))
    for row in rows[:3]:
        assert row["b"] == "\x01" * 6_000_000
        assert json.loads(row["d"])["a"] == ([*numbers[:5], 77, *numbers[6:]] if row is rows[2] else numbers)
    assert json.loads(rows[1]["d"])["b"] == "x" * 2_000_000
    assert most_memory(one) < 4 * (64 << 20) + (120 << 20)
