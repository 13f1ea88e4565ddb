"""Another server answers: planned switches, killed primaries, resets, restores, further addresses, refusals."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from devstack import Stack
from tests.proxy import Proxy
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl, replay

pytestmark = pytest.mark.server

Make = Callable[..., DaemonProcess]
# No heartbeat in a test's time, so that only its own transactions get numbers.
without_heartbeats = '[heartbeat]\ninterval = "1h"'


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def replicate(replica: Any, source: Any) -> None:
    replica.sql(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={source.port}, SOURCE_USER='root',"
        " SOURCE_PASSWORD='root', SOURCE_AUTO_POSITION=1, SOURCE_CONNECT_RETRY=1, GET_SOURCE_PUBLIC_KEY=1;"
        " START REPLICA"
    )


def executed(server: Any) -> str:
    return str(server.sql("SELECT @@gtid_executed")[0][0]).replace("\\n", "")


def caught_up(replica: Any, source: Any) -> None:
    """Until the replica has executed all that the source has now."""
    gtids = executed(source)
    eventually(lambda: replica.sql(f"SELECT GTID_SUBSET('{gtids}', @@gtid_executed)") == [("1",)])


class Pair:
    """Two MySQL servers, the second a replica of the first, with a table shop.t on both."""

    def __init__(self, stack: Stack) -> None:
        self.first = stack.mysql(name="primary", server_id=301)
        self.second = stack.mysql(name="replica", server_id=302)

    def begin(self) -> None:
        """Makes them what they were, whatever became of them: running, and with nothing but an empty table."""
        for server in (self.second, self.first):
            server.start()
            server.sql(
                "STOP REPLICA; RESET REPLICA ALL; SET GLOBAL read_only = 0;"
                " DROP DATABASE IF EXISTS shop; DROP DATABASE IF EXISTS headrace; RESET BINARY LOGS AND GTIDS"
            )
        replicate(self.second, self.first)
        self.first.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY, n INT)")
        caught_up(self.second, self.first)

    def destination(self, out: Path, *, more: str = "", source: str = "") -> str:
        standby = f'[[source.standby]]\nhost = "127.0.0.1"\nport = {self.second.port}'
        return destination_toml(
            self.first, "shop", jsonl(out), source=f'connect_timeout = "2s"\n{source}', more=f"{standby}\n{more}"
        )

    def end(self) -> None:
        self.first.kill()
        self.second.kill()


@pytest.fixture(scope="module")
def servers(stack: Stack) -> Iterator[Pair]:
    made = Pair(stack)
    yield made
    made.end()


@pytest.fixture
def pair(servers: Pair) -> Pair:
    servers.begin()
    return servers


class Load(threading.Thread):
    """Inserts and updates on one server until it is stopped or the server is gone; `done` counts what was committed."""

    def __init__(self, server: Any, first: int) -> None:
        super().__init__(name="load")
        self._server, self._next = server, first
        self._stop_asked = threading.Event()
        self.done = 0

    def run(self) -> None:
        try:
            with pymysql.connect(**self._server.connection("root"), database="shop", autocommit=True) as connection:
                cursor = connection.cursor()
                while not self._stop_asked.is_set():
                    cursor.execute("INSERT INTO t VALUES (%s, 0)", (self._next,))
                    cursor.execute("UPDATE t SET n = n + 1 WHERE id >= %s", (self._next - 3,))
                    self._next += 1
                    self.done += 1
        except pymysql.err.MySQLError:
            return  # killed under us: that is what some tests are about

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


def table(server: Any) -> dict[str, dict[str, Any]]:
    return {row[0]: {"id": row[0], "n": row[1]} for row in server.sql("SELECT id, n FROM shop.t")}


def image(out: Path) -> dict[str, Any]:
    return replay([m for m in read_jsonl(out) if m["table"] == "t"])


def test_a_planned_switch_under_load_loses_nothing_and_goes_on_at_the_standby_address(
    pair: Pair, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=pair.destination(out)).start()
    process.wait_state("shop", "STREAMING")
    load = Load(pair.first, 1)
    load.start()
    eventually(lambda: load.done > 200)
    load.stop()
    pair.first.sql("SET GLOBAL super_read_only = 1")
    caught_up(pair.second, pair.first)
    pair.second.sql("STOP REPLICA; RESET REPLICA ALL")
    pair.first.stop()
    second = Load(pair.second, 100_000)
    second.start()
    seen = process.wait("shop", lambda s: s["source"]["address"].endswith(str(pair.second.port)), 60)
    eventually(lambda: second.done > 200)
    second.stop()
    eventually(lambda: image(out) == table(pair.second), 30, lambda: process.log.read_text()[-3000:])
    assert seen["gap"] is None
    numbers = [int(m["_pos"]) for m in read_jsonl(out)]
    assert numbers == sorted(numbers)
    # The new primary takes heartbeats now.
    process.wait("shop", lambda s: s["state"] == "STREAMING" and s["heartbeat"]["seen_seconds"] is not None)
    assert process.terminate() == 0


def diverge(pair: Pair, out: Path, process: DaemonProcess) -> str:
    """Transactions that were published and never replicated; the first server is killed then. Their GTIDs, with no
    heartbeat among them as long as `without_heartbeats` is in the destination."""
    process.wait_state("shop", "STREAMING")
    pair.first.sql("INSERT INTO shop.t VALUES (1, 0)")
    eventually(lambda: "1" in image(out))
    caught_up(pair.second, pair.first)
    pair.second.sql("STOP REPLICA")
    before = executed(pair.first)
    pair.first.sql("INSERT INTO shop.t VALUES (2, 0); INSERT INTO shop.t VALUES (3, 0)")
    eventually(lambda: {"2", "3"} <= image(out).keys())
    lost = str(pair.second.sql(f"SELECT GTID_SUBTRACT('{executed(pair.first)}', '{before}')")[0][0])
    process.wait("shop", lambda s: s["position"]["gtid_set"] == executed(pair.first))
    pair.first.kill()
    pair.second.sql("RESET REPLICA ALL; SET GLOBAL read_only = 0; INSERT INTO shop.t VALUES (10, 0)")
    return lost


def test_a_primary_killed_with_unreplicated_transactions_is_source_changed_with_their_list(
    pair: Pair, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=pair.destination(out, more=without_heartbeats)).start()
    lost = diverge(pair, out, process)
    seen = process.wait_state("shop", "SOURCE_CHANGED", 60)
    assert process.health()[0] == 503
    uuid, _, numbers = lost.partition(":")
    assert uuid in seen["message"]
    assert "were never replicated" in seen["message"]
    assert "on_diverged" in seen["message"]
    last = int(numbers.split("-")[-1])
    assert str(last) in seen["message"]
    position = seen["position"]
    assert "10" not in image(out), "nothing is published before somebody chose"
    assert process.terminate() == 0
    # what somebody chooses
    file = process.folder / "destinations" / "shop.toml"
    file.write_text(file.read_text().replace("connect_timeout", 'on_diverged = "continue"\nconnect_timeout', 1))
    process.start()
    eventually(lambda: "10" in image(out), 60, lambda: process.log.read_text()[-3000:])
    seen = process.wait_state("shop", "STREAMING")
    assert seen["gap"]["reason"] == "diverged"
    assert seen["gap"]["transactions"] >= 2
    assert uuid in seen["gap"]["gtids"]
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics").read().decode()
    assert 'headrace_position_moves_total{destination="shop",reason="diverged"} 1.0' in metrics
    assert image(out).keys() == {"1", "2", "3", "10"}
    assert position["gtid_set"] != seen["position"]["gtid_set"]
    assert process.terminate() == 0
    assert any(
        json.loads(line).get("reason") == "diverged" for line in process.log.read_text().splitlines() if "{" in line
    )


def test_an_old_primary_that_starts_again_next_to_the_promoted_replica_is_reported(
    pair: Pair, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=pair.destination(out, more=without_heartbeats)).start()
    diverge(pair, out, process)
    process.wait_state("shop", "SOURCE_CHANGED", 60)
    pair.first.start()
    assert process.command("restart", "shop")[0] == 0  # else it tries again after a minute
    seen = process.wait("shop", lambda s: "two_sources" in s["troubles"] and s["state"] == "DEGRADED", 60)
    first, second = f"127.0.0.1:{pair.first.port}", f"127.0.0.1:{pair.second.port}"
    text = seen["troubles"]["two_sources"]
    assert f"{first} has 2 transactions that {second} lacks, and that has 1 that it lacks" in text
    assert f"publishes the changes of one of them, last of {first}" in text
    assert "super_read_only" in text
    warned = [line for line in process.log.read_text().splitlines() if "two addresses of the source" in line]
    assert len(warned) == 1
    pair.second.sql("SET GLOBAL super_read_only = 1")
    assert process.command("restart", "shop")[0] == 0
    process.wait("shop", lambda s: s["state"] == "STREAMING" and "two_sources" not in s["troubles"], 60)
    assert process.terminate() == 0


def test_heartbeats_that_were_never_replicated_are_no_divergence(pair: Pair, daemon: Make, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=pair.destination(out, more='[heartbeat]\ninterval = "200ms"')).start()
    process.wait("shop", lambda s: s["state"] == "STREAMING" and s["heartbeat"]["seen_seconds"] is not None)
    pair.first.sql("INSERT INTO shop.t VALUES (1, 0)")
    eventually(lambda: "1" in image(out))
    caught_up(pair.second, pair.first)
    pair.second.sql("STOP REPLICA")
    before = process.health()[1]["destinations"]["shop"]["position"]["own_gtids"]
    process.wait("shop", lambda s: s["position"]["own_gtids"] != before)
    pair.first.kill()
    assert pair.second.sql("SELECT COUNT(*) FROM shop.t") == [("1",)]
    pair.second.sql("RESET REPLICA ALL; SET GLOBAL read_only = 0; INSERT INTO shop.t VALUES (10, 0)")
    eventually(lambda: "10" in image(out), 60, lambda: process.log.read_text()[-3000:])
    assert process.health()[1]["destinations"]["shop"]["gap"] is None
    assert process.terminate() == 0


def test_a_server_that_purged_what_was_not_read_is_a_lost_position(pair: Pair, daemon: Make, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    process = daemon(shop=pair.destination(out)).start()
    process.wait_state("shop", "STREAMING")
    pair.first.sql("INSERT INTO shop.t VALUES (1, 0)")
    eventually(lambda: "1" in image(out))
    assert process.terminate() == 0
    pair.first.sql("INSERT INTO shop.t VALUES (2, 0)")
    caught_up(pair.second, pair.first)
    pair.first.stop()
    pair.second.sql("STOP REPLICA; RESET REPLICA ALL; FLUSH BINARY LOGS")
    last = pair.second.sql("SHOW BINARY LOGS")[-1][0]
    pair.second.sql(f"PURGE BINARY LOGS TO '{last}'; INSERT INTO shop.t VALUES (3, 0)")
    file = process.folder / "destinations" / "shop.toml"
    file.write_text(destination_toml(pair.second, "shop", jsonl(out)))
    process.start()
    seen = process.wait_state("shop", "POSITION_LOST")
    assert seen["lost"] == "gtids_purged"
    assert "1 transactions" in seen["message"]
    assert image(out).keys() == {"1"}
    assert process.terminate() == 0


def test_without_gtids_another_server_is_refused_with_the_commands_that_answer_it(
    stack: Stack, daemon: Make, tmp_path: Path
) -> None:
    off = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
    one = stack.mysql(None, *off, name="plain1", server_id=311)
    two = stack.mysql(None, *off, name="plain2", server_id=312)
    try:
        out = tmp_path / "out.jsonl"
        process = daemon(shop=destination_toml(one, "shop", jsonl(out))).start()
        process.wait_state("shop", "STREAMING")
        assert process.terminate() == 0
        two.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY, n INT)")
        (process.folder / "destinations" / "shop.toml").write_text(destination_toml(two, "shop", jsonl(out)))
        process.start()
        seen = process.wait_state("shop", "SOURCE_CHANGED")
        assert "headrace position set" in seen["message"]
        assert "headrace position reset" in seen["message"]
        assert process.terminate() == 0
    finally:
        one.kill()
        two.kill()


@pytest.mark.parametrize(
    ("before", "new"), [("", [20]), pytest.param("FLUSH BINARY LOGS; ", [20, 21], marks=pytest.mark.long)]
)
def test_a_server_restored_from_an_older_copy_is_noticed_and_continue_publishes_what_is_new(
    before: str, new: list[int], stack: Stack, daemon: Make, tmp_path: Path
) -> None:
    server = stack.mysql(name="restored", server_id=321)
    try:
        server.sql("CREATE DATABASE shop; CREATE TABLE shop.t (id INT PRIMARY KEY, n INT)")
        server.sql("INSERT INTO shop.t VALUES (1, 0)")
        server.stop()
        copy = tmp_path / "copy"
        shutil.copytree(server.datadir, copy)
        server.start()
        out = tmp_path / "out.jsonl"
        text = destination_toml(server, "shop", jsonl(out), start="earliest", more="[heartbeat]\nenabled = false")
        process = daemon(shop=text).start()
        server.sql("INSERT INTO shop.t VALUES (2, 0); INSERT INTO shop.t VALUES (3, 0)")
        eventually(lambda: image(out).keys() == {"1", "2", "3"})
        assert process.terminate() == 0
        server.stop()
        shutil.rmtree(server.datadir)
        shutil.copytree(copy, server.datadir)
        server.start()
        # It gives lost transactions' numbers to others, perhaps all of them, and in another file.
        server.sql(before + "; ".join(f"INSERT INTO shop.t VALUES ({number}, 0)" for number in new))
        process.start()
        seen = process.wait_state("shop", "SOURCE_CHANGED")
        assert "restored from an older copy" in seen["message"]
        assert process.terminate() == 0
        file = process.folder / "destinations" / "shop.toml"
        file.write_text(text.replace("[filter]", 'on_diverged = "continue"\n[filter]', 1))
        process.start()
        server.sql("INSERT INTO shop.t VALUES (30, 0)")
        eventually(lambda: {"20", "30"} <= image(out).keys(), 30, lambda: process.log.read_text()[-3000:])
        assert process.wait_state("shop", "STREAMING")["gap"]["reason"] == "diverged"
        assert [row["id"] for m in read_jsonl(out) for row in m["data"]] == [
            str(number) for number in (1, 2, 3, *new, 30)
        ]
        assert process.terminate() == 0
    finally:
        server.kill()


def test_a_read_only_or_lagging_replica_is_refused_when_the_configuration_says_so(
    pair: Pair, daemon: Make, tmp_path: Path
) -> None:
    pair.second.sql("SET GLOBAL read_only = 1; STOP REPLICA")
    texts = {
        "readonly": destination_toml(pair.second, "shop", jsonl(tmp_path / "a"), source='read_only = "refuse"'),
        "lagging": destination_toml(pair.second, "shop", jsonl(tmp_path / "b"), source='max_replica_lag = "5s"'),
        "taken": destination_toml(pair.second, "shop", 'type = "null"'),
    }
    process = daemon(**texts).start()
    assert "is read-only" in process.wait_state("readonly", "FAILED")["message"]
    assert "replication does not run" in process.wait_state("lagging", "FAILED")["message"]
    assert process.wait_state("taken", "STREAMING")["troubles"] == {}
    assert process.terminate() == 0


def test_an_address_that_is_cut_off_gives_way_to_the_next_and_no_row_is_missing(
    pair: Pair, daemon: Make, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    with Proxy("127.0.0.1", pair.first.port) as proxy:
        text = pair.destination(out, source='heartbeat = "1s"').replace(
            f"port = {pair.first.port}", f"port = {proxy.port}"
        )
        process = daemon(shop=text).start()
        process.wait_state("shop", "STREAMING")
        pair.first.sql("INSERT INTO shop.t VALUES (1, 0)")
        eventually(lambda: "1" in image(out))
        proxy.blackhole()
        pair.first.sql("INSERT INTO shop.t VALUES (2, 0)")
        seen = process.wait("shop", lambda s: s["source"]["address"].endswith(str(pair.second.port)), 60)
        eventually(lambda: image(out).keys() == {"1", "2"}, 30, lambda: process.log.read_text()[-3000:])
        assert seen["gap"] is None
        assert process.terminate() == 0


def test_a_server_without_the_binlogs_that_are_needed_continues_where_the_archive_ends(
    pair: Pair, daemon: Make, tmp_path: Path
) -> None:
    out, archive = tmp_path / "out.jsonl", f'[archive]\npath = "{tmp_path / "archive"}"\nflush_interval = "20ms"'
    process = daemon(shop=pair.destination(out, more=f"{without_heartbeats}\n{archive}")).start()
    process.wait_state("shop", "STREAMING")
    pair.first.sql("INSERT INTO shop.t VALUES (1, 0)")
    eventually(lambda: len(image(out)) == 1)
    assert process.command("pause", "shop")[0] == 0
    for number in range(2, 6):
        pair.first.sql(f"INSERT INTO shop.t VALUES ({number}, 0); UPDATE shop.t SET n = n + 1")
    file, offset = pair.first.sql("SHOW BINARY LOG STATUS")[0][:2]
    process.wait("shop", lambda s: (s["archive"]["file"], s["archive"]["offset"]) == (file, int(offset)))
    caught_up(pair.second, pair.first)
    pair.second.sql("FLUSH BINARY LOGS")
    pair.second.sql(f"PURGE BINARY LOGS TO '{pair.second.sql('SHOW BINARY LOGS')[-1][0]}'")
    pair.first.kill()
    pair.second.sql("STOP REPLICA; RESET REPLICA ALL; INSERT INTO shop.t VALUES (100, 0)")
    assert process.command("resume", "shop")[0] == 0
    eventually(lambda: image(out) == table(pair.second), 30, lambda: f"{image(out)}\n{process.log.read_text()[-4000:]}")
    process.wait_state("shop", "STREAMING")
    rows = [(m["type"], row["id"], row["n"]) for m in read_jsonl(out) if m["table"] == "t" for row in m["data"]]
    assert len(rows) == len(set(rows)), "no row is published twice"
    assert process.health()[1]["destinations"]["shop"]["gap"] is None

    def lines() -> set[int]:
        return {one["line"] for one in json.loads(process.run("archive", "list", "shop", "--json").stdout)}

    eventually(lambda: lines() == {1, 2}, 30, lambda: str(lines()))  # the archiver follows the destination
    assert process.terminate() == 0
