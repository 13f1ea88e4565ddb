"""`scripts/bench`: W1 and W2L through a daemon as users start it, compared with mysql-replication over the same
binlogs."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks import canal_client, yardstick
from benchmarks.daemon import HERE, Sample, Version, free_port, running
from benchmarks.report import Table
from benchmarks.workloads import MANY_ROWS, SCHEMA, W1_ROWS, W2L_ROWS, WIDE_ROWS, Filler, Workload
from devstack import Stack
from devstack.cache import Cache
from devstack.servers.kafka import KafkaCluster
from devstack.servers.mysql import MysqlServer

YARDSTICK = "mysql-replication, decoding only"
MYSQL = (
    "--sync-binlog=1",
    "--innodb-flush-log-at-trx-commit=1",
    "--max-binlog-size=1073741824",
    "--binlog-expire-logs-seconds=0",
    "--innodb-redo-log-capacity=1G",
    "--innodb-buffer-pool-size=512M",
    "--skip-innodb-doublewrite",
)
_KAFKA = {"log.segment.delete.delay.ms": "1000"}
"""A topic's files are removed as soon as it is deleted: each run has its own topic."""
_FEW = 5
"""With this many samples while rows flow, the last of them is dropped, which may be long after the rows."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a measured daemon."""

    mysql: MysqlServer
    kafka: KafkaCluster
    new_mysql: Callable[[], MysqlServer]
    cache: Cache

    def apart(self) -> Servers:
        """Returns them with a separate MySQL server: a daemon reads on while the last rows of a workload are confirmed,
        and what follows them in the binlog would be measured too."""
        return replace(self, mysql=self.new_mysql())

    @property
    def source(self) -> dict[str, Any]:
        """Returns how the daemon logs in."""
        return dict(self.mysql.connection())


@contextmanager
def servers() -> Iterator[Servers]:
    """Yields one MySQL and one Kafka."""
    with Stack(lasting=True) as stack:

        def new_mysql() -> MysqlServer:
            return stack.mysql(None, *MYSQL)

        yield Servers(new_mysql(), stack.kafka(settings=_KAFKA), new_mysql, stack.cache)


@dataclass(frozen=True, slots=True)
class Way:
    """How rows are published: the differences from a user's first configuration."""

    name: str
    message: dict[str, Any] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    filter: dict[str, Any] = field(default_factory=dict)
    partitions: int = 1
    kafka: bool = True
    client: bool = False
    """Whether Canal's own client takes the rows, in batches of 1,000 entries."""
    native: bool = True
    """Whether headrace-native is used if it is installed."""
    archive: bool = False
    """Whether the binlog is archived meanwhile."""


KAFKA = Way("into Kafka")
PYTHON = Way("into Kafka, Python alone", native=False)
ARCHIVE = Way("into Kafka, while it is archived", archive=True)
EXACTLY_ONCE = Way("exactly once", sink={"delivery": "exactly_once"})
DEBEZIUM = Way("Debezium's format", message={"format": "debezium", "debezium": {"schemas": False}})
SCHEMAS = Way("Debezium's format with schemas", message={"format": "debezium"})
NULL = Way("null sink", kafka=False)
_ENTRIES = {"format": "canal-protobuf"}
ENTRIES = Way("canal-protobuf", message=_ENTRIES)
CLIENT = Way("Canal's client", message=_ENTRIES, kafka=False, client=True)
CLIENT_PYTHON = replace(CLIENT, name="Canal's client, Python alone", native=False)
OPTIONS = Way(
    "into Kafka, with options",
    message={"time_zone": "Asia/Shanghai"},
    filter={
        "mask": [{"tables": r"bench\.wide[0-4]", "columns": ["c1", "c10"], "mask": "hash", "salt": "salt"}],
        "where": [{"tables": r"bench\.wide[3-7]", "rows": "id > 0 and (c1 like '家庭%' or c1 is not null)"}],
    },
)
W1_WAYS = (
    KAFKA,
    PYTHON,
    ARCHIVE,
    Way("a message a row", message={"rows_per_message": 1}),
    DEBEZIUM,
    SCHEMAS,
    Way("8 partitions by key", partitions=8),
    EXACTLY_ONCE,
    NULL,
    ENTRIES,
    CLIENT,
    CLIENT_PYTHON,
)
W2L_WAYS = (KAFKA, PYTHON, ARCHIVE, DEBEZIUM, SCHEMAS, EXACTLY_ONCE, NULL, ENTRIES, CLIENT, CLIENT_PYTHON)


Fills = Mapping[str, tuple[Callable[[Filler, int], Workload], int, Sequence[Way]]]
FILLS: Fills = {
    "W1": (Filler.w1, W1_ROWS, W1_WAYS),
    "W2L": (Filler.w2l, W2L_ROWS, W2L_WAYS),
    "W1Z": (Filler.w1_compressed, W1_ROWS, [NULL]),
    "MANY": (Filler.many, MANY_ROWS, [KAFKA]),
    "WIDE": (Filler.wide, WIDE_ROWS, [KAFKA, PYTHON, OPTIONS, DEBEZIUM]),
}
"""Each workload: what writes it, its rows, and how it is published."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the race. `servers` has the binlog of this workload and no other."""

    workload: Workload
    way: Way
    servers: Servers

    @property
    def name(self) -> str:
        """Returns its name in the tables."""
        return _named(self.workload.name, self.way)

    @property
    def yardstick(self) -> str:
        """Returns the line of mysql-replication over the same binlog."""
        return f"{self.workload.name.upper()}, {YARDSTICK}"


def _named(workload: str, way: Way) -> str:
    return f"{workload.upper()}, {way.name}"


def entries(servers: Servers, scale: int, only: str = "", fills: Fills | None = None) -> list[Entry]:
    """Returns what is run: all of `fills`, or of FILLS, whose names contain `only`. Writes their workloads, a `scale`th
    of each."""
    fills = FILLS if fills is None else fills
    print("bench: writing the binlogs", flush=True)
    made = list[Entry]()
    for name, (fill, rows, ways) in fills.items():
        if chosen := [way for way in ways if only.lower() in _named(name, way).lower()]:
            own = servers.apart()
            filler = Filler(own.mysql)
            workload = fill(filler, rows // scale)
            filler.close()
            made += [Entry(workload, way, own) for way in chosen]
    if not made:
        names = [_named(name, way) for name, (_, _, ways) in fills.items() for way in ways]
        raise SystemExit(f"bench: nothing is named '{only}': {'; '.join(names)}")
    return made


def race(chosen: list[Entry], runs: int) -> Table:
    """Runs all entries in turn, several times, so that a slow moment of the machine does not affect one alone; the
    yardstick each time too."""
    table = Table("workload")
    measured = {one.yardstick: one for one in chosen if one.workload.name in yardstick.MOST_ROWS}
    for number in range(runs):
        for name, entry in measured.items():
            reported(number, runs, name)
            table.add(name, yardstick.measure(entry.servers.source, entry.workload))
        for entry in chosen:
            reported(number, runs, entry.name)
            table.add(entry.name, run(entry))
    for entry in chosen:
        if entry.yardstick in table.rows:
            own = table.rows[entry.name]
            own["times"] = [one / table.median(entry.yardstick, "rows_per_second") for one in own["rows_per_second"]]
            own["cpu_times"] = [table.median(entry.yardstick, "cpu_us") / one for one in own["cpu_us"]]
    return table


def reported(number: int, runs: int, what: str) -> None:
    """Reports what is measured now."""
    print(f"bench: run {number + 1} of {runs}: {what}", flush=True)


def run(entry: Entry, version: Version = HERE) -> dict[str, float]:
    """Runs one daemon from its start until it has published a workload; returns rows per second of real time and
    microseconds of CPU a row while rows flow, and the peak memory."""
    workload, servers = entry.workload, entry.servers
    os.sync()  # else data of earlier runs is written to the disk meanwhile
    with topic(servers, entry.way.partitions) as name:
        made = destination(servers, name, rf"{SCHEMA}\.{workload.table}", f"{workload.file}:4", entry.way)
        settings = {} if entry.way.native or not version.knows_native else {"daemon": {"native": "off"}}
        with ExitStack() as stack:
            if entry.way.archive:
                made["archive"] = {"path": stack.enter_context(TemporaryDirectory(dir=servers.cache.root))}
            if entry.way.client:
                stack.enter_context(canal_client.reading(servers.cache, made["sink"]["listen"], name, workload.rows))
            daemon = stack.enter_context(running({name: made}, version, settings))
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
    """Returns the first and last sample while rows flow, each the one that shows progress: what is confirmed a
    transaction at a time comes in steps. With few samples, the span begins before the first row."""
    steps = [behind for before, behind in pairwise(samples) if behind.rows > before.rows]
    if len(steps) > _FEW:
        return steps[0], steps[-2]
    return next(one for one in reversed(samples) if not one.rows), steps[-1]


def destination(servers: Servers, name: str, tables: str, start: str, way: Way) -> dict[str, dict[str, Any]]:
    """Returns a destination's file, by its sections."""
    route: dict[str, Any] = {"topic": name}
    if way.partitions > 1:
        route |= {"partitions": way.partitions, "partition_hash": r".*\..*:$pk$"}
    sink: dict[str, Any] = {"type": "null"}
    if way.client:
        sink = {"type": "canal", "listen": f"127.0.0.1:{free_port()}"}
    elif way.kafka:
        sink = {"type": "kafka", "bootstrap_servers": servers.kafka.bootstrap_servers}
    return {
        "source": {**servers.source, "start": start, "tls": "disabled", "snapshot": "never"},
        "filter": {"include": tables, **way.filter},
        "route": route,
        "message": way.message,
        "sink": {**sink, **way.sink},
    }


@contextmanager
def topic(servers: Servers, partitions: int = 1) -> Iterator[str]:
    """Yields a new topic, which is deleted after the block."""
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
