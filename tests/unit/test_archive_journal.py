"""The journal of an archive: one writer at a time, nothing written over, and damage that is named."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace import runtime
from headrace.errors import ArchiveError
from headrace.mysql.archive import journal as journals
from headrace.mysql.archive.journal import ArchiveTaken, Journal
from headrace.mysql.archive.sealing import Seal
from headrace.mysql.archive.store import FolderStore, ObjectExists

LINE = {
    "number": 1,
    "server": "u",
    "version": "9.7.0",
    "mariadb": False,
    "gtid_mode": True,
    "lower_case_table_names": 0,
    "address": "127.0.0.1:3306",
}
BEGIN = ({"op": "line", **LINE}, {"op": "file", "name": "b.000001", "begun": 1, "gtids": ""})


def segment(start: int, end: int) -> dict[str, Any]:
    return {
        "op": "segment",
        "object": f"0001/b.000001/{start}",
        "start": start,
        "end": end,
        "frames": [[end - start, 10]],
        "sha256": "",
        "first_us": 5,
        "last_us": 7,
        "gtids": "",
        "tables": ["s.t"],
        "last_event": start,
    }


def opened(folder: Path, key: bytes | None = None) -> Journal:
    return Journal(FolderStore(folder), Seal(key))


async def writer(folder: Path, key: bytes | None = None) -> Journal:
    made = opened(folder, key)
    await made.claim("one")
    return made


async def test_the_archive_is_taken_over_from_a_writer_that_adds_all_the_time(tmp_path: Path) -> None:
    one = await writer(tmp_path)
    added = asyncio.Event()

    async def add() -> None:
        while True:
            await one.append()
            if one.number > 20:
                added.set()

    adding = asyncio.create_task(add())
    await added.wait()
    two = opened(tmp_path)
    await two.claim("two")
    with pytest.raises(ArchiveTaken):
        await adding
    assert (two.index.writer, two.number) == ("two", one.number + 1)


@pytest.mark.parametrize("name", ["state/12.txt", "state/000000000001.json.bak", "journal/000000000003.bak"])
async def test_files_of_others_are_passed_over(tmp_path: Path, name: str) -> None:
    one = await writer(tmp_path)
    await one.append(*BEGIN)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("somebody's")
    other = opened(tmp_path)
    await other.load()
    assert other.number == one.number
    await other.claim("other")


async def test_what_was_appended_is_there_for_the_next_reader(tmp_path: Path) -> None:
    one = await writer(tmp_path)
    await one.append(*BEGIN, segment(0, 100))
    await one.append(segment(100, 250))
    other = opened(tmp_path)
    await other.load()
    assert other.index == one.index
    assert other.index.lines[0].end == ("b.000001", 250)
    await one.append({"op": "close", "index": "x"})
    assert await other.refresh()
    assert other.index == one.index
    assert not await other.refresh()


async def test_an_overtaken_writer_changes_nothing_and_is_told(tmp_path: Path) -> None:
    one = await writer(tmp_path)
    await one.append(*BEGIN)
    two = await writer(tmp_path)
    with pytest.raises(ArchiveTaken):
        await one.append(segment(0, 100))
    assert one.index.lines[0].files[0].size == 0
    await two.append(segment(0, 50))
    with pytest.raises(ArchiveTaken):
        await one.append(segment(0, 100))
    reader = opened(tmp_path)
    await reader.load()
    assert reader.index == two.index
    assert reader.index.lines[0].end == ("b.000001", 50)


async def test_an_entry_whose_answer_was_lost_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await writer(tmp_path)
    create = FolderStore.create

    async def twice(self: FolderStore, name: str, data: bytes) -> None:
        await create(self, name, data)
        raise ObjectExists(name)

    monkeypatch.setattr(FolderStore, "create", twice)
    await one.append(*BEGIN)
    monkeypatch.undo()
    await one.append(segment(0, 10))
    reader = opened(tmp_path)
    await reader.load()
    assert reader.index.lines[0].end == ("b.000001", 10)


async def grown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A journal with checkpoints, whose first entries are deleted."""
    monkeypatch.setattr(journals, "_EACH", 5)
    monkeypatch.setattr(journals, "_KEPT", 0.0)
    one = await writer(folder)
    await one.append(*BEGIN)
    for at in range(0, 300, 10):
        await one.append(segment(at, at + 10))
    return one


async def test_checkpoints_make_old_entries_superfluous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    early = opened(tmp_path)
    one = await grown(tmp_path, monkeypatch)
    assert len(list((tmp_path / "journal").iterdir())) < 15
    assert 1 <= len(list((tmp_path / "state").iterdir())) < 5
    late = opened(tmp_path)
    await late.load()
    assert late.index == one.index
    assert await early.refresh()  # it knew none of the deleted entries
    assert early.index == one.index


async def test_a_writer_that_was_stopped_for_long_does_not_take_a_deleted_number_for_a_free_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = await writer(tmp_path)
    await grown(tmp_path, monkeypatch)
    assert not (tmp_path / "journal" / f"{2:012d}.json").exists()
    later = runtime.monotonic() + 3600
    monkeypatch.setattr(runtime.current(), "monotonic", lambda: later)
    with pytest.raises(ArchiveTaken):
        await frozen.append(*BEGIN)


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:20] + b"x" + data[21:], lambda _: b""])
async def test_a_damaged_entry_is_named(tmp_path: Path, damage: Any) -> None:
    one = await writer(tmp_path)
    await one.append(*BEGIN)
    file = tmp_path / "journal" / f"{2:012d}.json"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ArchiveError, match=r"journal/000000000002.json of the archive is damaged"):
        await opened(tmp_path).load()


async def test_a_missing_entry_is_named(tmp_path: Path) -> None:
    one = await writer(tmp_path)
    await one.append(*BEGIN)
    await one.append(segment(0, 10))
    (tmp_path / "journal" / f"{2:012d}.json").unlink()
    with pytest.raises(ArchiveError, match="lacks entry 2 of its journal"):
        await opened(tmp_path).load()


async def test_what_a_later_version_has_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await writer(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("headrace.mysql.archive.index.Index.apply", lambda *_: None)
        await one.append({"op": "fold"})
    with pytest.raises(ArchiveError, match="an operation 'fold', which this version does not know"):
        await opened(tmp_path).load()
    await grown(tmp_path / "other", monkeypatch)
    monkeypatch.setattr("headrace.mysql.archive.index.VERSION", 0)
    with pytest.raises(ArchiveError, match="index has version 1, and this version of headrace reads 0"):
        await opened(tmp_path / "other").load()


async def test_an_entry_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    one = await writer(tmp_path)
    await one.append(*BEGIN, segment(0, 10))
    with pytest.raises(ArchiveError, match=r"does not continue b.000001:10"):
        await one.append(segment(20, 30))
    with pytest.raises(ArchiveError, match=r"does not continue b.000001:10"):
        await opened(tmp_path).load()


async def test_encrypted_entries_need_the_key(tmp_path: Path) -> None:
    one = await writer(tmp_path, b"k" * 32)
    await one.append(*BEGIN)
    assert b"b.000001" not in b"".join(file.read_bytes() for file in (tmp_path / "journal").iterdir())
    same = opened(tmp_path, b"k" * 32)
    await same.load()
    assert same.index == one.index
    with pytest.raises(ArchiveError, match=r"is encrypted -> set \[archive\] key"):
        await opened(tmp_path).load()
    with pytest.raises(ArchiveError, match="can't be decrypted: it is damaged, or was encrypted with another key"):
        await opened(tmp_path, b"l" * 32).load()


async def test_encryption_may_begin_later(tmp_path: Path) -> None:
    one = await writer(tmp_path)
    await one.append(*BEGIN)
    two = await writer(tmp_path, b"k" * 32)
    await two.append(segment(0, 10))
    reader = opened(tmp_path, b"k" * 32)
    await reader.load()
    assert reader.index == two.index


async def test_files_of_others_in_the_folders_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("journal", "state"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "README").write_text("mine")
    one = await grown(tmp_path, monkeypatch)
    reader = opened(tmp_path)
    await reader.load()
    assert reader.index == one.index
    assert (tmp_path / "journal" / "README").exists()


async def test_an_archive_whose_folder_was_deleted_is_not_continued_in_silence(tmp_path: Path) -> None:
    one = await writer(tmp_path / "archive")
    await one.append(*BEGIN)
    shutil.rmtree(tmp_path / "archive")
    with pytest.raises(ArchiveError, match="no longer has entry 2 of its journal"):
        await one.append(segment(0, 10))
    assert not (tmp_path / "archive" / "journal").exists()
    again = await writer(tmp_path / "archive")
    assert again.index.lines == []
