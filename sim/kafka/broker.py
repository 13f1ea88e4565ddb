"""One broker: its connections, the requests that it handles, and its own faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.kafka import admin, codes, coordination, fetch, metadata, produce
from sim.kafka.connection import Connection, Exchange
from sim.kafka.partition import NEVER, Partition
from sim.kafka.wire import VERSIONS, Api

if TYPE_CHECKING:
    from sim.kafka.cluster import Cluster

Handler = Callable[["Broker", Exchange, bytes, int], None]

HANDLERS: dict[int, Handler] = {
    Api.PRODUCE: produce.produce,
    Api.FETCH: fetch.fetch,
    Api.LIST_OFFSETS: fetch.list_offsets,
    Api.METADATA: metadata.metadata,
    Api.API_VERSIONS: metadata.api_versions,
    Api.FIND_COORDINATOR: coordination.find_coordinator,
    Api.INIT_PRODUCER_ID: coordination.init_producer_id,
    Api.ADD_PARTITIONS_TO_TXN: coordination.add_partitions,
    Api.END_TXN: coordination.end_transaction,
    Api.CREATE_TOPICS: admin.create_topics,
    Api.DELETE_TOPICS: admin.delete_topics,
    Api.DELETE_RECORDS: admin.delete_records,
    Api.DESCRIBE_CONFIGS: admin.describe_configs,
}
_NAMES = {int(api): api.name for api in Api}


@dataclass(frozen=True, slots=True)
class View:
    """What a broker that is cut off from the controller still takes for true of a partition."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    high_watermark: int
    stable: int


class Broker:
    """One broker of a cluster."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster, self.number = cluster, number
        self.addresses: dict[str, tuple[str, int]] = {"": ("127.0.0.1", 9091 + number)}
        """By listener, the host and port that clients are told who came through this listener."""
        self.up = True
        self.registered = True
        """Whether the controller takes it for alive."""
        self.disk_full = False
        """Whether its log directory takes no more writes."""
        self.connections: dict[Connection, None] = {}
        self.views: dict[str, list[View]] | None = None
        """By topic, while it is cut off."""
        self._held = False
        self._joined = True
        self._session: asyncio.TimerHandle | None = None

    @property
    def reachable(self) -> bool:
        """Returns whether the other brokers reach it."""
        return self.up and self.views is None

    @property
    def replicates(self) -> bool:
        """Returns whether its followers fetch from their leaders."""
        return self.reachable and self.registered and self._joined and not self._held

    @property
    def address(self) -> tuple[str, int]:
        """Returns host and port of the first listener."""
        return self.addresses[""]

    @address.setter
    def address(self, address: tuple[str, int]) -> None:
        self.addresses[""] = address

    def protocol(self, listener: str = "") -> Connection:
        """Returns the protocol of a new connection, for create_server()."""
        return Connection(self, listener)

    def handle(self, exchange: Exchange, frame: bytes, at: int) -> None:
        """Handles a request whose header ends at `at`."""
        api = exchange.api
        low, high = VERSIONS.get(api, (0, -1))
        if not low <= exchange.version <= high:
            if api == Api.API_VERSIONS:
                exchange.answer(metadata.unsupported_versions())
                return
            self.cluster.unknown.append((self.number, api, exchange.version, exchange.client))
            exchange.connection.abort()
            return
        requests, name = self.cluster.requests, _NAMES[api]
        requests[name] = requests.get(name, 0) + 1
        HANDLERS[api](self, exchange, frame, at)

    def leads(self, partition: Partition) -> bool:
        """Returns whether it takes itself for the leader."""
        if self.views is None:
            return partition.leader == self.number
        view = self.view(partition)
        return view is not None and view.leader == self.number

    def view(self, partition: Partition) -> View | None:
        """Returns what it remembers of a partition while it is cut off; None for one that it does not know."""
        known = (self.views or {}).get(partition.topic.name, [])
        return known[partition.number] if partition.number < len(known) else None

    def find(self, topic: str, number: int) -> tuple[Partition | None, int]:
        """Returns a partition that it leads, or the error code."""
        found = self.cluster.topics.get(topic)
        if found is None or not 0 <= number < len(found.partitions):
            return None, codes.UNKNOWN_TOPIC_OR_PARTITION
        partition = found.partitions[number]
        if partition.leader == self.number and self.views is None:
            return partition, codes.NONE
        return (partition, codes.NONE) if self.leads(partition) else (None, codes.NOT_LEADER_OR_FOLLOWER)

    # -- faults -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stops it in order: its partitions get other leaders first."""
        self._leave()
        self._fence()

    def crash(self) -> None:
        """Kills it. The controller notices that after the session timeout."""
        self._leave()
        self._start_session_timer()

    def _leave(self) -> None:
        self.up = self._joined = False
        self.views = None
        for connection in list(self.connections):
            connection.abort()
        self._fall_behind()

    def _fall_behind(self) -> None:
        for partition in self.cluster.partitions():
            partition.fall_behind(self.number)

    def _start_session_timer(self) -> None:
        self._end_session_timer()
        timeout = self.cluster.settings.session_timeout
        self._session = asyncio.get_running_loop().call_later(timeout, self._fence)

    def _end_session_timer(self) -> None:
        if self._session is not None:
            self._session.cancel()
            self._session = None

    def _fence(self) -> None:
        self.registered = False
        for partition in self.cluster.partitions():
            partition.fence(self.number)

    def start(self) -> None:
        """Starts it again. Its replicas are in sync a moment later."""
        if self.up:
            return
        if self.registered:  # a broker that registers again ends its former session
            self._end_session_timer()
            self._fence()
        self.up = True
        self._rejoin()

    def isolate(self) -> None:
        """Cuts it off from the controller and the other brokers, while clients still reach it. It goes on with what it
        knows: partitions that it takes for its own, but nothing new is replicated."""
        self.views = {
            name: [
                View(one.leader, one.epoch, tuple(one.isr), one.log.high_watermark, one.log.stable)
                for one in topic.partitions
            ]
            for name, topic in self.cluster.topics.items()
        }
        self._fall_behind()
        for partition in self.cluster.partitions():
            if partition.leader == self.number:
                for other in partition.replicas:
                    partition.fall_behind(other)
        self._start_session_timer()

    def rejoin(self) -> None:
        """Ends isolate(). What it has taken for its own meanwhile is lost."""
        if self.views is None:
            return
        self._end_session_timer()
        self.views = None
        for partition in self.cluster.partitions():
            if partition.leader == self.number:
                for other in partition.replicas:
                    if self.cluster.brokers[other].replicates:
                        partition.catch_up(other)
            else:
                partition.fail_waiting(codes.NOT_LEADER_OR_FOLLOWER, NEVER - 1, NEVER)
                partition.wake()
        self._joined = False
        self._rejoin()

    def _rejoin(self) -> None:
        self._end_session_timer()
        self.registered = True
        asyncio.get_running_loop().call_later(self.cluster.settings.rejoin_time, self._join)

    def _join(self) -> None:
        if not self.up or self.views is not None:
            return
        self._joined = True
        self._catch_up()

    def _catch_up(self) -> None:
        for partition in self.cluster.partitions():
            if self.replicates:
                partition.catch_up(self.number)
        self.cluster.coordinators.resume()

    def hold_replication(self) -> None:
        """Stops its followers. They stay in sync by the leader's account until the lag time is over; what is written
        meanwhile is not confirmed."""
        self._held = True
        self._fall_behind()
        asyncio.get_running_loop().call_later(self.cluster.settings.lag_time, self._lag)

    def resume_replication(self) -> None:
        """Ends hold_replication()."""
        self._held = False
        self._catch_up()

    def _lag(self) -> None:
        if self._held:
            for partition in self.cluster.partitions():
                if partition.leader != self.number:
                    partition.drop_from_isr(self.number)

    def reset_connections(self) -> None:
        """Resets all connections of its clients."""
        for connection in list(self.connections):
            connection.abort()
