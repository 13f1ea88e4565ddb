"""Rows of chunks merged into a stream, in any interleaving of commits, reads and what the stream has given so far."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.canal.format import CanalFormat
from headrace.large_values import numbered
from headrace.model import POS_ROOM, Column, DdlKind, Operation, Position, Row, RowsChange, TableChange, TableSchema
from headrace.mysql.values.large import large_text
from headrace.pipeline.message_builder import MessageBuilder
from headrace.pipeline.projection import Projections
from headrace.ports.state_records import Head
from headrace.ports.tables import Chunk, Key, TableFacts, Watermark
from headrace.rules.patterns import PatternTooSlow
from headrace.snapshot import plan
from headrace.snapshot.commands import SnapshotCommand, SnapshotRefused
from headrace.snapshot.merge import SnapshotMerge
from headrace.snapshot.stored_keys import StoredKeys
from headrace.snapshot.table_read import TableRead
from headrace.snapshots import Snapshot, TableProgress
from tests.streams import settings

SCHEMA = TableSchema("shop", "item", (Column("id", "int", 4), Column("version", "int", 4)), (0,))
KEYS = range(6)


class Rows(Chunk):
    """A chunk of rows that are there already."""

    def __init__(self, rows: Sequence[Row], high: int, *, last: bool, after: Key | None) -> None:
        self._rows, self.rows, self.size = list(rows), len(rows), 100 * len(rows)
        self._taken: list[Row] = []
        self.last, self.high, self.continues, self.seconds = last, Watermark("bin.000001", high), False, 0.1
        self._key, self.order = after, "by id"
        self.end = (str(rows[-1][0]),) if rows else after

    def take(self, count: int) -> list[Row]:
        taken, self._rows = self._rows[:count], self._rows[count:]
        self.rows, self._taken = len(self._rows), taken
        if taken:
            self._key = (str(taken[-1][0]),)
        return taken

    @property
    def key(self) -> Key | None:
        return self._key

    def key_at(self, number: int) -> Key | None:
        return (str(self._taken[number][0]),)


@dataclass
class Database:
    """A table whose every commit changes one row, and a stream that comes behind it: commit i is at offset i."""

    states: list[dict[int, int]] = field(default_factory=lambda: [{}])
    """The table behind each commit: versions by key."""
    commits: list[tuple[Operation, int, int]] = field(default_factory=list)
    given: int = 0
    """Commits that the stream has given."""
    passed_numbers: int = 0
    """In all, for snapshots."""

    def commit(self, key: int, wish: int, to: int) -> None:
        """An insert, an update, a delete or a change of key, whichever the table allows."""
        state, version = dict(self.states[-1]), len(self.commits) + 1
        if key not in state:
            operation = Operation.INSERT
            state[key] = version
        elif wish == 0:
            operation = Operation.DELETE
            del state[key]
        else:
            operation = Operation.UPDATE
            to = to if to not in state else key
            del state[key]
            state[to] = version
        self.commits.append((operation, key, to))
        self.states.append(state)

    # -- as a stream ----------------------------------------------------------------------------------------------

    def position(self) -> Position:
        return Position("u", "bin.000001", self.given, last_pos=self.given * 2 * POS_ROOM + self.passed_numbers)

    def turn(self, merge: SnapshotMerge) -> bool:
        """A turn of the snapshot; where it asks for numbers, they are passed."""
        stream: Any = self
        gave = merge.turn(stream, 1.0)
        if merge.wanted_pos:
            self.passed_numbers += merge.wanted_pos - self.position().last_pos
            merge.numbered()
            gave |= merge.turn(stream, 1.0)
        return gave

    def passed(self, watermark: Watermark) -> bool:
        return self.given >= watermark.offset

    def table(self, schema: str, table: str) -> TableSchema:
        return SCHEMA

    def deliver(self, merge: SnapshotMerge) -> None:
        """The stream gives its next commit."""
        operation, key, to = self.commits[self.given]
        before, after = self.states[self.given], self.states[self.given + 1]
        self.given += 1
        rows, old = [(to if operation is Operation.UPDATE else key, self.given)], None
        if operation is Operation.DELETE:
            rows = [(key, before[key])]
        elif operation is Operation.UPDATE:
            assert rows[0][0] in after
            old = [(key, before[key])]
        pos = self.given * 2 * POS_ROOM + self.passed_numbers
        merge.rows(RowsChange(SCHEMA, operation, rows, old, pos, 0, ""))


class Consumer:
    """Applies what comes, once in the order of arrival and once by `_pos` of each key."""

    def __init__(self, database: Database) -> None:
        self.by_offset: dict[int, int] = {}
        self._by_pos: dict[int, tuple[int, int | None]] = {}
        self._seen: dict[int, int] = {}
        self._database = database
        self.snapshot_rows: list[int] = []

    def take(self, change: RowsChange) -> None:
        number = self._database.given
        if change.snapshot is not None:
            self.snapshot_rows += [row[0] for row in change.rows]
        elif change.operation is Operation.DELETE:
            self._put(change.rows[0][0], None, change.pos, number)
            return
        elif change.before is not None and change.before[0][0] != change.rows[0][0]:
            self._put(change.before[0][0], None, change.pos, number)
        for i, (key, version) in enumerate(change.rows):
            self._put(key, version, change.pos + i, version)

    def _put(self, key: int, version: int | None, pos: int, number: int) -> None:
        assert number >= self._seen.get(key, 0), f"key {key} goes back in time"
        self._seen[key] = number
        if version is None:
            self.by_offset.pop(key, None)
        else:
            self.by_offset[key] = version
        if pos >= self._by_pos.get(key, (0, None))[0]:
            self._by_pos[key] = pos, version

    @property
    def by_pos(self) -> dict[int, int]:
        return {key: version for key, (_, version) in self._by_pos.items() if version is not None}


STEPS = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from(KEYS), st.integers(0, 3), st.sampled_from(KEYS)),
    st.tuples(st.just("deliver"), st.integers(1, 3)),
    st.tuples(st.just("ask")),
    st.tuples(st.just("read"), st.integers(0, 4), st.integers(0, 4), st.integers(1, 3)),
    st.tuples(st.just("turn")),
    st.tuples(st.just("crash")),
)


@given(st.lists(STEPS, max_size=60))
def test_what_consumers_have_is_the_table_and_no_key_goes_back_in_time(steps: list[Any]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[Any]) -> None:
    database = Database()
    for key in (0, 2, 4):  # rows that are there before the stream begins, which has their commits behind it
        database.commit(key, 1, key)
    database.given = 3
    consumer = Consumer(database)
    snapshot = plan.begin_table(Snapshot("s", "initial"), ("shop", "item"))
    merge = SnapshotMerge((snapshot,), lambda *_: True, consumer.take, lambda: False)
    table = merge.begin(snapshot, ("shop", "item"))
    windows: list[asyncio.Task[tuple[Position, int]]] = []
    opened: list[tuple[int, int]] = []
    """Position and window of each that was opened and not read by."""
    stored = database.given, merge.snapshots, database.passed_numbers
    for step in [*steps, *_ENDING]:
        kind, *arguments = step
        if kind == "commit":
            database.commit(*arguments)
        elif kind == "deliver":
            for _ in range(min(arguments[0], len(database.commits) - database.given)):
                database.deliver(merge)
        elif kind == "ask" and not windows and not opened:
            windows.append(asyncio.create_task(merge.window(table, SCHEMA)))
            await asyncio.sleep(0)
        elif kind == "read" and opened and not (table.chunks and table.chunks[-1].chunk.last):
            _read(database, merge, table, *opened.pop(0), *arguments)
        elif kind == "turn":
            database.turn(merge)
            for task in windows:
                position, window = await task
                opened.append((position.offset, window))
            windows.clear()
            stored = database.given, merge.snapshots, database.passed_numbers
        elif kind == "crash":  # what was given since is given again, from the stored position, by another node
            for task in windows:
                task.cancel()
            windows.clear()
            opened.clear()
            database.given, database.passed_numbers = stored[0], stored[2]
            consumer._seen.clear()
            merge = SnapshotMerge(stored[1], lambda *_: True, consumer.take, lambda: False)
            ended = table.ended
            table = merge.begin(stored[1][0], ("shop", "item"))
            table.ended = ended
    assert table.ended
    assert consumer.by_offset == database.states[-1]
    assert consumer.by_pos == database.states[-1]


_ENDING: list[Any] = [("deliver", 100)]
for _ in range(8):
    _ENDING += [("turn",), ("ask",), ("turn",), ("read", 0, 0, 3), ("deliver", 100), ("turn",)]


def _read(
    database: Database,
    merge: SnapshotMerge,
    table: TableRead,
    seen: int,
    window: int,
    later: int,
    wait: int,
    count: int,
) -> None:
    """A read that sees a state behind `seen`, some commits `later`; its high watermark may be later still."""
    last = len(database.commits)
    sees = min(seen + later, last)
    after = table.after
    rows = sorted((key, version) for key, version in database.states[sees].items())
    behind = [row for row in rows if after is None or row[0] > int(after[0])]
    chunk = Rows(behind[:count], min(sees + wait, last), last=len(behind) < count, after=after)
    merge.add(table, chunk, window, SCHEMA)


def _merge(out: list[RowsChange], *snapshots: Snapshot) -> SnapshotMerge:
    return SnapshotMerge(snapshots, lambda *_: True, out.append, lambda: False)


async def _opened(merge: SnapshotMerge, table: TableRead, database: Database) -> int:
    asked = asyncio.create_task(merge.window(table, SCHEMA))
    await asyncio.sleep(0)
    database.turn(merge)
    return (await asked)[1]


async def test_rows_of_another_run_under_the_same_epoch_have_other_ids() -> None:
    """A lock service's epoch stays the same while a daemon holds the lock, and the runs are many."""
    ids, database = list[str](), Database()
    for _ in range(2):
        out: list[RowsChange] = []
        merge = _merge(out, Snapshot("s", "initial"))
        table = merge.begin(merge.snapshots[0], ("shop", "item"))
        window = await _opened(merge, table, database)
        merge.add(table, Rows([(1, 1), (2, 2)], 0, last=False, after=None), window, SCHEMA)
        assert database.turn(merge)
        ids += [change.snapshot.id for change in out if change.snapshot]
    assert len(ids) == len(set(ids)) == 4


async def test_the_first_and_the_last_row_of_tables_are_marked() -> None:
    out: list[RowsChange] = []
    merge, database = _merge(out, Snapshot("s", "initial")), Database()
    for name in ("a", "b"):
        table = merge.begin(merge.snapshots[0], ("shop", name))
        merge.left = 1 if name == "a" else 0
        window = await _opened(merge, table, database)
        merge.add(table, Rows([(1, 1), (2, 2), (3, 3)], 0, last=True, after=None), window, SCHEMA)
        assert database.turn(merge)
        merge.end(table)
    markers = [(change.snapshot.marker, len(change.rows)) for change in out if change.snapshot]
    assert markers == [
        ("first", 1),
        ("true", 1),
        ("last_in_data_collection", 1),
        ("first_in_data_collection", 1),
        ("true", 1),
        ("last", 1),
    ]
    assert len({change.snapshot.id for change in out if change.snapshot}) == len(out)
    assert merge.snapshots[0].tables_done == 2
    assert merge.snapshots[0].rows == 6


async def test_a_statement_about_a_table_makes_its_chunks_void_and_no_others() -> None:
    out: list[RowsChange] = []
    merge, database = _merge(out, Snapshot("s", "resync")), Database()
    tables = [merge.begin(merge.snapshots[0], ("shop", name)) for name in ("a", "b")]
    for table in tables:
        window = await _opened(merge, table, database)
        merge.add(table, Rows([(1, 1)], 5, last=True, after=None), window, SCHEMA)
    merge.altered(frozenset({("shop", "a")}), ())
    assert [len(table.chunks) for table in tables] == [0, 1]
    assert [table.generation for table in tables] == [1, 0]
    merge.altered(None, ())
    assert not any(table.chunks for table in tables)


async def test_the_first_rows_of_each_run_and_snapshot_wait_until_numbers_are_passed() -> None:
    out: list[RowsChange] = []
    merge, database = _merge(out, Snapshot("s", "resync"), Snapshot("next", "resync")), Database(given=1)
    stream: Any = database
    table = merge.begin(merge.snapshots[0], ("shop", "item"))

    async def add(rows: list[Row], after: Key | None) -> None:
        window = await _opened(merge, table, database)
        merge.add(table, Rows(rows, 0, last=False, after=after), window, SCHEMA)

    await add([(1, 1)], None)
    merge.wanted_pos = 0
    assert not merge.turn(stream, 1.0)
    assert (out, merge.wanted_pos) == ([], 3 * POS_ROOM)  # behind all that may have been given at this place before
    assert database.turn(merge)
    assert [change.pos for change in out] == [3 * POS_ROOM + 1]
    await add([(2, 2)], ("1",))
    assert merge.turn(stream, 1.0)
    assert [change.pos for change in out] == [3 * POS_ROOM + 1] * 2
    merge.restart(table)
    await add([(1, 1)], None)
    assert database.turn(merge)
    assert out[-1].pos == 4 * POS_ROOM + 1  # a row that is given again has a higher number
    merge.put(merge.snapshots[1])
    table = merge.begin(merge.snapshots[0], ("shop", "item"))
    await add([(1, 1)], None)
    assert database.turn(merge)
    assert out[-1].pos == 5 * POS_ROOM + 1


async def test_the_first_rows_of_a_snapshot_are_numbered_by_the_source_s_clock() -> None:
    out: list[RowsChange] = []
    merge, database = _merge(out, Snapshot("s", "initial")), Database()
    stream: Any = database
    merge.clock_pos = 7_000
    table = merge.begin(merge.snapshots[0], ("shop", "item"))
    window = await _opened(merge, table, database)
    merge.add(table, Rows([(1, 1)], 0, last=True, after=None), window, SCHEMA)
    assert not merge.turn(stream, 1.0)
    assert (out, merge.wanted_pos) == ([], 7_000)


def test_a_table_that_gets_another_name_is_read_under_that() -> None:
    snapshot = Snapshot("s", "initial", begun=("shop", "m"), open=(TableProgress("shop", "k", ("5",), 5),))

    def rename(old: str, new: str) -> Snapshot:
        change = TableChange(DdlKind.RENAME, "shop", new, renamed_from=("shop", old))
        captures = lambda _, table: table != "hidden"  # noqa: E731
        return plan.altered(snapshot, (change,), captures, captures)

    assert rename("k", "b").open == (TableProgress("shop", "b", ("5",), 5),)
    assert rename("k", "hidden").open == ()
    assert rename("b", "a").open == snapshot.open
    assert rename("x", "b").open == (*snapshot.open, TableProgress("shop", "b"))
    assert rename("x", "y").open == (*snapshot.open, TableProgress("shop", "y"))
    assert rename("hidden", "b").open == (*snapshot.open, TableProgress("shop", "b"))


def _any(schema: str, table: str) -> bool:
    return True


def test_a_table_that_a_resync_is_about_stays_that_under_another_name() -> None:
    wants = lambda _, table: table == "t"  # noqa: E731
    rename = TableChange(DdlKind.RENAME, "shop", "x", renamed_from=("shop", "t"))
    waiting = Snapshot("s", "resync", tables="shop.t")
    assert plan.altered(waiting, (rename,), wants, _any).open == (TableProgress("shop", "x"),)
    half = Snapshot("s", "resync", tables="shop.t", begun=("shop", "t"), open=(TableProgress("shop", "t", ("5",), 5),))
    assert plan.altered(half, (rename,), wants, _any).open == (TableProgress("shop", "x", ("5",), 5),)
    done = Snapshot("s", "resync", tables="shop.t", begun=("shop", "t"))
    assert plan.altered(done, (rename,), wants, _any).open == ()
    assert plan.altered(waiting, (rename,), wants, wants).open == ()


def test_a_table_that_takes_the_name_of_one_that_was_dropped_is_read_as_itself() -> None:
    snapshot = Snapshot(
        "s",
        "initial",
        begun=("shop", "m"),
        open=(TableProgress("shop", "k", ("5",), 5), TableProgress("shop", "l", ("2",), 2)),
    )
    drop = TableChange(DdlKind.ERASE, "shop", "k")
    rename = TableChange(DdlKind.RENAME, "shop", "k", renamed_from=("shop", "l"))
    later = TableChange(DdlKind.RENAME, "shop", "k", renamed_from=("shop", "x"))
    assert plan.altered(snapshot, (drop, rename), _any, _any).open == (TableProgress("shop", "k", ("2",), 2),)
    other = TableProgress("shop", "l", ("2",), 2)
    assert plan.altered(snapshot, (drop, later), _any, _any).open == (other, TableProgress("shop", "k"))


def test_tables_follow_each_other_by_name() -> None:
    facts = [TableFacts("shop", name, 1, 1) for name in "cab"]
    snapshot = Snapshot("s", "initial")
    assert plan.following(snapshot, facts) == [("shop", "a"), ("shop", "b"), ("shop", "c")]
    begun = plan.begin_table(snapshot, ("shop", "a"))
    assert plan.following(begun, facts) == [("shop", "b"), ("shop", "c")]
    assert begun == Snapshot.from_dict(begun.to_dict())


async def test_the_stored_key_of_a_masked_table_can_be_used_only_with_the_salt() -> None:
    secret = StoredKeys(b"salt")

    def merge_of(keys: StoredKeys, *snapshots: Snapshot) -> SnapshotMerge:
        return SnapshotMerge(snapshots, lambda *_: True, out.append, lambda: False, keys=keys)

    out: list[RowsChange] = []
    merge, database = merge_of(secret, Snapshot("s", "initial")), Database()
    table = merge.begin(merge.snapshots[0], ("shop", "item"))
    window = await _opened(merge, table, database)
    merge.add(table, Rows([(4711, 1)], 0, last=False, after=None), window, SCHEMA)
    assert database.turn(merge)
    assert table.after == ("4711",)
    stored = merge.snapshots[0]
    head = Head(position=Position("u", "b.1", 4, snapshots=(stored,)))
    for record in (head.encode(), head.encode_entry()):
        assert b"4711" not in record
    assert merge_of(secret, stored).begin(stored, ("shop", "item")).after == ("4711",)
    for other in (StoredKeys(b"pepper"), StoredKeys()):
        again = merge_of(other, stored).begin(stored, ("shop", "item"))
        assert (again.after, again.progress.rows) == (None, 0), "the table is read again"


async def test_a_row_whose_key_is_a_large_text_is_known_by_it() -> None:
    """A key may be of a part of a text: PRIMARY KEY (t(20))."""
    schema = TableSchema("shop", "item", (Column("t", "longtext", 2005), Column("version", "int", 4)), (0,))
    raw = b"k" * 100_000

    def key() -> Any:
        return large_text("utf8mb4")(raw, 0, len(raw), 0)

    out: list[RowsChange] = []
    merge = _merge(out, Snapshot("s", "initial"))
    table = merge.begin(merge.snapshots[0], ("shop", "item"))
    window = table.touched.open(schema)
    row = [(key(), 2)]
    list(merge.large(RowsChange(schema, Operation.INSERT, list[Row](row), None, 1, 0, "", large=numbered(row))))
    merge.add(table, Rows([(key(), 1)], 0, last=True, after=None), window, schema)
    assert table.take(1) == []


async def test_a_row_is_given_although_the_stream_has_an_update_of_it_that_is_not_published() -> None:
    out: list[RowsChange] = []
    hidden = Projections(settings(filter={"exclude_columns": r"shop\.item:version", "unchanged_updates": "skip"}))
    builder = MessageBuilder(CanalFormat(), hidden)
    merge = SnapshotMerge(
        [Snapshot("s", "initial")], lambda *_: True, out.append, lambda: False, published=builder.projections.published
    )
    database = Database()
    table = merge.begin(merge.snapshots[0], ("shop", "item"))
    window = await _opened(merge, table, database)
    for old, new in (((1, 1), (1, 2)), ((2, 1), (3, 1))):
        merge.rows(RowsChange(SCHEMA, Operation.UPDATE, [new], [old], 1, 0, ""))
    merge.add(table, Rows([(1, 1), (2, 1), (3, 1)], 0, last=True, after=None), window, SCHEMA)
    assert table.take(3) == [(1, 1)]


async def test_no_key_of_a_row_that_a_condition_leaves_out_is_stored_as_it_is() -> None:
    def merge_of(keys: StoredKeys, *snapshots: Snapshot) -> SnapshotMerge:
        return SnapshotMerge(
            snapshots, lambda *_: True, lambda _: None, lambda: False, keys=keys, shows=lambda _: lambda row: row[1] > 0
        )

    def stored(merge: SnapshotMerge) -> Key | None:
        return merge.snapshots[0].open[0].key

    merge, database = merge_of(StoredKeys(), Snapshot("s", "initial")), Database()
    table = merge.begin(merge.snapshots[0], ("shop", "item"))
    for rows, key in (([(1, 0)], None), ([(2, 1), (3, 0), (4, 0)], ("2",)), ([(5, 0)], ("2",)), ([(6, 1)], ("6",))):
        window = await _opened(merge, table, database)
        merge.add(table, Rows(rows, 0, last=False, after=table.after), window, SCHEMA)
        assert database.turn(merge)
        assert table.after == (str(rows[-1][0]),), "what was read is not read again"
        assert stored(merge) == key
    (again,) = merge.snapshots
    assert merge_of(StoredKeys(), again).begin(again, ("shop", "item")).after == ("6",)

    merge, database = merge_of(StoredKeys(b"salt"), Snapshot("s", "initial")), Database()
    table = merge.begin(merge.snapshots[0], ("shop", "item"))
    window = await _opened(merge, table, database)
    merge.add(table, Rows([(1, 0)], 0, last=False, after=None), window, SCHEMA)
    assert database.turn(merge)
    (again,) = merge.snapshots
    assert merge_of(StoredKeys(b"salt"), again).begin(again, ("shop", "item")).after == ("1",)


def test_a_filter_that_takes_a_millisecond_on_each_name_is_given_up_before_it_has_seen_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [("shop", f"customer_{number:04d}") for number in range(300)]
    wants = plan.matching(r"shop\.customer_(0|1)\d*,crm\..*", lambda *_: True)
    assert sum(wants(*name) for name in names * 100) == 30_000

    class Slow:
        seen = 0

        def fullmatch(self, name: str) -> bool:
            self.seen, end = self.seen + 1, time.thread_time() + 0.001
            while time.thread_time() < end:
                pass
            return False

    slow = Slow()
    monkeypatch.setattr(plan, "compile_filter", lambda *_: (slow,))
    wants = plan.matching("shop.*", lambda *_: True)
    with pytest.raises(PatternTooSlow, match="takes too long on the names of all tables"):
        sum(wants(*name) for name in names)
    assert slow.seen < 250


@pytest.mark.parametrize(
    "tables",
    [
        r"(..+)(.+)(.+)\1\2\3[xq]|abcdefghijklmnop",
        ",".join(rf"(.+)(.+)\1\2(.+)[xq{chr(97 + number)}]" for number in range(26)),
    ],
)
def test_a_command_with_slow_regexes_is_refused_in_a_moment(tables: str) -> None:
    began = time.thread_time()
    with pytest.raises(SnapshotRefused, match="tables: regex"):
        SnapshotCommand.of({"command": "resync", "tables": tables})
    assert time.thread_time() - began < 0.5
    plain = ",".join(f"shop.table_{number:03d}" for number in range(200))
    assert SnapshotCommand.of({"command": "resync", "tables": plain}).tables == plain
