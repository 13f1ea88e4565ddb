"""The base of what reads the rows that tables have now, chunk by chunk, beside the stream of their changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.model import Position, Row, TableSchema

Key = tuple[str, ...]
"""The key of a row as a source writes it down, a text a key column: made and understood by its reader alone, stored by
others."""
Lacks = Callable[[str, str], str]
"""Says of a schema and table whether the account may not read whole rows of it: the statement that grants the right, ""
where the account has it. Rights on single columns are not enough."""

_NAMED = 5


def in_short(names: Sequence[tuple[str, str]]) -> str:
    """Some names of tables, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(".".join, names[:_NAMED])) + more


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table that a source has, with its own estimates of rows and bytes."""

    schema: str
    table: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """Up to where in the binlog a stream has to have come, so that it has given all that a chunk may show. Either
    `file` and `offset`, or `gtid_set` where another server than the stream's was read."""

    file: str = ""
    offset: int = 0
    gtid_set: str = ""


@dataclass(frozen=True, slots=True)
class TableList:
    """All base tables that the account may see, system schemas left out, by name."""

    tables: Sequence[TableFacts]
    high: Watermark
    """What statements did to tables behind it, the list may lack."""
    clock_us: int
    """Microseconds since 1970 UTC, as the server has them."""


NOWHERE = Position("", "", 0)
"""Stands for no stream: any state of a table will do, and nothing is written on the source."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """The next rows of a table in the order of its key: those of TableSchema.keys. A table without a key is read as a
    whole, in one statement, and its chunks follow each other out of that."""

    table: TableSchema
    """As the stream knows it; what it can't be read as raises TableChanged."""
    seen: Position
    """Every transaction before it, which the stream has given, is to be seen by the read. NOWHERE: beside no stream."""
    after: Key | None = None
    """The key of the last row that was read; None: from the first row on."""
    again: bool = False
    """Of a table without a key: from the first row on, rather than behind the chunk before."""
    rows: int = 1_000
    """Rows at most, with a condition also of those that are looked at, where a server takes long to find so many; 0 to
    find out whether the source takes the request."""
    size: int = 8 << 20
    """Bytes, as they come from the source, behind which the chunk ends; by one row more at most."""
    where: str = ""
    """A condition in SQL that rows have to meet, as an operator gave it."""
    columns: frozenset[str] = frozenset()
    """Names of the columns to read, in lower case; those of the key always are. Others are ABSENT. Empty: all."""


class Chunk(ABC):
    """Rows that were read and not yet decoded. Between two of its rows the reader may be asked for further chunks."""

    rows: int
    """Left in it."""
    size: int
    """Bytes of all of it as it came."""
    last: bool
    """Whether the table had no rows behind it."""
    high: Watermark
    """What the rows show was committed before it."""
    continues: bool
    """Whether it belongs to the same read as the chunk before it: a table without a key."""
    seconds: float
    """How long the source took to give it."""
    end: Key | None
    """Where the next chunk begins: the key of its last row, or of the last one that did not meet the condition; that
    which the request began after, when there is none."""
    order: str
    """What the order of the keys hangs on, such as the collations of their columns."""

    @abstractmethod
    def take(self, count: int) -> list[Row]:
        """Decodes the next `count` rows, or those that are left, with values as the stream's, large ones as LargeValue.
        Raises NotUnderstood."""

    @property
    @abstractmethod
    def key(self) -> Key | None:
        """Of the last row taken, or that the request began after; `end` when no row is left. None for a table without a
        key."""

    @abstractmethod
    def key_at(self, number: int) -> Key | None:
        """Of a row by its number among those that take() gave last. None for a table without a key."""


class TableChanged(Exception):
    """The table is not any more as the stream knows it: a statement has changed or dropped it. The stream will come to
    that."""


class KeyOutdated(Exception):
    """The key that a request begins after is none of the table's: its key has other columns or types now."""


class TableReader(ABC):
    """Reads chunks, one at a time, over connections of its own that are made when they are needed. After an error it
    may be used again. No lock is taken, and no transaction is older than a chunk, except of a table without a key."""

    @abstractmethod
    async def tables(self) -> TableList:
        """The tables of the stream's server, whichever is read. Raises SourceError."""

    @abstractmethod
    async def why_unlisted(self, schema: str, table: str) -> tuple[str, str]:
        """Why tables() lacks a table: a view, one that the account may not read, or none at all; and a remedy. Raises
        SourceError."""

    @abstractmethod
    async def lacks(self) -> Lacks:
        """Asks what the account may not read on the server that is read. Raises SourceError."""

    @abstractmethod
    async def read(self, request: ChunkRequest) -> Chunk:
        """Reads one chunk whole into memory. Raises TableChanged, KeyOutdated, SourceError, and NotUnderstood when a
        value can't be what the column says. Cancelled, it may be called again."""

    @abstractmethod
    async def require(self) -> None:
        """Nothing is read or written. Raises SourceMisconfigured where the server can't be read beside a stream, and
        other SourceErrors."""

    @abstractmethod
    async def load(self) -> tuple[float, int]:
        """What a throttle goes by: the replication lag of the server that is read in seconds (0 for no replica), and
        its running threads. Raises SourceError."""

    @abstractmethod
    async def close(self) -> None:
        """Gives the connections back. Safe to call twice."""
