"""Archives of the source's binlog: a lock ends with its process; at the end each archive must be whole, and equal."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.mysql import source
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.commands import MysqlArchiveCommands
from headrace.mysql.archive.sealing import Seal
from headrace.mysql.archive.store import FolderStore
from headrace.mysql.schema.states import reached
from headrace.settings.archive import ArchiveSettings
from sim.mysql.binlog import MAGIC, BinlogFile

if TYPE_CHECKING:
    from sim.daemon import SimDaemon
    from sim.world import World


def prepare(world: World) -> None:
    """Has destinations read their archive instead of the source soon: a simulated binlog is small."""
    if world.plan.archive:
        source._FAR = 20_000


def folder(world: World, daemon: SimDaemon) -> Path:
    """Returns where a daemon has its archive: each one for itself, or all in one folder."""
    return (daemon.folder if world.plan.archive == "own" else daemon.folder.parent) / "archive"


def release(world: World, daemon: SimDaemon) -> None:
    """Ends a process's lock: another process may take it."""
    lock = folder(world, daemon) / "lock"
    if lock.exists() and lock.read_text().startswith(f"{daemon.name} "):
        lock.unlink()


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
