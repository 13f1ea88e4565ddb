"""Adapters of each kind, made in the same way for the tests of their port's contract.

A new adapter is one entry in its port's table: SINKS, CLUSTERS, LOCKS, STATES or PARKINGS. An entry gets `fixture`,
which finds a fixture by its name (`fixture("kafka")` is a server from devstack), and a name that no other test has.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack.ports import free_port
from devstack.servers.rabbitmq import PASSWORD, USER
from headrace.adapters.local.lock import FileLock
from headrace.canal_wire.wire import packet_of
from headrace.cli.wiring import ADAPTERS
from headrace.cluster.cluster import Cluster, Member
from headrace.lease import Guard, Lease
from headrace.ports.lock import Lock
from headrace.ports.parking import ParkingStore
from headrace.ports.registry import Registry
from headrace.ports.sink import Sink, SinkRouting, SinkUse
from headrace.ports.state import StateStore
from headrace.settings.daemon import StateSettings
from headrace.settings.load import Loader
from tests.canal_client import CanalClient, Refused

TOYS = Registry(
    {
        **ADAPTERS.adapters,
        "sink": {**ADAPTERS.adapters["sink"], "toy": "tests.toys.sink:ToySinkAdapter"},
        "message": {**ADAPTERS.adapters["message"], "toy": "tests.toys.format:ToyFormatAdapter"},
        "cluster": {**ADAPTERS.adapters["cluster"], "toy": "tests.toys.cluster:ToyClusterAdapter"},
    }
)

Fixture = Callable[[str], Any]
Section = Callable[[Fixture, str], dict[str, Any]]
"""The keys of an adapter's section, without the one that names it."""
MakeSink = Callable[..., Sink]
MakeCluster = Callable[[str], Awaitable[Cluster]]
MakeLock = Callable[[str], Awaitable[Lock]]
MakeState = Callable[[], StateStore]


def kafka_sink(fixture: Fixture, topic: str) -> dict[str, Any]:
    return {"bootstrap_servers": fixture("kafka").bootstrap_servers, "create_topics": True}


def rabbitmq_sink(fixture: Fixture, topic: str) -> dict[str, Any]:
    login = {"hosts": fixture("rabbitmq").address, "user": USER, "password": PASSWORD}
    return {**login, "declare": True, "queue": topic, "exchange": topic, "exchange_type": "fanout"}


def rocketmq_sink(fixture: Fixture, topic: str) -> dict[str, Any]:
    server = fixture("rocketmq")
    server.create_topic(topic, message_type="FIFO")
    return {"hosts": server.endpoints}


def zookeeper_cluster(fixture: Fixture, name: str) -> dict[str, Any]:
    return {"hosts": fixture("zookeeper").hosts, "root": f"/{name}", "session_timeout": 10.0}


def etcd_cluster(fixture: Fixture, name: str) -> dict[str, Any]:
    return {"endpoints": fixture("etcd").address, "root": f"/{name}", "session_timeout": 10.0}


def file_lock(fixture: Fixture, name: str) -> Callable[[str], Lock]:
    path: Path = fixture("tmp_path")
    return lambda node: FileLock(path / "shop.lock", node, poll=0.01)


def sqlite_state(fixture: Fixture, name: str) -> MakeState:
    path: Path = fixture("tmp_path")
    return lambda: TOYS.state_adapter("sqlite").store(StateSettings(path=path / "state.db"))


def kafka_state(fixture: Fixture, name: str) -> MakeState:
    adapter = TOYS.sink_adapter("kafka")
    raw = {**kafka_sink(fixture, name), "type": "kafka", "delivery": "exactly_once", "state_topic": f"{name}-state"}
    settings = adapter.section.model_validate(raw)
    return lambda: adapter.state_store(settings, "shop")


def mysql_parking(fixture: Fixture, name: str) -> dict[str, Any]:
    server = fixture("mysql")
    fixture("drop_database")(name)
    login = server.connection("root")
    account = {"user": login["user"], "password": login.get("password", "")}
    return {"host": server.host, "port": server.port, "database": name, **account}


SINKS: dict[str, Section] = {
    "null": lambda fixture, topic: {},
    "jsonl": lambda fixture, topic: {"path": str(fixture("tmp_path") / "out.jsonl")},
    "toy": lambda fixture, topic: {"shelf": str(fixture("tmp_path") / "shelf")},
    "kafka": kafka_sink,
    "rabbitmq": rabbitmq_sink,
    "rocketmq": rocketmq_sink,
    "canal": lambda fixture, topic: {"listen": f"127.0.0.1:{fixture('canal_port')}"},
}
"""By type, the section [sink] of a sink that publishes to a topic."""
VALUES: dict[str, Callable[[int], bytes]] = {"canal": lambda number: packet_of(number, b"", 2, b"")}
"""Values for a sink that takes one format only."""
CLUSTERS: dict[str, Section] = {
    "toy": lambda fixture, name: {"room": name},
    "zookeeper": zookeeper_cluster,
    "etcd": etcd_cluster,
}
"""By the name of its section, the section of a cluster service. Its locks are tried with LOCKS."""
LOCKS: dict[str, Callable[[Fixture, str], Callable[[str], Lock]]] = {"file": file_lock}
"""Locks without a cluster service: what makes one for a node."""
STATES: dict[str, Callable[[Fixture, str], MakeState]] = {"sqlite": sqlite_state, "kafka": kafka_state}
"""State stores that count the epochs themselves, those of sinks with them: what makes one, each of the same contents.
Those of cluster services are tried with their clusters."""
PARKINGS: dict[str, Section] = {"mysql": mysql_parking}
"""By store, the section [parking] of a parking store. The one within the state store is tried beside them; that of a
sink which is capable of exactly once is written by the sink itself, and tried with it."""


@pytest.fixture
def name() -> str:
    return f"contract{uuid.uuid4().hex[:8]}"


class Acknowledging(threading.Thread):
    """A client of Canal's protocol that acknowledges whatever comes, as long as somebody listens."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self._stop_it = port, threading.Event()

    def run(self) -> None:
        while not self._stop_it.wait(0.02):
            with contextlib.suppress(OSError, EOFError, Refused), CanalClient("127.0.0.1", self.port, "shop") as client:
                client.subscribe()
                while not self._stop_it.wait(0.005):
                    batch = client.get()
                    client.ack(batch.id)

    def end(self) -> None:
        self._stop_it.set()
        self.join(30)


@pytest.fixture
def canal_port() -> Iterator[int]:
    """A port whose listener has a client."""
    client = Acknowledging(free_port())
    client.start()
    yield client.port
    client.end()


@pytest.fixture(params=[*SINKS])
def make_sink(request: pytest.FixtureRequest, name: str) -> MakeSink:
    """Makes sinks of one kind as wiring does, by the registered adapter; `topic` is where their messages go to."""
    adapter = TOYS.sink_adapter(request.param)
    section = {"type": request.param, **SINKS[request.param](request.getfixturevalue, name)}

    def make(lease: Lease | None = None) -> Sink:
        settings = adapter.section.model_validate(section)
        made = adapter.sink(settings, SinkUse("shop", lease or Lease(), SinkRouting(("shop",))))
        made.topic = name  # type: ignore[attr-defined]
        made.value = VALUES.get(request.param, lambda number: b"value %d" % number)  # type: ignore[attr-defined]
        return made

    return make


@asynccontextmanager
async def started(service: str, fixture: Fixture, name: str) -> AsyncIterator[MakeCluster]:
    """Makes started clusters of a service, each as a daemon of the given node sees it, and closes them."""
    adapter, made = TOYS.cluster_adapter(service), list[Cluster]()
    settings = adapter.section.model_validate(CLUSTERS[service](fixture, name))

    async def make(node: str) -> Cluster:
        cluster = Cluster(adapter.service(settings), Member(node, f"{node}:9180"))
        await cluster.start()
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        await cluster.close()


@pytest.fixture(params=[*CLUSTERS])
async def make_cluster(request: pytest.FixtureRequest, name: str) -> AsyncIterator[MakeCluster]:
    """Makes started clusters, each as a daemon of the given node sees it."""
    async with started(request.param, request.getfixturevalue, name) as make:
        yield make


@pytest.fixture(params=[*LOCKS, *CLUSTERS])
async def make_lock(request: pytest.FixtureRequest, name: str) -> AsyncIterator[MakeLock]:
    """Makes locks of one destination, each as a daemon of the given node has it."""
    kind, fixture, made = request.param, request.getfixturevalue, list[Lock]()
    async with AsyncExitStack() as stack:
        if kind in LOCKS:
            alone = LOCKS[kind](fixture, name)
        else:
            cluster = await stack.enter_async_context(started(kind, fixture, name))

        async def make(node: str) -> Lock:
            made.append(alone(node) if kind in LOCKS else (await cluster(node)).lock("shop"))
            return made[-1]

        yield make
        for lock in made:
            await lock.release()


@pytest.fixture(params=[*STATES])
def make_state(request: pytest.FixtureRequest, name: str) -> MakeState:
    """Makes state stores of the same contents."""
    return STATES[request.param](request.getfixturevalue, name)


@pytest.fixture(params=["state", *PARKINGS])
async def make_parking(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Any]:
    """Makes opened parking stores of one destination, all of the same contents."""
    kind, fixture, epochs = request.param, request.getfixturevalue, itertools.count(1)
    new_state, states, made = sqlite_state(fixture, name), list[StateStore](), list[ParkingStore]()
    within = kind == "state"
    if not within:
        adapter = TOYS.parking_adapter(kind)
        settings = adapter.section.model_validate({"store": kind, **PARKINGS[kind](fixture, name)})

    async def inside() -> ParkingStore:
        states.append(new_state())
        await states[-1].open()
        found = TOYS.state_adapter("sqlite").parking(states[-1], "shop")
        assert found is not None
        return found

    async def make() -> ParkingStore:
        made.append(await inside() if within else adapter.store(settings, "shop"))
        await made[-1].open()
        return made[-1]

    async def epoch() -> Guard:
        """The destination is taken over: a guard above all before."""
        return await states[0].begin_epoch("shop") if within else Guard(next(epochs), 0)

    make.epoch = epoch  # type: ignore[attr-defined]
    yield make
    for store in made:
        await store.close()
    for state in states:
        await state.close()


def loader(env: dict[str, str] | None = None) -> Loader:
    """Reads configurations that may name the toys."""
    return Loader(TOYS, env or {})


@pytest.fixture
def drop_database(mysql: Any) -> Iterator[Any]:
    """Drops a database of the test's own."""
    names: list[str] = []
    yield names.append
    with pymysql.connect(**mysql.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")
