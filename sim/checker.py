"""Holds the topics against what the source has committed, while a simulation runs and at its end."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from sim.mysql.history import Committed as Transaction
from sim.topic_checker import Committed, Findings, Record, Table, TopicChecker

if TYPE_CHECKING:
    from sim.world import World

_ROWS_EVENTS = (30, 31, 32)
_STILL = 90.0
"""Seconds for which a destination may be healthy while its oldest change is not published."""
ESCAPED = 200_000
"""Bytes of an overtaken daemon that may arrive after the first message of the next one."""


class Topic:
    """One destination's topic."""

    def __init__(self, name: str, delivery: str) -> None:
        self.name, self.delivery = name, delivery
        self.records = list[Record]()
        self.ids = dict[str, None]()
        self.taken = 0
        """Up to which offset records were read."""
        self.missing = deque[tuple[int, str]]()
        """What is not published yet, oldest first: commit time and id."""
        self.healthy_since: float | None = None


class Checker:
    """`violations` are sentences."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations = list[str]()
        self._events = list[tuple[int, Committed]]()
        """All committed events of rows, with their commit time."""
        self._known = 0
        self.topics = {
            name: Topic(name, sections["sink"].get("delivery", "at_least_once"))
            for name, sections in world.plan.destinations.items()
            if sections["source"].get("start") == "earliest"
        }

    def violation(self, text: str) -> None:
        """Records one."""
        self.violations.append(f"{self._world.loop.time() - self._world.began:.3f} s: {text}")
        self._world.trace("VIOLATION", text=text)

    # -- what was committed, what was published -------------------------------------------------------------------

    def look(self) -> None:
        """Reads what is new on both sides; called each second."""
        history = self._world.mysql.history
        for one in history[self._known :]:
            for event in events_of(one):
                self._events.append((one.commit_us, event))
                for topic in self.topics.values():
                    topic.missing.append((one.commit_us, event.id))
        self._known = len(history)
        for topic in self.topics.values():
            self._read(topic)
            self._judge_stillness(topic)

    def _read(self, topic: Topic) -> None:
        kafka = self._world.kafka
        if topic.name not in kafka.topics:
            return
        for record in kafka.records(topic.name, 0, start=topic.taken):
            topic.taken = record.offset + 1
            headers = {name: value or b"" for name, value in record.headers}
            topic.records.append(Record(0, record.offset, headers, record.value or b"", len(record.value or b"")))
            topic.ids[headers.get("headrace-id", b"").decode()] = None
        while topic.missing and topic.missing[0][1] in topic.ids:
            topic.missing.popleft()

    def _judge_stillness(self, topic: Topic) -> None:
        """A destination must not say STREAMING while nothing moves."""
        world, now = self._world, self._world.loop.time()
        healthy = [status for status in world.statuses(topic.name) if status.state.value == "STREAMING"]
        if not healthy or not topic.missing or world.disturbed:
            topic.healthy_since = None
            return
        topic.healthy_since = topic.healthy_since or now
        age = world.now_us() / 1e6 - topic.missing[0][0] / 1e6
        if now - topic.healthy_since > _STILL and age > _STILL:
            self.violation(f"{topic.name} is STREAMING, and {topic.missing[0][1]} is not published after {age:.0f} s")
            topic.healthy_since = None

    @property
    def complete(self) -> bool:
        """Returns whether every change is in every topic."""
        return not any(topic.missing for topic in self.topics.values())

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self) -> dict[str, Findings]:
        """Judges all topics."""
        found = dict[str, Findings]()
        for topic in self.topics.values():
            committed = [event for _, event in self._events]
            checker = TopicChecker(committed, 0, topic.delivery, ESCAPED)
            for record in topic.records:
                checker.feed(record)
            findings = found[topic.name] = checker.finish(self._tables())
            for text in findings.texts:
                self.violation(f"{topic.name}: {text}")
        return found

    def _tables(self) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        session = self._world.mysql.session()
        session.use("shop")
        for name in ("t1", "t2", "t3"):
            rows: list[dict[str, Any]] = session.query(f"SELECT id, name, n FROM {name}")
            tables[name] = {str(row["id"]): {key: str(value) for key, value in row.items()} for row in rows}
        session.close()
        return tables


def events_of(transaction: Transaction) -> list[Committed]:
    """Returns the rows events of a transaction on the tables of the clients, named as headrace-id names them."""
    changes = list(transaction.changes)
    if not changes or changes[0].schema != "shop":
        return []
    kinds = [part for part in transaction.parts if part[0] in _ROWS_EVENTS]
    return [Committed(f"{transaction.gtid}#{number}", 1) for number in range(1, len(kinds) + 1)]
