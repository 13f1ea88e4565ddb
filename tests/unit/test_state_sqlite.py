"""The SQLite store: what is written is there after a restart, and only who holds the destination can write."""

# ruff: noqa: ASYNC240  (a test may block its own loop)

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.adapters.sqlite.state import HISTORY_LENGTH, SqliteStore, StoreDamagedError, inspect
from headrace.errors import Fenced, StateStoreError
from headrace.ports.state import Guard, StateChange, Stored
from tests.positions import POSITION


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "var" / "headrace.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


async def test_an_unknown_destination_has_nothing(store: SqliteStore) -> None:
    assert await store.load("shop") == Stored(None, 0, 0)


async def test_a_position_and_the_epoch_survive_a_restart(store: SqliteStore, path: Path) -> None:
    guard = await store.begin_epoch("shop")
    assert guard == Guard(epoch=1, version=0)
    guard = await store.commit("shop", guard, StateChange(POSITION))
    assert guard == Guard(epoch=1, version=1)
    await store.close()
    again = SqliteStore(path)
    await again.open()
    try:
        assert await again.load("shop") == Stored(POSITION, 1, 1, POSITION.last_pos)
        assert await again.begin_epoch("shop") == Guard(2, 1)
        assert await again.begin_epoch("shop", above=40) == Guard(41, 1)
        assert await again.begin_epoch("shop", above=3) == Guard(42, 1)
        assert await again.begin_epoch("other", above=9) == Guard(10, 0)
    finally:
        await again.close()


async def test_only_the_newest_guard_writes(store: SqliteStore, path: Path) -> None:
    old = await store.begin_epoch("shop")
    other = SqliteStore(path)  # as another process would
    await other.open()
    try:
        new = await other.begin_epoch("shop")
        with pytest.raises(Fenced, match="epoch 2"):
            await store.commit("shop", old, StateChange(POSITION, schema_entries=({"a": 1},)))
        assert await store.load("shop") == Stored(None, 2, 0)
        assert await store.schema_entries("shop") == []
        assert await store.history("shop") == []
        await other.commit("shop", new, StateChange(POSITION))
        with pytest.raises(Fenced, match="version 1"):
            await other.commit("shop", new, StateChange(POSITION))
        with pytest.raises(Fenced):
            await store.commit("unknown", Guard(0, 0), StateChange(POSITION))
    finally:
        await other.close()


async def test_one_write_holds_position_and_schema(store: SqliteStore) -> None:
    guard = await store.begin_epoch("shop")
    change = StateChange(
        POSITION,
        schema_entries=({"ddl": "create table 订单"}, {"ddl": "drop"}),
        actor="operator",
        details={"why": "try"},
    )
    await store.commit("shop", guard, change)
    assert await store.schema_entries("shop") == [{"ddl": "create table 订单"}, {"ddl": "drop"}]
    (entry,) = await store.history("shop")
    assert (entry.actor, entry.details, entry.position) == ("operator", {"why": "try"}, POSITION)


async def test_a_write_that_fails_in_the_middle_leaves_nothing(store: SqliteStore) -> None:
    guard = await store.begin_epoch("shop")
    with pytest.raises(TypeError):
        await store.commit("shop", guard, StateChange(POSITION, schema_entries=({"good": 1}, {"bad": object()})))
    assert await store.load("shop") == Stored(None, 1, 0)
    assert await store.schema_entries("shop") == []
    assert await store.commit("shop", guard, StateChange(POSITION)) == Guard(1, 1)


async def test_the_history_is_bounded_and_keeps_the_operator(store: SqliteStore) -> None:
    guard = await store.begin_epoch("shop")
    guard = await store.commit("shop", guard, StateChange(POSITION, actor="operator"))
    for offset in range(HISTORY_LENGTH + 5):
        guard = await store.commit("shop", guard, StateChange(replace(POSITION, offset=offset)))
    history = await store.history("shop", 5000)
    assert len(history) == HISTORY_LENGTH + 2
    offsets = [entry.position.offset for entry in history if entry.position and entry.actor == "checkpoint"]
    assert offsets == [*range(HISTORY_LENGTH + 4, 4, -1), 0]  # the newest, and the very first
    assert history[-1].actor == "operator"


async def test_a_position_that_is_taken_away_leaves_the_numbers_and_the_history(store: SqliteStore) -> None:
    guard = await store.commit("shop", await store.begin_epoch("shop"), StateChange(POSITION))
    guard = await store.commit("shop", guard, StateChange(None, ({"kind": "doubt"},), actor="operator"))
    assert await store.load("shop") == Stored(None, 1, 2, POSITION.last_pos)
    newest, before = await store.history("shop")
    assert (newest.actor, newest.position) == ("operator", None)
    assert before.position == POSITION
    assert await store.schema_entries("shop") == [{"kind": "doubt"}]
    await store.commit("shop", guard, StateChange(replace(POSITION, last_pos=7)))
    assert (await store.load("shop")).last_pos == 7


async def test_it_is_durable_and_private(store: SqliteStore, path: Path) -> None:
    for pragma, value in (("journal_mode", "wal"), ("synchronous", 2)):
        assert await store.read(lambda db, name=pragma: db.execute(f"pragma {name}").fetchone()[0]) == value
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"this is no database, but long enough to be read as one" * 100, b"SQLite format 3\0x"]
)
async def test_a_file_that_is_no_database_is_left_alone(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    store = SqliteStore(path)
    with pytest.raises(StoreDamagedError, match="left the file as it is") as caught:
        await store.open()
    assert str(path) in str(caught.value)
    assert not caught.value.retriable
    assert path.read_bytes() == content
    assert inspect(path) == [str(caught.value)]
    await store.close()


async def test_a_damaged_page_is_found(store: SqliteStore, path: Path) -> None:
    guard = await store.begin_epoch("shop")
    for _ in range(40):
        guard = await store.commit("shop", guard, StateChange(POSITION, details={"text": "x" * 500}))
    await store.close()
    raw = bytearray(path.read_bytes())
    for at in range(4096, len(raw), 4096):
        raw[at : at + 200] = b"\xee" * 200
    path.write_bytes(raw)
    with pytest.raises(StoreDamagedError, match="is damaged"):
        await SqliteStore(path).open()
    assert path.read_bytes() == raw


async def test_a_position_that_is_none_is_reported(store: SqliteStore, path: Path) -> None:
    await store.begin_epoch("shop")
    await store.write(lambda db: db.execute("update destinations set position = '{}'"))
    with pytest.raises(StoreDamagedError, match="position of shop"):
        await store.load("shop")


async def test_other_programs_and_later_layouts_are_refused(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("create table t (a)")
    connection.close()
    with pytest.raises(StoreDamagedError, match="another program"):
        await SqliteStore(path).open()
    path.unlink()
    store = SqliteStore(path)
    await store.open()
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version = 99")
    connection.close()
    with pytest.raises(StoreDamagedError, match="layout 99"):
        await SqliteStore(path).open()


async def test_a_disk_that_hangs_costs_the_limit_only_and_not_the_loop(path: Path) -> None:
    store = SqliteStore(path, timeout=0.05)
    store._timeout = 5.0
    await store.open()
    store._timeout = 0.05
    release = threading.Event()
    hanging = asyncio.create_task(store.write(lambda _: release.wait()))
    with pytest.raises(StateStoreError, match=r"did not write within 0\.05 s"):
        await hanging
    with pytest.raises(StateStoreError, match="did not read"):  # waits behind the one that hangs
        await store.load("shop")
    release.set()
    store._timeout = 5.0
    assert await store.load("shop") == Stored(None, 0, 0)
    await store.close()
    await store.close()
    with pytest.raises(StateStoreError, match="not open"):
        await store.load("shop")


async def test_a_locked_file_is_a_sentence(store: SqliteStore, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("begin immediate")
        await store.read(lambda db: db.execute("pragma busy_timeout = 1"))
        with pytest.raises(StateStoreError, match="locked") as caught:
            await store.begin_epoch("shop")
        assert caught.value.retriable
        other.execute("rollback")
        assert await store.begin_epoch("shop") == Guard(1, 0)
    finally:
        other.close()


async def test_a_folder_that_is_a_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "headrace.db"
    with pytest.raises(StateStoreError, match="can't open"):
        await SqliteStore(path).open()
    assert len(inspect(path)) == 1


@pytest.mark.parametrize(
    "place", ["folder", "file/headrace.db", "/proc/headrace/headrace.db", "loose", "away/headrace.db", "x" * 300]
)
async def test_what_a_start_would_refuse_an_inspection_refuses(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loose").symlink_to(tmp_path / "nowhere" / "at-all.db")
    (tmp_path / "away").symlink_to(tmp_path / "nowhere")
    path = tmp_path / place
    with pytest.raises(StateStoreError):
        await SqliteStore(path).open()
    (problem,) = await SqliteStore(path).problems("shop")
    assert f"the state store {path} can't be " in problem
    assert "[state] path" in problem
    assert sorted(one.name for one in tmp_path.iterdir()) == ["away", "file", "folder", "loose"]


async def test_inspecting_creates_nothing(path: Path) -> None:
    assert inspect(path) == []
    assert not path.parent.exists()
    store = SqliteStore(path)
    await store.open()
    await store.open()
    assert inspect(path) == []
    await store.close()


async def test_a_cancellation_that_comes_with_the_answer_is_not_lost(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    task = asyncio.create_task(store.load("shop"))
    await asyncio.sleep(0)
    time.sleep(0.1)  # noqa: ASYNC251  (the answer comes while the loop is busy)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.close()
