"""Tables that are read from a replica of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from tests.site import Site
from tests.snapshots import assert_equal, done, fill
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, replay, replay_by_pos

pytestmark = pytest.mark.server


class Pair:
    """A source and its replica."""

    def __init__(self, stack: Stack) -> None:
        self.source = stack.mysql(name="snapshot-source", server_id=151)
        self.replica = stack.mysql(name="snapshot-replica", server_id=152)
        self.replica.sql(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={self.source.port}, SOURCE_USER='root',"
            " SOURCE_PASSWORD='root', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1; START REPLICA"
        )

    def catch_up(self) -> None:
        self.replica.sql("START REPLICA")
        written = self.source.sql("SELECT @@GLOBAL.gtid_executed")[0][0].replace("\\n", "")
        assert self.replica.sql(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{written}', 30)") == [("0",)]

    def hold(self) -> None:
        """The replica stays as it is until it is to catch up."""
        self.catch_up()
        self.replica.sql("STOP REPLICA SQL_THREAD")


@pytest.fixture(scope="module")
def pair(stack: Stack) -> Iterator[Pair]:
    made = Pair(stack)
    yield made
    for server in (made.source, made.replica):
        server.kill()


@pytest.fixture
def begin(pair: Pair, daemon: Callable[..., DaemonProcess], out: Path) -> Callable[..., DaemonProcess]:
    """A daemon that streams from the source and reads tables from the replica."""

    def go(site: Site, **more: Any) -> DaemonProcess:
        sink = f'type = "jsonl"\npath = "{out}"'
        where = f'snapshot_source = {{ host = "{pair.replica.host}", port = {pair.replica.port} }}\n'
        text = destination_toml(site.server, site.schema, sink, source=where, **{"snapshot": "initial", **more})
        return daemon(shop=text).start()

    return go


def test_a_replica_is_read_instead_of_the_source(pair: Pair, begin: Any, out: Path, writers: Any) -> None:
    site = Site(pair.source, "replicated")
    fill(site)
    pair.catch_up()
    work = writers(site)
    pair.replica.sql("SET sql_log_bin = 0; INSERT INTO replicated.t VALUES (-7, 'of the replica')")
    process = begin(site)
    process.wait("shop", done)
    work.stop()
    wanted = {**site.table(), "-7": {"id": "-7", "name": "of the replica"}}
    eventually(lambda: replay(read_jsonl(out)) == wanted)
    assert replay_by_pos(read_jsonl(out)) == wanted
    assert process.terminate() == 0
    site.close()


def test_tables_that_the_replica_does_not_have_yet_are_waited_for(pair: Pair, begin: Any, out: Path) -> None:
    site = Site(pair.source, "missing")
    fill(site, 500, "a")
    fill(site, 500, "m")
    pair.hold()
    fill(site, 500, "t")
    site.run("RENAME TABLE m TO z")
    process = begin(site)
    process.wait("shop", lambda status: bool(status["snapshot"]) and "snapshot" in status["troubles"])
    pair.catch_up()
    process.wait("shop", done)
    for table in "atz":
        assert_equal(site, out, table)
    assert process.terminate() == 0
    site.close()


def test_verify_reads_the_source_itself(pair: Pair, begin: Any, out: Path) -> None:
    site = Site(pair.source, "verified")
    fill(site, 500)
    pair.catch_up()
    process = begin(site)
    process.wait("shop", done)
    pair.hold()
    site.run("UPDATE t SET name = 'new' WHERE id < 200", "DELETE FROM t WHERE id > 900")
    eventually(lambda: replay(read_jsonl(out)) == site.table())
    code, text = process.command("verify", "shop", "--settle", "5s")
    assert (code, "equal" in text) == (0, True), text
    pair.catch_up()
    site.close()
