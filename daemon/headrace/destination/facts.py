"""Groups of facts about one destination. Each is written by its methods, which one part of the destination calls; all
others read. Times are on the monotonic clock in seconds, except for names that end in `_us` (microseconds since 1970
UTC). Counters only grow while the daemon lives."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace import runtime
from headrace.lease import Lease
from headrace.model import Gap, MessageBatch, Position, TableRows
from headrace.ports.archive import ArchiveProgress
from headrace.ports.source import Progress, Retention

ROUND_TRIP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
"""Upper bounds in seconds of the heartbeat's round-trip histogram."""
_ENDED_KEPT = 50
"""Maximum number of ended snapshots that are remembered."""


OTHERS: Final = "(others)"
"""The name for all tables beyond the limit. Its database is "", so no table has this name."""


@dataclass(slots=True)
class TableTotals:
    """Row counts since the daemon was started. The first `limit` tables are counted separately, all others together."""

    limit: int = 200
    _tables: dict[tuple[str, str], TableRows] = field(default_factory=dict)
    _others: TableRows = field(default_factory=lambda: TableRows("", OTHERS))

    def add(self, rows: TableRows) -> None:
        """Adds confirmed rows of one table, or of several that were counted together without a name."""
        name = rows.schema, rows.table
        total = self._tables.get(name)
        if total is None:
            total = self._others
            if rows.schema and len(self._tables) < self.limit:
                total = self._tables[name] = TableRows(*name)
        total.add(rows)

    def named(self, schema: str, table: str, before: int) -> bool:
        """Returns whether the rows of a table may be counted separately. `before` is the number of other tables that
        may. It can reach twice the limit, because some of these tables may have no rows that are published."""
        return (schema, table) in self._tables or (len(self._tables) < self.limit and before < 2 * self.limit)

    def all(self) -> Sequence[TableRows]:
        """Returns each table with confirmed rows, in the order of their first rows, and the others last."""
        return [*self._tables.values(), *([self._others] if self._others.total else [])]


@dataclass(slots=True)
class Holding:
    """The holder of the destination's lock."""

    role: str = "STANDBY"
    """ACTIVE while we hold it."""
    holder: str = ""
    """Who runs the destination while we are a standby, as far as known."""
    problems: list[str] = field(default_factory=list)
    """Why we could not take over, a sentence each, as of the last check as a standby."""
    lease: Lease | None = None
    """The present lease; None while we are a standby."""
    epoch: int = 0
    takeovers: int = 0
    """How many times we got the lock."""
    resumes: int = 0
    """Lapsed leases after which the lock was proved again, and the stream continued."""
    fenced: int = 0
    """Runs that ended because of a higher epoch or a lost lock."""

    def take(self, lease: Lease) -> None:
        """Records that we hold the lock."""
        self.role, self.holder, self.lease, self.problems = "ACTIVE", "", lease, []
        self.takeovers += 1

    def give_up(self) -> None:
        """Records that we neither hold the lock nor wait for it."""
        self.role, self.holder, self.lease, self.problems = "STANDBY", "", None, []

    def wait(self, holder: str) -> None:
        """Records that another daemon holds the lock."""
        self.holder = holder

    def find(self, problems: list[str]) -> None:
        """Records the findings of a check as a standby."""
        self.problems = problems

    def begin(self, epoch: int) -> None:
        """Records the begin of a run under this epoch."""
        self.epoch = epoch

    def resume(self) -> None:
        """Records that a lapsed lease was proved again."""
        self.resumes += 1

    def fence(self) -> None:
        """Records that a run ended because another daemon has the destination."""
        self.fenced += 1


@dataclass(slots=True)
class ReadServer:
    """The server that is read, or was last read."""

    address: str = ""
    """`host:port`."""
    uuid: str = ""
    server_id: int = 0
    """Our id as a replica."""
    reconnects: int = 0
    """Dumps that were begun again without a restart of the destination."""

    def open(self, address: str, uuid: str, server_id: int) -> None:
        self.address, self.uuid, self.server_id = address, uuid, server_id

    def reopen(self, server_id: int) -> None:
        self.server_id = server_id
        self.reconnects += 1


@dataclass(slots=True)
class Received:
    """What was received from the source."""

    file: str = ""
    offset: int = 0
    events: int = 0
    bytes: int = 0
    skipped: int = 0
    """Events and tables skipped at an operator's request."""
    undecodable_texts: int = 0
    """Texts that were published with `?` for codes that have no Unicode character."""
    event_at: float = 0.0

    def note(self, before: Progress, now: Progress) -> None:
        """Adds the progress of the stream from `before` to `now`."""
        self.skipped += now.skipped - before.skipped
        self.events += now.events - before.events
        self.bytes += now.bytes - before.bytes
        self.file, self.offset = now.file, now.offset
        self.event_at = runtime.monotonic()

    def note_undecodable(self, texts: int) -> None:
        """Adds this many texts."""
        self.undecodable_texts += texts

    def forget(self) -> None:
        self.event_at = 0.0


@dataclass(slots=True)
class Published:
    """What was published and confirmed, and what waits for confirmation."""

    tables: TableTotals = field(default_factory=TableTotals)
    """Rows by table."""
    rows: int = 0
    messages: int = 0
    transactions: int = 0
    bytes: int = 0
    queue_bytes: int = 0
    """Bytes read and not confirmed."""
    oldest_at: float = 0.0
    """When the oldest unconfirmed message was read; 0 if there is none."""

    def confirm(self, batch: MessageBatch) -> None:
        """Adds a confirmed batch."""
        self.messages += len(batch.values)
        self.rows += batch.rows
        self.transactions += batch.transactions
        for rows in batch.tables:
            self.tables.add(rows)
        self.bytes += batch.value_bytes

    def wait(self, queue_bytes: int, oldest_at: float) -> None:
        """Records what is unconfirmed now."""
        self.queue_bytes, self.oldest_at = queue_bytes, oldest_at

    def forget(self) -> None:
        self.queue_bytes, self.oldest_at = 0, 0.0


@dataclass(slots=True)
class StoredPosition:
    """The position in the state store, as this daemon last read or wrote it."""

    position: Position | None = None
    written_at: float = 0.0
    """When a confirmed position was last stored."""

    def note(self, position: Position | None) -> None:
        """Records a position that was read or moved."""
        self.position = position

    def checkpoint(self, position: Position) -> None:
        """Records a confirmed position that was stored."""
        self.position, self.written_at = position, runtime.monotonic()

    def forget(self) -> None:
        self.written_at = 0.0


@dataclass(slots=True)
class RoundTrips:
    """A histogram of the time from writing a heartbeat to its return in the binlog, in seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(ROUND_TRIP_BUCKETS) + 1))
    """One more than there are bounds: the last counts those above all bounds."""
    total: float = 0.0
    last: float | None = None
    seen_at: float = 0.0
    """When our own heartbeat last came back."""

    def note(self, seconds: float) -> None:
        """Counts one round trip."""
        self.counts[bisect_left(ROUND_TRIP_BUCKETS, seconds)] += 1
        self.total += seconds
        self.last, self.seen_at = seconds, runtime.monotonic()

    def forget(self) -> None:
        self.seen_at = 0.0


@dataclass(slots=True)
class Retained:
    """How long the source keeps the binlog that we need; see Retention. None if unknown."""

    seconds: float | None = None
    bytes: int | None = None
    share: float | None = None

    def note(self, found: Retention) -> None:
        self.seconds, self.bytes, self.share = found.seconds, found.bytes, found.share

    def forget(self) -> None:
        self.seconds = self.bytes = self.share = None


@dataclass(slots=True)
class Remaining:
    """The rest of the binlog up to the source's end, as of the last check. None if unknown."""

    bytes: int | None = None
    """Bytes from the stored position to the end."""
    rate: float | None = None
    """Bytes received per second, between the last checks."""
    eta: float | None = None
    """Seconds until nothing is left, at the rate at which it shrinks; None while it does not."""

    def note(self, bytes: int | None, rate: float | None, eta: float | None) -> None:
        self.bytes, self.rate, self.eta = bytes, rate, eta

    def forget(self) -> None:
        self.bytes = self.rate = self.eta = None


@dataclass(slots=True)
class Archived:
    """The archive of the source's binlog, while this destination keeps it; None otherwise."""

    progress: ArchiveProgress | None = None

    def note(self, progress: ArchiveProgress) -> None:
        self.progress = progress

    def forget(self) -> None:
        self.progress = None


@dataclass(slots=True)
class Moves:
    """Moves of the position by a policy."""

    last: Gap | None = None
    """The last move that skipped something or published it again."""
    counts: dict[str, int] = field(default_factory=dict)
    """By reason."""

    def note(self, gap: Gap) -> None:
        self.last = gap
        self.counts[gap.reason] = self.counts.get(gap.reason, 0) + 1


@dataclass(slots=True)
class SnapshotFacts:
    """The state of snapshots."""

    now: dict[str, Any] | None = None
    """Progress, as SnapshotRate.facts() returns it; None while no snapshot is read."""
    ended: list[dict[str, str]] = field(default_factory=list)
    """The last snapshots that ended while this daemon ran the destination: `id`, `kind`, and `outcome`, which is done,
    cancelled, or that it was given up and why."""

    def show(self, facts: dict[str, Any] | None) -> None:
        self.now = facts

    def end(self, id: str, kind: str, outcome: str) -> None:
        self.ended = [*self.ended, {"id": id, "kind": kind, "outcome": outcome}][-_ENDED_KEPT:]

    def forget(self) -> None:
        self.now = None


@dataclass(slots=True)
class Search:
    """The progress of the search for a position that an operator has requested."""

    now: dict[str, Any] | None = None
    """`file`, and its `done` and `total` bytes; None while there is no search."""

    def show(self, facts: dict[str, Any] | None) -> bool:
        """Records the progress; returns whether it has changed."""
        further, self.now = facts != self.now, facts
        return further
