"""Faults: which ones come when, decided by the seed, and how each is injected and healed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.chaos.fleet import FLOWING, Fleet
from tests.chaos.servers import Links
from tests.proxy import Proxy

AT_ONCE = 2
"""Faults that overlap at most."""


@dataclass
class Fault:
    """One fault as it was planned, and what became of it. Times in seconds since the faults began."""

    kind: str
    at: float
    seconds: float
    """How long it lasts, where it lasts."""
    target: str = ""
    """For faults of a daemon: its node, or `active of DESTINATION` when it begins."""
    number: int = 0
    """A broker, or a way of cutting connections."""
    node: str = ""
    """The daemon that it hit; "" for one of the servers'."""
    detail: str = ""
    began: float = 0.0
    ended: float = 0.0

    def __str__(self) -> str:
        when = f"{self.began:6.1f} to {self.ended:6.1f} s" if self.began else f"not injected at {self.at:.1f} s"
        where = f"{self.target or 'servers'}, {self.seconds:.1f} s"
        return f"{when}  {self.kind:<20} {self.node:<3} {self.detail} ({where})"


Pause = Callable[[float], None]
Inject = Callable[[Fleet, Fault, Pause], None]


@dataclass(frozen=True)
class Kind:
    """A kind of fault. `uses` is what no other fault may touch meanwhile: `daemon` stands for the node that it hits.
    It lasts from `shortest` to `longest` seconds, in a short run to `longest_short`."""

    inject: Inject
    uses: str
    shortest: float = 0.0
    longest: float = 0.0
    longest_short: float = 0.0


# -- daemons ----------------------------------------------------------------------------------------------------------


def _kill(fleet: Fleet, fault: Fault, pause: Pause) -> None:
    daemon = fleet.daemons[fault.node]
    daemon.kill()
    pause(fault.seconds)
    daemon.start()


def _stop(fleet: Fleet, fault: Fault, pause: Pause) -> None:
    daemon = fleet.daemons[fault.node]
    flowing = [one for one in daemon.health().values() if one["state"] in FLOWING]
    behind = max((one["oldest_unconfirmed_seconds"] for one in flowing), default=0.0)
    began = time.monotonic()
    status = daemon.stop()
    fault.detail = f"exit status {status} after {time.monotonic() - began:.1f} s, {behind:.1f} s behind"
    pause(fault.seconds)
    daemon.start()


def _freeze(fleet: Fleet, fault: Fault, pause: Pause) -> None:
    daemon = fleet.daemons[fault.node]
    daemon.freeze()
    try:
        pause(fault.seconds)
    finally:
        daemon.thaw()


def _jump(fleet: Fleet, fault: Fault, pause: Pause) -> None:
    clock = fleet.daemons[fault.node].clock
    fault.detail = f"by {(-3600, -20, 20, 3600)[fault.number]} s"
    clock.set((-3600.0, -20.0, 20.0, 3600.0)[fault.number])
    try:
        pause(fault.seconds)
    finally:
        clock.set(0.0)


def _partition(of: Callable[[Links], list[Proxy]]) -> Inject:
    def inject(fleet: Fleet, fault: Fault, pause: Pause) -> None:
        proxies = of(fleet.links(fault.node))
        how = ("freeze", "blackhole", "reset")[fault.number % 3]
        fault.detail = how
        for proxy in proxies:
            proxy.freeze() if how == "freeze" else proxy.blackhole()
            if how == "reset":
                proxy.close_all()
        try:
            pause(fault.seconds)
        finally:
            for proxy in proxies:
                proxy.thaw()

    return inject


# -- servers ----------------------------------------------------------------------------------------------------------


def _kill_leader(fleet: Fleet, fault: Fault, pause: Pause) -> None:
    leader = fleet.servers.zookeeper.leader
    if leader is None:
        fault.detail = "no leader"
        return
    fault.detail = leader.name
    leader.kill()
    pause(fault.seconds)
    leader.start()


def _kill_broker(fleet: Fleet, fault: Fault, pause: Pause) -> None:
    broker = fleet.servers.kafka.brokers[fault.number % 3]
    fault.detail = broker.name
    broker.kill()
    pause(fault.seconds)
    broker.start()


def _freeze_brokers(fleet: Fleet, fault: Fault, pause: Pause) -> None:
    fleet.servers.kafka.freeze()
    try:
        pause(fault.seconds)
    finally:
        fleet.servers.kafka.thaw()


def _restart_mysql(fleet: Fleet, fault: Fault, pause: Pause) -> None:
    mysql = fleet.servers.mysql
    fault.detail = "crash" if fault.number % 2 else "shutdown"
    mysql.kill() if fault.number % 2 else mysql.stop()
    pause(fault.seconds)
    mysql.start()


KINDS: dict[str, Kind] = {
    "SIGKILL": Kind(_kill, "daemon", 0.0, 10.0, 3.0),
    "SIGSTOP": Kind(_freeze, "daemon", 1.0, 40.0, 12.0),
    "SIGTERM": Kind(_stop, "daemon", 0.0, 5.0, 2.0),
    "clock jump": Kind(_jump, "daemon", 3.0, 20.0, 5.0),
    "zookeeper partition": Kind(_partition(lambda links: links.zookeeper), "daemon", 1.0, 30.0, 10.0),
    "kafka partition": Kind(_partition(lambda links: list(links.kafka.values())), "daemon", 1.0, 30.0, 8.0),
    "mysql partition": Kind(_partition(lambda links: [links.mysql]), "daemon", 1.0, 30.0, 6.0),
    "zookeeper leader": Kind(_kill_leader, "zookeeper", 1.0, 10.0, 3.0),
    "broker": Kind(_kill_broker, "kafka", 1.0, 20.0, 3.0),
    "all brokers": Kind(_freeze_brokers, "kafka", 5.0, 60.0, 10.0),
    "mysql": Kind(_restart_mysql, "mysql", 0.0, 5.0, 1.0),
}
SHORT_RUN = 300.0
"""Seconds; a run up to there has short faults, so that each kind fits in."""
_TAIL = 8.0
"""At the end of a run nothing new begins."""
_SPACING = 13.0
"""Seconds from one fault to the next, on average."""


def plan(
    seed: int, seconds: float, destinations: Sequence[str], nodes: Sequence[str], without: Collection[str] = ()
) -> list[Fault]:
    """The faults of a run: all kinds in an order of the seed's, then again; most daemons that are hit are active."""
    chance = random.Random(seed)
    kinds = [name for name in KINDS if name not in without]
    deck: list[str] = []
    count = max(len(kinds), round((seconds - _TAIL) / _SPACING))
    spacing = (seconds - _TAIL) / count
    made = []
    for slot in range(count):
        if not deck:
            deck = list(kinds)
            chance.shuffle(deck)
        name = deck.pop()
        kind = KINDS[name]
        longest = kind.longest_short if seconds <= SHORT_RUN else kind.longest
        at, lasting = (slot + chance.uniform(0, 0.8)) * spacing, chance.uniform(kind.shortest, longest)
        fault = Fault(name, at, min(lasting, max(1.0, seconds - at)), number=chance.randrange(4))
        if kind.uses == "daemon":
            active, node = chance.choice(destinations), chance.choice(nodes)
            fault.target = f"active of {active}" if chance.random() < 0.8 else node
        made.append(fault)
    return made


class Engine:
    """Injects the planned faults, each from a thread of its own; heals them all at the end."""

    def __init__(self, fleet: Fleet, faults: Sequence[Fault]) -> None:
        self._fleet, self.faults = fleet, list(faults)
        self._over = threading.Event()
        self._locks = {name: threading.Lock() for name in ("zookeeper", "kafka", "mysql", *fleet.daemons)}
        self._slots = threading.Semaphore(AT_ONCE)
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self.began = 0.0

    @property
    def now(self) -> float:
        """Seconds since the faults began."""
        return time.monotonic() - self.began

    def run(self, seconds: float, check: Callable[[], None]) -> None:
        """Injects for so long; `check` is called now and then and may raise."""
        self.began = time.monotonic()
        waiting = sorted(self.faults, key=lambda fault: fault.at)
        try:
            while self.now < seconds and not self.errors:
                while waiting and waiting[0].at <= self.now:
                    thread = threading.Thread(target=self._inject, args=(waiting.pop(0),), name="fault")
                    self._threads.append(thread)
                    thread.start()
                check()
                time.sleep(0.1)
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()
        if self.errors:
            raise self.errors[0]

    def _inject(self, fault: Fault) -> None:
        kind = KINDS[fault.kind]
        try:
            with self._slots, ExitStack() as held:
                if kind.uses != "daemon":
                    held.enter_context(self._locks[kind.uses])
                elif not self._choose(fault, held):
                    return
                if self._over.is_set():
                    return
                fault.began = self.now
                kind.inject(self._fleet, fault, lambda seconds: self._over.wait(seconds) and None)
                fault.ended = self.now
        except BaseException as error:
            fault.ended = self.now
            self.errors.append(error)

    def _choose(self, fault: Fault, held: ExitStack) -> bool:
        """Takes the daemon that is to be hit; False when the run is over before there is one."""
        while not self._over.is_set():
            node = fault.target
            if node.startswith("active of "):
                node = self._fleet.active(node.removeprefix("active of "))
            if node and self._locks[node].acquire(timeout=0.2):
                held.callback(self._locks[node].release)
                fault.node = node
                return True
            self._over.wait(0.1)
        return False
