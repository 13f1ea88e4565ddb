"""Searches for a time that lies ahead, on a source that is written to all the while: they end, and say so."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from headrace.mysql.position.move import parse_where, relocate
from headrace.mysql.position.scan import Probe
from headrace.mysql.position.scans import MariadbAt
from headrace.mysql.position.search import PositionError
from headrace.settings.destination import SourceSettings
from tests import prefork
from tests.site import Site
from tests.support import DaemonProcess, destination_toml

pytestmark = pytest.mark.server


@pytest.fixture
def busy(site: Site) -> Iterator[Site]:
    """A site that is written to."""
    yield from written(site)


@pytest.fixture
def busy_mysql(mysql_site: Site) -> Iterator[Site]:
    yield from written(mysql_site)


@pytest.fixture
def busy_mariadb(mariadb: Any, tmp_path: Path) -> Iterator[Site]:
    made = Site(mariadb, f"ev{abs(hash(tmp_path)) % 10**9}")
    yield from written(made)
    made.close()


def written(site: Site) -> Iterator[Site]:
    site.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(200))")
    run, over = site.session(), threading.Event()

    def write() -> None:
        while not over.wait(0.02):
            run("INSERT INTO t (name) VALUES (REPEAT('x', 200))")

    writer = threading.Thread(target=write)
    writer.start()
    yield site
    over.set()
    writer.join()


def ahead() -> str:
    """What an operator writes who takes the local time for UTC."""
    return f"{datetime.now(UTC) + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"


def source_of(site: Site) -> SourceSettings:
    server = site.server
    return SourceSettings(host=server.host, port=server.port, user="canal", password=SecretStr("canal"), server_id=4711)


async def test_a_search_for_a_time_that_lies_ahead_ends_at_the_end_that_the_binlog_had(busy: Site) -> None:
    on_progress: list[tuple[int, int]] = []
    async with asyncio.timeout(30):
        move = await relocate(
            source_of(busy),
            parse_where(ahead()),
            None,
            reason="operator",
            on_progress=lambda _, done, total: on_progress.append((done, total)),
        )
    assert "no transaction was committed then or later" in move.notes[0]
    assert "ahead of the source's clock" in move.notes[0]
    assert on_progress
    assert all(0 <= done <= total for done, total in on_progress)
    end = busy.run("SHOW MASTER STATUS" if busy.is_mariadb else "SHOW BINARY LOG STATUS")[0]
    assert (move.position.file, move.position.offset) <= (end[0], int(end[1]))


async def test_a_search_for_a_gtid_state_that_never_was_ends_too(busy_mariadb: Site) -> None:
    state = busy_mariadb.run("SELECT @@gtid_binlog_pos")[0][0].split("-")
    async with asyncio.timeout(30):
        with pytest.raises(PositionError, match="no position in the source's binlogs"):
            await relocate(
                source_of(busy_mariadb), parse_where(f"{state[0]}-{state[1]}-999999999"), None, reason="operator"
            )


async def test_the_state_at_the_very_end_is_found_while_more_is_written(busy_mariadb: Site) -> None:
    file, offset, *_ = busy_mariadb.run("SHOW MASTER STATUS")[0]
    state = busy_mariadb.run(f"SELECT BINLOG_GTID_POS('{file}', {offset})")[0][0]
    wanted = {int(one.split("-")[0]): int(one.split("-")[2]) for one in state.split(",")}
    scan = MariadbAt(file, wanted, {})
    async with asyncio.timeout(30):
        await Probe(source_of(busy_mariadb)).run(scan, int(offset), stop=True)
    assert scan.found is not None
    assert (scan.found.file, scan.found.offset) == (file, int(offset))


def test_a_first_start_at_a_time_that_lies_ahead_streams_from_the_end(
    busy_mysql: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    sink = f'type = "jsonl"\npath = "{out}"'
    process = daemon(shop=destination_toml(busy_mysql.server, busy_mysql.schema, sink, start=ahead())).start()
    process.wait("shop", lambda status: status["state"] == "STREAMING" and status["rows"] > 0)
    events = [json.loads(line) for line in process.log.read_text().splitlines()]
    on_progress = [one for one in events if "no transaction was committed" in one["event"]]
    assert len(on_progress) == 1
    assert on_progress[0]["level"] == "warning"
    assert process.terminate() == 0


def test_decode_from_a_time_that_lies_ahead_prints_nothing_and_ends(busy_mysql: Site, tmp_path: Path) -> None:
    server = busy_mysql.server
    words: list[Any] = ["decode", "--host", server.host, "--port", server.port, "--user", "canal"]
    words += ["--password-env", "DECODE_PASSWORD", "--from", ahead()]
    done = prefork.run([str(word) for word in words], env={**os.environ, "DECODE_PASSWORD": "canal"}, timeout=30)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "ahead of the source's clock" in done.stderr


def test_a_daemon_moves_to_a_time_that_lies_ahead_and_streams_on(
    busy_mysql: Site, start: Callable[..., DaemonProcess]
) -> None:
    process = start(busy_mysql)
    before = process.wait("shop", lambda status: status["rows"] > 0)
    code, text = process.command("position", "set", "shop", ahead(), "--yes")
    assert code == 0, text
    assert "ahead of the source's clock" in text
    status = process.wait("shop", lambda status: status["state"] == "STREAMING" and status["epoch"] > before["epoch"])
    assert (status["search"], status["message"]) == (None, "")
    process.wait("shop", lambda now: now["rows"] > status["rows"])
    assert process.terminate() == 0


async def test_what_was_found_is_not_searched_again_and_counts_for_its_server_alone(busy_mysql: Site) -> None:
    source, where, on_progress = source_of(busy_mysql), parse_where(ahead()), list[str]()
    made = await relocate(source, where, None, reason="operator")
    again = await relocate(
        source,
        where,
        made.position,
        reason="operator",
        found=made.found,
        on_progress=lambda file, *_: on_progress.append(file),
    )
    assert (again.position, on_progress) == (made.position, [])
    with pytest.raises(PositionError, match="another server answers"):
        await relocate(source, where, None, reason="operator", found=replace(made.found, server_uuid="other"))
