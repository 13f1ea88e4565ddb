"""Rows of a table as a server sent them, decoded on request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any

import structlog

from headrace.errors import NotUnderstood
from headrace.model import Row
from headrace.mysql.snapshot.select import TableSelect
from headrace.mysql.undecodable import Undecodable, UndecodableTexts, noted
from headrace.mysql.values.column_types import ValueOptions, for_native_code
from headrace.mysql.values.large import MakeLarge
from headrace.mysql.values.textcode import BROKEN, TextDecoder, make_text_decoder, native_layout
from headrace.mysql.wire.query_stream import RowBlock, RowBytes
from headrace.ports.native_rows import NativeRows, SnapshotChange
from headrace.ports.tables import Chunk, Key, Watermark

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """The facts of a chunk besides its rows; see Chunk."""

    last: bool
    high: Watermark
    continues: bool
    seconds: float
    after: Key | None
    order: str
    upto: Key | None = None
    """The key up to which the table was read, whether or not a row has it; None: that of the last row."""


@dataclass
class ChunkDecoder:
    """Decodes the rows of one table. `texts` handles texts that have no Unicode characters; with `skips`, rows with
    such texts that must not be published are omitted."""

    select: TableSelect
    options: ValueOptions
    texts: UndecodableTexts
    skips: bool
    decode: TextDecoder = field(init=False)
    _native: tuple[NativeRows, Any] | None = field(init=False, default=None)
    """What native code needs for the rows of one run: its table, or None if it can't convert them."""

    def __post_init__(self) -> None:
        """Raises UnknownType."""
        self._make(any_text=False)

    def take_any_text(self) -> None:
        """Decodes all texts from now on, which is slower. Large ones always are."""
        self._make(any_text=True)

    def native(self, rows: NativeRows) -> Any | None:
        """Returns what native code needs to convert the rows; None if it can't, or if not all columns are read."""
        if self._native is None or self._native[0] is not rows:
            table, made = self.select.table, None
            if len(self.select.present) == len(table.columns):
                layouts = [native_layout(column, self.options) for column in table.columns]
                made = rows.table(table, [one and for_native_code(one) for one in layouts])
            self._native = rows, made
        return self._native[1]

    def _make(self, *, any_text: bool) -> None:
        table, texts = self.select.table, self.texts

        def of(i: int, large: MakeLarge | None) -> tuple[Callable[[bytes], str] | None, MakeLarge | None]:
            note = texts.note(table, i)
            text = texts.text(table.columns[i].charset, note) if any_text else None
            return text, noted(large, note) if large is not None else None

        self.decode = make_text_decoder(table.columns, self.select.present, self.options, of)

    @cached_property
    def keys(self) -> TextDecoder:
        """Decodes the keys of rows alone."""
        return make_text_decoder(
            self.select.table.columns, self.select.present, self.options, only=self.select.table.keys
        )


class MysqlChunk(Chunk):
    def __init__(self, block: RowBlock, decoder: ChunkDecoder, facts: ReadFacts) -> None:
        self.rows, self.size = block.rows, block.size
        self.last, self.high = facts.last, facts.high
        self.continues, self.seconds, self.order = facts.continues, facts.seconds, facts.order
        self._decoder, self._select = decoder, (select := decoder.select)
        self._parts = deque(block.parts)
        self._at = self._taken = 0
        """Where the next row of the first part begins, and how many rows are before it."""
        self._given: list[tuple[RowBytes, int, int]] = []
        """The rows that were taken last: for each, a part, where the first row begins, and how many."""
        self._last_row: tuple[bytes, int, int] | None = None
        """The bytes of the last taken row, where its values begin, and where they end."""
        self._key = self.end = facts.after if select.table.keys else None
        if facts.upto is not None:
            self.end = facts.upto
        elif select.table.keys and block.parts:
            last = block.parts[-1]
            try:
                self.end = select.key_of(last.data, last.last + 4, len(last.data))
            except BROKEN as error:
                raise self._misfit(error) from error

    def take(self, count: int) -> list[Row]:
        rows: list[Row] = []
        self._given = []
        while len(rows) < count and self._parts:
            part = self._parts[0]
            some = min(count - len(rows), part.rows - self._taken)
            rows += self._decoded(part, some)
            self._step(part, some, self._at)
        return rows

    def put(
        self, native: NativeRows, rows: int, change: SnapshotChange, left_out: Callable[[Any], bool] | None = None
    ) -> tuple[int, int]:
        table = self._decoder.native(native)
        part = self._parts[0] if table is None else self._joined()
        if table is None or part.end:
            return 0, 0
        some, numbers = min(rows, part.rows - self._taken), list[int]()
        if some < rows:  # a row that is too large for a packet follows, and take() makes a change with rows of both
            some -= some % change.together
        if not some:
            return 0, 0
        if left_out is not None:
            try:
                keys, _, _ = self._decoder.keys(part.data, self._at, some, 0)
            except BROKEN:  # take() says what is wrong
                return 0, 0
            numbers = [number for number, key in enumerate(keys) if left_out(key)]
        made, changes, end, last = native.put_selected(table, part.data, self._at, some, numbers, change)
        if made:
            self._given, self._last_row = [], (part.data, last + 4, end)
            self._step(part, made, end)
        return made, changes

    def _joined(self) -> RowBytes:
        """Joins the parts up to the next row that is too large for a packet, so that a change has rows of several."""
        parts, size = self._parts, -self._at
        some = list(takewhile(lambda part: not part.end, parts))
        if len(some) < 2:
            return parts[0]
        for part in some:
            parts.popleft()
            size += len(part.data)
        rows = sum(part.rows for part in some) - self._taken
        data = b"".join([memoryview(some[0].data)[self._at :], *(part.data for part in some[1:])])
        parts.appendleft(RowBytes(data, rows, last=size - len(some[-1].data) + some[-1].last))
        self._at = self._taken = 0
        return parts[0]

    def _step(self, part: RowBytes, rows: int, end: int) -> None:
        """Goes on after rows of the first part, the last of which ends at `end`."""
        self._at, self._taken = end, self._taken + rows
        self.rows -= rows
        if self._taken == part.rows:
            self._parts.popleft()
            self._at = self._taken = 0

    def _decoded(self, part: RowBytes, count: int) -> list[Row]:
        decoder, name = self._decoder, self._select.table.name
        try:
            try:
                rows, end, last = decoder.decode(part.data, self._at, count, part.end)
            except UnicodeDecodeError:
                decoder.take_any_text()
                rows, end, last = decoder.decode(part.data, self._at, count, part.end)
        except Undecodable as error:
            if not decoder.skips:
                raise NotUnderstood(f"rows that were read from {name}: {error}", remedy=error.remedy) from error
            if count > 1:
                return [row for _ in range(count) for row in self._decoded(part, 1)]
            log.warning("a row left out", table=name, reason=str(error))
            last, rows = self._at, []
            end = _end_of(part.data, last)
        except BROKEN as error:
            raise self._misfit(error) from error
        if rows:
            self._given.append((part, self._at, count))
        self._last_row = part.data, last + 4, end
        self._at = end
        return rows

    def _misfit(self, error: Exception) -> NotUnderstood:
        what = f"KeyError: {error}" if isinstance(error, KeyError) else str(error)
        return NotUnderstood(f"rows that were read from {self._select.table.name} do not fit its columns: {what}")

    @property
    def key(self) -> Key | None:
        if not self.rows:
            return self.end
        if self._last_row is not None and self._select.table.keys:
            self._key, self._last_row = self._select.key_of(*self._last_row), None
        return self._key

    def key_at(self, number: int) -> Key | None:
        if not self._select.table.keys:
            return None
        for part, at, count in self._given:
            if number < count:
                for _ in range(number):
                    at = _end_of(part.data, at)
                return self._select.key_of(part.data, at + 4, part.end or _end_of(part.data, at))
            number -= count
        raise IndexError(number)


def _end_of(data: bytes, at: int) -> int:
    """Returns where the packet that begins at `at` ends."""
    return at + 4 + int.from_bytes(data[at : at + 3], "little")
