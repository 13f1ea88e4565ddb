"""Worker processes: one daemon, one port, its destinations in several processes that are watched and ended in order."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site import Site, sites_on
from tests.support import DaemonProcess, destination_toml, eventually, read_topic

pytestmark = pytest.mark.server

NAMES = ("pa", "pb", "pc")
WORKERS = {"pa": 1, "pb": 2, "pc": 1}
SETTINGS = 'processes = 2\nwatch = "200ms"'


@pytest.fixture
def sites(mysql: Any) -> Iterator[dict[str, Site]]:
    with sites_on(mysql, *NAMES, "pd") as made:
        yield made


class Running:
    """A daemon with two workers, and what came into the topics of its destinations, which have their names."""

    def __init__(self, daemon: Callable[..., DaemonProcess], mysql: Any, kafka: Any, folder: Path) -> None:
        self._mysql, self._kafka, self._mark = mysql, kafka, abs(hash(folder)) % 10**9
        self.daemon = daemon(settings=SETTINGS, **{name: self.toml(name) for name in NAMES}).start()
        for name in NAMES:
            self.daemon.wait_state(name, "STREAMING")

    def topic(self, name: str) -> str:
        return f"{name}{self._mark}"

    def toml(self, name: str) -> str:
        sink = f'type = "kafka"\nbootstrap_servers = "{self._kafka.bootstrap_servers}"'
        return destination_toml(self._mysql, name, sink).replace(f'topic = "{name}"', f'topic = "{self.topic(name)}"')

    def ids(self, name: str) -> list[int]:
        records = asyncio.run(read_topic(self._kafka.bootstrap_servers, self.topic(name)))
        messages = [json.loads(record.value) for record in records]
        return [int(row["id"]) for one in messages if one["data"] and not one["isDdl"] for row in one["data"]]

    def wait_ids(self, name: str, wanted: set[int]) -> None:
        eventually(lambda: set(self.ids(name)) == wanted, 30, lambda: self.daemon.log.read_text()[-4000:])

    def processes(self) -> dict[int, dict[str, Any]]:
        return {one["worker"]: one for one in self.daemon.health()[1].get("processes", [])}

    def pids(self) -> list[int]:
        return [one["pid"] for _, one in sorted(self.processes().items())]

    def epoch(self, name: str) -> int:
        return int(self.daemon.health()[1]["destinations"][name]["epoch"])

    def metric(self, name: str) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return {worker: float(value) for worker, value in re.findall(rf'{name}{{worker="(\d)"}} (\S+)', text)}

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.daemon.log.read_text().splitlines()]


@pytest.fixture
def running(
    daemon: Callable[..., DaemonProcess], mysql: Any, kafka: Any, sites: dict[str, Site], tmp_path: Path
) -> Iterator[Running]:
    made = Running(daemon, mysql, kafka, tmp_path)
    pids = made.pids()
    yield made
    made.daemon.kill()
    wait_gone(pids)


def gone(pid: int) -> bool:
    """Whether there is no process of this number, or one that has ended and nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_gone(pids: list[int]) -> None:
    eventually(lambda: all(map(gone, pids)), 30, lambda: str(pids))


def insert(sites: dict[str, Site], number: int, *names: str) -> None:
    for name in names or NAMES:
        sites[name].run(f"INSERT INTO t VALUES ({number})")


def test_several_workers_are_one_daemon(running: Running, sites: dict[str, Site]) -> None:
    daemon = running.daemon
    found = running.processes()
    assert {number: one["destinations"] for number, one in found.items()} == {1: ["pa", "pc"], 2: ["pb"]}
    first = running.pids()
    assert len({daemon.pid, *first}) == 3
    insert(sites, 1)
    for name in NAMES:
        running.wait_ids(name, {1})
        shown = daemon.wait(name, lambda status: status["rows"] == 1 and status["lag_seconds"] == 0)
        assert shown["loop_delay_seconds"] is not None
    assert all(value > 0 for value in running.metric("headrace_worker_cpu_seconds_total").values())
    assert running.metric("headrace_worker_resident_bytes").keys() == {"1", "2"}
    assert running.metric("headrace_worker_restarts_total") == {"1": 0, "2": 0}

    # One of each worker is paused and goes on, by the daemon's one port.
    for name in ("pa", "pb"):
        assert daemon.command("pause", name) == (0, f"{name}: is paused\n")
        daemon.wait_state(name, "PAUSED", 5)
    insert(sites, 2)
    running.wait_ids("pc", {1, 2})
    assert [running.ids(name) for name in ("pa", "pb")] == [[1], [1]]
    for name in ("pa", "pb"):
        assert daemon.command("resume", name) == (0, f"{name}: goes on\n")
        running.wait_ids(name, {1, 2})
        daemon.wait_state(name, "STREAMING")
    code, text = daemon.command("position", "set", "pa", "mysql-bin.999999:4", "--yes")
    assert code == 1, text
    assert "999999" in text

    # A file that comes goes to the worker with fewer destinations, and no other is touched.
    before = {name: running.epoch(name) for name in NAMES}
    (daemon.folder / "destinations" / "pd.toml").write_text(running.toml("pd"))
    daemon.wait_state("pd", "STREAMING")
    assert running.processes()[2]["destinations"] == ["pb", "pd"]
    insert(sites, 4, "pd")
    running.wait_ids("pd", {4})
    changed = running.toml("pc") + '\n[queue]\nlinger = "1ms"\n'
    (daemon.folder / "destinations" / "pc.toml").write_text(changed)
    daemon.wait("pc", lambda status: status["epoch"] > before["pc"] and status["state"] == "STREAMING")
    (daemon.folder / "destinations" / "pd.toml").unlink()
    os.kill(daemon.pid, signal.SIGHUP)
    eventually(lambda: "pd" not in daemon.health()[1]["destinations"])
    eventually(lambda: running.processes()[2]["destinations"] == ["pb"])
    assert [running.epoch(name) for name in ("pa", "pb")] == [before["pa"], before["pb"]]
    assert running.pids() == first

    insert(sites, 5)
    assert daemon.terminate() == 0
    wait_gone(first)
    assert all(5 not in (ids := running.ids(name)) or ids.count(5) == 1 for name in NAMES)
    ends = [line for line in running.lines() if line["event"] == "stopped"]
    assert sorted(line.get("worker", 0) for line in ends) == [0, 1, 2]
    assert not [line for line in running.lines() if line["level"] == "error"]
    own = {line["worker"] for line in running.lines() if line.get("destination") == "pb" and "worker" in line}
    assert own == {2}, "each line names its worker"


def test_a_worker_that_is_killed_comes_back_and_the_other_goes_on(running: Running, sites: dict[str, Site]) -> None:
    daemon = running.daemon
    insert(sites, 1)
    for name in NAMES:
        running.wait_ids(name, {1})
    other, victim = running.epoch("pb"), running.pids()[0]
    os.kill(victim, signal.SIGKILL)
    lost = daemon.wait("pa", lambda status: status["reason"] == "worker", 5)
    assert (lost["healthy"], lost["state"], lost["role"]) == (False, "FAILED", "STANDBY")
    assert "worker process 1" in lost["message"]
    code, text = daemon.command("pause", "pa")
    assert code == 1
    assert "worker process 1" in text
    insert(sites, 2)
    running.wait_ids("pb", {1, 2})
    for name in NAMES:
        running.wait_ids(name, {1, 2})
        daemon.wait_state(name, "STREAMING")
    assert running.epoch("pb") == other
    assert gone(victim)
    assert not Path(f"/proc/{victim}").exists(), "it was waited for"
    assert running.processes()[1]["restarts"] == 1
    assert running.metric("headrace_worker_restarts_total") == {"1": 1, "2": 0}
    ended = [line for line in running.lines() if line["event"] == "a worker has ended and is started again"]
    assert [(line["worker"], line["status"], line["why"]) for line in ended] == [(1, -9, "it was ended by SIGKILL")]

    # The daemon itself is killed: its workers drain and end by themselves.
    pids = running.pids()
    os.kill(daemon.pid, signal.SIGKILL)
    assert daemon.wait_end(10) == -signal.SIGKILL
    wait_gone(pids)
    told = [line for line in running.lines() if line["event"].startswith("the daemon is gone")]
    assert sorted(line["worker"] for line in told) == [1, 2]


@pytest.mark.long
def test_a_worker_that_hangs_is_seen_killed_and_started_again(running: Running, sites: dict[str, Site]) -> None:
    daemon = running.daemon
    victim = running.pids()[0]
    os.kill(victim, signal.SIGSTOP)
    stale = daemon.wait("pa", lambda status: not status["healthy"], 8)
    assert (stale["state"], stale["reason"]) == ("STALLED", "worker")
    insert(sites, 1)
    running.wait_ids("pb", {1})
    for name in NAMES:
        running.wait_ids(name, {1})
        daemon.wait_state(name, "STREAMING")
    assert gone(victim)
    assert [line["worker"] for line in running.lines() if line["event"] == "a worker hangs, and is killed"] == [1]
    assert daemon.terminate() == 0


@pytest.mark.long
def test_a_worker_that_only_pauses_is_not_killed(running: Running) -> None:
    victim = running.pids()[0]
    os.kill(victim, signal.SIGSTOP)
    running.daemon.wait_state("pa", "STALLED", 8)
    os.kill(victim, signal.SIGCONT)
    running.daemon.wait_state("pa", "STREAMING")
    assert running.pids()[0] == victim
    assert running.daemon.terminate() == 0


@pytest.mark.long
def test_a_second_signal_ends_all_workers_at_once(running: Running) -> None:
    pids = running.pids()
    os.kill(pids[0], signal.SIGSTOP)  # it can't drain
    os.kill(running.daemon.pid, signal.SIGTERM)
    eventually(lambda: gone(pids[1]))
    assert running.daemon.terminate() == 1
    wait_gone(pids)


def test_in_a_cluster_each_worker_is_a_member_of_its_own(
    mysql: Any, zookeeper: Any, schema: str, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    texts = {
        name: destination_toml(mysql, schema, f'type = "jsonl"\npath = "{tmp_path / name}"') for name in ("d1", "d2")
    }
    more = f'[zookeeper]\nhosts = "{zookeeper.hosts}"\nroot = "/{schema}"\nsession_timeout = "4s"'
    one, two = (daemon(settings=f"processes = 2\n{more}", node=node, **texts) for node in ("one", "two"))
    one.start()
    for name in texts:
        one.wait_state(name, "STREAMING")
    two.start()
    for number, name in enumerate(texts, 1):
        standby = two.wait(name, lambda status: status["state"] == "STANDBY" and bool(status["holder"]))
        assert standby["holder"].startswith(f"one-{number}")
    assert one.health()[1]["node"] == "one"

    def nodes() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{one.port}/api/v1/nodes", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    members = nodes()["nodes"]
    assert {name: info["address"] for name, info in members.items()} == {
        f"{node}-{number}": f"127.0.0.1:{process.port}" for node, process in (("one", one), ("two", two))
        for number in (1, 2)
    }  # fmt: skip
    with urllib.request.urlopen(f"http://127.0.0.1:{one.port}/metrics", timeout=5) as answer:
        assert "headrace_zookeeper_sessions_total 2.0" in answer.read().decode()
    assert one.command("drain", "one-1")[0] == 0
    two.wait("d1", lambda status: status["role"] == "ACTIVE" and status["state"] == "STREAMING")
    assert {name: one["holder"] for name, one in nodes()["destinations"].items()} == {"d1": "two-1", "d2": "one-2"}
    assert two.command("move", "d2", "two-2")[0] == 0
    two.wait("d2", lambda status: status["role"] == "ACTIVE" and status["state"] == "STREAMING")
    lease = two.health()[1]["destinations"]["d2"]["lease_seconds"]
    assert 0 < lease < 4
    assert (two.ready("d2"), one.ready("d2")) == (200, 503)
    assert one.terminate() == 0
    assert two.terminate() == 0


def test_one_process_starts_no_other(mysql: Any, schema: str, daemon: Callable[..., DaemonProcess]) -> None:
    process = daemon(shop=destination_toml(mysql, schema, 'type = "null"')).start()
    process.wait_state("shop", "STREAMING")
    assert process.health()[1]["processes"] == []
    assert Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() == ""
    assert process.terminate() == 0
