"""Adapters of each kind, made in the same way for the tests of their port's contract. Those that need a server get it
from devstack."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack.servers.rabbitmq import PASSWORD, USER
from headrace.adapters.local.lock import FileLock
from headrace.adapters.zookeeper.cluster import ZooKeeperCluster
from headrace.adapters.zookeeper.settings import ZooKeeperSettings
from headrace.cli.wiring import ADAPTERS
from headrace.lease import Guard, Lease
from headrace.ports.cluster import Cluster, Lock, Member
from headrace.ports.parking import ParkingStore
from headrace.ports.sink import Sink, SinkRouting, SinkUse
from headrace.ports.state import StateStore
from headrace.settings.daemon import StateSettings
from headrace.settings.load import Loader
from tests.toys.cluster import ToyCluster, ToyClusterSettings

TOYS = ADAPTERS.plus(
    {
        "sink": {"toy": "tests.toys.sink:ToySinkAdapter"},
        "message": {"toy": "tests.toys.format:ToyFormatAdapter"},
        "cluster": {"toy": "tests.toys.cluster:ToyClusterAdapter"},
    }
)
_roots = itertools.count(1)

MakeSink = Callable[..., Sink]
MakeCluster = Callable[[str], Any]
MakeLock = Callable[[str], Any]


def sink_of(section: dict[str, Any], lease: Lease | None = None) -> Sink:
    """A sink as wiring makes it, by the registered adapter of its type."""
    adapter = TOYS.sink_adapter(section["type"])
    settings = adapter.section.model_validate(section)
    return adapter.sink(settings, SinkUse("shop", lease or Lease(), SinkRouting(("shop",))))


@pytest.fixture(params=["null", "jsonl", "toy", "kafka", "rabbitmq", "rocketmq"])
def make_sink(request: pytest.FixtureRequest, tmp_path: Path) -> MakeSink:
    """Makes sinks of one kind; `where` is the topic that their messages go to."""
    kind, topic = request.param, f"contract-{uuid.uuid4().hex[:8]}"
    section: dict[str, Any] = {"type": kind}
    if kind == "jsonl":
        section["path"] = str(tmp_path / "out.jsonl")
    elif kind == "toy":
        section["shelf"] = topic
    elif kind == "kafka":
        section |= {"bootstrap_servers": request.getfixturevalue("kafka").bootstrap_servers, "create_topics": True}
    elif kind == "rabbitmq":
        server = request.getfixturevalue("rabbitmq")
        login = {"servers": server.address, "user": USER, "password": PASSWORD}
        section |= {**login, "declare": True, "queue": topic, "exchange": topic, "exchange_type": "fanout"}
    elif kind == "rocketmq":
        server = request.getfixturevalue("rocketmq")
        server.create_topic(topic, message_type="FIFO")
        section["endpoints"] = server.endpoints

    def make(lease: Lease | None = None) -> Sink:
        made = sink_of(section, lease)
        made.topic = topic  # type: ignore[attr-defined]
        return made

    return make


@pytest.fixture(params=["toy", "zookeeper"])
async def make_cluster(request: pytest.FixtureRequest) -> AsyncIterator[MakeCluster]:
    """Makes started clusters, each as a daemon of the given name sees it."""
    made: list[Cluster] = []
    name = f"contract{next(_roots)}"
    if request.param == "zookeeper":
        hosts = request.getfixturevalue("zookeeper").hosts

    async def make(node: str) -> Cluster:
        member = Member(node, f"{node}:9180")
        if request.param == "toy":
            cluster: Cluster = ToyCluster(ToyClusterSettings(room=name), member)
        else:
            raw = {"hosts": hosts, "root": f"/{name}", "session_timeout": 2.0}
            cluster = ZooKeeperCluster(ZooKeeperSettings.model_validate(raw), member)
        await cluster.start()
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        await cluster.close()


@pytest.fixture(params=["file", "toy", "zookeeper"])
async def make_lock(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeLock]:
    """Makes locks of one destination, each as a daemon of the given name has it."""
    made: list[Lock] = []
    clusters: list[Cluster] = []
    name = f"locks{next(_roots)}"
    if request.param == "zookeeper":
        hosts = request.getfixturevalue("zookeeper").hosts

    async def make(node: str) -> Lock:
        if request.param == "file":
            made.append(FileLock(tmp_path / "shop.lock", node, poll=0.01))
            return made[-1]
        member = Member(node, f"{node}:9180")
        if request.param == "toy":
            cluster: Cluster = ToyCluster(ToyClusterSettings(room=name), member)
        else:
            raw = {"hosts": hosts, "root": f"/{name}", "session_timeout": 2.0}
            cluster = ZooKeeperCluster(ZooKeeperSettings.model_validate(raw), member)
        await cluster.start()
        clusters.append(cluster)
        made.append(cluster.lock("shop"))
        return made[-1]

    yield make
    for lock in made:
        await lock.release()
    for cluster in clusters:
        await cluster.close()


def loader(env: dict[str, str] | None = None) -> Loader:
    """Reads configurations that may name the toys."""
    return Loader(TOYS, env or {})


@pytest.fixture
def drop_database(mysql: Any) -> Any:
    """Drops a database of the test's own."""
    names: list[str] = []
    yield names.append
    with pymysql.connect(**mysql.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


@pytest.fixture(params=["sqlite", "kafka"])
def make_state(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StateStore]:
    """Makes state stores of one place that count the epochs themselves; those of cluster services are tried with
    their clusters."""
    if request.param == "sqlite":
        return lambda: TOYS.state_adapter("sqlite").store(StateSettings(path=tmp_path / "state.db"))
    servers = request.getfixturevalue("kafka").bootstrap_servers
    adapter, name = TOYS.sink_adapter("kafka"), f"contract{uuid.uuid4().hex[:8]}"
    raw = {"type": "kafka", "bootstrap_servers": servers, "delivery": "exactly_once", "state_topic": f"{name}-state"}
    settings = adapter.section.model_validate(raw)
    return lambda: adapter.state_store(settings, "shop")


@pytest.fixture(params=["state", "mysql"])
async def make_parking(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """Makes opened parking stores of one destination in one place. That of a sink which is capable of exactly once is
    written by the sink itself, and tried with it."""
    name = f"contract{uuid.uuid4().hex[:8]}"
    states: list[StateStore] = []
    made: list[ParkingStore] = []
    if request.param == "mysql":
        server = request.getfixturevalue("mysql")
        request.getfixturevalue("drop_database")(name)
        login = server.connection("root")
        section = {"store": "mysql", "host": server.host, "port": server.port, "database": name}
        account = {"user": login["user"], "password": login.get("password", "")}
        parking = TOYS.parking_adapter("mysql")
        of_mysql = parking.section.model_validate({**section, **account})

    async def make() -> ParkingStore:
        if request.param == "mysql":
            store = parking.store(of_mysql, "shop")
        else:
            embedded = TOYS.state_adapter("sqlite")
            states.append(embedded.store(StateSettings(path=tmp_path / "state.db")))
            await states[-1].open()
            found = embedded.parking(states[-1], "shop")
            assert found is not None
            store = found
        await store.open()
        made.append(store)
        return store

    epochs = itertools.count(1)

    async def epoch() -> Guard:
        """The destination is taken over: a guard above all before."""
        if request.param == "mysql":
            return Guard(next(epochs), 0)
        return await states[0].begin_epoch("shop")

    make.epoch = epoch  # type: ignore[attr-defined]
    yield make
    for store in made:
        await store.close()
    for state in states:
        await state.close()
