"""A destination far behind reads the archive's folder only if the source would give the same, and if it answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ContinuesElsewhere
from headrace.model import Position
from headrace.mysql import source as module
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.feed import Feed
from headrace.mysql.archive.store import FolderStore
from headrace.mysql.events.dump_start import DumpStart
from headrace.mysql.opening import Dump
from headrace.mysql.source import MysqlSource
from headrace.mysql.wire.connection import Server
from tests.streams import daemon_settings, settings
from tests.unit.test_archive_files import archived, file_of, made, offsets

FILE = file_of(bytes(made().packets))
POSITION = Position("u", "b.000001", offsets(FILE)[1], gtid_set="3e11fa47-71ca-11e1-9e33-c80aa9429562:100")


class Site:
    """A source whose archive has one file, and whose stream reads the source itself."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **sections: Any) -> None:
        monkeypatch.setattr(module, "_FAR", 1)
        self.feed, config = Feed(), settings(archive={"path": str(folder)}, **sections)
        self.source = MysqlSource(config, daemon_settings(), lambda *_: True, feed=self.feed)
        nothing: Any = None
        server = Server(config.source, "9.7.4", mariadb=False, gtid_mode=True, lower_case_table_names=0)
        self.own = Dump(nothing, nothing, server, DumpStart(POSITION, checksums=True))
        self.feed.begin("u", "b.000001", len(FILE), silence=1.0)
        self.feed.prove(1)

    async def join(self) -> Dump | None:
        return await self.source.join(POSITION, self.own)


async def test_it_is_read_while_the_archiver_proves_that_the_source_has_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await archived(tmp_path, bytes(made().packets))
    site = Site(tmp_path, monkeypatch)
    dump = await site.join()
    assert dump is not None
    assert dump.line == 1
    site.source.ensure_usable(dump)
    site.feed.finish()
    with pytest.raises(ContinuesElsewhere):
        site.source.ensure_usable(dump)
    await dump.close()


async def test_destinations_that_read_the_same_part_decompress_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked, parts = Archive._unpacked, list[int]()
    monkeypatch.setattr(Archive, "_unpacked", lambda self, *given: parts.append(given[1]) or unpacked(self, *given))
    await archived(tmp_path, bytes(made().packets))
    parts.clear()
    site = Site(tmp_path, monkeypatch)
    other = MysqlSource(site.source._destination, daemon_settings(), lambda *_: True, feed=site.feed)
    dumps = [await site.join(), await other.join(POSITION, site.own)]
    for dump in dumps:
        assert dump is not None
        with suppress(ContinuesElsewhere):
            while True:
                await dump.packets.read(b"", 1, 5.0)
    assert parts
    assert len(parts) == len(set(parts))
    for dump in dumps:
        assert dump is not None
        await dump.close()
    assert not site.feed.frames._kept


async def test_a_line_that_is_not_proved_is_not_read_for_the_source_may_have_been_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await archived(tmp_path, bytes(made().packets))
    site = Site(tmp_path, monkeypatch)
    site.feed.begin("u", "b.000001", len(FILE), silence=1.0)  # and nothing is stored yet
    assert await site.join() is None
    site.feed.prove(1)
    dump = await site.join()
    assert dump is not None, "proved since"
    await dump.close()


async def test_with_marks_of_transactions_the_source_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await archived(tmp_path, bytes(made().packets))
    assert await Site(tmp_path, monkeypatch, filter={"transactions": True}).join() is None


async def test_a_folder_that_does_not_answer_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await archived(tmp_path, bytes(made().packets))
    monkeypatch.setattr(module, "_ARCHIVE_ANSWERS", 0.1)
    asked = list[str]()

    async def hangs(self: FolderStore, name: str, *_: Any) -> Any:
        asked.append(name)
        await asyncio.sleep(60)

    for call in ("read", "names"):
        monkeypatch.setattr(FolderStore, call, hangs)
    site = Site(tmp_path, monkeypatch)
    assert await site.join() is None
    assert len(asked) == 1
    monkeypatch.setattr(module, "_SPARE_AGAIN", 0.0)
    assert await site.join() is None
    assert len(asked) == 1, "it is not asked again in this run"
