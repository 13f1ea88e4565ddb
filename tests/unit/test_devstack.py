"""The parts of devstack that need no server: apt sources, ports, the cache, complaints of the command line."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace

import pytest

from devstack import BadRequest, Cache, Stack, java, maven, process
from devstack.apt import mirrors_in
from devstack.cache import KEEP, RunDir
from devstack.cli import main
from devstack.errors import Unavailable
from devstack.ports import LOWEST, free_port, is_free, parse_ports
from devstack.server import Server
from devstack.servers import elasticsearch, jvm, kafka, opensearch, rocketmq, zookeeper
from tests.support import eventually

DEB822 = """
Types: deb
# http://old.example.org/debian
URIs: https://mirror.example.org/debian
Suites: bookworm bookworm-updates

Types: deb
URIs: https://mirror.example.org/debian-security
"""
ONE_LINE = """
deb [signed-by=/usr/share/keyrings/x.gpg] http://a.example.org/debian/ bookworm main
#deb http://b.example.org/debian bookworm main
deb http://a.example.org/debian/ bookworm-updates main
deb http://security.example.org/debian-security bookworm-security main
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DEB822, ["https://mirror.example.org/debian"]),
        (ONE_LINE, ["http://a.example.org/debian/"]),
        ("URIs: mirror+file:/etc/apt/mirrors/debian.list", ["mirror+file:/etc/apt/mirrors/debian.list"]),
        ("URIs: http://archive.example.org/ubuntu", []),
        ("", []),
    ],
)
def test_debian_mirrors_are_read_from_both_formats(text: str, expected: list[str]) -> None:
    assert mirrors_in(text) == expected


def test_a_download_that_hangs_fails_and_the_next_way_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hangs, ends = ([sys.executable, "-c", code] for code in ("import time; time.sleep(60)", ""))

    def ways() -> Iterator[list[str]]:
        monkeypatch.setattr(process, "RUN_SECONDS", 0.2)
        yield hangs
        monkeypatch.setattr(process, "RUN_SECONDS", 60.0)  # a busy machine may need long to start a program
        yield ends

    monkeypatch.setattr(java, "pip_commands", ways)
    java.pip_install(Cache(tmp_path), "any", tmp_path)
    monkeypatch.setattr(process, "RUN_SECONDS", 0.2)
    monkeypatch.setattr(java, "pip_commands", lambda: [hangs])
    with pytest.raises(Unavailable, match="it has not ended after 0 s"):
        java.pip_install(Cache(tmp_path), "any", tmp_path)


def test_ports_are_parsed() -> None:
    assert parse_ports(["mysql=3306", "kafka=9092"], ["kafka", "mysql"]) == {"mysql": 3306, "kafka": 9092}


@pytest.mark.parametrize("value", ["mysql", "mysql=", "mysql=x", "mysql=0", "mysql=65536", "mysql=-1", "mysql=²", "=1"])
def test_bad_ports_are_refused(value: str) -> None:
    with pytest.raises(BadRequest):
        parse_ports([value], ["mysql"])


def test_a_port_given_twice_is_refused() -> None:
    with pytest.raises(BadRequest, match="twice"):
        parse_ports(["mysql=1", "mysql=2"], ["mysql"])


def test_free_ports_differ_and_are_free() -> None:
    found = [free_port() for _ in range(20)]
    assert len(set(found)) == 20
    assert all(is_free(port) for port in found)


def test_a_port_that_another_process_was_given_is_not_given_again_while_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = "from devstack.ports import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        taken = int(other.stdout.readline())
        assert is_free(taken)  # its server is down for a restart
        chosen = iter([taken, *(random.randrange(LOWEST, taken) for _ in range(50))])
        monkeypatch.setattr("devstack.ports.random", SimpleNamespace(randrange=lambda low, high: next(chosen)))
        assert free_port() != taken
        other.communicate("\n")
    chosen = iter([taken])
    assert free_port() == taken


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["up", "oracle"], "there is no server 'oracle'"),
        (["install", "mysql", "oracle"], "there is no server 'oracle'"),
        (["up", "mysql", "--port", "kafka=1"], "not among the servers to start"),
        (["up", "mysql", "--port", "mysql=http"], "NAME=PORT"),
        (["up"], "--help"),
        (["fly"], "--help"),
        ([], "--help"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert says in output.err
    assert len(output.err.splitlines()) == 1


def test_an_interrupted_install_does_not_count(tmp_path: Path) -> None:
    cache = Cache(tmp_path)

    def fail(fresh: Path) -> None:
        (fresh / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.install("thing", "1", fail)
    assert cache.installed("thing", "1") is None
    assert list((tmp_path / "opt").iterdir()) == []
    assert (cache.install("thing", "1", lambda fresh: (fresh / "whole").touch()) / "whole").exists()
    assert cache.installed("thing", "1") == tmp_path / "opt" / "thing"


def test_another_recipe_installs_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.install("thing", "1", lambda fresh: (fresh / "old").touch())
    prefix = cache.install("thing", "2", lambda fresh: (fresh / "new").touch())
    assert (prefix / "new").exists()
    assert not (prefix / "old").exists()


def test_concurrent_installs_build_once(tmp_path: Path) -> None:
    built: list[Path] = []
    threads = [
        threading.Thread(target=lambda: Cache(tmp_path).install("thing", "1", built.append)) for _ in range(5)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_run_directories_of_the_dead_are_swept_and_others_are_not(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    living = RunDir(cache, keep=False)
    kept = RunDir(cache, keep=True)
    kept.close()
    dead = tmp_path / "run" / "1-abc"
    dead.mkdir()
    (dead / "data").touch()
    latest = RunDir(cache, keep=False)
    assert not dead.exists()
    assert living.path.exists()
    assert (kept.path / KEEP).exists()
    living.close()
    latest.close()
    assert not living.path.exists()
    assert not latest.path.exists()


def test_a_stopped_stack_starts_nothing(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        directory = stack.directory
    assert not directory.exists()
    with pytest.raises(BadRequest, match="stopped"):
        stack.start("mysql")


class Crashing(Server):
    def prepare(self) -> None:
        self.datadir.mkdir()

    def command(self) -> list[str]:
        return ["sh", "-c", "echo the reason; exit 3"]

    def is_ready(self) -> bool:
        return True

    def endpoint(self) -> dict[str, object]:
        return {}


def test_the_log_of_a_server_that_has_ended_by_itself_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Crashing("crashing", tmp_path / "crashing", None)
    server.spawn()
    eventually(lambda: not server.running)
    server.kill()
    printed = capsys.readouterr().err
    assert "crashing has ended by itself, with 3" in printed
    assert "crashing: the reason" in printed


def test_a_file_of_maven_s_that_is_not_the_one_in_the_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = tmp_path / "lib"
    jars.mkdir()
    (jars / "a-1.0.jar").write_bytes(b"as it was")
    monkeypatch.setattr(maven, "LOCK", tmp_path / "jars.lock")
    maven.LOCK.write_text(f"{hashlib.sha256(b'as it was').hexdigest()}  a-1.0.jar\n")
    maven.check(jars)
    (jars / "a-1.0.jar").write_bytes(b"as somebody made it")
    with pytest.raises(Unavailable, match=r"a-1\.0\.jar was downloaded with the SHA-256 \w+, and by .* is expected"):
        maven.check(jars)
    (jars / "a-1.0.jar").rename(jars / "b-1.0.jar")
    with pytest.raises(Unavailable, match=r"b-1\.0\.jar .* it is not in the file.*run scripts/lock --jars"):
        maven.check(jars)


def test_the_lock_has_what_each_server_asks_for() -> None:
    names = {line.split()[1] for line in maven.LOCK.read_text().splitlines()}
    asked = [
        jvm.COMPILER,
        *(one for module in (elasticsearch, kafka, opensearch, rocketmq, zookeeper) for one in module.COORDINATES),
    ]
    assert [one for one in asked if "{1}-{2}.jar".format(*one.split(":")) not in names] == []
