"""The events of a binlog (MySQL's Log_event_type, MariaDB's from 160 on), and what each reader does with each.

A new kind of event is one row of TABLE, and a handler in each reader that does something new with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from headrace.model import Operation

Handler = Callable[[bytes, int, int], None]
"""(bytes, start of the event's body, its end without the checksum)"""


class Does(Enum):
    """What a reader does with an event: the name of one of its handlers."""

    REFUSE = auto()
    """Stops with NotUnderstood, as for a number that TABLE lacks; has no handler."""
    PASS = auto()
    """Skips the event: nothing in it matters to the reader."""
    COMPRESSED = auto()
    """It may have many rows in few bytes."""
    ENTER = auto()
    """Reads the events that the event contains."""
    GTID = auto()
    TAGGED_GTID = auto()
    MARIADB_GTID = auto()
    PREVIOUS_GTIDS = auto()
    QUERY = auto()
    COMPRESSED_QUERY = auto()
    TEXT = auto()
    """The text of the statement that made the following rows."""
    ANNOTATION = auto()
    """The same, by MariaDB."""
    TABLE = auto()
    ROWS = auto()
    COMMIT = auto()
    XA_PREPARE = auto()
    OUTSIDE = auto()
    """It is never within a transaction."""
    HEARTBEAT = auto()
    """The server reports its position."""
    ROTATE = auto()
    FORMAT = auto()


@dataclass(frozen=True, slots=True)
class RowsKind:
    """The form of a rows event. `number` is that of the plain event."""

    number: int
    operation: Operation
    extra: bool = True
    """Version 2: extra data before the columns."""
    diffs: bool = False
    """JSON documents may be differences."""
    compressed: bool = False
    """MariaDB's: what follows the bitmaps is compressed (log_bin_compress)."""


@dataclass(frozen=True, slots=True)
class EventType:
    """One kind of event. `stream` is what the decoder of a destination does with it, `scan` what the search for
    positions does, `ddl` what the search for DDL does."""

    number: int
    name: str
    stream: Does
    scan: Does
    ddl: Does = Does.PASS
    made_up: bool = False
    """Whether a source also makes it for the dump, without a position in the file."""
    rows: RowsKind | None = None
    ignorable: bool = False
    """Whether it is skipped if the source marks it as ignorable."""
    remedy: str = ""
    """The remedy for an event that is refused."""


ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, TABLE_MAP, TRANSACTION_PAYLOAD = 4, 15, 27, 19, 40
QUERY, ROWS_QUERY, ANNOTATE_ROWS, XID, XA_PREPARE = 2, 29, 160, 16, 38
GTID, ANONYMOUS_GTID, GTID_TAGGED, MARIADB_GTID = 33, 34, 42, 162
STOP, PREVIOUS_GTIDS, BINLOG_CHECKPOINT, GTID_LIST = 3, 35, 161, 163
_I, _U, _D = Operation.INSERT, Operation.UPDATE, Operation.DELETE


def _rows(number: int, name: str, operation: Operation, plain: int = 0, **how: bool) -> EventType:
    scan = Does.COMPRESSED if how.get("compressed") else Does.PASS
    return EventType(number, name, Does.ROWS, scan, rows=RowsKind(plain or number, operation, **how))


TABLE = (
    EventType(QUERY, "QUERY", Does.QUERY, Does.QUERY, Does.QUERY),
    EventType(STOP, "STOP", Does.PASS, Does.OUTSIDE),
    EventType(ROTATE, "ROTATE", Does.ROTATE, Does.ROTATE, made_up=True),
    EventType(5, "INTVAR", Does.PASS, Does.PASS),  # variables of statements; the statement itself is read
    EventType(13, "RAND", Does.PASS, Does.PASS),
    EventType(14, "USER_VAR", Does.PASS, Does.PASS),
    EventType(FORMAT_DESCRIPTION, "FORMAT_DESCRIPTION", Does.FORMAT, Does.FORMAT, made_up=True),
    EventType(XID, "XID", Does.COMMIT, Does.COMMIT),
    EventType(TABLE_MAP, "TABLE_MAP", Does.TABLE, Does.PASS),
    _rows(23, "WRITE_ROWS_V1", _I, extra=False),
    _rows(24, "UPDATE_ROWS_V1", _U, extra=False),
    _rows(25, "DELETE_ROWS_V1", _D, extra=False),
    EventType(
        26,
        "INCIDENT",
        Does.REFUSE,
        Does.PASS,
        remedy="the source says that events are missing: compare the tables, then name the position in [source] "
        "skip_event",
    ),
    EventType(HEARTBEAT, "HEARTBEAT", Does.PASS, Does.HEARTBEAT, Does.HEARTBEAT, made_up=True),
    EventType(28, "IGNORABLE", Does.PASS, Does.PASS),
    EventType(ROWS_QUERY, "ROWS_QUERY", Does.TEXT, Does.PASS),
    _rows(30, "WRITE_ROWS", _I),
    _rows(31, "UPDATE_ROWS", _U),
    _rows(32, "DELETE_ROWS", _D),
    EventType(GTID, "GTID", Does.GTID, Does.GTID),
    EventType(ANONYMOUS_GTID, "ANONYMOUS_GTID", Does.GTID, Does.GTID),
    EventType(PREVIOUS_GTIDS, "PREVIOUS_GTIDS", Does.PREVIOUS_GTIDS, Does.PREVIOUS_GTIDS),
    EventType(36, "TRANSACTION_CONTEXT", Does.PASS, Does.PASS),  # group replication's bookkeeping
    EventType(37, "VIEW_CHANGE", Does.PASS, Does.PASS),
    EventType(XA_PREPARE, "XA_PREPARE", Does.XA_PREPARE, Does.PASS),
    _rows(39, "PARTIAL_UPDATE_ROWS", _U, diffs=True),
    EventType(TRANSACTION_PAYLOAD, "TRANSACTION_PAYLOAD", Does.ENTER, Does.COMPRESSED),
    EventType(41, "HEARTBEAT_V2", Does.PASS, Does.HEARTBEAT, made_up=True),
    EventType(GTID_TAGGED, "GTID_TAGGED", Does.TAGGED_GTID, Does.TAGGED_GTID),
    EventType(ANNOTATE_ROWS, "ANNOTATE_ROWS", Does.ANNOTATION, Does.PASS),
    EventType(BINLOG_CHECKPOINT, "BINLOG_CHECKPOINT", Does.PASS, Does.OUTSIDE),
    EventType(MARIADB_GTID, "MariaDB GTID", Does.MARIADB_GTID, Does.MARIADB_GTID),
    EventType(GTID_LIST, "GTID_LIST", Does.PASS, Does.OUTSIDE, made_up=True),
    EventType(
        164,
        "MariaDB START_ENCRYPTION",
        Does.REFUSE,
        Does.OUTSIDE,
        ignorable=True,
        remedy="the binlog is encrypted: read it from the server rather than from the file",
    ),
    EventType(165, "QUERY_COMPRESSED", Does.COMPRESSED_QUERY, Does.PASS, Does.COMPRESSED_QUERY),
    _rows(166, "WRITE_ROWS_COMPRESSED_V1", _I, 23, extra=False, compressed=True),
    _rows(167, "UPDATE_ROWS_COMPRESSED_V1", _U, 24, extra=False, compressed=True),
    _rows(168, "DELETE_ROWS_COMPRESSED_V1", _D, 25, extra=False, compressed=True),
    _rows(169, "WRITE_ROWS_COMPRESSED", _I, 30, compressed=True),
    _rows(170, "UPDATE_ROWS_COMPRESSED", _U, 31, compressed=True),
    _rows(171, "DELETE_ROWS_COMPRESSED", _D, 32, compressed=True),
    EventType(
        172,
        "MariaDB PARTIAL_ROW_DATA",
        Does.REFUSE,
        Does.PASS,
        remedy="it is a part of a rows event: have the source write those whole (binlog_row_event_fragment_threshold)",
    ),
)

BY_NUMBER = {one.number: one for one in TABLE}
MADE_UP = frozenset(one.number for one in TABLE if one.made_up)
GTIDS = frozenset(one.number for one in TABLE if one.stream in (Does.GTID, Does.TAGGED_GTID, Does.MARIADB_GTID))
"""Events that begin a group."""
STATEMENTS = frozenset(one.number for one in TABLE if one.stream in (Does.QUERY, Does.COMPRESSED_QUERY))
ROWS = frozenset(one.number for one in TABLE if one.stream is Does.ROWS)
ENDS = frozenset({XID, XA_PREPARE, TRANSACTION_PAYLOAD})
"""Events that end a group."""
HEARTBEATS = frozenset(one.number for one in TABLE if one.scan is Does.HEARTBEAT)

IGNORABLE_FLAG = 0x80
"""The server's promise that a reader that does not know the event may ignore it. It is made for replicas, which may get
the same rows in another way: for an unknown event it says nothing about rows."""
ARTIFICIAL_FLAG = 0x20
"""The event was made for the dump and is in no file."""


def handlers(
    column: Callable[[EventType], Does],
    by: Mapping[Does, Handler],
    rows: Callable[[RowsKind], Handler] | None = None,
) -> dict[int, Handler]:
    """Returns the handlers of one reader by the numbers of events: `column` is its column of TABLE, `by` its handler
    for each entry there, `rows` makes those of rows events. Raises KeyError if one is missing."""
    made: dict[int, Handler] = {}
    for one in TABLE:
        does = column(one)
        if does is Does.ROWS and rows is not None and one.rows is not None:
            made[one.number] = rows(one.rows)
        elif does is not Does.REFUSE:
            made[one.number] = by[does]
    return made
