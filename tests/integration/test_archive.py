"""The archive on real servers: byte for byte the server's files; and a destination goes on where those are gone."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.archive.index import segment_operation
from headrace.mysql.archive.recorder import Recorder
from headrace.mysql.wire.binlog_file import packets
from headrace.settings.archive import ArchiveSettings
from tests.lost import GTIDS, KINDS, MARIADB, LostPlace, archived_files, start_server
from tests.once import consumed
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[tuple[Any, str]]:
    running = start_server(stack, request.param, "archived")
    yield running, request.param
    running.kill()


NEXT_SECOND = "DO SLEEP(1.1)"
"""Numbers of rows that MariaDB commits in the second in which a destination starts depend on the start."""
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
    archive = place.daemon.health()[1]["destinations"]["shop"]["archive"]
    assert archive["oldest_at"] <= archive["newest_at"]
    newest = place.metric('headrace_archive_newest_timestamp_seconds{destination="shop"}')
    assert abs(newest - datetime.fromisoformat(archive["newest_at"]).timestamp()) < 0.001
    assert time.time() - newest < 300
    found = archived_files(ArchiveSettings(path=folder))
    assert list(found) == place.files()
    for name in place.files()[:-1]:
        assert found[name] == place.path(name).read_bytes(), name
    place.leave()


def paused_and_purged(place: LostPlace) -> None:
    """The destination is paused after row 1, and only the archive has row 2."""
    place.follow()
    place.insert(1)
    place.wait_ids(1)
    pause(place)
    place.insert(2)
    place.next_file()
    wait_archived(place)
    place.purge()


@ONE
def test_an_attempt_that_fails_at_the_sink_does_not_lose_a_position_that_the_archive_has(
    place: LostPlace, tmp_path: Path
) -> None:
    paused_and_purged(place)
    kept = place.out.rename(tmp_path / "kept")
    place.out.symlink_to("/dev/full")
    assert place.command("resume", "shop").returncode == 0
    place.daemon.wait("shop", lambda status: status["restarts"] >= 2)  # the archive has not grown meanwhile
    assert place.daemon.health()[1]["destinations"]["shop"]["state"] != "POSITION_LOST"
    place.out.unlink()
    kept.rename(place.out)
    place.wait_ids(1, 2)


@ONE
def test_a_position_is_not_lost_while_the_archive_cant_be_read(place: LostPlace, folder: Path, tmp_path: Path) -> None:
    paused_and_purged(place)
    kept = folder.rename(tmp_path / "kept")
    folder.write_text("no folder")
    assert place.command("resume", "shop").returncode == 0
    status = place.daemon.wait("shop", lambda seen: "the archive can't be read" in str(seen["message"]))
    assert status["state"] == "FAILED"
    folder.unlink()
    kept.rename(folder)
    place.wait_ids(1, 2)


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
    place.purge()
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
    shutil.rmtree(folder)
    place.purge()
    place.stands("POSITION_LOST", "gtids_purged" if position.gtid_set else "position_purged", "archive", str(folder))
    place.leave()


async def archive_alone(folder: Path, file: Path, position: Position, *, mariadb: bool) -> None:
    """Makes an archive of one file, which need not be complete."""
    archive = Archive.of(ArchiveSettings(path=folder))
    await archive.journal.claim("test")
    recorder = Recorder(file.name, 4, checksums=False, source="a test")
    recorder.feed(b"".join(packets(file)))
    frames, facts = recorder.take()
    segment = await archive.add_segment("0001", file.name, 0, frames, facts)
    line = {"number": 1, "server": position.server_uuid, "version": "1", "mariadb": mariadb, "address": "a"}
    of = {"gtid_mode": bool(position.gtid_set), "lower_case_table_names": 0}
    begun = {"op": "file", "name": file.name, "begun": recorder.begun, "gtids": recorder.gtids}
    await archive.journal.append({"op": "line", **line, **of}, begun, segment_operation(segment))


def rows_of(place: LostPlace) -> list[int]:
    """The ids of the published rows, without marks of transactions."""
    return [int(row["id"]) for message in read_jsonl(place.out) if message["data"] for row in message["data"]]


def with_a_part(place: LostPlace, folder: Path, tmp_path: Path, server: str = "") -> Path:
    """The archive has the first row of a transaction of two, in the binlogs of this server or another one, and the
    source has purged it. The whole binlog."""
    place.follow()
    place.insert(1)
    eventually(lambda: rows_of(place) == [1])
    position = place.leave()
    table, file = f"{place.schema}.t", place.files()[-1]
    place.run("BEGIN", f"INSERT INTO {table} (id) VALUES (2)", f"INSERT INTO {table} (id) VALUES (3)", "COMMIT")
    place.next_file()
    place.insert_wide(4)
    whole = Path(shutil.copy(place.path(file), tmp_path))
    (tmp_path / "part").mkdir()
    part = tmp_path / "part" / file
    part.write_bytes(whole.read_bytes()[: place.row_event(file, -1)[0]])
    place.purge()
    shutil.rmtree(folder)
    of = replace(position, server_uuid=server or position.server_uuid)
    asyncio.run(archive_alone(folder, part, of, mariadb=place.kind == MARIADB))
    return whole


@pytest.mark.parametrize(
    ("server", "other", "marks"),
    [
        (GTIDS, "", False),
        (GTIDS, "00000000-1111-2222-3333-444444444444", False),
        (GTIDS, "", True),
        pytest.param(MARIADB, "", False, marks=pytest.mark.long),
    ],
    indirect=["server"],
)
def test_a_transaction_of_which_the_archive_has_a_part_is_lost(
    place: LostPlace, folder: Path, tmp_path: Path, other: str, marks: bool
) -> None:
    if marks:
        file = place.daemon.folder / "destinations" / "shop.toml"
        file.write_text(file.read_text().replace("[filter]\n", "[filter]\ntransactions = true\n"))
    with_a_part(place, folder, tmp_path, other)
    place.daemon.start()
    status = place.daemon.wait_state("shop", "POSITION_LOST")
    assert "ends within the transaction after it" in status["message"]
    before = len(rows_of(place))
    place.try_now()
    place.daemon.wait("shop", lambda now: now["restarts"] > status["restarts"])
    assert place.daemon.health()[1]["destinations"]["shop"]["state"] == "POSITION_LOST"
    assert set(rows_of(place)) <= {1, 2}
    assert len(rows_of(place)) == before < 5, "what there is of it does not come again and again"
    assert place.daemon.terminate() == 0


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


@ONE
def test_what_was_archived_before_a_reset_fills_no_gap_after_it(place: LostPlace) -> None:
    """The GTIDs of the former history are given again, to other rows."""
    place.follow()
    for number in range(101, 106):
        place.insert(number)
        place.next_file()
    wait_archived(place)
    place.leave()
    place.run(f"DROP TABLE {place.schema}.t")
    place.reset()
    place.run(f"CREATE TABLE {place.schema}.t (id INT PRIMARY KEY, v VARCHAR(200))")
    place.daemon.start()
    place.daemon.wait("shop", lambda seen: seen["state"] in ("POSITION_LOST", "SOURCE_CHANGED"))
    assert place.command("position", "set", "shop", "earliest", "--yes").returncode == 0
    place.daemon.wait_state("shop", "STREAMING")
    place.insert(1, 2)
    place.wait_ids(101, 102, 103, 104, 105, 1, 2)
    wait_archived(place)
    place.leave()
    for number in (3, 4, 5):
        place.insert(number)
        place.next_file()
    place.purge()
    place.daemon.start()
    status = place.daemon.wait_state("shop", "POSITION_LOST")
    assert place.ids()[-2:] == [1, 2], status


def test_a_server_that_was_reset_begins_another_line(place: LostPlace, folder: Path) -> None:
    place.follow()
    place.insert(1, 2)
    place.wait_ids(1, 2)
    wait_archived(place)
    before, listed_before = archived_files(ArchiveSettings(path=folder)), listed(place)
    place.leave()
    place.reset()
    place.run(f"DELETE FROM {place.schema}.t")
    place.insert(*range(3, 30))
    place.daemon.start()
    wait_archived(place)
    now = listed(place)
    assert now[: len(listed_before)] == listed_before
    assert [one["line"] for one in now[len(listed_before) :]] == [listed_before[-1]["line"] + 1]
    after = archived_files(ArchiveSettings(path=folder))
    assert after.keys() != before.keys()
    again = place.command("replay", "shop", "--to-file", str(folder.parent / "again.jsonl"))
    assert again.returncode == 1
    following = next(one for one in now if one["line"] != now[0]["line"])  # MariaDB's archive may begin with more lines
    assert f"in line {following['line']}, which is not read: it begins with {following['name']}" in again.stderr
    place.next_file()
    (name,) = after
    wait_archived(place)
    assert archived_files(ArchiveSettings(path=folder))[name] == place.path(name).read_bytes()
    place.leave()


@ONE
def test_an_archive_whose_end_cant_be_read_for_a_while_is_continued(place: LostPlace, folder: Path) -> None:
    place.follow()
    place.insert(1)
    place.wait_ids(1)
    wait_archived(place)
    place.leave()
    segments = {path: path.read_bytes() for path in folder.rglob("*.zst")}
    for path in segments:
        path.unlink()
        path.mkdir()  # reading it is an error of the operating system
    place.daemon.start()
    status = place.daemon.wait("shop", lambda one: "archive" in one["troubles"])
    assert "the archive can't read" in status["troubles"]["archive"]
    for path, data in segments.items():
        path.rmdir()
        path.write_bytes(data)
    place.insert(2)
    wait_archived(place)
    assert len({one["line"] for one in listed(place)}) == 1
    assert [int(row) for row, _ in decoded(place)] == [1, 2]
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
    found = archived_files(ArchiveSettings(path=folder))
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
    left_over = folder / "import" / "killed" / "mysql-bin.000001" / "0-9.000001.zst"
    left_over.parent.mkdir(parents=True)
    left_over.write_bytes(b"x")
    os.utime(left_over, (1_000, 1_000))
    assert "1 objects, 1 bytes, belong to no file" in place.command("archive", "verify", "shop").stdout
    assert "1 objects that belonged to no file deleted" in (
        place.command("archive", "prune", "shop", "--unused", "--yes").stdout
    )
    assert not left_over.exists()
    segment = next(folder.rglob("*.zst"))
    segment.write_bytes(segment.read_bytes()[:-1])
    damaged = place.command("archive", "verify", "shop")
    assert damaged.returncode == 1
    assert f"{segment.relative_to(folder)} is damaged" in damaged.stdout
    place.leave()


@pytest.mark.long
@pytest.mark.parametrize("until", ["the end", "a point in time"])
def test_a_server_is_restored_from_an_export_and_the_destination_goes_on_there(
    stack: Stack, daemon: Callable[..., DaemonProcess], tmp_path: Path, folder: Path, until: str
) -> None:
    lost, new = (start_server(stack, GTIDS, f"{name}-{until[:1]}") for name in ("destroyed", "restored"))
    more = f'[heartbeat]\nenabled = false\n[archive]\npath = "{folder}"\nflush_interval = "20ms"'
    place = LostPlace(lost, GTIDS, "restore", daemon, tmp_path / "out.jsonl", more=more)
    place.follow()
    place.insert(1, 2)
    place.run("ALTER TABLE restore.t ADD w INT DEFAULT 7")
    place.next_file()
    place.run("INSERT INTO restore.t (id) VALUES (3)", "DO SLEEP(1.1)")
    point = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    place.run("DO SLEEP(1.1)", "UPDATE restore.t SET w = 0")
    rows = place.run("SELECT id, v, w FROM restore.t ORDER BY id")
    place.wait_ids(1, 2, 3)
    wait_archived(place)
    assert place.command("archive", "verify", "shop").returncode == 0
    position = place.leave()
    lost.kill()
    shutil.rmtree(lost.datadir)

    exported = place.command("archive", "export", "shop", "--to", str(tmp_path / "binlogs"))
    assert exported.returncode == 0, exported.stderr
    files = sorted(str(path) for path in (tmp_path / "binlogs").iterdir())
    stop = [f"--stop-datetime={point}"] if until != "the end" else []
    read = [*new.prefix.argv("usr/bin/mysqlbinlog"), "--no-defaults", *stop, *files]
    script = subprocess.run(read, capture_output=True, check=True, env={"TZ": "UTC"}).stdout
    subprocess.run(new.client_args, input=script, check=True, capture_output=True)
    place.server = new
    assert place.run("SELECT id, v, w FROM restore.t ORDER BY id") == (
        rows if until == "the end" else tuple((*row[:2], 7) for row in rows)
    )

    settings = place.daemon.folder / "destinations" / "shop.toml"
    settings.write_text(settings.read_text().replace(f"port = {lost.port}", f"port = {new.port}"))
    place.daemon.start()
    if until != "the end":
        status = place.daemon.wait_state("shop", "SOURCE_CHANGED")
        assert "transactions that were published" in status["message"], "what the new server lacks"
        return
    place.run("INSERT INTO restore.t (id) VALUES (4)")
    place.wait_ids(1, 2, 3, 4)
    assert place.leave().gtid_set.startswith(position.gtid_set.partition(":")[0])


@pytest.fixture
def fetched(place: LostPlace, folder: Path, tmp_path: Path) -> Path:
    """A folder from which the program takes binlogs that `place` lacks."""
    backup = tmp_path / "backup"
    backup.mkdir()
    program = tmp_path / "fetch"
    program.write_text(
        'echo "$2" >> "$1/asked"\n[ -e "$1/$2" ] || { echo "no object $2" >&2; exit 3; }\ncp "$1/$2" "$3/"\n'
    )
    file = place.daemon.folder / "destinations" / "shop.toml"
    command = f'fetch_command = ["/bin/sh", "{program}", "{backup}"]'
    file.write_text(file.read_text().replace("[archive]\n", f"[archive]\n{command}\n"))
    return backup


def test_binlogs_that_neither_has_are_fetched_by_the_operators_program(place: LostPlace, fetched: Path) -> None:
    place.follow()
    place.insert(1)
    place.wait_ids(1)
    wait_archived(place)  # earlier tests may have left many files
    place.leave()
    missing = [place.files()[-1]]
    for number in (2, 3, 4):
        place.insert(number)
        place.next_file()
        missing.append(place.files()[-1])
    missing.pop()
    for name in (missing[0], missing[2]):
        shutil.copy(place.path(name), fetched)
    second = place.path(missing[1]).read_bytes()
    place.purge()
    place.daemon.start()
    status = place.daemon.wait_state("shop", "POSITION_LOST")
    wait_archived(place)  # what is fetched later joins that line
    why = f"has not brought {missing[1]}: it has ended with status 3: no object {missing[1]}"
    assert f"'[archive] fetch_command' {why}" in status["message"], status["message"]
    other = bytearray(second)
    other[9:13] = (77).to_bytes(4, "little")  # what is first in a file is an event that has the server's id
    (fetched / missing[1]).write_bytes(other)
    assert place.command("restart", "shop").returncode == 0
    place.daemon.wait("shop", lambda one: "of the server with server_id 77 instead of" in str(one["message"]))
    (fetched / missing[1]).write_bytes(second)
    place.insert(5)
    assert place.command("restart", "shop").returncode == 0
    place.wait_ids(1, 2, 3, 4, 5)
    assert (fetched / "asked").read_text().split()[:2] == missing[:2]
    assert (fetched / "asked").read_text().split().count(missing[0]) == 1, "it is archived then"
    wait_archived(place)
    found = listed(place)
    assert len({one["line"] for one in found}) == 1, found
    assert place.command("archive", "verify", "shop").returncode == 0
    place.leave()


@ONE
def test_a_binlog_of_which_the_archive_has_a_part_is_fetched_whole(
    place: LostPlace, folder: Path, fetched: Path, tmp_path: Path
) -> None:
    shutil.copy(with_a_part(place, folder, tmp_path), fetched)
    place.daemon.start()
    eventually(lambda: list(dict.fromkeys(rows_of(place))) == [1, 2, 3, 4], 30)
    assert place.daemon.terminate() == 0


@pytest.mark.parametrize("purged", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("server", [GTIDS], indirect=True)
def test_files_that_were_imported_before_the_archive_begins_are_of_its_line(
    place: LostPlace, tmp_path: Path, purged: bool
) -> None:
    first = place.files()[-1]
    place.insert(1)
    place.next_file()
    copy = shutil.copy(place.path(first), tmp_path)
    place.purge("" if purged else first)
    ((server,),) = place.run("SELECT @@server_uuid")
    added = place.command("archive", "import", "shop", copy, "--server", server)
    assert added.returncode == 0, added.stderr
    place.daemon.start()
    wait_archived(place)
    wanted = [first, *place.files()] if purged else place.files()
    assert [(one["line"], one["name"]) for one in listed(place)] == [(2, name) for name in wanted]
    assert place.command("position", "set", "shop", f"{first}:4", "--yes").returncode == 0
    place.wait_ids(1)
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
def test_an_archive_that_is_added_while_the_daemon_runs_keeps_what_its_destination_needs(place: LostPlace) -> None:
    file = place.daemon.folder / "destinations" / "shop.toml"
    whole = file.read_text().replace("[archive]\n", '[archive]\nkeep_bytes = "1KiB"\n')
    file.write_text(whole.partition("[archive]")[0])
    place.follow()
    place.insert(1)
    place.wait_ids(1)
    file.write_text(whole)
    place.daemon.wait("shop", lambda seen: bool((seen["archive"] or {}).get("file")))
    place.insert(2)
    place.wait_ids(1, 2)
    wait_archived(place)
    pause(place)
    ids = range(3, 9)
    for number in ids:
        place.insert(number)
        place.run(f"INSERT INTO {place.schema}.t VALUES ({number + 100}, REPEAT('w', 90))")
        place.next_file()
        wait_archived(place)
    place.purge()
    assert place.command("resume", "shop").returncode == 0
    place.wait_ids(1, 2, *(one for number in ids for one in (number, number + 100)))
    place.leave()


@ONE
def test_nothing_is_pruned_while_a_new_destination_has_no_position_yet(place: LostPlace) -> None:
    place.follow()
    for number in (1, 2):
        place.insert(number)
        place.next_file()
    place.wait_ids(1, 2)
    wait_archived(place)
    before = listed(place)
    file = place.daemon.folder / "destinations" / "shop.toml"
    text = file.read_text().replace('start = "latest"', 'start = "earliest"')
    (file.parent / "new.toml").write_text(text.replace("out.jsonl", "no/folder/out.jsonl"))
    refused = place.command("archive", "prune", "shop", "--keep-bytes", "1", "--yes")
    assert (refused.returncode, "new has no stored position yet" in refused.stderr) == (1, True), refused.stderr
    assert listed(place) == before
    (file.parent / "new.toml").unlink()
    seconds = place.command("archive", "prune", "shop", "--keep", "30", "--yes")
    assert (seconds.returncode, "should have a unit" in seconds.stderr) == (2, True), seconds.stderr
    place.leave()


@ONE
def test_a_start_before_what_is_left_skips_nothing_in_silence(place: LostPlace) -> None:
    file = place.daemon.folder / "destinations" / "shop.toml"
    text = file.read_text().replace('start = "latest"', 'start = "2020-01-01T00:00:00Z"')
    file.write_text(text.partition("[archive]")[0])
    place.insert(1)
    place.next_file()
    place.insert(2)
    place.purge()
    place.daemon.start()
    seen = place.daemon.wait_state("shop", "FAILED")
    assert "changes of the time between are purged" in seen["message"]
    assert place.daemon.terminate() == 0
    file.write_text(text.replace("2020-01-01T00:00:00Z", "earliest").partition("[archive]")[0])
    place.follow()
    place.wait_ids(2)
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
            place.run("DO SLEEP(1.6)")  # MariaDB's commit times have whole seconds
    place.wait_ids(1, 2, 3, 4)
    wait_archived(place)
    place.purge()
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


def timeless(messages: Iterable[dict[str, Any]], *without: str) -> list[dict[str, Any]]:
    """The messages without what counts and dates the making of them, and without other keys."""
    left_out = ("id", "ts", *without)
    return [{name: value for name, value in message.items() if name not in left_out} for message in messages]


def values_of(kafka: Any, topic: str) -> list[dict[str, Any]]:
    values = asyncio.run(consumed(kafka.bootstrap_servers, topic))
    return timeless(json.loads(value) for value in values if value is not None)


@ONE
def test_archived_changes_are_published_again_into_a_file(place: LostPlace, tmp_path: Path) -> None:
    place.follow()
    place.run(NEXT_SECOND)
    place.insert(1, 2)
    place.run(f"CREATE TABLE {place.schema}.other (id INT PRIMARY KEY)", f"INSERT INTO {place.schema}.other VALUES (9)")
    between = place.next_file()
    place.insert(3)
    place.next_file()
    wait_archived(place)
    place.purge()
    place.insert(4)
    wait_archived(place)
    place.wait_ids(1, 2, 9, 3, 4)
    again = tmp_path / "again.jsonl"
    done = place.command("replay", "shop", "--to-file", str(again), "--table", rf"{place.schema}\.t")
    assert (done.returncode, done.stdout) == (0, f"4 rows published to {again}\n"), done.stderr
    assert [int(row["id"]) for message in read_jsonl(again) for row in message["data"]] == [1, 2, 3, 4]
    # MariaDB's commit times are whole seconds, within which the rows of all tables are counted.
    without = ("_pos",) if place.kind == MARIADB else ()
    first = timeless((one for one in read_jsonl(place.out) if one["table"] == "t"), *without)
    assert timeless(read_jsonl(again), *without) == first
    everything = tmp_path / "everything.jsonl"
    assert place.command("replay", "shop", "--to-file", str(everything)).returncode == 0
    assert timeless(read_jsonl(everything)) == timeless(read_jsonl(place.out))
    numbers = [int(message["_pos"]) for message in read_jsonl(everything)]
    assert numbers == sorted(set(numbers))
    part, end = tmp_path / "part.jsonl", f"{place.files()[-1]}:4"
    bounds = ("--from", f"{between}:4", "--to", end, "--rate", "2")
    began = time.monotonic()
    assert place.command("replay", "shop", "--to-file", str(part), *bounds).returncode == 0
    assert time.monotonic() - began > 1.5, "four rows at two a second"
    assert [int(row["id"]) for message in read_jsonl(part) for row in message["data"]] == [1, 2, 9, 3]
    own = place.command("replay", "shop", "--to-file", str(place.out))
    assert (own.returncode, "the destination shop publishes to" in own.stderr) == (1, True), own.stderr
    shown = place.command("replay", "shop", "--to-file", "-", "--table", rf"{place.schema}\.t")
    assert [int(row["id"]) for line in shown.stdout.splitlines() for row in json.loads(line)["data"] or ()] == [
        1,
        2,
        3,
        4,
    ]
    nowhere = place.command("replay", "shop", "--to-topic", "again")
    assert (nowhere.returncode, "has no topics" in nowhere.stderr) == (1, True), nowhere.stderr
    place.leave()


@ONE
def test_archived_changes_are_published_again_into_a_topic(
    server: tuple[Any, str], daemon: Callable[..., DaemonProcess], kafka: Any, folder: Path
) -> None:
    running, _ = server
    name = f"replayed{abs(hash(folder)) % 10**8}"
    with pymysql.connect(**running.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
        cursor.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
        sink = f'type = "kafka"\nbootstrap_servers = "{kafka.bootstrap_servers}"\n'
        sink += f'delivery = "exactly_once"\nstate_topic = "{name}-state"'  # others have a `shop` too
        more = f'[heartbeat]\nenabled = false\n[archive]\npath = "{folder}"\nflush_interval = "20ms"'
        process = daemon(shop=destination_toml(running, name, sink, more=more)).start()
        process.wait_state("shop", "STREAMING")
        cursor.execute(NEXT_SECOND)
        for number in range(1, 6):
            cursor.execute(f"INSERT INTO {name}.t VALUES ({number})")
    eventually(lambda: len(values_of(kafka, name)) == 5)
    same = process.run("replay", "shop", "--to-topic", name)
    assert (same.returncode, "its consumers would take old rows for new ones" in same.stderr) == (1, True)

    def replayed() -> bool:
        done = process.run("replay", "shop", "--to-topic", f"{name}-again", "--table", rf"{name}\.t")
        assert done.returncode == 0, done.stderr
        return "5 rows published" in done.stdout  # what the archive does not have yet comes with the next

    eventually(replayed)
    assert values_of(kafka, f"{name}-again")[-5:] == values_of(kafka, name)
    assert process.terminate() == 0
