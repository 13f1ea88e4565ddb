"""The bases of what reads back what a destination has published: the messages in a sink, and the rows in a message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import orjson

from headrace.errors import NotUnderstood

PublishedRow = dict[str, Any]
"""A row as a message has it: JSON values by column."""


class Published(NamedTuple):
    """A message as it lies in a sink."""

    value: bytes | None
    """None is a tombstone."""
    key: bytes | None = None
    version: int | None = None
    """`_pos` of its first row, where the sink keeps it beside the value."""
    partial: bool = False
    """Whether it is known that its rows lack columns."""
    stored_ms: int = 0
    """When it was published, in milliseconds since 1970 by the publisher's clock; 0 where the sink does not say so."""


class RowTold(NamedTuple):
    """What a message says of one row."""

    key: bytes
    """The row's key as text: the value of its one column, or a JSON list of several; b"" where it has none. An empty
    text is `""`."""
    row: PublishedRow | None
    """None: the row is gone."""
    version: int | None
    """What grows from change to change of a row; None where the message does not say it: the later one counts."""
    partial: bool = False
    """Whether the row lacks columns that its table had then."""
    before: PublishedRow | None = None
    """The row that is not there any more, of a table without a key."""


def parsed(value: bytes) -> Any:
    """A message's JSON. Raises NotUnderstood."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise NotUnderstood(f"a message is no JSON: {error}") from error


def of_another_format(table: str, format: str, error: Exception) -> NotUnderstood:
    """The error for a message about a table that is not of the format that is configured."""
    return NotUnderstood(
        f"a message about {table} is none of {format} format ({type(error).__name__})",
        remedy="look whether [message] format is that with which the destination's messages were published",
    )


class MessageReader(ABC):
    """Understands the messages about one table. It is made for the key that the table has now."""

    @abstractmethod
    def read(self, message: Published) -> Sequence[RowTold]:
        """What a message says of the table's rows, in order; a changed key is two. Nothing for what is about something
        else, statements among that. Raises NotUnderstood."""

    @abstractmethod
    def committed_ms(self, message: Published) -> int:
        """When what a message tells of was committed, whatever it is about, in milliseconds since 1970 by the source's
        clock; 0 where it does not say so. Quick."""


class Replay(ABC):
    """Messages in the order of each log: of a topic's partitions, or of files."""

    @abstractmethod
    def read(self) -> AsyncIterator[Sequence[Published]]:
        """All messages from where the last call has ended, at first from the beginning, up to the end that the logs
        have when it is called. Raises SinkError."""

    def share(self) -> float | None:
        """Between two blocks of read(): about which part of all that this call gives was given, 0 to 1; None where that
        is not known."""
        return None

    @abstractmethod
    def notes(self) -> list[str]:
        """After read(): what is known to be missing at the beginning, a sentence each."""

    @abstractmethod
    async def close(self) -> None:
        """Gives back what was opened. Safe to call twice."""


def key_text(row: PublishedRow, keys: Sequence[str]) -> bytes | None:
    """The key of a row as RowTold has it; None when the row lacks a column of it."""
    values = [row.get(name) for name in keys]
    if None in values:
        return None
    if len(values) == 1 and type(values[0]) is str:
        return values[0].encode() or b'""'
    if len(values) == 1 and type(values[0]) is int:
        return b"%d" % values[0]
    # What orjson returns holds on to 4 KiB, and keys are kept.
    return orjson.dumps(values if len(values) > 1 else values[0]).decode().encode()
