"""The Spark consumer elsewhere: reports over the network, executors that are missing, Python there, and the archive."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pyspark
import pytest

from headrace_spark.query.executors import Executors
from headrace_spark.session.session import check_java, jvm_properties
from headrace_spark.settings import SparkSettings, load_settings
from headrace_spark.status import task_reports
from headrace_spark.status.outages import ELASTICSEARCH, SPARK
from headrace_spark.status.problems import NO_EXECUTOR, problem_of
from headrace_spark.status.report_socket import Address, ReportSocket, Sender
from headrace_spark.status.status import State, Status
from headrace_spark.status.task_reports import Reporter, receiver
from tests.clock import Clock

ROOT = Path(__file__).parents[2]


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def listening(status: Status) -> Iterator[ReportSocket]:
    made = ReportSocket("127.0.0.1", "127.0.0.1", receiver(status.outages, status.sign))
    yield made
    made.close()
    made._thread.join(10)
    while task_reports._senders:
        task_reports._senders.pop().close()


def test_reports_come_over_the_network(listening: ReportSocket, status: Status, clock: Clock) -> None:
    reporter = Reporter(listening.address)
    reporter.waiting("it does not answer", seconds=3.0, documents=7)
    until(status.outages.current)
    [outage] = status.outages.current()
    assert (outage.system, outage.cause) == (ELASTICSEARCH, "it does not answer")
    assert outage.sources == {f"task {os.getpid()} at 127.0.0.1"}
    clock.now += 5
    reporter.goes_on(waited=True)
    until(lambda: not status.outages.current())
    assert listening.heard


def test_who_has_no_token_is_not_heard(listening: ReportSocket, status: Status) -> None:
    host, port, _ = listening.address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.connect((host, port))
        for data in (b"", b"\xff{", b"[]", b'{"token": 1}', orjson.dumps({"token": "x" * 32, "event": "waiting"})):
            stranger.send(data)
        # They are read in their order, so all of these are read before the one that counts.
        Reporter(listening.address).waiting("it does not answer", seconds=0.0, documents=1)
        until(status.outages.current)
    assert status.outages.retries == 1
    assert listening.address.token not in repr(status.page())


def test_a_task_waits_for_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = Mock(side_effect=socket.gaierror("no such name"))
    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    sender = Sender(Address("nowhere.invalid", 9, "t"))
    sender.send({"event": "progress"})
    sender.send({"event": "progress"})
    assert resolved.call_count == 1
    monkeypatch.undo()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        port = gone.getsockname()[1]
    sender = Sender(Address("127.0.0.1", port, "t"))
    with closing(sender):
        for _ in range(3):
            sender.send({"event": "progress"})


def session(*, executors: int, running: int | None, master: str = "spark://127.0.0.1:7077") -> Any:
    """A session as far as it is checked. `running`: the tasks of the stage under way, None for no stage."""
    conf = {"spark.master": master, "spark.driver.host": "127.0.0.1"}
    context = Mock()
    context.getConf.return_value = conf
    context.statusTracker.return_value = Mock(
        getActiveStageIds=lambda: [] if running is None else [4],
        getStageInfo=lambda _: SimpleNamespace(numActiveTasks=running),
    )
    context._jsc.sc.return_value.getExecutorMemoryStatus.return_value.size.return_value = executors + 1
    return SimpleNamespace(sparkContext=context)


@pytest.fixture
def watched(status: Status) -> Iterator[Callable[..., Executors]]:
    """Makes those that are watched."""
    made: list[Executors] = []

    def make(spark: Any, patience: float | None = None) -> Executors:
        made.append(Executors(spark, status, patience))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_cluster_without_executors_is_an_outage(status: Status, watched: Callable[..., Executors]) -> None:
    status.query_runs(True)
    spark = session(executors=0, running=0)
    executors = watched(spark)
    executors.check()
    [outage] = status.outages.current()
    assert (outage.system, outage.cause) == (SPARK, NO_EXECUTOR)
    assert status.state is State.WAITING
    assert not spark.sparkContext.cancelAllJobs.called
    there = session(executors=1, running=0).sparkContext
    spark.sparkContext._jsc = there._jsc
    executors.check()
    assert status.outages.current() == []


def test_nothing_to_do_needs_no_executor(status: Status, watched: Callable[..., Executors]) -> None:
    watched(session(executors=0, running=None)).check()
    assert status.outages.current() == []


def test_a_batch_that_nobody_works_at_is_given_up_when_patience_ends(
    watched: Callable[..., Executors], settings_file: Path
) -> None:
    spark = session(executors=0, running=0)
    watched(spark, 0.0).check()
    assert spark.sparkContext.cancelAllJobs.called
    problem = problem_of(Exception("Job 3 cancelled as part of cancellation of all jobs"), load_settings(settings_file))
    assert (problem.system, problem.cause) == (SPARK, NO_EXECUTOR)


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    file = tmp_path / "spark.toml"
    file.write_text((ROOT / "config/spark.toml").read_text())
    return file


def test_tasks_that_run_are_a_sign_of_life_where_no_report_comes_through(
    status: Status, clock: Clock, watched: Callable[..., Executors]
) -> None:
    status.query_runs(True)
    executors = watched(session(executors=2, running=3))
    clock.now += 400
    assert status.silent == 400
    executors.check()
    assert status.silent == 0
    clock.now += 400
    assert executors.reports is not None
    executors._socket.heard = True  # type: ignore[union-attr]  # then a task that says nothing is stuck
    executors.check()
    assert status.silent == 400


def test_in_one_process_nobody_listens(status: Status) -> None:
    assert Executors(session(executors=0, running=0, master="local[2,4]"), status).reports is None


def test_python_and_logs_of_executors_are_the_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    known: dict[str, Any] = {"checkpoint": "c", "scratch": str(tmp_path)}
    properties = jvm_properties(SparkSettings(**known, master="spark://h:7077"))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert "log4j2.configurationFile" in properties["spark.driver.extraJavaOptions"]
    assert "spark.executor.extraJavaOptions" not in properties
    assert "spark.driver.host" not in properties
    jvm_properties(SparkSettings(**known, master="yarn", conf={"spark.pyspark.python": "/opt/python"}))
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    # In this process the workers need what we have, whatever somebody has in the environment.
    jvm_properties(SparkSettings(**known))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_spark_submit_has_found_its_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PYSPARK_GATEWAY_PORT": "1", "PATH": ""})
    assert check_java() == "of spark-submit"


def test_the_archive_has_all_that_executors_import(tmp_path: Path) -> None:
    python = Path(sysconfig.get_config_var("BINDIR"), "python{}.{}".format(*sys.version_info))
    for folder in ("one", "two"):
        subprocess.run([sys.executable, ROOT / "scripts/spark_archive.py", tmp_path / folder], check=True)
    archive = tmp_path / "one/headrace-spark.tar.gz"
    assert archive.read_bytes() == (tmp_path / "two/headrace-spark.tar.gz").read_bytes()
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python 3.11.2 has none
        tar.extractall(tmp_path / "headrace-packages")
    lib = Path(pyspark.__file__).parent / "python/lib"
    code = (
        "import importlib, pkgutil, sys\n"
        f"sys.path[:0] = {['headrace-packages', *map(str, lib.glob('*.zip'))]!r}\n"
        "for name in ('headrace_documents', 'headrace_spark'):\n"
        "    package = importlib.import_module(name)\n"
        "    for one in pkgutil.walk_packages(package.__path__, f'{name}.'):\n"
        "        importlib.import_module(one.name)\n"
        "print(package.__path__)\n"
    )
    done = subprocess.run([python, "-I", "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "headrace-packages/headrace_spark" in done.stdout
