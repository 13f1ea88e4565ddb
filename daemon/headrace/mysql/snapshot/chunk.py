"""Rows of a table as a server sent them, decoded when they are asked for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headrace.errors import NotUnderstood
from headrace.model import Row
from headrace.mysql.snapshot.select import TableSelect
from headrace.mysql.values.textcode import BROKEN, TextDecoder
from headrace.mysql.wire.query_stream import RowBlock, RowBytes, row_values
from headrace.ports.tables import Chunk, Key, Watermark


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """What is known of a chunk besides its rows; see Chunk."""

    last: bool
    high: Watermark
    continues: bool
    seconds: float
    after: Key | None
    order: str
    upto: Key | None = None
    """The key up to which the table was read, whether a row with it came or not; None: that of the last row."""


class MysqlChunk(Chunk):
    def __init__(self, block: RowBlock, select: TableSelect, decode: TextDecoder, facts: ReadFacts) -> None:
        self.rows, self.size = block.rows, block.size
        self.last, self.high = facts.last, facts.high
        self.continues, self.seconds, self.order = facts.continues, facts.seconds, facts.order
        self._select, self._decode = select, decode
        self._parts = deque(block.parts)
        self._at = self._taken = 0
        """Where the next row of the first part begins, and how many rows are before it."""
        self._given: list[tuple[RowBytes, int, int]] = []
        """Where the rows that were taken last are: a part, where the first begins, and how many."""
        self._last_row: bytes | None = None
        self._key = self.end = facts.after if select.table.keys else None
        if facts.upto is not None:
            self.end = facts.upto
        elif select.table.keys and block.parts:
            last = block.parts[-1]
            self.end = select.key_of(row_values(last.data[last.last + 4 :]))

    def take(self, count: int) -> list[Row]:
        rows: list[Row] = []
        self._given = []
        while len(rows) < count and self._parts:
            part = self._parts[0]
            some = min(count - len(rows), part.rows - self._taken)
            self._given.append((part, self._at, some))
            rows += self._decoded(part, some)
            self._taken += some
            self.rows -= some
            if self._taken == part.rows:
                self._parts.popleft()
                self._at = self._taken = 0
        return rows

    def _decoded(self, part: RowBytes, count: int) -> list[Row]:
        try:
            rows, end, last = self._decode(part.data, self._at, count, part.end)
        except BROKEN as error:
            what = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
            name = self._select.table.name
            raise NotUnderstood(f"rows that were read from {name} do not fit its columns: {what}") from error
        self._last_row = part.data[last + 4 : end]
        self._at = end
        return rows

    @property
    def key(self) -> Key | None:
        if not self.rows:
            return self.end
        if self._last_row is not None and self._select.table.keys:
            self._key, self._last_row = self._select.key_of(row_values(self._last_row)), None
        return self._key

    def key_at(self, number: int) -> Key | None:
        if not self._select.table.keys:
            return None
        for part, at, count in self._given:
            if number < count:
                for _ in range(number):
                    at = _end_of(part.data, at)
                return self._select.key_of(row_values(part.data[at + 4 : part.end or _end_of(part.data, at)]))
            number -= count
        raise IndexError(number)


def _end_of(data: bytes, at: int) -> int:
    """Where the packet that begins at `at` ends."""
    return at + 4 + int.from_bytes(data[at : at + 3], "little")
