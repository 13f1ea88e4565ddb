"""A model of a Kafka cluster: its topics, brokers and faults, and what a checker asks of it.

cluster = Cluster(Random(1), now_us, brokers=3)
for broker in cluster.brokers.values():
    server = await loop.create_server(broker.protocol, "127.0.0.1", 0)
    broker.address = server.sockets[0].getsockname()
cluster.create_topic("shop", partitions=4)
... clients connect to cluster.bootstrap_servers ...
cluster.brokers[1].crash()
list(cluster.records("shop", 0))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from uuid import UUID

from sim.kafka import codes
from sim.kafka.broker import Broker
from sim.kafka.faults import Faults
from sim.kafka.partition import NEVER, NOBODY, Partition
from sim.kafka.records import Record
from sim.kafka.settings import ClusterSettings, topic_defaults
from sim.kafka.transactions import STATE_TOPIC, Coordinators


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets that were removed from the end of a partition."""

    topic: str
    partition: int
    first: int
    end: int
    confirmed: int
    """The high watermark before: what is below it was confirmed to producers and seen by consumers."""


class Topic:
    """A topic. One that is deleted and made again under the same name has another id."""

    def __init__(self, cluster: Cluster, name: str, topic_id: UUID, config: dict[str, str]) -> None:
        self.name, self.topic_id, self.config = name, topic_id, config
        self.partitions: list[Partition] = []
        self.deleted = False
        self._defaults = topic_defaults(cluster.settings, len(cluster.brokers))
        self.configure({})

    @property
    def internal(self) -> bool:
        """Returns whether clients see it as a topic of Kafka's own."""
        return self.name == STATE_TOPIC

    def setting(self, name: str) -> str:
        """Returns a setting of the topic, or the brokers' default."""
        return self.config.get(name, self._defaults[name])

    def settings(self) -> dict[str, str]:
        """Returns all settings."""
        return {**self._defaults, **self.config}

    def configure(self, config: dict[str, str]) -> None:
        """Changes settings."""
        self.config = {**self.config, **config}
        self.min_isr = int(self.setting("min.insync.replicas"))
        self.max_message = int(self.setting("max.message.bytes"))
        self.segment_bytes, self.segment_ms = int(self.setting("segment.bytes")), int(self.setting("segment.ms"))


class Cluster:
    """A cluster of one to three brokers. `now_us` returns the wall clock, in microseconds since 1970."""

    def __init__(
        self, random: Random, now_us: Callable[[], int], *, brokers: int = 1, settings: ClusterSettings | None = None
    ) -> None:
        self.settings = settings or ClusterSettings()
        self.now_us = now_us
        self.on_commit: Callable[[], None] = lambda: None
        """Called when a transaction is committed in all its partitions."""
        self.cluster_id = f"{random.getrandbits(128):022x}"[:22]
        self.faults = Faults()
        self.unknown: list[tuple[int, int, int, str]] = []
        """Broker, key, version and client of each request that the model does not know."""
        self.lost: list[Lost] = []
        self.topics: dict[str, Topic] = {}
        self.deleted: list[Topic] = []
        self.requests: dict[str, int] = {}
        """How many requests of each kind came."""
        self._random = random
        self._denied: dict[tuple[str, str], frozenset[str]] = {}
        self._throttled: dict[str, int] = {}
        self._next_producer_id = 0
        self._creating: dict[str, None] = {}
        self.brokers = {number: Broker(self, number) for number in range(1, brokers + 1)}
        self.coordinators = Coordinators(self)

    @property
    def bootstrap_servers(self) -> str:
        """Returns host:port of every broker, separated by commas."""
        return ",".join(f"{broker.address[0]}:{broker.address[1]}" for broker in self.brokers.values())

    def time(self) -> float:
        """Returns the loop's clock; 0 before a loop runs."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0

    @property
    def controller(self) -> int:
        """Returns the number of the controller: the first broker that is registered, -1 without one."""
        return next((one.number for one in self.brokers.values() if one.registered), NOBODY)

    def new_producer_id(self) -> int:
        """Returns a producer id that was never used."""
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # -- topics -------------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, replication: int = 0, config: dict[str, str] | None = None
    ) -> Topic:
        """Creates a topic, at once. `replication`: 0 means the brokers' default. Raises ValueError if it exists."""
        if name in self.topics:
            raise ValueError(f"the topic {name} exists")
        topic = Topic(self, name, UUID(int=self._random.getrandbits(128), version=4), dict(config or {}))
        self.topics[name] = topic
        self.add_partitions(name, partitions, replication)
        return topic

    def add_partitions(self, name: str, count: int, replication: int = 0) -> None:
        """Gives a topic more partitions, `count` in all. They are spread over the brokers in turn."""
        topic, numbers = self.topics[name], list(self.brokers)
        if topic.partitions:
            replication = len(topic.partitions[0].replicas)
        replication = min(replication or self.settings.replication or len(numbers), len(numbers))
        shift = len(self.topics) if not topic.partitions else numbers.index(topic.partitions[0].replicas[0])
        for number in range(len(topic.partitions), count):
            replicas = [numbers[(shift + number + copy) % len(numbers)] for copy in range(replication)]
            partition = Partition(self, topic, number, replicas)
            topic.partitions.append(partition)
            partition.isr = [one for one in replicas if self.brokers[one].replicates] or replicas[:1]
            for one in replicas:
                if not self.brokers[one].replicates:
                    partition.behind[one] = 0
            partition.elect()

    def create_later(self, name: str, partitions: int) -> None:
        """Creates a topic a moment later with the brokers' defaults, as the controller does for a broker."""
        if name in self._creating:
            return
        self._creating[name] = None

        def create() -> None:
            del self._creating[name]
            registered = sum(one.registered for one in self.brokers.values())
            if name not in self.topics and registered >= (self.settings.replication or len(self.brokers)):
                self.create_topic(name, partitions)

        asyncio.get_running_loop().call_later(self.settings.creation_time, create)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic. Its records are kept in `deleted`, for a checker."""
        topic = self.topics.pop(name)
        topic.deleted = True
        self.deleted.append(topic)
        for partition in topic.partitions:
            partition.fail_waiting(codes.UNKNOWN_TOPIC_OR_PARTITION, most=NEVER)
            partition.wake()
        self.coordinators.resume()

    def partition(self, topic: str, number: int) -> Partition:
        """Returns a partition of a present topic. Raises KeyError or IndexError."""
        return self.topics[topic].partitions[number]

    def partitions(self) -> Iterator[Partition]:
        """Yields all partitions of all topics."""
        for topic in self.topics.values():
            yield from topic.partitions

    # -- what a checker asks ------------------------------------------------------------------------------------------

    def records(self, topic: str, partition: int, *, committed: bool = True, start: int = 0) -> Iterator[Record]:
        """Decodes the records of a partition from an offset on: those of committed data, or all that are stored."""
        return self.partition(topic, partition).log.records(start, committed=committed)

    # -- faults -------------------------------------------------------------------------------------------------------

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Makes another in-sync replica the leader."""
        found = self.partition(topic, partition)
        if to not in found.isr or not self.brokers[to].registered:
            raise ValueError(f"broker {to} is not in sync for {topic}-{partition}: {found.isr}")
        if to != found.leader:
            found.lead(to)

    def move_coordinator(self, transactional_id: str, to: int, *, load: float = 0.0) -> None:
        """Moves the coordinator of a transactional id to another broker, which loads its state for `load` seconds."""
        self.coordinators.move(transactional_id, to, load)

    def unclean_election(self, topic: str, partition: int, lose: int, *, to: int | None = None) -> None:
        """Elects a leader that does not have the last `lose` records; `to`: a certain broker."""
        found = self.partition(topic, partition)
        found.lose(lose)
        found.behind.pop(to or found.leader, None)
        found.lead(to or found.leader)

    def retain(self, topic: str, partition: int, offset: int) -> None:
        """Deletes the records before an offset, as retention does."""
        self.partition(topic, partition).log.forget(offset)

    def expire_producers(self) -> None:
        """Forgets idempotent producers without an open transaction, as after producer.id.expiration.ms."""
        for partition in self.partitions():
            known = partition.log.producers
            partition.log.producers = {number: one for number, one in known.items() if one.transaction >= 0}

    def deny(self, kind: str, name: str, *operations: str) -> None:
        """Denies operations on a resource, all without `operations`. Kinds: Topic (Write, Read, Describe, Create,
        DescribeConfigs), TransactionalId (Write, Describe), Cluster with the name kafka-cluster (Create)."""
        self._denied[kind, name] = frozenset(operations)

    def allow(self, kind: str, name: str) -> None:
        """Ends deny()."""
        self._denied.pop((kind, name), None)

    def allows(self, kind: str, name: str, operation: str) -> bool:
        """Returns whether clients may do something."""
        denied = self._denied.get((kind, name))
        return denied is None or bool(denied and operation not in denied)

    def throttle(self, milliseconds: int, client: str = "") -> None:
        """Makes each answer say that a quota is exceeded, to one client or to all; the next request of the connection
        is handled that much later. 0 ends it."""
        self._throttled.pop(client, None)
        if milliseconds:
            self._throttled[client] = milliseconds

    def throttle_ms(self, client: str) -> int:
        """Returns for how long a client is throttled after a request."""
        return self._throttled.get(client, self._throttled.get("", 0)) if self._throttled else 0

    # -- for partitions and brokers -----------------------------------------------------------------------------------

    def leader_changed(self, partition: Partition) -> None:
        """Lets the coordinators continue what waited for a leader."""
        if partition.topic.internal:
            self.coordinators.elected(partition)
        self.coordinators.resume()

    def note_loss(self, partition: Partition, first: int, end: int, confirmed: int) -> None:
        """Notes offsets that are gone."""
        if first < end:
            self.lost.append(Lost(partition.topic.name, partition.number, first, end, confirmed))
