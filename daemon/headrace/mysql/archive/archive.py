"""An archive: segments are added to it, and any part of its files is read."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import orjson
import zstandard

from headrace import runtime
from headrace.errors import ArchiveDamaged, ArchiveError
from headrace.mysql.archive.index import BinlogFile, Line, Segment, segment_operation
from headrace.mysql.archive.journal import Journal, decoded, encoded
from headrace.mysql.archive.object_store import UrlStore
from headrace.mysql.archive.recorder import FRAME, Facts
from headrace.mysql.archive.sealing import Seal
from headrace.mysql.archive.store import FolderStore, ObjectExists, ObjectMissing, ObjectStore, Stored
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.wire.binlog_file import file_number
from headrace.native import Choice, find
from headrace.settings.archive import ArchiveSettings

_KEPT = 4
"""Number of files whose lists of segments are kept in memory."""
_SHARED = 16
"""Number of frames, mostly of 1 MB, that are kept for other destinations."""
_LEFT = 86400.0
"""Seconds after which no command enters an object into the journal any more."""
_OBJECT = re.compile(r"(?:\d{4}|import|probe)/")
"""Objects whose names are not those of journal and checkpoints, nor a file of somebody else."""
_REPLACED = 600.0
"""Seconds that a segment is kept after it was put together with others: who reads it, or copies the folder, may go
on."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of a binlog file, decompressed: from offset `start` on."""

    start: int
    data: bytes


class Frames:
    """The last decompressed parts of an archive's files: destinations that catch up together read the same ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._one = asyncio.Lock()

    async def get(self, key: tuple[str, int], read: Callable[[], Awaitable[bytes]]) -> bytes:
        """Returns the part with a key: its segment's SHA-256 and its offset. `read` reads it if it is not kept."""
        async with self._one:
            data = self._kept.pop(key, None) or await read()
            self._kept[key] = data
            while len(self._kept) > _SHARED:
                self._kept.popitem(last=False)
        return data

    def clear(self) -> None:
        """Frees the memory once a destination stops reading the archive. Others read again what they still need."""
        self._kept.clear()


def _store(settings: ArchiveSettings) -> ObjectStore:
    if settings.url is None:
        return FolderStore(settings.folder)
    return UrlStore(settings.url, {name: value.get_secret_value() for name, value in settings.options.items()})


class Archive:
    """The archive in a store. Every method raises ArchiveError. `native` is native code, or None; `frames` are shared
    with other destinations."""

    def __init__(
        self, store: ObjectStore, seal: Seal, level: int = 1, native: Any = None, frames: Frames | None = None
    ) -> None:
        self.store, self._seal, self._level, self.native, self.shared = store, seal, level, native, frames
        self.journal = Journal(store, seal)
        self._lists: OrderedDict[str, list[Segment]] = OrderedDict()
        self._replaced: deque[tuple[float, str]] = deque()
        """Objects that were put together with others, and when, on the monotonic clock."""

    @classmethod
    def of(cls, settings: ArchiveSettings, native: Choice = "auto", frames: Frames | None = None) -> Archive:
        """Returns the archive of a configuration, not loaded; `native` is that of [daemon]. Only a folder's frames are
        shared: an object store is read faster by several at once."""
        shared = frames if settings.url is None else None
        return cls(_store(settings), Seal(settings.key_bytes), settings.level, find(native).module, shared)

    @property
    def lines(self) -> Sequence[Line]:
        """Returns its lines, as of the last load or refresh, oldest first."""
        return self.journal.index.lines

    async def refresh(self) -> bool:
        """Reads what was added since; returns whether there was something."""
        return await self.journal.refresh()

    def line(self, number: int) -> Line:
        """Returns a line. Raises ObjectMissing if it is not archived any more."""
        for one in self.lines:
            if one.number == number:
                return one
        raise ObjectMissing(f"line {number} is not in the archive at {self.store.place} any more")

    def file_and_next(self, line: int, name: str) -> tuple[BinlogFile, BinlogFile | None]:
        """Returns a file of a line, and the one after it, None if that is not archived. Raises ObjectMissing if the
        file is not archived any more."""
        files = self.line(line).files
        for at, one in enumerate(files):
            if one.name == name:
                return one, files[at + 1] if at + 1 < len(files) else None
        raise ObjectMissing(f"{name} is not in the archive at {self.store.place} any more")

    # -- writing ------------------------------------------------------------------------------------------------------

    async def add_segment(
        self, folder: str, file: str, start: int, frames: Sequence[bytes], facts: Facts, level: int = 0
    ) -> Segment:
        """Stores frames that continue a file of a line's folder at `start`. The segment counts once its operation is in
        the journal; see segment_operation()."""
        end = start + sum(map(len, frames))
        name = f"{folder}/{file}/{start:015d}-{end:015d}.{self.journal.index.epoch:06d}.zst"
        stored, digest = await runtime.in_thread(self._packed, name, start, frames)
        segment = Segment(
            name,
            start,
            end,
            tuple((len(raw), len(one)) for raw, one in zip(frames, stored, strict=True)),
            digest,
            facts.first_us,
            facts.last_us,
            facts.gtid_text,
            None if facts.tables is None else tuple(sorted(f"{schema}.{table}" for schema, table in facts.tables)),
            facts.last_event,
            level,
        )
        await self._create(name, b"".join(stored))
        return segment

    async def put_together(self) -> None:
        """Replaces small segments at the end of the last file by larger ones: with semi-synchronous acknowledgement
        each commit makes one."""
        line = self.lines[-1]
        file = line.files[-1]
        while small := file.small():
            facts, frames, last, size = Facts(), list[bytes](), list[bytes](), 0
            async for frame in self.frames(file, small[0].start):
                last.append(frame.data)
                size += len(frame.data)
                if size >= FRAME:
                    frames.append(b"".join(last))
                    last, size = [], 0
            if last:
                frames.append(b"".join(last))
            for one in small:
                facts.note_segment(one)
            level = small[0].level + 1
            segment = await self.add_segment(line.folder, file.name, small[0].start, frames, facts, level)
            await self.journal.append(segment_operation(segment, "together"))
            self._replaced += ((runtime.monotonic(), one.object) for one in small)
        while self._replaced and self._replaced[0][0] < runtime.monotonic() - _REPLACED:
            await self.store.delete(self._replaced[0][1])
            self._replaced.popleft()

    def _packed(self, name: str, start: int, frames: Sequence[bytes]) -> tuple[list[bytes], str]:
        compressor = zstandard.ZstdCompressor(level=self._level, write_checksum=True, write_content_size=True)
        digest, stored, at = hashlib.sha256(), list[bytes](), start
        for raw in frames:
            one = self._seal.seal(compressor.compress(raw), f"{name}@{at}")
            digest.update(one)
            stored.append(one)
            at += len(raw)
        return stored, digest.hexdigest()

    async def close_file(self) -> None:
        """Records that nothing follows in the last file."""
        line = self.lines[-1]
        file = line.files[-1]
        await self.journal.append({"op": "close", "index": await self.add_list(line.folder, file.name, file.segments)})

    async def add_list(self, folder: str, file: str, segments: Sequence[Segment]) -> str:
        """Stores the list of a complete file's segments; returns the name of its object."""
        name = f"{folder}/{file}/index.{self.journal.index.epoch:06d}.json"
        await self._create(name, encoded({"segments": [asdict(one) for one in segments]}, name, self._seal))
        return name

    async def prune(self, line: Line, files: Sequence[BinlogFile]) -> None:
        """Deletes files of a line: first from the index, then their objects, and what else is in the same folders."""
        objects = [file.index or file.segments[0].object for file in files if file.index or file.segments]
        await self.journal.append({"op": "prune", "line": line.number, "files": [file.name for file in files]})
        for name in objects:
            for one in await self.store.names(name.rpartition("/")[0]):
                await self.store.delete(one)

    async def _create(self, name: str, data: bytes) -> None:
        """Creates an object whose name has our epoch: if there is one, it is ours, and nothing refers to it yet."""
        try:
            await self.store.create(name, data)
        except ObjectExists:
            await self.store.delete(name)
            await self.store.create(name, data)

    async def delete_unused(self) -> None:
        """Deletes what former writers have stored for the last two files and not entered into the journal, or put
        together: their objects have lower epochs in their names than ours, and nothing that a later writer adds has."""
        await self.store.sweep()
        for file in self.lines[-1].files[-2:] if self.lines else ():
            used = {file.index, *(segment.object for segment in await self.segments(file))}
            for name in await self.store.names(f"{self.lines[-1].folder}/{file.name}"):
                epoch = name.rsplit(".", 2)[-2]
                if name not in used and epoch.isdigit() and int(epoch) < self.journal.index.epoch:
                    await self.store.delete(name)

    async def unused(self) -> list[Stored]:
        """Returns the objects that nothing refers to, and that are old enough not to be referred to later: a command
        that was killed has left them. Those of the file that grows are left to the writer. Returns none while the
        index is empty: its journal may have been lost, and then they are the archive."""
        before = runtime.now() - _LEFT
        stored = [one for one in await self.store.everything() if one.created < before and _OBJECT.match(one.name)]
        await self.refresh()
        if not self.lines:
            return []
        used = set[str]()
        for file in (file for line in self.lines for file in line.files):
            used |= {file.index, *(segment.object for segment in await self.segments(file))}
        growing = tuple(f"{self.lines[-1].folder}/{file.name}/" for file in self.lines[-1].files[-2:])
        return [one for one in stored if one.name not in used and not one.name.startswith(growing)]

    # -- reading ------------------------------------------------------------------------------------------------------

    async def segments(self, file: BinlogFile) -> list[Segment]:
        """Returns the segments of a file, in order."""
        if not file.index:
            return list(file.segments)
        known = self._lists.pop(file.index, None)
        if known is None:
            raw = decoded(await self.store.read(file.index), file.index, self._seal)
            try:
                known = [Segment.from_dict(one) for one in raw["segments"]]
            except (KeyError, TypeError, ValueError, orjson.JSONDecodeError) as error:
                raise ArchiveError(f"{file.index} of the archive can't be read ({error!r})") from error
        self._lists[file.index] = known
        while len(self._lists) > _KEPT:
            self._lists.popitem(last=False)
        return known

    async def executed(self, line: Line) -> GtidSet:
        """Returns what its server had executed where a line ends; empty without GTIDs of MySQL."""
        gtids = GtidSet()
        if line.gtid_mode and line.files:
            gtids = GtidSet(line.files[-1].gtids)
            for segment in await self.segments(line.files[-1]):
                gtids = gtids.plus(GtidSet(segment.gtids))
        return gtids

    async def follows(self, one: BinlogFile, two: BinlogFile, *, whole: bool) -> bool:
        """Returns whether the second file continues the first, which is `whole` if its last event closes it. GTIDs
        prove it, or that it does not; without them the names and times must fit."""
        if file_number(one.name) + 1 != file_number(two.name):
            return False
        executed = [one.gtids, *(segment.gtids for segment in await self.segments(one))]
        if not any(":" in gtids for gtids in (two.gtids, *executed)):
            return whole and one.begun <= two.begun
        before = GtidSet()
        for gtids in executed:
            before = before.plus(GtidSet(gtids))
        return str(before) == str(GtidSet(two.gtids))

    async def frames(self, file: BinlogFile, offset: int = 0) -> AsyncIterator[Frame]:
        """Yields the frames of a file from the one on that has `offset`, as far as it is archived now."""
        done, failed = 0, -1
        while True:
            try:
                async for frame in self._frames(file, done or offset):
                    yield frame if frame.start >= done else Frame(done, frame.data[done - frame.start :])
                    done = frame.start + len(frame.data)
                return
            except ObjectMissing:  # a segment may have been put together with others since
                if failed == done or (present := await self._present(file)) is None:
                    raise
                file, failed = present, done

    async def _present(self, file: BinlogFile) -> BinlogFile | None:
        """Returns what is archived of a file now; None if it is not any more."""
        await self.refresh()
        files = (one for line in self.lines for one in line.files)
        same = [one for one in files if (one.name, one.begun, one.gtids) == (file.name, file.begun, file.gtids)]
        return same[-1] if same else None

    async def replacing(self, file: BinlogFile, segment: Segment) -> list[Segment] | None:
        """Returns the segments of a file now, if this one is not among them any more: [] if the file was deleted; else
        None."""
        present = await self._present(file)
        segments = await self.segments(present) if present is not None else []
        return None if segment in segments else segments

    async def _frames(self, file: BinlogFile, offset: int) -> AsyncIterator[Frame]:
        for segment in await self.segments(file):
            if segment.end <= offset:
                continue
            at, place = segment.start, 0
            for size, stored in segment.frames:
                if at + size > offset:
                    read = partial(self._read_frame, segment.object, at, size, place, stored)
                    key = segment.sha256, at
                    yield Frame(at, await read() if self.shared is None else await self.shared.get(key, read))
                at, place = at + size, place + stored

    async def _read_frame(self, name: str, at: int, size: int, place: int, stored: int) -> bytes:
        return await runtime.in_thread(self._unpacked, name, at, size, await self.store.read(name, place, stored))

    def _unpacked(self, name: str, at: int, size: int, data: bytes) -> bytes:
        plain = self._seal.open(data, f"{name}@{at}")
        try:
            raw = zstandard.ZstdDecompressor().decompress(plain, max_output_size=size)
        except zstandard.ZstdError as error:
            raise ArchiveDamaged(f"{name} of the archive is damaged at offset {at} of its file: {error}") from None
        if len(raw) != size:
            raise ArchiveDamaged(f"{name} of the archive is damaged: a frame has {len(raw)} bytes instead of {size}")
        return raw

    async def verify_segment(self, segment: Segment) -> str:
        """Returns what is wrong with a segment; "" if nothing is. Reads all of it."""
        try:
            data = await self.store.read(segment.object)
        except ArchiveError as error:
            return str(error)
        return await runtime.in_thread(self._verified, segment, data)

    def _verified(self, segment: Segment, data: bytes) -> str:
        if hashlib.sha256(data).hexdigest() != segment.sha256:
            return f"{segment.object} is damaged: its SHA-256 is not the recorded one"
        at, place = segment.start, 0
        try:
            for size, stored in segment.frames:
                self._unpacked(segment.object, at, size, data[place : place + stored])
                at, place = at + size, place + stored
        except ArchiveError as error:
            return str(error)
        return "" if at == segment.end else f"{segment.object} ends at {at} instead of {segment.end}"
