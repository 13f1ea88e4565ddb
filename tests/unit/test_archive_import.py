"""Files that were copied from a server become part of an archive, if they are whole and of the same history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ArchiveError, HeadraceError, Refusal
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.commands import MysqlArchiveCommands
from headrace.mysql.archive.index import segment_operation
from headrace.mysql.archive.journal import Journal
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.wire.binlog_file import packets
from headrace.settings.archive import ArchiveSettings
from tests.made_binlog import SID, Binlog
from tests.unit.test_archive_files import FIRST_US, file_of, ways

__all__ = ["ways"]


def previous(last: int) -> bytes:
    """The body of an event that says that transactions 1 to `last` were executed before the file."""
    sid = bytes.fromhex(SID.replace("-", ""))
    if not last:
        return (0).to_bytes(8, "little")
    numbers = (1, 1, 1, last + 1)
    return numbers[0].to_bytes(8, "little") + sid + b"".join(one.to_bytes(8, "little") for one in numbers[1:])


def copied(
    folder: Path, number: int, first: int, count: int, *, closed: bool = True, more: int = 0, gtids: bool = True
) -> Path:
    """A file of `count` transactions from number `first` on. `more` shifts their times. Without `gtids`
    neither these nor what was executed before the file is in it."""
    log = Binlog().begin_file(f"b.{number:06d}")
    if gtids:
        log.event(35, previous(first - 1))
    for at in range(first, first + count):
        if gtids:
            log.transaction(at, FIRST_US + more + at, [(at, f"row {at}")])
        else:
            log.query("BEGIN")
            log.table()
            log.insert((at, f"row {at}"))
            log.event(16, at.to_bytes(8, "little"))
    if closed:
        log.event(4, (4).to_bytes(8, "little") + f"b.{number + 1:06d}".encode())
    path = folder / f"b.{number:06d}"
    path.write_bytes(file_of(bytes(log.packets)))
    return path


async def add(folder: Path, *paths: Path, server: str = "u") -> list[str]:
    commands = MysqlArchiveCommands(ArchiveSettings(path=folder / "archive"), "test")
    return await commands.add(paths, server, lambda *_: None)


async def lines(folder: Path) -> list[list[str]]:
    archive = Archive.of(ArchiveSettings(path=folder / "archive"))
    await archive.refresh()
    return [[file.name[-1] for file in line.files] for line in archive.lines]


def objects(folder: Path) -> list[Path]:
    return list((folder / "archive").rglob("*.zst"))


async def test_files_that_follow_each_other_become_one_line_and_are_known_the_second_time(tmp_path: Path) -> None:
    one, two, three = (copied(tmp_path, number, 10 * number - 9, 10) for number in (1, 2, 3))
    assert await add(tmp_path, one, two) == ["b.000001", "b.000002"]
    assert await add(tmp_path, one, two) == []
    assert await add(tmp_path, two, three) == ["b.000003"]
    assert len(objects(tmp_path)) == 3, "what was known leaves nothing"
    assert sum(map(len, await lines(tmp_path))) == 3


async def test_a_file_of_a_server_with_another_server_id_is_refused_unless_its_server_is_named(tmp_path: Path) -> None:
    one, two = copied(tmp_path, 1, 1, 10), copied(tmp_path, 2, 11, 10)
    await add(tmp_path, one)
    data = bytearray(two.read_bytes())
    data[9:13] = (99).to_bytes(4, "little")
    (other := tmp_path / "other" / two.name).parent.mkdir()
    other.write_bytes(data)
    with pytest.raises(Refusal, match=r"with server_id 99 instead of 1 -> .* give --server"):
        await add(tmp_path, other, server="")
    with pytest.raises(Refusal, match="with server_id 99 instead of 1"):
        await add(tmp_path / "new", two, other.rename(tmp_path / "b.000003"))
    assert await add(tmp_path, two, server="") == ["b.000002"]


async def test_a_gap_between_two_lines_is_closed(tmp_path: Path) -> None:
    made = [copied(tmp_path, number, 10 * number - 9, 10) for number in (1, 2, 3)]
    await add(tmp_path, made[0])
    await add(tmp_path, made[2])
    assert await lines(tmp_path) == [["3"], ["1"]]
    await add(tmp_path, copied(tmp_path, 5, 41, 10))  # the last line may grow, and nothing is added after it
    await add(tmp_path, made[1])
    assert ["1", "2", "3"] in await lines(tmp_path) or ["2", "3"] in await lines(tmp_path)


async def test_a_copy_that_is_not_whole_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"b.000001 is not complete: nothing closes it"):
        await add(tmp_path, copied(tmp_path, 1, 1, 10, closed=False))
    unfinished = copied(tmp_path, 2, 11, 10, closed=False)
    with pytest.raises(Refusal, match=r"b.000002 is not complete: nothing closes it"):
        await add(tmp_path, copied(tmp_path, 1, 1, 10), unfinished)
    assert await lines(tmp_path) == []
    whole, part = copied(tmp_path, 2, 11, 10), copied(tmp_path, 1, 1, 5, closed=False)
    with pytest.raises(Refusal, match=r"b.000002 does not follow b.000001"):
        await add(tmp_path, part, whole)
    cut = copied(tmp_path, 1, 1, 10)
    cut.write_bytes(cut.read_bytes()[:-3])
    with pytest.raises(HeadraceError, match="ends within an event"):
        await add(tmp_path, cut)
    assert objects(tmp_path) == []


async def test_a_file_that_a_crash_has_ended_is_taken_if_the_next_one_proves_that_it_is_whole(tmp_path: Path) -> None:
    crashed, following = copied(tmp_path, 1, 1, 10, closed=False), copied(tmp_path, 2, 11, 10)
    assert await add(tmp_path, crashed, following) == ["b.000001", "b.000002"]


async def test_a_file_of_another_history_joins_no_line(tmp_path: Path) -> None:
    await add(tmp_path, copied(tmp_path, 1, 1, 10), copied(tmp_path, 2, 11, 10))
    reset = copied(tmp_path, 3, 1, 4, more=500)
    assert await add(tmp_path, reset) == ["b.000003"]
    assert sorted(map(len, await lines(tmp_path))) == [1, 2]
    other = copied(tmp_path, 2, 1, 4, more=900)
    assert await add(tmp_path, other) == ["b.000002"]


async def with_lines(folder: Path, *paths: Path) -> Archive:
    """An archive with a line of each file, to which more could be added."""
    archive = Archive.of(ArchiveSettings(path=folder / "archive"))
    await archive.journal.claim("daemon")
    line = {"op": "line", "server": "u", "version": "9.7", "mariadb": False, "gtid_mode": True, "address": "a"}
    for number, path in enumerate(paths, 1):
        begun = {**line, "number": number, "lower_case_table_names": 0}
        await archive.journal.append(begun, *await operations_of(archive, number, path))
    return archive


async def operations_of(archive: Archive, number: int, path: Path) -> list[dict[str, Any]]:
    """What adds a file to the line with this number; its segment is stored."""
    recorder = Recorder(path.name, 4, checksums=False, source="it")
    recorder.feed(b"".join(packets(path)))
    frames, facts = recorder.take()
    segment = await archive.add_segment(f"000{number}", path.name, 0, frames, facts)
    file = {"op": "file", "name": path.name, "begun": recorder.begun, "gtids": recorder.gtids}
    return [file, segment_operation(segment)]


async def test_the_last_file_of_an_archive_is_completed_so_that_it_is_there_once(tmp_path: Path) -> None:
    await with_lines(tmp_path, copied(tmp_path, 2, 11, 5, closed=False))
    assert await add(tmp_path, copied(tmp_path, 2, 11, 10)) == ["b.000002"]
    assert await add(tmp_path, copied(tmp_path, 3, 21, 10)) == ["b.000003"]
    assert await lines(tmp_path) == [["2", "3"]]
    assert len(objects(tmp_path)) == 2, "nothing is left of the part"


async def test_a_file_that_is_archived_in_part_is_completed_and_the_gap_after_it_closed(tmp_path: Path) -> None:
    archive = await with_lines(tmp_path, copied(tmp_path, 2, 11, 5, closed=False), copied(tmp_path, 4, 31, 10))
    assert await lines(tmp_path) == [["2"], ["4"]]
    whole, between = copied(tmp_path, 2, 11, 10), copied(tmp_path, 3, 21, 10)
    assert await add(tmp_path, whole, between) == ["b.000002", "b.000003"]
    assert await lines(tmp_path) == [["2", "3", "4"]]
    await archive.refresh()
    content = [b"".join([frame.data async for frame in archive.frames(one)]) for one in archive.lines[0].files[:2]]
    assert content == [whole.read_bytes(), between.read_bytes()]
    assert len(objects(tmp_path)) == 3


@pytest.mark.parametrize("gtids", [True, False])
async def test_files_of_which_some_are_archived_already_leave_no_hole(tmp_path: Path, gtids: bool) -> None:
    two, three, far = (copied(tmp_path, number, 10 * number - 9, 10, gtids=gtids) for number in (2, 3, 9))
    await with_lines(tmp_path, copied(tmp_path, 1, 1, 5, closed=False, gtids=gtids), far)
    await add(tmp_path, two)
    assert await lines(tmp_path) == [["1"], ["2"], ["9"]]
    one = copied(tmp_path, 1, 1, 10, gtids=gtids)
    assert await add(tmp_path, one, two, three) == ["b.000001", "b.000003"]
    assert await lines(tmp_path) == [["1", "2", "3"], ["9"]]
    assert await MysqlArchiveCommands(ArchiveSettings(path=tmp_path / "archive"), "test").verify(lambda *_: None) == []


async def test_a_line_with_a_hole_is_a_problem(tmp_path: Path) -> None:
    archive = await with_lines(tmp_path, copied(tmp_path, 1, 1, 10))
    await archive.close_file()
    await archive.journal.append(*await operations_of(archive, 1, copied(tmp_path, 3, 21, 10)))
    commands = MysqlArchiveCommands(ArchiveSettings(path=tmp_path / "archive"), "test")
    assert await commands.verify(lambda *_: None) == ["line 1 has nothing between b.000001 and b.000003"]


async def test_an_export_leaves_no_file_that_is_not_whole(tmp_path: Path) -> None:
    await add(tmp_path, *(copied(tmp_path, number, 10 * number - 9, 10) for number in (1, 2)))
    archived = objects(tmp_path)[1]
    archived.write_bytes(archived.read_bytes()[:-20])
    commands, out = MysqlArchiveCommands(ArchiveSettings(path=tmp_path / "archive"), "test"), tmp_path / "out"
    with pytest.raises(ArchiveError):
        await commands.export(out, "", "", lambda *_: None)
    exported = list(out.iterdir())
    assert all(path.read_bytes() == (tmp_path / path.name).read_bytes() for path in exported)
    assert len(exported) < 2


async def test_a_number_of_a_line_is_never_given_again(tmp_path: Path) -> None:
    archive = await with_lines(tmp_path, copied(tmp_path, 4, 31, 10), copied(tmp_path, 2, 11, 5, closed=False))
    await add(tmp_path, copied(tmp_path, 2, 11, 10), copied(tmp_path, 3, 21, 10))
    await archive.refresh()
    assert [line.number for line in archive.lines] == [1], "line 2 is a part of it now"
    assert archive.journal.index.next_number > 2
    await archive.journal._write_checkpoint()
    other = Archive.of(ArchiveSettings(path=tmp_path / "archive"))
    await other.refresh()
    assert other.journal.index.next_number == archive.journal.index.next_number


async def test_without_gtids_nothing_follows_a_file_that_is_archived_in_part(tmp_path: Path) -> None:
    part, later = copied(tmp_path, 2, 11, 5, closed=False, gtids=False), copied(tmp_path, 4, 31, 10, gtids=False)
    await with_lines(tmp_path, part, later)
    await add(tmp_path, copied(tmp_path, 3, 21, 10, gtids=False))
    assert await lines(tmp_path) == [["2"], ["3", "4"]]
    await add(tmp_path, copied(tmp_path, 2, 11, 10, gtids=False))
    assert await lines(tmp_path) == [["2", "3", "4"]]


async def test_a_file_that_follows_the_last_one_is_added_to_its_line_if_that_is_complete(tmp_path: Path) -> None:
    archive = await with_lines(tmp_path, copied(tmp_path, 2, 11, 10, gtids=False))
    await add(tmp_path, copied(tmp_path, 3, 21, 10, gtids=False))
    assert await lines(tmp_path) == [["3"], ["2"]], "more may be added to it"
    await archive.journal.claim("daemon")
    await archive.close_file()
    await add(tmp_path, copied(tmp_path, 4, 31, 10, gtids=False))
    await archive.refresh()
    assert [line.number for line in archive.lines] == [2, 1], "each has its own"
    await archive.journal.claim("daemon")
    await archive.prune(archive.lines[0], archive.lines[0].files)
    await add(tmp_path, copied(tmp_path, 3, 21, 10, gtids=False))
    assert await lines(tmp_path) == [["2", "3"]]


async def test_what_may_have_been_entered_is_not_deleted_when_the_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Journal.append

    async def ends_with_an_error(self: Journal, *operations: dict[str, Any]) -> None:
        await append(self, *operations)
        if operations[0]["op"] == "import":
            raise ArchiveError("the disk fails when all is written")

    monkeypatch.setattr(Journal, "append", ends_with_an_error)
    one = copied(tmp_path, 1, 1, 10)
    with pytest.raises(ArchiveError, match="the disk fails"):
        await add(tmp_path, one)
    archive = Archive.of(ArchiveSettings(path=tmp_path / "archive"))
    await archive.refresh()
    (file,) = archive.lines[0].files
    assert b"".join([frame.data async for frame in archive.frames(file)]) == one.read_bytes()
