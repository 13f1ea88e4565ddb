"""STALLED by reason, and what is no stall: catching up, a huge transaction, a slow sink, an idle source."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

Make = Callable[..., DaemonProcess]
QUIET = "[heartbeat]\nenabled = false"


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


class Pipe:
    """A named pipe that a jsonl sink writes, read as fast as the test allows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._open, self._end = threading.Event(), threading.Event()
        self._rate = 0.0
        self.data = bytearray()
        self._thread = threading.Thread(target=self._read, name="pipe")
        self._thread.start()

    def flow(self, bytes_per_second: float = 0.0) -> None:
        """Reads on; 0 is as fast as can be."""
        self._rate = bytes_per_second
        self._open.set()

    def stop(self) -> None:
        self._open.clear()

    def _read(self) -> None:
        while not self._end.is_set():
            if not self._open.wait(0.05):
                continue
            try:
                piece = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                self._end.wait(0.01)
                continue
            self.data += piece
            if self._rate:
                self._end.wait(len(piece) / self._rate)

    def lines(self) -> list[bytes]:
        return bytes(self.data).split(b"\n")[:-1]

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        os.close(self._descriptor)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    made = Pipe(tmp_path / "out.pipe")
    yield made
    made.close()


class States(threading.Thread):
    """Every state that /health shows while it runs."""

    def __init__(self, process: DaemonProcess, destination: str) -> None:
        super().__init__(name="states")
        self._process, self._destination = process, destination
        self._stop_asked = threading.Event()
        self.seen: list[tuple[str, str]] = []

    def run(self) -> None:
        while not self._stop_asked.wait(0.05):
            status = self._process.health()[1].get("destinations", {}).get(self._destination)
            if status and (not self.seen or self.seen[-1] != (status["state"], status["reason"])):
                self.seen.append((status["state"], status["reason"]))

    def stop(self) -> list[tuple[str, str]]:
        self._stop_asked.set()
        self.join()
        return self.seen


@pytest.mark.parametrize("beating", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_source_that_answers_nothing_is_stalled_within_stall_after_and_nothing_is_lost(
    beating: bool, mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    source = 'heartbeat = "30s"\nstall_after = "2s"\nconnect_timeout = "1s"'
    more = "" if beating else QUIET
    process = daemon(shop=destination_toml(mysql, schema, jsonl(out), source=source, more=more)).start()
    process.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (1)")
    eventually(lambda: len(read_jsonl(out)) == 1)
    mysql.freeze()
    try:
        # The next attempt may begin at once, and says by itself that nobody answers: so the log, where nothing is gone.
        failed = re.compile(r'"state": "(\w+)", "error": "([^"]*)"')
        eventually(lambda: bool(failed.search(process.log.read_text())), 20, process.log.read_text)
        state, error = failed.findall(process.log.read_text())[0]
        assert (state, "no byte came" in error) == ("STALLED", True)
        # While another attempt begins there is no reason for a moment.
        assert process.wait("shop", lambda s: not s["healthy"] and s["reason"])["reason"] == "source"
        assert process.health()[0] == 503
    finally:
        mysql.thaw()
    execute("INSERT INTO t VALUES (2)")
    eventually(lambda: {r["id"] for m in read_jsonl(out) for r in m["data"]} == {"1", "2"}, 60)
    process.wait_state("shop", "STREAMING")


def test_an_idle_source_is_no_stall_although_its_heartbeats_are_far_apart(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    text = destination_toml(
        mysql, schema, 'type = "null"', source='heartbeat = "30s"\nstall_after = "500ms"', more=QUIET
    )
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    states = States(process, "shop")
    states.start()
    process.wait("shop", lambda s: s["last_event_seconds"] > 4)
    assert states.stop() == [("STREAMING", "")]
    assert process.health()[1]["destinations"]["shop"]["restarts"] == 0
    # After a restart the source passes over all that we have by GTID.
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    process.wait("shop", lambda s: s["rows"] == 1)
    assert process.terminate() == 0
    process.start()
    process.wait_state("shop", "STREAMING")
    process.wait("shop", lambda s: s["last_event_seconds"] > 2)
    assert process.wait_state("shop", "STREAMING")["restarts"] == 0


def fill(mysql: Any, schema: str, rows: int, *, transactions: int) -> None:
    """Rows of 200 bytes in a table t (id, body)."""
    with pymysql.connect(**mysql.connection("root"), database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, body VARCHAR(200))")
        each = rows // transactions
        for number in range(transactions):
            values = ",".join(f"({i}, REPEAT('b', 200))" for i in range(number * each, (number + 1) * each))
            cursor.execute(f"INSERT INTO t VALUES {values}")
            connection.commit()


@pytest.mark.parametrize("transactions", [40, pytest.param(1, marks=pytest.mark.long)])
def test_catching_up_and_a_huge_transaction_are_no_stall_with_a_sink_slower_than_the_source(
    transactions: int, mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make, pipe: Pipe
) -> None:
    place = execute("SHOW BINARY LOG STATUS")[0]
    fill(mysql, schema, 60_000, transactions=transactions)
    pipe.flow(3_000_000)
    text = destination_toml(
        mysql,
        schema,
        jsonl(pipe.path),
        start=f"{place[0]}:{place[1]}",
        source='stall_after = "1500ms"\nheartbeat = "1s"',
        more='[heartbeat]\ninterval = "200ms"\n[queue]\nbytes = "1MiB"',
    )
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    states = States(process, "shop")
    states.start()
    process.wait("shop", lambda s: s["rows"] >= 60_000, 60)
    assert states.stop() == [("STREAMING", "")]
    assert process.health()[1]["destinations"]["shop"]["restarts"] == 0


def test_a_sink_that_takes_nothing_is_stalled_by_the_sink_and_not_by_the_source(
    mysql: Any, schema: str, daemon: Make, pipe: Pipe
) -> None:
    pipe.flow()
    text = destination_toml(
        mysql,
        schema,
        jsonl(pipe.path),
        source='stall_after = "1s"\nheartbeat = "1s"',
        more='[heartbeat]\ninterval = "200ms"\n[queue]\nbytes = "256KiB"',
    )
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    pipe.stop()
    fill(mysql, schema, 60_000, transactions=4)  # more than pipe, queue and buffers hold
    process.wait_state("shop", "STALLED")
    states = States(process, "shop")
    states.start()
    process.wait("shop", lambda s: s["oldest_unconfirmed_seconds"] > 6)  # beyond heartbeats and deadlines
    assert states.stop() == [("STALLED", "sink")]
    pipe.flow()
    process.wait_state("shop", "STREAMING")
    status = process.wait("shop", lambda s: s["rows"] >= 60_000, 60)
    assert (status["restarts"], status["reconnects"]) == (0, 0)


def test_a_dump_that_the_server_dropped_while_we_did_not_read_is_begun_again_quietly(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make, pipe: Pipe
) -> None:
    pipe.flow()
    text = destination_toml(
        mysql,
        schema,
        jsonl(pipe.path),
        source='stall_after = "60s"',
        more='[queue]\nbytes = "256KiB"\n[message]\nrows_per_message = 1',
    )
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    pipe.stop()
    fill(mysql, schema, 60_000, transactions=4)
    process.wait("shop", lambda s: s["oldest_unconfirmed_seconds"] > 6)
    states = States(process, "shop")
    states.start()
    dumps = [row[0] for row in execute("SHOW PROCESSLIST") if "Dump" in row[4]]
    execute(*(f"KILL {number}" for number in dumps))
    pipe.flow()
    execute("INSERT INTO t VALUES (1000000, 'last')")
    eventually(lambda: b'"id":"1000000"' in pipe.data, 60, lambda: process.log.read_text()[-3000:])
    assert states.stop() == [("STREAMING", "")]
    status = process.health()[1]["destinations"]["shop"]
    assert status["reconnects"] == 1
    assert status["restarts"] == 0
    ids = [line.split(b'"id":"')[1].split(b'"')[0] for line in pipe.lines() if b'"data":[' in line]
    assert [int(key) for key in ids] == [*range(60_000), 1_000_000], "each row once, in order"


@pytest.mark.long
def test_a_dump_that_somebody_kills_is_begun_again_in_the_middle_of_a_transaction_without_a_failure(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make, pipe: Pipe
) -> None:
    pipe.flow(4_000_000)
    more = '[queue]\nbytes = "1MiB"\n[message]\nrows_per_message = 1'
    process = daemon(shop=destination_toml(mysql, schema, jsonl(pipe.path), more=more)).start()
    process.wait("shop", lambda s: s["state"] == "STREAMING" and s["state_seconds"] > 10, 30)
    states = States(process, "shop")
    states.start()
    fill(mysql, schema, 60_000, transactions=1)
    process.wait("shop", lambda s: s["rows"] > 1_000)
    dumps = [row[0] for row in execute("SHOW PROCESSLIST") if "Dump" in row[4]]
    execute(*(f"KILL {number}" for number in dumps))
    execute("INSERT INTO t VALUES (1000000, 'last')")
    eventually(lambda: b'"id":"1000000"' in pipe.data, 60, lambda: process.log.read_text()[-3000:])
    assert states.stop() == [("STREAMING", "")]
    status = process.health()[1]["destinations"]["shop"]
    assert (status["reconnects"], status["restarts"]) == (1, 0)
    ids = [line.split(b'"id":"')[1].split(b'"')[0] for line in pipe.lines() if b'"data":[' in line]
    assert [int(key) for key in ids] == [*range(60_000), 1_000_000], "each row once, in order"
