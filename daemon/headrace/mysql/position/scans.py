"""Scans of a binlog file: for the first transaction of a time or outside a GTID set, and whether reading can begin at a
position."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.position.scan import BinlogScan


@dataclass(frozen=True, slots=True)
class TransactionBoundary:
    """A position where no transaction is open, so that reading can begin there.

    `gtids` is what the server had executed before it, None if its files do not say. `commit_time_us` is the commit time
    of the transaction that begins there, 0 at the end of the binlog. `pos_limit` is above every `_pos` of earlier
    transactions; 0 if that is not known."""

    file: str
    offset: int
    gtids: GtidSet | None = None
    commit_time_us: int = 0
    pos_limit: int = 0

    @property
    def file_position(self) -> tuple[str, int]:
        return self.file, self.offset

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


_AHEAD = 16 << 20
"""Maximum bytes that Ahead reads."""


class FirstSince(BinlogScan):
    """Finds the first group committed at a time (microseconds since 1970) or later."""

    def __init__(self, file: str, since_us: int, offset: int = 4) -> None:
        super().__init__(file, offset)
        self._since = since_us
        self.found: TransactionBoundary | None = None

    def on_group(self, start: int) -> None:
        if self.commit_time_us >= self._since:
            self.found, self.done = _boundary(self, start), True


class FirstMissing(BinlogScan):
    """Finds the first group whose GTID is not in a set."""

    def __init__(self, file: str, gtids: GtidSet) -> None:
        super().__init__(file)
        self._wanted = gtids
        self.found: TransactionBoundary | None = None

    def on_group(self, start: int) -> None:
        key = self.key
        if key is not None and not self._wanted.contains(_one(*key)):
            self.found, self.done = _boundary(self, start), True


class At(BinlogScan):
    """Finds whether an offset is a position between groups, and the nearest such positions around it."""

    def __init__(self, file: str, offset: int) -> None:
        super().__init__(file)
        self._offset = offset
        self.below, self.above = 4, 0
        self.in_event = True
        self.found: TransactionBoundary | None = None

    def on_event(self, start: int) -> None:
        if start == self._offset:
            self.in_event = False

    def on_boundary(self, start: int) -> None:
        if start == self._offset:
            self.found = _boundary(self, start, 0)
        elif start < self._offset:
            self.below = start
        elif self.found is not None:
            self.done = True
        else:
            self.above, self.done = start, True

    def on_group(self, start: int) -> None:
        if start == self._offset:
            self.found, self.done = _boundary(self, start), True


class Around(BinlogScan):
    """Finds the event at an offset, and the group that it belongs to."""

    def __init__(self, file: str, offset: int) -> None:
        super().__init__(file)
        self._offset = offset
        self._passed = 0
        self.begin = TransactionBoundary(file, 4)
        """Where the group begins; the offset itself if no group is open there."""
        self.after: TransactionBoundary | None = None
        """The next position after the event where no group is open, if the event is the last one before it."""
        self.event_time = 0
        """When the event was written, in seconds since 1970; 0 if none begins at the offset."""

    def on_event(self, start: int) -> None:
        if start == self._offset:
            self.event_time = self.cursor.time
        elif start > self._offset:
            self._passed += 1
            self.done = self._passed > 1

    def on_boundary(self, start: int) -> None:
        if start <= self._offset:
            self.begin = _boundary(self, start, 0)
        elif not self.done:
            self.after, self.done = _boundary(self, start, 0), True


class MariadbAt(BinlogScan):
    """Finds the first position at which a MariaDB server's GTID state is a given one: domain to sequence number."""

    def __init__(self, file: str, wanted: dict[int, int], state: dict[int, int]) -> None:
        super().__init__(file)
        self._wanted, self._state = wanted, state
        self._present: tuple[int, int] | None = None
        self.found: TransactionBoundary | None = None

    def on_boundary(self, start: int) -> None:
        if self._present is not None:
            self._state[self._present[0]] = self._present[1]
            self._present = None
        if start > 4 and all(self._state.get(domain, 0) == number for domain, number in self._wanted.items()):
            self.found, self.done = _boundary(self, start, 0), True

    def on_group(self, start: int) -> None:
        if self.mariadb_gtid is not None:
            self._present = self.mariadb_gtid.domain, self.mariadb_gtid.sequence


class Begins(BinlogScan):
    """Finds the commit time of the group that begins at `wanted`, if one does; read from `offset` on."""

    def __init__(self, file: str, offset: int, wanted: int) -> None:
        super().__init__(file, offset)
        self._wanted = wanted
        self.found: int | None = None

    def on_group(self, start: int) -> None:
        if start == self._wanted:
            self.found = self.commit_time_us
        self.done = start >= self._wanted

    def on_event(self, start: int) -> None:
        if start > self._wanted:
            self.done = True


class Sound(BinlogScan):
    """Reads a file to its end, and notes whether an event begins or ends at `offset`."""

    def __init__(self, file: str, offset: int) -> None:
        super().__init__(file)
        self._offset = offset
        self.seen = offset <= 4

    def on_event(self, start: int) -> None:
        self.seen = self.seen or start == self._offset


class Ahead(BinlogScan):
    """Reads from `offset` to the end of the next transaction, or `_AHEAD` bytes."""

    def __init__(self, file: str, offset: int) -> None:
        super().__init__(file, offset)
        self._from = offset

    def on_boundary(self, start: int) -> None:
        self.done = self.done or start > self._from

    def on_event(self, start: int) -> None:
        self.done = self.done or start - self._from > _AHEAD


def _one(source: str, gno: int) -> GtidSet:
    one = GtidSet()
    one.add(source, gno)
    return one


def _boundary(scan: BinlogScan, start: int, commit_time_us: int | None = None) -> TransactionBoundary:
    gtids = GtidSet(str(scan.gtids)) if scan.gtids is not None else None
    time = scan.commit_time_us if commit_time_us is None else commit_time_us
    return TransactionBoundary(scan.scanned, start, gtids, time, scan.pos_limit(start))
