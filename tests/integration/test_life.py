"""The life of a daemon: order of numbers through every change of position, other sources beside a broken one,
checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from devstack.ports import free_port
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, read_topic

pytestmark = pytest.mark.server


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def numbers(path: Path) -> list[int]:
    return [int(message["_pos"]) for message in read_jsonl(path)]


def test_pos_grows_across_rotation_restart_and_a_lost_state_file(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(mysql, schema, jsonl(out))).start()
    process.wait_state("shop", "STREAMING")
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS")
    execute("INSERT INTO t VALUES (2)")
    eventually(lambda: len(numbers(out)) == 2)
    assert process.terminate() == 0
    execute("INSERT INTO t VALUES (3)")
    process.start()
    eventually(lambda: len(numbers(out)) == 3)
    assert process.terminate() == 0
    for file in (process.folder / "var").glob("headrace.db*"):
        file.unlink()
    process.start()
    process.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (4)")
    eventually(lambda: len(numbers(out)) == 4)
    assert numbers(out) == sorted(set(numbers(out)))
    assert process.terminate() == 0


@pytest.mark.long
def test_pos_grows_and_no_row_is_missing_across_a_failover_to_a_replica(
    stack: Stack, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    first = stack.mysql(name="first", server_id=101)
    second = stack.mysql(name="second", server_id=102)
    second.sql(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={first.port}, SOURCE_USER='root',"
        " SOURCE_PASSWORD='root', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1; START REPLICA"
    )
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(first, "fail", jsonl(out))).start()
    process.wait_state("shop", "STREAMING")
    first.sql("CREATE DATABASE fail; CREATE TABLE fail.t (id INT PRIMARY KEY)")
    for number in range(1, 6):
        first.sql(f"INSERT INTO fail.t VALUES ({number})")
    eventually(lambda: len(numbers(out)) == 5)
    assert process.terminate() == 0
    first.sql("INSERT INTO fail.t VALUES (6), (7)")
    eventually(lambda: second.sql("SELECT COUNT(*) FROM fail.t") == [("7",)])
    first.kill()
    second.sql("STOP REPLICA; INSERT INTO fail.t VALUES (8)")
    (process.folder / "destinations" / "shop.toml").write_text(destination_toml(second, "fail", jsonl(out)))
    process.start()
    eventually(lambda: len(numbers(out)) == 7, 30, lambda: process.log.read_text()[-3000:])
    ids = [int(row["id"]) for message in read_jsonl(out) for row in message["data"]]
    assert ids == list(range(1, 9))
    assert numbers(out) == sorted(set(numbers(out)))
    assert process.terminate() == 0
    second.kill()


def test_one_broken_destination_does_not_disturb_the_others(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    broken = destination_toml(mysql, schema, 'type = "null"').replace("${TEST_PASSWORD}", "wrong")
    process = daemon(good=destination_toml(mysql, schema, jsonl(out)), broken=broken).start()
    process.wait_state("good", "STREAMING")
    process.wait("broken", lambda status: bool(status["last_error"]))
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: len(read_jsonl(out)) == 1)
    code, body = process.health()
    assert code == 503
    assert body["destinations"]["good"]["state"] == "STREAMING"
    assert process.terminate() == 0


def test_two_daemons_on_one_state_take_turns(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    state = f'[state]\npath = "{tmp_path}/shared.db"'
    text = destination_toml(mysql, schema, jsonl(out))
    one = daemon(shop=text, settings=state).start()
    one.wait_state("shop", "STREAMING")
    two = daemon(shop=text, settings=state).start()
    two.wait_state("shop", "STANDBY")
    assert two.health()[0] == 200
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    eventually(lambda: len(read_jsonl(out)) == 1)
    one.kill()
    two.wait_state("shop", "STREAMING")
    execute("INSERT INTO t VALUES (2)")
    eventually(lambda: {row["id"] for m in read_jsonl(out) for row in m["data"]} == {"1", "2"})
    assert two.terminate() == 0


@pytest.mark.long
async def test_a_broker_that_is_away_at_the_start_is_waited_for(
    stack: Stack, mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess]
) -> None:
    port = free_port()
    execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    sink = f'type = "kafka"\nbootstrap_servers = "127.0.0.1:{port}"'
    process = daemon(shop=destination_toml(mysql, schema, sink, start="earliest")).start()
    status = process.wait("shop", lambda status: bool(status["last_error"]))
    assert f"127.0.0.1:{port}" in status["last_error"]
    assert (status["state"], status["reason"], process.health()[0]) == ("STALLED", "sink", 503)
    cluster = stack.kafka(1, port, name="late")
    process.wait("shop", lambda status: status["state"] == "STREAMING" and status["rows"] == 1, 90)
    records = await read_topic(cluster.bootstrap_servers, schema)
    assert [json.loads(record.value)["type"] for record in records][-2:] == ["CREATE", "INSERT"]
    headers = dict(records[-1].headers)
    assert headers.keys() == {"headrace-id", "headrace-pos", "headrace-position", "headrace-epoch"}
    assert headers["headrace-id"].decode().endswith("#1")
    assert process.terminate() == 0
    cluster.kill()


def test_check_says_what_is_missing_with_the_sql(
    mysql: Any, schema: str, execute: Callable[..., Any], daemon: Callable[..., DaemonProcess], kafka: Any
) -> None:
    sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"'
    good = daemon(shop=destination_toml(mysql, schema, sink))
    done = good.run("check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "wrong " not in done.stdout

    execute("CREATE USER poor@'%' IDENTIFIED BY 'canal'")
    poor = destination_toml(mysql, schema, 'type = "null"').replace('user = "canal"', 'user = "poor"')
    done = daemon(shop=poor).run("check")
    execute("DROP USER poor@'%'")
    assert done.returncode == 1
    assert "GRANT REPLICATION SLAVE ON *.* TO 'poor'@'%';" in done.stdout
    assert "GRANT REPLICATION CLIENT ON *.* TO 'poor'@'%';" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_settings_of_the_server_that_check_finds_wrong(stack: Stack, daemon: Callable[..., DaemonProcess]) -> None:
    bare = stack.mysql(None, "--skip-log-bin", "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", name="bare")
    done = daemon(shop=destination_toml(bare, "shop", 'type = "null"')).run("check")
    assert done.returncode == 1
    assert "writes no binlog" in done.stdout
    with pymysql.connect(**bare.connection("root")):
        pass  # the server itself is well: the finding is about its settings
    bare.kill()
