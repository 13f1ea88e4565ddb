"""Small segments, as semi-synchronous acknowledgement makes one of each commit, are put together; readers do not
notice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ArchiveError
from headrace.mysql.archive import archive as archives
from headrace.mysql.archive import index as indexes
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.commands import MysqlArchiveCommands
from headrace.mysql.archive.index import BinlogFile, Segment, segment_operation
from headrace.mysql.archive.recorder import Facts, Recorder
from headrace.mysql.archive.sealing import Seal
from headrace.mysql.archive.store import FolderStore
from headrace.mysql.events.gtid import GtidSet
from headrace.native import find
from headrace.settings.archive import ArchiveSettings
from tests.made_binlog import SID, Binlog
from tests.unit.test_archive_files import FIRST_US, file_of

LINE = {"number": 1, "server": "u", "version": "9.7", "mariadb": False, "gtid_mode": True}
FILE = {"op": "file", "name": "b.000001", "begun": 1, "gtids": ""}


class Writer:
    """An archive that gets one transaction of one row after the other, each in a segment of its own."""

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        self.folder = folder
        self.archive = Archive(FolderStore(folder), Seal(key), native=find("auto").module)
        self.log = Binlog().begin_file("b.000001")
        self.recorder = Recorder("b.000001", 4, checksums=True, source="the source")
        self.number = self.fed = 0

    async def start(self) -> Writer:
        await self.archive.journal.claim("test")
        line = {"op": "line", **LINE, "lower_case_table_names": 0, "address": "a"}
        await self.archive.journal.append(line, FILE)
        return self

    async def add(self, transactions: int) -> None:
        for _ in range(transactions):
            self.number += 1
            self.log.transaction(self.number, FIRST_US + self.number, [(self.number, f"row {self.number}")])
            start = self.recorder.end if self.number > 1 else 0
            data = bytes(self.log.packets)[self.fed :]
            self.fed += self.recorder.feed(data)
            frames, facts = self.recorder.take()
            segment = await self.archive.add_segment("0001", "b.000001", start, frames, facts)
            await self.archive.journal.append(segment_operation(segment))
            await self.archive.put_together()

    @property
    def file(self) -> BinlogFile:
        return self.archive.lines[0].files[0]

    @property
    def objects(self) -> set[str]:
        return {f"0001/b.000001/{one.name}" for one in (self.folder / "0001/b.000001").iterdir()}


@pytest.fixture
async def writer(tmp_path: Path) -> Writer:
    return await Writer(tmp_path, b"k" * 32).start()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was put together is deleted at once."""
    monkeypatch.setattr(archives, "_REPLACED", -1.0)


async def read(archive: Archive, file: BinlogFile, offset: int = 0) -> bytes:
    return b"".join([frame.data async for frame in archive.frames(file, offset)])


@pytest.mark.usefixtures("at_once")
async def test_of_each_commits_segment_a_few_are_left_that_have_the_same_bytes_and_facts(writer: Writer) -> None:
    await writer.add(300)
    segments = writer.file.segments
    assert [one.level for one in segments] == [2] + [1] * 2 + [0] * 12
    assert writer.objects == {one.object for one in segments}
    assert await read(writer.archive, writer.file) == file_of(bytes(writer.log.packets))
    gtids = GtidSet()
    for one in segments:
        gtids = gtids.plus(GtidSet(one.gtids))
    assert str(gtids) == f"{SID}:1-300"
    times = [(one.first_us - FIRST_US, one.last_us - FIRST_US) for one in segments[:3]]
    assert times == [(1, 256), (257, 272), (273, 288)]
    assert {one.tables for one in segments} == {("shop.t",)}
    assert writer.file.stored == sum(one.stored for one in segments)
    assert [await writer.archive.verify_segment(one) for one in segments] == [""] * len(segments)
    other = Archive(writer.archive.store, writer.archive._seal)
    await other.refresh()
    assert other.journal.index == writer.archive.journal.index


@pytest.mark.usefixtures("at_once")
async def test_large_segments_are_left_as_they_are(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "_SMALL", 5_000)
    await writer.add(200)
    sizes = [one.end - one.start for one in writer.file.segments]
    assert 3_000 < max(sizes) <= 5_000
    assert len(sizes) < 40
    assert await read(writer.archive, writer.file) == file_of(bytes(writer.log.packets))


@pytest.mark.usefixtures("at_once")
async def test_who_reads_a_file_does_not_notice(writer: Writer) -> None:
    await writer.add(40)
    reader = Archive(writer.archive.store, writer.archive._seal)
    await reader.refresh()
    pieces = list[bytes]()
    async for frame in reader.frames(reader.lines[0].files[0]):
        pieces.append(frame.data)
        if len(pieces) == 3:
            await writer.add(100)
    assert b"".join(pieces) == file_of(bytes(writer.log.packets))


@pytest.mark.usefixtures("at_once")
async def test_reading_that_knows_an_old_index_begins_at_any_offset(writer: Writer) -> None:
    await writer.add(18)
    offset = writer.recorder.end
    await writer.add(2)
    reader = Archive(writer.archive.store, writer.archive._seal)
    await reader.refresh()
    file = reader.lines[0].files[0]
    await writer.add(100)
    whole = file_of(bytes(writer.log.packets))
    frames = [frame async for frame in reader.frames(file, offset)]
    assert frames[0].start <= offset
    assert b"".join(frame.data for frame in frames) == whole[frames[0].start :]


@pytest.mark.usefixtures("at_once")
async def test_a_part_that_is_really_missing_is_named(writer: Writer) -> None:
    await writer.add(40)
    lost = writer.file.segments[1].object
    (writer.folder / lost).unlink()
    with pytest.raises(ArchiveError, match=f"{lost} is missing"):
        await read(writer.archive, writer.file)


@pytest.mark.usefixtures("at_once")
async def test_verify_checks_what_took_the_place_of_a_segment(tmp_path: Path) -> None:
    writer = await Writer(tmp_path).start()
    await writer.add(40)
    commands = MysqlArchiveCommands(ArchiveSettings(path=tmp_path), "node")
    whole = list[int]()

    async def grow(segment: Segment) -> str:
        if not whole:
            whole.append(1)
            await writer.add(300)
        return await verify(segment)

    verify = commands._archive.verify_segment
    commands._archive.verify_segment = grow  # type: ignore[method-assign]
    assert await commands.verify(lambda *_: None) == []
    (tmp_path / writer.file.segments[-1].object).unlink()
    assert len(await commands.verify(lambda *_: None)) == 1


async def test_replaced_segments_stay_for_ten_minutes_or_until_the_next_writer_begins(writer: Writer) -> None:
    await writer.add(40)
    used = {one.object for one in writer.file.segments}
    assert used < writer.objects
    second = Archive(writer.archive.store, writer.archive._seal)
    await second.journal.claim("second")
    await second.delete_unused()
    assert writer.objects == used


async def test_what_killed_commands_have_left_is_counted_and_deleted_after_a_day(tmp_path: Path) -> None:
    writer, folder = await Writer(tmp_path).start(), tmp_path
    store = writer.archive.store
    await writer.add(3)
    await writer.archive.close_file()
    await writer.archive.journal.append(*({**FILE, "name": f"b.00000{number}"} for number in (2, 3)))
    for name in ("import/abc/b.000001/0-9.000001.zst", "0009/b.000001/0-9.000001.zst", "somebodys/notes", "0001/fresh"):
        await store.create(name, b"left")
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "fresh":
            os.utime(file, (1_000, 1_000))
    commands = MysqlArchiveCommands(ArchiveSettings(path=folder), "node")
    assert await commands.unused() == (2, 8)
    assert await commands.unused(delete=True) == (2, 8)
    assert await commands.unused() == (0, 0)
    assert {file.name for file in folder.rglob("*")} >= {"notes", "fresh"}
    lost = MysqlArchiveCommands(ArchiveSettings(path=folder), "node")
    (folder / "journal").rename(folder / "elsewhere")
    assert await lost.unused() == (0, 0), "without its journal nothing refers to anything"
    (folder / "elsewhere").rename(folder / "journal")
    assert await commands.verify(lambda *_: None) == []


async def test_pruned_files_leave_no_replaced_segment(writer: Writer) -> None:
    await writer.add(40)
    await writer.archive.close_file()
    await writer.archive.prune(writer.archive.lines[0], [writer.file])
    assert writer.objects == set()


def test_of_mariadbs_gtids_the_last_of_each_domain_is_left() -> None:
    facts = Facts()
    for gtids in ("0-1-5,1-1-2", "", "0-1-6", "7-2-1"):
        facts.note_segment(Segment("o", 0, 1, (), "", gtids=gtids))
    assert facts.gtid_text == "0-1-6,1-1-2,7-2-1"


@pytest.mark.parametrize("place", [(5, 20), (0, 15), (100, 120)])
async def test_an_entry_that_replaces_other_bytes_is_refused(writer: Writer, place: tuple[int, int]) -> None:
    await writer.add(2)
    entry: dict[str, Any] = segment_operation(Segment("o", *place, (), ""), "together")
    with pytest.raises(ArchiveError, match="has not the bytes"):
        await writer.archive.journal.append(entry)
