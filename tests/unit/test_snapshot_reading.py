"""Reading tables chunk by chunk beside a stream: sizes of chunks, commands in the midst, tables that change or go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog

from headrace.destination.dependencies import Context
from headrace.destination.snapshotting import Snapshotting
from headrace.destination.status import DestinationStatus
from headrace.errors import GrantMissing, SourceError, SourceMisconfigured
from headrace.model import Column, Position, Row, RowsChange, TableSchema
from headrace.ports.tables import (
    Chunk,
    ChunkRequest,
    Key,
    KeyOutdated,
    Lacks,
    TableChanged,
    TableFacts,
    TableList,
    TableReader,
    Watermark,
)
from headrace.settings.snapshot import SnapshotSettings
from headrace.snapshot.merge import SnapshotMerge
from headrace.snapshot.progress import SnapshotRate
from headrace.snapshot.reading import SnapshotReading
from headrace.snapshot.throttle import Throttle
from headrace.snapshots import Snapshot
from headrace.tasks import alongside, cancel
from tests.streams import daemon_settings, settings, until


def schema(table: str, *, key: bool = True) -> TableSchema:
    return TableSchema("shop", table, (Column("id", "int", 4),), (0,) if key else ())


class ToyChunk(Chunk):
    def __init__(self, rows: list[Row], request: ChunkRequest, *, last: bool, continues: bool = False) -> None:
        self._rows, self.rows, self.size = rows, len(rows), 10 * len(rows)
        self.last, self.high, self.continues, self.order = last, Watermark("b.1", 0), continues, "by id"
        self.seconds = len(rows) / 10_000
        keyed = bool(request.table.keys)
        self._key = request.after
        self.end = (str(rows[-1][0]),) if rows and keyed else request.after
        self._keyed = keyed

    def take(self, count: int) -> list[Row]:
        taken, self._rows = self._rows[:count], self._rows[count:]
        self.rows = len(self._rows)
        if taken and self._keyed:
            self._key = (str(taken[-1][0]),)
        return taken

    @property
    def key(self) -> Key | None:
        return self._key

    def key_at(self, number: int) -> Key | None:
        raise NotImplementedError


class Site:
    """Tables of numbers, a stream that stands still, a reader, and the loop that the run of a destination has."""

    def __init__(self, rows: int = 5_000, *, parallel: int = 2, keyless: tuple[str, ...] = ()) -> None:
        self.tables: dict[str, int] = {"a": rows, "b": 10, "c": 0}
        self.keyless = keyless
        self.requests: list[ChunkRequest] = []
        self.errors: list[Exception] = []
        self.out: dict[str, list[int]] = {}
        self.readers = 0
        self.behind = False
        self.asked = asyncio.Event()
        self.wakes = asyncio.Event()
        self.schemas: dict[str, Any] = {name: schema(name, key=name not in keyless) for name in self.tables}
        self.merge = SnapshotMerge((Snapshot("s", "initial"),), lambda *_: True, self._emit, lambda: False)
        self.merge.wake = self.wakes.set
        self.rate = SnapshotRate()
        log = structlog.get_logger(__name__)
        throttle = Throttle(SnapshotSettings())
        stream: Any = self
        self.unreadable: set[str] = set()
        self.reading = SnapshotReading(
            self.merge,
            stream,
            lambda: Reader(self),
            throttle,
            self.rate,
            log,
            parallel=parallel,
            seconds=0.1,
            left_out=lambda _, tables: self.left_out.extend(tables),
        )
        self.left_out: list[tuple[str, str]] = []

    def _emit(self, change: RowsChange) -> None:
        self.out.setdefault(change.schema.table, []).extend(row[0] for row in change.rows)

    # as a stream
    def position(self) -> Position:
        return Position("u", "b.1", 4)

    def passed(self, watermark: Watermark) -> bool:
        return not self.behind

    def table(self, schema: str, table: str) -> Any:
        return self.schemas[table]

    async def loop(self) -> None:
        stream: Any = self
        while True:
            await self.wakes.wait()
            self.wakes.clear()
            if self.merge.busy and self.merge.turn(stream, 0.001):
                self.wakes.set()
            if self.merge.wanted_pos:
                self.merge.numbered()
                self.wakes.set()
            await asyncio.sleep(0)

    async def run(self) -> Snapshot:
        async with asyncio.timeout(10), alongside({"loop": self.loop()}):
            return await self.reading.run(self.merge.snapshots[0])


class Reader(TableReader):
    def __init__(self, site: Site) -> None:
        self._site, self._scan = site, iter(())
        site.readers += 1

    async def tables(self) -> TableList:
        facts = [TableFacts("shop", name, rows, 1) for name, rows in self._site.tables.items()]
        return TableList(facts, Watermark(), 0)

    async def why_unlisted(self, schema: str, table: str) -> tuple[str, str]:
        return f"there is no {schema}.{table}", ""

    async def lacks(self) -> Lacks:
        return lambda _, table: "GRANT" if table in self._site.unreadable else ""

    async def read(self, request: ChunkRequest) -> Chunk:
        site = self._site
        site.requests.append(request)
        await asyncio.sleep(0)
        site.asked.set()
        if site.errors:
            raise site.errors.pop(0)
        total = site.tables[request.table.table]
        if not request.table.keys:
            return self._next(request, total)
        first = int(request.after[0]) + 1 if request.after else 0
        rows: list[Row] = [(number,) for number in range(first, min(total, first + request.rows))]
        return ToyChunk(rows, request, last=len(rows) < request.rows)

    def _next(self, request: ChunkRequest, total: int) -> Chunk:
        fresh = request.again
        if fresh:
            self._scan: Iterator[int] = iter(range(total))
        rows: list[Row] = []
        for number in self._scan:
            rows.append((number,))
            if len(rows) == request.rows:
                break
        return ToyChunk(rows, request, last=len(rows) < request.rows, continues=not fresh)

    async def require(self) -> None:
        pass

    async def load(self) -> tuple[float, int]:
        return 0.0, 0

    async def close(self) -> None:
        self._site.readers -= 1


async def test_all_tables_are_read_once_in_chunks_that_grow() -> None:
    site = Site()
    done = await site.run()
    assert site.out == {"a": list(range(5_000)), "b": list(range(10))}
    assert (done.tables_done, done.rows, done.open) == (3, 5_010, ())
    sizes = [one.rows for one in site.requests if one.table.table == "a"]
    assert sizes[0] == 1_000
    assert max(sizes) <= 4_000
    assert site.readers == 0


async def test_a_table_without_a_key_is_read_on_in_one_statement_and_from_the_start_after_a_change() -> None:
    site = Site(keyless=("a",))
    await site.run()
    assert site.out["a"] == list(range(5_000))
    asked = [one.again for one in site.requests if one.table.table == "a"]
    assert asked == [True, *[False] * (len(asked) - 1)]


async def test_a_table_whose_key_was_removed_is_read_again_from_the_start() -> None:
    site = Site(parallel=1)
    site.merge.snapshots = (Snapshot.from_dict({**_STORED, "open": [{**_OPEN, "key": ["4000"]}]}),)
    site.errors.append(KeyOutdated())
    await site.run()
    assert site.out["a"] == list(range(5_000))


async def test_a_stored_snapshot_continues_after_its_last_row() -> None:
    site = Site(parallel=1)
    site.merge.snapshots = (Snapshot.from_dict({**_STORED, "open": [{**_OPEN, "key": ["4000"]}]}),)
    done = await site.run()
    assert site.out["a"] == list(range(4_001, 5_000))
    assert done.rows == 4_001 + 999 + 10


_OPEN = {"schema": "shop", "table": "a", "key": None, "rows": 4_001, "order": "by id"}
_STORED = {**Snapshot("s", "initial", begun=("shop", "a"), rows=4_001).to_dict(), "open": [_OPEN]}


async def test_a_table_that_the_stream_will_know_otherwise_is_read_when_it_does() -> None:
    site = Site(parallel=1)
    site.errors += [TableChanged("another column")] * 2
    running = asyncio.create_task(site.run())
    await site.asked.wait()
    site.schemas["a"] = schema("a")
    site.merge.altered(frozenset({("shop", "a")}), ())
    await running
    assert site.out["a"] == list(range(5_000))


async def test_a_table_that_stays_another_one_is_an_error_and_one_that_is_gone_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.snapshot.reading._CHANGED_WAIT", 0.01)
    site = Site(parallel=1)
    site.errors += [TableChanged("another column")] * 20
    with pytest.raises(SourceError, match=r"shop\.a can't be read: another column"):
        await site.run()
    assert site.readers == 0
    site.errors.clear()
    site.schemas["a"] = None
    await site.run()
    assert "a" not in site.out
    site = Site()
    site.schemas["b"] = "it was never read"
    with pytest.raises(SourceError, match="its schema is not known: it was never read"):
        await site.run()


@pytest.mark.parametrize(
    ("resync", "words"),
    [
        (Snapshot("r", "resync", tables="other"), "no captured table matches 'other'"),
        (Snapshot("r", "resync", columns=("colour", "id")), r"shop\.a has no column colour"),
    ],
)
async def test_a_resync_of_a_missing_table_is_an_error_that_is_not_retried(resync: Snapshot, words: str) -> None:
    site = Site(parallel=1)
    site.merge.snapshots = (resync,)
    with pytest.raises(SourceError, match=words) as caught:
        await site.run()
    assert not caught.value.retriable
    assert not site.out


COMMANDS: dict[str, Callable[[Snapshot], tuple[Snapshot, ...]]] = {
    "cancelled": lambda _: (),
    "cancelled before another": lambda _: (Snapshot("t", "resync", tables="shop.b"),),
    "paused": lambda now: (Snapshot.from_dict({**now.to_dict(), "paused": True}),),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_a_command_at_any_moment_leaves_no_progress_with_another_snapshot(command: str, turns: int) -> None:
    site = Site(rows=50_000)
    async with alongside({"loop": site.loop(), "read": site.reading.run(site.merge.snapshots[0])}) as tasks:
        for _ in range(turns):
            await asyncio.sleep(0)
        wanted = COMMANDS[command](site.merge.snapshots[0])
        site.merge.put(*wanted)
        for _ in range(20):
            await asyncio.sleep(0)
        assert site.merge.snapshots == wanted
        assert not site.merge.tables
        assert not tasks["loop"].done(), tasks["loop"].exception()
        await cancel(tasks["read"])
    assert site.readers == 0


@pytest.mark.parametrize("command", ["cancelled", "cancelled before another"])
async def test_a_command_at_the_moment_when_the_stream_comes_to_the_list_of_tables_counts(command: str) -> None:
    site = Site()
    stream: Any = site
    site.behind = True
    async with asyncio.timeout(10), alongside({"read": site.reading.run(site.merge.snapshots[0])}) as tasks:
        await until(lambda: site.merge.busy)
        wanted = COMMANDS[command](site.merge.snapshots[0])
        site.behind = False
        site.merge.turn(stream, 0)
        site.merge.put(*wanted)
        await tasks["read"]
    assert site.merge.snapshots == wanted
    assert not site.out


@pytest.mark.parametrize("turns", range(0, 90, 3))
async def test_a_pause_at_any_moment_takes_no_row_away(turns: int) -> None:
    site, status = Site(rows=3_000), DestinationStatus("shop")
    context, stream = Context(settings(), daemon_settings(), status), site
    task = Snapshotting(context, site.merge, stream, lambda: Reader(site), lambda *_: None)  # type: ignore[arg-type]
    async with asyncio.timeout(10), alongside({"loop": site.loop(), "run": task.run()}):
        for _ in range(turns):
            await asyncio.sleep(0)
        before = site.merge.snapshots
        site.merge.put(*(replace(one, paused=True) for one in before))
        for _ in range(20):
            await asyncio.sleep(0)
        assert [one.paused for one in site.merge.snapshots] == [True] * len(before)
        site.merge.put(*(replace(one, paused=False) for one in site.merge.snapshots))
        await until(lambda: not site.merge.snapshots)
    assert sorted(set(site.out["a"])) == list(range(3_000))
    assert not status.troubles


async def test_a_resync_that_can_not_be_made_is_given_up_and_a_first_snapshot_is_tried_again() -> None:
    site, status = Site(), DestinationStatus("shop")
    site.merge.snapshots = (Snapshot("r", "resync"), Snapshot("s", "initial"))
    site.errors += [
        SourceMisconfigured("a condition that is none", retriable=False),
        SourceError("the server went away"),
    ]
    context = Context(settings(), daemon_settings(), status)
    task = Snapshotting(context, site.merge, site, lambda: Reader(site), lambda *_: None)  # type: ignore[arg-type]
    async with asyncio.timeout(10), alongside({"loop": site.loop(), "run": task.run()}):
        await until(lambda: "snapshot" in status.troubles)
        assert "the server went away" in status.troubles["snapshot"]
        assert [one.id for one in site.merge.snapshots] == ["s"]
        await until(lambda: not site.merge.snapshots)
    assert "a condition that is none" in status.last_error
    assert site.out["a"] == list(range(5_000))


@pytest.mark.parametrize("kind", ["initial", "resync"])
async def test_a_table_that_the_account_may_not_read_whole_is_left_out_and_a_resync_of_nothing_else_is_refused(
    kind: Any,
) -> None:
    site = Site(3)
    site.merge.put(Snapshot("s", kind))
    site.unreadable = {"a"}
    await site.run()
    assert (site.out, site.left_out) == ({"b": list(range(10))}, [("shop", "a")])
    site = Site(3)
    site.merge.put(Snapshot("s", kind))
    site.unreadable = {"a", "b", "c"}
    if kind == "resync":
        with pytest.raises(GrantMissing, match=r"may not read whole rows of shop\.a, shop\.b, shop\.c -> GRANT"):
            await site.run()
    else:
        await site.run()
    assert site.out == {}


async def test_a_resync_of_some_columns_reads_those_too_that_decide_about_rows() -> None:
    site = Site(20)
    merge = site.merge = SnapshotMerge(
        (Snapshot("s", "resync", columns=("price",)),),
        lambda *_: True,
        site._emit,
        lambda: False,
        decides=lambda schema: frozenset({"city"} if schema.table == "a" else ()),
    )
    columns = (Column("id", "int", 4), Column("price", "int", 4), Column("city", "int", 4))
    for name, before in site.schemas.items():
        site.schemas[name] = TableSchema("shop", name, columns, before.keys)
    assert merge.columns_of(("price",), site.schemas["a"]) == {"price", "city"}
    assert merge.columns_of((), site.schemas["a"]) == frozenset()
    site.reading._merge = merge
    merge.wake = site.wakes.set
    await site.run()
    asked = {one.table.table: one.columns for one in site.requests}
    assert asked == {"a": {"price", "city"}, "b": {"price"}, "c": {"price"}}
