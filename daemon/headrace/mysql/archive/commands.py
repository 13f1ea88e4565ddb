"""What commands do with an archive of binlogs: list, verify, export, import and prune it."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from headrace import runtime
from headrace.errors import ArchiveError, NotUnderstood, Refusal
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.index import IMPORTED, BinlogFile, Line
from headrace.mysql.archive.journal import COMMAND, ArchiveTaken
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.archive.retention import superfluous
from headrace.mysql.events.event_types import FORMAT_DESCRIPTION
from headrace.mysql.wire.binlog_file import MAGIC, file_number, packets
from headrace.ports.archive import Advance, ArchiveCommands, ArchivedFile
from headrace.settings.archive import ArchiveSettings

_TRIES = 5
_AGAIN = "copy the files again, whole: with mysqlbinlog --raw, or after FLUSH BINARY LOGS"


class MysqlArchiveCommands(ArchiveCommands):
    """See ArchiveCommands. `node` names who writes."""

    def __init__(self, settings: ArchiveSettings, node: str) -> None:
        self._archive, self._node = Archive.of(settings), node + COMMAND

    async def check(self) -> None:
        await self._archive.store.check()

    async def files(self) -> list[ArchivedFile]:
        await self._archive.refresh()
        return [_shown(line, file) for line in self._archive.lines for file in line.files]

    async def verify(self, advance: Advance) -> list[str]:
        archive, problems = self._archive, list[str]()
        await archive.refresh()
        files = [file for line in archive.lines for file in line.files]
        for line in archive.lines:
            for one, two in pairwise(line.files):
                if file_number(one.name) + 1 != file_number(two.name):
                    problems.append(f"line {line.number} has nothing between {one.name} and {two.name}")
        done, total = 0, sum(file.stored for file in files)
        for file in files:
            at = 0
            try:
                segments = await archive.segments(file)
            except ArchiveError as error:
                problems.append(str(error))
                continue
            pending = deque(segments)
            while pending:
                segment = pending.popleft()
                problem = await archive.verify_segment(segment)
                if problem and (present := await archive.replacing(file, segment)) is not None:
                    if not present:  # deleted meanwhile
                        at = file.size
                        break
                    pending = deque(one for one in present if one.end > at)
                    continue
                if segment.start > at:
                    problems.append(f"{file.name}: nothing has the bytes from {at} to {segment.start}")
                if problem:
                    problems.append(problem)
                at, done = segment.end, done + segment.stored
                advance(done, total, file.name)
            if at < file.size:
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
            path = folder / file.name
            try:
                with path.open("xb") as written, _deleted_on_error(path):
                    async for frame in self._archive.frames(file):
                        written.write(frame.data)
                        done += len(frame.data)
                        advance(done, total, file.name)
            except FileExistsError:
                raise Refusal(f"{path} exists", remedy="name another folder") from None
            except OSError as error:
                raise Refusal(f"{path} can't be written: {error.strerror}") from error
        return [file.name for file in files]

    def _range(self, first: str, last: str) -> list[BinlogFile]:
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
        given, server = bool(server), server or (archive.lines[-1].server if archive.lines else "")
        if not server:
            raise Refusal(
                "the archive is empty, so it is not known which server wrote these files",
                remedy="give --server: its server_uuid; for MariaDB mariadb-DOMAIN-SERVERID",
            )
        number = 0 if given else await self._server_id(server)
        folder = f"import/{runtime.new_id()}"
        line = Line(0, server, "", server.startswith("mariadb-"), False, 0, IMPORTED)
        done, total = 0, sum(path.stat().st_size for path in paths)
        closed, entered = list[bool](), set[str]()
        try:
            for path in paths:
                number = _require_server(path, number)
                closed.append(await self._add_file(line, folder, path))
                done += path.stat().st_size
                advance(done, total, path.name)
            await self._require_sequence(line, closed)
            await self._enter(line, closed, entered)
            return [file.name for file in line.files if file.name in entered]
        finally:
            # What was to be entered may be there, although we do not know it.
            await self._discard([file for file in line.files if file.name not in entered])

    async def _server_id(self, server: str) -> int:
        """Returns the server_id in the newest archived file of a server; 0 if there is none."""
        for line in reversed(self._lines_of(server)):
            async for frame in self._archive.frames(line.files[-1], 4):
                return int.from_bytes(frame.data[9:13], "little")
        return 0

    async def _add_file(self, line: Line, folder: str, path: Path) -> bool:
        """Stores a file's segments and their list, and adds its entry to the line. Returns whether its last event
        closes it."""
        archive, recorder, start = self._archive, None, 0
        file = BinlogFile(path.name)
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

    async def _require_sequence(self, line: Line, closed: list[bool]) -> None:
        for at, (one, two) in enumerate(pairwise(line.files)):
            if not await self._archive.follows(one, two, whole=closed[at]):
                raise Refusal(f"{two.name} does not follow {one.name}", remedy=_AGAIN)

    async def _require_end(self, line: Line, closed: list[bool]) -> None:
        """Raises Refusal if nothing proves that the last file is whole."""
        last, ours = line.files[-1], self._lines_of(line.server)
        if closed[-1] or _is_known(ours, last):
            return
        for one in ours:
            if await self._archive.follows(last, one.files[0], whole=False):
                return
        raise Refusal(f"{last.name} is not complete: nothing closes it", remedy=_AGAIN)

    def _lines_of(self, server: str) -> list[Line]:
        return [one for one in self._archive.lines if one.server == server and one.files]

    async def _enter(self, line: Line, closed: list[bool], entered: set[str]) -> None:
        """Adds the line's files to the index, without those that are archived already: one after the other, as these
        may be between them. Adds the name of each to `entered` before it is tried."""
        left = deque(zip(line.files, closed, strict=True))
        for attempt in range(_TRIES):
            await self._archive.journal.claim(self._node)
            await self._require_end(line, closed)
            try:
                while left:
                    await self._enter_one(line, *left[0], entered)
                    left.popleft()
                return
            except ArchiveTaken:  # by the daemon, which archives meanwhile: nothing was added
                entered.discard(left[0][0].name)
                if attempt == _TRIES - 1:
                    raise

    async def _enter_one(self, line: Line, file: BinlogFile, closed: bool, entered: set[str]) -> None:
        """Adds a file to the index unless it is there."""
        archive, ours = self._archive, self._lines_of(line.server)
        if _is_known(ours, file):
            return
        grows = archive.lines[-1] if archive.lines else None
        parts = [one for one in ours if _is_part(one.files[-1], file)]
        complete = [one for one in ours if one is not grows or one.files[-1].closed]
        before = parts or [
            one for one in complete if await archive.follows(last := one.files[-1], file, whole=last.closed)
        ]
        after = [one for one in ours if await archive.follows(file, one.files[0], whole=closed)]
        new = replace(line, number=archive.journal.index.next_number, files=[file])
        operation = {
            "op": "import",
            "line": asdict(new),
            "before": before[-1].number if before else None,
            "after": after[-1].number if after else None,
        }
        replaced = [replace(one.files[-1]) for one in parts[-1:]]
        entered.add(file.name)
        await archive.journal.append(operation)
        await self._discard(replaced)

    async def _discard(self, files: Sequence[BinlogFile]) -> None:
        """Deletes objects that nothing refers to."""
        for file in files:
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

    async def unused(self, *, delete: bool = False) -> tuple[int, int]:
        found = await self._archive.unused()
        if delete:
            for one in found:
                await self._archive.store.delete(one.name)
        return len(found), sum(one.size for one in found)


@contextlib.contextmanager
def _deleted_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _is_known(lines: Sequence[Line], file: BinlogFile) -> bool:
    """Returns whether a file is archived already."""
    files = (one for line in lines for one in line.files)
    same = (file.name, file.size, file.begun, file.gtids)
    return any((one.name, one.size, one.begun, one.gtids) == same for one in files)


def _is_part(archived: BinlogFile, whole: BinlogFile) -> bool:
    """Returns whether an archived file is the beginning of another one."""
    same = (archived.name, archived.begun, archived.gtids) == (whole.name, whole.begun, whole.gtids)
    return same and archived.size < whole.size


def _require_server(path: Path, number: int) -> int:
    """Returns the server_id in a file's first event. Raises Refusal if it is not the expected one; 0: any is."""
    with path.open("rb") as file:
        found = int.from_bytes(file.read(13)[9:13], "little")
    if number and found != number:
        raise Refusal(
            f"{path} was written by the server with server_id {found} instead of {number}",
            remedy="if it is the same server, which had another server_id then, give --server with its server_uuid",
        )
    return found


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


def _shown(line: Line, file: BinlogFile) -> ArchivedFile:
    return ArchivedFile(
        line.server, line.number, file.name, file.size, file.stored, file.closed, file.first_us, file.last_us
    )
