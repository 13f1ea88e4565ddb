"""The rows of a table as they would be published now, by the destination's own rules and format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from headrace.errors import NotUnderstood, Refusal
from headrace.large_values import settled
from headrace.model import Operation, Row, RowsChange, TableSchema
from headrace.pipeline.table_projection import TableProjection
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.ports.inspection import Conditions
from headrace.ports.replay import MessageReader, Published, PublishedRow, RowState
from headrace.ports.tables import NOWHERE, ChunkRequest, Key, TableChanged, TableReader

_CHUNK_ROWS = 5_000
_TOGETHER = 250
"""Rows that are formatted as one change."""
_KEYS_TOGETHER = 200
"""Keys in one statement."""

Forms = Callable[[PublishedRow], tuple[int, ...]]
"""Returns the hashes of which a consumer's row may have any, to be equal to this one."""


class SourceRow(NamedTuple):
    """A row of the table."""

    key: bytes
    """As published; see RowTold."""
    forms: tuple[int, ...]
    raw: Key | None
    """In the source's form."""


class TableNow:
    """The present rows of a table. `source` is its schema on the source, `projection` the destination's. `messages`
    reads what `fmt` writes, by the same code as for published messages, so that both sides have one form."""

    def __init__(
        self,
        reader: TableReader,
        source: TableSchema,
        projection: TableProjection,
        fmt: ValueFormat | KeyedFormat,
        messages: MessageReader,
        conditions: Conditions,
        forms: Forms,
    ) -> None:
        self.source, self.projection = source, projection
        self._reader, self._format, self._messages = reader, fmt, messages
        self._conditions, self._forms = conditions, forms

    @property
    def keyed(self) -> bool:
        """Returns whether rows can be distinguished."""
        return bool(self.source.keys)

    async def rows(self, where: str = "") -> AsyncIterator[list[SourceRow]]:
        """Yields all rows, or those that meet a condition, in the order of the key. Raises SourceError and
        NotUnderstood."""
        after: Key | None = None
        again = True
        while True:
            request = ChunkRequest(self.source, NOWHERE, after, again, _CHUNK_ROWS, where=where)
            again = False
            try:
                chunk = await self._reader.read(request)
            except TableChanged as error:
                raise Refusal(
                    f"{self.source.name} was altered while it was compared ({error})", remedy="give the command again"
                ) from error
            while chunk.rows:
                rows: list[Row] = []
                raws: list[Key | None] = []
                while chunk.rows and len(rows) < _TOGETHER:
                    for row in settled(chunk.take(1)):  # none for one that is left out
                        rows.append(row)
                        raws.append(chunk.key)
                yield [
                    SourceRow(one.key, self._forms(one.row or {}), raws[number])
                    for number, one in self._published(rows)
                ]
                await asyncio.sleep(0)
            if chunk.last:
                return
            after = chunk.end

    async def with_keys(self, keys: Sequence[Key]) -> AsyncIterator[list[SourceRow]]:
        """Yields the existing rows with these keys. Raises as rows() does."""
        for i in range(0, len(keys), _KEYS_TOGETHER):
            async for rows in self.rows(self._conditions.among(self.source, keys[i : i + _KEYS_TOGETHER])):
                yield rows

    def between(self, first: Key, last: Key) -> str:
        """Returns a condition in SQL for the rows from one key to another."""
        return self._conditions.between(self.source, first, last)

    def _published(self, rows: list[Row]) -> list[tuple[int, RowState]]:
        """Returns the content of the messages about these rows, with each row's number; without filtered rows."""
        found: list[tuple[int, RowState]] = []
        change = RowsChange(self.source, Operation.INSERT, rows, None, 1, 0, "")
        for part in (one.change for one in self.projection.parts(change, keys=False)):
            numbers = range(len(rows)) if part.row_indexes is None else part.row_indexes
            row_states = [one for message in self._encoded(part) for one in self._messages.read(message)]
            if len(row_states) != len(part.rows):
                raise NotUnderstood(f"messages about {self.source.name} can't be read back as they are written")
            found += zip(numbers, row_states, strict=True)
        found.sort(key=lambda pair: pair[0])
        return found

    def _encoded(self, change: RowsChange) -> list[Published]:
        if isinstance(self._format, KeyedFormat):
            return [Published(value) for value in self._format.rows(change, 0).values]
        return [Published(self._format.encode(change, 0))]

    async def close(self) -> None:
        """Closes the connections to the source."""
        await self._reader.close()
