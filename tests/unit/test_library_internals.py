"""What is done below the public interfaces of client libraries: in one module each, with versions that are known."""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib
import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import aiokafka
import pytest
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaError
from aiokafka.producer.message_accumulator import MessageAccumulator

from headrace.adapters.kafka import aiokafka_internals
from headrace.adapters.kafka.aiokafka_internals import connect_by_ours
from headrace.tasks import cancel
from headrace_spark.errors import SessionError
from headrace_spark.session import pyspark_internals
from sim.kafka.wire import Api
from tests.sim.kafka_models import listening
from tests.streams import until

ROOT = Path(__file__).parents[2]
INTERNALS = {
    "aetcd": "headrace.adapters.etcd.aetcd_internals",
    "aiokafka": "headrace.adapters.kafka.aiokafka_internals",
    "aiomysql": "headrace.mysql.wire.aiomysql_internals",
    "aiormq": "headrace.adapters.rabbitmq.aiormq_internals",
    "kazoo": "headrace.adapters.zookeeper.kazoo_internals",
    "pyspark": "headrace_spark.session.pyspark_internals",
    "rocketmq": "headrace.adapters.rocketmq.rocketmq_internals",
}
DOCUMENTED = {
    "aiokafka": {"aiokafka", "aiokafka.abc", "aiokafka.admin", "aiokafka.admin.config_resource", "aiokafka.errors"},
    "aiomysql": {"aiomysql"},
    "pymysql": {"pymysql", "pymysql.err", "pymysql.connections"},
    "aio_pika": {"aio_pika", "aio_pika.abc", "aio_pika.exceptions"},
    "aiormq": {"aiormq"},
    "pamqp": set[str](),
    "kazoo": {
        "kazoo.client",
        "kazoo.exceptions",
        "kazoo.handlers.threading",
        "kazoo.protocol.states",
        "kazoo.retry",
        "kazoo.security",
    },
    "aetcd": set[str](),
    "rocketmq": {"rocketmq", "rocketmq.v5.exception"},
    "pyspark": {
        "pyspark",
        "pyspark.sql",
        "pyspark.sql.functions",
        "pyspark.sql.streaming.listener",
        "pyspark.sql.streaming.query",
        "pyspark.sql.types",
    },
}
"""Modules of each library that may be imported elsewhere. The parser of mysql-replication takes PyMySQL's packets."""
OTHERS = {"_exit", "_jvm", "_jsc"}
"""os._exit(), and Spark's only ways to Java."""


@pytest.mark.parametrize("module", INTERNALS.values())
def test_the_installed_libraries_are_ones_whose_insides_are_known(module: str) -> None:
    known: dict[str, tuple[str, ...]] = importlib.import_module(module).KNOWN_VERSIONS
    for name, versions in known.items():
        assert version(name) in versions, (
            f"{name} {version(name)} is installed, and {module} knows {', '.join(versions)}: compare what stands below "
            "its KNOWN_VERSIONS with the new version, run the integration tests of that system, and add the version"
        )


@functools.cache
def sources() -> list[tuple[Path, ast.Module]]:
    folders = ("common", "daemon", "documents", "spark_consumer", "rabbitmq_consumer")
    files = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return [(path, ast.parse(path.read_text())) for path in files]


def test_no_private_attribute_of_a_library_is_touched_elsewhere() -> None:
    ours, touched = set[str](), list[tuple[str, str]]()
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
                mine = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
                if mine:
                    ours.add(node.attr)
                elif not path.name.endswith(("_internals.py", "_pb2.py")):  # the latter is made by protoc
                    touched.append((f"{path.relative_to(ROOT)}:{node.lineno}", node.attr))
    known = ours | OTHERS | {"_replace", "_asdict", "_fields", "_make"}
    assert [f"{place} touches {name}" for place, name in touched if name not in known] == []


def submodule(module: str, name: str) -> str:
    """The module that `from module import name` takes its name from, or that it imports."""
    library = module.partition(".")[0]
    if library in DOCUMENTED and hasattr(importlib.import_module(module), "__path__"):
        return f"{module}.{name}" if importlib.util.find_spec(f"{module}.{name}") is not None else module
    return module


def test_modules_of_a_library_that_it_does_not_document_are_imported_in_one_place() -> None:
    found = []
    for path, tree in sources():
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [submodule(node.module, alias.name) for alias in node.names]
            for name in names:
                library = name.partition(".")[0]
                if library in DOCUMENTED and name not in DOCUMENTED[library]:
                    found.append((f"{path.relative_to(ROOT)}", name))
    assert [f"{place} imports {name}" for place, name in found if not place.endswith("_internals.py")] == []


def test_a_pyspark_without_what_we_need_is_one_sentence_with_the_versions_that_have_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.java_gateway", None)
    monkeypatch.setattr(pyspark_internals.pyspark, "__version__", "5.0.0")
    with pytest.raises(SessionError) as caught:
        pyspark_internals.launch_jvm()
    versions = ", ".join(pyspark_internals.KNOWN_VERSIONS["pyspark"])
    said = f"Spark did not start: PySpark 5.0.0 is installed, and headrace has run with {versions} only ("
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("): pip install 'headrace[spark]'")


UNTOUCHED = """
import asyncio, importlib, pkgutil, sys

def modules(package):
    root = importlib.import_module(package)
    for found in pkgutil.walk_packages(root.__path__, package + "."):
        try:
            yield importlib.import_module(found.name)
        except ImportError:  # for what is not installed
            pass
    yield root

def attributes(packages):
    for module in [module for package in packages for module in modules(package)]:
        for name, value in [*vars(module).items()]:
            yield (module.__name__, name), value
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield from (((module.__name__, name, inner), what) for inner, what in vars(value).items())

package, section, *libraries = sys.argv[1:]
before = dict(attributes(libraries))
[*modules(package)]

async def connect():
    from headrace.cli.wiring import ADAPTERS
    from headrace.errors import SinkError
    from headrace.lease import Lease
    from headrace.ports.sink import SinkUse

    adapter = ADAPTERS.sink_adapter(package.rpartition(".")[2])
    try:
        await adapter.sink(adapter.section.model_validate_json(section), SinkUse("d", Lease())).start()
    except SinkError as error:
        assert "be reached" in str(error), error
    else:
        raise AssertionError("nobody is at port 1")

if section:
    asyncio.run(connect())
after = dict(attributes(libraries))
counters = ("_PRODUCER_CLIENT_ID_SEQUENCE", "__warningregistry__")
for name in before.keys() | after.keys():
    if before.get(name) is not after.get(name) and name[-1] not in counters:
        print(*name)
"""
"""Prints what of the libraries is another object once their adapter was imported and has tried to connect."""


KAFKA = '{"type": "kafka", "bootstrap_servers": "127.0.0.1:1", "compression": "lz4"}'
RABBITMQ = '{"type": "rabbitmq", "hosts": "127.0.0.1:1", "user": "u", "password": "p", "exchange": "e"}'


@pytest.mark.parametrize(
    "arguments",
    [
        ("headrace.adapters.kafka", KAFKA, "aiokafka"),
        ("headrace.adapters.rabbitmq", RABBITMQ, "aio_pika", "aiormq", "pamqp"),
        ("headrace.adapters.zookeeper", "", "kazoo"),
        ("headrace.mysql", "", "aiomysql", "pymysql"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_program_that_imports_an_adapter_keeps_its_own_client_library(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", UNTOUCHED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stderr


async def test_a_batch_that_fails_while_it_waits_to_be_sent_again_is_no_error_of_the_loop() -> None:
    """aiokafka logs a KeyError, with a traceback, for each batch that waits when an outage ends a producer."""
    partition, raised = aiokafka.TopicPartition("t", 0), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    accumulator = MessageAccumulator(Mock(), 1 << 20, 0, 60.0)
    aiokafka_internals.note_tasks(Mock(_message_accumulator=accumulator))
    builder = accumulator.create_builder()
    builder.append(timestamp=0, key=None, value=b"a")
    done = await accumulator.add_batch(builder, partition, 1.0)
    accumulator.reenqueue(accumulator._pop_batch(partition))
    accumulator.fail_all(KafkaError("the producer was ended"))
    with pytest.raises(KafkaError):
        await done
    await asyncio.sleep(0)
    assert raised == []


async def test_a_consumer_closes_its_connections_although_a_request_had_not_begun() -> None:
    """aiokafka awaits what it has cancelled: a task without a first step raises that."""
    consumer: Any = aiokafka_internals.Consumer(bootstrap_servers="127.0.0.1:1")
    closed = asyncio.Event()

    async def close() -> None:
        closed.set()

    consumer._client.close = close
    request = asyncio.create_task(asyncio.sleep(60))
    consumer._fetcher = Fetcher.__new__(Fetcher)
    consumer._fetcher._fetch_task, consumer._fetcher._pending_tasks = asyncio.create_task(asyncio.sleep(60)), {request}
    consumer._fetcher._fetch_waiters = set()
    await consumer.stop()
    assert closed.is_set()
    assert request.cancelled()


async def test_a_connection_that_is_opened_while_its_client_is_closed_is_closed_too() -> None:
    async with listening() as cluster:
        consumer: Any = connect_by_ours(aiokafka_internals.Consumer(bootstrap_servers=cluster.bootstrap_servers))
        client = consumer._client
        await client.bootstrap()
        cluster.faults.delay_answers(0.1, Api.API_VERSIONS)
        opening = asyncio.create_task(client._get_conn(1, group=1))
        await until(lambda: not cluster.faults.rules)
        await consumer.stop()
        assert await opening is None
        await until(lambda: not any(broker.connections for broker in cluster.brokers.values()))


async def test_a_client_that_is_cancelled_at_its_start_leaves_no_connection() -> None:
    async with listening() as cluster:
        consumer: Any = connect_by_ours(aiokafka_internals.Consumer(bootstrap_servers=cluster.bootstrap_servers))
        cluster.faults.delay_answers(60, Api.METADATA)
        starting = asyncio.create_task(consumer.start())
        await until(lambda: not cluster.faults.rules)
        await cancel(starting)
        await consumer.stop()
        await until(lambda: not any(broker.connections for broker in cluster.brokers.values()))


async def test_a_cancellation_while_a_client_is_closed_is_not_dropped() -> None:
    async def asking() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)  # it is being ended when we are cancelled

    producer: Any = aiokafka_internals.Producer(bootstrap_servers="127.0.0.1:1")
    producer.client._sync_task = asyncio.create_task(asking())
    await asyncio.sleep(0)
    closing = asyncio.create_task(producer.client.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert producer.client._sync_task is None
    producer._closed = True
