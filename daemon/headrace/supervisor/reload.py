"""Applies new settings while the daemon runs: watches the destinations folder, reads what changed, refuses what is
wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from headrace import runtime
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
    """The last read of one file: its settings, or its errors."""

    stamp: Stamp | None
    settings: DestinationSettings | None = None
    problems: list[str] = field(default_factory=list)


class Reloader:
    """Checks the folder every `[daemon] watch` seconds, and reads a file when two checks in a row found it changed and
    equal, so that a file that is being written is not read. SIGHUP reads every file at once, and the files that
    references name.

    `errors` is live: a sentence for each problem of the present files. A refused file is not applied; its destination
    keeps its present settings, or is not started."""

    def __init__(self, settings: Settings, loader: Loader) -> None:
        self._settings, self._loader = settings, loader
        self._folder = settings.daemon.destinations
        self._files: dict[Path, _File] = {
            self._folder / f"{name}.toml": _File(None, one) for name, one in settings.destinations.items()
        }
        self._seen: dict[Path, Stamp] | None = None
        self._due: dict[Path, Stamp | None] = {}
        """The files that watch() has found to read, as they were at both checks."""
        self._main_problems: list[str] = []
        self._folder_problems: list[str] = []
        self.errors: list[str] = []

    async def watch(self) -> None:
        """Waits until files were added, changed or removed, and are complete; never returns if watching is off."""
        interval = self._settings.daemon.watch
        if not interval:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(interval)
            before, now = self._seen, await self._list()
            if now is None:
                continue
            self._seen = now
            self._due = self._settled(before, now) if before is not None else {}
            if self._due or self._folder_problems:
                return

    def _settled(self, before: dict[Path, Stamp], now: dict[Path, Stamp]) -> dict[Path, Stamp | None]:
        """Returns the files that differ from the last read, and were the same at two checks; None for those that are
        gone."""
        return {
            file: now.get(file)
            for file in self._files.keys() | now.keys()
            if before.get(file) == now.get(file)
            and (file not in now or file not in self._files or self._files[file].stamp != now[file])
        }

    async def read(
        self, running: Mapping[str, DestinationSettings], *, everything: bool
    ) -> Mapping[str, DestinationSettings]:
        """Returns the destinations that must run from now on; `running` are those that run.

        Reads what watch() has found, or everything. A refused file leaves its destination as it is."""
        if (now := await self._list()) is None:
            return running
        self._folder_problems = []
        due = {file: now.get(file) for file in self._files.keys() | now.keys()} if everything else self._due
        for file, stamp in due.items():
            if now.get(file) != stamp:
                continue  # it has changed again since the two equal checks
            if stamp is not None:
                self._files[file] = await runtime.in_thread(self._read, file, stamp)
            else:
                self._files.pop(file, None)
        self._due = {}
        if everything:
            self._main_problems = await runtime.in_thread(self._read_main)
        wanted, clashes = self._decide(running)
        self._report(clashes)
        return wanted

    def _read(self, file: Path, stamp: Stamp) -> _File:
        try:
            node, service = self._settings.daemon.node, self._settings.service
            return _File(stamp, self._loader.load_destination(file, self._settings.file, node, service))
        except ConfigError as error:
            return _File(stamp, None, error.problems)
        except Exception as error:
            # A bug of ours: other files must not wait for it.
            log.exception("a file can't be read", file=str(file))
            return _File(stamp, None, [f"{file}: can't be read: {type(error).__name__}"])

    def _read_main(self) -> list[str]:
        """Returns the problems of headrace.toml. A change of it is reported, because it needs a restart."""
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
        """Returns what must run: the settings of each file, or the running ones if it is refused; and the server ids
        that clash."""
        wanted: dict[str, DestinationSettings] = {}
        for file in sorted(self._files):
            settings = self._files[file].settings or running.get(file.stem)
            if settings is not None:
                wanted[file.stem] = settings
        clashes: dict[str, str] = {}
        while True:
            # Running destinations come first, so that a new one is refused and not they. A refused one keeps its
            # running settings, so another pass may find a new one that wanted its id.
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

    def _report(self, clashes: list[str]) -> None:
        """Updates `errors`; a problem is logged when it appears, and the end is logged when the last one is gone."""
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

    async def _list(self) -> dict[Path, Stamp] | None:
        """Returns the stamp of each destination's file. Returns None and logs it if the folder can't be listed: this is
        not an empty folder, because a missing mount must not end every destination."""
        try:
            return await runtime.in_thread(lambda: {file: _stamp(file) for file in destination_files(self._folder)})
        except OSError as error:
            where = f"{self._settings.file}: daemon.destinations"
            self._folder_problems = [f"{where}: the folder {self._folder} can't be read: {error.strerror}"]
            self._report([])
            return None


def _stamp(file: Path) -> Stamp:
    """Returns the stamp of a symbolic link's target. A file that can't be read gets one too; reading it reports the
    cause."""
    try:
        info = file.stat()
    except OSError:
        return _NOT_READABLE
    return info.st_mtime_ns, info.st_size, info.st_ino
