"""The heartbeat: written where it may be, seen in the binlog, never published; DEGRADED when it can't be written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

FAST = '[heartbeat]\ninterval = "200ms"'
Make = Callable[..., DaemonProcess]


def heartbeats(status: dict[str, Any]) -> bool:
    """Whether the stream runs and a beat has come back."""
    return status["state"] == "STREAMING" and status["heartbeat"]["round_trip_seconds"] is not None


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def test_a_heartbeat_comes_back_in_the_binlog_and_is_published_nowhere(
    site: Site, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    text = destination_toml(site.server, site.schema, jsonl(out), more=FAST)
    text = text.replace(f'include = "{site.schema}\\\\..*"', 'include = ".*"')
    process = daemon(beating=text).start()
    first = process.wait("beating", heartbeats)
    assert first["heartbeat"]["round_trip_seconds"] < 5
    process.wait("beating", lambda s: s["position"] and s["position"] != first["position"])
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics").read().decode()
    assert 'headrace_heartbeat_round_trip_seconds_bucket{destination="beating",le="+Inf"}' in metrics
    assert 'headrace_heartbeat_age_seconds{destination="beating"}' in metrics
    assert 'headrace_position_offset{destination="beating"}' in metrics, "what the source measures"
    site.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: len(read_jsonl(out)) > 0)
    assert process.terminate() == 0
    assert {message["database"] for message in read_jsonl(out)} == {site.schema}
    ((epoch, node),) = site.run("SELECT epoch, node FROM headrace.heartbeat WHERE destination = 'beating'")
    assert (epoch, node) == (first["epoch"], "test")
    site.run("DELETE FROM headrace.heartbeat WHERE destination = 'beating'")


def test_an_epoch_is_above_that_of_the_row_also_when_the_state_was_lost(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    process = daemon(lostate=destination_toml(mysql, schema, 'type = "null"', more=FAST)).start()
    process.wait("lostate", heartbeats)
    assert process.terminate() == 0
    execute("UPDATE headrace.heartbeat SET epoch = 700 WHERE destination = 'lostate'")
    for file in (process.folder / "var").glob("headrace.db*"):
        file.unlink()
    process.start()
    seen = process.wait("lostate", heartbeats)
    assert seen["epoch"] == 701


def test_a_row_with_an_epoch_that_no_daemon_can_have_is_refused_by_name(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    process = daemon(absurd=destination_toml(mysql, schema, 'type = "null"', more=FAST)).start()
    process.wait("absurd", heartbeats)
    assert process.terminate() == 0
    execute("UPDATE headrace.heartbeat SET epoch = 18446744073709551615 WHERE destination = 'absurd'")
    process.start()
    seen = process.wait("absurd", lambda status: "18446744073709551615" in status["message"])
    assert (seen["state"], seen["reason"]) == ("FAILED", "source")
    statement = seen["message"].partition(" -> ")[2].partition(" -> ")[0]
    assert "Traceback" not in process.log.read_text()
    execute(statement)  # the remedy that is offered
    assert process.wait("absurd", heartbeats, 60)["state"] == "STREAMING"


def test_a_row_with_a_higher_epoch_ends_the_run_and_we_stay_away_as_long_as_its_node_lives(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make
) -> None:
    process = daemon(foreign=destination_toml(mysql, schema, 'type = "null"', more=FAST)).start()
    process.wait("foreign", heartbeats)
    ours = "destination = 'foreign'"
    execute(f"UPDATE headrace.heartbeat SET epoch = 900, node = 'elsewhere' WHERE {ours}")
    stop = threading.Event()

    def other() -> None:
        while not stop.wait(0.2):
            execute(f"UPDATE headrace.heartbeat SET sequence = sequence + 1 WHERE {ours}")

    beating = threading.Thread(target=other)
    beating.start()
    try:
        seen = process.wait("foreign", lambda s: s["reason"] == "split_brain")
    finally:
        stop.set()
        beating.join()
    assert (seen["state"], seen["role"], seen["fenced"]) == ("FAILED", "STANDBY", 1)
    assert "node elsewhere runs foreign too" in seen["message"]
    assert process.health()[0] == 503
    os.kill(process.pid, signal.SIGHUP)  # an operator has stopped the other one
    seen = process.wait("foreign", heartbeats)
    assert (seen["state"], seen["epoch"]) == ("STREAMING", 901)


def test_of_two_daemons_without_a_common_lock_the_newer_runs_and_the_older_stops(
    site: Site, daemon: Make, tmp_path: Path
) -> None:
    """Two nodes, each with a state store of its own: only the heartbeat row tells one of the other."""
    site.run("CREATE TABLE t (id INT PRIMARY KEY)")
    name = f"brain{site.schema}"

    def begin(node: str) -> DaemonProcess:
        text = destination_toml(site.server, site.schema, jsonl(tmp_path / node), more=FAST)
        process = daemon(node=node, **{name: text}).start()
        process.wait(name, heartbeats)
        return process

    def ids(node: str) -> list[str]:
        return [row["id"] for message in read_jsonl(tmp_path / node) for row in message["data"]]

    older = begin("older")
    newer = begin("newer")
    assert "node newer runs" in older.wait(name, lambda s: s["reason"] == "split_brain")["message"]
    site.run("INSERT INTO t VALUES (1)")
    eventually(lambda: ids("newer") == ["1"])
    status = newer.health()[1]["destinations"][name]
    assert (status["restarts"], status["fenced"]) == (0, 0), "the older one never threw the newer one out"
    assert older.terminate() == 0
    assert ids("older") == []
    assert newer.terminate() == 0


def account(server: Any, name: str, grants: str) -> str:
    """An account of the test's own, and the text that makes a destination use it."""
    with pymysql.connect(**server.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE USER {name}@'%' IDENTIFIED BY 'canal'")
        cursor.execute(f"GRANT {grants} ON *.* TO {name}@'%'")
    return name


def test_without_the_grant_the_stream_goes_on_and_the_sql_is_shown(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    name = account(mysql, "meek", "SELECT, REPLICATION SLAVE, REPLICATION CLIENT")
    text = destination_toml(mysql, schema, jsonl(out), more=FAST).replace('user = "canal"', f'user = "{name}"')
    execute("DROP DATABASE IF EXISTS headrace")
    process = daemon(meek=text).start()
    seen = process.wait_state("meek", "DEGRADED")
    assert process.health()[0] == 200
    assert seen["reason"] == "heartbeat"
    assert "CREATE TABLE IF NOT EXISTS headrace.heartbeat" in seen["message"]
    assert "GRANT SELECT, INSERT, UPDATE, CREATE ON headrace.* TO 'meek'" in seen["message"]
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: len(read_jsonl(out)) == 1)
    # what the message says, run by somebody who may
    sql = seen["message"].split("-> ")[1]
    execute(*(statement for statement in sql.split(";") if statement.strip()))
    process.wait_state("meek", "STREAMING")
    process.wait("meek", heartbeats)
    assert process.terminate() == 0
    execute("DROP USER meek@'%'")


@pytest.mark.parametrize("variable", ["read_only", "super_read_only"])
def test_a_server_that_turns_read_only_is_streamed_degraded_until_it_is_writable_again(
    variable: str, mysql: Any, schema: str, execute: Callable[..., Any], daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(ro=destination_toml(mysql, schema, jsonl(out), more=FAST)).start()
    process.wait("ro", heartbeats)
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    execute(f"SET GLOBAL {variable} = 1")
    try:
        seen = process.wait_state("ro", "DEGRADED")
        assert "read-only" in seen["message"]
        assert process.health()[0] == 200
        if variable == "read_only":  # root may write then
            execute("INSERT INTO t VALUES (1)")
            eventually(lambda: len(read_jsonl(out)) == 1)
    finally:
        execute("SET GLOBAL super_read_only = 0", "SET GLOBAL read_only = 0")
    process.wait_state("ro", "STREAMING")
    execute("INSERT INTO t VALUES (2)")
    eventually(lambda: "2" in {row["id"] for m in read_jsonl(out) for row in m["data"]})
    assert process.health()[1]["destinations"]["ro"]["restarts"] == 0


def test_a_replica_is_streamed_without_heartbeats_and_nothing_is_written_to_it(
    stack: Stack, daemon: Make, tmp_path: Path
) -> None:
    first = stack.mysql(name="beats-source", server_id=201)
    second = stack.mysql(name="beats-replica", server_id=202)
    try:
        replicate(second, first)
        out = tmp_path / "out.jsonl"
        process = daemon(rep=destination_toml(second, "shop", jsonl(out), more=FAST)).start()
        process.wait_state("rep", "STREAMING")
        first.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY); INSERT INTO shop.t VALUES (1)")
        eventually(lambda: len(read_jsonl(out)) == 1, 30, lambda: process.log.read_text()[-2000:])
        status = process.health()[1]["destinations"]["rep"]
        assert (status["state"], status["troubles"]) == ("STREAMING", {})
        assert status["heartbeat"]["seen_seconds"] is None
        uuid = second.sql("SELECT @@server_uuid")[0][0]
        assert uuid not in second.sql("SELECT @@gtid_executed")[0][0]
        assert process.terminate() == 0
    finally:
        first.kill()
        second.kill()


def replicate(replica: Any, source: Any) -> None:
    replica.sql(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={source.port}, SOURCE_USER='root',"
        " SOURCE_PASSWORD='root', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1; START REPLICA"
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.long
def test_a_full_disk_under_the_binlogs_is_degraded_and_afterwards_no_row_is_missing(
    stack: Stack, small_disk: Path, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    server = stack.mysql(None, f"--log-bin={small_disk}/mysql-bin", name="fulldisk", server_id=203)
    try:
        server.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY, body LONGTEXT)")
        text = destination_toml(server, "shop", jsonl(out), source='connect_timeout = "2s"', more=FAST)
        process = daemon(full=text).start()
        process.wait("full", heartbeats)
        server.sql("INSERT INTO shop.t VALUES (1, 'x')")
        ballast = small_disk / "ballast"
        free = shutil.disk_usage(small_disk).free
        ballast.write_bytes(bytes(free))
        seen = process.wait_state("full", "DEGRADED", 60)
        assert seen["reason"] == "heartbeat"
        assert "did not answer" in seen["message"]
        assert process.health()[0] == 200
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics").read().decode()
        assert 'headrace_state{destination="full",state="DEGRADED"} 1.0' in metrics
        ballast.unlink()
        # The server looks again once a minute.
        process.wait_state("full", "STREAMING", 90)
        server.sql("INSERT INTO shop.t VALUES (2, 'y')")
        ids = lambda: [row["id"] for m in read_jsonl(out) for row in m["data"]]  # noqa: E731
        eventually(lambda: ids() == ["1", "2"], 30, lambda: process.log.read_text()[-3000:])
        assert process.terminate() == 0
    finally:
        server.kill()
