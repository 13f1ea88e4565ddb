"""Reads back the files that the jsonl sink has written: those that it was rotated into, and the present one."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence

from headrace.adapters.jsonl.rotation import RotatedFiles
from headrace.adapters.jsonl.settings import JsonlSinkSettings
from headrace.errors import SinkError
from headrace.ports.replay import Published, Replay

_BLOCK = 4 << 20
"""Bytes that are read at once; a longer line takes more."""
_LOOKS = 10
"""Attempts to see all files between two rotations."""


class JsonlReplay(Replay):
    """A file is known by its number on the disk, so that one that was rotated meanwhile is read on where it was left.
    Half a line at a file's end is left for the next call. A daemon may be writing."""

    def __init__(self, settings: JsonlSinkSettings) -> None:
        self._path = os.path.realpath(settings.path)
        self._keep_files = settings.keep_files
        self._done: dict[tuple[int, int], int] = {}
        """By device and number of a file: up to where it was read."""
        self._given = self._all = 0
        """Bytes that the present read() has given, and all of them."""

    async def read(self) -> AsyncIterator[Sequence[Published]]:
        try:
            files = await asyncio.to_thread(self._look)
            self._given, self._all = 0, sum(end - self._done.get(identity, 0) for identity, _, end in files)
            for identity, path, end in files:
                while (at := self._done.get(identity, 0)) < end:
                    lines, taken = await asyncio.to_thread(_lines, path, identity, at, end)
                    if taken < 0:  # it was rotated meanwhile, and has another path now
                        path = {one: where for one, where, _ in await asyncio.to_thread(self._look)}.get(identity, "")
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

    def _look(self) -> list[tuple[tuple[int, int], str, int]]:
        """Each file that is there, in the order in which they were written: who it is, where, and its size."""
        for _ in range(_LOOKS):
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
    """Whole lines from an offset on, and how many bytes they are; -1 when another file is there now, or none."""
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
