"""`scripts/bench`: W1 and W2L through a daemon as users start it, beside mysql-replication over the same binlogs."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks import yardstick
from benchmarks.daemon import HERE, Sample, Version, running
from benchmarks.report import Table
from benchmarks.workloads import SCHEMA, W1_ROWS, W2L_ROWS, Filler, Workload
from devstack import Stack
from devstack.servers.kafka import KafkaCluster
from devstack.servers.mysql import MysqlServer

YARDSTICK = "mysql-replication, decoding only"
MYSQL = (
    "--max-binlog-size=1073741824",
    "--binlog-expire-logs-seconds=0",
    "--innodb-redo-log-capacity=1G",
    "--innodb-buffer-pool-size=512M",
    "--skip-innodb-doublewrite",
)
_KAFKA = {"log.segment.delete.delay.ms": "1000"}
"""A topic's files go as soon as it is deleted: each run has a topic of its own."""
_FEW = 5
"""With so many samples while rows flow, the last of them is not needed, which comes when the rows are long over."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that a whole run shares."""

    mysql: MysqlServer
    kafka: KafkaCluster

    @property
    def source(self) -> dict[str, Any]:
        """How the daemon logs in."""
        return dict(self.mysql.connection())


@contextmanager
def servers() -> Iterator[Servers]:
    """One MySQL and one Kafka until the end of the block."""
    with Stack(lasting=True) as stack:
        yield Servers(stack.mysql(None, *MYSQL), stack.kafka(settings=_KAFKA))


@dataclass(frozen=True, slots=True)
class Way:
    """How rows are published: what differs from the configuration that a user begins with."""

    name: str
    message: dict[str, Any] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    partitions: int = 1
    kafka: bool = True
    native: bool = True
    """Whether headrace-native is used where it is installed."""


KAFKA = Way("into Kafka")
PYTHON = Way("into Kafka, Python alone", native=False)
EXACTLY_ONCE = Way("exactly once", sink={"delivery": "exactly_once"})
DEBEZIUM = Way("Debezium's format", message={"format": "debezium", "debezium": {"schemas": False}})
SCHEMAS = Way("Debezium's format with schemas", message={"format": "debezium"})
NULL = Way("null sink", kafka=False)
W1_WAYS = (
    KAFKA,
    PYTHON,
    Way("a message a row", message={"rows_per_message": 1}),
    DEBEZIUM,
    SCHEMAS,
    Way("8 partitions by key", partitions=8),
    EXACTLY_ONCE,
    NULL,
)
W2L_WAYS = (KAFKA, PYTHON, DEBEZIUM, SCHEMAS, EXACTLY_ONCE, NULL)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the race."""

    workload: Workload
    way: Way

    @property
    def name(self) -> str:
        """As the tables have it."""
        return f"{self.workload.name.upper()}, {self.way.name}"


def entries(servers: Servers, scale: int, only: str = "") -> list[Entry]:
    """Writes the workloads, a `scale`th of each, and says what is run over them: all whose names have `only`."""
    print("bench: writing the binlogs", flush=True)
    filler = Filler(servers.mysql)
    w1, w2l = filler.w1(W1_ROWS // scale), filler.w2l(W2L_ROWS // scale)
    made = [*(Entry(w1, way) for way in W1_WAYS), *(Entry(w2l, way) for way in W2L_WAYS)]
    made.append(Entry(filler.w1_compressed(W1_ROWS // scale), NULL))
    filler.close()
    chosen = [one for one in made if only.lower() in one.name.lower()]
    if not chosen:
        raise SystemExit(f"bench: nothing is named '{only}': {'; '.join(one.name for one in made)}")
    return chosen


def race(servers: Servers, chosen: list[Entry], runs: int) -> Table:
    """All entries in turn, several times, so that a slow moment of the machine does not hit one alone; the yardstick
    each time too."""
    table = Table("workload")
    workloads = {one.workload.name: one.workload for one in chosen if one.workload.name in yardstick.MOST_ROWS}
    for number in range(runs):
        for name, workload in workloads.items():
            told(number, runs, f"{name.upper()}, {YARDSTICK}")
            table.add(f"{name.upper()}, {YARDSTICK}", yardstick.measure(servers.source, workload))
        for entry in chosen:
            told(number, runs, entry.name)
            table.add(entry.name, run(servers, entry))
    for entry in chosen:
        beside = f"{entry.workload.name.upper()}, {YARDSTICK}"
        if beside in table.rows:
            own = table.rows[entry.name]
            own["times"] = [one / table.median(beside, "rows_per_second") for one in own["rows_per_second"]]
            own["cpu_times"] = [table.median(beside, "cpu_us") / one for one in own["cpu_us"]]
    return table


def told(number: int, runs: int, what: str) -> None:
    """Says what is measured now."""
    print(f"bench: run {number + 1} of {runs}: {what}", flush=True)


def run(servers: Servers, entry: Entry, version: Version = HERE) -> dict[str, float]:
    """One daemon from its start until it has published a workload: rows a second of the clock and microseconds of CPU a
    row while rows flow, and the most memory ever."""
    workload = entry.workload
    with topic(servers, entry.way.partitions) as name:
        made = destination(servers, name, rf"{SCHEMA}\.{workload.table}", f"{workload.file}:4", entry.way)
        settings = {} if entry.way.native or not version.knows_native else {"daemon": {"native": "off"}}
        with running({name: made}, version, settings) as daemon:
            daemon.until(lambda now: now.rows > 0, 0.02)
            daemon.until(lambda now: now.rows >= workload.rows)
    first, last = span(daemon.samples)
    rows = last.rows - first.rows
    return {
        "rows_per_second": rows / (last.clock - first.clock),
        "cpu_us": (last.cpu - first.cpu) * 1e6 / rows,
        "memory_mb": daemon.peak_mb,
    }


def span(samples: Sequence[Sample]) -> tuple[Sample, Sample]:
    """The first and last sample while rows flow, each the one that shows an advance: what is confirmed a transaction at
    a time comes in steps. Where there are few, the span begins before the first row."""
    steps = [behind for before, behind in pairwise(samples) if behind.rows > before.rows]
    if len(steps) > _FEW:
        return steps[0], steps[-2]
    return next(one for one in reversed(samples) if not one.rows), steps[-1]


def destination(servers: Servers, name: str, tables: str, start: str, way: Way) -> dict[str, dict[str, Any]]:
    """A destination's file, by its sections."""
    route: dict[str, Any] = {"topic": name}
    if way.partitions > 1:
        route |= {"partitions": way.partitions, "partition_hash": r".*\..*:$pk$"}
    kafka = {"type": "kafka", "bootstrap_servers": servers.kafka.bootstrap_servers}
    return {
        "source": {**servers.source, "start": start, "tls": "disabled", "snapshot": "never"},
        "filter": {"include": tables},
        "route": route,
        "message": way.message,
        "sink": {**(kafka if way.kafka else {"type": "null"}), **way.sink},
    }


@contextmanager
def topic(servers: Servers, partitions: int = 1) -> Iterator[str]:
    """A new topic, which is gone after the block."""
    name = f"bench-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    async def ask(delete: bool) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=servers.kafka.bootstrap_servers)
        await admin.start()
        try:
            if delete:
                await admin.delete_topics([name])
            else:
                await admin.create_topics([NewTopic(name, partitions, 1)])
        finally:
            await admin.close()

    asyncio.run(ask(delete=False))
    try:
        yield name
    finally:
        asyncio.run(ask(delete=True))
