"""The simulated world: servers, daemons, clients and faults, made from one plan."""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any

from headrace.destination.status import DestinationStatus
from headrace.native import find
from headrace.pipeline import message_builder
from sim import archives, faults
from sim.checker import Checker
from sim.clients import Clients
from sim.coverage import Coverage
from sim.daemon import SimDaemon
from sim.kafka.cluster import Cluster
from sim.loop import Process, SimLoop
from sim.monitor import Monitor
from sim.mysql.accounts import Account
from sim.mysql.server import Server
from sim.network import Network
from sim.operator import Operator
from sim.plan import BETWEEN_STEPS, BROKERS, ORDERLY, RABBIT, SOURCE, STANDBY, ZOOKEEPERS, Fault, Plan
from sim.rabbit import PORT, Node
from sim.runtime import EPOCH_NS
from sim.state import Row
from sim.trace import Trace
from sim.zookeeper.client import ENSEMBLE
from sim.zookeeper.ensemble import Ensemble

USER, PASSWORD = "canal", "canal"
_STOP_LIMIT = 60.0
_RESTART = 2.0
"""Seconds after which a service manager starts a daemon again."""


class World:
    """All of it. Everything random comes from the plan's seed, each part by a stream of its own."""

    mysql_port, kafka_port = 3306, 9092

    def __init__(self, plan: Plan, folder: Path, show: Callable[[str], None] | None = None) -> None:
        self.plan, self._folder = plan, folder
        self._streams = dict[str, int]()
        self.loop = SimLoop(self.rng("order"))
        self.began = self.loop.time()
        self.trace = Trace(self.loop.time, str(folder), show)
        self.trace.take_logs()
        self.network = Network(self.loop, self.rng("network"))
        self.network.delay, self.network.pieces = plan.delay, plan.pieces
        self.ensemble = Ensemble(self.loop, self.network, self.rng("zookeeper"), ZOOKEEPERS)
        ENSEMBLE.set(self.ensemble)
        self.loop.world.base.run(ENSEMBLE.set, self.ensemble)
        self.kafka = Cluster(self.rng("kafka"), self.now_us, brokers=len(BROKERS))
        self.brokers = {number: Process(self.loop, f"kafka{number}") for number in self.kafka.brokers}
        for number, broker in self.kafka.brokers.items():
            broker.address = f"kafka{number}", self.kafka_port
            self.listen_broker(number)
        self.rabbit = Node(self)
        mode = "ON" if plan.gtids else "OFF"
        self.mysql = Server(self.now_us, self.rng("mysql"), accounts=[Account(USER, PASSWORD)], gtid_mode=mode)
        self.mysql.delay = lambda: plan.slow
        message_builder._BATCH_BYTES = plan.batch  # as it is, only transactions of megabytes have several batches
        self.replica: Server | None = None
        self.sources = {self.mysql: Process(self.loop, SOURCE)}
        """The processes of the servers. The present one is `mysql`."""
        self.listen_source()
        self.daemons = {name: SimDaemon(self, name, folder / name) for name in plan.daemons}
        self.store_faults: archives.StoreFaults = archives.StoreFaults()
        self.archived = dict[Path, int]()
        """The objects whose creation an archive's store has confirmed, with their sizes."""
        self.clients = Clients(self, plan.rate)
        self.checker = Checker(self)
        self.operator, self.monitor = Operator(self), Monitor(self)
        self.active = dict[Fault, Callable[[], None]]()
        """The faults that last, and what ends them."""
        self.healed_at = self.began
        self.calm = self.orderly = True
        """Whether there were no faults so far, or none but those of plan.ORDERLY."""
        self.stopping = False
        self.coverage = Coverage()
        self.coverage.watch()
        self.loop.on_error = self._on_error
        self.trace.on_log = self._on_log
        find("off")

    def rng(self, name: str) -> random.Random:
        """Returns a new stream of random numbers. The streams of one name differ."""
        number = self._streams[name] = self._streams.get(name, 0) + 1
        return random.Random(f"{self.plan.seed}/{name}/{number}")

    def now_us(self) -> int:
        """Returns the wall clock of the servers."""
        return EPOCH_NS // 1000 + int(self.loop.time() * 1e6)

    def listen_broker(self, number: int) -> None:
        """Lets a broker accept connections."""
        broker = self.kafka.brokers[number]
        self.network.listen(self.brokers[number], f"kafka{number}", self.kafka_port, partial(broker.protocol, ""))

    def listen_source(self) -> None:
        """Lets the source accept connections."""
        process = self.sources[self.mysql]
        self.network.listen(process, process.name, self.mysql_port, self.mysql.protocol)

    def lead_to(self, server: Server, *, start: bool = False) -> None:
        """Makes a server the one that clients and daemons write to and read."""
        self.mysql = server
        if start:
            self.at_source(server.start)
        self.checker.source_changed()
        self.listen_source()

    def at_source(self, call: Callable[[], object]) -> None:
        """Calls something as a step of the source."""
        self.sources[self.mysql].context().run(call)

    def end_source(self, end: Callable[[], object]) -> Callable[[], None] | None:
        """Ends the source, by one of its methods. Returns what starts it again; None if it does not run."""
        server = self.mysql
        if not server.running:
            return None
        self.at_source(end)
        self.network.close(self.sources[server].name, self.mysql_port)

        def start() -> None:
            if server is self.mysql and not server.running:
                self.at_source(server.start)
                self.listen_source()

        return start

    def stored(self, rows: list[Row]) -> None:
        """Takes what a daemon has on its disk."""
        for row in rows:
            topic = self.checker.topics[row.destination]
            self.checker.stored(topic, row.version, row.epoch, row.position, gap="gap" in row.details)

    def process(self, host: str) -> Process | None:
        """Returns a host's process."""
        if host in self.daemons:
            return self.daemons[host].process
        if host in self.ensemble.servers:
            return self.ensemble.servers[host].process
        others = {SOURCE: next(iter(self.sources.values())), RABBIT: self.rabbit.process}
        return others.get(host) or self.brokers[int(host[-1])]

    # -- the course of a simulation -------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts everything, and sets the faults' timers."""
        self.at_source(self.clients.create)
        if self.plan.lost is not None and self.plan.lost.kind == "fail over":
            self.at_source(self._make_replica)
        self.operator.watch()
        for daemon in self.daemons.values():
            daemon.write("headrace.toml", self.plan.daemon | daemon.places())
            for destination in self.plan.destinations:
                self.write_destination(daemon, destination)
            daemon.start()
        context = self.sources[self.mysql].context()
        self.spawn(self.clients.run(), context)
        self.monitor.start()
        for fault in self.plan.faults:
            self.loop.call_later(fault.at, self._begin_soon, fault, context=self.loop.world.context())

    def spawn(self, work: Coroutine[Any, Any, object], context: Context | None = None) -> asyncio.Task[None]:
        """Starts a task of the simulation itself; an error in it is a violation: nothing would be simulated, or
        checked, any more."""

        async def whole() -> None:
            try:
                await work
            except Exception as error:
                at = traceback.extract_tb(error.__traceback__)[-1]
                self.checker.violation(f"the simulation itself failed: {error!r} at {at.filename}:{at.lineno}")

        return self.loop.create_task(whole(), context=context)

    def _make_replica(self) -> None:
        assert self.plan.lost is not None
        behind = self.plan.lost.number
        self.replica = replica = self.mysql.replica(lag=lambda: behind)
        replica.set_variable("read_only", True)
        self.sources[replica] = self.sources[self.mysql]
        if self.plan.standby:
            self.sources[replica] = process = Process(self.loop, STANDBY)
            self.network.listen(process, STANDBY, self.mysql_port, replica.protocol)

    def write_destination(self, daemon: SimDaemon, destination: str, **changed: dict[str, Any]) -> None:
        """Writes the file of a destination, with some sections changed."""
        sections = self.plan.destinations[destination] | changed
        account = {"host": SOURCE, "port": self.mysql_port, "user": USER, "password": PASSWORD, "tls": "disabled"}
        source = account | sections["source"]
        if self.plan.standby:
            source["standby"] = [{"host": STANDBY, "port": self.mysql_port}]
        rabbitmq = self.plan.sink(destination) == "rabbitmq"
        servers = {"hosts": f"{RABBIT}:{PORT}"} if rabbitmq else {"bootstrap_servers": self.kafka.bootstrap_servers}
        sink = {**sections["sink"], **servers}
        if self.plan.archive:
            archive = {"path": str(archives.folder(self, daemon)), "flush_interval": 0.5}
            sections = {**sections, "archive": archive}
        if sections["parking"].get("store") == "mysql":
            sections["parking"] = sections["parking"] | account
        daemon.write(f"destinations/{destination}.toml", {**sections, "source": source, "sink": sink})

    def _begin_soon(self, fault: Fault) -> None:
        """Begins a fault now, when no step is left to run, or between two of the next steps."""
        if fault.kind in BETWEEN_STEPS and fault.number:
            self.loop.after_steps(int(fault.number), partial(self._begin, fault))
        else:
            self._begin(fault)

    def _begin(self, fault: Fault) -> None:
        self.coverage.fault(fault.kind, [other.kind for other in self.active])
        self.calm, self.orderly = False, self.orderly and fault.kind in ORDERLY
        undo = faults.inject(self, fault)
        self.trace("FAULT", fault=str(fault), lasts=undo is not None)
        self.healed_at = self.loop.time()
        if undo is not None:
            self.active[fault] = undo
            self.loop.call_later(fault.seconds, self._end, fault, context=self.loop.world.context())

    def _end(self, fault: Fault) -> None:
        if undo := self.active.pop(fault, None):
            self.trace("fault ends", fault=str(fault))
            undo()
            self.healed_at = self.loop.time()

    def start_again(self, daemon: SimDaemon) -> None:
        """Starts a daemon that has ended by itself, as a service manager does."""

        def start() -> None:
            if not daemon.running and not self.stopping:
                daemon.start()

        self.loop.call_later(_RESTART, start, context=self.loop.world.context())

    def heal(self) -> None:
        """Ends all faults, and starts what does not run."""
        for fault in list(self.active):
            self._end(fault)
        for daemon in self.daemons.values():
            if not daemon.running:
                daemon.start()

    @property
    def disturbed(self) -> bool:
        """Returns whether a fault lasts."""
        return bool(self.active)

    async def stop(self) -> None:
        """Stops all daemons in order."""
        self.stopping = True
        for daemon in self.daemons.values():
            daemon.stop()
        began = self.loop.time()
        while any(daemon.running for daemon in self.daemons.values()):
            if self.loop.time() - began > _STOP_LIMIT:
                names = [name for name, daemon in self.daemons.items() if daemon.running]
                self.checker.violation(f"{names} did not stop within {_STOP_LIMIT:.0f} s")
                return
            await asyncio.sleep(0.5)
        for daemon in self.daemons.values():
            if daemon.statuses[-1] != 0:
                self.checker.violation(f"{daemon.name} stopped with status {daemon.statuses[-1]}")
        if nodes := [path for path, node in self.ensemble.nodes.items() if node.owner]:
            self.checker.violation(f"locks and nodes of sessions are left: {nodes}")

    # -- facts ----------------------------------------------------------------------------------------------------

    def statuses(self, destination: str) -> list[DestinationStatus]:
        """Returns what the running daemons say of a destination."""
        found = list[DestinationStatus]()
        for daemon in self.daemons.values():
            found += [status for status in daemon.destinations() if status.name == destination]
        return found

    @property
    def settled(self) -> bool:
        """Returns whether each destination streams on one daemon, and stands by on the others, and no command waits."""
        if self.operator.busy or (self.plan.archive and not archives.complete(self)):
            return False
        for destination in self.plan.destinations:
            states = sorted(status.state.value for status in self.statuses(destination))
            if states != ["STANDBY"] * (len(self.daemons) - 1) + ["STREAMING"]:
                return False
        return True

    def report_unsettled(self, limit: float) -> None:
        """Records why the simulation does not come to rest."""
        for destination in self.plan.destinations:
            states = [
                f"{status.state.value} {status.reason} {status.last_error} {dict(status.troubles)}"
                for status in self.statuses(destination)
            ]
            topic = self.checker.topics.get(destination)
            missing = f", {len(topic.missing)} changes are missing" if topic is not None and topic.missing else ""
            if topic is not None and (behind := self.checker.behind(topic)):
                missing += f", the stored position lacks {behind} changes"
            if self.plan.archive and not archives.complete(self):
                missing += ", an archive is not complete"
            self.checker.violation(f"{destination} is not well {limit:.0f} s after the last fault: {states}{missing}")

    def _on_error(self, context: dict[str, object]) -> None:
        error = context.get("exception")
        self.checker.violation(f"the loop was given an error: {context.get('message')}: {error!r}")

    def judge_error(self, text: str) -> None:
        """Takes what a daemon says of a failure. A disk that fails, is full or loses power damages no state store."""
        if "the state store" in text and "is damaged" in text:
            self.checker.violation(f"said: {text}")

    def _on_log(self, event: str, facts: dict[str, object]) -> None:
        if "unexpected" in event or "unexpected error" in str(facts.get("error", "")):
            self.checker.violation(f"logged: {event} {facts}")
        self.judge_error(str(facts.get("error", "")))
        if event == "the position was moved by a policy":
            self.coverage.lost[str(facts["reason"])] += 1
