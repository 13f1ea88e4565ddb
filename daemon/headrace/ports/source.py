"""The base of sources: changes in commit order, from a stored position on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from headrace.errors import PositionLost
from headrace.model import Gap, Position, Row, RowsChange, SchemaChange, TableChange, TableSchema, TransactionMark
from headrace.ports.archive import Archiver
from headrace.ports.measures import Measure
from headrace.ports.native_rows import NativeRows
from headrace.ports.state import HistoryEntry, Stored
from headrace.ports.tables import TableReader, Watermark


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A row of headrace's own table on the source. `written_us` is the writer's clock, in microseconds since 1970 UTC;
    `sequence` counts within an epoch."""

    destination: str
    epoch: int
    node: str
    sequence: int
    written_us: int

    @classmethod
    def of(cls, row: Row) -> Heartbeat:
        """Reads the table's columns. Raises TypeError or ValueError for a row that is not a heartbeat."""
        return cls(str(row[0]), int(row[1]), str(row[2]), int(row[3]), int(row[4]))


@dataclass(frozen=True, slots=True)
class Signal:
    """A row that an operator has written to headrace's signal table on the source."""

    id: int
    destination: str
    command: str
    text: str
    """JSON: the command's arguments."""

    @classmethod
    def of(cls, row: Row) -> Signal:
        """Reads the table's columns. Raises TypeError or ValueError for a row that is not a signal."""
        return cls(int(row[0]), str(row[1]), str(row[2]), "" if row[3] is None else str(row[3]))

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments; {} for an empty text. Raises ValueError if the text is not a JSON object."""
        if not self.text.strip():
            return {}
        try:
            found = orjson.loads(self.text)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"its arguments are no JSON ({error})") from error
        if not isinstance(found, dict):
            raise ValueError("its arguments are no JSON object")
        return found


Unprepared = Callable[[TableSchema], Callable[[], Awaitable[None]] | None]
"""Returns what must be awaited before rows of a table schema are given; None if they may come at once."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """The callbacks that receive a stream's changes. All of them are called from within read(), in the order of the
    binlog, and must be fast. A callback left as None is not called."""

    rows: Callable[[RowsChange], None]
    large: Callable[[RowsChange], Iterator[None]] | None = None
    """Receives rows with large values instead of `rows`; each next() is some milliseconds of work. Without it large
    values are made ordinary ones."""
    alone: Callable[[], Awaitable[None]] | None = None
    """Awaited before the rows of an event of ALONE bytes and more are given: waits while others have such values in
    memory."""
    statement: Callable[[SchemaChange], None] | None = None
    mark: Callable[[TransactionMark], None] | None = None
    """If set, no position lies within a transaction."""
    heartbeat: Callable[[Heartbeat], None] | None = None
    signal: Callable[[Signal], None] | None = None
    unlogged: Callable[[str], None] | None = None
    """Rows of captured tables have changed without an event in the binlog; the sentence names the tables."""
    altered: Callable[[frozenset[tuple[str, str]] | None, tuple[TableChange, ...]], None] | None = None
    """A statement may have changed these tables, captured or not (None: any table), and is known to have made these
    changes."""
    table: Callable[[str, str], None] | None = None
    """Rows of this captured table follow. Called when the stream first meets it, and perhaps again."""
    unprepared: Unprepared | None = None
    """Called before the rows of each table schema."""
    begin: Callable[[], None] = lambda: None
    """Something may be given from now on: called once in each read(), after its waits."""
    full: Callable[[], bool] = lambda: False
    """Whether read() must return before it gives more. Called after every few events."""
    between: Callable[[], bool] = lambda: False
    """Whether read() must return as soon as it is between two transactions. Called once in each read()."""
    hung: str = ""
    """`file:offset` of an event on which event loops have hung, and which an operator has named to be skipped: it is
    not decoded."""
    native: NativeRows | None = None
    """Makes messages of rows in native code; rows that it can't convert go to `rows`."""


ALONE = 4 << 20
"""Size in bytes of an event whose rows may need much memory."""


class LogPosition(NamedTuple):
    """A position in the source's log, opaque outside its source; str() prints it."""

    file: str
    offset: int

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a stream since it was opened, whether or not its changes were captured. Counts never decrease."""

    file: str
    offset: int
    """The end of the last event that was received and understood."""
    commit_time_us: int
    """Commit time of the newest transaction, in microseconds since 1970 UTC."""
    received: float = 0.0
    """When the newest bytes that were read came in, on the monotonic clock."""
    events: int = 0
    skipped: int = 0
    """Events that were skipped at an operator's request."""
    transactions: int = 0
    """Transactions that ended, single statements included."""
    bytes: int = 0
    checksums: bool = True
    """Whether a damaged byte in the stream would be noticed now."""


class ChangeStream(ABC):
    """A running stream of changes. One task reads; others may read its properties at any time."""

    @abstractmethod
    async def read(self) -> None:
        """Gives the next changes to the receiver. Waits until there is something or wake() is called, lets other tasks
        run, and returns when the receiver is full, when everything received is decoded, or after some milliseconds.

        Raises SourceEnded when the stream has ended and reopen() may continue it, SourceSilent when no byte came for
        two heartbeats, NotUnderstood, PositionLost, ServerIdTaken or another SourceError, and what the receiver raises.
        After an error, nothing that this call gave counts, and nothing more can be read. If cancelled, it has given
        nothing and may be called again."""

    @abstractmethod
    def rest(self) -> None:
        """Takes nothing from the source until the next read(). Data that arrives meanwhile wakes no task, and is read
        at once then."""

    @abstractmethod
    def wake(self) -> None:
        """Makes the waiting read(), or else the next one, not wait."""

    @property
    def reading(self) -> str:
        """Returns `file:offset` of the event that is being read now, or of one shortly before it; "" if none is. For
        another thread, while the event loop hangs."""
        return ""

    @abstractmethod
    def table(self, schema: str, table: str) -> TableSchema | str | None:
        """Returns a captured table as it is after the changes given so far; None if it does not exist there, or a
        sentence with the reason if it is not known."""

    @abstractmethod
    def passed(self, watermark: Watermark) -> bool:
        """Returns whether all changes before a watermark were given."""

    @abstractmethod
    def position(self) -> Position:
        """Returns the position from which reading would continue if everything given so far were confirmed."""

    @abstractmethod
    def pass_numbers(self, last_pos: int) -> bool:
        """Numbers the following changes above this, between two transactions. position() then includes it, and must be
        stored before anything else is read. Returns False if this is not possible yet, because the transaction in which
        the stream began has not ended."""

    @abstractmethod
    def progress(self) -> Progress:
        """Returns the progress of the stream."""

    @abstractmethod
    def in_transaction(self) -> bool:
        """Returns whether the last change that was read lies within a transaction."""

    @abstractmethod
    def silent_since(self) -> float:
        """Returns since when read() has waited without a byte, on the monotonic clock; 0 while that has no meaning."""

    @abstractmethod
    def has_reached(self, end: LogPosition) -> bool:
        """Returns whether everything before a position in the source's log was received; see SecondConnection.end()."""

    @abstractmethod
    def take_entries(self) -> tuple[dict[str, Any], ...]:
        """Returns what was learned of tables since the last call, JSON types only: to be stored together with
        position()."""

    @abstractmethod
    async def reopen(self) -> int:
        """Continues after SourceEnded from the last change given, at the same server only. Returns the server id under
        which it knows us now. Raises SourceError; after that, or if cancelled, the stream has ended."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the stream and releases all resources. Safe to call twice, and after a cancelled read()."""


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source that can continue, and its stream, which nothing was read from yet."""

    start: Position
    """Where the stream begins: the stored position unless `gap` is set, or where a first start begins."""
    gap: Gap | None
    """The published transactions that the server lacks, if the start continues without them. It must be stored with the
    start, and reported."""
    address: str
    """`host:port` of the server that answers."""
    version: str
    """The version that the server reports."""
    server_id: int
    """The server id under which it knows us."""
    take_entries: Callable[[], tuple[dict[str, Any], ...]]
    """Returns what was learned of tables so far, JSON types only: to be stored with `start`, if that is stored."""
    stream: Callable[[Receiver], ChangeStream]
    """Returns the stream; called once."""
    close: Callable[[], Awaitable[None]]
    """Ends the source, with or without a stream. Safe to call twice."""
    reader: Callable[[], TableReader]
    """Returns a reader of the rows that the tables have now, not connected yet."""
    undecodable: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Number of texts that had codes without a Unicode character, by schema, table and column, in streams and readers
    of this source so far. They were given with `?` for these codes."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How far a position is from being purged, and from the end. Each value is None if it is not known or can't happen.

    `bytes`: binlog between the start of the oldest file and the position, which the source would purge first.
    `seconds`: time until the source may purge the file that the position is in. `share`: the part of its time that is
    left, 0..1; for a source that purges nothing by itself, the part of all its binlogs that lies before the position.
    `behind`: bytes of binlog from the position to its end."""

    bytes: int | None = None
    seconds: float | None = None
    share: float | None = None
    behind: int | None = None

    def warning(self, position: Position, limit: float) -> str:
        """Returns a sentence if less than this share is left, else ""."""
        share = self.share
        if share is None or share >= limit:
            return ""
        if not self.bytes and not share:
            left = f"the source has purged the binlog of our position {position}"
        elif self.seconds is not None:
            left = f"the source may purge the binlog of our position {position} in {self.seconds:,.0f} s"
        else:
            left = (
                f"only {self.bytes or 0:,} bytes of binlog lie between the source's oldest and our position {position}"
            )
        return f"{left}, {share:.0%} of what it keeps is left (retention_warning is {limit:.0%})"


ProgressCallback = Callable[[str, int, int], object]
"""Receives a file's name, how many of its bytes were read, and its size in bytes."""


@dataclass(frozen=True, slots=True)
class Move:
    """A new position, what it skips or repeats, and the entries of the schema history that must be stored with it.
    `notes` are sentences for the operator. `found` is for move_by_hand(), to avoid a second search."""

    position: Position
    gap: Gap
    entries: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    found: Any = None


class SecondConnection(ABC):
    """A second connection, separate from the stream, for the destination's heartbeat row. It is opened when it is
    needed, and opened again after an error. Every call has a time limit."""

    @abstractmethod
    async def stored_heartbeat(self, *, required: bool = False) -> Heartbeat | None:
        """Returns the destination's row; None if there is none or it can't be read. Raises nothing for errors of the
        server unless `required`: then SourceError if the server does not answer whether there is one."""

    @abstractmethod
    async def write_heartbeat(self, heartbeat: Heartbeat) -> Heartbeat | None:
        """Writes the row, and creates its table if it is missing. Returns the stored row if it has a higher epoch; that
        row is not changed. Writes nothing on a replica, where the row would never come back in the stream. Raises
        SourceError with the reason why it can't be written."""

    @abstractmethod
    async def end(self) -> LogPosition:
        """Returns the end of the source's log, over yet another connection, because a heartbeat may hang. Raises
        SourceError if the source does not answer."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the connection; it is opened again when needed. Never raises."""


@dataclass(slots=True)
class Confirmed:
    """Up to where every change is confirmed by the sink, and can't be lost any more; None: not known."""

    position: Position | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, position: Position | None) -> None:
        """Sets the position."""
        self.position = position
        self.changed.set()


class Acknowledger(ABC):
    """Makes the source wait at each commit until its changes are confirmed."""

    @abstractmethod
    async def run(self, confirmed: Confirmed, report: Callable[[str], None]) -> None:
        """Acknowledges what is confirmed, until it is cancelled, or must begin again. Reports again and again why the
        source does not wait; "" if it does. Raises SourceError."""


class Source(ABC):
    """The configured source of one destination. It remembers which of several servers has served last."""

    @abstractmethod
    async def open(
        self,
        stored: Position | None,
        *,
        last_pos: int = 0,
        entries: Sequence[dict[str, Any]] = (),
        forget_tables: bool = False,
    ) -> OpenSource:
        """Begins a stream at `stored`; None: where the configuration says, with `_pos` numbers above `last_pos`.
        `entries` are the stored results of take_entries(), oldest first. `forget_tables`: they are void, and tables are
        as the server has them now; the entries that record this are among those to be stored.

        Changes nothing on the source. Raises PositionLost, SourceChanged, ServerIdTaken, SourceMisconfigured or another
        SourceError, and StateStoreError for entries that can't be read. After an error, or if cancelled, nothing is
        left open."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Returns `host:port` of the server that served last, or is tried first."""

    @abstractmethod
    async def check(self) -> None:
        """Connects to that server and closes the connection. Raises SourceError."""

    @abstractmethod
    async def reachable(self) -> bool:
        """Returns whether any of its addresses accepts a connection, or refuses it for a reason other than being
        unavailable. Tries only those that were unavailable when open() failed last. Has a time limit; never raises
        SourceError."""

    @abstractmethod
    def second_connection(self) -> SecondConnection:
        """Returns a second connection to that server, separate from the stream and not opened yet."""

    def measures(self, position: Position) -> Sequence[Measure]:
        """Returns metrics of a position; must be fast."""
        return ()

    def acknowledger(self) -> Acknowledger | None:
        """Returns what makes the server that served last wait until changes are confirmed; None if it does not have to
        wait."""
        return None

    def archiver(self) -> Archiver | None:
        """Returns what keeps the archive of its log; None if the configuration names no archive."""
        return None

    @abstractmethod
    async def retention(self, position: Position) -> Retention:
        """Returns how far a position is from being purged there. Raises SourceError."""

    @abstractmethod
    async def several(self, position: Callable[[], Position | None]) -> str:
        """Returns a sentence if several of its addresses accept writes independently, so that each has changes which
        the others lack; "" if none do, or it can't be determined. `position` returns our present position. May take
        some seconds; never raises SourceError."""

    @abstractmethod
    async def move_by_hand(
        self,
        where: str,
        stored: Stored,
        entries: Sequence[dict[str, Any]],
        history: Sequence[HistoryEntry],
        *,
        read_schemas: bool,
        events_done: int = 0,
        found: Any = None,
        on_progress: ProgressCallback = lambda *_: None,
    ) -> Move:
        """Returns the move to the position that an operator requests. `where` has the form that docs/positions.md
        describes; `entries` and `history` are those of the store; the progress callback receives the progress of the
        search. `events_done` rows events of the transaction there are known to be published. `found` is the result of
        an earlier move to the same `where`: then only its present meaning is checked, which takes a few queries.
        Changes nothing. Raises ValueError for a text that is not a position, and SourceError."""

    @abstractmethod
    def again(self) -> tuple[dict[str, Any], ...]:
        """Returns the entries that void the schema history, to be stored when a position is removed."""

    @abstractmethod
    async def move(self, policy: str, lost: PositionLost, stored: Position) -> Move | None:
        """Returns the move that `on_position_lost` makes for a lost position; None if it makes none. Changes nothing.
        Raises SourceError."""
