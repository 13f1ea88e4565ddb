"""`headrace position` end to end: a real server, a real daemon, the command as an operator gives it."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from headrace.cli.main import main
from tests.site import Site, equal
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl
from tests.versions import long

pytestmark = pytest.mark.server


@pytest.fixture(scope="module", params=["mysql", *long("mariadb", "mysql-without-gtid")])
def server(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    """With metadata that does not name columns: only the schema history knows them."""
    arguments = ["--binlog-row-metadata=MINIMAL"]
    if request.param == "mysql-without-gtid":
        arguments += ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]
    launch = stack.mariadb if request.param == "mariadb" else stack.mysql
    started = launch(None, *arguments, name=f"position-{request.param}", server_id=21)
    yield started
    started.kill()


class LogPosition:
    """A site, its daemon, and the command beside it."""

    def __init__(self, site: Site, daemon: DaemonProcess, out: Path) -> None:
        self.site, self.daemon, self.out = site, daemon, out

    def position(self, *arguments: str, answer: str | None = None) -> subprocess.CompletedProcess[str]:
        """`headrace position ...`, as a function call; `answer` is typed on a terminal, to a process."""
        command, *rest = arguments
        words = ["position", command, "--config", "headrace.toml", *rest]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.daemon.folder)
            patch.setenv("TEST_PASSWORD", "canal")
            if answer is not None:
                return _typed([sys.executable, "-m", "headrace.cli.main", *words], answer)
            patch.setattr("sys.stdin", io.StringIO(""))
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    status = main(words)
                except SystemExit as stopped:
                    status = int(stopped.code or 0)
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    def well(self, *arguments: str) -> str:
        done = self.position(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shown(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.well("show", "--json"))["shop"]
        return facts

    def history(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads(self.well("history", "shop", "--json"))
        return entries

    def end(self) -> str:
        """The end of the binlog as `file:offset`."""
        rows = self.site.run("SHOW BINARY LOGS")
        return f"{rows[-1][0]}:{rows[-1][1]}"

    def stream(self) -> None:
        self.daemon.start()
        self.daemon.wait_state("shop", "STREAMING")

    def wait_for_rows(self, count: int) -> None:
        eventually(lambda: len(rows(self.out)) >= count, 30, lambda: f"{rows(self.out)}\n{self.daemon.log.read_text()}")

    def stop(self) -> None:
        assert self.daemon.terminate() == 0


def _typed(words: list[str], answer: str) -> subprocess.CompletedProcess[str]:
    ours, theirs = os.openpty()
    try:
        os.write(ours, answer.encode())
        return subprocess.run(words, stdin=theirs, capture_output=True, text=True, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.fixture
def place(server: Any, tmp_path: Path, daemon: Callable[..., DaemonProcess]) -> Iterator[LogPosition]:
    site = Site(server, f"pos{abs(hash(tmp_path)) % 10**9}")
    out = tmp_path / "out.jsonl"
    process = daemon(shop=destination_toml(server, site.schema, f'type = "jsonl"\npath = "{out}"'))
    made = LogPosition(site, process, out)
    made.stream()
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))")
    yield made
    process.kill()
    site.close()


def rows(out: Path) -> list[tuple[int, dict[str, str]]]:
    """Each row with its `_pos`, as they came."""
    return [(int(message["_pos"]) + i, row) for message in read_jsonl(out) for i, row in enumerate(message["data"])]


def insert(site: Site, *ids: int) -> None:
    for number in ids:
        site.run(f"INSERT INTO t (id, v) VALUES ({number}, 'v{number}')")


def test_a_position_set_back_publishes_the_same_rows_again_with_the_same_numbers(place: LogPosition) -> None:
    site = place.site
    insert(site, 1, 2)
    site.run("FLUSH BINARY LOGS", "DO SLEEP(1.1)")  # MariaDB's commit times are whole seconds
    before = place.end()
    insert(site, 3, 4)
    # in the same transaction and in the same microsecond: numbers that follow each other
    site.run("INSERT INTO t VALUES (5, 'a'), (6, 'b'), (7, 'c')")
    # over an ALTER: what comes before it has the columns of before
    site.run("ALTER TABLE t DROP COLUMN v, ADD COLUMN w INT, ADD COLUMN x VARCHAR(20)")
    # the stored position is of a later second: within one the numbers go on behind the newest rather than come twice
    site.run("FLUSH BINARY LOGS", "DO SLEEP(1.1)", "INSERT INTO t VALUES (8, 1, 'eight'), (9, 2, 'nine')")
    place.wait_for_rows(9)
    place.stop()
    first = rows(place.out)
    shown = place.well("set", "shop", before, "--yes")
    assert "published again" in shown
    assert before in shown
    facts = place.shown()
    assert f"{facts['stored']['file']}:{facts['stored']['offset']}" == before
    place.stream()
    place.wait_for_rows(9 + 7)
    assert rows(place.out)[9:] == first[2:]
    insert_after(place, 10)
    assert rows(place.out)[-1][0] > first[-1][0]
    newest = next(entry for entry in place.history() if entry["actor"] == "operator")
    assert newest["details"]["gap"]["backward"] is True
    assert newest["details"]["where"] == before
    assert "@" in newest["details"]["by"]
    if facts["stored"]["gtid_set"]:
        assert newest["details"]["gap"]["transactions"] == 5
    # what was learned twice is known once: a restart goes on with the columns of today
    place.stop()
    place.stream()
    insert_after(place, 11)


def insert_after(place: LogPosition, number: int) -> None:
    count = len(rows(place.out))
    place.site.run(f"INSERT INTO t (id, w, x) VALUES ({number}, {number}, 'x')")
    place.wait_for_rows(count + 1)
    assert rows(place.out)[-1][1] == {"id": str(number), "w": str(number), "x": "x"}


def test_a_position_set_back_before_all_that_was_read_asks_the_source_for_schemas_again(place: LogPosition) -> None:
    site = place.site
    insert(site, 1)
    place.wait_for_rows(1)
    start = place.history()[-1]["position"]
    place.stop()
    begin = site.run("SHOW BINARY LOGS")[0][0]
    assert place.position("set", "shop", f"{begin}:4", "--yes").returncode == 0
    doubt = _entries(place)[-1]
    assert doubt["kind"] == "doubt"
    place.well("set", "shop", f"{start['file']}:{start['offset']}", "--yes")
    floor = int(place.shown()["stored"]["snapshot_pos"])
    place.stream()
    place.wait_for_rows(2)
    (former, row), (number, again) = rows(place.out)
    assert again == row
    assert number > floor if floor else number == former  # new, if binlog and row are of one second


def test_a_compacted_history_goes_on_after_a_kill_and_before_its_place_no_column_gets_a_wrong_name(
    place: LogPosition,
) -> None:
    site = place.site
    site.run("CREATE TABLE u (id INT PRIMARY KEY, a INT, b INT)", "INSERT INTO u VALUES (1, 10, 20)")
    insert(site, 1)
    place.wait_for_rows(2)
    before = place.end()
    insert(site, 2)
    site.run("INSERT INTO u VALUES (2, 10, 20)")
    site.run("ALTER TABLE u RENAME COLUMN a TO b, RENAME COLUMN b TO a", "INSERT INTO u (id, b, a) VALUES (3, 10, 20)")
    site.run("CREATE TABLE r0 (id INT PRIMARY KEY)")
    ring = ", ".join(f"r{number} TO r{(number + 1) % 200}" for number in range(200))
    site.run(*[f"RENAME TABLE {ring}"] * 4)  # each is stored as 400 entries

    numbers = itertools.count(100)

    def compacted() -> bool:
        insert(site, next(numbers))
        return {"kind": "back", "pos": -1}.items() <= _entries(place)[0].items()

    eventually(compacted, 30, lambda: f"{len(_entries(place))}\n{place.daemon.log.read_text()[-2000:]}")
    assert len(_entries(place)) < 900
    place.daemon.kill()
    site.run("INSERT INTO u (id, b, a) VALUES (4, 10, 20)")
    place.stream()
    eventually(lambda: rows(place.out)[-1][1] == {"id": "4", "b": "10", "a": "20"}, 30)
    place.stop()
    count = len(rows(place.out))
    place.well("set", "shop", before, "--yes")
    place.daemon.start()
    assert "its schema at this position is not known" in place.daemon.wait_state("shop", "FAILED")["last_error"]
    assert [row for _, row in rows(place.out)[count:]] == [{"id": "2", "v": "v2"}], "of the table that no DDL touched"


def _entries(place: LogPosition) -> list[dict[str, Any]]:
    with sqlite3.connect(place.daemon.folder / "var" / "headrace.db") as connection:
        return [json.loads(row[0]) for row in connection.execute("select entry from schema_entries order by id")]


def test_a_position_set_forward_gives_up_what_lies_between_and_the_history_says_so(place: LogPosition) -> None:
    site = place.site
    insert(site, 1)
    place.wait_for_rows(1)
    place.stop()
    insert(site, 2, 3)
    site.run("FLUSH BINARY LOGS")
    insert(site, 4)
    # what was passed over may have been DDL
    site.run("ALTER TABLE t ADD COLUMN w INT FIRST")
    stored = place.shown()["stored"]
    refused = place.position("set", "shop", "latest")
    assert refused.returncode == 1
    assert "--yes" in refused.stderr
    assert place.position("set", "shop", "latest", answer="n\n").returncode == 1
    assert place.shown()["stored"] == stored
    asked = place.position("set", "shop", "latest", answer="y\n")
    assert asked.returncode == 0, asked.stderr
    assert "Go on? [y/N]" in asked.stdout
    assert int(place.shown()["stored"]["last_pos"]) > int(stored["last_pos"])
    entry = place.history()[0]
    gap = entry["details"]["gap"]
    assert (entry["actor"], gap["backward"], gap["files"], gap["reason"]) == ("operator", False, 1, "operator")
    assert (gap["from"], gap["to"]) == (f"{stored['file']}:{stored['offset']}", place.end())
    assert gap["bytes"] > 0
    assert gap["transactions"] == (4 if stored["gtid_set"] else None)
    assert "given up" in place.well("history", "shop")
    place.stream()
    site.run("INSERT INTO t VALUES (7, 5, 'v5')")
    place.wait_for_rows(2)
    assert [row for _, row in rows(place.out)] == [{"id": "1", "v": "v1"}, {"w": "7", "id": "5", "v": "v5"}]
    assert rows(place.out)[1][0] > rows(place.out)[0][0]


def test_a_time_is_where_its_first_transaction_begins(place: LogPosition) -> None:
    site = place.site
    insert(site, 1, 2)
    place.wait_for_rows(2)
    site.run("FLUSH BINARY LOGS", "DO SLEEP(1.1)")
    insert(site, 3)
    place.wait_for_rows(3)
    place.stop()
    committed = place.shown()["stored"]["commit_time_us"]
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=committed)
    place.well("set", "shop", when.isoformat(), "--yes")
    place.stream()
    place.wait_for_rows(4)
    equal(site, place.out)
    assert [row["id"] for _, row in rows(place.out)] == ["1", "2", "3", "3", "999999"]


def test_a_daemon_that_runs_the_destination_moves_its_position_itself_and_goes_on_there(place: LogPosition) -> None:
    site = place.site
    insert(site, 1, 2)
    place.wait_for_rows(2)
    facts = place.shown()
    assert facts["run_by"] == f"test (pid {place.daemon.pid})"
    reported = place.well("set", "shop", "earliest", "--yes")
    assert "published again" in reported
    assert "shop: the position is " in reported
    place.wait_for_rows(4)
    insert(site, 3)
    place.wait_for_rows(5)
    assert [row["id"] for _, row in rows(place.out)] == ["1", "2", "1", "2", "3"]
    before = place.daemon.wait_state("shop", "STREAMING")["epoch"]
    assert "nothing stored" in place.well("reset", "shop", "--yes")
    assert "operator" in place.well("history", "shop")
    again = place.daemon.wait("shop", lambda status: status["epoch"] > before and status["position"] is not None)
    assert again["restarts"] == 0
    insert(site, 4)
    place.wait_for_rows(6)
    refused = place.position("set", "shop", "mysql-bin.000099:4", "--yes")
    assert refused.returncode == 1
    assert "mysql-bin.000099" in refused.stderr
    place.stop()
    assert place.shown()["run_by"] == ""


def test_a_reset_begins_as_at_the_first_start_with_numbers_that_increase(place: LogPosition) -> None:
    site = place.site
    insert(site, 1)
    place.wait_for_rows(1)
    place.stop()
    last_pos = place.shown()["last_pos"]
    site.run("ALTER TABLE t ADD COLUMN w INT FIRST")
    assert "latest" in place.well("reset", "shop", "--yes")
    facts = place.shown()
    assert (facts["stored"], facts["last_pos"]) == (None, last_pos)
    assert "by [source] start (latest)" in facts["verdict"]["text"]
    assert "none" in place.well("show", "shop")
    assert place.history()[0]["position"] is None
    assert "taken away" in place.well("history", "shop")
    assert "no position is stored" in place.well("reset", "shop", "--yes")
    place.stream()
    site.run("INSERT INTO t VALUES (7, 2, 'b')")
    place.wait_for_rows(2)
    assert rows(place.out)[1][1] == {"w": "7", "id": "2", "v": "b"}
    assert rows(place.out)[1][0] > rows(place.out)[0][0]
    place.stop()
    floor = int(place.shown()["stored"]["snapshot_pos"])
    assert floor > int(last_pos), "rows may have been published and not stored as confirmed"
    assert rows(place.out)[1][0] > floor


def test_positions_that_can_not_be_are_refused_with_those_that_can(place: LogPosition) -> None:
    site = place.site
    insert(site, 1)
    place.wait_for_rows(1)
    place.stop()
    stored = place.shown()["stored"]
    file, _, end = place.end().rpartition(":")
    for where, text in (
        (f"{file}:{int(end) - 1}", f"{file}:{end}"),
        (f"{file}:{int(end) + 1}", "beyond its end"),
        ("mysql-bin.000999:4", "does not list mysql-bin.000999"),
        ("next-file", "no binlog follows"),
    ):
        refused = place.position("set", "shop", where, "--yes")
        assert refused.returncode == 1, where
        assert text in refused.stderr, where
        assert "Traceback" not in refused.stderr
    for words, text in (
        (("set", "shop", "yesterday", "--yes"), "next-file"),
        (("set", "nobody", "latest", "--yes"), "there is no destination 'nobody'; there are shop"),
        (("show", "nobody"), "there is no destination"),
        (("history", "shop", "--limit", "0"), "1 or more"),
    ):
        refused = place.position(*words)
        assert refused.returncode == 2, words
        assert text in refused.stderr, words
    assert place.shown()["stored"] == stored


def test_gtids_that_can_not_be_are_refused(place: LogPosition) -> None:
    place.stop()
    facts = place.shown()
    uuid, strange = facts["source"]["server_uuid"], "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    if not facts["stored"]["gtid_set"]:
        refused = place.position("set", "shop", f"{strange}:1-3", "--yes")
        assert refused.returncode == 1
        assert "gtid_mode is not ON" in refused.stderr or "MariaDB" in refused.stderr
        return
    refused = place.position("set", "shop", f"{uuid}:1-3,{strange}:1-3", "--yes")
    assert refused.returncode == 1
    assert f"never executed: {strange}:1-3" in refused.stderr
    insert(place.site, 1)
    last = int(facts["source"]["executed"].rpartition("-")[2])
    place.well("set", "shop", f"{uuid}:1-{last}", "--yes")
    place.stream()
    place.wait_for_rows(1)


def test_a_source_that_is_away_does_not_hide_what_is_stored(place: LogPosition) -> None:
    insert(place.site, 1)
    place.wait_for_rows(1)
    place.stop()
    stored = place.shown()["stored"]
    file = place.daemon.folder / "destinations" / "shop.toml"
    file.write_text(file.read_text().replace(f"port = {place.site.server.port}", "port = 1"))
    done = place.position("show", "--json")
    assert done.returncode == 1
    facts = json.loads(done.stdout)["shop"]
    assert facts["stored"] == stored
    assert facts["verdict"]["state"] == "unknown"
    done = place.position("show")
    assert done.returncode == 1
    assert f"{stored['file']}:{stored['offset']}" in done.stdout
    assert "can't be reached" in done.stdout
    assert place.position("set", "shop", "earliest", "--yes").returncode == 1
    # With another address that answers, that is the one, and both commands say so.
    file.write_text(file.read_text() + f'[[source.standby]]\nhost = "127.0.0.1"\nport = {place.site.server.port}\n')
    well = place.shown()
    assert "127.0.0.1:1 can't be reached" in well["source"]["unreachable"][0]
    assert facts["source"].keys() == well["source"].keys()
    assert facts.keys() == well.keys()
    assert "not asked  MySQL at 127.0.0.1:1 can't be reached" in place.well("show")
    reported = place.well("set", "shop", "2100-01-01T00:00:00Z", "--yes")
    assert f"this is a position on 127.0.0.1:{place.site.server.port}" in reported
    assert "no transaction was committed then or later" in reported
    assert "nothing: the position is there already" in place.well("set", "shop", "latest", "--yes")


def test_a_lost_position_is_set_while_the_daemon_waits_and_it_goes_on_by_itself(place: LogPosition) -> None:
    site = place.site
    insert(site, 1)
    place.wait_for_rows(1)
    place.stop()
    insert(site, 2)
    site.run("FLUSH BINARY LOGS")
    kept = site.run("SHOW BINARY LOGS")[-1][0]
    insert(site, 3, 4)
    site.run(f"PURGE BINARY LOGS TO '{kept}'")
    place.daemon.start()
    status = place.daemon.wait_state("shop", "POSITION_LOST")
    assert "'headrace position set shop WHERE'" in status["message"], "the command as it is to be typed"
    shown = place.position("show", "shop")
    assert "headrace position set shop WHERE" in shown.stdout
    assert shown.returncode == 1
    assert "POSITION_LOST: " in shown.stdout
    assert "purged" in shown.stdout
    assert place.position("show", "--json").returncode == 1
    pid = place.daemon.pid
    place.well("set", "shop", "earliest", "--yes")
    place.daemon.wait_state("shop", "STREAMING", 15)
    place.wait_for_rows(3)
    insert(site, 5)
    place.wait_for_rows(4)
    assert place.daemon.pid == pid
    assert [row["id"] for _, row in rows(place.out)] == ["1", "3", "4", "5"]
    numbers = [number for number, _ in rows(place.out)]
    assert numbers == sorted(set(numbers))


def test_of_a_server_that_was_reset_show_and_set_say_that_its_history_is_another(place: LogPosition) -> None:
    site = place.site
    insert(site, 1, 2)
    place.wait_for_rows(2)
    place.stop()
    former, number = int(place.shown()["stored"]["offset"]), 2
    site.run("RESET MASTER" if site.is_mariadb else "RESET BINARY LOGS AND GTIDS")
    while number < 11 or int(place.end().rpartition(":")[2]) <= former:  # a shorter file would show less
        number += 1
        site.run(f"INSERT INTO t VALUES ({number}, 'n')")
    shown = place.position("show", "shop")
    assert shown.returncode == 1
    assert "SOURCE_CHANGED" in shown.stdout
    reported = place.well("set", "shop", "earliest", "--yes")
    assert "what the move skips can't be counted: server " in reported
    assert "it was reset, or restored from an older copy" in reported
    place.stream()
    place.wait_for_rows(number)
    assert [row["id"] for _, row in rows(place.out)] == [str(one) for one in range(1, number + 1)]
