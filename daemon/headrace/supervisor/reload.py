"""New settings while the daemon runs: watches the destinations folder, reads what changed, refuses what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from headrace.errors import ConfigError
from headrace.settings.checks import clashing
from headrace.settings.destination import DestinationSettings, Settings
from headrace.settings.load import Loader, destination_files

log = structlog.get_logger(__name__)

Stamp = tuple[int, int, int]
"""Of a file: time of the last change in nanoseconds, size, and inode, which a rename changes."""

_NOT_READABLE: Stamp = (0, 0, 0)


@dataclass(slots=True)
class _File:
    """One file as it was read last: its settings, or what is wrong with it."""

    stamp: Stamp | None
    settings: DestinationSettings | None = None
    problems: list[str] = field(default_factory=list)


class Reloader:
    """Looks at the folder every `[daemon] watch` seconds, and reads a file when two looks in a row found it new and
    equal, so that one that is being written is left alone. SIGHUP reads every file at once, and with them the files
    that references name.

    `errors` is live: a sentence for each problem of the files as they are now. What a refused file says is not taken
    over; its destination goes on with the settings that it has, or is not started.
    """

    def __init__(self, settings: Settings, loader: Loader) -> None:
        self._settings, self._loader = settings, loader
        self._folder = settings.daemon.destinations
        self._files: dict[Path, _File] = {
            self._folder / f"{name}.toml": _File(None, one) for name, one in settings.destinations.items()
        }
        self._looked: dict[Path, Stamp] | None = None
        self._due: dict[Path, Stamp | None] = {}
        """What watch() has found: the files to read, as they were at both looks."""
        self._main_problems: list[str] = []
        self._folder_problems: list[str] = []
        self.errors: list[str] = []

    async def watch(self) -> None:
        """Returns once files were added, changed or removed, and are complete; never when watching is off."""
        interval = self._settings.daemon.watch
        if not interval:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(interval)
            before, now = self._looked, await self._look()
            if now is None:
                continue
            self._looked = now
            self._due = self._settled(before, now) if before is not None else {}
            if self._due or self._folder_problems:
                return

    def _settled(self, before: dict[Path, Stamp], now: dict[Path, Stamp]) -> dict[Path, Stamp | None]:
        """The files that are not as they were read, and the same at two looks; None for those that are gone."""
        return {
            file: now.get(file)
            for file in self._files.keys() | now.keys()
            if before.get(file) == now.get(file)
            and (file not in now or file not in self._files or self._files[file].stamp != now[file])
        }

    async def read(
        self, running: Mapping[str, DestinationSettings], *, everything: bool
    ) -> Mapping[str, DestinationSettings]:
        """The destinations that are to run from now on; `running` are those that do.

        Reads what watch() has found, or everything. A file that is refused leaves its destination as it is.
        """
        if (now := await self._look()) is None:
            return running
        self._folder_problems = []
        due = {file: now.get(file) for file in self._files.keys() | now.keys()} if everything else self._due
        for file, stamp in due.items():
            if now.get(file) != stamp:
                continue  # it has changed again since the looks that agreed
            if stamp is not None:
                self._files[file] = await asyncio.to_thread(self._read, file, stamp)
            else:
                self._files.pop(file, None)
        self._due = {}
        if everything:
            self._main_problems = await asyncio.to_thread(self._read_main)
        wanted, clashes = self._decide(running)
        self._tell(clashes)
        return wanted

    def _read(self, file: Path, stamp: Stamp) -> _File:
        try:
            node, service = self._settings.daemon.node, self._settings.service
            return _File(stamp, self._loader.load_destination(file, self._settings.file, node, service))
        except ConfigError as error:
            return _File(stamp, None, error.problems)
        except Exception as error:
            # A fault of ours: no other file waits for it.
            log.exception("a file can't be read", file=str(file))
            return _File(stamp, None, [f"{file}: can't be read: {type(error).__name__}"])

    def _read_main(self) -> list[str]:
        """The problems of headrace.toml; what is new in it is told, because it needs a restart."""
        try:
            new = self._loader.load_main(self._settings.file)
        except ConfigError as error:
            return error.problems
        keys = [new.service or self._settings.service] if new.cluster != self._settings.cluster else []
        keys += [
            f"{section}.{key}"
            for section in ("daemon", "state", "http", "log")
            for key in type(getattr(new, section)).model_fields
            if getattr(getattr(new, section), key) != getattr(getattr(self._settings, section), key, None)
        ]
        if keys:
            log.warning(
                "headrace.toml has changed; that needs a restart of the daemon",
                file=str(self._settings.file),
                keys=keys,
            )
        return []

    def _decide(self, running: Mapping[str, DestinationSettings]) -> tuple[dict[str, DestinationSettings], list[str]]:
        """What is to run: of each file its settings, or what runs when it is refused; and the server ids that clash."""
        wanted: dict[str, DestinationSettings] = {}
        for file in sorted(self._files):
            settings = self._files[file].settings or running.get(file.stem)
            if settings is not None:
                wanted[file.stem] = settings
        clashes: dict[str, str] = {}
        while True:
            # Those that run already come first, so that a newcomer is refused and not they. What is refused falls back
            # to the settings that run, so another pass may find a newcomer that wanted its id.
            kept = [one for name, one in wanted.items() if running.get(name) == one]
            new = [one for name, one in wanted.items() if running.get(name) != one]
            found = clashing([*kept, *new], self._folder)
            if not found:
                return wanted, list(clashes.values())
            clashes = {**found, **clashes}
            for name in found:
                del wanted[name]
                if name in running:
                    wanted[name] = running[name]

    def _tell(self, clashes: list[str]) -> None:
        """Brings `errors` up to date; a problem is logged when it appears, and when the last has gone."""
        now = [*self._main_problems, *self._folder_problems]
        now += [problem for file in sorted(self._files) for problem in self._files[file].problems]
        now += clashes
        for problem in now:
            if problem not in self.errors:
                log.error(
                    "the configuration is refused; what runs goes on with the old settings",
                    problem=problem,
                    help=ConfigError([]).help,
                )
        if self.errors and not now:
            log.info("the configuration is right again")
        self.errors[:] = now

    async def _look(self) -> dict[Path, Stamp] | None:
        """The stamp of each destination's file. None, which is told, when the folder can't be listed: not the same as
        an empty one, because a mount that is away must not end every destination."""
        try:
            return await asyncio.to_thread(lambda: {file: _stamp(file) for file in destination_files(self._folder)})
        except OSError as error:
            where = f"{self._settings.file}: daemon.destinations"
            self._folder_problems = [f"{where}: the folder {self._folder} can't be read: {error.strerror}"]
            self._tell([])
            return None


def _stamp(file: Path) -> Stamp:
    """Of a symbolic link's target; a file that can't be looked at is there all the same, and its reading says why."""
    try:
        info = file.stat()
    except OSError:
        return _NOT_READABLE
    return info.st_mtime_ns, info.st_size, info.st_ino
