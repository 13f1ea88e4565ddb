"""The base of readers of the present rows of tables, chunk by chunk, alongside the stream of their changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model import Position, Row, TableSchema
from headrace.ports.native_rows import NativeRows, SnapshotChange

Key = tuple[str, ...]
"""The key of a row in the source's form, one text a key column. Only its reader interprets it; others store it."""
Lacks = Callable[[str, str], str]
"""Returns the statement that grants the account the right to read whole rows of a schema and table, "" if it has the
right. Rights on single columns are not enough."""

_NAMED = 5


def in_short(names: Sequence[tuple[str, str]]) -> str:
    """Returns some of the names of tables, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(".".join, names[:_NAMED])) + more


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table of the source, with the source's own estimates of rows and bytes."""

    schema: str
    table: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """The position in the binlog that a stream must reach to have given everything that a chunk may show. Either `file`
    and `offset`, or `gtid_set` if another server than the stream's was read."""

    file: str = ""
    offset: int = 0
    gtid_set: str = ""


@dataclass(frozen=True, slots=True)
class TableList:
    """All base tables that the account may see, without system schemas, by name."""

    tables: Sequence[TableFacts]
    high: Watermark
    """The list may lack the effects of statements after this."""
    clock_us: int
    """The server's clock, in microseconds since 1970 UTC."""


NOWHERE = Position("", "", 0)
"""Used without a stream: any state of a table will do, and nothing is written on the source."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A request for the next rows of a table in the order of its key: TableSchema.keys. A table without a key is read
    as a whole by one statement, whose result is given in consecutive chunks."""

    table: TableSchema
    """As the stream knows it; TableChanged is raised if it can't be read so."""
    seen: Position
    """The read must see every transaction before this, which the stream has given. NOWHERE: no stream."""
    after: Key | None = None
    """The key of the last row that was read; None: from the first row on."""
    again: bool = False
    """For a table without a key: from the first row on, rather than after the previous chunk."""
    rows: int = 1_000
    """Maximum number of rows. With a condition, it also limits the rows examined, if a server takes long to find that
    many; 0 checks whether the source accepts the request."""
    size: int = 8 << 20
    """Size in bytes, as they come from the source, after which the chunk ends; exceeded by one row at most."""
    where: str = ""
    """An operator's condition in SQL that rows must meet."""
    columns: frozenset[str] = frozenset()
    """Names of the columns to read, in lower case; key columns are always read. Others are ABSENT. Empty: all."""


class Chunk(ABC):
    """Rows that were read and not yet decoded. The reader may be asked for further chunks between two of its rows."""

    rows: int
    """Number of rows left."""
    size: int
    """Bytes of the whole chunk as received."""
    last: bool
    """Whether the table had no rows after it."""
    high: Watermark
    """Everything that the rows show was committed before this."""
    continues: bool
    """Whether it belongs to the same read as the previous chunk: for a table without a key."""
    seconds: float
    """How long the source took to return it."""
    end: Key | None
    """Where the next chunk begins: the key of its last row, or of the last one that did not meet the condition; if
    there is none, the key that the request began after."""
    order: str
    """What the order of the keys depends on, such as the collations of their columns."""

    @abstractmethod
    def take(self, count: int) -> list[Row]:
        """Decodes the next `count` rows, or those that are left, to the same values as the stream's, large ones as
        LargeValue. Raises NotUnderstood."""

    def put(
        self, native: NativeRows, rows: int, change: SnapshotChange, left_out: Callable[[Any], bool] | None = None
    ) -> tuple[int, int]:
        """Makes messages of the next `rows` rows, or of fewer, in native code. `left_out` returns whether the row with
        a key is left out: the value of its column, or a tuple of several; None: no row is. Returns of how many rows,
        these included, and how many changes; (0, 0) if take() must return the next row."""
        return 0, 0

    @property
    @abstractmethod
    def key(self) -> Key | None:
        """Returns the key of the last row taken, or the key that the request began after; `end` if no row is left. None
        for a table without a key."""

    @abstractmethod
    def key_at(self, number: int) -> Key | None:
        """Returns the key of a row by its index in the last result of take(). None for a table without a key."""


class TableChanged(Exception):
    """A statement has changed or dropped the table since the stream's version of it. The stream will reach that
    statement."""


class KeyOutdated(Exception):
    """The key that a request begins after does not match the table: its key now has other columns or types."""


class TableReader(ABC):
    """Reads chunks, one at a time, over its own connections, which are opened when needed. After an error it may be
    used again. It takes no lock, and no transaction is older than a chunk, except for a table without a key."""

    @abstractmethod
    async def tables(self) -> TableList:
        """Returns the tables of the stream's server, whichever server is read. Raises SourceError."""

    @abstractmethod
    async def why_unlisted(self, schema: str, table: str) -> tuple[str, str]:
        """Returns why tables() lacks a table (a view, one that the account may not read, or none at all) and a remedy.
        Raises SourceError."""

    @abstractmethod
    async def lacks(self) -> Lacks:
        """Returns a function that says what the account may not read on the server that is read. Raises SourceError."""

    @abstractmethod
    async def read(self, request: ChunkRequest) -> Chunk:
        """Reads one chunk into memory. Raises TableChanged, KeyOutdated, SourceError, and NotUnderstood if a value does
        not fit its column. If cancelled, it may be called again."""

    @abstractmethod
    async def require(self) -> None:
        """Checks that the server can be read alongside a stream. Raises SourceMisconfigured if it can't, and other
        SourceErrors. Reads no rows and writes nothing."""

    @abstractmethod
    async def load(self) -> tuple[float, int]:
        """Returns the load for a throttle: the replication lag in seconds of the server that is read (0 if it is no
        replica), and its running threads. Raises SourceError."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the connections. Safe to call twice."""
