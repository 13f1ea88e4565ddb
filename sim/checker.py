"""Holds the topics against what the source has committed, while a simulation runs and at its end."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from headrace.model import Position, State
from headrace.ports.state_records import Head
from sim import parked
from sim.clients import TABLES, without_added
from sim.rabbit import REFUSALS
from sim.topic_checker import Findings, Part, Record, Table, TopicChecker
from sim.truth import Event, Truth
from sim.zookeeper.ensemble import Change

if TYPE_CHECKING:
    from sim.world import World

_STILL = 90.0
"""Seconds for which a destination may be healthy while its oldest change is not published."""
_CALM_AFTER = 20.0
"""Seconds until the daemons have started."""
_DELAY = 3.0
"""Seconds within which a change is published, and then stored, while nothing has gone wrong: the next heartbeat of the
source comes after five, so that a lost wake-up shows."""
_OPENING = 15.0
"""Seconds that a slow source takes until a destination streams that the balance has moved."""
_BYTES, _ROWS = 300, 40
"""Bytes of a message, and the rows a second, of all clients, for each transaction a second of one."""
_BEGIN = 5.0
"""Seconds that the rows that were there at the begin may take."""
_DOUBLE = 5.0
"""Seconds within which a daemon that has lost a lock says so, while nothing else is wrong."""
_LARGEST = 8_000
"""Bytes of the largest message: one that is larger than a window is sent alone."""
_STATE_TOPIC = "__headrace_state"
_MARGIN = 6.0
"""Seconds for what is measured each second, and asked every five."""
_TAKES_OVER = 12.0
"""Seconds from the end of a session until a successor publishes, or says why it does not."""
_ONCE = 10.0
"""Seconds of drain_timeout within which brokers that are well confirm everything."""
_DRAINED = 20.0
"""Seconds within which a drained daemon must have handed over what it runs, while nothing else is wrong."""
_TAKES = 6.0
"""Seconds that an attempt to take a lock may last, while the lock service answers."""
_HARMLESS = ("drain", "pause", "rotate", "clock jump", "clock drift", "large transaction", "reload")
"""Faults during which a daemon hands over as at any time."""
ESCAPED = 200_000
"""Bytes of an overtaken daemon that may arrive after the first message of the next one, if it was frozen with them, or
they were under way (H3). Without that nothing may (H1)."""


@dataclass(slots=True)
class Begin:
    """Where a destination begins to read, and how long its topic was then; see Part."""

    offset: int
    index: int
    """The number of the event."""
    gap: bool = False
    whole: bool = False
    absent: dict[str, None] = field(default_factory=dict)
    """What the source lacked for a while, before the next begin."""
    skipped: dict[str, None] = field(default_factory=dict)
    """What the move to it has skipped."""


class Topic:
    """One destination's topic."""

    def __init__(self, name: str, delivery: str) -> None:
        self.name, self.delivery = name, delivery
        self.begins = list[Begin]()
        self.records = list[Record]()
        self.ids = dict[str, None]()
        """What was published since the last begin."""
        self.taken = 0
        """Up to which offset records were read."""
        self.missing = deque[Event]()
        """What is not published yet, oldest first."""
        self.version = 0
        """The number of the stored position; 0 if none is."""
        self.reached = 0
        """The number of the event that the stored position leads to."""
        self.position: Position | None = None
        """The stored position."""
        self.epoch = 0
        """The epoch of the newest run that has begun at a stored position."""
        self.unstored = dict[str, int]()
        """What the source lost before a position after it was stored: by id the newest epoch whose run did not know
        that earlier ones had published it."""
        self.life = 0
        """The number of the source's life in which it began, or to which it was moved: positions are of that one."""
        self.gone = dict[str, None]()
        """What was lost with a reset of the source that the destination could not notice."""
        self.paused: tuple[int, int, float] | None = None
        """While an operator has paused it: how long it was then, the epoch of that time, and the time in ms."""
        self.healthy_since: float | None = None
        self.streams_since = 0.0
        """Since when a daemon says that it streams, on the world's wall clock; 0 while none does."""
        self.moved_at = 0.0
        """When the oldest change that was not published was published."""
        self.flowed_at = 0.0
        """When it last grew, lacked nothing, or a daemon that was asked did not say STREAMING."""
        self.alarmed_at = 0.0
        """When it last grew, lacked nothing, a daemon said that it is not well, or paused, or another one held it."""
        self.held = False
        """Whether a daemon held it then."""
        self.single_at = 0.0
        """When at most one daemon said that it runs it, or something was wrong."""
        self.reads = False
        """Whether a snapshot is not done, by the stored position."""
        self.resyncs = list[tuple[int, str]]()
        """The resyncs that were accepted: how long it was then, and the regex of their tables."""


class Checker:
    """`violations` are sentences."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations = list[str]()
        self.truth = Truth()
        self.unsafe = False
        """Whether the source may have lost transactions or binlogs."""
        self.drained = dict[str, float]()
        """The daemons that an operator has drained, and when."""
        self._knows = dict[str, float]()
        """Since when daemons know that they are drained."""
        self.topics = dict[str, Topic]()
        for name, sections in world.plan.destinations.items():
            self.topics[name] = Topic(name, sections["sink"].get("delivery", "at_least_once"))
        self._states = dict[int, int]()
        """By partition of the state topic, up to which offset records were read."""
        world.ensemble.on_commit = self._on_state
        world.kafka.on_commit = self._on_transaction

    def violation(self, text: str) -> None:
        """Records one."""
        self.violations.append(f"{self._world.loop.time() - self._world.began:.3f} s: {text}")
        self._world.trace("VIOLATION", text=text)

    # -- what was committed, what was published -------------------------------------------------------------------

    def update(self) -> None:
        """Reads what is new on both sides; called each second."""
        new = self.truth.read(self._world.mysql)
        for topic in self.topics.values():
            if topic.begins:
                topic.missing += new
            self._read(topic)
            self._judge_stillness(topic)
            self._judge_stall(topic)
            self._judge_silence(topic)
            self._judge_delay(topic)
            self._judge_roles(topic)
            self._judge_pause(topic)
        self._judge_drains()

    def _on_state(self, changes: list[Change]) -> None:
        """Takes the positions that are stored: where a destination begins, and where it is moved to."""
        for path, node in changes:
            *_, name, last = path.split("/")
            if last == "epoch" and node is not None:
                self._judge_epoch(name, path, node.data)
            if last == "running" and node is None:
                self._judge_leases(name, path)
            elif last == "running" and node is not None:
                self._judge_taken(name, path, node.data)
            if node is not None:
                self._on_record(path, node.data)

    def _on_transaction(self) -> None:
        """The same with exactly once, for which they are in a topic."""
        topic = self._world.kafka.topics.get(_STATE_TOPIC)
        for number in range(len(topic.partitions)) if topic is not None else ():
            for record in self._world.kafka.records(_STATE_TOPIC, number, start=self._states.get(number, 0)):
                self._states[number] = record.offset + 1
                if record.key is not None and record.value is not None:
                    self._on_record(f"/{record.key.decode()}", record.value)

    def _on_record(self, path: str, data: bytes) -> None:
        *_, name, last = path.split("/")
        if last != "position" or (topic := self.topics.get(name)) is None:
            return
        head = Head.decode(data, path)
        self.stored(topic, head.version, head.epoch, head.position, gap="gap" in head.details)

    def stored(self, topic: Topic, version: int, epoch: int, position: Position | None, *, gap: bool) -> None:
        """Takes what is stored of a destination. `gap`: the position was moved."""
        if position is None:
            topic.version = 0
        elif version != topic.version:  # else it is stored again, for a new epoch
            self.update()
            if not topic.begins or not topic.version or gap:
                self._on_moved(topic, position, gap=gap)
            else:
                before, topic.reached = topic.reached, self.truth.index(position, topic.life, topic.name)
                if not self.unsafe:
                    self._judge_stored(topic, before, topic.reached)
            topic.version, topic.reads = version, bool(position.snapshots)
        topic.position = position
        if epoch > topic.epoch:
            topic.epoch = epoch
            self._note_unstored(topic)

    def _note_unstored(self, topic: Topic) -> None:
        """Notes what the present run can't know to be published: the run that published it has ended without storing a
        position after it, and the source lacks it now. Exactly once stores the position with the messages."""
        if topic.position is not None and topic.delivery != "exactly_once":
            topic.unstored |= {event.id: topic.epoch for event in self.truth.unstored(topic.position)}

    def _on_moved(self, topic: Topic, position: Position, *, gap: bool) -> None:
        index, before = self.truth.index(position), topic.reached
        topic.reached, topic.life = index, len(self.truth.lives) - 1
        if not topic.begins:
            earliest = self._world.plan.destinations[topic.name]["source"].get("start") == "earliest"
            if earliest and not self.unsafe:
                index = 0  # that is what is promised, wherever the daemon begins
            elif earliest and index == self.truth.life:  # a stream that began before a reset may bring what was before
                index, topic.gone = 0, {event.id: None for event in self.truth.events[:index]}
            passed = earliest and bool(index or topic.gone)
            self.begin(topic, Begin(0, index, gap=gap or passed))  # one that an operator chooses reads no tables
        else:
            skipped = {event.id: None for event in self.truth.events[before:index] if not event.lost}
            lost = any(event.lost and event.id in topic.ids for event in self.truth.events)
            whole = any(one.kind == "initial" and not one.rows for one in position.snapshots)
            first = index
            while first > self.truth.life and self.truth.events[first - 1].lost:
                first -= 1  # the source may have it again later
            self.begin(topic, Begin(topic.taken, first, bool(skipped) or lost, whole, skipped=skipped))
            self._world.trace("a position was moved", to=str(position), index=index, before=before, lost=lost)

    def _judge_stored(self, topic: Topic, before: int, index: int) -> None:
        """A position never goes back, and everything before it is published, or parked."""
        events = self.truth.events
        if index < before:
            back = f"{before - index} changes back, at {events[index].id}"
            self.violation(f"{topic.name}: a position was stored that is {back}")
        passed = events[max(before, topic.begins[-1].index) : index]
        absent = [event for event in passed if event.id not in topic.ids and not event.lost]
        if absent and self._world.plan.parks:
            held = parked.ids(self._world)
            absent = [event for event in absent if event.headrace_id not in held]
        if absent:
            self.violation(f"{topic.name}: a position was stored, and {absent[0].id} before it is not published")

    def begin(self, topic: Topic, begin: Begin) -> None:
        """Notes that a destination begins somewhere."""
        topic.begins.append(begin)
        self.begun(topic)

    def begun(self, topic: Topic) -> None:
        """Finds what is missing since the last begin."""
        begin = topic.begins[-1]
        later = [record for record in topic.records if record.offset >= begin.offset]
        topic.ids = {record.headers["headrace-id"].decode(): None for record in later}
        missing = (event for event in self.truth.events[begin.index :] if not event.lost)
        topic.missing = deque(event for event in missing if event.id not in topic.ids and event.id not in topic.gone)

    def source_changed(self) -> None:
        """Takes the source's present history, which may lack transactions; call update() before it changes."""
        for topic in self.topics.values():
            if topic.begins:
                topic.begins[-1].absent |= self.truth.absent()
        self.truth.changed(self._world.mysql)
        self.unsafe = True
        for topic in self.topics.values():
            self._note_unstored(topic)
            if topic.begins:
                self.begun(topic)

    def source_reset(self) -> None:
        """Notes that the source's binlogs and GTIDs begin again; call it before they do. A destination whose stored
        position has nothing before it can't notice that, and goes on: what it has not published yet does not come."""
        self.update()
        self.unsafe = True
        life, lost = len(self.truth.lives), {event.id: None for event in self.truth.events[self.truth.life :]}
        for topic in self.topics.values():
            position = topic.position
            if position is not None and not position.gtid_set and topic.reached == self.truth.life:
                topic.life, topic.reached = life, len(self.truth.events)
                topic.begins[-1].gap = True
                topic.gone |= lost
                topic.missing.clear()
        self.truth.reset()

    def _read(self, topic: Topic) -> None:
        for offset, headers, value in self._new_records(topic):
            if "headrace-snapshot" not in headers and "headrace-id" in headers:
                id_ = self.truth.name(headers["headrace-id"].decode(), orjson.loads(value)["es"])
                headers["headrace-id"] = id_.encode()
                if id_ in topic.ids and self._once(topic):
                    self.violation(f"{topic.name}: {id_} came twice, and nothing but clean stops has happened")
                topic.ids[id_] = None
            judged = without_added(value) if self._world.plan.ddl else value
            topic.records.append(Record(0, offset, headers, judged, len(value)))
            topic.taken, topic.flowed_at = offset + 1, self._world.loop.time()
            topic.alarmed_at = topic.flowed_at
        while topic.missing and topic.missing[0].id in topic.ids:
            topic.missing.popleft()
            topic.moved_at = self._world.loop.time()

    def _once(self, topic: Topic) -> bool:
        """Returns whether nothing may come twice: after a clean stop nothing does (H11). RabbitMQ may take longer to
        confirm than a stop waits."""
        plan = self._world.plan
        return (
            self._world.orderly and plan.sink(topic.name) == "kafka" and plan.daemon["daemon"]["drain_timeout"] >= _ONCE
        )

    def _new_records(self, topic: Topic) -> Iterator[tuple[int, dict[str, bytes], bytes]]:
        kafka = self._world.kafka
        if self._world.plan.sink(topic.name) == "rabbitmq":
            for offset, (headers, body) in enumerate(self._world.rabbit.records(topic.name, topic.taken), topic.taken):
                yield offset, headers, body
        elif topic.name in kafka.topics:
            for record in kafka.records(topic.name, 0, start=topic.taken):
                yield record.offset, {name: value or b"" for name, value in record.headers}, record.value or b""

    def _judge_stillness(self, topic: Topic) -> None:
        """A destination must not say STREAMING to the monitor while nothing moves."""
        world, now = self._world, self._world.loop.time()
        if "STREAMING" not in world.monitor.states(topic.name) or not topic.missing or world.disturbed:
            topic.healthy_since = None
            return
        topic.healthy_since = max(topic.healthy_since or now, topic.moved_at)
        age = world.now_us() / 1e6 - topic.missing[0].commit_us / 1e6
        if now - topic.healthy_since > _STILL and age > _STILL:
            self.violation(f"{topic.name} is STREAMING, and {topic.missing[0].id} is not published after {age:.0f} s")
            topic.healthy_since = None

    def _judge_stall(self, topic: Topic) -> None:
        """A destination must not say STREAMING for long while nothing moves, whatever lasts (L2, L5): a silent source
        is noticed after stall_after, by a question every half of it, which may take connect_timeout."""
        world, now = self._world, self._world.loop.time()
        source = world.plan.destinations[topic.name]["source"]
        limit = 1.5 * source["stall_after"] + source["connect_timeout"] + _MARGIN
        states = world.monitor.states(topic.name)
        if states.count("STREAMING") != 1 or not topic.missing or world.plan.parks:
            topic.flowed_at = now
        oldest = topic.missing[0].commit_us / 1e6 if topic.missing else 0.0
        if now - topic.flowed_at > limit and world.now_us() / 1e6 - oldest > limit:
            self.violation(f"{topic.name} is STREAMING, and nothing was published for {limit:.0f} s")
            topic.flowed_at = now

    def _judge_silence(self, topic: Topic) -> None:
        """A standstill is seen: some daemon says of the destination what is answered with 503, whatever lasts. One that
        holds it says so as soon as _judge_stall() expects it; without one, a session may have to end first."""
        world, now = self._world, self._world.loop.time()
        awake = [
            daemon for daemon in world.daemons.values() if daemon.process is not None and not daemon.process.frozen
        ]
        statuses = [status for daemon in awake for status in daemon.destinations() if status.name == topic.name]
        source = world.plan.destinations[topic.name]["source"]
        held = any(status.holding.role == "ACTIVE" for status in statuses)
        limit = world.plan.session_timeout + _TAKES_OVER + (_OPENING if world.plan.slow else 0.0)
        if held:
            limit = 1.5 * source["stall_after"] + source["connect_timeout"] + _MARGIN
        well = bool(statuses) and all(one.state.healthy and one.state is not State.PAUSED for one in statuses)
        waits = held and any(status.parked.messages for status in statuses)
        if not well or waits or not topic.missing or held is not topic.held:
            topic.alarmed_at, topic.held = now, held
        oldest = topic.missing[0].commit_us / 1e6 if topic.missing else 0.0
        if now - topic.alarmed_at > limit and world.now_us() / 1e6 - oldest > limit:
            says = [status.state.value for status in statuses]
            self.violation(f"{topic.name} is {says}, and nothing was published for {limit:.0f} s")
            topic.alarmed_at = now

    def _judge_delay(self, topic: Topic) -> None:
        """Before the first fault, a change waits for nothing but a checkpoint, unless a window holds less than what
        comes within an answer's time, or the rows that were there at the begin take long to pass it."""
        world, events = self._world, self.truth.events
        sink = world.plan.destinations[topic.name]["sink"]
        window = min(sink.get("max_in_flight_bytes", math.inf), _BYTES * sink.get("max_in_flight", math.inf))
        confirm = world.rabbit.broker.confirm_time if world.plan.sink(topic.name) == "rabbitmq" else 0.0
        way, begin = world.plan.delay + confirm, len(TABLES) * world.plan.rows * (_BYTES + world.plan.text)
        if way * world.plan.rate * _ROWS * _BYTES > window or way * begin > window * _BEGIN:
            return
        if not world.calm or world.loop.time() - world.began < _CALM_AFTER or not topic.begins:
            return
        if world.plan.ddl and world.plan.slow:  # each altered table is read again, by several slow answers
            return
        now, interval = world.now_us() / 1e6, world.plan.daemon["daemon"]["checkpoint_interval"]
        streams = any(status.state is State.STREAMING for status in world.statuses(topic.name))
        topic.streams_since = (topic.streams_since or now) if streams else 0.0
        steady = streams and now - topic.streams_since > _DELAY
        limit = _DELAY if steady or not world.plan.slow else _DELAY + _OPENING
        if topic.missing and (age := now - topic.missing[0].commit_us / 1e6) > limit:
            self.violation(f"{topic.name}: {topic.missing[0].id} is not published after {age:.1f} s, without any fault")
        elif topic.reached < len(events):
            age = now - max(events[topic.reached].commit_us / 1e6, topic.streams_since)
            if age > limit + interval + 1.0:
                text = f"{events[topic.reached].id} is not in the stored position after {age:.1f} s, without any fault"
                self.violation(f"{topic.name}: {text}")

    def _judge_roles(self, topic: Topic) -> None:
        """One daemon at most runs a destination; one that has lost the lock says so."""
        world, now = self._world, self._world.loop.time()
        active = [status for status in world.statuses(topic.name) if status.holding.role == "ACTIVE"]
        if len(active) < 2 or any(fault.kind not in _HARMLESS for fault in world.active):
            topic.single_at = now
        elif now - topic.single_at > _DOUBLE + (_OPENING if world.plan.slow else 0.0):  # it may still open the source
            states = [status.state.value for status in active]
            self.violation(f"{len(active)} daemons say that they run {topic.name}: {states}")
            topic.single_at = now

    def _judge_pause(self, topic: Topic) -> None:
        """A paused destination publishes nothing that was changed since. What was under way, or what a former holder
        sent, may still come."""
        if topic.paused is None:
            return
        length, epoch, since = topic.paused
        for record in reversed(topic.records):
            if record.offset < length:
                break
            new = int(record.headers.get("headrace-epoch", b"0")) >= epoch
            if new and orjson.loads(record.value)["es"] > since:
                self.violation(f"{topic.name} is paused, and offset {record.offset} was published")
                topic.paused = None
                break

    def pause(self, destination: str) -> None:
        """Notes that an operator has paused a destination."""
        self.update()
        nodes, topic = self._world.ensemble.nodes, self.topics[destination]
        path = next((path for path in nodes if path.endswith(f"/{destination}/epoch")), "")
        now = self._world.now_us() / 1000
        topic.paused = (topic.taken, int(nodes[path].data or b"0"), now) if path else None

    def _judge_drains(self) -> None:
        """A drained daemon hands over what another daemon can run."""
        world, now = self._world, self._world.loop.time()
        if any(fault.kind not in _HARMLESS for fault in world.active):
            self.drained.update(dict.fromkeys(self.drained, now))
        free = [name for name, daemon in world.daemons.items() if daemon.running and name not in self.drained]
        for name, since in list(self.drained.items()):
            daemon = world.daemons[name]
            if not daemon.running or not free:
                self.drained[name] = now
            elif now - since > _DRAINED and any(status.holding.role == "ACTIVE" for status in daemon.destinations()):
                self.violation(f"{name} is drained, and still runs a destination after {_DRAINED:.0f} s")
                del self.drained[name]

        for name in world.daemons:
            if self._knows_of_drain(name):
                self._knows.setdefault(name, now)
            else:
                self._knows.pop(name, None)

    def _knows_of_drain(self, name: str) -> bool:
        """Returns whether a daemon knows that it is drained, and is connected."""
        daemon = self._world.daemons[name]
        cluster = daemon.daemon.wiring.cluster if daemon.daemon is not None and daemon.running else None
        return cluster is not None and cluster.session.drained and cluster.session.connected

    def _judge_taken(self, destination: str, path: str, data: bytes) -> None:
        """A daemon that knows that it is drained takes no lock. With exactly once an attempt asks the brokers, which
        may take any time."""
        node, now = orjson.loads(data)["node"], self._world.loop.time()
        if path in self._world.ensemble.nodes or self.topics[destination].delivery == "exactly_once":
            return
        if self._knows_of_drain(node) and now - self._knows.get(node, now) > _TAKES:
            self.violation(f"{node} is drained, and has taken the lock of {destination}")

    def _judge_epoch(self, destination: str, path: str, data: bytes) -> None:
        """Each epoch is higher than the one before."""
        before = self._world.ensemble.nodes.get(path)
        if before is not None and int(data) <= int(before.data):
            self.violation(f"{destination}: epoch {before.data.decode()} is followed by {data.decode()}")

    def _judge_leases(self, destination: str, path: str) -> None:
        """When a session ends, and its lock with it, no daemon may think that it may still publish."""
        ensemble, now = self._world.ensemble, self._world.loop.time()
        node = ensemble.nodes.get(path)
        session = ensemble.sessions.get(node.owner) if node is not None else None
        if session is None or not session.over:
            return
        for status in self._world.statuses(destination):
            lease = status.holding.lease
            if lease is not None and lease.limited and lease.deadline > now:
                rest = lease.deadline - now
                self.violation(
                    f"{destination}: its lock has ended, and the lease of its holder is valid for {rest:.3f} s"
                )

    def published(self, topic: Topic) -> list[int]:
        """Returns the numbers of the events that are in a topic and that its destination could read again."""
        events = self.truth.events
        first = max(topic.begins[-1].index if topic.begins else len(events), self.truth.life)
        return [
            number for number in range(first, len(events)) if events[number].id in topic.ids and not events[number].lost
        ]

    @property
    def complete(self) -> bool:
        """Returns whether every change is in every topic, and every stored position is behind the last one."""
        return not any(topic.missing or self.behind(topic) for topic in self.topics.values())

    def behind(self, topic: Topic) -> int:
        """Returns how many changes are after the stored position."""
        if not topic.begins:
            return 0
        return sum(not event.lost for event in self.truth.events[topic.reached :])

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Findings]:
        """Judges all topics."""
        found, tables, parked_ids = dict[str, Findings](), self._tables(), parked.ids(self._world)
        absent = self.truth.absent()
        for topic in self.topics.values():
            if behind := self.behind(topic):
                self.violation(
                    f"{topic.name}: the daemons have stopped, and the stored position lacks {behind} changes"
                )
            if not topic.begins:  # it was killed before it stored a position
                first = min(
                    (number for number, event in enumerate(self.truth.events) if event.id in topic.ids), default=0
                )
                topic.begins.append(Begin(0, first))
            topic.begins[-1].absent = {}
            begun, *later = topic.begins
            events, replica = self.truth.since(begun.index, begun.absent | topic.gone), self._world.replica is not None
            checker = TopicChecker(
                events,
                0,
                topic.delivery,
                self._may_escape(topic.name),
                renumbered=replica,
                by_key=self._refuses(topic.name),
                parked=parked_ids,
                gap=begun.gap,
                unstored={id_: epoch for id_, epoch in topic.unstored.items() if id_ in absent},
            )
            for begin in later:
                later_events = self.truth.since(begin.index, begin.absent | topic.gone)
                checker.moved(Part(begin.offset, later_events, begin.gap, begin.whole, begin.skipped))
            for record in topic.records:
                checker.feed(record)
            self._judge_resyncs(topic, tables)
            findings = found[topic.name] = checker.finish(tables)
            for text in findings.texts:
                self.violation(f"{topic.name}: {text}")
        for name, count in parked.left(self._world).items():
            self.violation(f"{name}: {count} messages are still parked")
        return found

    def _may_escape(self, name: str) -> int:
        plan = self._world.plan
        if not plan.holds_up:
            return 0
        window: int = plan.destinations[name]["sink"].get("max_in_flight_bytes", ESCAPED)
        return min(ESCAPED, window + _LARGEST)

    def _refuses(self, name: str) -> bool:
        """Returns whether messages of a destination may be refused, so that they come again after later ones."""
        plan = self._world.plan
        return plan.parks or (plan.sink(name) == "rabbitmq" and any(fault.kind in REFUSALS for fault in plan.faults))

    def _judge_resyncs(self, topic: Topic, tables: dict[str, Table]) -> None:
        """After a resync, each row that its tables have has come again, from the resync or from the stream."""
        if topic.reads:
            return
        for length, only in topic.resyncs:
            if topic.begins[-1].offset >= length:
                continue  # its rest may be lost with the position
            came = set[tuple[str, str]]()
            for record in topic.records[::-1]:
                if record.offset < length:
                    break
                message = orjson.loads(record.value)
                came |= {(message["table"], row["id"]) for row in message["data"] or ()}
            for name, rows in tables.items():
                lacks = sorted(key for key in rows if (name, key) not in came)
                if lacks and (not only or re.fullmatch(only, f"shop.{name}")):
                    self.violation(f"{topic.name}: {len(lacks)} rows of {name} lack in a resync of {only}")

    def _tables(self) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        session = self._world.mysql.session()
        session.use("shop")
        for name in TABLES:
            rows: list[dict[str, Any]] = session.query(f"SELECT id, name, n FROM {name}")
            tables[name] = {str(row["id"]): {key: str(value) for key, value in row.items()} for row in rows}
        session.close()
        return tables
