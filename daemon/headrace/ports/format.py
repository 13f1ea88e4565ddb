"""The base of message formats: changes of rows and schemas, and transaction marks, into keys and values of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from headrace.model import Row, RowsChange, SchemaChange, TableSchema, TransactionMark
from headrace.ports.replay import MessageReader
from headrace.settings.adapters import MessageSettings

Header = tuple[str, bytes]
_Made = TypeVar("_Made")


@dataclass(slots=True)
class Messages:
    """What a format makes of one change: lists that run beside each other, so that a row costs no object here."""

    values: list[bytes | None] = field(default_factory=list)
    """None is a tombstone."""
    keys: list[bytes | None] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """Which row of the change each message is about; never falls."""
    headers: dict[int, Header] = field(default_factory=dict)
    """By the message's index: a header of its own."""
    topic: str = ""
    """Where they go; "" is the route's topic."""

    def add(self, value: bytes | None, key: bytes | None = None, row: int = 0) -> None:
        """One message more."""
        self.values.append(value)
        self.keys.append(key)
        self.rows.append(row)


@dataclass(frozen=True, slots=True)
class NativeTable:
    """How native code prints the rows of a table schema. The tuples begin with a name: see `native/src/specs.rs`."""

    columns: Sequence[tuple[str, tuple[Any, ...]]]
    """Of each: its name as JSON with a colon, and the style of its values."""
    format: tuple[Any, ...]


class Format(ABC):
    """One message format: a ValueFormat or a KeyedFormat. It may keep what it works out a table schema; it keeps
    nothing a row."""

    number: int = 0
    """Of the last message, in a format that numbers them. Native code counts on from it."""
    takes_large: bool = True
    """Whether it prints what stands in for a large value; else it gets such values as ordinary ones."""

    def native(self, schema: TableSchema) -> NativeTable | None:
        """How native code makes the messages about a table's rows; None when it can't."""
        return None

    def native_marks(self) -> tuple[Any, ...] | None:
        """How native code makes the messages about the begin and end of transactions, as arguments of `set_marks` of
        `native/src/output.rs`; None when it can't."""
        return None

    def check(self, schema: TableSchema) -> None:
        """Raises ValueError for a published table that the options do not fit."""
        return

    async def prepare(self, schema: TableSchema) -> None:
        """Awaited before the first row of a table schema, as it is published, reaches the format, so that it can ask a
        schema registry. Rows wait meanwhile, 30 s at most. An error ends the run: it is tried again, and nothing is
        lost. After a restart, and perhaps later, it is called again; the rows' own table schema is equal to this one,
        and need not be the same object."""
        return

    @abstractmethod
    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        """The messages of a statement, by topic; none when the format has no place for it."""

    @abstractmethod
    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        """The messages of a transaction's begin or end."""

    def split(self, value: bytes, room: int) -> list[tuple[int, bytes]]:
        """A finished message as messages of fewer rows, each with the number of its first row, and of `room` bytes at
        most unless it has one row only; none when it can't be cut. Slow: for the few that are too large."""
        return []


class ValueFormat(Format):
    """A format whose messages have values only, of one row or many."""

    @abstractmethod
    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        """All rows of the change in one message."""

    @abstractmethod
    def encode_each(self, change: RowsChange, now_ms: int) -> list[bytes]:
        """One message a row, in order."""


class KeyedFormat(Format):
    """A format with keys, tombstones or several messages a row."""

    @abstractmethod
    def rows(self, change: RowsChange, now_ms: int) -> Messages:
        """The messages of a change of rows."""

    @abstractmethod
    def record_key(self, schema: TableSchema) -> Callable[[Row], bytes] | None:
        """Prints the key of the messages about a row, for a table with a primary key; None where partitions do not go
        by that key."""


class FormatAdapter(ABC):
    """A kind of message: its section of the configuration, and the format that is made of it. Registered under its
    name."""

    section: ClassVar[type[MessageSettings]]

    @abstractmethod
    def format(self, settings: Any, destination: str) -> ValueFormat | KeyedFormat:
        """A new format. `settings` are of `section`."""

    def reader(self, schema: str, table: str, keys: Sequence[str]) -> MessageReader:
        """What understands the messages about a table, whose key are these columns. Raises LookupError for a format
        that is not read back."""
        raise LookupError("messages in this format can't be read back")


_TABLES = 16_000
"""Tables of which anything is kept."""


def per_schema(make: Callable[[TableSchema], _Made]) -> Callable[[TableSchema], _Made]:
    """What `make` works out, once a table schema. It is found by identity, which is quick: an entry holds its schema,
    so the id can't be used again. The last two schemas of a table are kept, that of the stream and that of a snapshot:
    a table that is dropped and created again for ever takes no more."""
    known: dict[int, tuple[TableSchema, _Made]] = {}
    last: dict[tuple[str, str], list[int]] = {}

    def of(schema: TableSchema) -> _Made:
        entry = known.get(id(schema))
        if entry is None:
            if len(last) > _TABLES:
                known.clear()
                last.clear()
            made = make(schema)
            of_table = last.setdefault((schema.schema, schema.table), [])
            if len(of_table) > 1:
                known.pop(of_table.pop(0), None)
            of_table.append(id(schema))
            entry = known[id(schema)] = (schema, made)
        return entry[1]

    return of
