"""Fixtures of all tests: the real servers, started when first asked for, and daemons that end with their test."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pymysql
import pytest
from xdist.scheduler import LoadFileScheduling

from devstack import Stack
from tests import collected, pace
from tests import shared as shared_servers
from tests.support import DaemonProcess, destination_toml

_numbers = itertools.count(1)
_worker = os.environ.get("PYTEST_XDIST_WORKER", "").replace("gw", "w")
"""In the names of schemas, as they are those of topics in a Kafka that all workers share."""
_begun: set[Path] = set()
"""The files of which this process has run a test."""
_turns = functools.cache(pace.Turns)
_SHARED = pytest.StashKey[shared_servers.SharedServers]()
TOGETHER = {
    "tests/chaos/": "heavy",
    "tests/consume/": "consume",
    "tests/e2e/": "heavy",
    "tests/spark/": "heavy",
    "tests/contracts/test_sinks.py": "queues",
    "tests/integration/test_devstack_queues.py": "queues",
    "tests/integration/test_rabbitmq": "queues",
    "tests/integration/test_rocketmq.py": "queues",
    "tests/integration/test_exactly_once_brokers.py": "brokers",
    "tests/integration/test_kafka_": "brokers",
    "tests/integration/test_real_debezium.py": "connect",
    "tests/integration/test_jdbc_sink.py": "connect",
}
"""What runs in one worker, by the beginning of a test's path: the heavy ones keep two cores busy each and share
Elasticsearch, and so do those of the RabbitMQ consumer; RabbitMQ, RocketMQ and Kafka Connect take long to start;
the files that start Kafkas of their own would else do so at the same time."""


class Scheduling(LoadFileScheduling):
    """Gives each worker a file at a time, or several that belong together, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return next((name for start, name in TOGETHER.items() if nodeid.startswith(start)), nodeid.partition("::")[0])


def pytest_configure() -> None:
    """A shell starts what runs in the background with SIGINT ignored. Processes that tests start and interrupt would
    inherit that; they do not inherit a handler."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says more of what else runs on the machine.
    hypothesis.settings.register_profile("headrace", deadline=None)
    hypothesis.settings.load_profile("headrace")


@pytest.hookimpl(tryfirst=True)  # before -m takes some away
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.args == ["tests"]:
        collected.note(items)
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.timeout(4 * float(item.config.getini("timeout"))))
    # Unit tests come first, because they need no server. The files of integration/ come last: they are many and short,
    # so all processes end at about the same time.
    items.sort(key=lambda item: (not item.nodeid.startswith("tests/unit/"), "tests/integration/" in item.nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before the test's time limit begins
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    if _worker and item.path not in _begun and "tests/unit/" not in item.nodeid:
        _turns().next()
    _begun.add(item.path)
    try:
        return (yield)
    finally:
        if _worker and nextitem is None:  # the process stays until all others have ended too
            _turns().end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    try:
        return (yield)
    except pytest.fail.Exception as error:
        if str(error).startswith("Timeout"):
            _print_tasks()
        raise


def _print_tasks() -> None:
    """Prints where the tasks of a test wait; the stack of its thread ends in the event loop."""
    for loop in gc.get_objects():
        if issubclass(type(loop), asyncio.AbstractEventLoop) and not loop.is_closed():
            for task in asyncio.all_tasks(loop):
                task.print_stack()


def pytest_collection_finish() -> None:
    """What is imported and collected stays to the end, so the garbage collector need not visit it again and again."""
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val: object) -> str | None:
    """The beginning of a text that is long: each worker sends the names of all tests, also those of 16 MiB."""
    return f"{val[:60]!r}..." if isinstance(val, (str, bytes)) and len(val) > 1000 else None


def _shared(config: pytest.Config) -> shared_servers.SharedServers:
    if _SHARED not in config.stash:
        config.stash[_SHARED] = shared_servers.SharedServers()
    return config.stash[_SHARED]


def pytest_configure_node(node: Any) -> None:
    """Of xdist, in pytest's own process, before a worker begins."""
    if node.config.args == ["tests"]:
        node.workerinput["servers"] = _shared(node.config).addresses


def pytest_unconfigure(config: pytest.Config) -> None:
    if servers := config.stash.get(_SHARED, None):
        servers.stop()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def session_stack() -> Iterator[Stack]:
    """Servers that tests of all modules share."""
    with Stack() as running:
        yield running


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Servers that end with the module: those of all modules would need more memory than many machines have."""
    with Stack() as running:
        yield running


@pytest.fixture(scope="session")
def shared(session_stack: Stack) -> Callable[[str], Any]:
    """The SQL servers that tests share, by their names in devstack; a test that changes its settings starts its own."""
    return functools.cache(session_stack.sql)


@pytest.fixture(scope="session")
def mysql(request: pytest.FixtureRequest, shared: Callable[[str], Any]) -> Any:
    """The shared MySQL; a test may have a parameter that names another server."""
    return shared(getattr(request, "param", "mysql"))


@pytest.fixture(scope="session")
def mysql56(shared: Callable[[str], Any]) -> Any:
    return shared("mysql56")


@pytest.fixture(scope="session")
def mariadb(shared: Callable[[str], Any]) -> Any:
    return shared("mariadb")


@pytest.fixture(scope="session")
def mariadb118(shared: Callable[[str], Any]) -> Any:
    return shared("mariadb118")


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Any:
    """The one that all tests share; a test that hurts it starts its own."""
    servers = getattr(request.config, "workerinput", {}).get("servers")
    return shared_servers.kafka(servers) if servers else request.getfixturevalue("session_stack").kafka()


@pytest.fixture(scope="session")
def connect(session_stack: Stack, kafka: Any) -> Any:
    """A worker of Kafka Connect with Debezium's connectors for MySQL and MariaDB and its sink, on the shared Kafka."""
    return session_stack.connect(kafka, plugins=("mysql", "mariadb", "jdbc"))


@pytest.fixture(scope="session")
def zookeeper(session_stack: Stack) -> Any:
    return session_stack.zookeeper()


@pytest.fixture(scope="session")
def etcd(session_stack: Stack) -> Any:
    return session_stack.etcd()


@pytest.fixture(scope="session")
def rabbitmq(session_stack: Stack) -> Any:
    """The broker that tests share; one that raises its memory alarm or kills it starts its own."""
    return session_stack.rabbitmq()


@pytest.fixture(scope="session")
def rabbitmq4(session_stack: Stack) -> Any:
    return session_stack.rabbitmq(kind="rabbitmq4")


@pytest.fixture(scope="session")
def rocketmq(session_stack: Stack) -> Any:
    return session_stack.rocketmq()


@pytest.fixture(scope="session")
def elastic_server(session_stack: Stack) -> Any:
    return session_stack.elasticsearch()


@pytest.fixture(scope="session")
def opensearch_server(session_stack: Stack) -> Any:
    return session_stack.opensearch()


@pytest.fixture(scope="session")
def seaweedfs(session_stack: Stack) -> Any:
    """The object store that tests share."""
    if shutil.which("go") is None:
        pytest.skip("SeaweedFS is built by Go, which this machine does not have")
    return session_stack.seaweedfs()


@pytest.fixture
def schema(mysql: Any) -> Iterator[str]:
    """A schema of the test's own, empty."""
    name = f"shop{_worker}{next(_numbers)}"
    with pymysql.connect(**mysql.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    yield name
    with pymysql.connect(**mysql.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")


@pytest.fixture
def execute(mysql: Any, schema: str) -> Iterator[Callable[..., Any]]:
    """Runs statements in the test's schema as root, each committed at once; returns the rows of the last."""
    connection = pymysql.connect(**mysql.connection("root"), database=schema, autocommit=True, charset="utf8mb4")

    def run(*statements: str) -> Any:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    yield run
    connection.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[..., DaemonProcess]]:
    """Makes daemons: daemon(shop=destination_toml(...)); all are ended with the test."""
    made: list[DaemonProcess] = []

    def make(*, settings: str = "", node: str = "test", **destinations: str) -> DaemonProcess:
        made.append(DaemonProcess(tmp_path / f"daemon{len(made)}", destinations, settings=settings, node=node))
        return made[-1]

    yield make
    for process in made:
        process.kill()


__all__ = ["destination_toml"]
