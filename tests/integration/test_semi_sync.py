"""A transaction that a client saw committed is archived, also if the source is destroyed: semi-synchronous replicas."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql
import pytest

from devstack import Stack
from tests import prefork
from tests.lost import GTIDS, MARIADB, LostPlace, start_server
from tests.support import DaemonProcess, eventually

pytestmark = pytest.mark.server

ON = {
    GTIDS: (
        "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'",
        "SET GLOBAL rpl_semi_sync_source_enabled = 1",
        "SET GLOBAL rpl_semi_sync_source_timeout = 60000",
    ),
    MARIADB: (
        "SET GLOBAL rpl_semi_sync_master_enabled = 1",
        "SET GLOBAL rpl_semi_sync_master_timeout = 60000",
        "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'",
    ),
}
STATUS = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%'"


@pytest.fixture(params=[GTIDS, MARIADB])
def place(
    request: pytest.FixtureRequest, stack: Stack, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> Iterator[LostPlace]:
    server = start_server(stack, request.param, f"burning{abs(hash(request.node.name)) % 10**6}")
    more = f'[heartbeat]\nenabled = false\n[archive]\npath = "{tmp_path / "archive"}"'
    out, source = tmp_path / "out.jsonl", 'semi_sync = "archive"'
    made = LostPlace(server, request.param, "burning", daemon, out, source=source, more=more)
    yield made
    server.kill()


def status(place: LostPlace) -> dict[str, str]:
    return {name.lower().replace("master", "source"): value for name, value in place.run(STATUS)}


def switched_on(place: LostPlace) -> None:
    """The daemon runs, and the source waits for it."""
    place.run(*ON[place.kind])
    place.follow()
    eventually(lambda: int(status(place)["rpl_semi_sync_source_clients"]) == 1)


def archived_ids(place: LostPlace, folder: Path) -> set[int]:
    """The rows of the table in the exported files, by another reader of the files than the archive's."""
    done = place.command("archive", "export", "shop", "--to", str(folder))
    assert done.returncode == 0, done.stderr
    files = [str(path) for path in sorted(folder.iterdir())]
    decoded = prefork.run(["decode", *files, "--table", "burning.t"], cwd=folder, env=dict(os.environ))
    assert decoded.returncode == 0, decoded.stderr
    messages = [json.loads(line) for line in decoded.stdout.splitlines()]
    return {int(row["id"]) for message in messages if message["type"] == "INSERT" for row in message["data"]}


def test_a_commit_waits_until_it_is_archived_and_is_reported_if_it_does_not(place: LostPlace) -> None:
    switched_on(place)
    place.insert(*range(1, 11))
    assert int(status(place)["rpl_semi_sync_source_yes_tx"]) >= 10
    assert int(status(place)["rpl_semi_sync_source_no_tx"]) == 0
    os.kill(place.daemon.pid, signal.SIGSTOP)
    waiting = threading.Thread(target=lambda: place.insert(11))
    waiting.start()
    waiting.join(1)
    assert waiting.is_alive(), "a commit does not wait for the archive"
    os.kill(place.daemon.pid, signal.SIGCONT)
    waiting.join(20)
    assert not waiting.is_alive()
    off = "rpl_semi_sync_source_enabled" if place.kind == GTIDS else "rpl_semi_sync_master_enabled"
    place.run(f"SET GLOBAL {off} = 0")
    seen = place.daemon.wait("shop", lambda one: "semi_sync" in one["troubles"])
    assert "is not enabled on the source" in seen["troubles"]["semi_sync"]
    place.daemon.wait_state("shop", "DEGRADED")
    place.run(f"SET GLOBAL {off} = 1")
    place.daemon.wait("shop", lambda one: "semi_sync" not in one["troubles"])
    place.leave()


@pytest.mark.parametrize("place", [GTIDS], indirect=True)  # MariaDB always has it
def test_a_source_without_it_is_reported_until_it_is_installed(place: LostPlace) -> None:
    place.follow()
    seen = place.daemon.wait("shop", lambda one: "semi_sync" in one["troubles"])
    assert "is not installed on the source" in seen["troubles"]["semi_sync"]
    place.insert(1)
    place.wait_ids(1)
    place.run(*ON[place.kind])
    place.daemon.wait("shop", lambda one: "semi_sync" not in one["troubles"])
    assert int(status(place)["rpl_semi_sync_source_clients"]) == 1
    place.insert(2)
    place.leave()


@pytest.mark.parametrize(
    "delay", [0.3, *(pytest.param(ms / 1000, marks=pytest.mark.long) for ms in range(100, 300, 20))]
)
def test_what_a_client_saw_committed_is_archived_though_the_source_burns(
    delay: float, place: LostPlace, tmp_path: Path
) -> None:
    switched_on(place)
    committed: list[int] = []

    def load(first: int) -> None:
        try:
            with pymysql.connect(**place.server.connection("root"), autocommit=True) as connection:
                cursor = connection.cursor()
                for number in range(first, first + 100_000):
                    cursor.execute(f"INSERT INTO burning.t (id) VALUES ({number})")
                    committed.append(number)
        except pymysql.err.MySQLError:
            return

    clients = [threading.Thread(target=load, args=(first * 1_000_000,)) for first in (1, 2, 3, 4)]
    for client in clients:
        client.start()
    eventually(lambda: len(committed) > 200, 60)
    time.sleep(delay)  # the moment of the disaster
    place.server.kill()
    shutil.rmtree(place.server.datadir)
    for client in clients:
        client.join()
    assert place.daemon.terminate() == 0
    missing = set(committed) - archived_ids(place, tmp_path / "exported")
    assert not missing, f"{len(missing)} of {len(committed)} committed rows are not archived"
