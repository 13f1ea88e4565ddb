"""Reads the tables of a snapshot chunk by chunk, alongside the stream: how many at a time, how large, and how fast."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace import runtime
from headrace.errors import SourceError
from headrace.model import POS_SHIFT
from headrace.ports.source import ChangeStream, Unprepared
from headrace.ports.tables import Chunk, ChunkRequest, KeyOutdated, Lacks, TableChanged, TableFacts, TableReader
from headrace.snapshot import plan
from headrace.snapshot.merge import SnapshotMerge
from headrace.snapshot.progress import SnapshotRate
from headrace.snapshot.table_read import TableRead
from headrace.snapshot.throttle import Throttle
from headrace.snapshots import Snapshot, TableName
from headrace.tasks import alongside, ended, result_of, set_within

_FIRST_ROWS, _FEWEST, _MOST = 1_000, 10, 200_000
"""Rows of the first chunk of a table, and of any."""
_GROWTH = 4
_CHUNK_BYTES = 8 << 20
_AHEAD = 2
"""Chunks of one table that are read and not published."""
_WORTH_A_LINE = 1.0
"""Seconds that a table must take for a log line: there may be thousands."""
_CHANGED_TRIES = 5
"""Reads of a table whose schema differs from the stream's, before that is an error."""
_CHANGED_WAIT = 1.0
"""Seconds between those, unless the stream reaches the statement first."""


class SnapshotReading:
    """The reading for one run of a destination. `new_reader` returns readers, one for each table that is read at a
    time; `seconds` is the target time of the source for one chunk. `left_out` receives the account's missing rights,
    and the tables that are not read because of them; `unprepared` is called before rows of a table schema are read."""

    def __init__(
        self,
        merge: SnapshotMerge,
        stream: ChangeStream,
        new_reader: Callable[[], TableReader],
        throttle: Throttle,
        rate: SnapshotRate,
        log: Any,
        *,
        parallel: int,
        seconds: float,
        left_out: Callable[[Lacks, Iterable[TableName]], None],
        unprepared: Unprepared | None = None,
    ) -> None:
        self._unprepared = unprepared
        self._merge, self._stream, self._new_reader = merge, stream, new_reader
        self._throttle, self._rate, self._log = throttle, rate, log
        self._parallel, self._seconds = parallel, seconds
        self._left_out = left_out
        self._todo: deque[TableName] = deque()
        self._resumed: deque[TableName] = deque()
        self._id = ""

    async def run(self, snapshot: Snapshot) -> Snapshot:
        """Reads the running snapshot to its end, and returns its final state; or until another one is running. Raises
        SourceError or NotUnderstood. If cancelled, or after an error, it may be called again."""
        self._id = snapshot.id
        readers = [self._new_reader() for _ in range(self._parallel)]
        try:
            await self._find_tables(snapshot, readers[0])
            works = {f"reader {number}": self._read_tables(reader) for number, reader in enumerate(readers, 1)}
            async with alongside(works) as tasks:
                for task in await ended(tasks.values(), all_unless_error=True):
                    result_of(task)
            return next((one for one in self._merge.snapshots if one.id == snapshot.id), snapshot)
        finally:
            self._merge.stop()
            async with contextlib.AsyncExitStack() as closing:  # each of them, also if this is cancelled
                for reader in readers:
                    closing.push_async_callback(reader.close)

    async def _find_tables(self, snapshot: Snapshot, reader: TableReader) -> None:
        listed = await reader.tables()
        self._merge.clock_pos = listed.clock_us << POS_SHIFT
        # A statement before the list that the stream has not reached yet could rename a listed table.
        await self._merge.passed(listed.high)
        lacks = await reader.lacks()
        wanted = await chosen(listed.tables, plan.matching(snapshot.tables, self._merge.captures))
        current = self._merge.current
        if current is None or current.id != snapshot.id:  # a command came meanwhile
            return
        for progress in self._merge.leave(current, lambda *name: self._merge.captures(*name) and not lacks(*name)):
            self._log.warning(
                "a table is read no more: [filter] leaves it out, or the account may not read it any more",
                table=".".join(progress.name),
            )
        snapshot = self._merge.snapshots[0]
        facts = [one for one in wanted if not lacks(one.schema, one.table)]
        unreadable = [name for one in wanted if lacks(*(name := (one.schema, one.table)))]
        self._left_out(lacks, unreadable)
        if unreadable and not facts and snapshot.kind == "resync":
            raise plan.may_not_read(unreadable, lacks)
        if not facts and not snapshot.open:
            if snapshot.kind == "resync":
                why, remedy = await why_none(reader, listed.tables, snapshot.tables, self._merge.captures)
                raise SourceError(why, remedy=remedy, retriable=False)
            self._log.warning(
                "no table is there to be read",
                remedy="check [filter], and whether the account has SELECT on the tables: it sees no others",
            )
        self._todo = deque(plan.following(snapshot, facts))
        self._resumed = deque(one.name for one in snapshot.open)
        self._merge.left = len(self._todo)
        self._rate.begin(snapshot, facts)

    def _next(self) -> TableRead | None:
        """Returns the next table; None if none is left, or another snapshot is running by now."""
        names, snapshot = self._resumed or self._todo, self._merge.current
        if not names or snapshot is None or snapshot.id != self._id:
            return None
        name = names.popleft()
        self._merge.left = len(self._todo)
        return self._merge.begin(snapshot, name)

    async def _read_tables(self, reader: TableReader) -> None:
        while (table := self._next()) is not None:
            began = runtime.monotonic()
            await self._read_table(reader, table)
            if self._merge.tables.get(table.name) is table:
                self._merge.end(table)
                took = runtime.monotonic() - began
                report = self._log.info if took >= _WORTH_A_LINE else self._log.debug
                report("table read", table=".".join(table.name), rows=table.progress.rows, seconds=round(took, 1))

    async def _read_table(self, reader: TableReader, table: TableRead) -> None:
        """Reads a table until its last chunk is published, or it is dropped."""
        rows, changes = self._allowed(_FIRST_ROWS), 0
        while not table.ended and self._merge.tables.get(table.name) is table:
            table.changed.clear()
            if table.chunks and (table.chunks[-1].chunk.last or len(table.chunks) >= _AHEAD):
                await table.changed.wait()
                continue
            generation = table.generation
            try:
                chunk = await self._read_chunk(reader, table, rows)
            except KeyOutdated:
                self._merge.restart(table)
                continue
            except TableChanged as error:
                changes += 1
                if changes > _CHANGED_TRIES:
                    raise SourceError(f"the table {'.'.join(table.name)} can't be read: {error}") from error
                await set_within(table.changed, _CHANGED_WAIT)
                continue
            if chunk is None:  # it does not exist at the stream's position: all of its rows come in the stream
                return
            if generation == table.generation:
                changes = 0
                rows = self._allowed(_rows_of_next(chunk, rows, self._seconds))

    def _allowed(self, rows: int) -> int:
        """Returns how many rows of a chunk the limit of rows per second allows."""
        return int(min(rows, max(_FEWEST, self._throttle.largest)))

    async def _read_chunk(self, reader: TableReader, table: TableRead, rows: int) -> Chunk | None:
        schema = self._stream.table(*table.name)
        if schema is None:
            return None
        if isinstance(schema, str):
            raise SourceError(
                f"the table {'.'.join(table.name)} can't be read, because its schema is not known: {schema}"
            )
        if self._unprepared is not None and (awaited := self._unprepared(schema)) is not None:
            await awaited()
            return await self._read_chunk(reader, table, rows)  # the stream may have reached another one
        again = not schema.keys and table.scanned != table.generation
        if again and table.progress.rows:
            self._merge.restart(table)
        snapshot, generation = self._merge.current, table.generation
        if snapshot is None or self._merge.tables.get(table.name) is not table:
            return None
        if unknown := set(snapshot.columns) - {column.name.lower() for column in schema.columns}:
            raise SourceError(f"the table {schema.name} has no column {min(unknown)}", retriable=False)
        table.scanned = generation
        await self._throttle.wait(reader)
        seen, window = await self._merge.window(table, schema)
        columns = self._merge.columns_of(snapshot.columns, schema)
        request = ChunkRequest(schema, seen, table.after, again, rows, _CHUNK_BYTES, snapshot.where, columns)
        try:
            chunk = await reader.read(request)
        except BaseException:
            table.touched.close(window)
            table.scanned = -1
            raise
        self._throttle.note(chunk.rows)
        if generation == table.generation:
            if chunk.continues:
                table.touched.close(window)
                window = table.read_window
            table.read_window = window
            self._merge.add(table, chunk, window, schema)
        else:
            table.touched.close(window)
        return chunk


async def chosen(listed: Sequence[TableFacts], wants: plan.Captures) -> list[TableFacts]:
    """Returns the selected tables. Runs in a thread, because an operator's regexes may take a second for all names.
    Raises PatternTooSlow."""
    return await runtime.in_thread(lambda: [one for one in listed if wants(one.schema, one.table)])


async def why_none(
    reader: TableReader, listed: Sequence[TableFacts], tables: str, captures: plan.Captures
) -> tuple[str, str]:
    """Returns why a resync's filter matches no listed table, and a remedy. Raises SourceError."""
    name = plan.name_of(tables)
    if name is None:
        return (
            f"no captured table matches {tables or '[filter] include'!r}",
            "give schema.table, or a regular expression as in [filter] include",
        )
    shown = ".".join(name)
    if any((one.schema, one.table) == name for one in listed):
        return f"{shown} is not captured: [filter] leaves it out", "take it into [filter] include"
    return await reader.why_unlisted(*name)


def _rows_of_next(chunk: Chunk, rows: int, seconds: float) -> int:
    """Returns how many rows the next chunk must have so that the source takes `seconds` for it."""
    if chunk.last:
        return rows
    fit = rows * seconds / max(chunk.seconds, seconds / 100)
    # With a condition more rows were examined than returned. If a chunk ended by its bytes, the next one is smaller.
    fit = min(fit, 0.9 * rows * _CHUNK_BYTES / max(1, chunk.size))
    return int(max(_FEWEST, min(_MOST, fit, rows * _GROWTH)))
