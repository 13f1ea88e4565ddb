"""What a daemon stores, on the simulated disk: whole and acknowledged after a power loss at any write, harmed by no
failing or full disk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson
import pytest

from headrace.adapters.jsonl.sink import JsonlSink
from headrace.adapters.sqlite.parking import SqliteParkingStore
from headrace.adapters.sqlite.state import SqliteStore, StoreDamagedError, inspect
from headrace.errors import ArchiveError, HeadraceError, StateStoreError
from headrace.lease import Guard, Lease
from headrace.model import Unit
from headrace.mysql.archive.store import FolderStore
from headrace.ports.parking import ParkedContent, ParkedEntry, ParkedMessage, ParkingState
from headrace.ports.state import StateChange
from headrace.runtime import CURRENT, Runtime
from sim.disk import Disk, below_sqlite
from tests.parked import batch, unit
from tests.positions import POSITION

NAME = "shop"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path, random.Random(1))
    with below_sqlite(disk):
        yield disk


def message(number: int, attempts: int = 1) -> ParkedMessage:
    entry = ParkedEntry(
        number, f"id{number}", "topic", "topic", 0, Unit(("shop.t",), (str(number),)), "refused", attempts,
        ParkingState.PENDING, 1, 2, 3, 500,
    )  # fmt: skip
    return ParkedMessage(entry, ParkedContent(bytes(500), b"key", ()))


@dataclass
class Model:
    """What must be stored."""

    position: int = 0
    entries: int = 0
    """Entries of the schema history."""
    parked: dict[int, int] = field(default_factory=dict)
    """Attempts by number."""

    def copy(self) -> Model:
        return replace(self, parked=dict(self.parked))


class Daemon:
    """Stores positions and parked messages, as a destination does, and restarts when its machine has lost power."""

    def __init__(self, path: Path, rng: random.Random, synchronous: str = "full") -> None:
        self.path, self.rng, self.synchronous = path, rng, synchronous
        self.known = Model()
        """What was acknowledged."""
        self.tried = Model()
        """The same with the write that was not."""
        self.number = 0

    async def run(self, steps: int = 1_000_000) -> None:
        """Runs until a write fails. Compares first what is there with what was acknowledged."""
        self.store = SqliteStore(self.path, timeout=60)
        await self.go_on(steps)

    async def go_on(self, steps: int) -> None:
        """Does the same with the store that is open, as a destination that is started again."""
        await self.store.open()
        await self.store.read(lambda db: db.execute(f"pragma synchronous = {self.synchronous}"))
        self.parking = SqliteParkingStore(self.store, NAME)
        await self.compare()
        guard = await self.store.begin_epoch(NAME)
        for _ in range(steps):
            guard = await self.step(guard)

    async def compare(self) -> None:
        stored = await self.store.load(NAME)
        found = Model(
            stored.position.offset if stored.position is not None else 0,
            len(await self.store.schema_entries(NAME)),
            {entry.number: entry.attempts for entry in await self.parking.entries()},
        )
        assert found in (self.known, self.tried), "neither what was acknowledged nor that with the last write"
        self.known = found.copy()

    async def step(self, guard: Guard) -> Guard:
        rng, tried = self.rng, self.known.copy()
        self.tried = tried
        numbers = sorted(tried.parked)
        chosen = rng.sample(numbers, min(len(numbers), rng.choice((1, 1, 3))))
        kind = rng.random()
        if kind < 0.5:
            tried.position += 1
            entries = rng.choice((0, 0, 1, 40))
            tried.entries += entries
            change = StateChange(replace(POSITION, offset=tried.position), ({"n": 1, "ddl": "x" * 300},) * entries)
            guard = await self.store.commit(NAME, guard, change)
        elif kind < 0.7 or not chosen:
            added = [message(self.number + i) for i in range(1, rng.choice((2, 2, 30)))]
            self.number += len(added)
            tried.parked |= {one.entry.number: 1 for one in added}
            await self.parking.add(guard, added)
        elif kind < 0.85:
            tried.parked |= dict.fromkeys(chosen, 7)
            await self.parking.update(guard, [message(number, 7).entry for number in chosen])
        else:
            tried.parked = {number: many for number, many in tried.parked.items() if number not in chosen}
            await self.parking.remove(guard, chosen)
        self.known = tried
        return guard


async def lose_power_often(disk: Disk, daemon: Daemon, times: int) -> None:
    for _ in range(times):
        disk.calls_left = daemon.rng.choice((3, 30, 300, 1000)) + daemon.rng.randrange(30)
        with pytest.raises(StateStoreError, match="disk I/O error"):
            await daemon.run()


async def test_a_power_loss_at_any_write_leaves_all_that_was_acknowledged(disk: Disk, tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "headrace.db", random.Random(2))
    await lose_power_often(disk, daemon, 30)
    assert daemon.known.position > 50


@pytest.mark.parametrize("synchronous", ["off", "normal"])
async def test_without_a_sync_at_each_commit_a_power_loss_is_seen(disk: Disk, tmp_path: Path, synchronous: str) -> None:
    daemon = Daemon(tmp_path / "headrace.db", random.Random(2), synchronous)
    with pytest.raises((AssertionError, HeadraceError)):
        await lose_power_often(disk, daemon, 30)


@pytest.mark.parametrize("trouble", ["failing", "full"])
async def test_a_disk_that_fails_or_is_full_harms_nothing(disk: Disk, tmp_path: Path, trouble: str) -> None:
    daemon, failures = Daemon(tmp_path / "headrace.db", random.Random(3)), 0
    await daemon.run(10)
    for number in range(40):
        disk.failing, disk.full = (0.02, False) if trouble == "failing" else (0.0, True)
        try:
            await (daemon.go_on(20) if number % 4 else daemon.run(20))
        except StoreDamagedError:
            raise
        except StateStoreError:
            failures += 1
        disk.failing, disk.full = 0.0, False
        if number % 4 == 1:
            await daemon.store.close()
            await daemon.run(5)
        elif number % 4 == 3:
            (disk.lose_power if number % 8 == 3 else disk.end_process)()
        else:
            await daemon.go_on(5)
    assert failures > 5


async def test_a_store_that_can_not_be_read_is_not_called_damaged(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    await Daemon(path, random.Random(5)).run(20)
    disk.failing, seen = 0.1, list[str]()
    for _ in range(40):
        seen += inspect(path)
        disk.end_process()
    assert len(seen) > 10
    assert all("disk I/O error" in one and "damaged" not in one for one in seen)


class OnDisk(Runtime):
    """Syncs files on a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self.disk = disk

    def worker(self, name: str) -> Executor:
        return ThreadPoolExecutor(1, name, lambda: CURRENT.set(self) and None)

    def sync(self, descriptor: int, *, metadata: bool = True) -> None:
        self.disk.sync_plain(descriptor)


async def test_a_power_loss_leaves_the_lines_that_were_confirmed(disk: Disk, tmp_path: Path) -> None:
    CURRENT.set(OnDisk(disk))
    path, rng, confirmed = tmp_path / "out.jsonl", random.Random(4), 0
    for _ in range(40):
        sink = JsonlSink(str(path), Lease())
        await sink.start()
        lines = [orjson.loads(line)["n"] for line in path.read_text().splitlines()]
        assert lines[:confirmed] == list(range(confirmed))
        for _ in range(rng.randrange(5)):
            disk.failing = rng.choice((0.0, 0.0, 0.5))
            sent = batch(unit("1"))
            sent.values = [b'{"n":%d}' % (len(lines) + number) for number in range(300)]
            with suppress(HeadraceError):
                await sink.publish(sent)
                confirmed = len(lines) + 300
            lines += range(len(lines), len(lines) + 300)
            disk.failing = 0.0
        disk.lose_power()
        await sink.close()
    assert confirmed > 1000


async def test_a_power_loss_leaves_the_objects_of_an_archive_that_were_stored(disk: Disk, tmp_path: Path) -> None:
    CURRENT.set(OnDisk(disk))
    store, rng, stored = FolderStore(tmp_path / "archive"), random.Random(5), dict[str, bytes]()
    for number in range(300):
        name, data = f"{number // 30}/{number}", rng.randbytes(rng.randrange(2000))
        disk.calls_left, disk.failing = rng.randrange(6), rng.choice((0.0, 0.0, 0.2))
        with suppress(ArchiveError):
            await store.create(name, data)
            stored[name] = data
        disk.failing = 0.0
        if not rng.randrange(4):
            disk.lose_power()
        assert all([await store.read(name) == data for name, data in stored.items()])
    assert 50 < len(stored) < 290
