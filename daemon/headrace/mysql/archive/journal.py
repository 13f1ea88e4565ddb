"""The journal of an archive: numbered entries, each created once. So of two writers one fails, and nothing is written
over."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any
from zlib import crc32

import orjson

from headrace import runtime
from headrace.errors import ArchiveDamaged, ArchiveError
from headrace.mysql.archive.index import Index
from headrace.mysql.archive.sealing import Seal
from headrace.mysql.archive.store import ObjectExists, ObjectMissing, ObjectStore

_EACH = 256
"""Entries between two checkpoints."""
_NAME = re.compile(r"([0-9]{12,})\.json")
_TRIES = 5
_CLAIMS = 200
"""Attempts to add an entry while another writer adds some all the time."""
_KEPT = 600.0
"""Seconds that an entry is kept after a checkpoint has made it superfluous. A writer that was stopped for less than
_LATE notices by the number that another one has taken over; after that it checks the checkpoints too."""
_LATE = 300.0


COMMAND = ", a command"
"""The end of the name of a writer that adds or deletes files once, and then leaves the archive to the daemon."""


class ArchiveTaken(ArchiveError):
    """Another writer has taken the archive over."""


def encoded(value: dict[str, Any], name: str, seal: Seal) -> bytes:
    """Returns a JSON object as stored, with its CRC32 before it."""
    body = orjson.dumps(value)
    return seal.seal(b"%08x " % crc32(body) + body, name)


def decoded(data: bytes, name: str, seal: Seal) -> dict[str, Any]:
    """Reads a stored JSON object. Raises ArchiveError."""
    plain = seal.open(data, name)
    try:
        if int(plain[:8], 16) != crc32(plain[9:]):
            raise ValueError("its CRC32 is wrong")
        value = orjson.loads(plain[9:])
        if not isinstance(value, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise ArchiveDamaged(
            f"{name} of the archive is damaged: {error}",
            remedy="put a copy of this file in its place; 'headrace archive verify DESTINATION' lists what is damaged",
        ) from None
    return value


class Journal:
    """The entries and checkpoints of one archive, and the index that follows from them. Every method raises
    ArchiveError; several tasks may use it."""

    def __init__(self, store: ObjectStore, seal: Seal) -> None:
        self._store, self._seal = store, seal
        self.index = Index()
        self.number = 0
        """The number of the last entry that is applied to the index."""
        self._epoch = 0
        """Ours as a writer; 0 for a reader."""
        self._known_at = 0.0, 0.0
        """When we last wrote an entry, on the monotonic clock and on the wall clock."""
        self._checkpoint = self._oldest = 0
        """The number of our last checkpoint, and of the oldest entry that may be there."""
        self._one = asyncio.Lock()
        """Held by the task that changes the index."""
        self._old: list[tuple[float, int]] = []
        """When checkpoints were written, on the monotonic clock, and their numbers."""

    async def load(self) -> None:
        """Reads the newest checkpoint, and the entries after it."""
        async with self._one:
            await self._load_again()

    async def _load_again(self) -> None:
        for attempt in range(_TRIES):
            try:
                await self._load()
                return
            except ObjectMissing:  # deleted meanwhile, because there is a newer checkpoint
                if attempt == _TRIES - 1:
                    raise

    async def _load(self) -> None:
        checkpoints = await self._numbered("state")
        index, number = Index(), 0
        if checkpoints:
            name = checkpoints[-1]
            raw = decoded(await self._store.read(name), name, self._seal)
            index, number = Index.from_dict(raw["index"]), int(raw["number"])
        entries = await self._numbered("journal")
        self._oldest = _number(entries[0]) if entries else number
        for name in entries:
            if _number(name) <= number:
                continue
            if _number(name) != number + 1:
                raise ObjectMissing(
                    f"the archive at {self._store.place} lacks entry {number + 1} of its journal",
                    remedy="put the file back from a copy of the archive",
                )
            self._apply(index, decoded(await self._store.read(name), name, self._seal))
            number += 1
        self.index, self.number = index, number

    async def _numbered(self, folder: str) -> list[str]:
        """Returns the names of our objects in a folder, in order."""
        return [name for name in await self._store.names(folder) if _number(name) >= 0]

    async def refresh(self) -> bool:
        """Reads what a writer has added since; returns whether there was something."""
        async with self._one:
            before = self.number
            if not before or not await self._has(before):  # deleted: there is a checkpoint, or another archive
                await self._load_again()
                return self.number != before
            while True:
                name = _entry(self.number + 1)
                try:
                    data = await self._store.read(name)
                except ObjectMissing:
                    return self.number != before
                try:
                    self._apply(self.index, decoded(data, name, self._seal))
                except ArchiveError:
                    self.number = 0  # the index may be half changed: the next call reads all of it again
                    raise
                self.number += 1

    async def _has(self, number: int) -> bool:
        """Returns whether an entry, or a checkpoint at it, is there."""
        for name in (_entry(number), _checkpoint(number)):
            with contextlib.suppress(ObjectMissing):
                await self._store.read(name, 0, 1)
                return True
        return False

    async def _passed(self) -> bool:
        """Returns whether a checkpoint has a higher number than ours."""
        checkpoints = await self._numbered("state")
        return bool(checkpoints) and _number(checkpoints[-1]) > self.number

    async def claim(self, by: str) -> None:
        """Makes us the writer; any other one fails from now on."""
        await self.load()
        for _ in range(_CLAIMS):
            self._epoch, self._known_at = self.index.epoch + 1, (runtime.monotonic(), runtime.now())
            try:
                await self.append({"op": "claim", "epoch": self._epoch, "by": by})
                return
            except ArchiveTaken:
                await self.refresh()
        text = f"another writer adds to the archive at {self._store.place} all the time"
        raise ArchiveTaken(text, remedy="try again in a moment")

    async def append(self, *operations: dict[str, Any]) -> None:
        """Adds an entry; its operations are durable, and applied to the index, when this returns. Raises ArchiveTaken
        if we are not the writer any more: then nothing was added."""
        async with self._one:
            await self._append(*operations)

    async def _append(self, *operations: dict[str, Any]) -> None:
        if self.number and not await self._has(self.number):
            if await self._passed():
                raise ArchiveTaken(f"the archive at {self._store.place} has got another writer meanwhile")
            raise ArchiveError(
                f"the archive at {self._store.place} no longer has entry {self.number} of its journal: it was deleted, "
                "or the folder is another one",
                remedy="put the folder back, or what was archived before is lost; a new archive begins",
            )
        name, mark = _entry(self.number + 1), runtime.new_id()
        value = {"epoch": self._epoch, "mark": mark, "at_us": runtime.now_us(), "operations": list(operations)}
        try:
            await self._store.create(name, encoded(value, name, self._seal))
        except ObjectExists:
            found = decoded(await self._store.read(name), name, self._seal)
            if found.get("mark") != mark:  # else only the answer to our request was lost
                raise ArchiveTaken(f"the archive at {self._store.place} has another writer") from None
        now = runtime.monotonic(), runtime.now()  # the former may stand still while a machine is suspended
        late = any(there - before > _LATE for there, before in zip(now, self._known_at, strict=True))
        if late and await self._passed():
            raise ArchiveTaken(f"the archive at {self._store.place} has got another writer meanwhile")
        self._known_at = now
        self._apply(self.index, value)
        self.number += 1
        if self.number - self._checkpoint >= _EACH:
            await self._write_checkpoint()

    async def _write_checkpoint(self) -> None:
        name = _checkpoint(self.number)
        value = {"number": self.number, "index": self.index.to_dict()}
        try:
            await self._store.create(name, encoded(value, name, self._seal))
        except ObjectExists:
            return  # by another writer, who has the archive now
        self._checkpoint = self.number
        self._old.append((runtime.monotonic(), self.number))
        done = [number for at, number in self._old[:-1] if runtime.monotonic() - at > _KEPT]
        if not done:
            return
        self._old = [one for one in self._old if one[1] > done[-1]]
        for number in range(self._oldest, done[-1]):
            await self._store.delete(_entry(number))
        self._oldest = done[-1]
        for old in await self._numbered("state"):
            if _number(old) < done[-1]:
                await self._store.delete(old)

    def _apply(self, index: Index, entry: dict[str, Any]) -> None:
        try:
            for operation in entry["operations"]:
                index.apply(operation)
        except (KeyError, TypeError, ValueError, IndexError, StopIteration) as error:
            raise ArchiveError(
                f"the journal of the archive at {self._store.place} does not fit together ({error!r})",
                remedy="'headrace archive verify DESTINATION' lists what is damaged",
            ) from error


def _entry(number: int) -> str:
    return f"journal/{number:012d}.json"


def _checkpoint(number: int) -> str:
    return f"state/{number:012d}.json"


def _number(name: str) -> int:
    """Returns the number in the name of an entry or a checkpoint; -1 for a foreign file."""
    found = _NAME.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found else -1
