"""The bases of what commands ask of a source, beside the streams of its changes. Nothing is changed there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.model import Position, RowsChange, SchemaChange, TableSchema
from headrace.ports.finding import Finding
from headrace.ports.source import Source, Told
from headrace.ports.state import Stored
from headrace.ports.tables import Key, TableReader
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, SourceSettings

_MOST_TOLD = 200
"""Differences of two readers that are listed."""
Captures = Callable[[str, str], bool]
"""Says of a schema and table whether its rows are wanted."""
Schemas = Mapping[tuple[str, str], TableSchema]
"""By schema and table."""


def short(text: str, limit: int = 200) -> str:
    """A GTID set for a table, where one of thousands of intervals would hide everything else."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters, --json has all)"


class Output:
    """Takes the changes that are read. What is left to this base does nothing."""

    done = False
    """Whether nothing more is wanted."""

    def emit(self, change: RowsChange) -> None:
        """Changes of rows."""

    def emit_schema(self, change: SchemaChange) -> None:
        """A statement."""

    def full(self) -> bool:
        """Whether write() should be called before more comes."""
        return False

    def write(self, transactions: int, events: int) -> None:
        """Called from time to time, and also before an error is raised; the counts are of all that was read."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the source writes down which rows are meant, in SQL."""

    among: Callable[[TableSchema, Sequence[Key]], str]
    """Those with these keys."""
    between: Callable[[TableSchema, Key, Key], str]
    """Those from one key to another, both included."""


@dataclass(frozen=True, slots=True)
class StoredTables:
    """What stored entries of the schema history say of tables."""

    tables: Schemas
    unknown_because: Callable[[str, str], str]
    """Why nothing is known of a schema and table, as a clause; "" when it was never met."""


@dataclass(frozen=True, slots=True)
class PositionReport:
    """Whether the source can serve a position. `facts` are JSON types only, each key always there; `rows` are names and
    values for people. `state` is `ok`, `unknown`, or the state that the destination would take, `text` a sentence about
    it."""

    state: str
    text: str
    facts: dict[str, Any]
    rows: Sequence[tuple[str, str]]


@dataclass(slots=True)
class Opinion:
    """What a comparison of two readers has found. `told` are the differences that are not known, a line each, and at
    most 200."""

    events: int = 0
    values: int = 0
    differences: int = 0
    told: list[str] = field(default_factory=list)
    known: Counter[str] = field(default_factory=Counter)
    """Values that differ by a known error of the other reader, by that error."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Events that were not compared, by why."""

    def differs(self, what: str) -> None:
        """Notes a difference that is not known."""
        self.differences += 1
        if len(self.told) < _MOST_TOLD:
            self.told.append(what)


class Inspection(ABC):
    """The source of one destination, as commands look at it."""

    addresses: Sequence[str]
    """`host:port` of each of its servers, in the order in which they are tried."""

    @abstractmethod
    async def check(
        self, number: int, stored: Stored | None, entries: Sequence[dict[str, Any]], *, reads_rows: bool
    ) -> list[Finding]:
        """Looks at one of its addresses by its number; the first finding is about the connection. `reads_rows`: a start
        now would read the rows that tables have. Never raises for what it finds."""

    @abstractmethod
    async def tables(self, wanted: Captures) -> Schemas:
        """The tables as they are now, without those that the account may not read whole. Raises SourceError."""

    @abstractmethod
    async def unreadable(self, wanted: Captures, entries: Sequence[dict[str, Any]]) -> Mapping[tuple[str, str], str]:
        """Tables that the account may not read whole rows of, each with the statement that grants the right. Raises
        SourceError or StateStoreError."""

    @abstractmethod
    async def reader(self, *, of_snapshots: bool = False) -> TableReader:
        """A reader beside no stream: its requests are for NOWHERE. It reads the source itself, or with `of_snapshots`
        what snapshots read. Raises SourceError."""

    @abstractmethod
    async def now_ms(self) -> int:
        """The source's clock, in milliseconds since 1970. Raises SourceError."""

    @abstractmethod
    async def position(self, position: Position | None) -> PositionReport:
        """Whether the source can serve a stored position; never raises for what goes wrong there."""

    @abstractmethod
    async def second_opinion(self, count: int, plain: DestinationSettings, folder: Path) -> Opinion:
        """Reads the newest `count` rows events of captured tables with two readers. `plain` are settings that change no
        value; `folder` takes files. Raises SourceError and NotUnderstood."""

    @abstractmethod
    def unknown_to_native_code(self, schema: TableSchema) -> Sequence[str]:
        """Columns that native code does not decode."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which transactions are wanted, by where they begin, or when they were committed in microseconds since 1970.
    `files` is the order of files; when it is empty they are ordered by their numbers."""

    files: Sequence[str] = ()
    first: tuple[str, int] | int | None = None
    last: tuple[str, int] | int | None = None


class SourceAdapter(ABC):
    """A kind of source. `captures` are those of a destination."""

    conditions: Conditions

    @abstractmethod
    def source(
        self, settings: DestinationSettings, daemon: DaemonSettings, captures: Captures, ahead: Callable[[], int]
    ) -> Source:
        """A destination's source, which nothing was asked of yet. `ahead` says when a stream begins how many bytes it
        may receive ahead of its decoder."""

    @abstractmethod
    def inspection(self, settings: DestinationSettings, daemon: DaemonSettings, captures: Captures) -> Inspection:
        """What commands ask a destination's source."""

    @abstractmethod
    def check_place(self, text: str) -> None:
        """Raises ValueError, with a clause for people, for what no position can be moved to; see
        Source.move_by_hand()."""

    @abstractmethod
    async def schemas(self, source: SourceSettings) -> dict[str, int]:
        """The schemas that the account sees, with the number of their tables. Raises SourceError."""

    @abstractmethod
    def stored_tables(self, entries: Sequence[dict[str, Any]], last_pos: int) -> StoredTables:
        """What the stored entries say of tables, as of `last_pos`."""

    @abstractmethod
    def read_files(
        self,
        paths: Sequence[Path],
        settings: DestinationSettings,
        captures: Captures,
        spool: Path,
        window: Window,
        output: Output,
        told: Callable[[int], object] = lambda _: None,
        *,
        script: Path | None = None,
        positional: bool = False,
    ) -> None:
        """Reads recorded files in order, as one stream; `told` hears how many bytes of them are done. The SQL file
        `script` says what tables are before them; with `positional` tables of which nothing is known have columns by
        position. Raises OSError, NotUnderstood with the position, and Refusal for a script that is not understood."""

    @abstractmethod
    async def read_server(
        self,
        settings: DestinationSettings,
        captures: Captures,
        spool: Path,
        window: Window,
        output: Output,
        *,
        follow: bool,
        told: Callable[[int, int | None], object] = lambda *_: None,
        searching: Told = lambda *_: None,
    ) -> None:
        """Reads a server's changes from [source] start up to the end that it has now, or with `follow` without end.
        `told` hears how many bytes are done, and of how many as far as that is known, and `searching` how far the
        search is for where a time is. Raises SourceError and NotUnderstood."""
