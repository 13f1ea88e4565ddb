"""Holds the topics against what the source has committed, while a simulation runs and at its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from headrace.model import Position
from headrace.ports.state_records import Head
from sim import parked
from sim.rabbit import REFUSALS
from sim.topic_checker import Findings, Part, Record, Table, TopicChecker
from sim.truth import Event, Truth
from sim.zookeeper.ensemble import Change

if TYPE_CHECKING:
    from sim.world import World

_STILL = 90.0
"""Seconds for which a destination may be healthy while its oldest change is not published."""
_STATE_TOPIC = "__headrace_state"
ESCAPED = 200_000
"""Bytes of an overtaken daemon that may arrive after the first message of the next one."""


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
        """The number of the event that the stored position leads to, as far as it was looked up."""
        self.life = 0
        """The number of the source's life in which it began, or to which it was moved: positions are of that one."""
        self.stored: Position | None = None
        """The stored position, if it was not looked up yet."""
        self.healthy_since: float | None = None


class Checker:
    """`violations` are sentences."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations = list[str]()
        self.truth = Truth()
        self.unsafe = False
        """Whether the source may have lost transactions or binlogs."""
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

    def look(self) -> None:
        """Reads what is new on both sides; called each second."""
        new = self.truth.look(self._world.mysql)
        for topic in self.topics.values():
            self._look_up(topic)
        for topic in self.topics.values():
            if topic.begins:
                topic.missing += new
            self._read(topic)
            self._judge_stillness(topic)

    def _on_state(self, changes: list[Change]) -> None:
        """Takes the positions that are stored: where a destination begins, and where it is moved to."""
        for path, node in changes:
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
        self.stored(topic, head.version, head.position, gap="gap" in head.details)

    def stored(self, topic: Topic, version: int, position: Position | None, *, gap: bool) -> None:
        """Takes what is stored of a destination. `gap`: the position was moved."""
        if position is None:
            topic.version = 0
        elif version != topic.version:  # else it is stored again, for a new epoch
            if not topic.begins or not topic.version or gap:
                self.look()
                self._on_moved(topic, position)
            else:
                topic.stored = position
            topic.version = version

    def _look_up(self, topic: Topic) -> None:
        if topic.stored is not None:
            topic.reached, topic.stored = self.truth.index(topic.stored, topic.life), None

    def _on_moved(self, topic: Topic, position: Position) -> None:
        index, before = self.truth.index(position), topic.reached
        topic.reached, topic.life = index, len(self.truth.lives) - 1
        if not topic.begins:
            earliest = self._world.plan.destinations[topic.name]["source"].get("start") == "earliest"
            if earliest and not self.unsafe:
                index = 0  # that is what is promised, wherever the daemon begins
            self.begin(topic, Begin(0, index, gap=earliest and index > 0))
        else:
            skipped = [event for event in self.truth.events[before:index] if not event.lost]
            lost = any(event.lost and event.id in topic.ids for event in self.truth.events)
            whole = any(one.kind == "initial" and not one.rows for one in position.snapshots)
            self.begin(topic, Begin(topic.taken, index, bool(skipped) or lost, whole))
            self._world.trace("a position was moved", to=str(position), index=index, before=before, lost=lost)

    def begin(self, topic: Topic, begin: Begin) -> None:
        """Notes that a destination begins somewhere."""
        topic.begins.append(begin)
        self.begun(topic)

    def begun(self, topic: Topic) -> None:
        """Looks what is missing since the last begin."""
        begin = topic.begins[-1]
        later = [record for record in topic.records if record.offset >= begin.offset]
        topic.ids = {record.headers["headrace-id"].decode(): None for record in later}
        missing = (event for event in self.truth.events[begin.index :] if not event.lost)
        topic.missing = deque(event for event in missing if event.id not in topic.ids)

    def source_changed(self) -> None:
        """Takes the source's present history, which may lack transactions; call look() before it changes."""
        for topic in self.topics.values():
            if topic.begins:
                topic.begins[-1].absent |= self.truth.absent()
        self.truth.changed(self._world.mysql)
        self.unsafe = True
        for topic in self.topics.values():
            if topic.begins:
                self.begun(topic)

    def _read(self, topic: Topic) -> None:
        for offset, headers, value in self._new_records(topic):
            if "headrace-snapshot" not in headers and "headrace-id" in headers:
                id_ = self.truth.name(headers["headrace-id"].decode(), orjson.loads(value)["es"])
                headers["headrace-id"] = id_.encode()
                topic.ids[id_] = None
            topic.records.append(Record(0, offset, headers, value, len(value)))
            topic.taken = offset + 1
        while topic.missing and topic.missing[0].id in topic.ids:
            topic.missing.popleft()

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
        topic.healthy_since = topic.healthy_since or now
        age = world.now_us() / 1e6 - topic.missing[0].commit_us / 1e6
        if now - topic.healthy_since > _STILL and age > _STILL:
            self.violation(f"{topic.name} is STREAMING, and {topic.missing[0].id} is not published after {age:.0f} s")
            topic.healthy_since = None

    def published(self, topic: Topic) -> list[int]:
        """Returns the numbers of the events that are in a topic and that its destination could read again."""
        events = self.truth.events
        first = max(topic.begins[-1].index if topic.begins else len(events), self.truth.life)
        return [
            number for number in range(first, len(events)) if events[number].id in topic.ids and not events[number].lost
        ]

    @property
    def complete(self) -> bool:
        """Returns whether every change is in every topic."""
        return not any(topic.missing for topic in self.topics.values())

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Findings]:
        """Judges all topics."""
        found, tables, parked_ids = dict[str, Findings](), self._tables(), parked.ids(self._world)
        for topic in self.topics.values():
            if not topic.begins:  # it was killed before it stored a position
                first = min(
                    (number for number, event in enumerate(self.truth.events) if event.id in topic.ids), default=0
                )
                topic.begins.append(Begin(0, first))
            topic.begins[-1].absent = {}
            begun, *later = topic.begins
            events, replica = self.truth.since(begun.index, begun.absent), self._world.replica is not None
            checker = TopicChecker(
                events,
                0,
                topic.delivery,
                ESCAPED,
                renumbered=replica,
                by_key=self._refuses(topic.name),
                parked=parked_ids,
                gap=begun.gap,
            )
            for begin in later:
                checker.moved(Part(begin.offset, self.truth.since(begin.index, begin.absent), begin.gap, begin.whole))
            for record in topic.records:
                checker.feed(record)
            findings = found[topic.name] = checker.finish(tables)
            for text in findings.texts:
                self.violation(f"{topic.name}: {text}")
        for name, count in parked.left(self._world).items():
            self.violation(f"{name}: {count} messages are still parked")
        return found

    def _refuses(self, name: str) -> bool:
        """Returns whether messages of a destination may be refused, so that they come again after later ones."""
        plan = self._world.plan
        return plan.parks or (plan.sink(name) == "rabbitmq" and any(fault.kind in REFUSALS for fault in plan.faults))

    def _tables(self) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        session = self._world.mysql.session()
        session.use("shop")
        for name in ("t1", "t2", "t3"):
            rows: list[dict[str, Any]] = session.query(f"SELECT id, name, n FROM {name}")
            tables[name] = {str(row["id"]): {key: str(value) for key, value in row.items()} for row in rows}
        session.close()
        return tables
