"""What a seed decides: settings, load, and the faults with their moments."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

HEAL_AT = 0.75
"""The part of a simulation after which no fault begins or lasts."""
DAEMONS = ("a", "b", "c")
ZOOKEEPERS = ("zk1", "zk2", "zk3")
BROKERS = ("kafka1", "kafka2", "kafka3")
SOURCE = "mysql1"
HOSTS = (*DAEMONS, *ZOOKEEPERS, *BROKERS, SOURCE)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `at` seconds after the begin, for `seconds`. `target` and `other` are hosts, `number` depends on the
    kind."""

    kind: str
    at: float
    seconds: float
    target: str = ""
    other: str = ""
    number: float = 0.0

    def __str__(self) -> str:
        where = "->".join(filter(None, (self.target, self.other)))
        number = f" {self.number:g}" if self.number else ""
        return f"{self.at:8.3f} s: {self.kind} {where}{number}, {self.seconds:.3f} s"


@dataclass(slots=True)
class Plan:
    """Everything that a simulation is made from besides the random numbers of its parts."""

    seed: int
    seconds: float
    faults: list[Fault] = field(default_factory=list)
    daemon: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sections of headrace.toml."""
    destinations: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    rows: int = 0
    """Rows of each table before the daemons start."""
    rate: float = 1.0
    """Transactions a second."""
    delay: float = 0.001
    """Maximum seconds of a way through the network."""

    batch: int = 512 * 1024
    """Bytes of messages after which the daemon makes a batch of them."""
    slow: float = 0.0
    """Seconds by which the source's answers are late all the time."""
    gtids: bool = True
    """Whether the source gives GTIDs to transactions."""
    answer: str = ""
    """Where the operator lets a destination go on whose position is lost."""

    @property
    def lost(self) -> Fault | None:
        """Returns the fault after which positions may be lost; there is one at most."""
        return next((fault for fault in self.faults if fault.kind in LOST), None)

    def with_faults(self, faults: list[Fault]) -> Plan:
        """Returns the same with other faults."""
        return replace(self, faults=faults)


def make(seed: int, seconds: float) -> Plan:
    """Returns the plan of a seed."""
    rng = random.Random(f"plan {seed}")
    plan = Plan(seed, seconds)
    plan.rate = rng.choice((0.2, 1.0, 5.0))
    plan.delay = rng.choice((0.0005, 0.002, 0.02))
    plan.rows = rng.choice((0, 30, 80, 200))
    plan.batch = rng.choice((1_500, 6_000, 512 * 1024))
    plan.slow = rng.choice((0.0, 0.0, 0.02, 0.2))
    lost = rng.choice(LOST) if rng.random() < 0.35 else ""
    plan.gtids = lost == "fail over" or rng.random() < 0.65
    plan.daemon = {
        "daemon": {
            "native": "off",
            "drain_timeout": rng.choice((1.0, 10.0)),
            "checkpoint_interval": rng.choice((0.1, 1.0, 5.0)),
            "checkpoint_transactions": rng.choice((1, 10, 10_000)),
        },
        "zookeeper": {"hosts": "zk1:2181,zk2:2181,zk3:2181", "session_timeout": rng.choice((2.0, 4.0, 10.0))},
        "state": {"store": "zookeeper"},
        "http": {"listen": ""},
    }
    for number in range(3):
        once = number == 2 and not lost and rng.random() < 0.5
        sink: dict[str, Any] = {
            "type": "kafka",
            "create_topics": True,
            "request_timeout": rng.choice((2.0, 5.0, 30.0)),
        }
        if once:
            sink["delivery"] = "exactly_once"
        source: dict[str, Any] = {
            "connect_timeout": rng.choice((2.0, 10.0)),
            "stall_after": rng.choice((10.0, 30.0)),
            "snapshot": "initial" if number == 2 and rng.random() < 0.7 else "never",
        }
        if lost:
            source["on_position_lost"] = rng.choice(("fail", "fail", "earliest", "latest", "resnapshot"))
            source["on_diverged"] = rng.choice(("fail", "fail", "continue"))
            if source["snapshot"] == "initial" and rng.random() < 0.3:
                source["snapshot"] = "when_needed"
        if source["snapshot"] == "never":
            source["start"] = "earliest"
        else:
            source["snapshot_max_rows_per_second"] = rng.choice((0, 10, 30, 100))
            source["snapshot_parallelism"] = rng.choice((1, 2))
        plan.destinations[f"d{number + 1}"] = {
            "source": source,
            "filter": {"include": r"shop\..*"},
            "route": {"topic": f"d{number + 1}"},
            "queue": {"bytes": rng.choice((65_536, 1_048_576))},
            "heartbeat": {"enabled": rng.random() < 0.8, "interval": rng.choice((1.0, 5.0))},
            "sink": sink,
        }
    end = seconds * HEAL_AT
    session = plan.daemon["zookeeper"]["session_timeout"]
    for _ in range(int(rng.expovariate(1 / 6))):
        fault = _fault(rng, end)
        if (
            fault.kind in ("freeze", "isolate", "cut off zookeeper") and rng.random() < 0.5
        ):  # about as long as a lease and a session last
            fault = replace(fault, seconds=min(session * rng.uniform(0.6, 1.8), end - fault.at))
        plan.faults.append(fault)
    if lost:
        plan.answer = rng.choice(("earliest", "latest"))
        plan.faults.append(_lost(lost, rng, end))
    plan.faults.sort(key=lambda fault: fault.at)
    return plan


def _fault(rng: random.Random, end: float) -> Fault:
    kind = rng.choice((*KINDS, "freeze", "isolate", "cut off zookeeper"))
    at = rng.random() * end * 0.95
    seconds = min(rng.choice((0.05, 0.5, 3.0, 12.0, 40.0)) * (0.5 + rng.random()), end - at)
    target = other = ""
    number = 0.0
    if kind in ("kill", "stop", "freeze", "clock jump", "clock drift", "hang"):
        target = rng.choice(DAEMONS)
        number = {"clock jump": rng.choice((-3600, -2, 2, 3600)), "clock drift": rng.choice((-0.01, 0.01))}.get(kind, 0)
    elif kind == "freeze server":
        target = rng.choice((*ZOOKEEPERS, *BROKERS, SOURCE))
    elif kind in ("partition", "slow link", "reset"):
        target, other = rng.sample(HOSTS, 2)
        number = rng.choice((0.05, 0.5)) if kind == "slow link" else 0
    elif kind == "isolate":
        target = rng.choice((*DAEMONS, *ZOOKEEPERS))
    elif kind == "kill zookeeper":
        target = rng.choice(ZOOKEEPERS)
    elif kind in ("crash broker", "lose answers", "late answers", "drop requests"):
        target = rng.choice(BROKERS)
        number = rng.choice((1, 3)) if kind != "crash broker" else 0
    elif kind == "move leader":
        number = rng.randrange(3)
    elif kind == "large transaction":
        number = rng.choice((50, 500))
    elif kind == "slow source":
        number = rng.choice((0.1, 0.5))
    elif kind == "drain":
        target = rng.choice(DAEMONS)
    elif kind in COMMANDS:
        target = f"d{rng.randrange(3) + 1}"
        if kind == "resync":
            other = rng.choice(("", "shop.t1", r"shop\.t[23]"))
        elif kind == "hand over":
            other = rng.choice(DAEMONS)
        elif kind == "move back":
            number = rng.random()
    return Fault(kind, at, seconds, target, other, number)


def _lost(kind: str, rng: random.Random, end: float) -> Fault:
    at, number = end * (0.2 + 0.6 * rng.random()), 0.0
    seconds = min(rng.choice((0.5, 5.0, 15.0)), end - at)
    if kind == "lose tail":
        number = rng.choice((1, 3, 20))
    elif kind == "fail over":
        number = rng.choice((0, 1.0, 5.0))
    target = {"purge": f"d{rng.randrange(3) + 1}", "lose state": rng.choice(("d1", "d3", "d3"))}.get(kind, "")
    return Fault(kind, at, seconds, target, "", number)


LOST = ("purge", "reset source", "restore source", "lose tail", "fail over", "lose state")
"""Faults after which positions may be lost."""
COMMANDS = ("pause", "resync", "move back", "restart", "hand over", "reload")
"""Commands of the operator to one destination."""
KINDS = (
    "kill",
    "stop",
    "freeze",
    "hang",
    "clock jump",
    "clock drift",
    "freeze server",
    "partition",
    "isolate",
    "cut off zookeeper",
    "slow link",
    "reset",
    "kill zookeeper",
    "crash broker",
    "lose answers",
    "late answers",
    "drop requests",
    "move leader",
    "restart source",
    "crash source",
    "kill connections",
    "slow source",
    "rotate",
    "large transaction",
    "drain",
    *COMMANDS,
)
