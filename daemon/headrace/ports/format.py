"""The base of message formats: they turn row changes, schema changes and transaction marks into keys and values."""

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
    """The messages that a format makes of one change. The lists are parallel, so that a row needs no object here."""

    values: list[bytes | None] = field(default_factory=list)
    """None is a tombstone."""
    keys: list[bytes | None] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """The row of the change that each message is about; never decreases."""
    headers: dict[int, Header] = field(default_factory=dict)
    """A header of a message of its own, by the message's index."""
    topic: str = ""
    """Their topic; "" is the route's topic."""

    def add(self, value: bytes | None, key: bytes | None = None, row: int = 0) -> None:
        """Adds one message."""
        self.values.append(value)
        self.keys.append(key)
        self.rows.append(row)


@dataclass(frozen=True, slots=True)
class NativeTable:
    """How native code prints the rows of a table schema. The tuples begin with a name: see `native/src/specs.rs`."""

    columns: Sequence[tuple[str, tuple[Any, ...]]]
    """For each column: its name as JSON with a colon, and the style of its values."""
    format: tuple[Any, ...]


class Format(ABC):
    """One message format: a ValueFormat or a KeyedFormat. It may keep state for each table schema, and none for a
    row."""

    number: int = 0
    """The number of the last message, in a format that numbers them. Native code continues from it."""
    only_python: str = ""
    """Why native code makes none of its messages, as a clause; "" if it may."""
    takes_large: bool = True
    """Whether it prints placeholders of large values; otherwise it gets such values as ordinary ones."""

    def native(self, schema: TableSchema) -> NativeTable | None:
        """Returns how native code makes the messages about a table's rows; None if it can't."""
        return None

    def native_marks(self) -> tuple[Any, ...] | None:
        """Returns how native code makes the messages about the begin and end of transactions: a name and its arguments,
        see `native/src/specs.rs`; None if it can't."""
        return None

    def check(self, schema: TableSchema) -> None:
        """Raises ValueError for a published table that the options do not fit."""
        return

    async def prepare(self, schema: TableSchema) -> None:
        """Prepares for a table schema, for example by asking a schema registry. Awaited before the first row of the
        schema, as it is published, reaches the format; rows wait for it, at most 30 s. An error ends the run, which is
        retried; nothing is lost. It is called again after a restart and may be called again at other times. The rows'
        own table schema is equal to this one, but need not be the same object."""
        return

    @abstractmethod
    def schema_change(self, change: SchemaChange, now_ms: int) -> list[Messages]:
        """Returns the messages of a statement, by topic; none if the format does not publish it."""

    @abstractmethod
    def mark(self, mark: TransactionMark, now_ms: int) -> list[Messages]:
        """Returns the messages of a transaction's begin or end."""

    def split(self, value: bytes, room: int) -> list[tuple[int, bytes]]:
        """Splits a finished message into messages of fewer rows. Returns each with the number of its first row; each
        has at most `room` bytes unless it has only one row. Returns none if the message can't be split. Slow: meant for
        the few messages that are too large."""
        return []


class ValueFormat(Format):
    """A format whose messages have values only, of one or more rows."""

    @abstractmethod
    def encode(self, change: RowsChange, now_ms: int) -> bytes:
        """Returns all rows of the change in one message."""

    @abstractmethod
    def encode_each(self, change: RowsChange, now_ms: int) -> list[bytes]:
        """Returns one message a row, in order."""


class KeyedFormat(Format):
    """A format with keys, tombstones or several messages a row."""

    @abstractmethod
    def rows(self, change: RowsChange, now_ms: int) -> Messages:
        """Returns the messages of a change of rows."""

    @abstractmethod
    def record_key(self, schema: TableSchema) -> Callable[[Row], bytes] | None:
        """Returns a function that prints the key of the messages about a row, for a table with a primary key; None if
        partitions are not chosen by that key."""


class FormatAdapter(ABC):
    """A kind of message: its section of the configuration and its format. Registered under its name."""

    section: ClassVar[type[MessageSettings]]

    @abstractmethod
    def format(self, settings: Any, destination: str) -> ValueFormat | KeyedFormat:
        """Returns a new format. `settings` are of type `section`."""

    def reader(self, schema: str, table: str, keys: Sequence[str]) -> MessageReader:
        """Returns a reader of the messages about a table with these key columns. Raises LookupError for a format that
        can't be read back."""
        raise LookupError("messages in this format can't be read back")


def per_schema(make: Callable[[TableSchema], _Made]) -> Callable[[TableSchema], _Made]:
    """Caches what `make` returns for a table schema, as long as the schema object exists. So tables that are created
    and dropped again and again, also under new names, take no more memory."""
    key = object()

    def of(schema: TableSchema) -> _Made:
        derived = schema.derived
        if key not in derived:
            derived[key] = make(schema)
        made: _Made = derived[key]
        return made

    return of
