"""A server whose binlogs a test destroys, and a daemon that is to say what happened to its place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from headrace.adapters.sqlite.state import SqliteStore
from headrace.model import Position
from headrace.mysql.archive.archive import Archive
from headrace.ports.state import StateChange
from headrace.settings.archive import ArchiveSettings
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

GTIDS, PLAIN, MARIADB = "mysql", "mysql-without-gtids", "mariadb"
LIMIT = 30.0
KINDS = (GTIDS, pytest.param(PLAIN, marks=pytest.mark.long), MARIADB)


def start_server(stack: Stack, kind: str, name: str) -> Any:
    """A server of the test's own, of one of KINDS."""
    if kind == MARIADB:
        return stack.mariadb(None, name=f"{name}-{kind}")
    off = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF") if kind == PLAIN else ()
    return stack.mysql(None, "--sync-binlog=1", *off, name=f"{name}-{kind}")


def archived_files(settings: ArchiveSettings) -> dict[str, bytes]:
    """The files of the last line of an archive, as they are archived."""

    async def read() -> dict[str, bytes]:
        archive = Archive.of(settings)
        await archive.refresh()
        files = archive.lines[-1].files
        return {one.name: b"".join([frame.data async for frame in archive.frames(one)]) for one in files}

    return asyncio.run(read())


class LostPlace:
    """A destination `shop` of one table in a schema of its own, its daemon, and what it published. Each row is a
    transaction; heartbeats are off, so that nothing else moves the position."""

    def __init__(
        self,
        server: Any,
        kind: str,
        schema: str,
        daemon: Callable[..., DaemonProcess],
        out: Path,
        source: str = "",
        more: str = "[heartbeat]\nenabled = false",
    ) -> None:
        self.server, self.kind, self.schema, self.out = server, kind, schema, out
        self.run(f"CREATE DATABASE {schema}", f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, v VARCHAR(200))")
        self.run("FLUSH BINARY LOGS")
        sink = f'type = "jsonl"\npath = "{out}"'
        text = destination_toml(server, schema, sink, source=source, more=more)
        self.daemon = daemon(shop=text)

    # -- the server ---------------------------------------------------------------------------------------------------

    def run(self, *statements: str) -> Any:
        """Statements as root, each committed at once; the rows of the last."""
        with (
            pymysql.connect(**self.server.connection("root"), autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall()

    def insert(self, *ids: int) -> None:
        self.run(*(f"INSERT INTO {self.schema}.t VALUES ({number}, REPEAT('v', 100))" for number in ids))

    def insert_wide(self, number: int) -> None:
        """A row of which only the id is given."""
        self.run(f"INSERT INTO {self.schema}.t (id) VALUES ({number})")

    def files(self) -> list[str]:
        return [row[0] for row in self.run("SHOW BINARY LOGS")]

    def next_file(self) -> str:
        """Begins a new binlog; the name of the one that was in use."""
        last = self.files()[-1]
        self.run("FLUSH BINARY LOGS")
        return last

    def purge(self, to: str = "") -> None:
        """Removes the binlogs before one, or before the newest. MariaDB leaves those that somebody still reads."""
        kept = to or self.files()[-1]

        def purged() -> bool:
            self.run(f"PURGE BINARY LOGS TO '{kept}'")
            return self.files()[0] == kept

        eventually(purged)

    def path(self, file: str) -> Path:
        return Path(self.server.datadir) / file

    def reset(self) -> None:
        self.run("RESET MASTER" if self.kind == MARIADB else "RESET BINARY LOGS AND GTIDS")

    def row_event(self, file: str, nth: int = 0) -> tuple[int, int]:
        """Where the n-th event with rows of this test begins and ends."""
        events = self.run(f"SHOW BINLOG EVENTS IN '{file}'")
        rows = [(int(event[1]), int(event[4])) for event in events if str(event[2]).lower().startswith("write_rows")]
        return rows[nth]

    def again(self) -> None:
        """Starts the server anew. Killing MySQL is quicker than an orderly end, and loses nothing; MariaDB would not
        start without its binlog afterwards."""
        if self.kind == MARIADB:
            self.server.stop()
        self.server.kill()
        self.server.start()

    # -- the daemon ---------------------------------------------------------------------------------------------------

    def ids(self) -> list[int]:
        return [int(row["id"]) for message in read_jsonl(self.out) for row in message["data"]]

    def wait_ids(self, *wanted: int) -> None:
        """Until exactly these rows were published, in this order; a resend after a failure counts once."""
        eventually(
            lambda: list(dict.fromkeys(self.ids())) == list(wanted),
            LIMIT,
            lambda: f"published: {self.ids()}\nlog:\n{self.daemon.log.read_text()[-3000:]}",
        )

    def follow(self) -> None:
        self.daemon.start()
        self.daemon.wait_state("shop", "STREAMING")

    def leave(self) -> Position:
        """Stops the daemon; the stored position."""
        assert self.daemon.terminate() == 0
        return self.stored()

    def published(self, *ids: int) -> Position:
        """Streams these rows, which are the first, and stops; the stored position."""
        self.follow()
        self.insert(*ids)
        self.wait_ids(*ids)
        return self.leave()

    def try_now(self) -> None:
        """What an operator does who has mended something."""
        os.kill(self.daemon.pid, signal.SIGHUP)

    def stored(self) -> Position:
        async def load() -> Position | None:
            store = SqliteStore(self.daemon.folder / "var" / "headrace.db")
            await store.open()
            try:
                return (await store.load("shop")).position
            finally:
                await store.close()

        position = asyncio.run(load())
        assert position is not None
        return position

    def unmoved(self, before: Position) -> bool:
        """Whether the stored position is still this one. A dump by GTID that gave nothing may have named a file."""
        now = self.stored()
        return now == before or (self.kind == GTIDS and now == replace(before, file=now.file, offset=now.offset))

    def store(self, position: Position) -> None:
        """Puts a position into the store, past every check; the daemon is stopped."""

        async def write() -> None:
            store = SqliteStore(self.daemon.folder / "var" / "headrace.db")
            await store.open()
            try:
                await store.commit("shop", await store.begin_epoch("shop"), StateChange(position))
            finally:
                await store.close()

        asyncio.run(write())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`headrace ...` with the daemon's configuration."""
        return self.daemon.run(*arguments)

    def choose(self, where: str) -> None:
        """`headrace position set`, while the daemon runs and waits; the daemon goes on by itself."""
        done = self.command("position", "set", "shop", where, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr

    def metric(self, line: str) -> float:
        """The value of the metric that begins with `line`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.daemon.port}/metrics", timeout=5) as answer:
            for text in answer.read().decode().splitlines():
                if text.startswith(line):
                    return float(text.rpartition(" ")[2])
        raise AssertionError(f"no metric {line}")

    def stands(self, state: str, lost: str, *words: str) -> dict[str, Any]:
        """Starts the daemon, which is to take this state and say why; nothing is published, and the position stays."""
        before, rows = self.stored(), self.ids()
        self.daemon.start()
        status = self.daemon.wait("shop", lambda seen: seen["state"] == state and seen["restarts"] > 0)
        assert status["lost"] == lost, status["last_error"]
        assert status["message"] == status["last_error"]
        for word in words:
            assert word in status["last_error"], status["last_error"]
        assert " -> " in status["last_error"], "it says what to do"
        assert "Traceback" not in self.daemon.log.read_text()
        assert self.daemon.health()[0] == 503
        # What is tried again is in another state for a moment.
        eventually(lambda: self.metric(f'headrace_state{{destination="shop",state="{state}"}}') == 1)
        assert self.metric('headrace_healthy{destination="shop"}') == 0
        if state != "FAILED":  # what trying again may mend is tried at growing intervals
            assert self.metric('headrace_restarts_total{destination="shop"}') == 1, "it does not try again in a loop"
        assert self.unmoved(before)
        assert self.ids() == rows
        return status
