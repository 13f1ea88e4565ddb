"""Types that all layers share: positions, table schemas, changes of rows and schemas, and batches of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from headrace.large_values import LargeValue, numbered
from headrace.snapshots import Snapshot

POS_SHIFT = 11
"""`_pos` counts in 2**-11 microseconds: 2,048 rows of one microsecond fit before the numbers of the next one begin."""
POS_LIMIT = 1 << 63
POS_ROOM = 1024
"""Numbers left free before each transaction, for snapshot rows that are published between two transactions. Such rows
use none of the stream's numbers, so the stream's numbers are the same with and without a snapshot."""


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
        """Returns whether `/health` answers 200: changes flow, or rightly do not, as on a standby or while paused."""
        return self in _HEALTHY


_HEALTHY = frozenset({State.STANDBY, State.STREAMING, State.DEGRADED, State.SNAPSHOTTING, State.PAUSED})


class Operation(StrEnum):
    """What was done to the rows of one rows event."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class OpenXa:
    """An XA transaction that is prepared and neither committed nor rolled back, by where its rows begin."""

    xid: str
    """`format:gtrid:bqual`, the latter two in hex."""
    file: str
    offset: int
    gtid: str = ""
    """The GTID of the transaction that ends in XA PREPARE."""


@dataclass(frozen=True, slots=True)
class Position:
    """The position up to which everything has been confirmed, and from which reading continues.

    Its source prints, parses, compares and moves it. All others treat it as opaque, except for `last_pos`,
    `commit_time_us`, `snapshots`, `snapshot_pos` and `paused`, which are headrace's own.

    `file`:`offset` is the start of the transaction (or single event) to read next. `events_done` rows events of it are
    already confirmed, counted before any filter; that count is valid only on the server with `server_uuid`. `gtid_set`
    is what was executed before that transaction, `""` without GTIDs. `rows_done` rows of the event after those are
    confirmed too, if a large event is published in parts. `last_pos` is the highest `_pos` given out before here, so
    that rows that are sent again get the same numbers. `commit_time_us` is the commit time of the last transaction
    before here, in microseconds since 1970 UTC. `own_gtids` are the newest transactions of `gtid_set` that changed only
    headrace's own tables (heartbeats): a server that never got them has lost nothing. `last_transaction` is
    `file:offset` of where the transaction with that commit time begins, "" if none was read: a server whose binlog has
    another one there was reset or restored. `snapshots` are the running ones; the first is being read, and the rows it
    has published are confirmed too. `snapshot_pos` is up to where numbers were last passed for a snapshot (see
    ChangeStream.pass_numbers()) or by a move: no move leads to lower ones. `paused` says who has paused the
    destination, and when; "" while it runs."""

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
        """Returns the stored form: JSON types only."""
        return {
            **asdict(self),
            "open_xa": [list(astuple(xa)) for xa in self.open_xa],
            "last_pos": str(self.last_pos),
            "snapshot_pos": str(self.snapshot_pos),
            "snapshots": [snapshot.to_dict() for snapshot in self.snapshots],
        }

    def shown(self) -> dict[str, Any]:
        """Returns the same without values of rows."""
        return {**self.to_dict(), "snapshots": [snapshot.shown() for snapshot in self.snapshots]}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Position:
        """Reads the stored form. Raises KeyError, TypeError or ValueError if it is invalid."""
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
        """Returns the approximate size of its stored form in characters; the GTID set of an old server has many."""
        return len(self.gtid_set)

    def origin(self) -> Origin:
        """Returns the origin of rows that were read from their table when the stream was here."""
        return Origin(self.file, self.offset, self.offset, 0)

    def __str__(self) -> str:
        """Returns `file:offset`, `file:offset+events_done` within a transaction, or the GTID set if there is no
        file."""
        inside = f"+{self.events_done}" if self.events_done else ""
        return f"{self.file}:{self.offset}{inside}" if self.file else self.gtid_set


@dataclass(frozen=True, slots=True)
class Gap:
    """What a move of the position skips (forward) or publishes again (backward), as far as it can be known.

    `reason` is one word: a LostKind's value, `diverged`, or `operator`. Counts are None if they can't be known: purged
    binlogs can't be counted. `gtids` are the skipped transactions, as a GTID set."""

    reason: str
    start: str
    """The position before, as str() prints it; "" if there was none."""
    end: str
    """The position after, as str() prints it."""
    backward: bool = False
    bytes: int | None = None
    files: int | None = None
    transactions: int | None = None
    gtids: str = ""
    at_us: int = 0
    """When the move was made, in microseconds since 1970 UTC."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the stored form: JSON types only."""
        raw = asdict(self)
        return {"reason": raw.pop("reason"), "from": raw.pop("start"), "to": raw.pop("end"), **raw}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Gap:
        """Reads what to_dict() returned."""
        rest = dict(raw)
        return cls(start=rest.pop("from"), end=rest.pop("to"), **rest)

    def __str__(self) -> str:
        """Returns one sentence for logs and people."""
        known = [
            f"{count:,} {word if count != 1 else word[:-1]}"
            for count, word in ((self.transactions, "transactions"), (self.files, "files"), (self.bytes, "bytes"))
            if count is not None
        ]
        what = ", ".join(known) or "an unknown amount"
        verb = "published again" if self.backward else "given up"
        return f"{self.start or 'nothing'} -> {self.end}: {what} {verb}"


class Absent(Enum):
    """The type of ABSENT, so that it differs from every value."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""Marks a column that a row image does not have (binlog_row_image other than FULL). Not NULL."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table schema. `mysql_type` is the declared type as far as it is known, in lower case."""

    name: str
    mysql_type: str
    sql_type: int
    """The type's number in java.sql.Types, for Canal's messages."""
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
    """Digits after the decimal point of a DECIMAL."""
    default: str | None = None
    """The default as information_schema prints it, if the schema history knows it."""
    comment: str = ""
    generated: bool = False
    invisible: bool = False
    auto_increment: bool = False
    virtual: bool = False
    """Whether it is a generated column that is computed when read, and not stored; known only from the schema
    history."""

    @property
    def kind(self) -> str:
        """Returns the type's name alone: `decimal` of `decimal(10,2) unsigned`."""
        return self.mysql_type.split("(", 1)[0].split(" ", 1)[0]


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of one table at one position of the binlog. `keys` are the numbers of the columns of the primary key,
    or of a unique key that replaces it."""

    schema: str
    table: str
    columns: tuple[Column, ...]
    keys: tuple[int, ...]
    promoted: bool = False
    """Whether `keys` are known to be those of a unique key."""
    derived: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What others have made of it, each under a key of its own; see headrace.ports.format.per_schema."""

    @property
    def name(self) -> str:
        """Returns `schema.table`, for people."""
        return f"{self.schema}.{self.table}"


Row = tuple[Any, ...]
"""One row image, one value a column. Values: int, float, str (text, and DECIMAL, temporal, ENUM, SET and JSON as MySQL
prints them), bytes (binary strings and geometries), None (NULL), ABSENT. ENUM and SET are int if requested."""


@dataclass(slots=True, unsafe_hash=True)
class Origin:
    """Where in the binlog a change is, and who made it. Never altered; not frozen, for speed, because one is made for
    every event."""

    file: str
    transaction: int
    """The offset where its transaction begins."""
    offset: int
    """The offset where its event begins."""
    ordinal: int
    """The number of its rows event within the transaction, counted before any filter. A statement or a mark has the
    number of the rows event before it."""
    server_id: int = 0
    """The id of the server that executed it; 0 if unknown."""
    thread: int = 0
    """The session's connection id there; 0 if unknown."""
    length: int = 0
    """Bytes of its event, with header and checksum; 0 if it has none."""
    time: int = 0
    """When the server began the statement: the event header's seconds since 1970; 0 if it has none."""
    table_id: int = 0
    """The table's number in the binlog, for rows; else 0."""


NO_ORIGIN: Final = Origin("", 0, 0, 0)
"""The origin of a change that is in no binlog."""


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Facts of a snapshot that its rows carry."""

    id: str
    """The beginning of their messages' ids; unique."""
    kind: str
    """Snapshot.kind."""
    marker: str
    """Debezium's word for their position in the snapshot: first, first_in_data_collection, true,
    last_in_data_collection, last or incremental."""


@dataclass(slots=True)
class RowsChange:
    """One rows event: one table, one operation, many rows. `before` is set for UPDATE only, parallel to `rows`; for
    DELETE `rows` has the deleted rows."""

    schema: TableSchema
    operation: Operation
    rows: list[Row]
    before: list[Row] | None
    pos: int
    """`_pos` of the first row; row i has `pos + i`."""
    commit_time_us: int
    gtid: str
    partial: bool = False
    """Whether rows contain ABSENT. An update's row has the before image's value if only that has the column."""
    origin: Origin = NO_ORIGIN
    row_indexes: Sequence[int] | None = None
    """The index of each row in the event, if this is a part of one; None: row i is the event's row i."""
    other: Row | None = None
    """For a DELETE or an INSERT of one row that is half of an update: the other half's row."""
    snapshot: SnapshotRows | None = None
    """Set for rows that a snapshot read from the table; the operation is INSERT then."""
    large: tuple[LargeValue, ...] = ()
    """The large values in its rows, by their numbers."""

    def settle(self, columns: Iterable[int] | None = None) -> None:
        """Makes large values ordinary ones, in some columns or all. Raises ValueError and similar errors for bytes that
        are not valid."""
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
        """Returns the change split into changes of at most `size` rows; order and numbers are kept."""
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
    """Any other: databases, views, routines and, if they are published, grants and DML texts."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a DDL did to one table. `after` is None if the table is gone, or its schema is not known."""

    kind: DdlKind
    schema: str
    table: str
    after: TableSchema | None = None
    renamed_from: tuple[str, str] | None = None


@dataclass(slots=True)
class SchemaChange:
    """One statement of the binlog that is not a row change: DDL, DCL, or the text of DML."""

    kind: DdlKind
    category: str
    """ddl, dcl (accounts and rights) or dml."""
    schema: str
    """The schema that the statement is about: its table's, else the session's."""
    table: str
    """The first table that it names, "" if it names none."""
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
    """The session's default schema; "" if it had none."""

    @property
    def is_ddl(self) -> bool:
        """Returns whether it is about tables, schemas, indexes, views or routines."""
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
    """The storage engine's number of the transaction, at its end; 0 if a statement ended it."""


class Unit(NamedTuple):
    """What a message is about, for ordering: it waits for every earlier message that shares a key or, if either has no
    keys, a table."""

    tables: tuple[str, ...]
    """`schema.table`; `schema.*` for a statement about a database; empty if it is about no table."""
    keys: tuple[str, ...] = ()
    """The rows' keys, equal across tables whose rows must stay in order; empty: it is about its tables as a whole."""


@dataclass(slots=True)
class TableRows:
    """How many rows of one table were published, by the operation in their messages."""

    schema: str
    table: str
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    snapshot: int = 0
    """Rows that a snapshot has read from the table."""
    commit_time_us: int = 0
    """Commit time of the newest, in microseconds since 1970 UTC."""

    @property
    def total(self) -> int:
        """Returns the sum of all."""
        return self.inserted + self.updated + self.deleted + self.snapshot

    def add(self, more: TableRows) -> None:
        """Adds later rows."""
        self.inserted += more.inserted
        self.updated += more.updated
        self.deleted += more.deleted
        self.snapshot += more.snapshot
        self.commit_time_us = max(self.commit_time_us, more.commit_time_us)


@dataclass(slots=True)
class MessageBatch:
    """Messages of one topic partition run, in order, with the position that is valid once all are confirmed.

    `values`, `headers` and, if set, `keys` and `units` are parallel lists. `size` is what the batch counts in the
    bytes-bounded queue. A batch without messages only moves the position."""

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
    """The rows of this batch, and of earlier batches without a position, by table."""
    schema_entries: tuple[dict[str, Any], ...] = ()
    """New versions of tables for the schema history, stored together with `position`."""
    received: float = 0.0
    """When the first of its bytes came in, on the monotonic clock."""
    keys: list[bytes | None] | None = None
    """None if no message of the batch has a key."""
    units: list[Unit] | None = None
    """Set if messages may be parked, so that later ones can wait for them."""
    barrier: bool = False
    """Whether it is published only after all before it is confirmed, and what follows only after it is confirmed
    itself."""
    parked: int = 0
    """The number of the parked message that the batch sends again; 0 for all others."""
    tags: list[str] | None = None
    """The kind of each message, for sinks that have tags."""
    commit_time_us: int = 0
    """Commit time of the last message; 0 if the batch has none."""

    @property
    def value_bytes(self) -> int:
        """Returns the bytes of all values."""
        known = getattr(self.values, "total", None)  # set for a column that native code has filled
        return known if known is not None else sum(map(len, filter(None, self.values)))

    @property
    def sizes(self) -> list[int]:
        """Returns the bytes of each value."""
        known = getattr(self.values, "sizes", None)
        return known if known is not None else [len(value or b"") for value in self.values]

    @property
    def largest(self) -> int:
        """Returns the bytes of the largest value."""
        known = getattr(self.values, "largest", None)
        return known if known is not None else max(map(len, filter(None, self.values)), default=0)
