"""The archive on real servers: byte for byte the server's files; and a destination goes on where those are gone."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from headrace.mysql.archive.archive import Archive
from headrace.settings.archive import ArchiveSettings
from tests.lost import GTIDS, KINDS, MARIADB, LostPlace, start_server
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[tuple[Any, str]]:
    running = start_server(stack, request.param, "archived")
    yield running, request.param
    running.kill()


ONE = pytest.mark.parametrize("server", [GTIDS, pytest.param(MARIADB, marks=pytest.mark.long)], indirect=True)
"""For what does not depend on the kind of server."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def place(
    server: tuple[Any, str],
    daemon: Callable[..., DaemonProcess],
    tmp_path: Path,
    folder: Path,
    request: pytest.FixtureRequest,
) -> LostPlace:
    more = f'[heartbeat]\nenabled = false\n[archive]\npath = "{folder}"\nflush_interval = "20ms"'
    name = f"arch{abs(hash(request.node.name)) % 10**8}"
    return LostPlace(*server, name, daemon, tmp_path / "out.jsonl", more=more)


def archived_files(folder: Path) -> dict[str, bytes]:
    """The files of the last line, as they are archived."""

    async def read() -> dict[str, bytes]:
        archive = Archive.of(ArchiveSettings(path=folder))
        await archive.refresh()
        return {
            file.name: b"".join([frame.data async for frame in archive.frames(file)])
            for file in archive.lines[-1].files
        }

    return asyncio.run(read())


def wait_archived(place: LostPlace) -> None:
    """Until the archive has everything that the server has written."""
    rows = place.run("SHOW MASTER STATUS" if place.kind == MARIADB else "SHOW BINARY LOG STATUS")
    end = str(rows[0][0]), int(rows[0][1])

    def holds(status: dict[str, Any]) -> bool:
        archive = status["archive"]
        return bool(archive["file"] == end[0] and archive["offset"] >= end[1])  # MariaDB adds events later

    place.daemon.wait("shop", holds)


def listed(place: LostPlace) -> Any:
    """What `headrace archive list` shows."""
    return json.loads(place.command("archive", "list", "shop", "--json").stdout)


def decoded(place: LostPlace) -> list[Any]:
    """Id and w of each row that `headrace decode` finds in the archive."""
    done = place.command("decode", "--archive", "shop", "--table", rf"{place.schema}\.t")
    assert done.returncode == 0, done.stderr
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    return [(row["id"], row.get("w")) for one in messages if one["type"] == "INSERT" for row in one["data"]]


def pause(place: LostPlace) -> None:
    done = place.command("pause", "shop")
    assert done.returncode == 0, done.stderr


def test_the_archive_has_the_servers_files_byte_for_byte(place: LostPlace, folder: Path) -> None:
    place.run(f"SET GLOBAL max_allowed_packet = {64 << 20}")
    place.follow()
    place.insert(*range(1, 20))
    place.run(f"INSERT INTO {place.schema}.t SELECT id + 100, v FROM {place.schema}.t")
    place.run(f"ALTER TABLE {place.schema}.t ADD w LONGBLOB")
    place.run(f"INSERT INTO {place.schema}.t VALUES (500, 'large', REPEAT('x', 17 << 20))")
    place.next_file()
    place.insert_wide(600)
    place.next_file()
    wait_archived(place)
    found = archived_files(folder)
    assert list(found) == place.files()
    for name in place.files()[:-1]:
        assert found[name] == place.path(name).read_bytes(), name
    place.leave()


def test_a_paused_destination_goes_on_without_a_gap_after_its_binlogs_were_purged(place: LostPlace) -> None:
    place.follow()
    place.insert(1)
    place.wait_ids(1)
    pause(place)
    for number in (2, 3, 4):
        place.insert(number)
        place.next_file()
    place.run(f"ALTER TABLE {place.schema}.t ADD w INT DEFAULT 7 FIRST")
    place.run(f"INSERT INTO {place.schema}.t (id) VALUES (5)")
    place.next_file()
    wait_archived(place)
    place.run(f"PURGE BINARY LOGS TO '{place.files()[-1]}'")
    place.run(f"INSERT INTO {place.schema}.t (id) VALUES (6)")
    shown = place.command("position", "show", "shop")
    assert "the archive has what the source has lost" in shown.stdout, shown.stdout + shown.stderr
    checked = place.command("check")
    assert "the archive has the binlog from the stored position" in checked.stdout, checked.stdout
    wait_archived(place)
    assert decoded(place) == [("1", None), ("2", None), ("3", None), ("4", None), ("5", "7"), ("6", "7")]
    assert place.command("resume", "shop").returncode == 0
    place.wait_ids(1, 2, 3, 4, 5, 6)
    status = place.daemon.wait_state("shop", "STREAMING")
    assert status["gap"] is None
    place.insert_wide(7)
    place.wait_ids(1, 2, 3, 4, 5, 6, 7)
    assert "position moved" not in place.daemon.log.read_text()
    place.leave()


@ONE
def test_what_neither_has_is_lost_and_it_is_said_what_the_archive_has(place: LostPlace, folder: Path) -> None:
    position = place.published(1)
    place.insert(2)
    place.next_file()
    place.insert(3)
    for name in sorted(folder.rglob("*"), reverse=True):
        name.rmdir() if name.is_dir() else name.unlink()
    place.run(f"PURGE BINARY LOGS TO '{place.files()[-1]}'")
    place.stands("POSITION_LOST", "gtids_purged" if position.gtid_set else "position_purged", "archive", str(folder))
    place.leave()


def test_a_binlog_that_was_cut_off_is_read_from_the_archive(place: LostPlace) -> None:
    place.follow()
    place.insert(1)
    place.wait_ids(1)
    pause(place)
    place.insert(2, 3)
    wait_archived(place)
    cut = place.next_file()
    place.insert(4)
    wait_archived(place)
    _, end = place.row_event(cut, -1)
    with place.path(cut).open("r+b") as file:
        file.truncate(end - 10)
    assert place.command("resume", "shop").returncode == 0
    place.wait_ids(1, 2, 3, 4)
    place.daemon.wait_state("shop", "STREAMING")
    place.insert(5)
    place.wait_ids(1, 2, 3, 4, 5)
    place.leave()


def test_a_server_that_was_reset_begins_another_line(place: LostPlace, folder: Path) -> None:
    place.follow()
    place.insert(1, 2)
    place.wait_ids(1, 2)
    wait_archived(place)
    before, listed_before = archived_files(folder), listed(place)
    place.leave()
    place.reset()
    place.run(f"DELETE FROM {place.schema}.t")
    place.insert(*range(3, 30))
    place.daemon.start()
    wait_archived(place)
    now = listed(place)
    assert now[: len(listed_before)] == listed_before
    assert [one["line"] for one in now[len(listed_before) :]] == [listed_before[-1]["line"] + 1]
    after = archived_files(folder)
    assert after.keys() != before.keys()
    place.next_file()
    (name,) = after
    wait_archived(place)
    assert archived_files(folder)[name] == place.path(name).read_bytes()
    place.leave()


def test_a_writer_that_is_killed_again_and_again_leaves_the_archive_whole(place: LostPlace, folder: Path) -> None:
    check_kills(place, folder, 4)


@ONE
@pytest.mark.long
def test_a_writer_that_is_killed_200_times_leaves_the_archive_whole(place: LostPlace, folder: Path) -> None:
    check_kills(place, folder, 200)


def check_kills(place: LostPlace, folder: Path, kills: int) -> None:
    """Kills the daemon at random moments under load; the archive has to be sound, and equal to the server's files."""
    stop, random_ = threading.Event(), random.Random(kills)

    def load() -> None:
        number = 1
        while not stop.is_set():
            place.insert(*range(number, number + 20))
            number += 20
            if random_.random() < 0.1:
                place.next_file()

    loading = threading.Thread(target=load)
    loading.start()
    try:
        for _ in range(kills):
            place.daemon.start()
            place.daemon.wait("shop", lambda status: status["archive"]["file"])
            time.sleep(random_.random() / 2)
            place.daemon.kill()
    finally:
        stop.set()
        loading.join()
    place.next_file()
    place.daemon.start()
    wait_archived(place)
    found = archived_files(folder)
    for name in place.files()[:-1]:
        assert found[name] == place.path(name).read_bytes(), name
    done = place.command("archive", "verify", "shop")
    assert done.returncode == 0, done.stdout
    assert not [file for file in folder.rglob("*.new") if file.stat().st_size > 1 << 20]
    place.leave()


@ONE
def test_the_commands_list_verify_export_import_and_prune(place: LostPlace, folder: Path, tmp_path: Path) -> None:
    place.follow()
    for number in range(1, 4):
        place.insert(number)
        place.next_file()
    wait_archived(place)
    place.wait_ids(1, 2, 3)
    complete = [one["name"] for one in listed(place) if one["complete"]]
    assert complete == place.files()[:-1]
    assert "problems" in place.command("archive", "verify", "shop").stdout
    done = place.command("archive", "export", "shop", "--to", str(tmp_path / "out"), "--until", complete[-1])
    assert done.returncode == 0, done.stderr
    for name in complete:
        assert (tmp_path / "out" / name).read_bytes() == place.path(name).read_bytes()
    again = place.command("archive", "export", "shop", "--to", str(tmp_path / "out"))
    assert again.returncode == 1
    assert "exists" in again.stderr
    unknown = place.command("archive", "export", "shop", "--to", str(tmp_path / "no"), "--from", "other.000001")
    assert unknown.returncode == 1
    assert "no line of the archive has other.000001" in unknown.stderr
    eventually(lambda: place.stored().file == place.files()[-1])
    pruned = place.command("archive", "prune", "shop", "--keep-bytes", "1", "--yes")
    assert pruned.returncode == 0, pruned.stderr
    left = listed(place)
    assert [one["name"] for one in left] == place.files()[-1:]
    files = [str(tmp_path / "out" / name) for name in complete]
    wrong = place.command("archive", "import", "shop", *reversed(files))
    assert "does not follow" in wrong.stderr
    added = place.command("archive", "import", "shop", *files)
    assert added.returncode == 0, added.stderr
    assert [line for line in added.stdout.splitlines() if line.endswith("added")] == [
        f"{name}: added" for name in complete
    ]
    assert "archived already" in place.command("archive", "import", "shop", files[0]).stdout
    now = listed(place)
    assert [(one["line"], one["name"]) for one in now] == [
        (now[0]["line"], name) for name in [*complete, left[0]["name"]]
    ]
    place.insert(4)  # the daemon takes the archive back
    wait_archived(place)
    verified = place.command("archive", "verify", "shop", "--json")
    assert json.loads(verified.stdout)["problems"] == []
    segment = next(folder.rglob("*.zst"))
    segment.write_bytes(segment.read_bytes()[:-1])
    damaged = place.command("archive", "verify", "shop")
    assert damaged.returncode == 1
    assert f"{segment.relative_to(folder)} is damaged" in damaged.stdout
    place.leave()


@ONE
def test_files_that_a_destination_needs_are_not_pruned(place: LostPlace) -> None:
    position = place.published(1)
    place.daemon.start()
    place.daemon.wait_state("shop", "STREAMING")
    pause(place)
    for number in (2, 3):
        place.insert(number)
        place.next_file()
    wait_archived(place)
    assert place.command("archive", "prune", "shop", "--keep-bytes", "1", "--yes").returncode == 0
    assert listed(place)[0]["name"] == position.file
    forced = place.command("archive", "prune", "shop", "--keep-bytes", "1", "--needed-too", "--yes")
    assert forced.returncode == 0, forced.stderr
    assert len(listed(place)) == 1
    place.leave()


@ONE
def test_moves_and_first_starts_lead_into_the_archive(
    place: LostPlace, daemon: Callable[..., DaemonProcess], folder: Path, tmp_path: Path
) -> None:
    place.follow()
    for number in (1, 2, 3, 4):
        place.insert(number)
        place.next_file()
        if number == 2:
            (when,) = place.run("SELECT UNIX_TIMESTAMP(NOW(6)) + 0.5")[0]
            place.run("DO SLEEP(1.1)")  # MariaDB's commit times have whole seconds
    place.wait_ids(1, 2, 3, 4)
    wait_archived(place)
    place.run(f"PURGE BINARY LOGS TO '{place.files()[-1]}'")
    text = datetime.fromtimestamp(float(when), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    place.choose(text)
    eventually(lambda: place.ids() == [1, 2, 3, 4, 3, 4], 30, lambda: f"{place.ids()}\n{place.daemon.log.read_text()}")
    begin = next(one["name"] for one in listed(place) if one["first_us"] and one["line"] == listed(place)[-1]["line"])
    shown = place.command("position", "set", "shop", f"{begin}:5", "--yes")
    assert "in the middle of an event" in shown.stderr, shown.stdout + shown.stderr
    out = tmp_path / "other.jsonl"
    text = destination_toml(
        place.server,
        place.schema,
        f'type = "jsonl"\npath = "{out}"',
        start="earliest",
        more=f'[heartbeat]\nenabled = false\n[archive]\npath = "{folder}"',
    )
    other = daemon(late=text, node="late").start()
    eventually(lambda: published(out) == [1, 2, 3, 4], 30, lambda: f"{published(out)}\n{other.log.read_text()[-3000:]}")
    place.insert(5)
    eventually(lambda: published(out) == [1, 2, 3, 4, 5])
    assert other.terminate() == 0
    place.leave()


def published(out: Path) -> list[int]:
    return [int(row["id"]) for message in read_jsonl(out) for row in message["data"]]
