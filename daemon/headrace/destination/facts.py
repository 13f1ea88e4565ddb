"""Groups of facts about one destination. Each is written by its methods, which one part of the destination calls; all
others read. Times are on the monotonic clock in seconds, except where a name ends in `_us` (microseconds since 1970
UTC). Counters only grow while the daemon lives."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.lease import Lease
from headrace.model import Gap, MessageBatch, Position, TableRows
from headrace.ports.source import Progress, Retention

ROUND_TRIP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds in seconds of the heartbeat's round-trip histogram."""
_ENDED_KEPT = 50
"""Snapshots whose end is known, at most."""


OTHERS: Final = "(others)"
"""Stands for all tables beyond the limit. Its database is "", which no table has, so it is never a table's own name."""


@dataclass(slots=True)
class TableTotals:
    """Since the daemon was started. The first `limit` tables are counted each by itself, all others together."""

    limit: int = 200
    _tables: dict[tuple[str, str], TableRows] = field(default_factory=dict)
    _others: TableRows = field(default_factory=lambda: TableRows("", OTHERS))

    def add(self, rows: TableRows) -> None:
        """Rows of one table are confirmed, or of several that nobody has told apart, without a name."""
        name = rows.schema, rows.table
        total = self._tables.get(name)
        if total is None:
            total = self._others
            if rows.schema and len(self._tables) < self.limit:
                total = self._tables[name] = TableRows(*name)
        total.add(rows)

    def all(self) -> Sequence[TableRows]:
        """Each table of which rows were confirmed, in the order in which they came, and at the end the others."""
        return [*self._tables.values(), *([self._others] if self._others.total else [])]


@dataclass(slots=True)
class Holding:
    """Who has the destination's lock."""

    role: str = "STANDBY"
    """ACTIVE while we hold it."""
    holder: str = ""
    """Who runs the destination while we stand by, as far as it is known."""
    problems: list[str] = field(default_factory=list)
    """Why we could not take over, a sentence each, as of the last look while standing by."""
    lease: Lease | None = None
    """Of the present holding; None while we stand by."""
    epoch: int = 0
    takeovers: int = 0
    """How often we got the lock."""
    resumes: int = 0
    """Lapsed leases after which the lock was proved again, and the stream went on in place."""
    fenced: int = 0
    """Runs that ended because somebody with a higher epoch, or a lost lock, said so."""

    def take(self, lease: Lease) -> None:
        """The lock is ours."""
        self.role, self.holder, self.lease, self.problems = "ACTIVE", "", lease, []
        self.takeovers += 1

    def give_up(self) -> None:
        """The lock is not ours, nor do we wait for it."""
        self.role, self.holder, self.lease, self.problems = "STANDBY", "", None, []

    def wait(self, holder: str) -> None:
        """Somebody else has it."""
        self.holder = holder

    def find(self, problems: list[str]) -> None:
        """What a look while standing by has found."""
        self.problems = problems

    def begin(self, epoch: int) -> None:
        """A run begins under this epoch."""
        self.epoch = epoch

    def resume(self) -> None:
        """A lapsed lease was proved again."""
        self.resumes += 1

    def fence(self) -> None:
        """A run ended because the destination is somebody else's."""
        self.fenced += 1


@dataclass(slots=True)
class ReadServer:
    """The server that is read, or was last."""

    address: str = ""
    """host:port."""
    uuid: str = ""
    server_id: int = 0
    """Ours, as a replica."""
    reconnects: int = 0
    """Dumps that were begun again in place, without a restart of the destination."""

    def open(self, address: str, uuid: str, server_id: int) -> None:
        self.address, self.uuid, self.server_id = address, uuid, server_id

    def reopen(self, server_id: int) -> None:
        self.server_id = server_id
        self.reconnects += 1


@dataclass(slots=True)
class Received:
    """What came from the source."""

    file: str = ""
    offset: int = 0
    events: int = 0
    bytes: int = 0
    skipped: int = 0
    """Events and tables passed over because an operator said so."""
    undecodable_texts: int = 0
    """Texts in which `?` was published for codes that have no Unicode character."""
    event_at: float = 0.0

    def note(self, before: Progress, now: Progress) -> None:
        """The stream has come from `before` to `now`."""
        self.skipped += now.skipped - before.skipped
        self.events += now.events - before.events
        self.bytes += now.bytes - before.bytes
        self.file, self.offset = now.file, now.offset
        self.event_at = time.monotonic()

    def note_undecodable(self, texts: int) -> None:
        """So many further ones."""
        self.undecodable_texts += texts

    def forget(self) -> None:
        self.event_at = 0.0


@dataclass(slots=True)
class Published:
    """What was published and confirmed, and what waits for that."""

    tables: TableTotals = field(default_factory=TableTotals)
    """The rows by table."""
    rows: int = 0
    messages: int = 0
    transactions: int = 0
    bytes: int = 0
    queue_bytes: int = 0
    """Read and not confirmed."""
    oldest_at: float = 0.0
    """When the oldest message that is not confirmed was read; 0 when there is none."""

    def confirm(self, batch: MessageBatch) -> None:
        """A batch is confirmed."""
        self.messages += len(batch.values)
        self.rows += batch.rows
        self.transactions += batch.transactions
        for rows in batch.tables:
            self.tables.add(rows)
        self.bytes += batch.value_bytes

    def wait(self, queue_bytes: int, oldest_at: float) -> None:
        """What waits now."""
        self.queue_bytes, self.oldest_at = queue_bytes, oldest_at

    def forget(self) -> None:
        self.queue_bytes, self.oldest_at = 0, 0.0


@dataclass(slots=True)
class StoredPosition:
    """What is in the state store, as this daemon last read or wrote it."""

    position: Position | None = None
    written_at: float = 0.0
    """When a confirmed position was stored last."""

    def note(self, position: Position | None) -> None:
        """It was read, or moved."""
        self.position = position

    def checkpoint(self, position: Position) -> None:
        """A confirmed one was stored."""
        self.position, self.written_at = position, time.monotonic()

    def forget(self) -> None:
        self.written_at = 0.0


@dataclass(slots=True)
class RoundTrips:
    """How long heartbeats took from their writing to their return in the binlog, as a histogram; in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(ROUND_TRIP_BUCKETS) + 1))
    """One more than there are bounds: the last is above them all."""
    total: float = 0.0
    last: float | None = None
    seen_at: float = 0.0
    """When our own heartbeat last came back."""

    def note(self, seconds: float) -> None:
        """Counts one."""
        self.counts[bisect_left(ROUND_TRIP_BUCKETS, seconds)] += 1
        self.total += seconds
        self.last, self.seen_at = seconds, time.monotonic()

    def forget(self) -> None:
        self.seen_at = 0.0


@dataclass(slots=True)
class Retained:
    """How long the source keeps the binlog that we need; see Retention. None where it is not known."""

    seconds: float | None = None
    bytes: int | None = None
    share: float | None = None

    def note(self, found: Retention) -> None:
        self.seconds, self.bytes, self.share = found.seconds, found.bytes, found.share

    def forget(self) -> None:
        self.seconds = self.bytes = self.share = None


@dataclass(slots=True)
class Remaining:
    """What is left of the binlog to the source's end, as of the last look. None where it is not known."""

    bytes: int | None = None
    """From the stored position to the end."""
    rate: float | None = None
    """Bytes received in a second, between the last looks."""
    eta: float | None = None
    """Seconds until nothing is left at the rate at which it became less; None while it does not."""

    def note(self, bytes: int | None, rate: float | None, eta: float | None) -> None:
        self.bytes, self.rate, self.eta = bytes, rate, eta

    def forget(self) -> None:
        self.bytes = self.rate = self.eta = None


@dataclass(slots=True)
class Moves:
    """Moves of the position by a policy."""

    last: Gap | None = None
    """The last that gave something up, or published again."""
    counts: dict[str, int] = field(default_factory=dict)
    """By reason."""

    def note(self, gap: Gap) -> None:
        self.last = gap
        self.counts[gap.reason] = self.counts.get(gap.reason, 0) + 1


@dataclass(slots=True)
class SnapshotFacts:
    """The reading of tables."""

    now: dict[str, Any] | None = None
    """How far it has come, as SnapshotRate.facts() says; None while none is read."""
    ended: list[dict[str, str]] = field(default_factory=list)
    """The last snapshots that ended while this daemon ran the destination: `id`, `kind`, and `outcome`, which is done,
    cancelled, or given up and why."""

    def show(self, facts: dict[str, Any] | None) -> None:
        self.now = facts

    def end(self, id: str, kind: str, outcome: str) -> None:
        self.ended = [*self.ended, {"id": id, "kind": kind, "outcome": outcome}][-_ENDED_KEPT:]

    def forget(self) -> None:
        self.now = None


@dataclass(slots=True)
class Search:
    """How far the search is for a position that an operator asked for."""

    now: dict[str, Any] | None = None
    """`file`, `done` and `total` bytes of it; None while there is no search."""

    def show(self, facts: dict[str, Any] | None) -> bool:
        """Whether it has come further."""
        further, self.now = facts != self.now, facts
        return further
