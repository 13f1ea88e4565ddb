"""What a process shares with other daemons, or keeps for itself: state stores and locks, by [zookeeper] and [state]."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from headrace.adapters.kafka.exactly_once import ExactlyOnceKafkaSink
from headrace.adapters.kafka.parking import KafkaFailedStore
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace.adapters.kafka.state import KafkaStore
from headrace.adapters.kafka.state_topic import StateTopic
from headrace.adapters.kafka.transactor import Transactor
from headrace.adapters.local.lock import FileLock
from headrace.adapters.mysql_parking.store import MySqlFailedStore
from headrace.adapters.registry import make_sink
from headrace.adapters.sqlite import state as sqlite
from headrace.adapters.sqlite.parking import SqliteFailedStore
from headrace.adapters.sqlite.state import SqliteStore
from headrace.adapters.zookeeper.counts import Counts
from headrace.adapters.zookeeper.lock import ZooKeeperLock
from headrace.adapters.zookeeper.session import Session
from headrace.adapters.zookeeper.state import ZooKeeperStore
from headrace.cluster.rebalance import Spread
from headrace.formats.registry import make_format
from headrace.lease import Lease
from headrace.parking.parking import Parking
from headrace.ports.format import ValueFormat
from headrace.ports.lock import Lock
from headrace.ports.parking import FailedStore
from headrace.ports.sink import Desk, Sink
from headrace.ports.sink_plan import Plan
from headrace.ports.state import StateStore
from headrace.rules.topics import ANY_NAME, TopicPartitions, TopicRules
from headrace.settings.daemon import StateSettings
from headrace.settings.destination import DestinationSettings, Settings


class Coordination:
    """Opened once a process. Stores are shared by the destinations that keep their position in the same place.

    `command`: for a command of an operator, which is no member of the cluster and makes no store.
    """

    def __init__(self, settings: Settings, *, command: bool = False) -> None:
        self._settings, self._command = settings, command
        self._files: dict[Path, SqliteStore] = {}
        self.session: Session | None = None
        """Open with [zookeeper] only."""
        self._shared: ZooKeeperStore | None = None
        self._spreading: asyncio.Task[None] | None = None
        address = settings.http.address
        self._address = f"{address[0]}:{address[1]}" if address else socket.gethostname()
        self._node = f"{settings.daemon.node}, command {os.getpid()}" if command else settings.daemon.node

    async def open(self) -> None:
        """Connects to what all destinations need. Raises LockServiceError or StateStoreError."""
        daemon, settings = self._settings.daemon, self._settings.zookeeper
        if settings:
            info = {"address": self._address, "max": daemon.max_destinations}
            self.session = Session(
                settings, self._node, info, member=not self._command, capacity=daemon.max_destinations
            )
            await self.session.start()
            self._shared = ZooKeeperStore(self.session)
            if not self._command:
                self._spreading = asyncio.create_task(Spread(self.session, self._node).run(), name="spread")
        if not self._command:
            for destination in self._settings.destinations.values():
                await self.store(destination).open()

    @property
    def counts(self) -> Counts | None:
        """Of the ZooKeeper session, once open() has returned; None without [zookeeper]."""
        return self.session.counts if self.session is not None else None

    def store(self, destination: DestinationSettings) -> StateStore:
        """Where the destination's position is kept. open() has to be called before it is used, by each user."""
        if kafka := _exactly_once(destination):
            return KafkaStore(kafka, destination.name)
        state = self._state(destination)
        if state.store == "zookeeper":
            assert self._shared is not None
            return self._shared
        if state.path not in self._files:
            self._files[state.path] = SqliteStore(state.path)
        return self._files[state.path]

    def failed_store(self, destination: DestinationSettings) -> FailedStore | None:
        """Where its failed messages are kept; None when its sink sets none aside."""
        return self._failed_stores(destination)[0] if destination.parks else None

    def former_stores(self, destination: DestinationSettings) -> list[FailedStore]:
        """Where failed messages may wait that nobody looks for any more, because the configuration was another one."""
        return self._failed_stores(destination)[1 if destination.parks else 0 :]

    def _failed_stores(self, destination: DestinationSettings) -> list[FailedStore]:
        """The one that [failed] names, and others that the destination could have used."""
        stores: list[FailedStore] = []
        if destination.failed.store == "mysql":
            stores.append(MySqlFailedStore(destination.failed, destination.name))
        if kafka := _exactly_once(destination):
            stores.append(KafkaFailedStore(kafka, destination.name, destination.failed.topic))
        elif isinstance(store := self.store(destination), SqliteStore):
            stores.append(SqliteFailedStore(store, destination.name))
        return stores

    def lock(self, destination: DestinationSettings) -> Lock:
        """The destination's lock, not taken."""
        if self.session is not None:
            return ZooKeeperLock(self.session, destination.name, self._node, self._address)
        path = self._state(destination).path
        return FileLock(path.parent / f"{destination.name}.lock", self._settings.daemon.node)

    async def problems(self, destination: DestinationSettings, *, must_exist: bool = False) -> list[str]:
        """What is wrong with the destination's store, a sentence each; nothing is made or changed."""
        if kafka := _exactly_once(destination):
            return await StateTopic(kafka, destination.name).problems(must_exist=must_exist)
        state = self._state(destination)
        if state.store == "zookeeper":
            assert self._shared is not None
            return await self._shared.problems(destination.name, must_exist=must_exist)
        if must_exist and not state.path.exists():
            return [
                f"there is no state store {state.path.absolute()}: no daemon has run with this configuration -> run "
                "the command in the daemon's working directory: a relative [state] path counts from there"
            ]
        return sqlite.inspect(state.path)

    def describe(self, destination: DestinationSettings) -> str:
        """The store's name for people."""
        if kafka := _exactly_once(destination):
            return f"the topic {kafka.state_topic}"
        state = self._state(destination)
        if state.store == "zookeeper" and self._settings.zookeeper is not None:
            return f"ZooKeeper at {','.join(self._settings.zookeeper.hosts)}"
        return str(state.path)

    async def close(self) -> None:
        """Gives everything back; safe to call twice."""
        if self._spreading is not None:
            self._spreading.cancel()
            await asyncio.gather(self._spreading, return_exceptions=True)
        if self.session is not None:
            await self.session.close()
        for store in self._files.values():
            await store.close()

    def _state(self, destination: DestinationSettings) -> StateSettings:
        return self._settings.state_of(destination)


def open_delivery(
    destination: DestinationSettings, store: StateStore, lease: Lease, desk: Desk | None = None
) -> tuple[Sink, StateStore]:
    """A new sink, not started, and the store of its run: the shared one, unless the sink keeps the position itself."""
    if kafka := _exactly_once(destination):
        transactor = Transactor(kafka, destination.name, lease)
        kept = desk.store if isinstance(desk, Parking) and isinstance(desk.store, KafkaFailedStore) else None
        failed = kept.topic if kept is not None else None
        sink = ExactlyOnceKafkaSink(kafka, transactor, desk, plan_of(destination), failed)
        if kept is not None:
            kept.writer = sink.write
        return sink, KafkaStore(kafka, destination.name, transactor)
    return make_sink(destination.sink, lease, desk, plan_of(destination)), store


def plan_of(destination: DestinationSettings) -> Plan:
    """What the sink has to know of the destination's other sections."""
    route, debezium = destination.route, destination.message.debezium
    apart = {debezium.transaction_topic, debezium.schema_topic} if destination.message.format == "debezium" else set()
    apart -= {"", route.topic}
    counts = TopicPartitions.parse(route.dynamic_topic_partitions)

    def partitions(topic: str) -> int:
        if topic in apart:  # [route] does not count there
            return 1
        return max(counts.of(topic) or route.partitions, route.partition + 1)

    fmt = make_format(destination)
    named = TopicRules.parse(route.dynamic_topic, names=ANY_NAME).topics
    topics = tuple(dict.fromkeys((route.topic, *sorted(apart), *named)))
    return Plan(topics, partitions, fmt.cut) if isinstance(fmt, ValueFormat) else Plan(topics, partitions)


def leased_store(destination: DestinationSettings, store: StateStore, lease: Lease) -> StateStore:
    """The destination's store for a write between two runs, which is refused when the lease has lapsed."""
    kafka = _exactly_once(destination)
    return KafkaStore(kafka, destination.name, lease=lease) if kafka else store


def _exactly_once(destination: DestinationSettings) -> KafkaSinkSettings | None:
    """The sink's settings where the sink keeps the position."""
    sink = destination.sink
    return sink if isinstance(sink, KafkaSinkSettings) and destination.exactly_once else None
