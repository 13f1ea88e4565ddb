"""The counts of a batch's tasks, and how Spark adds them up."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark import AccumulatorParam

from headrace_documents.elastic.mapping_conflicts import Conflict

MAX_NAMES = 200
"""Tables, and indexes, that are counted by name; the rest counts as OTHERS."""
OTHERS = "others"
BULK_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
DELAY_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)
"""Upper bounds of the buckets in seconds."""


@dataclass
class Histogram:
    """Counts by buckets; the last one has no bound."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, other: Histogram) -> None:
        """Adds the other's counts; both have the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    @property
    def number(self) -> int:
        """Returns the number of values."""
        return sum(self.counts)


class Sighting(NamedTuple):
    """A conflict shown by rows of `table`; `chosen` if the configuration has the field's type."""

    conflict: Conflict
    table: str
    chosen: bool


@dataclass
class Counts:
    """The counts of a task, a batch, or the process."""

    numbers: Counter[str] = field(default_factory=Counter)
    tables: Counter[str] = field(default_factory=Counter)
    """Rows by table."""
    indexes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Documents by index and result."""
    bulk: Histogram = field(default_factory=lambda: Histogram(BULK_BOUNDS))
    """Answers to bulk requests."""
    delay: Histogram = field(default_factory=lambda: Histogram(DELAY_BOUNDS))
    """Messages, from MySQL's commit to the answer of the bulk request that wrote them."""
    held: Counter[str] = field(default_factory=Counter)
    """Messages by the index for which they are held; for joins, documents."""
    conflicts: set[Sighting] = field(default_factory=set)
    newest_ms: int = 0
    """The latest commit of the messages, in milliseconds since 1970; 0 if none has it."""

    def add(self, other: Counts) -> None:
        """Adds the other's counts."""
        self.numbers.update(other.numbers)
        for name, count in other.tables.items():
            self.tables[_bounded(name, self.tables)] += count
        known = Counter(index for index, _ in self.indexes)
        for (index, what), count in other.indexes.items():
            name = _bounded(index, known)
            known[name] += 1
            self.indexes[name, what] += count
        self.held.update(other.held)
        self.conflicts |= set(list(other.conflicts - self.conflicts)[: max(0, MAX_NAMES - len(self.conflicts))])
        self.bulk.add(other.bulk)
        self.delay.add(other.delay)
        self.newest_ms = max(self.newest_ms, other.newest_ms)


def _bounded(name: str, known: Counter[str]) -> str:
    return name if name in known or len(known) < MAX_NAMES else OTHERS


class Adding(AccumulatorParam[Counts]):
    """Adds the counts of tasks that succeeded. A retried task counts once."""

    def zero(self, value: Counts) -> Counts:
        return Counts()

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802
        value1.add(value2)
        return value1
