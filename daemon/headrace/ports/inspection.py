"""The bases of what commands ask of a source, apart from its change stream. Nothing is changed on the source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.model import Position, RowsChange, SchemaChange, TableSchema
from headrace.ports.archive import ArchiveCommands
from headrace.ports.finding import Finding
from headrace.ports.source import ProgressCallback, Source
from headrace.ports.state import Stored
from headrace.ports.tables import Key, TableReader
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings
from headrace.settings.destination import DestinationSettings, SourceSettings

_MOST_SHOWN = 200
"""How many differences of two readers are listed."""
Captures = Callable[[str, str], bool]
"""Returns whether the rows of a schema and table are captured."""
Schemas = Mapping[tuple[str, str], TableSchema]
"""Table schemas by schema and table."""


def short(text: str, limit: int = 200) -> str:
    """Returns a GTID set short enough for a table: one with thousands of intervals would hide all else."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} characters, --json has all)"


class Output:
    """Takes the changes that are read. Methods that are not overridden do nothing."""

    done = False
    """Whether no more changes are wanted."""
    exact = False
    """Whether a part of a transaction at the end is an error."""

    def begin(self, server: str) -> None:
        """Takes the identity of the server whose archived log follows; called once, before anything else."""

    def emit(self, change: RowsChange) -> None:
        """Takes changes of rows."""

    def emit_schema(self, change: SchemaChange) -> None:
        """Takes a statement."""

    def full(self) -> bool:
        """Returns whether write() should be called before the next change."""
        return False

    def write(self, transactions: int, events: int) -> None:
        """Writes what was taken. Called from time to time, and before an error is raised; the counts are of all that
        was read."""

    async def settle(self) -> None:
        """Publishes what was taken, for an output that does so; awaited between two parts of an archive."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the source writes a selection of rows in SQL."""

    among: Callable[[TableSchema, Sequence[Key]], str]
    """The rows with these keys."""
    between: Callable[[TableSchema, Key, Key], str]
    """The rows from one key to another, both included."""


@dataclass(frozen=True, slots=True)
class Undo:
    """How changes of rows are undone in the source's SQL."""

    statements: Callable[[RowsChange], Iterator[str]]
    """Those that undo a change, in order, without their semicolons. Raises NotUnderstood for a change that can't be
    undone."""
    session: Sequence[str]
    """Those that come first."""
    message: Mapping[str, Any]
    """The [message] with which rows have the form that `statements` needs."""


@dataclass(frozen=True, slots=True)
class StoredTables:
    """What stored entries of the schema history say about tables."""

    tables: Schemas
    unknown_because: Callable[[str, str], str]
    """Returns why nothing is known of a schema and table, as a clause; "" if it was never met."""


@dataclass(frozen=True, slots=True)
class PositionReport:
    """Whether the source can serve a position. `state` is `ok`, `unknown`, or the state that the destination would
    take; `text` is a sentence about it. `facts` has JSON types only, and every key is always present; `rows` are names
    and values for people."""

    state: str
    text: str
    facts: dict[str, Any]
    rows: Sequence[tuple[str, str]]


@dataclass(slots=True)
class Opinion:
    """The result of a comparison of two readers. The listed differences are those without a known cause, one line each,
    at most 200."""

    events: int = 0
    values: int = 0
    differences: int = 0
    shown: list[str] = field(default_factory=list)
    known: Counter[str] = field(default_factory=Counter)
    """Number of values that differ because of a known error of the other reader, by that error."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of events that were not compared, by reason."""

    def differs(self, what: str) -> None:
        """Records a difference without a known cause."""
        self.differences += 1
        if len(self.shown) < _MOST_SHOWN:
            self.shown.append(what)


class Inspection(ABC):
    """The source of one destination, for commands."""

    addresses: Sequence[str]
    """`host:port` of each of its servers, in the order in which they are tried."""

    @abstractmethod
    async def check(
        self, number: int, stored: Stored | None, entries: Sequence[dict[str, Any]], *, reads_rows: bool
    ) -> list[Finding]:
        """Checks one of the addresses, given by its number; the first finding is about the connection. `reads_rows`: a
        start now would read the existing rows of tables. A problem is a finding and never raises."""

    @abstractmethod
    async def tables(self, wanted: Captures) -> Schemas:
        """Returns the current tables, without those that the account may not read in full. Raises SourceError."""

    @abstractmethod
    async def unreadable(self, wanted: Captures, entries: Sequence[dict[str, Any]]) -> Mapping[tuple[str, str], str]:
        """Returns the tables that the account may not read in full, each with the statement that grants the right.
        Raises SourceError or StateStoreError."""

    @abstractmethod
    async def reader(self, *, of_snapshots: bool = False) -> TableReader:
        """Returns a reader that belongs to no stream: its requests are for NOWHERE. It reads the source itself, or with
        `of_snapshots` the server that snapshots read. Raises SourceError."""

    @abstractmethod
    async def now_ms(self) -> int:
        """Returns the source's clock, in milliseconds since 1970. Raises SourceError."""

    @abstractmethod
    async def position(self, position: Position | None) -> PositionReport:
        """Returns whether the source can serve a stored position. Never raises for errors of the source."""

    @abstractmethod
    async def second_opinion(self, count: int, plain: DestinationSettings, folder: Path) -> Opinion:
        """Reads the newest `count` rows events of captured tables with two readers and compares them. `plain` are
        settings that change no value; `folder` takes files. Raises SourceError and NotUnderstood."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which transactions are wanted: from `first` to `last`, each the position where a transaction begins, or its
    commit time in microseconds since 1970. `files` is the order of files; if empty, files are ordered by their
    numbers."""

    files: Sequence[str] = ()
    first: tuple[str, int] | int | None = None
    last: tuple[str, int] | int | None = None


class SourceAdapter(ABC):
    """A kind of source. `captures` are those of a destination."""

    conditions: Conditions
    undo: Undo

    @abstractmethod
    def source(
        self,
        settings: DestinationSettings,
        daemon: DaemonSettings,
        captures: Captures,
        ahead: Callable[[], int],
        shared: dict[str, Any],
    ) -> Source:
        """Returns a destination's source, without connecting. `ahead` is called when a stream begins, and returns how
        many bytes it may receive ahead of its decoder. `shared` is one dictionary for all sources of a daemon: what
        they share is kept there."""

    @abstractmethod
    def inspection(self, settings: DestinationSettings, daemon: DaemonSettings, captures: Captures) -> Inspection:
        """Returns what commands ask of a destination's source."""

    @abstractmethod
    def archive(self, settings: ArchiveSettings, node: str) -> ArchiveCommands:
        """Returns what commands do with an archive. `node` names who writes."""

    @abstractmethod
    def check_place(self, text: str) -> None:
        """Raises ValueError, with a clause for people, for a text that no position can be moved to; see
        Source.move_by_hand()."""

    @abstractmethod
    async def schemas(self, source: SourceSettings) -> dict[str, int]:
        """Returns the schemas that the account can see, with the number of their tables. Raises SourceError."""

    @abstractmethod
    def stored_tables(self, entries: Sequence[dict[str, Any]], last_pos: int) -> StoredTables:
        """Returns what the stored entries say about tables, as of `last_pos`."""

    @abstractmethod
    def read_files(
        self,
        paths: Sequence[Path],
        settings: DestinationSettings,
        captures: Captures,
        spool: Path,
        window: Window,
        output: Output,
        on_progress: Callable[[int], object] = lambda _: None,
        *,
        script: Path | None = None,
        positional: bool = False,
    ) -> None:
        """Reads recorded files in order, as one stream; the progress callback receives the number of bytes done. The
        SQL file `script` defines the tables as they were before the files; with `positional`, the columns of unknown
        tables are named by position. Raises OSError, NotUnderstood with the position, and Refusal for a script that is
        not understood."""

    @abstractmethod
    async def read_archive(
        self,
        settings: DestinationSettings,
        archived: ArchiveSettings,
        entries: Sequence[dict[str, Any]],
        captures: Captures,
        spool: Path,
        window: Window,
        output: Output,
        on_progress: Callable[[int, int | None], object] = lambda *_: None,
    ) -> str:
        """Reads an archive up to its present end, or to a gap; returns a sentence about what is wanted after the gap,
        "" if nothing is.

        `entries` are those of a destination's schema history: tables are as they were where reading begins. The
        progress callback receives the bytes done and the total. Raises ArchiveError, NotUnderstood, StateStoreError,
        and Refusal for a place that is not archived."""

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
        on_progress: Callable[[int, int | None], object] = lambda *_: None,
        searching: ProgressCallback = lambda *_: None,
    ) -> None:
        """Reads a server's changes from [source] start up to its present end, or with `follow` without end. The
        progress callback receives the bytes done and, if known, the total; `searching` receives the progress of the
        search for a start time. Raises SourceError and NotUnderstood."""
