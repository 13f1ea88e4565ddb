"""devstack with real servers: nothing outlives its parent, restarts keep data, three nodes form a cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devstack import BadRequest, Cache, DevstackError, PortTaken, Stack, StartFailed, Unavailable, npm, ports

pytestmark = pytest.mark.server

ROOT = Path(__file__).resolve().parents[2]


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack() as fresh:
        yield fresh


PARENT = """
import json, threading, devstack
stack = devstack.Stack()
found = {}
def start():  # from a thread that ends: the servers must not end with it
    mysql = stack.mysql()
    found.update(pid=mysql.pid, port=mysql.port, directory=str(stack.directory))
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(json.dumps(found), flush=True)
input()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_server_outlives_its_parent(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        found = json.loads(parent.stdout.readline())
        assert not is_gone(found["pid"])
        parent.send_signal(number)
        parent.communicate(timeout=30)
    assert eventually(lambda: is_gone(found["pid"]))
    with Stack():  # sweeps what a killed parent could not remove
        assert not Path(found["directory"]).exists()


def test_mysql_keeps_data_and_port_through_crash_freeze_and_restart(stack: Stack) -> None:
    mysql = stack.mysql(None, "--binlog-row-metadata=MINIMAL", server_id=7)
    port, first = mysql.port, mysql.pid
    mysql.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY); INSERT INTO shop.t VALUES (1), (2)")
    mysql.kill()
    assert is_gone(first)
    assert not mysql.running
    mysql.start()
    mysql.freeze()
    assert mysql.running
    with socket.create_connection((mysql.host, mysql.port), timeout=5) as connection:
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        mysql.thaw()
        connection.settimeout(20)
        assert connection.recv(1)
    mysql.freeze()
    mysql.restart()
    assert mysql.port == port
    assert mysql.sql("SELECT COUNT(*) FROM shop.t") == [("2",)]
    asked = "SELECT @@server_id, @@binlog_row_metadata, @@binlog_row_image, @@gtid_mode"
    assert mysql.sql(asked) == [("7", "MINIMAL", "FULL", "ON")]
    with pytest.raises(DevstackError, match="ERROR 1146"):
        mysql.sql("SELECT * FROM shop.missing")


def test_each_mysql_has_its_own_uuid(stack: Stack) -> None:
    one, two = stack.mysql(), stack.mysql(server_id=2)
    assert one.name != two.name
    assert one.sql("SELECT @@server_uuid") != two.sql("SELECT @@server_uuid")


def test_mariadb(stack: Stack) -> None:
    mariadb = stack.mariadb()
    mariadb.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY); INSERT INTO shop.t VALUES (1)")
    mariadb.restart()
    assert mariadb.sql("SELECT COUNT(*) FROM shop.t") == [("1",)]
    grants = str(mariadb.sql("SHOW GRANTS FOR canal@'%'"))
    assert "REPLICATION SLAVE" in grants
    assert "`headrace`" in grants


def test_a_start_that_fails_shows_the_log(stack: Stack, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StartFailed):
        stack.mysql(None, "--no-such-option")
    assert "no-such-option" in capfd.readouterr().err


def test_a_taken_port_is_named(stack: Stack) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PortTaken, match=str(other.getsockname()[1])):
            stack.mysql(other.getsockname()[1])


@pytest.mark.long
def test_three_kafka_brokers_form_a_cluster(stack: Stack) -> None:
    kafka = stack.kafka(3)
    assert len(kafka.bootstrap_servers.split(",")) == 3
    kafka.brokers[0].kill()
    kafka.brokers[0].start()
    kafka.stop()
    assert not any(broker.running for broker in kafka.brokers)


@pytest.mark.long
def test_three_zookeeper_nodes_elect_a_leader(stack: Stack) -> None:
    ensemble = stack.zookeeper(3)
    assert sorted(node.mode() for node in ensemble.nodes) == ["follower", "follower", "leader"]
    former = ensemble.leader
    assert former is not None
    former.kill()
    assert eventually(lambda: ensemble.leader not in (None, former))
    with pytest.raises(BadRequest):
        stack.zookeeper(0)


@pytest.mark.long
def test_elasticsearch_answers(stack: Stack) -> None:
    elasticsearch = stack.elasticsearch()
    first = elasticsearch.pid
    elasticsearch.restart()
    assert elasticsearch.pid != first


@pytest.mark.long
def test_opensearch_keeps_its_data_and_listens_on_loopback_only(stack: Stack) -> None:
    opensearch = stack.opensearch()
    first = opensearch.pid
    wanted = urllib.request.Request(
        f"{opensearch.url}/i/_doc/1", b'{"n": 1}', {"content-type": "application/json"}, method="PUT"
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(wanted, timeout=30).close()
    assert {host for host, _ in ports.listeners(opensearch.pid)} == {opensearch.host}
    opensearch.restart()
    assert opensearch.pid != first
    with opener.open(f"{opensearch.url}/i/_doc/1", timeout=30) as answer:
        assert json.load(answer)["_source"] == {"n": 1}


def test_up_prints_endpoints_and_ends_on_a_signal() -> None:
    command = [sys.executable, "-m", "devstack", "up", "zookeeper", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        endpoints = json.loads(parent.stdout.readline())
        assert endpoints["zookeeper"]["hosts"] == f"127.0.0.1:{endpoints['zookeeper']['port']}"
        os.kill(parent.pid, signal.SIGINT)
        parent.communicate(timeout=30)
        assert parent.returncode == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", endpoints["zookeeper"]["port"])) != 0


def test_npm_that_is_missing_and_a_package_that_was_changed_are_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "package.json").write_text('{"name": "made", "version": "1.0.0"}')
    with pytest.raises(Unavailable, match="SHA-256"):
        npm.fetch(Cache(tmp_path / "cache"), str(tmp_path / "made"), "00", tmp_path / "target" / "made")
    with pytest.raises(Unavailable, match="npm did not get"):
        npm.fetch(Cache(tmp_path / "cache"), str(tmp_path / "missing"), "00", tmp_path / "other" / "made")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="apt-get install npm"):
        npm.fetch(Cache(tmp_path / "cache"), "made@1.0.0", "00", tmp_path / "target" / "made")
