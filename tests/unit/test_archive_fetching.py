"""The operator's program that brings binlogs: which it is asked for, and what comes of one that fails."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.model import Position
from headrace.mysql import fetching
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.index import BinlogFile, Line
from headrace.mysql.position.inventory import Binlog, Inventory
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings
from tests.made_binlog import RAW_SID, SID
from tests.made_binlog import Binlog as Written
from tests.streams import until
from tests.support import eventually
from tests.unit.test_archive_files import archived, file_of


def line(server: str, *files: str) -> Line:
    """A line whose files are complete, but for one whose name ends in `+`."""
    found = [BinlogFile(name.rstrip("+"), size=200, index="" if name.endswith("+") else "list") for name in files]
    return Line(1, server, "9.7.4", False, True, 0, "h:3306", found)


def missing(position: str, lines: Sequence[Line], oldest: str = "log.000009", server: str = "us") -> list[str]:
    """Numbers of the binlogs that are fetched for a position of the server `us`."""
    files = (Binlog(oldest, 500),)
    inventory = Inventory(server, "9.7.4", False, True, files, (oldest, 500), "", "", 0)
    archive: Any = SimpleNamespace(lines=lines)
    names = fetching.missing_names(archive, Position("us", position, 100), inventory)
    assert all(name.startswith("log.00000") for name in names)
    return [name[-1] for name in names]


def test_what_is_missing_goes_from_the_position_to_the_oldest_file_of_the_source() -> None:
    assert missing("log.000006", []) == ["6", "7", "8"]
    assert missing("log.000006", [line("other", "log.000007")]) == ["6", "7", "8"]
    assert missing("log.000009", []) == []
    assert missing("", []) == [], "of a position with GTIDs only the name is not known"


def test_of_a_line_in_which_the_position_is_what_follows_is_missing() -> None:
    assert missing("log.000006", [line("us", "log.000005", "log.000006", "log.000007")]) == ["8"]
    assert missing("log.000006", [line("us", "log.000005", "log.000006", "log.000007+")]) == ["7", "8"]
    assert missing("log.000006", [line("us", "log.000006"), line("us", "log.000007", "log.000008")]) == []


def test_what_a_later_line_has_is_not_fetched_again() -> None:
    lines = [line("us", "log.000003"), line("us", "log.000006", "log.000007", "log.000008", "log.000009+")]
    assert missing("log.000003", lines) == ["4", "5"]
    assert missing("log.000002", lines) == ["2"]
    assert missing("log.000004", lines, server="another") == ["4", "5"]


def test_of_a_server_that_is_away_only_what_the_archive_proves_is_fetched() -> None:
    assert missing("log.000006", [], server="another") == []


async def brought(tmp_path: Path, script: str, **more: Any) -> str:
    """What is said of a program that brings nothing."""
    command = ("/bin/sh", "-c", script, "fetch")
    settings = ArchiveSettings(path=tmp_path / "archive", fetch_command=command, **more)
    daemon, archive = DaemonSettings(spool=tmp_path / "spool"), Archive.of(settings)
    left = tmp_path / "spool" / "fetched-by-a-killed-daemon"
    left.mkdir(parents=True, exist_ok=True)
    (left / "log.000005").write_bytes(b"")
    os.utime(left, (0, 0))
    with pytest.raises((fetching.NotBrought, HeadraceError)) as caught:
        await fetching.fetch(archive, settings, daemon, "log.000006", fetching.Expected("us", 0))
    assert list((tmp_path / "spool").iterdir()) == [], "nothing is left of it"
    return str(caught.value)


async def test_a_program_that_fails_is_quoted(tmp_path: Path) -> None:
    assert await brought(tmp_path, "echo one; echo two >&2; exit 4") == "it has ended with status 4: one two"
    long = await brought(tmp_path, "yes line | head -c 1000000; exit 1")
    assert len(long) < 400


async def test_a_program_that_writes_no_file_or_none_of_a_server_is_named(tmp_path: Path) -> None:
    assert "there is no such file" in await brought(tmp_path, "exit 0")
    assert "log.000006 is no binlog" in await brought(tmp_path, 'echo no binlog > "$2/$1"')


async def test_what_a_program_has_started_ends_with_it(tmp_path: Path) -> None:
    said = await brought(tmp_path, f"sleep 100 & echo $! > {tmp_path}/pid; exit 3")
    assert said == "it has ended with status 3"
    eventually(lambda: not is_running(int((tmp_path / "pid").read_text())))


async def test_a_program_that_takes_too_long_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    said = await brought(tmp_path, f"sleep 100 & echo $! > {tmp_path}/pid; wait", fetch_timeout=0.5)
    assert said == "it took longer than 'fetch_timeout', 0.5 s"
    eventually(lambda: not is_running(int((tmp_path / "pid").read_text())))


async def test_a_program_ends_with_the_destination(tmp_path: Path) -> None:
    task = asyncio.create_task(brought(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 100"))
    await until(lambda: (tmp_path / "pid").is_file() and (tmp_path / "pid").read_text() != "")
    task.cancel()
    await asyncio.wait([task])
    assert not is_running(int((tmp_path / "pid").read_text()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" and os.kill(pid, 0) is None
    except OSError:
        return False


async def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = ArchiveSettings(path=tmp_path, fetch_command=("/no/such/program",))
    with pytest.raises(fetching.NotBrought, match="/no/such/program can't be started: No such file or directory"):
        await fetching.fetch(
            Archive.of(settings),
            settings,
            DaemonSettings(spool=tmp_path / "spool"),
            "log.000006",
            fetching.Expected("us", 0),
        )


def history(number: int, executed: int) -> Written:
    """A whole file whose server had executed so many transactions before it."""
    log = Written().begin_file(f"b.{number:06d}")
    log.event(35, struct.pack("<Q", 1) + RAW_SID + struct.pack("<QQQ", 1, 1, executed + 1))
    log.transaction(executed + 1, 1_700_000_000_000_000, [(1, "row")])
    log.event(3, b"")
    return log


async def test_a_file_of_another_history_is_refused_and_nothing_of_it_is_archived(tmp_path: Path) -> None:
    (tmp_path / "brought").write_bytes(file_of(bytes(history(2, 50).packets)))
    archive = await archived(tmp_path / "archive", bytes(history(1, 5).packets))
    command = ("/bin/sh", "-c", f'cp {tmp_path}/brought "$2/$1"', "fetch")
    settings = ArchiveSettings(path=tmp_path / "archive", fetch_command=command)
    daemon = DaemonSettings(spool=tmp_path / "spool")
    for expected, why in (
        (fetching.Expected("u", 77), "of the server with server_id 1 instead of 77"),
        (fetching.Expected("u", 1, f"{SID}:1-6"), "comes after transactions that were not read"),
        (fetching.Expected("u", 1, "", "b.000001"), "does not continue b.000001"),
    ):
        with pytest.raises(fetching.NotBrought, match=why):
            await fetching.fetch(archive, settings, daemon, "b.000002", expected)
        again = Archive.of(settings)
        await again.refresh()
        assert [file.name for one in again.lines for file in one.files] == ["b.000001"]
    (tmp_path / "brought").write_bytes(file_of(bytes(history(2, 6).packets)))
    await fetching.fetch(archive, settings, daemon, "b.000002", fetching.Expected("u", 1, "", "b.000001"))
    assert {file.name for one in archive.lines for file in one.files} == {"b.000001", "b.000002"}
