"""Reads back the files that the jsonl sink has written: the rotated ones and the present one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Sequence

from headrace import runtime
from headrace.adapters.jsonl.rotation import RotatedFiles
from headrace.adapters.jsonl.settings import JsonlSinkSettings
from headrace.errors import SinkError
from headrace.ports.replay import Published, Replay

_BLOCK = 4 << 20
"""Bytes of one read; a longer line takes more."""
_ATTEMPTS = 10
"""Attempts to list all files between two rotations."""


class JsonlReplay(Replay):
    """Reads files, also while a daemon writes them. A file is identified by its number on the disk, so that one that
    was rotated meanwhile is continued where it was left. An incomplete last line is left for the next call."""

    def __init__(self, settings: JsonlSinkSettings) -> None:
        self._path = os.path.realpath(settings.path)
        self._keep_files = settings.keep_files
        self._done: dict[tuple[int, int], int] = {}
        """By device and number of a file: the offset up to which it was read."""
        self._given = self._all = 0
        """Bytes that the present read() has given, and their total."""

    async def read(self) -> AsyncIterator[Sequence[Published]]:
        try:
            files = await runtime.in_thread(self._list)
            self._given, self._all = 0, sum(end - self._done.get(identity, 0) for identity, _, end in files)
            for identity, path, end in files:
                while (at := self._done.get(identity, 0)) < end:
                    lines, taken = await runtime.in_thread(_lines, path, identity, at, end)
                    if taken < 0:  # it was rotated meanwhile, and has another path now
                        path = {one: where for one, where, _ in await runtime.in_thread(self._list)}.get(identity, "")
                        if not path:
                            raise SinkError(f"a rotated file of {self._path} was removed while it was read")
                        continue
                    if not taken:
                        break
                    self._done[identity] = at + taken
                    self._given += taken
                    yield [Published(line) for line in lines if line]
        except OSError as error:
            raise SinkError(f"{error.filename or self._path} can't be read: {error.strerror}") from error

    def share(self) -> float | None:
        return min(1.0, self._given / self._all) if self._all > 0 else None

    def _list(self) -> list[tuple[tuple[int, int], str, int]]:
        """Returns each existing file, in the order in which they were written: its identity, path and size."""
        for _ in range(_ATTEMPTS):
            paths = RotatedFiles(self._path).paths()
            found = [_identified(path) for path in (*paths, self._path) if os.path.exists(path)]
            if RotatedFiles(self._path).paths() == paths:
                break
        if not found:
            raise SinkError(f"there is no file {self._path}: nothing was published yet")
        return found

    def notes(self) -> list[str]:
        if not self._keep_files:
            return []
        return [f"only the newest {self._keep_files} rotated files are kept: rows that only older ones had are missing"]

    async def close(self) -> None:
        self._done.clear()


def _identified(path: str) -> tuple[tuple[int, int], str, int]:
    info = os.stat(path)
    return (info.st_dev, info.st_ino), path, info.st_size


def _lines(path: str, identity: tuple[int, int], at: int, end: int) -> tuple[list[bytes], int]:
    """Returns the whole lines from an offset on, and their bytes; -1 if the path now has another file, or none."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "rb"))
        except FileNotFoundError:
            return [], -1
        info = os.fstat(file.fileno())
        if (info.st_dev, info.st_ino) != identity:
            return [], -1
        file.seek(at)
        size = _BLOCK
        while True:
            data = file.read(min(size, end - at))
            cut = data.rfind(b"\n") + 1
            if cut or len(data) < size:
                return data[:cut].split(b"\n")[:-1], cut
            file.seek(at)
            size *= 2
