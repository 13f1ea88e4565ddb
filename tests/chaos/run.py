"""One run of the chaos suite: daemons, writer, faults, and the checker's verdict."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from sim.topic_checker import Findings, Record, TopicChecker
from tests.chaos import truth
from tests.chaos.faults import KINDS, Engine, Fault, plan
from tests.chaos.fleet import Fleet, Wanted
from tests.chaos.servers import Servers
from tests.chaos.watch import TakeOver, Watch, summary
from tests.chaos.writer import Writer, create
from tests.support import eventually

SETTLE_SECONDS = 120.0
"""After the faults are healed the last row has to be in each topic within this time."""
WARM_SECONDS = 90.0
"""Both destinations have to flow within this time, before the first fault."""
_LATE = 2.0
"""Seconds that a topic is read on after the last row: what a zombie sends may come behind it."""


@dataclass
class Outcome:
    """What one run was and what it showed."""

    seed: int
    seconds: float
    faults: list[Fault]
    began: str = ""
    """When the first fault could come, in UTC, to find the faults' times in the daemons' logs."""
    transactions: int = 0
    rows: int = 0
    """Changed rows that were committed."""
    settled: float = 0.0
    """Seconds from the end of the faults until every topic was whole."""
    own_ends: int = 0
    """Daemons that ended by themselves and were started again."""
    take_overs: list[TakeOver] = field(default_factory=list)
    topics: dict[str, Findings] = field(default_factory=dict)
    tails: str = ""

    @property
    def sound(self) -> bool:
        return bool(self.topics) and all(found.sound for found in self.topics.values())

    @property
    def kinds(self) -> dict[str, int]:
        """How many faults of each kind were injected."""
        return dict(Counter(fault.kind for fault in self.faults if fault.began))

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "seed": self.seed,
            "seconds": self.seconds,
            "began": self.began,
            "sound": self.sound,
            "kinds": self.kinds,
            "transactions": self.transactions,
            "rows": self.rows,
            "settled": round(self.settled, 1),
            "own_ends": self.own_ends,
            "take_overs": summary(self.take_overs),
            "topics": {
                name: {**asdict(found), "epochs": len(found.epochs), "sound": found.sound}
                for name, found in self.topics.items()
            },
            "faults": [asdict(fault) for fault in self.faults],
            "each_take_over": [asdict(over) for over in self.take_overs],
        }


def destinations(schema: str, deliveries: Sequence[str]) -> list[Wanted]:
    """Two of them: a message a row, and a message a rows event."""
    first, second = (deliveries[0], deliveries[-1])
    return [
        Wanted(f"{schema}-rows", schema, first, rows_per_message=1),
        Wanted(f"{schema}-events", schema, second),
    ]


def run_seed(
    servers: Servers,
    folder: Path,
    seed: int,
    seconds: float,
    deliveries: Sequence[str],
    *,
    broken: str = "none",
    alone: bool = False,
) -> Outcome:
    """A whole run; `alone` is one daemon with the embedded lock and store.

    Raises what went wrong outside of the daemons, and AssertionError when one of them did not start or did not come
    back; what is wrong in a topic stands in the outcome.
    """
    schema = f"chaos{seed}x{time.monotonic_ns() % 10**6}"
    create(servers.mysql, schema)
    wanted = destinations(schema, deliveries)
    fleet = Fleet(servers, folder, wanted, root="" if alone else f"/{schema}", broken=broken, nodes=1 if alone else 3)
    without = {kind for kind in KINDS if alone and "zookeeper" in kind}
    if not all(daemon.clock.can_jump for daemon in fleet.daemons.values()):
        without.add("clock jump")
    names = [one.name for one in wanted]
    faults = plan(seed, seconds, names, list(fleet.daemons), without)
    watch, writer = Watch(fleet), Writer(servers.mysql, schema, seed)
    outcome = Outcome(seed, seconds, faults)
    try:
        fleet.start()
        watch.start()
        for name in names:
            fleet.wait_active(name)
        writer.start()
        for name in names:  # brokers that were just started take seconds for their first transactions
            eventually(lambda: _flows(fleet, name), WARM_SECONDS, fleet.tails)  # noqa: B023
        engine = Engine(fleet, faults)

        def check() -> None:
            assert writer.is_alive(), writer.error

        outcome.began = time.strftime("%H:%M:%S", time.gmtime())
        try:
            engine.run(seconds, check)
        finally:
            servers.heal()
            fleet.heal()
        healed = time.monotonic()
        writer.stop()
        outcome.transactions = writer.transactions
        outcome.topics = judge(servers, schema, wanted)
        outcome.settled = time.monotonic() - healed
        outcome.rows = next(iter(outcome.topics.values())).committed
        outcome.take_overs = watch.take_overs(faults, engine.began)
        outcome.own_ends = sum(len(daemon.own_ends) for daemon in fleet.daemons.values())
        outcome.tails = fleet.tails()
        return outcome
    finally:
        writer.end()
        watch.close()
        fleet.close()


def _flows(fleet: Fleet, destination: str) -> bool:
    statuses = [daemon.health().get(destination, {}) for daemon in fleet.daemons.values()]
    return any(one.get("messages", 0) > 50 and one["oldest_unconfirmed_seconds"] < 2.0 for one in statuses)


def judge(
    servers: Servers, schema: str, wanted: Sequence[Wanted], limit: float = SETTLE_SECONDS
) -> dict[str, Findings]:
    """Waits until each topic has the last change, and checks them. The writer has ended and all faults are healed."""
    committed = truth.committed(servers.mysql, schema)
    tables = truth.tables(servers.mysql, schema)
    deadline = time.monotonic() + limit
    found = {}
    for one in wanted:
        bound = 0 if one.delivery == "exactly_once" else one.in_flight
        checker = TopicChecker(committed, one.rows_per_message, one.delivery, bound)
        checker.findings.committed = sum(event.rows for event in committed)
        left = max(10.0, deadline - time.monotonic())
        asyncio.run(_read(servers.kafka.bootstrap_servers, one, checker.feed, lambda: checker.complete, left))  # noqa: B023
        found[one.name] = checker.finish(tables)
    return found


async def _read(
    bootstrap: str, wanted: Wanted, feed: Callable[[Record], None], complete: Callable[[], bool], limit: float
) -> None:
    """The topic from its beginning until it is complete or the time is over, and then a little further."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed" if wanted.delivery == "exactly_once" else "read_uncommitted",
        max_partition_fetch_bytes=4 << 20,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(wanted.name, 0)])
        end = time.monotonic() + limit
        while time.monotonic() < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    feed(_record(record))
            if complete():
                end = min(end, time.monotonic() + _LATE)
    finally:
        await consumer.stop()


def length(servers: Servers, topic: str) -> int:
    """Messages in a topic."""

    async def ask() -> int:
        consumer = AIOKafkaConsumer(bootstrap_servers=servers.kafka.bootstrap_servers)
        await consumer.start()
        try:
            place = TopicPartition(topic, 0)
            return int((await consumer.end_offsets([place]))[place])
        finally:
            await consumer.stop()

    return asyncio.run(ask())


def _record(record: Any) -> Record:
    headers = dict(record.headers)
    size = len(record.value or b"") + len(record.key or b"")
    size += sum(len(name) + len(value) for name, value in record.headers)
    return Record(record.partition, record.offset, headers, record.value, size)
