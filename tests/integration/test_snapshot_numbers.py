"""`_pos` of rows of snapshots: none is below what was given before, whatever came in between."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from tests.site import Site
from tests.snapshots import assert_equal, done, fill, slowly
from tests.support import destination_toml, eventually, read_jsonl, replay, replay_by_pos

pytestmark = pytest.mark.server

QUIET = "[heartbeat]\nenabled = false"


@pytest.fixture(scope="module")
def forgetful(stack: Stack) -> Iterator[Any]:
    """A server of its own, whose binlogs are purged."""
    server = stack.mysql(None, name="snapshot-numbers")
    yield server
    server.kill()


def purge(site: Site) -> None:
    site.run("FLUSH BINARY LOGS")
    site.run(f"PURGE BINARY LOGS TO '{site.run('SHOW BINARY LOGS')[-1][0]}'")


def numbers(out: Path, name: str) -> list[int]:
    """Of all rows with a name."""
    return [
        int(one["_pos"]) + index
        for one in read_jsonl(out)
        for index, row in enumerate(one["data"])
        if row["name"] == name
    ]


@pytest.mark.parametrize("heartbeats", ["", QUIET], ids=["heartbeats", "quiet"])
def test_a_resync_corrects_what_no_change_reported(site: Site, daemon: Any, out: Path, heartbeats: str) -> None:
    fill(site, 3_000)
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(site.server, site.schema, sink, snapshot="initial", more=heartbeats)
    process = daemon(shop=text).start()
    process.wait("shop", done)
    for name in ("once", "twice"):
        site.run("SET sql_log_bin = 0", f"UPDATE t SET name = '{name}' WHERE id % 10 = 0", "SET sql_log_bin = 1")
        assert process.command("resync", "shop", f"{site.schema}.t", "--where", "id % 10 = 0")[0] == 0
        process.wait("shop", done)
        assert_equal(site, out)
    process.kill()
    process.start()
    site.run("UPDATE t SET name = 'told' WHERE id < 100", "DELETE FROM t WHERE id > 5900")
    assert_equal(site, out)


def test_numbers_that_a_snapshot_reserves_are_stored_before_anything_after_it_is_numbered(
    mysql_site: Site, daemon: Any, out: Path
) -> None:
    site = mysql_site
    fill(site, 100)
    sink = f'type = "jsonl"\npath = "{out}"'
    process = daemon(shop=destination_toml(site.server, site.schema, sink, snapshot="initial", more=QUIET)).start()
    process.wait("shop", done)
    for step in range(4):
        assert process.command("resync", "shop", f"{site.schema}.t")[0] == 0
        site.run(f"UPDATE t SET name = 'step {step}' WHERE id < 20")
        process.kill()
        process.start()
        process.wait("shop", done)
        assert_equal(site, out)
    given = {step: set(numbers(out, f"step {step}")) for step in range(4)}
    assert all(max(given[step]) < min(given[step + 1]) for step in range(3))


@pytest.mark.parametrize("mode", ["when_needed", "initial"])
def test_after_a_lost_state_rows_have_higher_numbers_than_before(
    forgetful: Any, daemon: Any, out: Path, mode: str
) -> None:
    site = Site(forgetful, f"lost_{mode}")
    fill(site, 200)
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(forgetful, site.schema, sink, snapshot=mode, start="earliest", more=QUIET)
    process = daemon(shop=text).start()
    process.wait("shop", done)
    site.run("UPDATE t SET name = 'seen' WHERE id < 200")
    assert_equal(site, out)
    assert process.terminate() == 0
    shutil.rmtree(process.folder / "var")
    site.run("UPDATE t SET name = 'while away'")
    purge(site)
    process.start()
    assert_equal(site, out)
    site.close()


def test_after_a_lost_position_rows_have_higher_numbers_than_what_was_published_and_not_stored(
    forgetful: Any, daemon: Any, out: Path
) -> None:
    site = Site(forgetful, "unstored")
    fill(site, 200)
    sink = f'type = "jsonl"\npath = "{out}"'
    process = daemon(shop=destination_toml(forgetful, site.schema, sink, snapshot="when_needed", more=QUIET))
    settings = process.folder / "headrace.toml"
    often = 'checkpoint_interval = "200ms"'
    assert often in settings.read_text()
    settings.write_text(settings.read_text().replace(often, 'checkpoint_interval = "5s"'))
    process.start()
    process.wait("shop", done)
    site.run("UPDATE t SET name = 'published, not stored' WHERE id < 200")
    eventually(lambda: len(numbers(out, "published, not stored")) == 100)
    process.kill()
    site.run("UPDATE t SET name = 'while away'")
    purge(site)
    process.start()
    assert_equal(site, out)
    site.close()


def test_a_position_that_is_set_back_to_before_a_resync_gives_no_later_change_a_lower_number(
    mariadb: Any, tmp_path: Path, daemon: Any, out: Path
) -> None:
    """A resync passes numbers up to the source's clock, behind which commit times may be, as on a delayed replica."""
    site = Site(mariadb, f"back{abs(hash(tmp_path)) % 10**8}")
    fill(site, 200)
    sink, begin = f'type = "jsonl"\npath = "{out}"', site.run("SHOW MASTER STATUS")[0]
    text = destination_toml(mariadb, site.schema, sink, start=f"{begin[0]}:{begin[1]}", more=QUIET)
    process = daemon(shop=text).start()
    process.wait("shop", done)
    past = int(time.time()) - 3600
    site.run(f"SET timestamp = {past}", "UPDATE t SET name = 'one' WHERE id < 100")
    where = site.run("SHOW MASTER STATUS")[0]
    site.run(f"SET timestamp = {past + 1}", "UPDATE t SET name = 'two' WHERE id < 100")
    eventually(lambda: len(numbers(out, "two")) == 50)
    assert process.command("resync", "shop", f"{site.schema}.t")[0] == 0
    process.wait("shop", done)
    site.run(f"SET timestamp = {past + 2}", "UPDATE t SET name = 'three'")
    eventually(lambda: len(numbers(out, "three")) == 200)
    assert process.terminate() == 0
    assert process.command("position", "set", "shop", f"{where[0]}:{where[1]}", "--yes")[0] == 0
    process.start()
    process.wait("shop", done)
    site.run(f"SET timestamp = {past + 3}", "UPDATE t SET name = 'four'", "SET timestamp = DEFAULT")
    assert_equal(site, out)
    assert min(numbers(out, "four")) > max(numbers(out, "three"))
    site.close()


@pytest.mark.long
def test_a_row_that_comes_again_after_a_kill_has_a_higher_number(mysql_site: Site, daemon: Any, out: Path) -> None:
    """It may stand at another place of its message, because the rows have other lengths now."""
    site = mysql_site
    fill(site, 3_000)
    sink = f'type = "jsonl"\npath = "{out}"'
    process = daemon(shop=destination_toml(site.server, site.schema, sink, more=QUIET, source=slowly(500)))
    settings = process.folder / "headrace.toml"
    often = settings.read_text()
    settings.write_text(often.replace('checkpoint_interval = "200ms"', 'checkpoint_interval = "60s"'))
    process.start()
    process.wait("shop", done)
    assert process.command("resync", "shop", f"{site.schema}.t")[0] == 0
    eventually(lambda: len(numbers(out, "first")) > 200)
    for command in ("pause", "resume"):  # each is stored, with what was given before
        assert process.command("snapshot", command, "shop")[0] == 0
    before = len(numbers(out, "first"))
    eventually(lambda: len(numbers(out, "first")) > before + 200)
    process.kill()
    longer = "b" * 40
    site.run("SET sql_log_bin = 0", f"UPDATE t SET name = '{longer}'", "SET sql_log_bin = 1")
    settings.write_text(often)
    process.start()
    process.wait("shop", done)
    again = read_jsonl(out)
    assert replay(again) == replay_by_pos(again)
    assert len(numbers(out, "first")) + len(numbers(out, longer)) > 3_000
    assert min(numbers(out, longer)) > max(numbers(out, "first"))


@pytest.mark.long
def test_a_resync_whose_start_can_not_be_stored_gives_no_row(
    mariadb: Any, tmp_path: Path, daemon: Any, out: Path
) -> None:
    """Nor does it where commit times are ahead of the source's clock, which then says nothing of numbers."""
    site = Site(mariadb, f"ahead{abs(hash(tmp_path)) % 10**8}")
    fill(site, 200)
    sink = f'type = "jsonl"\npath = "{out}"'
    process = daemon(shop=destination_toml(mariadb, site.schema, sink, snapshot="initial", more=QUIET)).start()
    process.wait("shop", done)
    site.run("SET timestamp = UNIX_TIMESTAMP() + 60", "UPDATE t SET name = 'logged'", "SET timestamp = DEFAULT")
    eventually(lambda: len(numbers(out, "logged")) == 200)
    site.run("SET sql_log_bin = 0", "UPDATE t SET name = 'one'", "SET sql_log_bin = 1")
    (store,) = (process.folder / "var").glob("*.db")
    with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as locked:
        locked.execute("BEGIN IMMEDIATE")
        assert process.command("resync", "shop", f"{site.schema}.t")[0] != 0
        assert numbers(out, "one") == []
        process.kill()
        locked.execute("ROLLBACK")
    process.start()
    process.wait("shop", done)
    for name in ("one", "two"):
        site.run("SET sql_log_bin = 0", f"UPDATE t SET name = '{name}' WHERE id >= 300", "SET sql_log_bin = 1")
        assert process.command("resync", "shop", f"{site.schema}.t")[0] == 0
        process.wait("shop", done)
        assert_equal(site, out)
    site.close()
