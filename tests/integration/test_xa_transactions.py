"""XA transactions on real servers: held from PREPARE, given out at COMMIT, through kills; those of before stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.site import Run, Site, equal, wait_for
from tests.support import DaemonProcess, read_jsonl

pytestmark = pytest.mark.server


def xa(run: Run, name: str, *statements: str) -> None:
    run(f"XA START '{name}'", *statements, f"XA END '{name}'")


def test_rows_of_an_xa_transaction_come_at_its_commit_and_never_after_a_rollback(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    start(site)
    first, second, third = site.session(), site.session(), site.session()
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "INSERT INTO t VALUES (1, 'plain')")
    xa(first, f"{site.schema}a", "INSERT INTO t VALUES (10, 'kept'), (11, 'kept')", "UPDATE t SET v='x' WHERE id=10")
    xa(second, f"{site.schema}b", "INSERT INTO t VALUES (20, 'rolled back')")
    xa(third, f"{site.schema}c", "INSERT INTO t VALUES (30, 'one phase')")
    first(f"XA PREPARE '{site.schema}a'")
    second(f"XA PREPARE '{site.schema}b'")
    third(f"XA COMMIT '{site.schema}c' ONE PHASE")
    site.run("INSERT INTO t VALUES (2, 'between')")
    wait_for(out, "2")
    ids = [row["id"] for m in read_jsonl(out) for row in m["data"]]
    assert ids == ["1", "30", "2"], "nothing of what is only prepared"
    second(f"XA ROLLBACK '{site.schema}b'")
    first(f"XA COMMIT '{site.schema}a'")
    equal(site, out)
    ids = [row["id"] for m in read_jsonl(out) for row in m["data"]]
    assert ids == ["1", "30", "2", "10", "11", "10", "999999"]
    poses = [int(m["_pos"]) for m in read_jsonl(out)]
    assert poses == sorted(poses)


def test_prepared_rows_survive_a_kill_and_come_at_their_commit(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(site)
    held = site.session()
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    xa(held, f"{site.schema}k", "INSERT INTO t VALUES (10, 'kept')", "INSERT INTO t VALUES (11, 'kept')")
    held(f"XA PREPARE '{site.schema}k'")
    site.run("INSERT INTO t VALUES (2, 'behind')", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (3, 'next file')")
    wait_for(out, "3")
    process.wait("shop", lambda s: bool(s["position"] and s["position"]["open_xa"]))
    for _ in range(2):
        process.kill()
        process.start()
        process.wait_state("shop", "STREAMING")
    held(f"XA COMMIT '{site.schema}k'")
    equal(site, out)
    ids = [row["id"] for m in read_jsonl(out) for row in m["data"]]
    assert [i for i in ids if i in ("10", "11")] == ["10", "11"]


def test_an_xa_transaction_prepared_before_the_first_start_stops_and_can_be_skipped(
    site: Site, daemon: Callable[..., DaemonProcess], start: Callable[..., DaemonProcess], out: Path
) -> None:
    held = site.session()
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    xa(held, f"{site.schema}e", "INSERT INTO t VALUES (10, 'early')")
    held(f"XA PREPARE '{site.schema}e'")
    process = start(site)
    held(f"XA COMMIT '{site.schema}e'")
    site.run("INSERT INTO t VALUES (2, 'behind')")
    status = process.wait_state("shop", "FAILED")
    assert "prepared before headrace began to read" in status["last_error"]
    assert not read_jsonl(out)
    named = status["last_error"].split("skip_event = ['")[1].split("']")[0]
    process.terminate()
    file = process.folder / "destinations" / "shop.toml"
    file.write_text(file.read_text().replace("[filter]", f'skip_event = ["{named}"]\n[filter]'))
    process.start()
    wait_for(out, "2")
    assert process.wait_state("shop", "STREAMING")["skipped_events"] == 1


def test_a_form_of_names_beyond_two_to_the_31_is_one_and_the_same(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    """MariaDB takes none."""
    site, process = mysql_site, start(mysql_site)
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    for number, decision in ((10, "COMMIT"), (20, "ROLLBACK")):
        name = f"'{site.schema}{number}','b',{2**31 + 5}"
        held = site.session()
        held(f"XA START {name}", f"INSERT INTO t VALUES ({number}, 'x')", f"XA END {name}", f"XA PREPARE {name}")
        held(f"XA {decision} {name}")
    equal(site, out)
    assert [row["id"] for m in read_jsonl(out) for row in m["data"]] == ["10", "999999"]
    process.wait("shop", lambda s: bool(s["position"]) and not s["position"]["open_xa"])
