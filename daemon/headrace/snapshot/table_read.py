"""One table under way: the chunks of it that are read and not given out, and what the stream has changed meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.large_values import settled
from headrace.model import Row, TableSchema
from headrace.ports.tables import Chunk, Key
from headrace.snapshot.touched import Touched
from headrace.snapshots import TableName, TableProgress


@dataclass(slots=True)
class Waiting:
    """A chunk, the window that was opened before it was asked for, the schema that it was read by, and how many of its
    rows make one change."""

    chunk: Chunk
    window: int
    schema: TableSchema
    together: int


@dataclass(slots=True)
class TableRead:
    """`progress` is what is stored, and `key` the key in it as its reader knows it; `generation` grows when a statement
    has made void all that was read and not given."""

    progress: TableProgress
    key: Key | None = None
    shown: Key | None = None
    """The key of the last row taken that is published, where not all are."""
    touched: Touched = field(default_factory=Touched)
    chunks: deque[Waiting] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a chunk was given out whole, or all are void."""
    generation: int = 0
    read_window: int = 0
    """Of the chunk that was read last."""
    scanned: int = -1
    """Of a table without a key: the generation that the read under way belongs to."""
    ended: bool = False
    """Whether its last chunk was given."""

    @property
    def name(self) -> TableName:
        return self.progress.name

    @property
    def after(self) -> Key | None:
        """Behind which row the next chunk begins."""
        return self.chunks[-1].chunk.end if self.chunks else self.key

    def forget(self) -> None:
        """What was read is void: a statement has changed the table, or it has to be read again."""
        self.generation += 1
        self.chunks.clear()
        self.touched.clear()
        self.changed.set()

    def given(self) -> None:
        """The first of the chunks has no row left."""
        first = self.chunks.popleft()
        if first.schema.keys or first.chunk.last:  # without a key all chunks share a window
            self.touched.close(first.window)
        self.ended = first.chunk.last
        self.changed.set()

    def take(self, count: int, shows: Callable[[Row], bool] | None = None) -> list[Row]:
        """The next rows of the first chunk that are still to be given out. Where not all rows are published, `shows`
        says which are, and `shown` is kept. Raises NotUnderstood."""
        first = self.chunks[0]
        rows = first.chunk.take(count)
        if shows is not None and (at := next((i for i in range(len(rows))[::-1] if shows(rows[i])), None)) is not None:
            self.shown = first.chunk.key_at(at)
        # Without a key they are told by all of their values.
        rows = settled(rows, first.schema.keys or None)
        return self.touched.left(first.schema, rows, first.window)
