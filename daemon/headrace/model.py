"""What every layer shares: positions, table schemas, changes of rows and schemas, and batches of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from headrace.large_values import LargeValue, numbered
from headrace.snapshots import Snapshot

POS_SHIFT = 11
"""`_pos` counts in 2**-11 microseconds: 2,048 rows of one microsecond have room before the next one's numbers begin."""
POS_LIMIT = 1 << 63
POS_ROOM = 1024
"""Numbers that stay free before each transaction, for rows that a snapshot gives out between two of them: so those take
none of the stream's, whose numbers are the same whatever was read beside it."""


class State(StrEnum):
    """The states of a destination, as `/health` and the logs name them."""

    STARTING = "STARTING"
    STANDBY = "STANDBY"
    STREAMING = "STREAMING"
    DEGRADED = "DEGRADED"
    STALLED = "STALLED"
    SNAPSHOTTING = "SNAPSHOTTING"
    PAUSED = "PAUSED"
    POSITION_LOST = "POSITION_LOST"
    SOURCE_CHANGED = "SOURCE_CHANGED"
    SERVER_ID_TAKEN = "SERVER_ID_TAKEN"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def healthy(self) -> bool:
        """Whether a monitor is to see 200: changes flow, or rightly wait elsewhere."""
        return self in _HEALTHY


_HEALTHY = frozenset({State.STANDBY, State.STREAMING, State.DEGRADED, State.SNAPSHOTTING, State.PAUSED})


class Operation(StrEnum):
    """What was done to the rows of one rows event."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class OpenXa:
    """An XA transaction that is prepared and neither committed nor rolled back: where its rows begin."""

    xid: str
    """`format:gtrid:bqual`, the latter two in hex."""
    file: str
    offset: int
    gtid: str = ""
    """That of the transaction that ends in XA PREPARE."""


@dataclass(frozen=True, slots=True)
class Position:
    """Up to where everything has been confirmed, and from where reading goes on.

    Its source prints, parses, compares and moves it; to all others it is a whole, but for `last_pos`, `commit_time_us`,
    `snapshots`, `snapshot_pos` and `paused`, which are headrace's own.

    `file`:`offset` is the start of the transaction (or lone event) to read next. `events_done` rows events of it are
    confirmed already, counted before any filter; that holds only on the server with `server_uuid`. `gtid_set` is what
    was executed before that transaction, `""` without GTIDs.
    `rows_done` rows of the event behind those are confirmed too, where a large one goes out in parts.
    `last_pos` is the highest `_pos` given out before here, so that a resend carries the same numbers.
    `commit_time_us` is the commit time of the last transaction before here, in microseconds since 1970 UTC.
    `own_gtids` are the newest transactions of `gtid_set` that changed nothing but headrace's own tables (heartbeats):
    a server that never got them has lost nothing.
    `last_transaction` is `file:offset` of where the transaction with that commit time begins, "" when none was read: a
    server whose binlog has another one there was reset or restored.
    `snapshots` are those under way, the first of which is read; what they have given is confirmed too.
    `snapshot_pos` is up to where numbers were passed for a snapshot last (see ChangeStream.pass_numbers()).
    `paused` says who has paused the destination, and when; "" while it runs.
    """

    server_uuid: str
    file: str
    offset: int
    gtid_set: str = ""
    events_done: int = 0
    open_xa: tuple[OpenXa, ...] = ()
    last_pos: int = 0
    commit_time_us: int = 0
    own_gtids: str = ""
    last_transaction: str = ""
    snapshots: tuple[Snapshot, ...] = ()
    snapshot_pos: int = 0
    paused: str = ""
    rows_done: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The stored form: JSON types only."""
        return {
            **asdict(self),
            "open_xa": [list(astuple(xa)) for xa in self.open_xa],
            "last_pos": str(self.last_pos),
            "snapshot_pos": str(self.snapshot_pos),
            "snapshots": [snapshot.to_dict() for snapshot in self.snapshots],
        }

    def shown(self) -> dict[str, Any]:
        """The same without what rows hold."""
        return {**self.to_dict(), "snapshots": [snapshot.shown() for snapshot in self.snapshots]}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Position:
        """Reads the stored form; raises KeyError, TypeError or ValueError when it is not one."""
        return cls(
            server_uuid=str(raw["server_uuid"]),
            file=str(raw["file"]),
            offset=int(raw["offset"]),
            gtid_set=str(raw["gtid_set"]),
            events_done=int(raw["events_done"]),
            open_xa=tuple(OpenXa(str(x), str(f), int(o), str(g)) for x, f, o, g in raw["open_xa"]),
            last_pos=int(raw["last_pos"]),
            commit_time_us=int(raw["commit_time_us"]),
            own_gtids=str(raw["own_gtids"]),
            last_transaction=str(raw["last_transaction"]),
            snapshots=tuple(Snapshot.from_dict(one) for one in raw.get("snapshots", ())),
            snapshot_pos=int(raw.get("snapshot_pos", 0)),
            paused=str(raw.get("paused", "")),
            rows_done=int(raw.get("rows_done", 0)),
        )

    @property
    def size(self) -> int:
        """About how many characters its stored form has; the GTID set of an old server has many."""
        return len(self.gtid_set)

    def origin(self) -> Origin:
        """Where rows stand that were read from their table when the stream was here."""
        return Origin(self.file, self.offset, self.offset, 0)

    def __str__(self) -> str:
        """`file:offset`, `file:offset+events_done` within a transaction, or the GTID set where there is no file."""
        inside = f"+{self.events_done}" if self.events_done else ""
        return f"{self.file}:{self.offset}{inside}" if self.file else self.gtid_set


@dataclass(frozen=True, slots=True)
class Gap:
    """What a move of the position gives up (forward) or publishes again (backward), as far as it can be known.

    `reason` is one word: a LostKind's value, `diverged`, or `operator`. Counts are None where nobody can say any more:
    binlogs that are gone can't be counted. `gtids` are the transactions given up, as a GTID set.
    """

    reason: str
    start: str
    """The position before, as str() has it; "" when there was none."""
    end: str
    """The same of the position after."""
    backward: bool = False
    bytes: int | None = None
    files: int | None = None
    transactions: int | None = None
    gtids: str = ""
    at_us: int = 0
    """When the move was made, in microseconds since 1970 UTC."""

    def to_dict(self) -> dict[str, Any]:
        """JSON types only."""
        raw = asdict(self)
        return {"reason": raw.pop("reason"), "from": raw.pop("start"), "to": raw.pop("end"), **raw}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Gap:
        """Reads what to_dict() returned."""
        rest = dict(raw)
        return cls(start=rest.pop("from"), end=rest.pop("to"), **rest)

    def __str__(self) -> str:
        """One sentence for logs and people."""
        known = [
            f"{count:,} {word if count != 1 else word[:-1]}"
            for count, word in ((self.transactions, "transactions"), (self.files, "files"), (self.bytes, "bytes"))
            if count is not None
        ]
        what = ", ".join(known) or "an unknown amount"
        verb = "published again" if self.backward else "given up"
        return f"{self.start or 'nothing'} -> {self.end}: {what} {verb}"


class Absent(Enum):
    """The type of ABSENT, so that it can be told from every value."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""Stands in a row image for a column that the image does not have (binlog_row_image other than FULL). Not NULL."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table schema. `mysql_type` is the declared type as far as it is known, in lower case."""

    name: str
    mysql_type: str
    sql_type: int
    """The number in java.sql.Types, which Canal's messages carry."""
    unsigned: bool = False
    nullable: bool = True
    charset: str = ""
    """MySQL's name of the character set of a text, ENUM or SET column; "binary" for binary strings; "" for others."""
    labels: tuple[str, ...] = ()
    """The members of an ENUM or SET."""
    length: int = 0
    """Characters of CHAR and VARCHAR, bytes of BINARY and VARBINARY, digits of DECIMAL, bits of BIT, digits of the
    fraction of temporal types, dimensions of VECTOR; 0 where the type has none or it is not known."""
    scale: int = 0
    """Digits behind the point of a DECIMAL."""
    default: str | None = None
    """The default as information_schema prints it, where the schema history knows it."""
    comment: str = ""
    generated: bool = False
    invisible: bool = False
    auto_increment: bool = False
    virtual: bool = False
    """Whether it is generated when it is read, and stored nowhere; known by the schema history alone."""

    @property
    def kind(self) -> str:
        """The type's bare name: `decimal` of `decimal(10,2) unsigned`."""
        return self.mysql_type.split("(", 1)[0].split(" ", 1)[0]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of one table at one place in the binlog. `keys` are the numbers of the primary key's columns, or of a
    unique key's that stands in for it."""

    schema: str
    table: str
    columns: tuple[Column, ...]
    keys: tuple[int, ...]
    promoted: bool = False
    """Whether it is known that `keys` are those of a unique key."""

    @property
    def name(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.table}"


Row = tuple[Any, ...]
"""One row image, a value a column. Values: int, float, str (text, and DECIMAL, temporal, ENUM, SET and JSON as MySQL
prints them), bytes (binary strings and geometries), None (NULL), ABSENT. ENUM and SET are int when asked for."""


@dataclass(slots=True, unsafe_hash=True)
class Origin:
    """Where in the binlog a change stands, and who made it. Never altered: it is not frozen because one is made for
    every event."""

    file: str
    transaction: int
    """The offset where its transaction begins."""
    offset: int
    """The offset where its event begins."""
    ordinal: int
    """The number of its rows event within the transaction, counted before any filter; of a statement or a mark, that
    of the one before it."""
    server_id: int = 0
    """Of the server that executed it; 0 when it is not known."""
    thread: int = 0
    """The session's connection id there; 0 when it is not known."""
    length: int = 0
    """Bytes of its event, with header and checksum; 0 when it has none."""
    time: int = 0
    """When the server began the statement: the event header's seconds since 1970; 0 when it has none."""
    table_id: int = 0
    """The table's number in the binlog, of rows; else 0."""


NO_ORIGIN: Final = Origin("", 0, 0, 0)
"""Of a change that stands in no binlog."""


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """What rows of a snapshot say of it."""

    id: str
    """The beginning of their messages' ids; given once."""
    kind: str
    """Snapshot.kind."""
    marker: str
    """Debezium's word for their place in the snapshot: first, first_in_data_collection, true, last_in_data_collection,
    last or incremental."""


@dataclass(slots=True)
class RowsChange:
    """One rows event: one table, one operation, many rows. `before` is set for UPDATE only, row by row beside `rows`;
    for DELETE `rows` holds what was deleted."""

    schema: TableSchema
    operation: Operation
    rows: list[Row]
    before: list[Row] | None
    pos: int
    """`_pos` of the first row; row i has `pos + i`."""
    commit_time_us: int
    gtid: str
    partial: bool = False
    """Whether rows hold ABSENT. An update's row has the before image's value where only that has the column."""
    origin: Origin = NO_ORIGIN
    row_indexes: Sequence[int] | None = None
    """Where each row stands in the event, when this is a part of one; None: row i is the event's row i."""
    other: Row | None = None
    """With a DELETE or an INSERT of one row that half of an update became: the other half's row."""
    snapshot: SnapshotRows | None = None
    """Set for rows that a snapshot read from the table; the operation is INSERT then."""
    large: tuple[LargeValue, ...] = ()
    """The large values in its rows, by their numbers."""

    def settle(self, columns: Iterable[int] | None = None) -> None:
        """Makes large values ordinary ones, those of some columns or all. Raises ValueError and the like for bytes that
        are no such value."""
        if not self.large:
            return
        images, wanted = (*self.rows, *(self.before or ())), self.large
        if columns is not None:
            wanted = tuple(row[i] for i in columns for row in images if type(row[i]) is LargeValue)
        if not wanted:
            return
        known = {id(value): value.whole() for value in dict.fromkeys(wanted)}
        self.rows, before = [_settled(row, known) for row in self.rows], self.before
        self.before = [_settled(row, known) for row in before] if before is not None else None
        self.large = numbered((*self.rows, *(self.before or ()))) if columns is not None else ()

    def parts(self, size: int) -> list[RowsChange]:
        """The same change cut into changes of at most `size` rows, order and numbers kept."""
        return [
            replace(
                self,
                rows=self.rows[i : i + size],
                before=self.before[i : i + size] if self.before is not None else None,
                pos=self.pos + i,
                row_indexes=range(i, len(self.rows))[:size]
                if self.row_indexes is None
                else self.row_indexes[i : i + size],
            )
            for i in range(0, len(self.rows), size)
        ]


def _settled(row: Row, known: dict[int, Any]) -> Row:
    return tuple(known.get(id(value), value) for value in row)


class DdlKind(StrEnum):
    """What a statement does, in Canal's words (CanalEntry.EventType)."""

    CREATE = "CREATE"
    ALTER = "ALTER"
    ERASE = "ERASE"
    TRUNCATE = "TRUNCATE"
    RENAME = "RENAME"
    CREATE_INDEX = "CINDEX"
    DROP_INDEX = "DINDEX"
    QUERY = "QUERY"
    """Any other: databases, views, routines; and, where they are published, accounts' rights and DML texts."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a DDL did to one table. `after` is None when it is gone, or its schema is not known."""

    kind: DdlKind
    schema: str
    table: str
    after: TableSchema | None = None
    renamed_from: tuple[str, str] | None = None


@dataclass(slots=True)
class SchemaChange:
    """One statement of the binlog that is no change of rows: DDL, DCL, or the text of DML."""

    kind: DdlKind
    category: str
    """ddl, dcl (accounts and rights) or dml."""
    schema: str
    """The schema that the statement is about: its table's, else the session's."""
    table: str
    """The first table that it names, "" when it names none."""
    sql: str
    tables: tuple[TableChange, ...]
    pos: int
    commit_time_us: int
    gtid: str
    origin: Origin = NO_ORIGIN
    alters: bool = False
    """Whether it is an ALTER, whose kind may be another: ADD INDEX is CINDEX."""
    view: bool = False
    """Whether it is about a view."""
    session_schema: str = ""
    """The session's default schema; "" when it had none."""

    @property
    def is_ddl(self) -> bool:
        """Whether it is about tables, schemas, indexes, views or routines."""
        return self.category == "ddl"


@dataclass(slots=True)
class TransactionMark:
    """The begin or end of a transaction that changes captured tables."""

    begin: bool
    pos: int
    commit_time_us: int
    gtid: str
    origin: Origin = NO_ORIGIN
    xid: int = 0
    """The end of a transaction has the storage engine's number of it; 0 when a statement ended it."""


class Unit(NamedTuple):
    """What a message is about, for the order that has to hold: it waits behind every earlier one that shares a key or,
    where either has no keys, a table."""

    tables: tuple[str, ...]
    """`schema.table`; `schema.*` for a statement about a database; empty for what is about no table."""
    keys: tuple[str, ...] = ()
    """The rows' keys, which are the same for tables whose rows have to stay in order; none: it is about its tables as a
    whole."""


@dataclass(slots=True)
class TableRows:
    """How many rows of one table were published, by what their messages say was done to them."""

    schema: str
    table: str
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    snapshot: int = 0
    """Those that a snapshot has read from the table."""
    commit_time_us: int = 0
    """The newest of them, in microseconds since 1970 UTC."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.inserted + self.updated + self.deleted + self.snapshot

    def add(self, more: TableRows) -> None:
        """Adds those that came later."""
        self.inserted += more.inserted
        self.updated += more.updated
        self.deleted += more.deleted
        self.snapshot += more.snapshot
        self.commit_time_us = max(self.commit_time_us, more.commit_time_us)


@dataclass(slots=True)
class MessageBatch:
    """Messages of one topic partition run, in order, with the position that holds once all are confirmed.

    `values`, `headers` and, when set, `keys` and `units` run beside each other. `size` is what the batch is charged in
    the bytes-bounded queue. A batch without messages only moves the position.
    """

    topic: str
    partition: int
    values: list[bytes | None] = field(default_factory=list)
    """None is a tombstone: a record without a value, for compacted topics."""
    headers: list[list[tuple[str, bytes]]] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    position: Position | None = None
    """Confirmed once this batch and all before it are."""
    transactions: int = 0
    tables: Sequence[TableRows] = ()
    """The rows of this batch, and of those before it that have no position, by table."""
    schema_entries: tuple[dict[str, Any], ...] = ()
    """New versions of tables for the schema history, stored together with `position`."""
    received: float = 0.0
    """When the first of its bytes came in, on the loop's clock."""
    keys: list[bytes | None] | None = None
    """None when no message of the batch has a key."""
    units: list[Unit] | None = None
    """Set where messages may be parked, so that later ones can wait behind them."""
    barrier: bool = False
    """Whether it is published once all before it is confirmed, and what is behind it once it is itself."""
    parked: int = 0
    """The number of the parked message that the batch sends again; 0 for all others."""
    tags: list[str] | None = None
    """What kind of message each is, for sinks that have tags."""
    commit_time_us: int = 0
    """Commit time of the last message; 0 when the batch has none."""

    @property
    def value_bytes(self) -> int:
        """Bytes of all values."""
        known = getattr(self.values, "total", None)  # of a column that native code has filled
        return known if known is not None else sum(map(len, filter(None, self.values)))

    @property
    def largest(self) -> int:
        """Bytes of the largest value."""
        known = getattr(self.values, "largest", None)
        return known if known is not None else max(map(len, filter(None, self.values)), default=0)
