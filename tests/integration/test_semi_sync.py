"""A transaction that a client saw committed is archived, also if the source is destroyed: semi-synchronous replicas."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from headrace.cli.wiring import ADAPTERS
from headrace.errors import SourceError
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.mysql.position.inventory import take_inventory
from headrace.mysql.semi_sync import MysqlAcknowledger
from headrace.mysql.wire.connection import SourceConnection, address_of
from headrace.ports.source import Confirmed
from headrace.settings.archive import ArchiveSettings
from headrace.settings.daemon import DaemonSettings
from headrace.settings.load import Loader
from headrace.tasks import cancel
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
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[tuple[Any, str]]:
    running = start_server(stack, request.param, f"burning{abs(hash(request.node.name)) % 10**6}")
    yield running, request.param
    running.kill()


@pytest.fixture
def place(server: tuple[Any, str], daemon: Callable[..., DaemonProcess], tmp_path: Path) -> LostPlace:
    """A destination whose source waits for the archive."""
    more = f'[heartbeat]\nenabled = false\n[archive]\npath = "{tmp_path / "archive"}"'
    out, source = tmp_path / "out.jsonl", 'semi_sync = "archive"'
    return LostPlace(*server, "burning", daemon, out, source=source, more=more)


@pytest.fixture
def sink_place(server: tuple[Any, str], daemon: Callable[..., DaemonProcess], tmp_path: Path) -> LostPlace:
    """A destination whose source waits for the sink."""
    return LostPlace(*server, "burning", daemon, tmp_path / "out.jsonl", source='semi_sync = "sink"')


def status(place: LostPlace) -> dict[str, str]:
    return {name.lower().replace("master", "source"): value for name, value in place.run(STATUS)}


def switched_on(place: LostPlace) -> None:
    """The daemon runs, and the source waits for it."""
    place.run(*ON[place.kind])
    place.follow()
    eventually(lambda: int(status(place)["rpl_semi_sync_source_clients"]) == 1)


def burnt(place: LostPlace, delay: float) -> list[int]:
    """Destroys the source under load, `delay` seconds after 200 commits; the rows that clients saw committed."""
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
    return committed


async def levels(folder: Path) -> list[int]:
    """Those of the segments of the last file."""
    archive = Archive.of(ArchiveSettings(path=folder))
    await archive.refresh()
    return [segment.level for segment in await archive.segments(archive.lines[-1].files[-1])]


def archived_ids(place: LostPlace, folder: Path) -> set[int]:
    """The rows of the table in the exported files, by another reader of the files than the archive's."""
    done = place.command("archive", "export", "shop", "--to", str(folder))
    assert done.returncode == 0, done.stderr
    files = [str(path) for path in sorted(folder.iterdir())]
    decoded = prefork.run(["decode", *files, "--table", "burning.t"], cwd=folder, env=dict(os.environ))
    assert decoded.returncode == 0, decoded.stderr
    messages = [json.loads(line) for line in decoded.stdout.splitlines()]
    return {int(row["id"]) for message in messages if message["type"] == "INSERT" for row in message["data"]}


def test_a_source_that_does_not_wait_because_nothing_can_be_archived_is_reported(
    place: LostPlace, tmp_path: Path
) -> None:
    switched_on(place)
    name = "master" if place.kind == MARIADB else "source"
    place.run(f"SET GLOBAL rpl_semi_sync_{name}_timeout = 300")
    folder, kept = tmp_path / "archive", tmp_path / "kept"
    folder.rename(kept)
    folder.write_text("no folder")
    place.insert(1)
    seen = place.daemon.wait("shop", lambda one: {"archive", "semi_sync"} <= set(one["troubles"]))
    assert "the source does not wait until a transaction is archived: " in seen["troubles"]["semi_sync"]
    folder.unlink()
    kept.rename(folder)
    place.daemon.wait("shop", lambda one: "semi_sync" not in one["troubles"], 60)
    eventually(lambda: int(status(place)["rpl_semi_sync_source_clients"]) == 1)


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


@pytest.mark.parametrize("server", [GTIDS], indirect=True)  # MariaDB always has it
def test_a_source_without_it_is_reported_until_it_is_installed(place: LostPlace) -> None:
    place.follow()
    seen = place.daemon.wait("shop", lambda one: "semi_sync" in one["troubles"])
    assert "is not installed on the source" in seen["troubles"]["semi_sync"]
    assert "semi-synchronous replication is not installed" in place.command("check").stdout
    place.insert(1)
    place.wait_ids(1)
    place.run(*ON[place.kind])
    place.daemon.wait("shop", lambda one: "semi_sync" not in one["troubles"])
    assert int(status(place)["rpl_semi_sync_source_clients"]) == 1
    place.insert(2)
    place.leave()


def test_a_commit_waits_until_the_sink_has_it(sink_place: LostPlace) -> None:
    place = sink_place
    switched_on(place)
    place.insert(*range(1, 6))
    assert place.ids() == list(range(1, 6)), "a commit returned before the sink had it"
    place.run("CREATE DATABASE other", "CREATE TABLE other.t (id INT)", "INSERT INTO other.t VALUES (1)")
    assert int(status(place)["rpl_semi_sync_source_no_tx"]) == 0
    assert place.command("pause", "shop").returncode == 0
    paused = place.daemon.wait_state("shop", "PAUSED")
    assert "a transaction: the destination is paused" in paused["troubles"]["semi_sync"]
    published = list[int]()

    def insert() -> None:
        place.insert(6)
        published.extend(place.ids())

    waiting = threading.Thread(target=insert)
    waiting.start()
    waiting.join(1)
    assert waiting.is_alive(), "a commit does not wait for the sink"
    assert place.command("resume", "shop").returncode == 0
    waiting.join(20)
    assert not waiting.is_alive()
    assert "semi_sync" not in place.daemon.health()[1]["destinations"]["shop"]["troubles"]
    assert published == [1, 2, 3, 4, 5, 6], "a commit returned before the sink had it"
    off = "rpl_semi_sync_source_enabled" if place.kind == GTIDS else "rpl_semi_sync_master_enabled"
    place.run(f"SET GLOBAL {off} = 0")
    seen = place.daemon.wait("shop", lambda one: "semi_sync" in one["troubles"])
    assert "until the sink has confirmed a transaction: semi-sync" in seen["troubles"]["semi_sync"]
    place.run(f"SET GLOBAL {off} = 1")
    place.daemon.wait("shop", lambda one: "semi_sync" not in one["troubles"])
    place.leave()


@pytest.mark.parametrize("server", [GTIDS], indirect=True)  # without GTIDs executed transactions are not compared
def test_a_transaction_that_waits_for_another_replica_is_no_divergence(
    server: tuple[Any, str], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    """The source sends it before it counts it as executed."""
    place = LostPlace(*server, "burning", daemon, tmp_path / "out.jsonl", source='on_diverged = "continue"')
    place.follow()
    place.run(*ON[place.kind])
    waiting = threading.Thread(target=lambda: place.insert(1))
    waiting.start()
    place.wait_ids(1)
    place.leave()
    assert waiting.is_alive(), "the commit did not wait"
    place.follow()
    place.run("SET GLOBAL rpl_semi_sync_source_enabled = 0")
    waiting.join(20)
    place.insert(2)
    place.wait_ids(1, 2)
    assert '"gap"' not in str(place.leave().to_dict())
    assert "diverged" not in place.daemon.log.read_text()


@pytest.mark.parametrize("server", [GTIDS], indirect=True)
def test_a_commit_that_did_not_wait_is_reported_though_the_source_waits_again(place: LostPlace) -> None:
    switched_on(place)
    place.run("SET GLOBAL rpl_semi_sync_source_timeout = 100")
    asked = itertools.count(int(place.run("SHOW GLOBAL STATUS LIKE 'Com_show_status'")[0][1]) + 1)
    eventually(lambda: int(place.run("SHOW GLOBAL STATUS LIKE 'Com_show_status'")[0][1]) > next(asked))
    # The daemon has just checked, so that its next check comes when the source waits again.
    os.kill(place.daemon.pid, signal.SIGSTOP)
    place.insert(1)
    os.kill(place.daemon.pid, signal.SIGCONT)
    eventually(lambda: status(place)["rpl_semi_sync_source_status"] == "ON")
    eventually(lambda: "the source has waited for longer than its timeout" in place.daemon.log.read_text())
    place.daemon.wait("shop", lambda one: "semi_sync" not in one["troubles"])
    place.leave()


async def test_a_dump_that_is_begun_again_acknowledges_nothing_that_is_not_confirmed(
    sink_place: LostPlace, tmp_path: Path
) -> None:
    place = sink_place
    place.run("CREATE TABLE burning.u (id INT PRIMARY KEY)", *ON[place.kind])
    login = {**place.server.connection("canal"), "tls": "disabled", "server_id": 4711}
    raw = {"name": "shop", "source": login, "sink": {"type": "null"}}
    address = Loader(ADAPTERS, {}).make_destination(raw).source
    acknowledger = MysqlAcknowledger(lambda: address, DaemonSettings(spool=tmp_path), "shop")
    async with await SourceConnection.open(address_of(address)) as connection:
        await connection.load_variables()
        server = (await take_inventory(connection)).server_uuid

        async def end() -> Position:
            file, offset, _ = await connection.binlog_end()
            return Position(server, file, offset)

        async def begun() -> asyncio.Task[None]:
            task = asyncio.create_task(acknowledger.run(confirmed, lambda _: None))
            await asyncio.to_thread(eventually, lambda: int(status(place)["rpl_semi_sync_source_clients"]) == 1)
            return task

        confirmed = Confirmed(await end())
        task = await begun()
        insert = asyncio.create_task(asyncio.to_thread(place.run, "INSERT INTO burning.u VALUES (1)"))
        await asyncio.wait([insert], timeout=1)
        for (number,) in place.run("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog D%'"):
            place.run(f"KILL {number}")
        with pytest.raises(SourceError):
            await asyncio.wait_for(task, 20)
        task = await begun()
        await asyncio.wait([insert], timeout=1)
        assert not insert.done(), "what is not confirmed was acknowledged"
        confirmed.note(await end())
        await asyncio.wait_for(insert, 20)
        await cancel(task)


def test_what_a_client_saw_committed_is_published_though_the_source_burns(sink_place: LostPlace) -> None:
    switched_on(sink_place)
    committed = set(burnt(sink_place, 0.3))
    sink_place.daemon.terminate()
    missing = committed - set(sink_place.ids())
    assert not missing, f"{len(missing)} of {len(committed)} committed rows are not published"


@pytest.mark.parametrize(
    "delay", [0.3, *(pytest.param(ms / 1000, marks=pytest.mark.long) for ms in range(100, 300, 20))]
)
def test_what_a_client_saw_committed_is_archived_though_the_source_burns(
    delay: float, place: LostPlace, tmp_path: Path
) -> None:
    switched_on(place)
    committed = burnt(place, delay)
    assert place.daemon.terminate() == 0
    missing = set(committed) - archived_ids(place, tmp_path / "exported")
    assert not missing, f"{len(missing)} of {len(committed)} committed rows are not archived"
    assert max(asyncio.run(levels(tmp_path / "archive"))) > 0, "what each commit has added is not put together"
