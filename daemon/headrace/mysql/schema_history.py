"""The layouts of tables at every place of the binlog: read once, then carried on by each DDL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.model import DdlKind, TableChange, TableSchema
from headrace.mysql.ddl import classify
from headrace.mysql.query_event import QueryEvent

Place = tuple[str, int]
"""A binlog file and the offset behind an event in it."""


@dataclass(frozen=True, slots=True)
class TableReading:
    """A layout as information_schema showed it. `valid_from` None: it holds at the position that was asked for;
    else from behind the DDL at that place."""

    schema: TableSchema
    charset: str
    """The table's default character set."""
    valid_from: Place | None = None


@dataclass(slots=True)
class Reading:
    """One reading of information_schema and what the binlog says of its validity."""

    tables: dict[tuple[str, str], TableReading] = field(default_factory=dict)
    charsets: dict[str, tuple[str, Place | None]] = field(default_factory=dict)
    """Each schema's default character set, and from where it holds."""
    unknown: dict[tuple[str, str], str] = field(default_factory=dict)
    """Tables that are there but could not be read, each with the reason."""
    absent_from: Place | None = None
    """Behind this place every table of `schemas` that is not in `tables` or `unknown` does not exist."""
    schemas: frozenset[str] = frozenset()
    """Schemas whose tables were all listed."""


@dataclass(slots=True)
class DdlEffect:
    """What a statement of the binlog did, for messages and for the decoder."""

    kind: DdlKind
    category: str
    """ddl, dcl, dml or other."""
    schema: str
    table: str
    """The first table that it names, "" for none."""
    tables: tuple[TableChange, ...] = ()
    atomic_select: bool = False
    """CREATE ... SELECT as MySQL writes it: its rows follow in the same group."""
    temporary: bool = False
    """The statement is about a temporary table."""
    named: tuple[tuple[str, str], ...] | None = ()
    """All tables that it names, also for DML and views; None when that can't be told."""
    problem: str = ""
    """Why the statement was not understood; "" when it was."""


class SchemaHistory:
    """The layouts of one destination's tables, moved forward by apply() as the stream is read.

    `version` grows with every change of a captured table: caches of layouts hang on it. `captures` says of a schema
    and table whether its rows are wanted; other tables are followed too, because a RENAME or LIKE can make a captured
    table of them. `server_version` is @@version.
    """

    def __init__(
        self, captures: Callable[[str, str], bool], *, mariadb: bool, version: str, lower_case_table_names: int
    ) -> None:
        self.version = 0
        self._captures, self._mariadb, self._server_version = captures, mariadb, version
        self._lower = lower_case_table_names

    def restore(self, entries: Iterable[dict[str, Any]], last_pos: int) -> None:
        """Takes the stored entries up to `last_pos`; later ones are of a time behind the position and not used."""

    def adopt(self, reading: Reading) -> None:
        """Takes a reading for the tables that are not known; what holds only from a later place waits for it."""

    def knows(self, schema: str, table: str) -> bool:
        """Whether a table's layout is known here, so that it needs no reading."""
        return self.table(schema, table) is not None

    def table(self, schema: str, table: str) -> TableSchema | None:
        """The layout here; None when it is not known."""
        return None

    def unknown_because(self, schema: str, table: str) -> str:
        """Why table() gives None, as half a sentence."""
        return "its layout was never read"

    def apply(self, query: QueryEvent, *, file: str, end: int, pos: int) -> DdlEffect:
        """Moves the layouts over one statement that ends at `file`:`end`; `pos` is its `_pos`. Never raises for text
        that is not understood: the tables that it may have changed are unknown then."""
        info = classify(query, mariadb=self._mariadb, version=self._server_version)
        first = info.tables[0] if info.tables else (info.schema, "")
        return DdlEffect(info.kind, info.category, *first, problem=info.problem)

    def take_entries(self) -> tuple[dict[str, Any], ...]:
        """What was learned since the last call, for StateChange.schema_entries."""
        return ()


def misfit(schema: TableSchema, types: Sequence[tuple[int, int]], nulls: int) -> str:
    """Why a layout does not fit a TABLE_MAP's (type, metadata) pairs, as column_types.real_type gives them, and NULL
    bits; "" when it fits. Names, signs and character sets of one width can't be seen this way."""
    return ""
