"""The composition root: the only module that knows the adapters, and builds a process from them.

A new adapter is a package and a line in ADAPTERS, or an entry point of another distribution (docs/adapters.md). It is
imported when the configuration uses it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from headrace.cluster.cluster import Cluster, Member
from headrace.cluster.rebalance import rebalance
from headrace.destination.dependencies import Dependencies
from headrace.errors import ArchiveError, ConfigError
from headrace.lease import Lease
from headrace.model import Position, TableSchema
from headrace.pipeline.process_budget import ProcessBudget
from headrace.pipeline.projection import Projections
from headrace.ports.archive import ArchiveUse
from headrace.ports.documents import DocumentIndex, IndexAccess
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.ports.inspection import Inspection
from headrace.ports.lock import Lock
from headrace.ports.parking import ParkingStore
from headrace.ports.registry import Registry
from headrace.ports.replay import MessageReader, Published, Replay
from headrace.ports.sink import Parking, Sink, SinkRouting, SinkUse, TopicEnds
from headrace.ports.source import Source
from headrace.ports.state import StateStore
from headrace.rules.topics import ANY_NAME, TopicRules, parse_partitions
from headrace.settings.daemon import DaemonSettings, StateSettings
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.values import StartLatest
from headrace.tasks import cancel

if TYPE_CHECKING:
    from headrace.adapters.zookeeper.nodes import ForeignNodes
    from headrace.verify.views import TopicView

ADAPTERS = Registry(
    {
        "source": {"mysql": "headrace.mysql.adapter:MysqlAdapter"},
        "sink": {
            "kafka": "headrace.adapters.kafka.adapter:KafkaAdapter",
            "rabbitmq": "headrace.adapters.rabbitmq.adapter:RabbitMqAdapter",
            "rocketmq": "headrace.adapters.rocketmq.adapter:RocketMqAdapter",
            "canal": "headrace.adapters.canal.adapter:CanalSinkAdapter",
            "jsonl": "headrace.adapters.jsonl.adapter:JsonlAdapter",
            "null": "headrace.adapters.null.sink:NullAdapter",
        },
        "message": {
            "canal": "headrace.formats.canal.adapter:CanalAdapter",
            "canal-protobuf": "headrace.formats.canal.adapter:CanalEntryAdapter",
            "debezium": "headrace.formats.debezium.adapter:DebeziumAdapter",
            "maxwell": "headrace.formats.maxwell.adapter:MaxwellAdapter",
        },
        "cluster": {
            "zookeeper": "headrace.adapters.zookeeper.adapter:ZooKeeperAdapter",
            "etcd": "headrace.adapters.etcd.adapter:EtcdAdapter",
        },
        "state": {"sqlite": "headrace.adapters.sqlite.adapter:SqliteAdapter"},
        "parking": {
            "state": "headrace.ports.parking:ParkingAdapter",
            "mysql": "headrace.adapters.mysql_parking.adapter:MySqlParkingAdapter",
        },
    },
    outside=True,
)


def new_format(destination: DestinationSettings, adapters: Registry = ADAPTERS) -> ValueFormat | KeyedFormat:
    """Returns a new format for the destination's [message]."""
    return adapters.format_adapter(destination.message.format).format(destination.message, destination.name)


def inspection(destination: DestinationSettings, daemon: DaemonSettings, adapters: Registry = ADAPTERS) -> Inspection:
    """Returns what commands ask of a destination's source."""
    return adapters.source_adapter().inspection(destination, daemon, Projections(destination).captures)


def document_index(access: IndexAccess) -> DocumentIndex:
    """Returns an index that consumers write to, not connected yet."""
    from headrace.adapters.elasticsearch.index import ElasticsearchIndex

    return ElasticsearchIndex(access)


@asynccontextmanager
async def foreign_nodes(hosts: str) -> AsyncIterator[ForeignNodes]:
    """Yields nodes of other programs in a ZooKeeper ensemble. Raises LockServiceError, or ConfigError for invalid
    hosts."""
    from headrace.adapters.zookeeper.nodes import ForeignNodes
    from headrace.adapters.zookeeper.settings import ZooKeeperSettings

    try:
        settings = ZooKeeperSettings.model_validate({"hosts": hosts})
    except ValidationError as error:
        raise ConfigError([f"--zookeeper: {error.errors()[0]['msg'].removeprefix('Value error, ')}"]) from None
    async with ForeignNodes(settings) as nodes:
        yield nodes


def check_place(text: str) -> None:
    """Raises ConfigError for a text that no position can be moved to."""
    try:
        ADAPTERS.source_adapter().check_place(text)
    except ValueError as error:
        raise ConfigError([f"'{text}' {error}"]) from None


def kafka_access(bootstrap: str) -> Any:
    """Returns the settings for brokers of which only the hosts are known. Raises ConfigError."""
    try:
        return ADAPTERS.section("sink", "kafka").model_validate({"type": "kafka", "bootstrap_servers": bootstrap})
    except ValidationError as error:
        raise ConfigError([f"--bootstrap: {error.errors()[0]['msg'].removeprefix('Value error, ')}"]) from None


async def topic_records(bootstrap: str, topic: str) -> list[Published]:
    """Returns all records of a topic, in the order of each partition. Raises SinkError or ConfigError."""
    replay = ADAPTERS.sink_adapter("kafka").replay(kafka_access(bootstrap), topic)
    try:
        return [record async for block in replay.read() for record in block]
    finally:
        await replay.close()


async def send_record(bootstrap: str, topic: str, key: bytes, value: bytes) -> None:
    """Writes one record. Raises SinkError or ConfigError."""
    from headrace.adapters.kafka.record import write_record

    await write_record(kafka_access(bootstrap), topic, key, value)


def sink_routing(destination: DestinationSettings, adapters: Registry = ADAPTERS) -> SinkRouting:
    """Returns what the sink needs from the destination's other sections."""
    route = destination.route
    apart = destination.message.capabilities.topics - {route.topic}
    counts = parse_partitions(route.dynamic_topic_partitions)

    def partitions(topic: str) -> int:
        if topic in apart:  # [route] does not apply there
            return 1
        count = counts.first(topic.removeprefix(route.topic_prefix))
        return max(count.partitions if count is not None else route.partitions, route.partition + 1)

    fmt = new_format(destination, adapters)
    named = TopicRules.parse(route.dynamic_topic, names=ANY_NAME, prefix=route.topic_prefix).topics
    topics = tuple(dict.fromkeys((route.topic, *sorted(apart), *named)))
    return SinkRouting(topics, partitions, fmt.split)


def address_of(settings: Settings) -> str:
    """Returns where operators find the daemon: its HTTP address, or its host."""
    address = settings.http.address
    return f"{address[0]}:{address[1]}" if address else socket.gethostname()


class Wiring:
    """The objects of a process; opened once. Destinations that keep their position in the same store share it.

    `command`: for an operator's command, which is not a member of the cluster and creates no store."""

    def __init__(self, settings: Settings, adapters: Registry = ADAPTERS, *, command: bool = False) -> None:
        self._settings, self._adapters, self._command = settings, adapters, command
        self._files: list[tuple[StateSettings, StateStore]] = []
        """Compared, not hashed: the section of a foreign adapter may not be hashable."""
        self._rebalancing: asyncio.Task[None] | None = None
        self._node = f"{settings.daemon.node}, command {os.getpid()}" if command else settings.daemon.node
        self._budget = ProcessBudget(settings.daemon.queue_bytes)
        self._shared: dict[str, Any] = {}
        """What the sources share."""
        self.present: Callable[[], Iterable[DestinationSettings]] = settings.destinations.values
        """Returns the destinations that there are now."""
        self.cluster: Cluster | None = None
        """Set with a cluster service only; usable once open() has returned."""
        if settings.cluster is not None:
            member = Member(self._node, address_of(settings), settings.daemon.max_destinations, command)
            self.cluster = Cluster(adapters.cluster_adapter(settings.service).service(settings.cluster), member)

    async def open(self) -> None:
        """Connects to what all destinations need. Raises LockServiceError or StateStoreError."""
        if self.cluster is not None:
            await self.cluster.start()
            if not self._command:
                work = rebalance(self.cluster, self._node)
                self._rebalancing = asyncio.create_task(work, name="rebalance")
        if not self._command:
            for destination in self._settings.destinations.values():
                await self.store(destination).open()

    async def close(self) -> None:
        """Releases all resources; safe to call twice."""
        await cancel(self._rebalancing)
        if self.cluster is not None:
            await self.cluster.close()
        for _, store in self._files:
            await store.close()

    def dependencies(self, destination: DestinationSettings) -> Dependencies:
        """Returns the ports of one destination."""
        (parked, former), sink = self.parking_stores(destination), self._adapters.sink_adapter(destination.sink.type)
        name, settings, routing = destination.name, destination.sink, sink_routing(destination, self._adapters)
        store, ends, lock = self.store(destination), TopicEnds(), self.lock(destination)
        spool, address = self._settings.daemon.spool, (destination.source.host, destination.source.port)

        def new_sink(lease: Lease, parking: Parking | None) -> Sink:
            use = SinkUse(name, lease, routing, parking, parked, ends, spool, lock.nodes(), address)
            return sink.sink(settings, use)

        def leased_store(lease: Lease) -> StateStore:
            return sink.state_store(settings, name, lease) if destination.exactly_once else store

        return Dependencies(
            store,
            lock,
            lambda: self.source(destination),
            lambda: new_format(destination, self._adapters),
            new_sink,
            lambda: self.probe_sink(destination),
            leased_store,
            parked,
            former,
            self._budget,
            ends,
            self.archive_use(destination),
        )

    def source(self, destination: DestinationSettings) -> Source:
        """Returns the destination's source, without connecting."""
        adapter, captures = self._adapters.source_adapter(), Projections(destination).captures
        return adapter.source(destination, self._settings.daemon, captures, self._budget.ahead, self._shared)

    def inspection(self, destination: DestinationSettings) -> Inspection:
        """Returns what commands ask of the destination's source."""
        return inspection(destination, self._settings.daemon, self._adapters)

    def probe_sink(self, destination: DestinationSettings) -> Sink:
        """Returns a sink for check() only, which disturbs no other."""
        sink = self._adapters.sink_adapter(destination.sink.type)
        use = SinkUse(destination.name, Lease(), sink_routing(destination, self._adapters))
        return sink.probe(destination.sink, use)

    def topic_view(self, destination: DestinationSettings, schema: TableSchema, topic: str) -> TopicView:
        """Returns what a destination has published of a table with this published schema. Raises LookupError."""
        from headrace.verify.views import TopicView

        return TopicView(self.replay(destination, topic), self.message_reader(destination, schema))

    def replay(self, destination: DestinationSettings, topic: str, since_ms: int = 0) -> Replay:
        """Returns the messages of a topic in the destination's sink; see SinkAdapter.replay(). Raises LookupError."""
        return self._adapters.sink_adapter(destination.sink.type).replay(destination.sink, topic, since_ms)

    def message_reader(self, destination: DestinationSettings, schema: TableSchema) -> MessageReader:
        """Returns a reader of a destination's messages about a table. Raises LookupError."""
        if not destination.message.capabilities.readable:
            raise LookupError("messages without before, op and source can't be read back")
        keys = [schema.columns[i].name for i in schema.keys]
        return self._adapters.format_adapter(destination.message.format).reader(schema.schema, schema.table, keys)

    def store(self, destination: DestinationSettings) -> StateStore:
        """Returns the store of the destination's position. Each user must call open() before using it."""
        sink = destination.sink
        if destination.exactly_once:
            return self._adapters.sink_adapter(sink.type).state_store(sink, destination.name)
        state = self._settings.state_of(destination)
        if self.cluster is not None and state.store == self._settings.service:
            return self.cluster.store
        known = next((store for settings, store in self._files if settings == state), None)
        if known is None:
            known = self._adapters.state_adapter(state.store).store(state)
            self._files.append((state, known))
        return known

    def lock(self, destination: DestinationSettings) -> Lock:
        """Returns the destination's lock, not taken."""
        if self.cluster is not None:
            return self.cluster.lock(destination.name)
        from headrace.adapters.local.lock import FileLock

        path = self._settings.state_of(destination).path
        return FileLock(path.parent / f"{destination.name}.lock", self._settings.daemon.node)

    def archive_use(self, destination: DestinationSettings) -> ArchiveUse | None:
        """Returns what keeping the destination's archive needs; None without one."""
        from headrace.adapters.local.lock import FileLock

        if (archive := destination.archive) is None:
            return None

        async def needed() -> list[Position]:
            found = list[Position]()
            for one in self.sharing(destination):
                position = (await self.store(one).load(one.name)).position
                if position is not None:
                    found.append(position)
                elif not isinstance(one.source.start, StartLatest):
                    raise ArchiveError(
                        f"{one.name} has no stored position yet, and may begin anywhere in the archive",
                        remedy="let it begin, or remove its file",
                    )
            return found

        if archive.url is None:
            lock = FileLock(archive.folder / "lock", self._settings.daemon.node, setting="[archive] path")
        else:  # between daemons the archive's journal decides
            name = f"archive-{hashlib.sha256(archive.url.encode()).hexdigest()[:16]}.lock"
            lock = FileLock(self._settings.daemon.spool / name, self._settings.daemon.node, setting="[daemon] spool")
        return ArchiveUse(lock, needed)

    def sharing(self, destination: DestinationSettings) -> list[DestinationSettings]:
        """Returns the destinations that share its archive."""
        archive = destination.archive
        return [one for one in self.present() if archive and one.archive and one.archive.place == archive.place]

    def parking_stores(self, destination: DestinationSettings) -> tuple[ParkingStore | None, list[ParkingStore]]:
        """Returns the store of its parked messages, None if its sink parks none; and stores of former configurations,
        which may still have messages that nothing sends."""
        sink, parking, stores = destination.sink, destination.parking, list[ParkingStore]()
        if parking.store != "state":
            stores.append(self._adapters.parking_adapter(parking.store).store(parking, destination.name))
        if destination.exactly_once:
            stores.append(self._adapters.sink_adapter(sink.type).parking_store(sink, destination.name))
        elif self.cluster is None:
            adapter = self._adapters.state_adapter(self._settings.state_of(destination).store)
            inside = adapter.parking(self.store(destination), destination.name)
            stores += [inside] if inside is not None else []
        return (stores[0], stores[1:]) if destination.parks else (None, stores)
