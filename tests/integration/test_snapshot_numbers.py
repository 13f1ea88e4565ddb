"""`_pos` of rows of snapshots: none is below what was given before, whatever came in between."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from tests.site import Site
from tests.snapshots import assert_equal, done, fill
from tests.support import destination_toml, eventually, read_jsonl

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


@pytest.mark.parametrize("beats", ["", QUIET], ids=["heartbeats", "quiet"])
def test_a_resync_puts_right_what_no_change_told_of(site: Site, daemon: Any, out: Path, beats: str) -> None:
    fill(site, 3_000)
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(site.server, site.schema, sink, snapshot="initial", more=beats)
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


def test_room_that_a_snapshot_asks_for_is_stored_before_anything_behind_it_is_numbered(
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
def test_behind_a_lost_state_rows_have_higher_numbers_than_before(
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


def test_behind_a_lost_position_rows_have_higher_numbers_than_what_was_published_and_not_stored(
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
