"""Merges the rows of snapshots into the stream, in the correct order for each key.

A chunk is published between two transactions, once the stream has reached the chunk's high watermark. Rows that the
stream has changed since the chunk was requested are not published from the chunk. So the other rows still have the
values that were read."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import structlog

from headrace import runtime
from headrace.errors import NotUnderstood
from headrace.large_values import numbered
from headrace.model import (
    POS_ROOM,
    Operation,
    Position,
    Row,
    RowsChange,
    SnapshotRows,
    TableChange,
    TableSchema,
)
from headrace.ports.native_rows import NativeRows, SnapshotChange
from headrace.ports.source import ChangeStream
from headrace.ports.tables import Chunk, Watermark
from headrace.rules.patterns import PatternTooSlow
from headrace.snapshot import plan
from headrace.snapshot.stored_keys import StoredKeys
from headrace.snapshot.table_read import TableRead, Waiting
from headrace.snapshots import Snapshot, TableName, TableProgress

log = structlog.get_logger(__name__)

_MESSAGE_BYTES = 8192
"""Maximum bytes of rows in one change, as received from the source. This is also the default size of a rows event in
the binlog."""
_KEYED = 1_000
"""Rows whose keys are compared at a time with those that the stream has changed."""
_MOST_TOUCHED = 1_000_000
"""Maximum number of rows of one table that the stream changes while a chunk waits. If it changes more, the chunk is
read again."""

Emit = Callable[[RowsChange], None]
Shows = Callable[[TableSchema], Callable[[Row], bool] | None]
"""Returns, for a table, a function that returns whether a row is published; None if all rows are published."""
Published = Callable[[RowsChange], Sequence[RowsChange]]
"""Returns the parts of a change that are published. Their rows are newer than the rows of a chunk."""
Decides = Callable[[TableSchema], frozenset[str]]
"""Returns the columns of a table, in lower case, that decide whether and where a row is published. Every read must
include them."""


class SnapshotMerge:
    """Merges the snapshots of one run. The first of `snapshots` is running, the others wait. `emit` publishes a change;
    `emit_large` publishes a change with large values, in slices. `full` returns whether the published changes must be
    taken before more are added. `epoch` makes ids unique. `native` makes messages of rows in native code; None: Python
    makes all. `snapshot_pos`: see Position. If `rows` is false, the destination publishes no rows, and all snapshots
    wait.

    The tasks of the table reader add tables and chunks. The task that reads the stream calls all other methods. The
    stream's read() calls rows() and altered()."""

    def __init__(
        self,
        snapshots: Sequence[Snapshot],
        captures: plan.Captures,
        emit: Emit,
        full: Callable[[], bool],
        *,
        emit_large: Callable[[RowsChange], Iterator[None]] | None = None,
        epoch: int = 0,
        snapshot_pos: int = 0,
        rows: bool = True,
        keys: StoredKeys | None = None,
        shows: Shows = lambda schema: None,
        decides: Decides = lambda schema: frozenset(),
        published: Published = lambda change: (change,),
        native: NativeRows | None = None,
    ) -> None:
        self._keys, self._shows, self._decides = keys or StoredKeys(), shows, decides
        self._published, self._native = published, native
        self.snapshots = tuple(snapshots)
        """The snapshots and their progress, as they are stored with the position."""
        self.snapshot_pos, self._rows = snapshot_pos, rows
        self.clock_pos = 0
        """The number that belongs to the source's clock. Even if the position or the state was lost, no row that was
        published before has a higher number."""
        self.wanted_pos = 0
        """If not 0, no row is published until the caller has skipped all numbers up to this one
        (ChangeStream.pass_numbers()) and has called numbered()."""
        self._numbered = ""
        """The id of the snapshot for which the caller has called numbered()."""
        self.captures, self._emit, self._full, self._epoch = captures, emit, full, epoch
        self._emit_large = emit_large or self._settled
        self.tables: dict[TableName, TableRead] = {}
        """The tables that are being read."""
        self.left = 0
        """The number of tables whose reading has not begun."""
        self.changed = asyncio.Event()
        """Set when the reader must read another snapshot than before, or none, or other tables."""
        self.ended: Callable[[Snapshot, str], None] = lambda snapshot, outcome: None
        """Called for each snapshot that ends, with its outcome: done, cancelled, or the reason why it was abandoned."""
        self.wake: Callable[[], None] = lambda: None
        """Wakes the task that reads the stream."""
        self._asked: list[tuple[TableRead, TableSchema, asyncio.Future[tuple[Position, int]]]] = []
        self._marks: list[tuple[Watermark, asyncio.Future[None]]] = []
        self._number = 0
        self._new = False
        self._unfinished: deque[Iterator[None]] = deque()
        """Changes with large values that are being published in slices, and the changes that wait for them, in
        order."""

    @property
    def current(self) -> Snapshot | None:
        """Returns the running snapshot; None if there is none, if it is paused, or if no rows are published."""
        return self.snapshots[0] if self.snapshots and not self.snapshots[0].paused and self._rows else None

    # -- the stream's ---------------------------------------------------------------------------------------------

    def rows(self, change: RowsChange) -> None:
        """Publishes rows of the stream, and notes them as changed if their table is being read."""
        if self.tables:
            self._note(change)
        self._emit(change)

    def large(self, change: RowsChange) -> Iterator[None]:
        """Does the same as rows() for a change with large values, in slices."""
        if self.tables:
            self._note(change)
        return self._emit_large(change)

    def _settled(self, change: RowsChange) -> Iterator[None]:
        change.settle()
        self._emit(change)
        yield

    def _note(self, change: RowsChange) -> None:
        if (table := self.tables.get((change.schema.schema, change.schema.table))) is not None:
            try:
                change.settle(change.schema.keys)
                for part in self._published(change):
                    table.touched.note(part)
                if change.large and not change.schema.keys:  # without a key, a row is identified by all of its values
                    table.forget()
            except LookupError:
                table.forget()
            if len(table.touched) > _MOST_TOUCHED:
                log.warning(
                    "so many rows change while a table is read that it is read again", table=".".join(table.name)
                )
                table.forget()

    def altered(self, names: frozenset[TableName] | None, changes: tuple[TableChange, ...]) -> None:
        """Handles statements that changed tables: discards the chunks of these tables, which are then read again.
        `names`: the changed tables; None means all."""
        for name, table in self.tables.items():
            if names is None or name in names:
                table.forget()
        if not changes or not self.snapshots:
            return
        before, after = self.snapshots, tuple[Snapshot, ...]()
        for one in before:
            try:
                after += (plan.altered(one, changes, plan.matching(one.tables, self.captures), self.captures),)
            except PatternTooSlow as error:  # a slow regex in an operator's resync must not stop the stream
                log.error("the resync is given up", id=one.id, only=one.tables, error=error.operator_text())
                self.ended(one, f"given up: {error}")
        if after != before:
            self._update(*after)
            current = self.current
            if current is None or current.id != before[0].id:
                self.stop()
            else:
                for name in self.tables.keys() - {one.name for one in current.open}:
                    del self.tables[name]
            self.changed.set()  # the set of tables to read has changed

    # -- the readers' ---------------------------------------------------------------------------------------------

    async def window(self, table: TableRead, schema: TableSchema) -> tuple[Position, int]:
        """Waits for a place between two transactions and opens a window there. From then on, the merge notes which rows
        of the table the stream changes. The chunk is then read with this schema. Returns the position of that place,
        and the number of the window."""
        asked: asyncio.Future[tuple[Position, int]] = asyncio.get_running_loop().create_future()
        self._asked.append((table, schema, asked))
        self.wake()
        return await asked

    async def passed(self, high: Watermark) -> None:
        """Waits until the stream has reached a watermark and is between two transactions."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._marks.append((high, reached))
        self.wake()
        await reached

    def add(self, table: TableRead, chunk: Chunk, window: int, schema: TableSchema) -> None:
        """Adds a chunk that was read. It is published once the stream has passed its high watermark."""
        together = _MESSAGE_BYTES * chunk.rows // max(1, chunk.size)
        table.chunks.append(Waiting(chunk, window, schema, max(1, min(POS_ROOM, together))))
        table.changed.clear()
        self.wake()

    def columns_of(self, wanted: Sequence[str], schema: TableSchema) -> frozenset[str]:
        """Returns the columns to read from a table for a resync of the columns `wanted`. The empty set means all
        columns. Raises NotUnderstood."""
        return frozenset(wanted) | self._decides(schema) if wanted else frozenset()

    def leave(self, snapshot: Snapshot, wanted: plan.Captures) -> list[TableProgress]:
        """Stops reading the tables of the running snapshot that are no longer captured. Returns these tables."""
        gone = [one for one in snapshot.open if not wanted(*one.name)]
        for one in gone:
            snapshot = plan.end_table(snapshot, one.name)
        if gone:
            self._set(snapshot)
        return gone

    def begin(self, snapshot: Snapshot, name: TableName) -> TableRead:
        """Begins to read a table, or continues after the stored key."""
        if plan.progress_of(snapshot, name) is None:
            self._set(plan.begin_table(snapshot, name))
        current = self.snapshots[0]
        progress = plan.progress_of(current, name)
        assert progress is not None
        table = self.tables[name] = TableRead(progress, self._keys.open(progress.key))
        if table.key is None and progress.key is not None:
            log.warning("the masks' salts are others than before: the table is read again", table=".".join(name))
            self.restart(table)
        return table

    def restart(self, table: TableRead) -> None:
        """Starts the reading of a table again from its first row, because its stored key can't be used any more: the
        key's order or the salts have changed, or the table has no key."""
        table.forget()
        if self.tables.get(table.name) is not table:
            return
        table.key, table.shown, table.progress = None, None, replace(table.progress, key=None, order="", rows=0)
        self._numbered = ""  # its rows are published again, possibly at other places within their messages
        self._set(plan.advance(self.snapshots[0], table.progress))

    def end(self, table: TableRead) -> None:
        """Ends the reading of a table, whose rows are all published."""
        self.tables.pop(table.name, None)
        self._set(plan.end_table(self.snapshots[0], table.name))
        self.wake()

    def finish(self, snapshot: Snapshot, outcome: str = "done") -> None:
        """Ends a snapshot with this outcome."""
        self.ended(snapshot, outcome)
        self._update(*(one for one in self.snapshots if one.id != snapshot.id))

    def stop(self) -> None:
        """Stops reading the present snapshot, because it is paused, cancelled or failed, and discards its chunks.
        Callers of window() and passed() continue to wait until they are cancelled."""
        for table in self.tables.values():
            table.forget()
        self.tables.clear()
        self._asked.clear()
        self._marks.clear()

    # -- operators' -----------------------------------------------------------------------------------------------

    def put(self, *snapshots: Snapshot) -> None:
        """Replaces the snapshots, after an operator's command."""
        left = {one.id for one in snapshots}
        for one in self.snapshots:
            if one.id not in left:
                self.ended(one, "cancelled")
        before, self.snapshots = self.current, snapshots
        if before is None or self.current is None or self.current.id != before.id:
            self.stop()  # at once, because the chunks belong to the former snapshot
            self.changed.set()
        self._update(*snapshots)

    # -- the reading loop's ---------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Returns whether turn() has anything to do."""
        return bool(self._asked or self._marks or self.tables or self._new)

    def turn(self, stream: ChangeStream, seconds: float) -> bool:
        """Called between two transactions. Opens the requested windows, and publishes rows for at most `seconds`.
        Returns whether rows were published, or a snapshot was changed: then the caller must take the batches with the
        position. Rows that could be published may remain for the next call. Raises NotUnderstood."""
        position = stream.position()
        marks, self._marks = self._marks, []
        for high, reached in marks:
            if not stream.passed(high):
                self._marks.append((high, reached))
            elif not reached.done():
                reached.set_result(None)
        asked, self._asked = self._asked, []
        for table, schema, future in asked:
            if not future.done():
                future.set_result((position, table.touched.open(schema)))
        new, self._new = self._new, False
        return (seconds > 0 and self._give(stream, position, runtime.current().busy() + seconds)) or new

    def numbered(self) -> None:
        """Records that the stream has skipped the numbers up to `wanted_pos`, and that the position with them is
        stored. So no row that was published before has any of the following numbers."""
        self.wanted_pos, self._numbered = 0, self.snapshots[0].id if self.snapshots else ""

    def wants(self, stream: ChangeStream, *, rows: bool) -> bool:
        """Returns whether turn() has something to do now: a window to open, a watermark that is reached or, with
        `rows`, rows to publish."""
        return (
            any(stream.passed(high) for high, _ in self._marks)
            or bool(self._asked)
            or (rows and any(one.chunks and stream.passed(one.chunks[0].chunk.high) for one in self.tables.values()))
        )

    def _give(self, stream: ChangeStream, position: Position, end: float) -> bool:
        gave = False
        for table in list(self.tables.values()):
            while table.chunks and not self._full() and not self._unfinished:
                first = table.chunks[0]
                if not stream.passed(first.chunk.high):
                    break
                if stream.table(*table.name) != first.schema:
                    table.forget()  # the stream has corrected the table's schema since the chunk was read
                    break
                if first.chunk.order != table.progress.order and table.key is not None:
                    self.restart(table)
                    break
                if self._numbered != self.snapshots[0].id:
                    self.wanted_pos = max(self.clock_pos, position.last_pos + POS_ROOM)
                    return gave
                gave = True
                self._give_chunk(table, first, position, end)
                if runtime.current().busy() >= end:
                    return True
        return gave

    def _give_chunk(self, table: TableRead, first: Waiting, position: Position, end: float) -> None:
        chunk, passed = first.chunk, 0
        # Others may read keys that are stored unencrypted. So these must not be the keys of rows that are not
        # published.
        shows = self._shows(first.schema) if self._keys.plain else None
        while chunk.rows and not self._full() and not self._unfinished:
            before, began = chunk.rows, not (passed or table.progress.rows)
            if began or shows is not None or not self._put(table, first, position, end):
                rows = table.take(first.together, shows)
                if rows:
                    ends = chunk.last and not chunk.rows
                    self._emit_rows(table, first.schema, rows, position, began=began, ends=ends)
            passed += before - chunk.rows
            if runtime.current().busy() >= end:
                break
        progress, table.key = table.progress, chunk.key
        stored = self._keys.seal(table.key) if shows is None else table.shown or progress.key
        table.progress = replace(progress, key=stored, rows=progress.rows + passed, order=chunk.order)
        self._set(plan.advance(self.snapshots[0], table.progress))
        if not chunk.rows:
            table.given()

    def _put(self, table: TableRead, first: Waiting, position: Position, end: float) -> bool:
        """Publishes rows by native code; returns whether it did. Not the first and last change of a table, which have a
        marker of their own."""
        snapshot, chunk, together = self.snapshots[0], first.chunk, first.together
        resync = snapshot.kind == "resync"
        rows = chunk.rows if resync or not chunk.last else (chunk.rows - 1) // together * together
        if self._native is None or snapshot.columns or not rows:
            return False
        left_out = None
        if len(table.touched):
            rows = min(rows, max(1, _KEYED // together) * together)  # more may be changed until the next ones
            if (left_out := table.touched.left_out(first.window)) is None:
                return False
        marker, now, origin = "incremental" if resync else "true", runtime.current().busy(), position.origin()
        change = SnapshotChange(
            SnapshotRows(self._id(position), snapshot.kind, marker),
            self._number,
            together,
            origin.file,
            origin.transaction,
            position.last_pos + 1,
            runtime.now_us(),
            max(0.0, end - now),
        )
        made, changes = chunk.put(self._native, rows, change, left_out)
        self._number += changes
        return made > 0

    def _id(self, position: Position) -> str:
        """Returns the ids of changes up to their number, which begins again with each run, and the epoch may be the
        same: no other run has this position."""
        return f"snapshot-{self._epoch}-{position.last_pos}"

    def _emit_rows(
        self, table: TableRead, schema: TableSchema, rows: list[Row], position: Position, *, began: bool, ends: bool
    ) -> None:
        snapshot = self.snapshots[0]
        if snapshot.kind == "resync":
            self._emit_change(snapshot, schema, rows, position, "incremental")
            return
        if began:
            marker = "first_in_data_collection" if snapshot.rows else "first"
            self._emit_change(snapshot, schema, rows[:1], position, marker)
            rows = rows[1:]
        if len(rows) > ends:
            self._emit_change(snapshot, schema, rows[:-1] if ends else rows, position, "true")
        if rows and ends:
            last = not self.left and all(one is table or one.ended for one in self.tables.values())
            self._emit_change(snapshot, schema, rows[-1:], position, "last" if last else "last_in_data_collection")

    def _emit_change(
        self, snapshot: Snapshot, schema: TableSchema, rows: list[Row], position: Position, marker: str
    ) -> None:
        self._number += 1
        change = RowsChange(
            schema,
            Operation.INSERT,
            rows,
            None,
            position.last_pos + 1,
            runtime.now_us(),
            "",
            partial=bool(snapshot.columns),
            origin=position.origin(),
            snapshot=SnapshotRows(f"{self._id(position)}-{self._number}", snapshot.kind, marker),
            large=numbered(rows),
        )
        if change.large or self._unfinished:
            self._unfinished.append(self._emit_large(change) if change.large else self._later(change))
            return
        try:
            self._emit(change)
        except _MISFITS as error:
            raise _misfit(error) from error

    def _later(self, change: RowsChange) -> Iterator[None]:
        """Publishes a change after the large changes before it, which are published in slices."""
        self._emit(change)
        yield

    @property
    def unfinished(self) -> bool:
        """Returns whether rows with large values are still being published. Then go_on() must be called until this is
        false."""
        return bool(self._unfinished)

    def go_on(self, seconds: float) -> None:
        """Continues to publish rows with large values, for at most `seconds`. Raises NotUnderstood."""
        end = runtime.current().busy() + seconds
        while self._unfinished:
            try:
                for _ in self._unfinished[0]:
                    if runtime.current().busy() >= end:
                        return
            except _MISFITS as error:
                raise _misfit(error) from error
            self._unfinished.popleft()

    def _set(self, current: Snapshot) -> None:
        self._update(current, *self.snapshots[1:])

    def _update(self, *snapshots: Snapshot) -> None:
        self.snapshots, self._new = snapshots, True
        self.wake()

    def stamped(self, position: Position) -> Position:
        """Returns a position of the stream with the progress of the snapshots at that position."""
        if (position.snapshots, position.snapshot_pos) == (self.snapshots, self.snapshot_pos):
            return position
        return replace(position, snapshots=self.snapshots, snapshot_pos=self.snapshot_pos)


_MISFITS = (ValueError, LookupError, OverflowError, struct.error)


def _misfit(error: Exception) -> NotUnderstood:
    """Returns the error for values that are not of their columns' types."""
    remedy = str(getattr(error, "remedy", ""))
    return NotUnderstood(f"rows that were read from a table do not fit its columns: {error}", remedy=remedy)
