"""What `on_position_lost` does on real servers, what it gives up and where that is told; and the way out by hand."""

from __future__ import annotations

import json
import os
import sqlite3
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from tests.snapshots import reading, slowly
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

Make = Callable[..., DaemonProcess]
NO_HEARTBEATS = "[heartbeat]\nenabled = false"


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def ids(out: Path) -> list[int]:
    return [int(row["id"]) for message in read_jsonl(out) for row in message["data"]]


@pytest.fixture(
    scope="module", params=["mysql", pytest.param("mysql without gtids", marks=pytest.mark.long), "mariadb"]
)
def purging(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Any]:
    """A server of this file's own, whose binlogs are purged and cut off."""
    if request.param == "mariadb":
        made: Any = stack.mariadb(name="lost-mariadb", server_id=401)
    elif request.param == "mysql":
        made = stack.mysql(name="lost-mysql", server_id=402)
    else:
        off = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
        made = stack.mysql(None, *off, name="lost-plain", server_id=403)
    yield made
    made.kill()


@pytest.fixture
def server(purging: Any) -> Any:
    """The same as if it were new: with one empty table, and one binlog."""
    purging.sql("DROP DATABASE IF EXISTS shop; DROP DATABASE IF EXISTS headrace")
    purging.sql("RESET MASTER" if "mariadb" in purging.name else "RESET BINARY LOGS AND GTIDS")
    purging.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY, body VARCHAR(100))")
    return purging


def stopped_behind(server: Any, daemon: Make, out: Path, policy: str) -> DaemonProcess:
    """A daemon that has published row 1 and was stopped; afterwards came rows 2, 3 and 4, in a file each."""
    text = destination_toml(server, "shop", jsonl(out), source=f'on_position_lost = "{policy}"', more=NO_HEARTBEATS)
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    server.sql("INSERT INTO shop.t VALUES (1, 'a')")
    eventually(lambda: ids(out) == [1])
    assert process.terminate() == 0
    for number in (2, 3, 4):
        server.sql(f"INSERT INTO shop.t VALUES ({number}, REPEAT('x', 100)); FLUSH BINARY LOGS")
    return process


def files(server: Any) -> list[str]:
    return [row[0] for row in server.sql("SHOW BINARY LOGS")]


def metrics(process: DaemonProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics") as answer:
        return str(answer.read().decode())


def headrace(process: DaemonProcess, *arguments: str) -> Any:
    done = process.run(*arguments)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def purge(server: Any) -> None:
    """Takes away the files with rows 1, 2 and 3."""
    server.sql(f"PURGE BINARY LOGS TO '{files(server)[-2]}'")


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_after_a_purge_the_policy_continues_and_reports_everywhere_what_it_gave_up(
    policy: str, server: Any, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = stopped_behind(server, daemon, out, policy)
    purge(server)
    process.start()
    seen = process.wait("shop", lambda s: s["state"] == "STREAMING" and s["gap"])
    server.sql("INSERT INTO shop.t VALUES (5, 'b')")
    expected = [1, 4, 5] if policy == "earliest" else [1, 5]
    eventually(lambda: ids(out) == expected, 30, lambda: f"{ids(out)} {process.log.read_text()[-3000:]}")
    gap = seen["gap"]
    gtids = bool(seen["position"]["gtid_set"])
    assert gap["reason"] == ("gtids_purged" if gtids else "position_purged")
    assert gap["from"]
    assert gap["to"]
    assert gap["files"] == 2 if policy == "earliest" else gap["files"] >= 3
    if gtids:
        assert gap["transactions"] == (2 if policy == "earliest" else 3)
    assert f'headrace_position_moves_total{{destination="shop",reason="{gap["reason"]}"}} 1.0' in metrics(process)
    logged = [json.loads(line) for line in process.log.read_text().splitlines() if "moved by a policy" in line]
    assert [line["reason"] for line in logged] == [gap["reason"]]
    assert process.terminate() == 0
    history = json.loads(headrace(process, "position", "history", "shop", "--json").stdout)
    assert "policy" in json.dumps(history)
    assert gap["to"] in json.dumps(history)


@pytest.mark.parametrize("setting", ['on_position_lost = "resnapshot"', 'snapshot = "when_needed"'])
def test_after_a_purge_all_rows_are_published_again_where_that_is_wanted(
    setting: str, server: Any, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = stopped_behind(server, daemon, out, "fail")
    file = process.folder / "destinations" / "shop.toml"
    text = file.read_text().replace('on_position_lost = "fail"\n', "").replace('snapshot = "never"\n', "")
    file.write_text(text.replace("[source]\n", f"[source]\n{setting}\n"))
    purge(server)
    process.start()
    seen = process.wait("shop", lambda s: s["state"] == "STREAMING" and s["gap"] and not s["snapshot"])
    assert seen["gap"]["reason"] in ("gtids_purged", "position_purged")
    server.sql("INSERT INTO shop.t VALUES (5, 'b')")
    eventually(lambda: ids(out) == [1, 1, 2, 3, 4, 5], 30, lambda: f"{ids(out)} {process.log.read_text()[-3000:]}")
    numbers = [int(message["_pos"]) for message in read_jsonl(out)]
    assert numbers == sorted(numbers)


def test_a_purge_during_a_snapshot_begins_it_again_where_it_is_needed(
    server: Any, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    rows = ",".join(f"({number}, 'a')" for number in range(10, 3000))
    server.sql(f"INSERT INTO shop.t VALUES {rows}")
    text = destination_toml(
        server, "shop", jsonl(out), snapshot="when_needed", source=slowly(1_500), more=NO_HEARTBEATS
    )
    process = daemon(shop=text).start()
    process.wait("shop", reading(1_000))
    process.kill()
    server.sql("DELETE FROM shop.t WHERE id < 20; UPDATE shop.t SET body = 'b' WHERE id BETWEEN 20 AND 30")
    for _ in range(2):
        server.sql("FLUSH BINARY LOGS")

    def purged() -> bool:
        """MariaDB keeps what the dead daemon's dump still reads."""
        server.sql(f"PURGE BINARY LOGS TO '{files(server)[-1]}'")
        return len(files(server)) == 1

    eventually(purged)
    process.start()
    process.wait("shop", lambda s: s["state"] == "STREAMING" and s["gap"] and not s["snapshot"])
    last = {int(row["id"]): row["body"] for message in read_jsonl(out) for row in message["data"]}
    wanted = {int(number): body for number, body in server.sql("SELECT id, body FROM shop.t")}
    assert {number: last[number] for number in wanted} == wanted
    assert last.keys() - wanted.keys() == set(range(10, 20)), "deletes that were purged are nowhere any more"


def test_fail_stays_lost_until_an_operator_sets_a_position_and_then_goes_on_without_a_restart(
    server: Any, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = stopped_behind(server, daemon, out, "fail")
    purge(server)
    process.start()
    seen = process.wait_state("shop", "POSITION_LOST")
    assert process.health()[0] == 503
    assert seen["lost"] in ("gtids_purged", "position_purged")
    assert seen["gap"] is None
    assert seen["retention"]["bytes"] in (None, 0)
    done = headrace(process, "position", "set", "shop", "earliest", "--yes")
    assert done.returncode == 0, done.stderr
    seen = process.wait_state("shop", "STREAMING", 20)
    assert seen["lost"] == ""
    server.sql("INSERT INTO shop.t VALUES (5, 'b')")
    eventually(lambda: ids(out) == [1, 4, 5])
    assert process.terminate() == 0


def cut_off(server: Any, file: str) -> None:
    """Cuts a file within its last event with rows, while the server is down."""
    events = server.sql(f"SHOW BINLOG EVENTS IN '{file}'")
    end = next(int(event[4]) for event in reversed(events) if event[2].lower().startswith("write_rows"))
    server.stop()
    os.truncate(server.datadir / file, end - 10)
    server.start()


def test_next_file_passes_over_the_end_of_a_file_that_is_proven_to_be_cut_off(
    server: Any, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = stopped_behind(server, daemon, out, "next_file")
    cut = files(server)[-3]  # with row 3 at its end
    cut_off(server, cut)
    process.start()
    server.sql("INSERT INTO shop.t VALUES (5, 'b')")
    eventually(lambda: 5 in ids(out), 30, lambda: f"{ids(out)} {process.log.read_text()[-3000:]}")
    assert ids(out) == [1, 2, 4, 5], "all before the cut, and all behind it"
    gap = process.wait("shop", lambda s: s["gap"])["gap"]
    assert gap["reason"] == "truncated"
    assert gap["files"] in (0, 1)
    assert gap["from"].startswith(cut)
    assert process.terminate() == 0


def test_next_file_does_not_act_on_a_wrong_offset_in_a_sound_file(server: Any, daemon: Make, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    process = stopped_behind(server, daemon, out, "next_file")
    with sqlite3.connect(process.folder / "var" / "headrace.db") as store:
        ((stored,),) = store.execute("select position from destinations").fetchall()
        position = json.loads(stored)
        position.update(offset=position["offset"] + 7, gtid_set="", last_transaction="")
        store.execute("update destinations set position = ?", (json.dumps(position).encode(),))
    store.close()
    process.start()
    seen = process.wait_state("shop", "POSITION_LOST")
    assert seen["lost"] == "truncated"
    assert seen["gap"] is None
    assert ids(out) == [1]
    eventually(lambda: "on_position_lost does not act" in process.log.read_text())
    assert process.terminate() == 0
