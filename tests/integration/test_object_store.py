"""An archive in an object store: its outages, and several daemons that share it."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from headrace.errors import ArchiveError
from headrace.mysql.archive.archive import Archive
from headrace.settings.archive import ArchiveSettings
from tests.lost import GTIDS, MARIADB, LostPlace, archived_files, start_server
from tests.proxy import Proxy
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = [pytest.mark.server, pytest.mark.long]
LIMIT = 90.0


@pytest.fixture(scope="module")
def server(stack: Stack) -> Iterator[Any]:
    running = start_server(stack, GTIDS, "object-store")
    yield running
    running.kill()


class Kept:
    """An archive in the store, below a prefix of its own."""

    def __init__(self, seaweedfs: Any, name: str) -> None:
        self.url, self.options = f"s3://{seaweedfs.bucket}/{name}", seaweedfs.options

    def toml(self, **options: str) -> str:
        lines = [f'{key} = "{value}"' for key, value in {**self.options, **options}.items()]
        return "\n".join([f'[archive]\nurl = "{self.url}"\nflush_interval = "20ms"\n[archive.options]', *lines])

    def equals(self, place: LostPlace) -> None:
        """It has the server's files, byte for byte, and `verify` finds nothing."""
        found = archived_files(ArchiveSettings(url=self.url, options=self.options))
        assert list(found) == place.files()
        for name in place.files()[:-1]:
            assert found[name] == place.path(name).read_bytes(), name
        verified = place.command("archive", "verify", "shop")
        assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.fixture
def kept(seaweedfs: Any, tmp_path: Path) -> Kept:
    return Kept(seaweedfs, tmp_path.name)


def end_of(place: LostPlace) -> tuple[str, int]:
    file, offset = place.run("SHOW BINARY LOG STATUS")[0][:2]
    return str(file), int(offset)


def archived(daemon: DaemonProcess, end: tuple[str, int]) -> None:
    """Until a daemon has everything up to there."""
    daemon.wait("shop", lambda one: (one["archive"]["file"] or "", one["archive"]["offset"] or 0) >= end, LIMIT)


def keeps(daemon: DaemonProcess) -> bool:
    return bool(daemon.health()[1]["destinations"]["shop"]["archive"]["file"])


def test_a_purged_binlog_is_read_from_the_object_store_also_after_an_outage(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path, seaweedfs: Any, kept: Kept
) -> None:
    with Proxy(seaweedfs.host, seaweedfs.port) as proxy:
        more = "[heartbeat]\nenabled = false\n" + kept.toml(endpoint=f"http://{proxy.host}:{proxy.port}")
        place = LostPlace(server, GTIDS, "outage", daemon, tmp_path / "out.jsonl", more=more)
        checked = place.command("check")
        assert f"{kept.url} can be used" in checked.stdout, checked.stdout
        place.follow()
        place.insert(1)
        place.wait_ids(1)
        archived(place.daemon, end_of(place))
        proxy.refuse()
        place.insert(2)
        place.wait_ids(1, 2)
        status = place.daemon.wait("shop", lambda one: "archive" in one["troubles"], LIMIT)
        assert f"in {kept.url}: " in status["troubles"]["archive"]
        place.daemon.wait_state("shop", "DEGRADED")
        refused = place.command("check")
        assert refused.returncode == 1
        assert "the archive can't write probe/" in refused.stdout, refused.stdout
        proxy.thaw()
        archived(place.daemon, end_of(place))
        place.daemon.wait("shop", lambda one: "archive" not in one["troubles"], LIMIT)
        assert place.command("pause", "shop").returncode == 0
        for number in (3, 4):
            place.insert(number)
            place.next_file()
        archived(place.daemon, end_of(place))
        kept.equals(place)
        place.purge()
        assert place.command("resume", "shop").returncode == 0
        place.wait_ids(1, 2, 3, 4)
        assert place.daemon.wait_state("shop", "STREAMING")["gap"] is None
        verified = place.command("archive", "verify", "shop")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        place.leave()


def test_requests_that_are_slow_or_sent_again_because_their_answer_was_lost_leave_the_archive_whole(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path, seaweedfs: Any, kept: Kept
) -> None:
    chance = random.Random(7)
    with Proxy(seaweedfs.host, seaweedfs.port) as proxy:
        more = "[heartbeat]\nenabled = false\n" + kept.toml(endpoint=f"http://{proxy.host}:{proxy.port}")
        place = LostPlace(server, GTIDS, "lost_answers", daemon, tmp_path / "out.jsonl", more=more)
        place.follow()
        for number in range(1, 41):
            proxy.delay(chance.choice([0, 0, 0.02, 0.2]))
            proxy.cut(chance.choice([0, 1, 100]), reset=chance.random() < 0.5)
            place.insert(number)
            if number % 8 == 0:
                place.next_file()
            eventually(lambda: proxy.has_cut, LIMIT)
        proxy.thaw()
        place.next_file()
        archived(place.daemon, end_of(place))
        place.wait_ids(*range(1, 41))
        kept.equals(place)
        place.leave()


@pytest.mark.parametrize("wrong", ["access_key_id", "secret_access_key"])
async def test_a_wrong_key_is_one_sentence_that_does_not_show_it(kept: Kept, wrong: str) -> None:
    archive = Archive.of(ArchiveSettings(url=kept.url, options={**kept.options, wrong: "a-wrong-one"}))
    with pytest.raises(ArchiveError, match=r"the archive can't write probe/.* -> check bucket") as caught:
        await archive.store.check()
    assert "a-wrong-one" not in str(caught.value)


def test_a_daemon_with_another_source_is_refused(
    server: Any, stack: Stack, daemon: Callable[..., DaemonProcess], tmp_path: Path, kept: Kept
) -> None:
    more = "[heartbeat]\nenabled = false\n" + kept.toml()
    place = LostPlace(server, GTIDS, "first_source", daemon, tmp_path / "out.jsonl", more=more)
    place.follow()
    archived(place.daemon, end_of(place))
    other = start_server(stack, MARIADB, "other-source")
    try:
        sink = f'type = "jsonl"\npath = "{tmp_path / "other.jsonl"}"'
        second = daemon(node="second", shop=destination_toml(other, "other", sink, more=more))
        second.start()
        status = second.wait("shop", lambda one: "archive" in one["troubles"], LIMIT)
        assert "archives another source in s3://" in status["troubles"]["archive"]
        assert "give each source an archive of its own" in status["troubles"]["archive"]
    finally:
        other.kill()
    place.leave()
    kept.equals(place)


def test_of_several_daemons_one_keeps_the_archive_and_another_one_takes_it_over(
    server: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path, kept: Kept
) -> None:
    more = "[heartbeat]\nenabled = false\n" + kept.toml()
    place = LostPlace(server, GTIDS, "several", daemon, tmp_path / "out.jsonl", more=more)
    sink = f'type = "jsonl"\npath = "{tmp_path / "second.jsonl"}"'
    second = daemon(node="second", shop=destination_toml(server, "several", sink, more=more))
    place.follow()
    place.insert(1)
    archived(place.daemon, end_of(place))
    second.start()
    second.wait_state("shop", "STREAMING")
    place.insert(2)
    archived(place.daemon, end_of(place))
    eventually(lambda: "another daemon keeps the archive" in second.log.read_text())
    assert not keeps(second)

    os.kill(place.daemon.pid, signal.SIGSTOP)  # and it is taken over meanwhile
    place.insert(3)
    began = time.monotonic()
    archived(second, end_of(place))
    assert time.monotonic() - began > 15, "not while the first one may only be slow"
    os.kill(place.daemon.pid, signal.SIGCONT)
    place.insert(4)
    archived(second, end_of(place))
    eventually(lambda: "another daemon keeps the archive" in place.daemon.log.read_text(), LIMIT)
    eventually(lambda: not keeps(place.daemon), LIMIT)

    second.kill()
    place.insert(5)
    place.next_file()
    archived(place.daemon, end_of(place))
    kept.equals(place)
    place.wait_ids(1, 2, 3, 4, 5)
    assert [row["id"] for message in read_jsonl(tmp_path / "second.jsonl") for row in message["data"]][-1] == "4"
    place.leave()
