"""One table that is being read: its unpublished chunks, and what the stream has changed meanwhile."""

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
    """A chunk, the window that was opened before it was requested, the schema that it was read by, and how many of its
    rows make one change."""

    chunk: Chunk
    window: int
    schema: TableSchema
    together: int


@dataclass(slots=True)
class TableRead:
    """The reading of a table. `progress` is what is stored, `key` its key as the reader knows it; `generation`
    increases when a statement has voided all that was read and not published."""

    progress: TableProgress
    key: Key | None = None
    shown: Key | None = None
    """The key of the last taken row that is published, if not all rows are."""
    touched: Touched = field(default_factory=Touched)
    chunks: deque[Waiting] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a chunk was completely published, or all are void."""
    generation: int = 0
    read_window: int = 0
    """That of the chunk that was read last."""
    scanned: int = -1
    """For a table without a key: the generation of the present read."""
    ended: bool = False
    """Whether its last chunk was published."""

    @property
    def name(self) -> TableName:
        return self.progress.name

    @property
    def after(self) -> Key | None:
        """Returns the key after which the next chunk begins."""
        return self.chunks[-1].chunk.end if self.chunks else self.key

    def forget(self) -> None:
        """Drops what was read: a statement has changed the table, or it must be read again."""
        self.generation += 1
        self.chunks.clear()
        self.touched.clear()
        self.changed.set()

    def given(self) -> None:
        """Removes the first chunk, which has no row left."""
        first = self.chunks.popleft()
        if first.schema.keys or first.chunk.last:  # without a key all chunks share a window
            self.touched.close(first.window)
        self.ended = first.chunk.last
        self.changed.set()

    def take(self, count: int, shows: Callable[[Row], bool] | None = None) -> list[Row]:
        """Returns the next rows of the first chunk to publish. If not all rows are published, `shows` says which are,
        and `shown` is kept. Raises NotUnderstood."""
        first = self.chunks[0]
        rows = first.chunk.take(count)
        if shows is not None and (at := next((i for i in range(len(rows))[::-1] if shows(rows[i])), None)) is not None:
            self.shown = first.chunk.key_at(at)
        # Without a key they are identified by all of their values.
        rows = settled(rows, first.schema.keys or None)
        return self.touched.left(first.schema, rows, first.window)
