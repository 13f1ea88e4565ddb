"""One dump of a source serves its archive and all destinations; those that are far behind read the archive."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_archive import ONE, folder, pause, place, server, wait_archived
from tests.lost import GTIDS, LostPlace
from tests.support import DaemonProcess, destination_toml, eventually

__all__ = ["folder", "place", "server"]
pytestmark = pytest.mark.server


@ONE
def test_one_dump_serves_the_archive_and_all_destinations_of_the_source(
    place: LostPlace, daemon: Callable[..., DaemonProcess], tmp_path: Path, folder: Path
) -> None:
    def dumps() -> list[int]:
        return [
            row[0] for row in place.run("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog%'")
        ]

    def sink(name: str) -> str:
        return f'type = "jsonl"\npath = "{tmp_path / name}.jsonl"'

    def published(name: str) -> list[int]:
        path = tmp_path / f"{name}.jsonl"
        data = path.read_bytes() if path.exists() else b""
        return [int(text) for text in re.findall(rb'"data":\[\{"id":"(\d+)"', data)]  # 17 MB are not parsed each time

    place.run(f"SET GLOBAL max_allowed_packet = {64 << 20}")
    quick = 'heartbeat = "1s"'  # with it the source notices that a dump's connection is closed
    names, more = ("shop", "second", "third"), f'[heartbeat]\nenabled = false\n[archive]\npath = "{folder}"'
    place.daemon = daemon(
        **{one: destination_toml(place.server, place.schema, sink(one), source=quick, more=more) for one in names}
    )
    place.follow()
    for name in names[1:]:
        place.daemon.wait_state(name, "STREAMING")
    eventually(lambda: len(dumps()) == 1, explain=lambda: f"{dumps()}\n{place.daemon.log.read_text()[-3000:]}")

    place.insert(*range(1, 20))
    place.next_file()
    place.run(f"ALTER TABLE {place.schema}.t ADD w LONGBLOB")
    place.run(f"INSERT INTO {place.schema}.t VALUES (20, 'large', REPEAT('x', 17 << 20))")
    place.insert_wide(21)
    for name in names:
        eventually(
            lambda name=name: published(name) == list(range(1, 22)), explain=lambda name=name: f"{published(name)}"
        )
    eventually(lambda: len(dumps()) == 1, 60)  # the large event was read from the source
    place.run(f"KILL {dumps()[0]}")
    place.insert_wide(22)
    eventually(lambda: len(dumps()) == 1, 60, lambda: f"{dumps()}\n{place.daemon.log.read_text()[-3000:]}")
    place.insert_wide(23)
    for name in names:
        eventually(
            lambda name=name: published(name) == list(range(1, 24)), explain=lambda name=name: f"{published(name)}"
        )
    assert place.command("pause", "second").returncode == 0
    place.insert_wide(24)
    assert place.command("resume", "second").returncode == 0
    eventually(lambda: published("second") == list(range(1, 25)), explain=lambda: f"{published('second')}")
    eventually(lambda: len(dumps()) == 1, 60)
    place.leave()


@pytest.mark.parametrize("server", [GTIDS], indirect=True)
def test_transactions_that_a_dump_by_gtids_leaves_out_do_not_come_with_the_archives_dump(place: LostPlace) -> None:
    place.follow()
    place.insert(*range(1, 7))
    place.wait_ids(*range(1, 7))
    pause(place)
    executed = place.run("SELECT @@global.gtid_executed")[0][0]
    fourth = int(executed.rpartition("-")[2]) - 2
    without = place.run(f"SELECT GTID_SUBTRACT('{executed}', '{executed.partition(':')[0]}:{fourth}')")[0][0]
    moved = place.command("position", "set", "shop", without.replace("\n", ""), "--yes")
    assert moved.returncode == 0, moved.stderr
    assert place.command("resume", "shop").returncode == 0
    eventually(lambda: place.ids() == [*range(1, 7), 4], explain=lambda: f"{place.ids()}")
    eventually(lambda: "the archiver's dump is read" in place.daemon.log.read_text().rpartition("resumed by an")[2])
    place.insert(7)
    eventually(lambda: 7 in place.ids())
    assert place.ids() == [*range(1, 7), 4, 7]
    place.leave()


@ONE
@pytest.mark.parametrize("damaged", [False, pytest.param(True, id="damaged")])
def test_a_destination_far_behind_reads_the_archive_and_spares_the_source(
    place: LostPlace, folder: Path, damaged: bool
) -> None:
    place.run(f"ALTER TABLE {place.schema}.t MODIFY v LONGTEXT")
    place.follow()
    place.insert(1)
    place.wait_ids(1)
    pause(place)
    for number in range(2, 26):
        place.run(f"INSERT INTO {place.schema}.t VALUES ({number}, REPEAT('{number:032}', 30000))")
    wait_archived(place)
    if damaged:
        for path in sorted(folder.rglob("*.zst"), key=lambda path: path.stat().st_mtime)[-3:]:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    assert place.command("resume", "shop").returncode == 0
    place.wait_ids(*range(1, 26))
    assert place.ids() == list(range(1, 26))
    place.insert(26)
    place.wait_ids(*range(1, 27))
    log = place.daemon.log.read_text()
    assert "the archive is read instead of the source" in log
    assert ("the archive can't be read" in log) == damaged
    begun = log.index("the archive is read instead of the source")
    eventually(
        lambda: damaged or "the archiver's dump is read instead of our own" in place.daemon.log.read_text()[begun:]
    )
    place.leave()


@ONE
def test_a_destination_stops_while_its_archive_cant_be_written_if_it_is_to(
    server: tuple[Any, str], daemon: Callable[..., DaemonProcess], tmp_path: Path, folder: Path
) -> None:
    archive = f'[archive]\npath = "{folder}"\nflush_interval = "20ms"\non_failure = "stop"'
    out, more = tmp_path / "out.jsonl", f"[heartbeat]\nenabled = false\n{archive}"
    place = LostPlace(*server, "stops", daemon, out, more=more)
    place.follow()
    place.insert(1)
    place.wait_ids(1)
    wait_archived(place)
    folder.rename(tmp_path / "away")
    folder.write_text("no folder")
    place.insert(2)  # with this the archive fails
    place.daemon.wait("shop", lambda one: "archive" in one["troubles"])
    place.insert(3)
    place.daemon.wait("shop", lambda one: (one["state"], one["reason"]) == ("FAILED", "archive"))
    assert "[archive] on_failure is stop" in place.daemon.health()[1]["destinations"]["shop"]["message"]
    place.insert(4)
    assert 4 not in place.ids()
    folder.unlink()
    (tmp_path / "away").rename(folder)
    place.wait_ids(1, 2, 3, 4)
    place.daemon.wait_state("shop", "STREAMING")
    place.leave()
