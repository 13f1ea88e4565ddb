"""The bases for reading back what a destination has published: the messages in a sink, and the rows in a message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import orjson

from headrace.errors import NotUnderstood

PublishedRow = dict[str, Any]
"""A row as a message has it: JSON values by column."""


class Published(NamedTuple):
    """A message as it is stored in a sink."""

    value: bytes | None
    """None is a tombstone."""
    key: bytes | None = None
    version: int | None = None
    """`_pos` of its first row, if the sink keeps it next to the value."""
    partial: bool = False
    """Whether its rows are known to lack columns."""
    stored_ms: int = 0
    """When it was published, in milliseconds since 1970 by the publisher's clock; 0 if the sink does not say."""


class RowState(NamedTuple):
    """What a message says about one row."""

    key: bytes
    """The row's key as text: the value of its one column, or a JSON list of several; b"" if it has none. An empty text
    is `""`."""
    row: PublishedRow | None
    """None: the row was deleted."""
    version: int | None
    """A number that increases with each change of a row; None if the message has none, in which case the later message
    counts."""
    partial: bool = False
    """Whether the row lacks columns that its table had then."""
    before: PublishedRow | None = None
    """The row that no longer exists, for a table without a key."""


def parsed(value: bytes) -> Any:
    """Returns a message's JSON. Raises NotUnderstood."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise NotUnderstood(f"a message is no JSON: {error}") from error


def of_another_format(table: str, format: str, error: Exception) -> NotUnderstood:
    """Returns the error for a message about a table that is not of the configured format."""
    return NotUnderstood(
        f"a message about {table} is none of {format} format ({type(error).__name__})",
        remedy="check whether [message] format is that with which the destination's messages were published",
    )


class MessageReader(ABC):
    """Reads the messages about one table. It is made for the key that the table has now."""

    @abstractmethod
    def read(self, message: Published) -> Sequence[RowState]:
        """Returns what a message says about the table's rows, in order; a changed key makes two entries. Returns
        nothing for other messages, such as statements. Raises NotUnderstood."""

    @abstractmethod
    def committed_ms(self, message: Published) -> int:
        """Returns the commit time of a message of any kind, in milliseconds since 1970 by the source's clock; 0 if the
        message has none. Fast."""


class Replay(ABC):
    """Messages in the order of each log: of a topic's partitions, or of files."""

    @abstractmethod
    def read(self) -> AsyncIterator[Sequence[Published]]:
        """Yields all messages from the end of the last call, at first from the beginning, up to the end of the logs at
        the time of the call. Raises SinkError."""

    def share(self) -> float | None:
        """Returns, between two blocks of read(), the share of this call's messages that was yielded, 0 to 1; None if it
        is not known."""
        return None

    @abstractmethod
    def notes(self) -> list[str]:
        """Returns, after read(), what is known to be missing at the beginning, a sentence each."""

    @abstractmethod
    async def close(self) -> None:
        """Releases all resources. Safe to call twice."""


def key_text(row: PublishedRow, keys: Sequence[str]) -> bytes | None:
    """Returns the key of a row as in RowTold; None if the row lacks a key column."""
    values = [row.get(name) for name in keys]
    if None in values:
        return None
    if len(values) == 1 and type(values[0]) is str:
        return values[0].encode() or b'""'
    if len(values) == 1 and type(values[0]) is int:
        return b"%d" % values[0]
    # Copied, because an object of orjson keeps 4 KiB and the keys are stored.
    return orjson.dumps(values if len(values) > 1 else values[0]).decode().encode()
