"""What a seed decides: settings, load, and the faults with their moments."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

HEAL_AT = 0.75
"""The part of a simulation after which no fault begins or lasts."""
DAEMONS = ("a", "b", "c")
ZOOKEEPERS = ("zk1", "zk2", "zk3")
BROKERS = ("kafka1", "kafka2", "kafka3")
SOURCE, STANDBY = "mysql1", "mysql2"
RABBIT = "rabbitmq1"
HOSTS = (*DAEMONS, *ZOOKEEPERS, *BROKERS, SOURCE, RABBIT)


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
    pieces: int = 0
    """Bytes of the largest piece in which data arrive; 0 if what is written at once arrives at once."""
    text: int = 6
    """Bytes of a text of the rows that are there at the begin."""
    batch: int = 512 * 1024
    """Bytes of messages after which the daemon makes a batch of them."""
    slow: float = 0.0
    """Seconds by which the source's answers are late all the time."""
    gtids: bool = True
    """Whether the source gives GTIDs to transactions."""
    standby: bool = False
    """Whether the replica has an address of its own, which the daemons know."""
    parks: bool = False
    """Whether destinations park what is refused, and some rows are large."""
    answer: str = ""
    """Where the operator lets a destination go on whose position is lost."""
    arranged: str = ""
    """The name of what is ARRANGED, or "two troubles"; "" for nothing."""
    ddl: bool = False
    """Whether clients alter their tables."""
    compressed: bool = False
    """Whether clients compress their transactions."""
    xa: bool = False
    """Whether some transactions of clients are XA transactions."""
    archive: str = ""
    """Who has an archive: "own" for each daemon, "shared" for all one; "" for none."""

    @property
    def alone(self) -> bool:
        """Returns whether there is one daemon, which has its state on its disk, and no lock service."""
        return bool(self.daemon["state"]["store"] == "sqlite")

    @property
    def daemons(self) -> tuple[str, ...]:
        """Returns the names of the daemons."""
        return DAEMONS[:1] if self.alone else DAEMONS

    @property
    def lost(self) -> Fault | None:
        """Returns the fault after which positions may be lost; there is one at most."""
        return next((fault for fault in self.faults if fault.kind in LOST), None)

    @property
    def session_timeout(self) -> float:
        """Returns for how long a session of the lock service lasts without a word; 4 s if there is none."""
        return float(self.daemon["zookeeper"]["session_timeout"]) if not self.alone else 4.0

    @property
    def holds_up(self) -> bool:
        """Returns whether a fault holds up what was sent, or who sends it."""
        return any(fault.kind in HELD_UP for fault in self.faults)

    def sink(self, destination: str) -> str:
        """Returns the kind of sink of a destination."""
        return str(self.destinations[destination]["sink"]["type"])

    def with_faults(self, faults: list[Fault]) -> Plan:
        """Returns the same with other faults."""
        return replace(self, faults=faults)


def make(seed: int, seconds: float, *, lost: str | None = None, parks: bool = False) -> Plan:
    """Returns the plan of a seed. `lost`: with this kind of LOST, or "" for none; `parks`: with parked messages."""
    rng = random.Random(f"plan {seed}")
    plan = Plan(seed, seconds)
    plan.rate = rng.choice((0.2, 1.0, 5.0))
    plan.delay = rng.choice((0.0005, 0.002, 0.02))
    plan.pieces = rng.choice((0, 0, 0, 1_000))
    plan.rows = rng.choice((0, 30, 80, 200))
    plan.text = rng.choice((6, 6, 1_000))
    plan.batch = rng.choice((1_500, 6_000, 512 * 1024))
    plan.slow = rng.choice((0.0, 0.0, 0.02, 0.2))
    alone = rng.random() < 0.2 and lost is None and not parks
    chosen = rng.choice(LOST[:-1] if alone else LOST) if rng.random() < 0.35 else ""
    lost = chosen if lost is None else lost
    plan.standby = lost == "fail over" and rng.random() < 0.5
    plan.parks = parks or (not lost and not alone and rng.random() < 0.4)
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
        "http": {"token": "simulated-operator"},
    }
    if alone:
        plan.daemon["state"]["store"] = "sqlite"
        del plan.daemon["zookeeper"]
    beats = rng.choice((0.8, 0.8, 0.8, 0.8, 0.0))
    for number in range(4):
        once = number == 2 and lost != "lose state" and rng.random() < 0.5
        sink: dict[str, Any] = _rabbitmq(rng, "d4") if number == 3 else {"type": "kafka", "create_topics": True}
        sink["request_timeout"] = rng.choice((2.0, 5.0, 30.0))
        if once:
            sink["delivery"] = "exactly_once"
        if plan.parks:
            sink["on_failure" if number == 3 else "on_oversize"] = "park"
        source: dict[str, Any] = {
            "connect_timeout": rng.choice((2.0, 10.0)),
            "stall_after": rng.choice((5.0, 10.0, 30.0)),
            "snapshot": "initial" if number == 2 and rng.random() < 0.7 else "never",
        }
        if lost:
            source["on_position_lost"] = rng.choice(("fail", "fail", "earliest", "latest", "resnapshot", "next_file"))
            source["on_diverged"] = rng.choice(("fail", "fail", "continue"))
            if source["snapshot"] == "initial" and rng.random() < 0.3:
                source["snapshot"] = "when_needed"
        if plan.standby:
            source["read_only"] = "refuse"
        if source["snapshot"] == "never":
            source["start"] = "earliest"
        else:
            source["snapshot_max_rows_per_second"] = rng.choice((0, 10, 30, 100))
            source["snapshot_parallelism"] = rng.choice((1, 2))
        plan.destinations[f"d{number + 1}"] = {
            "source": source,
            "filter": {"include": r"shop\..*"},
            "route": {"topic": f"d{number + 1}"},
            "queue": {"bytes": rng.choice((4_096, 65_536, 1_048_576))},
            "heartbeat": {"enabled": rng.random() < beats, "interval": rng.choice((1.0, 5.0))},
            "sink": sink,
            "parking": _parking(rng, once) if plan.parks else {},
        }
    end = seconds * HEAL_AT
    orderly = ORDERLY if not lost and not plan.parks and not alone and rng.random() < 0.15 else ()
    for _ in range(int(rng.expovariate(1 / 5))):
        plan.faults.append(fault := _fault(rng, end, plan, orderly))
        if not orderly and rng.random() < 0.4:
            plan.faults.append(_meanwhile(fault, rng, end, plan))
    for _ in range(rng.choice((1, 2, 4)) if plan.parks else 0):
        at = rng.random() * end * 0.8
        seconds = min(rng.choice((3.0, 12.0, 40.0)), end - at)
        plan.faults.append(Fault("refuse messages", at, seconds, f"d{rng.randrange(4) + 1}"))
    if lost:
        plan.answer = rng.choice(("next-file" if lost == "tear binlog" else "earliest", "latest"))
        plan.faults.append(first := _lost(lost, rng, end))
        plan.faults += [_soon_after(first, _fault(rng, end, plan), rng, end) for _ in range(rng.choice((0, 0, 5)))]
    if plan.destinations["d3"]["source"]["snapshot"] != "never" and rng.random() < 0.3:
        at = rng.random() * min(8.0, end)
        plan.faults.append(Fault("pause snapshot", at, min(rng.choice((3.0, 20.0)), end - at), "d3"))
    if not orderly and not alone:
        plan.faults += _without_locks(plan, random.Random(f"without locks {seed}"), end)
        plan.faults += _one_without_locks(plan, random.Random(f"one without locks {seed}"), end)
    if not orderly:
        plan.faults += _between_steps(plan, random.Random(f"between steps {seed}"), end)
    if not orderly and not lost and not plan.parks:
        plan.faults += _arrange(plan, random.Random(f"arranged {seed}"), end)
        if not plan.arranged:
            plan.faults += _two_troubles(plan, random.Random(f"two troubles {seed}"), end)
            lost = plan.lost.kind if plan.lost is not None else ""
    keeps = random.Random(f"archive {seed}")
    if (not lost and keeps.random() < 0.2) or (lost == "purge" and keeps.random() < 0.5):
        plan.archive = keeps.choice(("own", "own", "shared"))
        plan.faults += _of_archives(keeps, end)
    clients = random.Random(f"clients {seed}")
    # Before the place that a move leads to, tables and XA transactions that are prepared there may not be known, which
    # stops a destination; and so does an XA transaction that is prepared where it begins.
    moved = bool(lost) or any(fault.kind == "move back" for fault in plan.faults)
    plan.ddl, plan.compressed = clients.random() < 0.15 and not moved, clients.random() < 0.1
    moved = moved or plan.destinations["d3"]["source"]["snapshot"] != "never"
    plan.xa = not moved and clients.random() < 0.2
    plan.faults.sort(key=lambda fault: fault.at)
    return plan


def _of_archives(rng: random.Random, end: float) -> list[Fault]:
    found = list[Fault]()
    for _ in range(rng.choice((0, 1, 3))):
        at, kind = rng.random() * end * 0.95, rng.choice(ARCHIVE)
        number = rng.choice((0.3, 3.0, 30.0) if kind == "slow archive" else (0.1, 0.5, 1.0))
        found.append(Fault(kind, at, min(rng.choice((0.5, 5.0, 20.0)), end - at), "", "", number))
    return found


def _rabbitmq(rng: random.Random, queue: str) -> dict[str, Any]:
    return {
        "type": "rabbitmq",
        "exchange": "headrace",
        "declare": True,
        "queue": queue,
        "user": "guest",
        "password": "guest",
        "tls": "disabled",
        "max_in_flight": rng.choice((3, 20, 1000)),
        "max_in_flight_bytes": rng.choice((1024, 131_072)),
        "retry_delay": rng.choice((0.1, 3.0)),
        "retries": rng.choice((0, 1, 3)),
    }


def _parking(rng: random.Random, once: bool) -> dict[str, Any]:
    """With exactly once they wait in a topic, else in a table of the source's server."""
    times = {"delay": rng.choice((0.2, 2.0)), "max_delay": rng.choice((2.0, 20.0)), "attempts": rng.choice((1, 3, 20))}
    return times if once else {"store": "mysql", **times}


def _fault(rng: random.Random, end: float, plan: Plan, kinds: tuple[str, ...] = ()) -> Fault:
    known = kinds or (*KINDS, *_LEASES)
    kind = rng.choice([kind for kind in known if kind not in (*DISK, *(SEVERAL if plan.alone else ()))])
    if plan.alone and not kinds and rng.random() < 0.3:
        kind = rng.choice(DISK)
    hosts = (*plan.daemons, *BROKERS, SOURCE, RABBIT) if plan.alone else HOSTS
    at = rng.random() * end * 0.95
    seconds = min(rng.choice((0.05, 0.5, 3.0, 12.0, 40.0)) * (0.5 + rng.random()), end - at)
    target = other = ""
    number = 0.0
    if kind in ("kill", "stop", "freeze", "clock jump", "clock drift", "hang"):
        target = rng.choice(plan.daemons)
        number = {"clock jump": rng.choice((-3600, -2, 2, 3600)), "clock drift": rng.choice((-0.01, 0.01))}.get(kind, 0)
    elif kind == "freeze server":
        target = rng.choice([host for host in hosts if host not in DAEMONS])
    elif kind in ("partition", "slow link", "reset", "cut packet"):
        target, other = rng.sample(hosts, 2)
        number = rng.choice((0.05, 0.5)) if kind == "slow link" else 0
    elif kind == "isolate":
        target = rng.choice([host for host in hosts if host in (*DAEMONS, *ZOOKEEPERS)])
    elif kind == "kill zookeeper":
        target = rng.choice(ZOOKEEPERS)
    elif kind in ("crash broker", "lose answers", "late answers", "drop requests"):
        target = rng.choice(BROKERS)
        number = rng.choice((1, 3)) if kind != "crash broker" else 0
    elif kind in ("nack messages", "lose confirms"):
        number = rng.choice((1, 3, 20))
    elif kind == "crash rabbitmq":
        number = rng.choice((0, 1, 20))
    elif kind == "late confirms":
        target = "d4"
    elif kind == "move leader":
        number = rng.randrange(3)
    elif kind == "large transaction":
        number = rng.choice((50, 500))
    elif kind in DISK:
        target = DAEMONS[0]
        number = {"power loss": rng.choice((0, 1, 5, 30)), "disk errors": rng.choice((0.02, 0.1, 1.0))}.get(kind, 0)
        other = rng.choice(("", "restart")) if kind != "power loss" else ""
    elif kind == "silent source":
        at, seconds = at / 2, min(rng.choice((12.0, 26.0, 40.0)), end - at / 2)
    elif kind == "slow source":
        number = rng.choice((0.1, 0.5))
    elif kind == "drain":
        target, at = rng.choice(DAEMONS), at / 2
        seconds = min(rng.choice((3.0, 26.0, 40.0)), end - at)
    elif kind in ("refuse messages", "same server id"):
        target = f"d{rng.randrange(4) + 1}"
    elif kind in COMMANDS:
        target = f"d{rng.randrange(4) + 1}"
        if kind == "resync":
            other = rng.choice(("", "shop.t1", r"shop\.t[23]"))
        elif kind == "pause snapshot":
            target = rng.choice((target, "d3"))
        elif kind == "hand over":
            other = rng.choice(DAEMONS)
        elif kind == "move back":
            number = rng.random()
    if kind in _LEASES and rng.random() < 0.5:  # about as long as a lease and a session last
        seconds = min(plan.session_timeout * rng.uniform(0.6, 1.8), end - at)
    return Fault(kind, at, seconds, target, other, number)


def _meanwhile(first: Fault, rng: random.Random, end: float, plan: Plan) -> Fault:
    """Returns a fault that begins while what the first has begun still goes on: a command, a transaction, a stall. It
    has the same destination or daemon, where both have one."""
    other = _fault(rng, end, plan, rng.choice((_RUN_ENDS, _BROKERS_WAIT, COMMANDS)))
    at = min(first.at + rng.choice((0.1, 1.0, 4.0)) * rng.random(), end)
    same = (first.kind in COMMANDS and other.kind in COMMANDS) or {first.target, other.target} <= {*DAEMONS}
    return replace(other, at=at, seconds=min(other.seconds, end - at), target=first.target if same else other.target)


def _without_locks(plan: Plan, rng: random.Random, end: float) -> list[Fault]:
    """Returns faults that rarely meet by chance: what a daemon does while its session has ended, in some seeds."""
    kind, timeout = rng.choice(("isolate", "cut off zookeeper")), plan.session_timeout
    daemon = rng.choice(plan.daemons)
    target, seconds = (daemon if kind == "isolate" else ""), timeout * (1.2 + rng.random())
    at = rng.random() * end * 0.4
    cut = Fault(kind, at + 1, min(seconds, end - at - 1), target)
    chance = rng.random()
    if chance < 0.05:  # it is told to stop
        return [cut, Fault("stop", cut.at + timeout / 2 * rng.random(), 3.0, daemon)]
    if chance < 0.1:  # a destination is paused for longer
        return [cut, Fault("pause", at, end - at, f"d{rng.randrange(4) + 1}")]
    return []


def _one_without_locks(plan: Plan, rng: random.Random, end: float) -> list[Fault]:
    """Cuts one daemon off from the lock service, or each in turn, in some seeds: about as long as its session lasts, or
    longer."""
    if rng.random() > 0.15:
        return []
    at, seconds = end * rng.uniform(0.15, 0.4), plan.session_timeout * rng.choice((0.8, 1.5, 2.5))
    found = [
        Fault(ONE_WITHOUT_LOCKS, at + number * (seconds + 2.0), seconds, daemon)
        for number, daemon in enumerate(rng.sample(plan.daemons, rng.choice((1, 3))))
    ]
    return [replace(one, seconds=min(seconds, end - one.at)) for one in found if one.at < end]


def _between_steps(plan: Plan, rng: random.Random, end: float) -> list[Fault]:
    """Kills or freezes daemons between two steps, in some seeds: a timer is due only when no step is left to run."""
    found = list[Fault]()
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        at, kind = end * rng.uniform(0.1, 0.9), rng.choice(BETWEEN_STEPS)
        seconds = 2.0 if kind == "kill" else plan.session_timeout * rng.choice((0.5, 1.2, 2.0))
        steps, daemon = rng.randrange(1, 1_000), rng.choice(plan.daemons)
        found.append(Fault(kind, at, min(seconds, end - at), daemon, "", steps))
    return found


def _arrange(plan: Plan, rng: random.Random, end: float) -> list[Fault]:
    """Arranges, in some seeds, what rarely comes about by chance: it needs certain settings, and faults that meet."""
    if rng.random() < 0.7:
        return []
    name, make = rng.choice([(name, one) for name, (one, alone) in ARRANGED.items() if alone in (None, plan.alone)])
    plan.arranged = name
    return [replace(one, seconds=min(one.seconds, end - one.at)) for one in make(plan, rng) if one.at < end]


def _lapse_in_flight(plan: Plan, rng: random.Random) -> list[Fault]:
    """No broker runs, changes go on, and leases lapse; the sessions last. What a frozen broker has got it would still
    append."""
    plan.rate = 5.0
    for destination in plan.destinations.values():
        destination["sink"]["request_timeout"] = 30.0
    at, seconds = rng.uniform(6, 20), plan.session_timeout * rng.uniform(0.75, 0.95)
    crashes = [Fault("crash broker", at, seconds + 0.3, broker) for broker in BROKERS]
    return [*crashes, Fault("cut off zookeeper", at + 0.1, seconds)]


def _silent_while_read(plan: Plan, rng: random.Random) -> list[Fault]:
    """Tables are read, and the stream of their changes lags."""
    _read(plan, rate=10)
    return [Fault("silent source", at := rng.uniform(2, 6), 10.0), Fault("silent source", at + 14, 10.0)]


def _slow_while_read(plan: Plan, rng: random.Random) -> list[Fault]:
    """Rows of a snapshot wait for brokers, changes go on, and runs end between the rows of one read."""
    _read(plan, rate=100)
    plan.text, plan.batch = 1_000, 1_500
    plan.destinations["d3"]["queue"]["bytes"] = 4_096
    restarts = [Fault("restart", at + 2 * rng.random(), 0.0, "d3") for at in (6, 10, 14)]
    return [*_slow_brokers(plan, rng.uniform(2.5, 3.5), 18.0), *restarts]


def _read(plan: Plan, rate: int) -> None:
    """Has a destination publish the rows that its tables have at the start, while clients change them."""
    plan.rows, plan.rate = 200, 5.0
    source = plan.destinations["d3"]["source"]
    source.pop("start", None)
    source |= {"snapshot": "initial", "snapshot_max_rows_per_second": rate, "snapshot_parallelism": 1}


def _slow_brokers(plan: Plan, at: float, seconds: float) -> list[Fault]:
    pairs = [(daemon, broker) for daemon in plan.daemons for broker in BROKERS]
    return [
        Fault("slow link", at, seconds, *pair, 0.5) for one, other in pairs for pair in ((one, other), (other, one))
    ]


def _slow_starts(plan: Plan, rng: random.Random) -> list[Fault]:
    """Sinks take seconds to connect, and are ended meanwhile."""
    restarts = [Fault("restart", rng.uniform(9, 28), 0.0, f"d{number % 3 + 1}") for number in range(12)]
    return [*_slow_brokers(plan, 8.0, 22.0), *restarts]


def _drained(plan: Plan, rng: random.Random) -> list[Fault]:
    """Locks become free while a daemon is drained."""
    restarts = [Fault("restart", rng.uniform(14, 30), 0.0, f"d{number % 4 + 1}") for number in range(8)]
    return [Fault("drain", rng.uniform(3, 6), 32.0, rng.choice(DAEMONS)), *restarts]


def _starts_on_errors(plan: Plan, rng: random.Random) -> list[Fault]:
    """A daemon that has stopped in order, so that its store is one file, starts while reads of its disk fail."""
    found = list[Fault]()
    for at in (8.0, 19.0, 30.0):
        found.append(Fault("stop", at, 6.0, DAEMONS[0]))
        found.append(Fault("disk errors", at + 4, 6.0, DAEMONS[0], "", rng.choice((0.05, 0.1, 0.2))))
    return found


ARRANGED: Mapping[str, tuple[Callable[[Plan, random.Random], list[Fault]], bool | None]] = MappingProxyType(
    {
        "lapse in flight": (_lapse_in_flight, False),
        "silent while read": (_silent_while_read, None),
        "slow while read": (_slow_while_read, None),
        "slow starts": (_slow_starts, None),
        "drained meanwhile": (_drained, False),
        "starts on errors": (_starts_on_errors, True),
    }
)
"""What some seeds arrange, and whether it needs one daemon alone, or several; None: either."""


def _two_troubles(plan: Plan, rng: random.Random, end: float) -> list[Fault]:
    """Arranges, in some seeds, that a destination gets into a state while it is in another one: two troubles meet, and
    commands begin it again meanwhile. With one daemon alone no other one takes over."""
    if rng.random() > (0.8 if plan.alone else 0.2):
        return []
    plan.arranged, name = "two troubles", f"d{rng.randrange(4) + 1}"
    first, second = rng.sample(sorted(_TROUBLES), 2)
    if rng.random() < 0.3 and "lost" not in (first, second):
        first, second = rng.choice((("lost", second), (first, "lost")))
    at = rng.uniform(6, 16)
    found = _TROUBLES[first](plan, rng, name, at)
    meanwhile = at + (found[0].seconds if first == "lost" else 0.0) + rng.choice((0.2, 2.0, 8.0)) * rng.random()
    found += _TROUBLES[second](plan, rng, name, meanwhile)
    found += [Fault("restart", meanwhile + rng.uniform(0, 8), 0.0, name) for _ in range(rng.choice((0, 1, 3)))]
    return [replace(one, seconds=min(one.seconds, end - one.at)) for one in found if one.at < end]


def _name_taken(plan: Plan, rng: random.Random, name: str, at: float) -> list[Fault]:
    number = rng.choice((0, 7001))
    if number:
        plan.destinations[name]["source"]["server_id"] = number
    return [Fault("same server id", at, rng.uniform(2, 15), name, "", number)]


def _no_sink(plan: Plan, rng: random.Random, name: str, at: float) -> list[Fault]:
    seconds = rng.uniform(3, 15)
    if plan.sink(name) == "rabbitmq":
        return [Fault("crash rabbitmq", at, seconds)]
    return [Fault("crash broker", at, seconds, broker) for broker in BROKERS]


def _no_changes(plan: Plan, rng: random.Random, name: str, at: float) -> list[Fault]:
    plan.destinations[name]["source"]["stall_after"] = 5.0
    return [Fault("silent source", at, rng.uniform(8, 16))]


def _rows_come_again(plan: Plan, rng: random.Random, name: str, at: float) -> list[Fault]:
    plan.rows = 200
    plan.destinations[name]["source"]["snapshot_max_rows_per_second"] = rng.choice((10, 30))
    return [Fault("resync", at, 0.0, name)]


def _lost_meanwhile(plan: Plan, rng: random.Random, name: str, at: float) -> list[Fault]:
    kind = rng.choice([one for one in LOST[:-1] if plan.gtids or one != "fail over"])
    plan.answer = rng.choice(("next-file" if kind == "tear binlog" else "earliest", "latest"))
    return [replace(_lost(kind, rng, 60.0), at=at, seconds=rng.uniform(0.5, 5), target=name if kind in _PAUSES else "")]


_TROUBLES: Mapping[str, Callable[[Plan, random.Random, str, float], list[Fault]]] = MappingProxyType(
    {
        "name taken": _name_taken,
        "paused": lambda _, rng, name, at: [Fault("pause", at, rng.uniform(2, 10), name)],
        "no sink": _no_sink,
        "no changes": _no_changes,
        "no source": lambda _, rng, name, at: [Fault("crash source", at, rng.uniform(2, 8))],
        "refused": lambda _, rng, name, at: [Fault("refuse messages", at, rng.uniform(2, 12), name)],
        "rows come again": _rows_come_again,
        "stopped": lambda plan, rng, name, at: [Fault("stop", at, rng.uniform(1, 5), rng.choice(plan.daemons))],
        "lost": _lost_meanwhile,
    }
)
"""What puts a destination into a state of its own."""


def _soon_after(first: Fault, other: Fault, rng: random.Random, end: float) -> Fault:
    """Returns the other fault while what the first has done may still last."""
    at = min(first.at + first.seconds + rng.random() * 6, end)
    return replace(other, at=at, seconds=min(other.seconds, end - at))


def _lost(kind: str, rng: random.Random, end: float) -> Fault:
    at, number, other = end * (0.2 + 0.6 * rng.random()), 0.0, ""
    seconds = min(rng.choice((0.5, 5.0, 15.0)), end - at)
    if kind == "lose tail":
        number = rng.choice((1, 3, 20))
    elif kind == "tear binlog":
        number = rng.choice((1, 4, 40))
    elif kind == "fail over":
        number = rng.choice((0, 1.0, 5.0))
        other = rng.choice(("", "back"))
    paused = f"d{rng.randrange(4) + 1}"
    if kind == "restore source" and rng.random() < 0.5:
        paused = ""
    target = {"lose state": rng.choice(("d1", "d3", "d3", "d4"))}.get(kind, paused if kind in _PAUSES else "")
    return Fault(kind, at, seconds, target, other, number)


LOST = ("purge", "tear binlog", "reset source", "restore source", "lose tail", "fail over", "lose state")
"""Faults after which positions may be lost."""
_PAUSES = ("purge", "tear binlog", "restore source")
"""Those that one destination may miss, because it is paused."""
COMMANDS = ("pause", "resync", "pause snapshot", "move back", "restart", "hand over", "reload")
"""Commands of the operator to one destination."""
DISK = ("power loss", "disk errors", "full disk")
"""Faults of a daemon that has its state on its disk."""
ARCHIVE = ("archive errors", "lost archive answers", "full archive", "slow archive")
"""Faults of the stores of archives."""
BETWEEN_STEPS = ("kill", "freeze")
"""Faults that may begin after a `number` of steps."""
HELD_UP = ("freeze", "hang", "freeze server", "partition", "isolate", "slow link", "cut packet")
"""Faults that hold up what was sent, or who sends it."""
ONE_WITHOUT_LOCKS = "lose zookeeper"
SEVERAL = ("kill zookeeper", "cut off zookeeper", ONE_WITHOUT_LOCKS, "drain", "hand over")
"""Faults of daemons that share a lock service."""
_LEASES = ("freeze", "isolate", "cut off zookeeper")
"""Faults that end leases and sessions, if they last long enough; they are chosen more often."""
_RUN_ENDS = ("kill", "stop", "freeze", "isolate", "cut off zookeeper", "kill connections", "restart")
"""Faults that end runs."""
_BROKERS_WAIT = ("crash broker", "freeze server", "late answers", "drop requests", "late confirms")
"""Faults during which messages wait for their confirmation."""
ORDERLY = ("stop", "pause", "restart", "hand over", "reload", "large transaction", "rotate", "drain")
"""What loses and repeats nothing, if it comes without other faults."""
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
    "cut packet",
    "kill zookeeper",
    "crash broker",
    "lose answers",
    "late answers",
    "drop requests",
    "move leader",
    "crash rabbitmq",
    "nack messages",
    "lose confirms",
    "return messages",
    "revoke rights",
    "late confirms",
    "memory alarm",
    "refuse messages",
    "restart source",
    "crash source",
    "kill connections",
    "same server id",
    "slow source",
    "silent source",
    "rotate",
    "large transaction",
    "drain",
    *DISK,
    *COMMANDS,
)
