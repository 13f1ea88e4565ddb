"""The base of sources: what was changed, in the order in which it was committed, from a stored position on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from headrace.errors import PositionLost
from headrace.model import Gap, Position, Row, RowsChange, SchemaChange, TableChange, TableSchema, TransactionMark
from headrace.ports.measures import Measure
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
        """Out of the table's columns. Raises TypeError or ValueError for a row that is none."""
        return cls(str(row[0]), int(row[1]), str(row[2]), int(row[3]), int(row[4]))


@dataclass(frozen=True, slots=True)
class Signal:
    """A row that an operator has written into headrace's signal table on the source."""

    id: int
    destination: str
    command: str
    text: str
    """JSON: the command's arguments."""

    @classmethod
    def of(cls, row: Row) -> Signal:
        """Out of the table's columns. Raises TypeError or ValueError for a row that is none."""
        return cls(int(row[0]), str(row[1]), str(row[2]), "" if row[3] is None else str(row[3]))

    def arguments(self) -> dict[str, Any]:
        """The arguments; {} for an empty text. Raises ValueError for what is no JSON object."""
        if not self.text.strip():
            return {}
        try:
            found = orjson.loads(self.text)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"its arguments are no JSON ({error})") from error
        if not isinstance(found, dict):
            raise ValueError("its arguments are no JSON object")
        return found


class NativeRows(ABC):
    """Makes the messages of rows in native code. All of it is called from within ChangeStream.read()."""

    output: Any
    """What native code writes to."""
    marks: bool
    """Whether it makes the messages about the begin and end of transactions, too."""

    @abstractmethod
    def new_reader(self, passed: bytes) -> Any:
        """A reader of events, to which those with the numbers `passed` mean nothing."""

    @abstractmethod
    def table(self, schema: TableSchema, layouts: Sequence[tuple[Any, ...] | None]) -> Any | None:
        """What makes the rows of a table, whose columns stand in a row image as `layouts` say; None when native code
        does not know how."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether nobody else has to see the rows."""

    @abstractmethod
    def begin(self) -> tuple[int, int]:
        """The reader is about to run; after how many bytes and messages it is to stop."""

    @abstractmethod
    def open(self, slot: int) -> Any:
        """The batch for the messages of a topic's partition. Called while the reader runs."""

    @abstractmethod
    def end(self) -> None:
        """The reader has stopped."""


Unprepared = Callable[[TableSchema], Callable[[], Awaitable[None]] | None]
"""Returns what has to be awaited before rows of a table schema are given; None when they may come."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Who takes what a stream gives. All of it is called from within read(), in the order of the binlog, and must be
    quick. What is None is not wanted."""

    rows: Callable[[RowsChange], None]
    large: Callable[[RowsChange], Iterator[None]] | None = None
    """Takes rows with large values instead of `rows`, some milliseconds of work at each next(). Without it they are
    made ordinary ones."""
    alone: Callable[[], Awaitable[None]] | None = None
    """Awaited before the rows of an event of ALONE bytes and more are given: waits while others have such values in
    memory."""
    statement: Callable[[SchemaChange], None] | None = None
    mark: Callable[[TransactionMark], None] | None = None
    """With it no position lies within a transaction."""
    heartbeat: Callable[[Heartbeat], None] | None = None
    signal: Callable[[Signal], None] | None = None
    unlogged: Callable[[str], None] | None = None
    """Rows of captured tables have changed, and no change of them will ever come: a sentence that says of which."""
    altered: Callable[[frozenset[tuple[str, str]] | None, tuple[TableChange, ...]], None] | None = None
    """A statement may have changed these tables, captured or not (None: it may be any), and is known to have done this
    to them."""
    table: Callable[[str, str], None] | None = None
    """Rows of this captured table follow. Called when the stream gets to know it, and perhaps again."""
    unprepared: Unprepared | None = None
    """Asked before the rows of each table schema."""
    begin: Callable[[], None] = lambda: None
    """Something may be given from now on: called once each read(), behind its waits."""
    full: Callable[[], bool] = lambda: False
    """Whether read() is to return before it gives more. Asked after each few events."""
    between: Callable[[], bool] = lambda: False
    """Whether read() is to return as soon as it is between two transactions. Asked once each read()."""
    hung: str = ""
    """`file:offset` of an event on which event loops have hung, and which an operator has named to be passed over: it
    is not looked at."""
    native: NativeRows | None = None
    """Makes messages of rows in native code; what it does not know goes to `rows`."""


ALONE = 4 << 20
"""Bytes of an event whose rows may need much memory."""


class Place(NamedTuple):
    """A place in the source's log, which its source alone looks into; str() prints it."""

    file: str
    offset: int

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream has come since it was opened, whether somebody wanted what it met or not. Counts never fall."""

    file: str
    offset: int
    """Behind the last event that was received and understood."""
    commit_time_us: int
    """Of the newest transaction, in microseconds since 1970 UTC."""
    received: float = 0.0
    """When the newest bytes came that were looked at, on the loop's clock."""
    events: int = 0
    skipped: int = 0
    """Events that were passed over at the operator's word."""
    transactions: int = 0
    """Those that ended, lone statements among them."""
    bytes: int = 0
    checksums: bool = True
    """Whether a damaged byte of what comes now would be noticed."""


class ChangeStream(ABC):
    """A running stream of changes. One task reads; others may look at its facts at any time."""

    @abstractmethod
    async def read(self) -> None:
        """Gives what comes next to the receiver. Waits until there is something, or wake() is called, lets other tasks
        run, and returns when the receiver is full, when all that came is decoded, or after some milliseconds.

        Raises SourceEnded when the stream is over and reopen() may go on, SourceSilent when no byte came for two
        heartbeats, NotUnderstood, PositionLost, ServerIdTaken or another SourceError, and what the receiver raises:
        then nothing counts that this call has given, and nothing is read any more. Cancelled, it has given nothing,
        and may be called again.
        """

    @abstractmethod
    def rest(self) -> None:
        """Until the next read() nothing is taken from the source: what comes meanwhile wakes nobody, and is read at
        once then."""

    @abstractmethod
    def wake(self) -> None:
        """The read() that waits, or else the next one, does not wait."""

    @property
    def reading(self) -> str:
        """`file:offset` of the event that is being read at this moment, or of one shortly before it; "" while none is.
        For another thread, while the event loop hangs."""
        return ""

    @abstractmethod
    def table(self, schema: str, table: str) -> TableSchema | str | None:
        """A captured table as it is behind what was given; None when it does not exist there, a sentence about why when
        it is not known."""

    @abstractmethod
    def passed(self, watermark: Watermark) -> bool:
        """Whether all before a watermark was given."""

    @abstractmethod
    def position(self) -> Position:
        """From where reading would go on if everything given so far were confirmed."""

    @abstractmethod
    def pass_numbers(self, last_pos: int) -> bool:
        """Between two transactions: what comes next is numbered above this, and position() says so, which has to be
        stored before anything else is read. False when that is not possible yet, because what the stream began within
        has not come."""

    @abstractmethod
    def progress(self) -> Progress:
        """How far it has come."""

    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether what was read last lies within a transaction."""

    @abstractmethod
    def silent_since(self) -> float:
        """Since when read() waits and no byte has come, on the loop's clock; 0 while silence says nothing."""

    @abstractmethod
    def has_reached(self, end: Place) -> bool:
        """Whether all before a place in the source's log was received; see SecondConnection.end()."""

    @abstractmethod
    def take_entries(self) -> tuple[dict[str, Any], ...]:
        """What was learned of tables since the last call, JSON types only: to be stored together with position()."""

    @abstractmethod
    async def reopen(self) -> int:
        """After SourceEnded: goes on behind what was given, at the same server only. Returns the server id under which
        it knows us now. Raises SourceError; then, or cancelled, the stream is over."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the stream and gives everything back. Safe to call twice, and behind a cancelled read()."""


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A source that is able to go on, and a stream that has begun there; nothing of it is read yet."""

    start: Position
    """Where the stream begins: the stored position unless `gap` is set, or where a first start is to begin."""
    gap: Gap | None
    """What the start gives up although the server does not have it; it has to be stored with the start, and told."""
    address: str
    """`host:port` of the server that answers."""
    version: str
    """What that server says of itself."""
    server_id: int
    """Under which it knows us."""
    take_entries: Callable[[], tuple[dict[str, Any], ...]]
    """What was learned of tables so far, JSON types only: to be stored with `start`, where that is stored."""
    stream: Callable[[Receiver], ChangeStream]
    """Gives the stream; called once."""
    close: Callable[[], Awaitable[None]]
    """Ends it, without a stream or behind it. Safe to call twice."""
    reader: Callable[[], TableReader]
    """Gives a reader of the rows that the tables have now, not connected yet."""
    undecodable: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """How many texts had codes without a Unicode character, by schema, table and column, in streams and readers of this
    source so far. They were given with `?` for these codes."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How far a position is from being purged, and from the end. Each is None where it is not known or can't happen.

    `bytes`: binlog between the start of the oldest file and the position, which the source would purge first.
    `seconds`: until it may purge the file that the position is in. `share`: the part of its time that is left, 0..1;
    for a source that purges nothing by itself, the part of all its binlogs that lies before the position.
    `behind`: bytes of binlog from the position to its end.
    """

    bytes: int | None = None
    seconds: float | None = None
    share: float | None = None
    behind: int | None = None

    def warning(self, position: Position, limit: float) -> str:
        """A sentence when less than this share is left, else ""."""
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


Told = Callable[[str, int, int], object]
"""Is told of which file how many bytes were read, and of how many."""


@dataclass(frozen=True, slots=True)
class Move:
    """A new position, what it costs, and the entries of the schema history that have to be stored with it. `notes`
    are sentences for the operator. `found` is for move_by_hand(), which then need not search once more."""

    position: Position
    gap: Gap
    entries: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    found: Any = None


class SecondConnection(ABC):
    """A connection beside the stream, for the destination's heartbeat row. It is made when it is needed, and made anew
    after an error. Every call is bounded in time."""

    @abstractmethod
    async def stored_heartbeat(self, *, required: bool = False) -> Heartbeat | None:
        """The destination's row; None when there is none or it can't be read. Never raises for what the server does,
        unless it is `required`: then SourceError when the server does not say whether there is one."""

    @abstractmethod
    async def write_heartbeat(self, heartbeat: Heartbeat) -> Heartbeat | None:
        """Writes the row, and makes its table when it is missing. Returns the one that stands there with a higher
        epoch, which is left as it is. Writes nothing on a replica, where it would never come back. Raises SourceError
        with why it can't be written."""

    @abstractmethod
    async def end(self) -> Place:
        """Where the source's log ends, asked on yet another connection, because a heartbeat may
        hang. Raises SourceError when the source does not answer."""

    @abstractmethod
    async def close(self) -> None:
        """Gives the connection back; it is made anew when needed. Never raises."""


class Source(ABC):
    """The source of one destination, as it is configured. It remembers which of several servers has served last."""

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
        `entries` is what was stored of take_entries(), oldest first. `forget_tables`: what they say of tables holds no
        more, and tables are as the server shows them now; the entries that say so are among those to be stored.

        Nothing on the source is changed. Raises PositionLost, SourceChanged, ServerIdTaken, SourceMisconfigured or
        another SourceError, and StateStoreError for entries that can't be read. After an error, or cancelled, nothing
        is left open.
        """

    @property
    @abstractmethod
    def address(self) -> str:
        """`host:port` of the server that served last, or is tried first."""

    @abstractmethod
    async def check(self) -> None:
        """Connects to that server and closes the connection. Raises SourceError."""

    @abstractmethod
    async def reachable(self) -> bool:
        """Whether any of its addresses takes a connection, or refuses it for another reason than that it is away; of
        those alone that were away when open() failed last. Bounded in time; never raises SourceError."""

    @abstractmethod
    def second_connection(self) -> SecondConnection:
        """A connection to that server beside the stream, not made yet."""

    def measures(self, position: Position) -> Sequence[Measure]:
        """Figures of a position, for whoever asks for metrics; must be quick."""
        return ()

    @abstractmethod
    async def retention(self, position: Position) -> Retention:
        """How far a position is from being purged there. Raises SourceError."""

    @abstractmethod
    async def several(self, position: Callable[[], Position | None]) -> str:
        """A sentence when several of its addresses take writes apart from each other, so that each has changes which
        the others lack; "" when none do, or it can't be seen. `position` gives ours by now. Takes some seconds then;
        never raises SourceError."""

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
        told: Told = lambda *_: None,
    ) -> Move:
        """Where an operator wants the position: `where` is as docs/positions.md writes it; `entries` and `history` are
        those of the store; `told` hears how far the search is. `events_done` rows events of the transaction there are
        published already, as the caller knows. `found` is that of an earlier move to the same `where`: then only what
        that means by now is looked at, which takes no longer than a few answers of the source. Nothing is changed.
        Raises ValueError for a place that is none, and SourceError."""

    @abstractmethod
    def anew(self) -> tuple[dict[str, Any], ...]:
        """The entries by which nothing of the schema history counts any more, to be stored where a position is taken
        away."""

    @abstractmethod
    async def move(self, policy: str, lost: PositionLost, stored: Position) -> Move | None:
        """Where `on_position_lost` says that a lost position goes; None when it does not act. Nothing is changed.
        Raises SourceError."""
