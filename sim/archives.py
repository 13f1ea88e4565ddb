"""Archives of the source's binlog: their store has faults, a lock ends with its process; what was stored survives a
loss of power; at the end each archive must be whole, and equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import runtime
from headrace.errors import ArchiveError
from headrace.mysql import source
from headrace.mysql.archive import archive as archive_module
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.commands import MysqlArchiveCommands
from headrace.mysql.archive.sealing import Seal
from headrace.mysql.archive.store import FolderStore
from headrace.mysql.schema.states import reached
from headrace.settings.archive import ArchiveSettings
from sim.loop import LANE
from sim.mysql.binlog import MAGIC, BinlogFile

if TYPE_CHECKING:
    from sim.daemon import SimDaemon
    from sim.plan import Fault
    from sim.world import World


@dataclass(slots=True)
class StoreFaults:
    """What the stores of all archives do wrong."""

    errors: float = 0.0
    """The part of all calls that fail and do nothing."""
    lost: float = 0.0
    """The part of all creations that are done, and fail."""
    full: float = 0.0
    """Above 0, nothing can be created."""
    delay: float = 0.0
    """Maximum seconds of a call. What the caller does not wait for any more is done nevertheless."""


class FaultyStore(FolderStore):
    """A folder whose calls are late, fail, or are done although they fail, as those of an object store."""

    def __init__(self, folder: Path, world: World) -> None:
        super().__init__(folder)
        self._world, self._random = world, world.rng("archive store").random

    async def create(self, name: str, data: bytes) -> None:
        await self._call(self._create, name, data, creates=True)
        self._world.archived[self._folder / name] = len(data)

    async def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        return bytes(await self._call(self._read, name, start, size))

    async def names(self, folder: str) -> list[str]:
        return list(await self._call(self._names, folder))

    async def delete(self, name: str) -> None:
        self._world.archived.pop(self._folder / name, None)
        await self._call(self._delete, name)

    async def _call(self, call: Callable[..., Any], *given: Any, creates: bool = False) -> Any:
        faults, loop = self._world.store_faults, self._world.loop
        if faults == StoreFaults():
            return await runtime.in_thread(call, *given)
        done, random = loop.create_future(), self._random
        failure = ArchiveError(f"{call.__name__} of the archive failed")

        def run() -> None:
            try:
                if random() < faults.errors or (creates and faults.full):
                    raise failure
                made = call(*given)
                if creates and random() < faults.lost:
                    raise failure
            except ArchiveError as error:
                if not done.done():
                    done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(made)

        loop.call_later(random() * (faults.delay or 0.002), run, context=LANE.get().process.context())
        return await done


def prepare(world: World) -> None:
    """Has destinations read their archive instead of the source soon: a simulated binlog is small. The stores get what
    faults they have."""
    if world.plan.archive:
        source._FAR = 20_000
        archive_module.FolderStore = partial(FaultyStore, world=world)  # type: ignore[attr-defined, assignment]


def _begin(name: str, world: World, fault: Fault) -> Callable[[], None] | None:
    """Begins a fault of the stores; returns what ends it, None if there is one of the kind already."""
    faults = world.store_faults
    if getattr(faults, name):
        return None
    setattr(faults, name, fault.number)
    return partial(setattr, faults, name, 0.0)


KINDS: dict[str, Callable[[World, Fault], Callable[[], None] | None]] = {
    "archive errors": partial(_begin, "errors"),
    "lost archive answers": partial(_begin, "lost"),
    "full archive": partial(_begin, "full"),
    "slow archive": partial(_begin, "delay"),
}


def folder(world: World, daemon: SimDaemon) -> Path:
    """Returns where a daemon has its archive: each one for itself, or all in one folder."""
    return (daemon.folder if world.plan.archive == "own" else daemon.folder.parent) / "archive"


def release(world: World, daemon: SimDaemon) -> None:
    """Ends a process's lock: another process may take it."""
    lock = folder(world, daemon) / "lock"
    if lock.exists() and lock.read_text().startswith(f"{daemon.name} "):
        lock.unlink()


def judge_power_loss(world: World, daemon: SimDaemon) -> None:
    """Judges that every object is still there whose creation was confirmed to a daemon."""
    mine = [(path, size) for path, size in world.archived.items() if path.is_relative_to(daemon.folder)]
    for path, size in mine:
        if not path.exists() or path.stat().st_size != size:
            world.checker.violation(f"{path.relative_to(daemon.folder.parent)} was stored, and is lost with the power")
        world.archived.pop(path)


def complete(world: World, end: tuple[str, int] | None = None) -> bool:
    """Returns whether each archive has all that the source has written, or all before `end`."""
    last = world.mysql.engine.binlog.last
    wanted = end or (last.name, last.size)
    kept = set[Path]()
    for daemon in world.daemons.values():
        progress = [status.archive.progress for status in daemon.destinations()]
        if any(one is not None and reached((one.file, one.offset), wanted) for one in progress):
            kept.add(folder(world, daemon))
    return kept == {folder(world, daemon) for daemon in world.daemons.values()}


async def check(world: World) -> None:
    """Compares each archive with the binlogs that the source still has, and verifies it."""
    if world.coverage.lost and not world.checker.unsafe:
        world.checker.violation(f"a position was lost that the archives have: {dict(world.coverage.lost)}")
    files = {file.name: file for file in world.mysql.engine.binlog.files}
    for place in sorted({folder(world, daemon) for daemon in world.daemons.values()}):
        commands = MysqlArchiveCommands(ArchiveSettings(path=place), "checker")
        for problem in await commands.verify(lambda *_: None):
            world.checker.violation(f"the archive {place.parent.name}: {problem}")
        archive = Archive(FolderStore(place), Seal())
        await archive.refresh()
        if len(archive.lines) > 1:
            world.checker.violation(f"the archive {place.parent.name} has lines {[str(one) for one in archive.lines]}")
        for one, two in pairwise(archive.lines[-1].files):
            if not await archive.follows(one, two, whole=one.closed):
                world.checker.violation(f"by its index {two.name} of the archive does not follow {one.name}")
        for one in archive.lines[-1].files:
            data = b"".join([frame.data async for frame in archive.frames(one)])
            if (file := files.get(one.name)) is not None and not _same(file, data, closed=one.closed):
                world.checker.violation(f"the archive {place.parent.name} differs from the source in {one.name}")


def _same(file: BinlogFile, data: bytes, *, closed: bool) -> bool:
    """Returns whether archived bytes are the file's, or with a file that grows its begin. The first event says that the
    file is in use; a dump does not."""
    whole, begin = file.as_bytes(), MAGIC + len(file.events[0])
    return whole[begin : len(data)] == data[begin:] and (not closed or len(data) == len(whole))
