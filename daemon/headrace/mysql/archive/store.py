"""Where an archive is stored: named objects, each written once. Here in a folder of a file system."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from headrace import runtime
from headrace.errors import ArchiveError

_LONG = 3600.0
"""Seconds after which nobody writes a file any more."""
_UNFINISHED = ".new"
"""The end of the name of a file that is being written."""


class ObjectExists(ArchiveError):
    """An object of this name was created before."""


class ObjectMissing(ArchiveError):
    """There is no object of this name."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as a store lists it."""

    name: str
    size: int
    created: float
    """In seconds since 1970."""


class ObjectStore(ABC):
    """Objects by name; `/` separates folders. An object is never changed. Every method raises ArchiveError."""

    place: str
    """Where it is, for people."""

    @abstractmethod
    async def create(self, name: str, data: bytes) -> None:
        """Creates an object; it is durable when this returns. Of several writers of one name exactly one succeeds.
        Raises ObjectExists."""

    @abstractmethod
    async def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        """Returns an object, or `size` bytes of it from `start` on. Raises ObjectMissing."""

    @abstractmethod
    async def names(self, folder: str) -> list[str]:
        """Returns the names of the objects in a folder, sorted; [] if there is none."""

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Deletes an object; safe if it is missing."""

    @abstractmethod
    async def sweep(self) -> None:
        """Deletes what creations have left that were cut off long ago."""

    @abstractmethod
    async def everything(self) -> list[Stored]:
        """Returns all objects, in any order."""

    @abstractmethod
    async def check(self) -> None:
        """Raises ArchiveError if the store can't be used, or replaces objects that exist."""


class FolderStore(ObjectStore):
    """Objects as files of a folder. A file is complete, and on the disk, before it gets its name."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.place = folder, str(folder)

    async def create(self, name: str, data: bytes) -> None:
        await runtime.in_thread(self._create, name, data)

    async def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        return await runtime.in_thread(self._read, name, start, size)

    async def names(self, folder: str) -> list[str]:
        return await runtime.in_thread(self._names, folder)

    async def delete(self, name: str) -> None:
        await runtime.in_thread(self._delete, name)

    async def sweep(self) -> None:
        await runtime.in_thread(self._sweep)

    async def everything(self) -> list[Stored]:
        return await runtime.in_thread(self._everything)

    async def check(self) -> None:
        """Does nothing: a name is taken by a link, which no file system makes twice."""

    def _sweep(self) -> None:
        with contextlib.suppress(OSError):
            for file in self._folder.rglob(f"*{_UNFINISHED}"):
                if runtime.now() - file.stat().st_mtime > _LONG:
                    file.unlink(missing_ok=True)

    def _create(self, name: str, data: bytes) -> None:
        path = self._folder / name
        unfinished = path.with_name(f"{path.name}.{runtime.new_id()}{_UNFINISHED}")
        try:
            self._make_folder(path.parent)
            file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
                runtime.sync(file)
            finally:
                os.close(file)
            os.link(unfinished, path)  # fails if the name is taken, as rename() would not
            self._sync_folder(path.parent)
        except FileExistsError:
            raise ObjectExists(f"{path} exists already") from None
        except OSError as error:
            raise ArchiveError(
                f"the archive can't write {path}: {error.strerror}", remedy=_ROOM.format(self._folder)
            ) from error
        finally:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)

    def _make_folder(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for one in reversed(missing):
            one.mkdir(mode=0o750, exist_ok=True)
            self._sync_folder(one.parent)

    @staticmethod
    def _sync_folder(folder: Path) -> None:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            runtime.sync(file)
        finally:
            os.close(file)

    def _read(self, name: str, start: int, size: int | None) -> bytes:
        path = self._folder / name
        try:
            with path.open("rb") as file:
                file.seek(start)
                return file.read(size)
        except FileNotFoundError:
            raise ObjectMissing(f"{path} is missing in the archive") from None
        except OSError as error:
            raise ArchiveError(f"the archive can't read {path}: {error.strerror}") from error

    def _names(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._folder / folder) as entries:
                found = [entry.name for entry in entries if entry.is_file() and not entry.name.endswith(_UNFINISHED)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ArchiveError(f"the archive can't list {self._folder / folder}: {error.strerror}") from error
        return [f"{folder}/{name}" for name in sorted(found)]

    def _everything(self) -> list[Stored]:
        try:
            files = [one for one in self._folder.rglob("*") if one.is_file() and one.suffix != _UNFINISHED]
            facts = [(one.relative_to(self._folder).as_posix(), one.stat()) for one in files]
        except OSError as error:
            raise ArchiveError(f"the archive can't list {self._folder}: {error.strerror}") from error
        return [Stored(name, stat.st_size, stat.st_mtime) for name, stat in facts]

    def _delete(self, name: str) -> None:
        try:
            (self._folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise ArchiveError(f"the archive can't delete {self._folder / name}: {error.strerror}") from error


_ROOM = "make room on its disk, or check the owner and rights of {}; or set [archive] keep or keep_bytes"
