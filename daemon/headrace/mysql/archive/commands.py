"""What commands do with an archive of binlogs: list, verify, export, import and prune it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from headrace import runtime
from headrace.errors import ArchiveError, NotUnderstood, Refusal
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.index import ArchivedFile as File
from headrace.mysql.archive.index import Line
from headrace.mysql.archive.journal import ArchiveTaken
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.archive.retention import superfluous
from headrace.mysql.events.event_types import FORMAT_DESCRIPTION
from headrace.mysql.events.gtid import GtidSet
from headrace.mysql.wire.binlog_file import MAGIC, file_number, packets
from headrace.ports.archive import Advance, ArchiveCommands, ArchivedFile
from headrace.settings.archive import ArchiveSettings

_TRIES = 5
_AGAIN = "copy the files again, whole: with mysqlbinlog --raw, or after FLUSH BINARY LOGS"


class MysqlArchiveCommands(ArchiveCommands):
    """See ArchiveCommands. `node` names who writes."""

    def __init__(self, settings: ArchiveSettings, node: str) -> None:
        self._archive, self._node = Archive.of(settings), node
        self._entering = False
        """Whether objects may be in the index, so that they must not be deleted any more."""

    async def files(self) -> list[ArchivedFile]:
        await self._archive.refresh()
        return [_shown(line, file) for line in self._archive.lines for file in line.files]

    async def verify(self, advance: Advance) -> list[str]:
        archive, problems = self._archive, list[str]()
        await archive.refresh()
        files = [file for line in archive.lines for file in line.files]
        done, total = 0, sum(file.stored for file in files)
        for file in files:
            at = 0
            try:
                segments = await archive.segments(file)
            except ArchiveError as error:
                problems.append(str(error))
                continue
            for segment in segments:
                if segment.start != at:
                    problems.append(f"{file.name}: nothing has the bytes from {at} to {segment.start}")
                if problem := await archive.verify_segment(segment):
                    problems.append(problem)
                at, done = segment.end, done + segment.stored
                advance(done, total, file.name)
            if at != file.size:
                problems.append(f"{file.name}: nothing has the bytes from {at} to {file.size}")
        return problems

    async def export(self, folder: Path, first: str, last: str, advance: Advance) -> list[str]:
        await self._archive.refresh()
        files = self._range(first, last)
        done, total = 0, sum(file.size for file in files)
        try:
            await runtime.in_thread(partial(folder.mkdir, parents=True, exist_ok=True))
        except OSError as error:
            raise Refusal(f"{folder} can't be created: {error.strerror}") from error
        for file in files:
            try:
                with (folder / file.name).open("xb") as written:
                    async for frame in self._archive.frames(file):
                        written.write(frame.data)
                        done += len(frame.data)
                        advance(done, total, file.name)
            except FileExistsError:
                raise Refusal(f"{folder / file.name} exists", remedy="name another folder") from None
            except OSError as error:
                (folder / file.name).unlink(missing_ok=True)
                raise Refusal(f"{folder / file.name} can't be written: {error.strerror}") from error
        return [file.name for file in files]

    def _range(self, first: str, last: str) -> list[File]:
        for line in reversed(self._archive.lines):
            begin, end = (line.index_of(name) if name else None for name in (first, last))
            if line.files and (begin is not None or not first) and (end is not None or not last):
                if end is not None and (begin or 0) > end:
                    raise Refusal(f"{first} comes after {last}", remedy="exchange --from and --until")
                return line.files[begin or 0 : None if end is None else end + 1]
        wanted = " and ".join(name for name in (first, last) if name) or "anything"
        raise Refusal(f"no line of the archive has {wanted}", remedy="'headrace archive list' shows what it has")

    async def add(self, paths: Sequence[Path], server: str, advance: Advance) -> list[str]:
        archive = self._archive
        _require_sequence(paths)
        await archive.refresh()
        server = server or (archive.lines[-1].server if archive.lines else "")
        if not server:
            raise Refusal(
                "the archive is empty, so it is not known which server wrote these files",
                remedy="give --server: its server_uuid; for MariaDB mariadb-DOMAIN-SERVERID",
            )
        folder = f"import/{runtime.new_id()}"
        line = Line(0, server, "", server.startswith("mariadb-"), False, 0, "import")
        done, total = 0, sum(path.stat().st_size for path in paths)
        closed = list[bool]()
        try:
            for path in paths:
                closed.append(await self._add_file(line, folder, path))
                done += path.stat().st_size
                advance(done, total, path.name)
            return await self._enter(line, closed)
        except BaseException:
            if not self._entering:  # else the entry may be there, although we do not know
                await self._discard(line)
            raise

    async def _add_file(self, line: Line, folder: str, path: Path) -> bool:
        """Stores a file's segments and their list, and adds its entry to the line. Returns whether its last event
        closes it."""
        archive, recorder, start = self._archive, None, 0
        file = File(path.name)
        line.files.append(file)
        for chunk in packets(path):
            if recorder is None:
                if len(chunk) < 76 or chunk[9] != FORMAT_DESCRIPTION:
                    raise NotUnderstood(f"{path} does not begin with an event that describes its format")
                line.version = line.version or chunk[26:76].rstrip(b"\0").decode("ascii", "replace")
                recorder = Recorder(path.name, 4, checksums=False, source=str(path), native=archive.native)
            recorder.feed(chunk)
            if recorder.ended:
                raise NotUnderstood(f"{path} has events of {recorder.ended} too")
            if recorder.whole and recorder.waiting:
                frames, facts = recorder.take()
                file.add(await archive.add_segment(folder, path.name, start, frames, facts))
                start = recorder.end
        if recorder is None or recorder.waiting:
            raise NotUnderstood(f"{path} ends within an event")
        file.begun, file.gtids = recorder.begun, recorder.gtids
        line.gtid_mode = line.gtid_mode or any(":" in segment.gtids for segment in file.segments)
        file.close(await archive.add_list(folder, path.name, file.segments))
        return recorder.closed

    async def _enter(self, line: Line, closed: list[bool]) -> list[str]:
        """Adds the line's files to the index, without those that are archived already. Returns the names of the
        others."""
        archive = self._archive
        for attempt in range(_TRIES):
            await archive.journal.claim(self._node)
            ours = [one for one in archive.lines if one.server == line.server and one.files]
            known = {(file.name, file.size, file.begun, file.gtids) for one in ours for file in one.files}
            new = [file for file in line.files if (file.name, file.size, file.begun, file.gtids) not in known]
            if not new:
                await self._discard(line)
                return []
            grows = archive.lines[-1] if archive.lines else None
            parts = [one for one in ours if one is not grows and _is_part(one.files[-1], new[0])]
            before = parts or [
                one for one in ours if one is not grows and await self._follows(one.files[-1], new[0], whole=True)
            ]
            after = [one for one in ours if await self._follows(new[-1], one.files[0], whole=closed[-1])]
            for at, (one, two) in enumerate(pairwise(line.files)):
                if not await self._follows(one, two, whole=closed[at]):
                    raise Refusal(f"{two.name} does not follow {one.name}", remedy=_AGAIN)
            if not closed[-1] and not after:
                raise Refusal(f"{line.files[-1].name} is not complete: nothing closes it", remedy=_AGAIN)
            number = 1 + max((one.number for one in archive.lines), default=0)
            entered = replace(line, number=number, files=new)
            operation = {
                "op": "import",
                "line": asdict(entered),
                "before": before[-1].number if before else None,
                "after": after[-1].number if after else None,
            }
            replaced = [replace(one.files[-1]) for one in parts[-1:]]
            self._entering = True
            try:
                await archive.journal.append(operation)
                superfluous = [*replaced, *(file for file in line.files if file not in new)]
                await self._discard(replace(line, files=superfluous))
                return [file.name for file in new]
            except ArchiveTaken:  # by the daemon, which archives meanwhile: nothing was added
                self._entering = False
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _follows(self, one: File, two: File, *, whole: bool) -> bool:
        """Returns whether the second file continues the first, which is `whole` if its last event closes it. GTIDs
        prove it; without them the names and times must fit."""
        if file_number(one.name) + 1 != file_number(two.name):
            return False
        if ":" not in two.gtids:
            return whole and one.begun <= two.begun
        gtids = GtidSet(one.gtids)
        for segment in await self._archive.segments(one):
            gtids = gtids.plus(GtidSet(segment.gtids))
        return str(gtids) == str(GtidSet(two.gtids))

    async def _discard(self, line: Line) -> None:
        """Deletes objects that nothing refers to."""
        for file in line.files:
            with contextlib.suppress(ArchiveError):
                for segment in await self._archive.segments(file):
                    await self._archive.store.delete(segment.object)
                if file.index:
                    await self._archive.store.delete(file.index)

    async def prune(
        self, keep: float, keep_bytes: int, needed: Sequence[Position], *, dry_run: bool = False
    ) -> list[ArchivedFile]:
        archive, deleted = self._archive, list[ArchivedFile]()
        await archive.refresh()
        found = superfluous(archive.journal.index, keep, keep_bytes, needed, runtime.now_us())
        if dry_run or not found:
            return [_shown(line, file) for line, files in found for file in files]
        await archive.journal.claim(self._node)
        for line, files in superfluous(archive.journal.index, keep, keep_bytes, needed, runtime.now_us()):
            deleted += [_shown(line, file) for file in files]
            await archive.prune(line, files)
        return deleted


def _is_part(archived: File, whole: File) -> bool:
    """Returns whether an archived file is the beginning of another one."""
    same = (archived.name, archived.begun, archived.gtids) == (whole.name, whole.begun, whole.gtids)
    return same and archived.size < whole.size


def _require_sequence(paths: Sequence[Path]) -> None:
    for path in paths:
        if not file_number(path.name):
            raise Refusal(f"{path.name} is no name of a binlog", remedy="give it the server's name, mysql-bin.000007")
    for one, two in pairwise(paths):
        if file_number(one.name) + 1 != file_number(two.name):
            raise Refusal(f"{two.name} does not follow {one.name}", remedy="give files in order and without a gap")
    for path in paths:
        try:
            with path.open("rb") as file:
                head = file.read(4)
        except OSError as error:
            raise Refusal(f"{path} can't be read: {error.strerror}") from error
        if head != MAGIC:
            why = "is encrypted (binlog_encryption)" if head == b"\xfdbin" else "is no binlog"
            raise NotUnderstood(f"{path} {why}", remedy="copy it with mysqlbinlog --raw, from the server")


def _shown(line: Line, file: File) -> ArchivedFile:
    return ArchivedFile(
        line.server, line.number, file.name, file.size, file.stored, file.closed, file.first_us, file.last_us
    )
