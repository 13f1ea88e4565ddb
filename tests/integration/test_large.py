"""A transaction of 1.5 million rows: bounded memory behind a slow sink, and a kill in its middle that repeats little.

benchmarks/ has the same with 10 million rows, and with 1 GB in one statement.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from devstack import Stack
from headrace.adapters.sqlite.state import SqliteStore
from headrace.model import Position
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = [pytest.mark.server, pytest.mark.long]

ROWS = 1_500_000
LIMIT_MB = 150
SINK_BYTES_PER_SECOND = 8e6
"""Of the slow sink: half of what one core makes of these rows."""


@pytest.fixture(scope="module")
def server(stack: Stack) -> Iterator[Any]:
    options = (
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-redo-log-capacity=512M",
        "--skip-innodb-doublewrite",
    )
    made = stack.mysql(None, *options, name="large")
    made.sql(
        "CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY, pad VARCHAR(40));"
        f" SET SESSION cte_max_recursion_depth = {ROWS};"
        f" INSERT INTO shop.t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
        " SELECT i, CONCAT('家庭保洁 number ', i) FROM n"
    )
    yield made
    made.kill()


def memory_mb(process: DaemonProcess) -> float:
    """The most that the process ever had in memory."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def row_messages(data: bytes) -> list[list[int]]:
    """The ids of each message that carries rows; a line that a kill cut short is left out."""
    found = []
    for line in data.splitlines():
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if message["data"]:
            found.append([int(row["id"]) for row in message["data"]])
    return found


class SlowReader(threading.Thread):
    """Reads a named pipe at a steady pace."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="slow reader", daemon=True)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self._descriptor, True)
        self._pieces: list[bytes] = []

    def run(self) -> None:
        begun, size = time.monotonic(), 0
        while piece := os.read(self._descriptor, 1 << 16):
            self._pieces.append(piece)
            size += len(piece)
            time.sleep(max(0.0, begun + size / SINK_BYTES_PER_SECOND - time.monotonic()))
        os.close(self._descriptor)

    def data(self) -> bytes:
        """All of it, once the writer has closed the pipe."""
        self.join(30)
        return b"".join(self._pieces)


def test_a_large_transaction_to_a_slow_sink_stays_within_the_memory(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sink, queue = f'type = "jsonl"\npath = "{pipe}"', '[queue]\nbytes = "32MiB"'
    process = daemon(shop=destination_toml(server, "shop", sink, start="earliest", more=queue))
    reader = SlowReader(pipe)
    process.start()
    process.wait_state("shop", "STREAMING")
    reader.start()
    seen: list[tuple[str, int]] = []

    def done() -> bool:
        status = process.health()[1]["destinations"]["shop"]
        seen.append((status["state"], status["queue_bytes"]))
        return bool(status["rows"] == ROWS)

    eventually(done, 120, process.log.read_text)
    assert memory_mb(process) < LIMIT_MB
    assert {state for state, _ in seen} == {"STREAMING"}
    assert max(used for _, used in seen) > 20 << 20, "the sink was to be the slower one"
    assert process.terminate() == 0
    ids = [number for message in row_messages(reader.data()) for number in message]
    assert ids == list(range(1, ROWS + 1))


async def stored(process: DaemonProcess) -> Position:
    store = SqliteStore(process.folder / "var" / "headrace.db")
    await store.open()
    position = (await store.load("shop")).position
    await store.close()
    assert position is not None
    return position


def test_a_kill_in_the_middle_repeats_nothing_that_was_confirmed(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(server, "shop", f'type = "jsonl"\npath = "{out}"', start="earliest"))
    process.start()
    begun = time.monotonic()
    # A third of the rows may come within the 0.2 s to the first checkpoint.
    process.wait("shop", lambda status: status["rows"] > ROWS // 3 and status["last_checkpoint_seconds"] is not None)
    process.kill()
    rows_per_second = ROWS / 3 / (time.monotonic() - begun)
    before = row_messages(out.read_bytes())
    published = sum(map(len, before))
    assert published < ROWS
    position = asyncio.run(stored(process))
    assert position.events_done > 0
    confirmed = sum(map(len, before[: position.events_done]))
    assert 0 < confirmed <= published
    # What was published since the last checkpoint: their interval is 0.2 s, and a slow disk makes it longer.
    assert published - confirmed < 3 * rows_per_second

    process.start()
    status = process.wait("shop", lambda status: status["rows"] >= ROWS - confirmed, 60)
    after = row_messages(out.read_bytes())[len(before) :]
    assert [number for message in after for number in message] == list(range(confirmed + 1, ROWS + 1))
    # The skipped part was read, event by event, and not decoded: no row of it was counted.
    assert status["rows"] == ROWS - confirmed
    assert status["events"] > position.events_done + len(after)
    assert memory_mb(process) < LIMIT_MB
    assert process.terminate() == 0
