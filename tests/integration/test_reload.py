"""Destinations' files that come, change and go while the daemon runs: the others never notice."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server


class Rows(threading.Thread):
    """Inserts a row every few milliseconds."""

    def __init__(self, server: Any, schema: str) -> None:
        super().__init__(name="rows")
        self._connection = pymysql.connect(**server.connection("root"), database=schema, autocommit=True)
        self._stop_asked = threading.Event()
        self.last = 0

    def run(self) -> None:
        with self._connection as connection, connection.cursor() as cursor:
            for number in itertools.count(1):
                if self._stop_asked.wait(0.005):
                    return
                cursor.execute(f"INSERT INTO t VALUES ({number})")
                self.last = number

    def stop(self) -> int:
        """The last row's number."""
        self._stop_asked.set()
        self.join()
        return self.last


@pytest.fixture
def rows(mysql: Any, schema: str, execute: Callable[..., Any]) -> Iterator[Rows]:
    execute("CREATE TABLE t (id INT PRIMARY KEY)")
    made = Rows(mysql, schema)
    made.start()
    yield made
    made.stop()


def ids(path: Path) -> list[int]:
    return [int(row["id"]) for message in read_jsonl(path) for row in message["data"]]


class Site:
    """A daemon with one destination, `steady`, and a folder for the others' output."""

    def __init__(self, daemon: Callable[..., DaemonProcess], server: Any, schema: str, folder: Path, watch: str):
        self._server, self._schema, self._folder = server, schema, folder
        self.daemon = daemon(steady=self.toml("steady"), settings=f'watch = "{watch}"').start()
        self.daemon.wait_state("steady", "STREAMING")
        self.first = self.steady()

    def out(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    def toml(self, name: str, **more: Any) -> str:
        return destination_toml(self._server, self._schema, f'type = "jsonl"\npath = "{self.out(name)}"', **more)

    def write(self, name: str, text: str) -> None:
        (self.daemon.folder / "destinations" / f"{name}.toml").write_text(text)

    def remove(self, name: str) -> None:
        (self.daemon.folder / "destinations" / f"{name}.toml").unlink()
        self.hangup()
        eventually(lambda: name not in self.names(), 30, self.daemon.log.read_text)

    def hangup(self) -> None:
        """SIGHUP; it does no harm where the folder is watched."""
        os.kill(self.daemon.pid, signal.SIGHUP)

    def names(self) -> set[str]:
        return set(self.daemon.health()[1].get("destinations", ()))

    def errors(self) -> list[str]:
        found: list[str] = self.daemon.health()[1].get("config_errors", [])
        return found

    def steady(self) -> tuple[str, int, int]:
        status = self.daemon.health()[1]["destinations"]["steady"]
        return status["state"], status["restarts"], status["epoch"]

    def end(self, rows: Rows) -> None:
        """Every row came exactly once through the destination that nobody touched, which was never begun anew."""
        last = rows.stop()
        eventually(lambda: ids(self.out("steady"))[-1:] == [last], 30, self.daemon.log.read_text)
        assert self.steady() == self.first
        assert ids(self.out("steady")) == list(range(ids(self.out("steady"))[0], last + 1))
        assert self.daemon.terminate() == 0


@pytest.mark.parametrize("watch", ["200ms", "0"])
def test_a_destination_is_added_changed_and_removed_while_another_streams(
    watch: str, mysql: Any, schema: str, rows: Rows, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    site = Site(daemon, mysql, schema, tmp_path, watch)
    take = site.hangup if watch == "0" else lambda: None

    site.write("late", site.toml("late"))
    if watch == "0":
        time.sleep(0.5)  # nobody looks until asked to
        assert site.names() == {"steady"}
    take()
    site.daemon.wait_state("late", "STREAMING")
    eventually(lambda: len(ids(site.out("late"))) > 10)
    epoch = site.daemon.wait("late", lambda status: status["state"] == "STREAMING")["epoch"]

    # Changed: what was written to the old output and what goes to the new one make a whole, without a row twice.
    site.write("late", site.toml("late").replace("late.jsonl", "changed.jsonl"))
    take()
    eventually(lambda: len(ids(site.out("changed"))) > 10)
    whole = ids(site.out("late")) + ids(site.out("changed"))
    assert whole == list(range(whole[0], whole[0] + len(whole)))
    changed = site.daemon.wait_state("late", "STREAMING")
    assert (changed["epoch"], changed["restarts"]) == (epoch + 1, 0)

    # Removed: it ends, its place is kept, and when the file comes back it goes on there.
    site.remove("late")
    before = ids(site.out("changed"))[-1]
    eventually(lambda: rows.last > before + 20)
    site.write("late", site.toml("late").replace("late.jsonl", "changed.jsonl"))
    take()
    site.daemon.wait_state("late", "STREAMING")
    eventually(lambda: ids(site.out("changed"))[-1] > before + 20)
    whole = ids(site.out("late")) + ids(site.out("changed"))
    assert whole == list(range(whole[0], whole[0] + len(whole)))
    assert site.errors() == []
    site.end(rows)


def test_a_bad_file_is_refused_with_its_sentences_and_the_others_are_taken_over(
    mysql: Any, schema: str, rows: Rows, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    site = Site(daemon, mysql, schema, tmp_path, "200ms")
    site.write("steady", site.toml("steady").replace("[route]", "[route]\ncolour = 1"))
    site.write("late", site.toml("late"))
    site.daemon.wait_state("late", "STREAMING")
    eventually(lambda: len(site.errors()) == 1)
    file = site.daemon.folder / "destinations" / "steady.toml"
    assert site.errors() == [f"{file}: route.colour: unknown key"]
    code, body = site.daemon.health()
    assert (code, body["status"]) == (200, "ok")
    assert "steady.toml: route.colour: unknown key" in site.daemon.log.read_text()

    site.write("steady", site.toml("steady"))
    eventually(lambda: site.errors() == [])
    site.write("late", site.toml("late", source="server_id = 4711"))
    site.daemon.wait("late", lambda status: status["source"]["server_id"] == 4711 and status["state"] == "STREAMING")
    site.write("later", site.toml("later", source="server_id = 4711"))
    eventually(lambda: len(site.errors()) == 1)
    assert "server_id: 4711 is also the server id of the destination late" in site.errors()[0]
    assert site.names() == {"steady", "late"}
    site.end(rows)


def test_a_file_that_is_still_written_is_not_read(
    mysql: Any, schema: str, rows: Rows, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    site = Site(daemon, mysql, schema, tmp_path, "1s")
    text = site.toml("late")
    for size in range(0, len(text), len(text) // 30 + 1):
        site.write("late", text[:size])
        time.sleep(0.1)  # a slow writer is what this is about
    assert site.names() == {"steady"}
    site.write("late", text)
    site.daemon.wait_state("late", "STREAMING")
    assert "refused" not in site.daemon.log.read_text()
    site.end(rows)


def test_a_destination_whose_broker_is_dead_can_be_changed_and_removed(
    mysql: Any, schema: str, rows: Rows, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    site = Site(daemon, mysql, schema, tmp_path, "200ms")
    dead = destination_toml(mysql, schema, 'type = "kafka"\nbootstrap_servers = "127.0.0.1:1"')
    site.write("late", dead)
    site.daemon.wait("late", lambda status: status["state"] == "STALLED" and status["restarts"] > 0)
    site.write("late", site.toml("late"))
    late = site.daemon.wait_state("late", "STREAMING")
    assert (late["last_error"], late["healthy"]) == ("", True)
    site.write("late", dead.replace("[source]", "[source]\nconnect_timeout = 3"))
    site.daemon.wait("late", lambda status: bool(status["last_error"]))
    site.remove("late")
    site.remove("steady")
    code, body = site.daemon.health()
    assert (code, body["status"], body["destinations"]) == (503, "failing", {})
    site.write("steady", site.toml("steady"))
    site.daemon.wait_state("steady", "STREAMING")
    site.first = ("STREAMING", 0, site.first[2] + 1)
    site.end(rows)
