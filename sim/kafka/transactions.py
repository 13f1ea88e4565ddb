"""The transaction coordinators: KIP-98, as brokers of version 3.9 do it for clients without KIP-890's second part.

The state of all transactional ids is here, because it is replicated. The broker that may use it is the leader of a
partition of __transaction_state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING

from sim.kafka import codes
from sim.kafka.partition import NOBODY, Partition
from sim.kafka.records import Batch, marker

if TYPE_CHECKING:
    from sim.kafka.broker import Broker
    from sim.kafka.cluster import Cluster, Topic

STATE_TOPIC = "__transaction_state"
_HIGHEST_EPOCH = 32_766
"""An epoch that is not given to a producer; the next one has a new producer id."""


class State(Enum):
    """States of a transactional id."""

    EMPTY = auto()
    ONGOING = auto()
    PREPARE_COMMIT = auto()
    PREPARE_ABORT = auto()
    COMPLETE_COMMIT = auto()
    COMPLETE_ABORT = auto()


_PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
_APPENDED = (codes.NONE, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class Transaction:
    """One transactional id."""

    def __init__(self, name: str, producer_id: int) -> None:
        self.name, self.producer_id = name, producer_id
        self.epoch = -1
        self.timeout = 0.0
        self.state = State.EMPTY
        self.partitions: dict[Partition, bool] = {}
        """Of the open transaction; while it is completed, those whose marker not all replicas have, and whether it was
        written."""
        self.started = 0.0
        self.scan: asyncio.TimerHandle | None = None
        """The next scan for a transaction that is late."""
        self.pending = False
        """Whether the present state is still being replicated."""


def java_hash(text: str) -> int:
    """Returns String.hashCode() of Java without its sign, by which Kafka finds the partition of a transactional id."""
    raw, value = text.encode("utf-16-be"), 0
    for index in range(0, len(raw), 2):
        value = (31 * value + (raw[index] << 8 | raw[index + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF


class Coordinators:
    """All transaction coordinators of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._cluster = cluster
        self._loading: dict[int, float] = {}
        """By partition of the state topic: until when its coordinator loads."""
        self._began = cluster.time()
        self._epochs: dict[int, int] = {}

    # -- which broker -------------------------------------------------------------------------------------------------

    def partition_of(self, name: str) -> int:
        """Returns the partition of the state topic that a transactional id belongs to."""
        return java_hash(name) % self._cluster.settings.coordinator_partitions

    def topic(self) -> Topic | None:
        """Returns the state topic; creates it a moment later if nobody has asked for it yet."""
        found = self._cluster.topics.get(STATE_TOPIC)
        if found is None:
            self._cluster.create_later(STATE_TOPIC, self._cluster.settings.coordinator_partitions)
        return found

    def of(self, name: str) -> int:
        """Returns the broker that coordinates a transactional id; -1 if there is none now."""
        topic = self.topic()
        return topic.partitions[self.partition_of(name)].leader if topic is not None else NOBODY

    def refusal(self, broker: Broker, name: str) -> int:
        """Returns the error code of a broker that can't coordinate a transactional id now."""
        if self.of(name) != broker.number:
            return codes.NOT_COORDINATOR
        if self._is_loading(name):
            return codes.COORDINATOR_LOAD_IN_PROGRESS
        partition = self._partition(name)
        return codes.COORDINATOR_NOT_AVAILABLE if len(partition.isr) < partition.topic.min_isr else codes.NONE

    def _partition(self, name: str) -> Partition:
        return self._cluster.topics[STATE_TOPIC].partitions[self.partition_of(name)]

    def _is_loading(self, name: str) -> bool:
        return self._cluster.time() < self._loading.get(self.partition_of(name), 0.0)

    def _works(self, name: str) -> bool:
        """Returns whether the coordinator can act now."""
        leader = self.of(name)
        return leader != NOBODY and self._cluster.brokers[leader].replicates and not self._is_loading(name)

    def elected(self, partition: Partition) -> None:
        """Notes a new leader of a partition of the state topic, which loads it first."""
        self.load(partition.number, self._cluster.settings.load_time)

    def load(self, partition: int, seconds: float) -> None:
        """Makes the coordinators of a partition of the state topic load their state."""
        self._epochs[partition] = self._epochs.get(partition, -1) + 1
        if seconds > 0:
            loop = asyncio.get_running_loop()
            self._loading[partition] = loop.time() + seconds
            loop.call_later(seconds, self.resume)

    def move(self, name: str, to: int, seconds: float) -> None:
        """Moves a coordinator, see Cluster.move_coordinator()."""
        topic = self._cluster.topics[STATE_TOPIC]
        number = self.partition_of(name)
        if topic.partitions[number].leader != to:
            self._cluster.move_leader(STATE_TOPIC, number, to)
        self.load(number, seconds or self._cluster.settings.load_time)

    # -- requests -----------------------------------------------------------------------------------------------------

    def init_producer_id(self, name: str, timeout: float, reply: Callable[[int, int, int], None]) -> None:
        """Replies with error code, producer id and epoch. An open transaction is aborted first: the client asks
        again."""
        if not 0 < timeout <= self._cluster.settings.max_transaction_timeout:
            reply(codes.INVALID_TRANSACTION_TIMEOUT, -1, -1)
            return
        found = self.transactions.get(name)
        if found is None:
            found = self.transactions[name] = Transaction(name, self._cluster.new_producer_id())
        if found.pending or found.state in _PREPARED:
            reply(codes.CONCURRENT_TRANSACTIONS, -1, -1)
        elif found.state is State.ONGOING:
            self._fence(found, lambda code: reply(code or codes.CONCURRENT_TRANSACTIONS, -1, -1))
        else:
            if found.epoch >= _HIGHEST_EPOCH:
                found.producer_id, found.epoch = self._cluster.new_producer_id(), -1
            found.epoch += 1
            found.timeout, found.state = timeout, State.EMPTY
            given = found.producer_id, found.epoch
            self._append(found, lambda code: reply(code, -1, -1) if code else reply(code, *given))

    def _known(self, name: str, producer_id: int, epoch: int) -> tuple[Transaction | None, int]:
        """Returns a transactional id, or the error code for a client that is not its producer.

        The versions of the requests that clients send have no PRODUCER_FENCED (KIP-588)."""
        found = self.transactions.get(name)
        if found is None or found.producer_id != producer_id:
            return None, codes.INVALID_PRODUCER_ID_MAPPING
        return (found, codes.NONE) if found.epoch == epoch else (None, codes.INVALID_PRODUCER_EPOCH)

    def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: list[Partition], reply: Callable[[int], None]
    ) -> None:
        """Adds partitions to the open transaction, or begins one. Replies with the error code."""
        found, code = self._known(name, producer_id, epoch)
        if found is None:
            reply(code)
        elif found.pending or found.state in _PREPARED:
            reply(codes.CONCURRENT_TRANSACTIONS)
        elif found.state is State.ONGOING and all(one in found.partitions for one in partitions):
            reply(codes.NONE)
        else:
            if found.state is not State.ONGOING:
                found.state, found.started = State.ONGOING, self._cluster.time()
                found.partitions = {}
                if found.scan is None:
                    self._scan_later(found)
            found.partitions |= dict.fromkeys(partitions, False)
            self._append(found, reply)

    def end(self, name: str, producer_id: int, epoch: int, *, commit: bool, reply: Callable[[int], None]) -> None:
        """Commits or aborts the open transaction. Replies with the error code."""
        found, code = self._known(name, producer_id, epoch)
        same = (State.PREPARE_COMMIT, State.COMPLETE_COMMIT) if commit else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
        if found is None:
            reply(code)
        elif found.pending:
            reply(codes.CONCURRENT_TRANSACTIONS)
        elif found.state is State.ONGOING:
            self._prepare(found, commit=commit, reply=reply)
        elif found.state not in same:
            reply(codes.INVALID_TXN_STATE)
        else:
            reply(codes.CONCURRENT_TRANSACTIONS if found.state in _PREPARED else codes.NONE)

    def verify(self, name: str, batch: Batch, partition: Partition) -> int:
        """Returns the error code for a transactional batch to a partition that has none of its transaction yet: the
        leader asks the coordinator whether the partition belongs to it (KIP-890, first part)."""
        if not self._works(name):
            return codes.NOT_ENOUGH_REPLICAS
        found, code = self._known(name, batch.producer_id, batch.epoch)
        if found is None:
            return code
        if found.state in _PREPARED:
            return codes.NOT_ENOUGH_REPLICAS
        open_here = found.state is State.ONGOING and partition in found.partitions
        return codes.NONE if open_here else codes.INVALID_TXN_STATE

    # -- state and markers --------------------------------------------------------------------------------------------

    def _append(self, transaction: Transaction, done: Callable[[int], None]) -> None:
        """Writes the state to the state topic, of which only the offsets are kept. Calls back once all in-sync replicas
        have it; if the coordinator moves before that, the new one has it too."""
        partition = self._partition(transaction.name)
        transaction.pending = True

        def appended(code: int) -> None:
            transaction.pending = False
            done(codes.NONE if code in _APPENDED else codes.NOT_COORDINATOR)

        partition.log.end += 1
        partition.replicate()
        partition.when_replicated(partition.log.end, appended)

    def _fence(self, transaction: Transaction, reply: Callable[[int], None]) -> None:
        """Aborts a transaction under the next epoch, so that its producer can't write any more."""
        transaction.epoch += 1
        self._prepare(transaction, commit=False, reply=reply)

    def _prepare(self, transaction: Transaction, *, commit: bool, reply: Callable[[int], None]) -> None:
        transaction.state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
        loop, delay = asyncio.get_running_loop(), self._cluster.settings.marker_time

        def appended(code: int) -> None:
            loop.call_later(delay, self._write_markers, transaction)
            reply(code)

        self._append(transaction, appended)

    def resume(self) -> None:
        """Continues with transactions that waited for a leader or a coordinator."""
        for transaction in self.transactions.values():
            if transaction.state in _PREPARED:
                self._write_markers(transaction)

    def _write_markers(self, transaction: Transaction) -> None:
        """Writes the markers that are missing; the transaction is complete once all replicas have all of them."""
        if transaction.pending or transaction.state not in _PREPARED or not self._works(transaction.name):
            return
        commit = transaction.state is State.PREPARE_COMMIT
        epoch = self._epochs.get(self.partition_of(transaction.name), 0)
        for partition, written in list(transaction.partitions.items()):
            if partition.topic.deleted:
                transaction.partitions.pop(partition, None)
            elif not written and partition.leader != NOBODY and self._cluster.brokers[partition.leader].replicates:
                transaction.partitions[partition] = True
                now = self._cluster.now_us() // 1000
                partition.append(marker(transaction.producer_id, transaction.epoch, now, epoch, commit=commit))
                partition.when_replicated(partition.log.end, partial(self._marked, transaction, partition))
        self._complete(transaction)

    def _marked(self, transaction: Transaction, partition: Partition, code: int) -> None:
        """Notes that all replicas of a partition have the marker; without that it is written again."""
        if code in _APPENDED:
            transaction.partitions.pop(partition, None)
            self._complete(transaction)
        elif partition in transaction.partitions:
            transaction.partitions[partition] = False

    def _complete(self, transaction: Transaction) -> None:
        if not transaction.partitions and transaction.state in _PREPARED:
            commit = transaction.state is State.PREPARE_COMMIT
            transaction.state = State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT
            if commit:
                self._cluster.on_commit()

    # -- transactions that are late ----------------------------------------------------------------------------------

    def _scan_later(self, transaction: Transaction) -> None:
        """Looks at the first scan after the time at which the open transaction is late."""
        interval, loop = self._cluster.settings.timeout_scan, asyncio.get_running_loop()
        late = transaction.started + transaction.timeout - self._began
        at = self._began + (late // interval + 1) * interval
        transaction.scan = loop.call_at(at, self._scan, transaction)

    def _scan(self, transaction: Transaction) -> None:
        transaction.scan = None
        if transaction.state is not State.ONGOING:
            return
        if self._cluster.time() < transaction.started + transaction.timeout:
            self._scan_later(transaction)
        elif self._works(transaction.name) and not transaction.pending:
            self._fence(transaction, lambda _: None)
        else:
            loop = asyncio.get_running_loop()
            transaction.scan = loop.call_later(self._cluster.settings.timeout_scan, self._scan, transaction)
