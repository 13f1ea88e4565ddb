"""The daemon into files that rotate, killed at random moments under load; and into a pipe whose reader leaves."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_kill import Writer
from tests.jsonl import rotated, whole
from tests.support import DaemonProcess, destination_toml, eventually, read_messages, replay

pytestmark = pytest.mark.server


def test_kills_leave_files_that_make_the_table(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40), n BIGINT)")
    sink = 'type = "jsonl"\npath = "out.jsonl"\nrotate_bytes = "64KiB"'
    process = daemon(shop=destination_toml(mysql, schema, sink)).start()
    process.wait_state("shop", "STREAMING")
    path, moments = process.folder / "out.jsonl", random.Random(11)
    writer = Writer(mysql, schema, 11)
    writer.start()
    try:
        for number in range(6):
            eventually(lambda: len(rotated(path)) > 4 * number)  # noqa: B023
            time.sleep(moments.uniform(0.1, 0.6))  # the random moment that this test is about
            process.kill()
            process.start()
            process.wait_state("shop", "STREAMING")
    finally:
        writer.stop()
    execute("INSERT INTO t VALUES (1000000, 'the last', 0)")
    table = {str(i): {"id": str(i), "name": name, "n": str(n)} for i, name, n in execute("SELECT id, name, n FROM t")}
    eventually(lambda: b"the last" in whole(path), explain=lambda: process.log.read_text()[-3000:])
    messages = [json.loads(line) for line in whole(path).splitlines()]
    assert replay(messages) == table
    assert len(rotated(path)) > 20
    assert process.terminate() == 0


def test_the_daemon_ends_when_nobody_reads_its_standard_output(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    process = daemon(shop=destination_toml(mysql, schema, 'type = "jsonl"\npath = "-"'))
    words = [sys.executable, "-m", "headrace.cli.main", "run", "--config", str(process.folder / "headrace.toml")]
    with (
        subprocess.Popen(
            words,
            cwd=process.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TEST_PASSWORD": "canal"},
        ) as running,
        subprocess.Popen(["head", "-n", "1"], stdin=running.stdout, stdout=subprocess.PIPE) as head,
    ):
        assert running.stdout is not None
        running.stdout.close()
        process.wait_state("shop", "STREAMING")
        execute("INSERT INTO t VALUES (1)")
        line, _ = head.communicate(timeout=30)
        execute("INSERT INTO t VALUES (2)")
        _, log = running.communicate(timeout=30)
    assert json.loads(line)["data"] == [{"id": "1"}]
    assert running.returncode == 1
    assert b"the reader of standard output is gone" in log
    assert b"Traceback" not in log
    assert b"exception" not in log


def test_statements_and_marks_are_between_the_rows_whatever_their_topics(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    """Debezium's format has topics of their own for them, and a file has one order."""
    out = tmp_path / "out.jsonl"
    message = '[message]\nformat = "debezium"\n[message.debezium]\nschemas = false\n'
    topics = 'schema_topic = "s"\ntransaction_topic = "t"\n'
    process = daemon(shop=destination_toml(mysql, schema, f'type = "jsonl"\npath = "{out}"', more=message + topics))
    process.start().wait_state("shop", "STREAMING")
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    wanted: list[Any] = []
    for number in range(1, 40):
        execute(f"INSERT INTO t VALUES ({number})", "TRUNCATE TABLE t")
        wanted += ["BEGIN", number, "END", "TRUNCATE TABLE t"]
    eventually(lambda: len(read_messages(out)) > len(wanted), 30, process.log.read_text)
    reported = [m.get("status") or m.get("ddl") or m["after"]["id"] for m in read_messages(out)]
    assert reported[1:] == wanted
