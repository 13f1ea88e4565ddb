"""Rows that tables have already: what a destination begins with, and what is asked for while it runs."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from tests.site import Site
from tests.snapshots import assert_equal, done, fill, reading, slowly, some_are_stored
from tests.support import destination_toml, eventually, read_jsonl, replay

pytestmark = pytest.mark.server


def test_the_first_start_publishes_the_existing_rows_and_every_change_during_that(
    site: Site, daemon: Any, out: Path, writers: Any
) -> None:
    fill(site)
    work = writers(site)
    sink = f'type = "jsonl"\npath = "{out}"'
    process = daemon(shop=destination_toml(site.server, site.schema, sink, snapshot="initial")).start()
    process.wait("shop", done)
    work.stop()
    assert_equal(site, out)
    assert process.terminate() == 0


def snapshot_rows(out: Path, table: str = "t") -> list[str]:
    """The ids of all rows that came out of the table, in order; they alone were there as 'first'."""
    return [
        row["id"]
        for one in read_jsonl(out)
        if one["table"] == table and one["type"] == "INSERT"
        for row in one["data"]
        if row["name"] == "first"
    ]


def test_a_killed_snapshot_continues_after_the_last_row_that_was_stored(
    mysql_site: Site, daemon: Any, out: Path
) -> None:
    fill(mysql_site)
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial", source=slowly(6_000))
    process = daemon(shop=text).start()
    stored, begins = [], []
    for rows in (3_000, 6_000, 9_000):
        process.wait("shop", reading(rows))
        seen = process.wait("shop", lambda s: s["state"] == "SNAPSHOTTING" and some_are_stored(s))
        (table,) = seen["position"]["snapshots"][0]["open"]
        assert table["key"] is None  # it may be what a mask hides
        process.kill()
        stored.append(table["rows"])
        begins.append(len(snapshot_rows(out)))
        process.start()
    process.wait("shop", done)
    ids = snapshot_rows(out)
    assert set(ids) == {str(2 * n) for n in range(20_000)}
    for rows, begin in zip(stored, begins, strict=True):
        assert int(ids[begin]) >= 2 * rows  # what was not stored yet comes again, and no more
    assert_equal(mysql_site, out)


def test_a_snapshot_is_paused_resumed_and_cancelled(mysql_site: Site, daemon: Any, out: Path) -> None:
    fill(mysql_site)
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial", source=slowly(2_000))
    process = daemon(shop=text).start()
    process.wait("shop", reading(1_000))
    assert process.command("snapshot", "pause", "shop") == (0, "shop: pause is done and stored\n")
    process.wait_state("shop", "PAUSED")
    mysql_site.run("INSERT INTO t VALUES (1, 'new')")
    eventually(lambda: any(row["id"] == "1" for one in read_jsonl(out) for row in one["data"]))
    process.kill()
    process.start()
    paused = process.wait_state("shop", "PAUSED")
    code, text = process.command("snapshot", "status", "shop")
    assert code == 0
    assert "paused" in text
    assert process.command("snapshot", "resume", "shop")[0] == 0
    process.wait("shop", reading(paused["snapshot"]["rows"] + 1_000))
    assert process.command("snapshot", "cancel", "shop")[0] == 0
    process.wait("shop", done)
    assert len(snapshot_rows(out)) < 20_000
    code, text = process.command("snapshot", "resume", "shop")
    assert (code, text.splitlines()[0]) == (1, "headrace: no snapshot is under way")


def test_one_table_of_several_is_published_again_during_the_stream(
    mysql_site: Site, start: Any, out: Path, writers: Any
) -> None:
    fill(mysql_site)
    others = [f"other{number}" for number in range(9)]
    for table in others:
        fill(mysql_site, 100, table)
    process = start(mysql_site)
    work = writers(mysql_site)
    code, text = process.command("resync", "shop", f"{mysql_site.schema}.t", "--where", "id >= 100")
    assert (code, "is under way" in text) == (0, True), text
    process.wait("shop", done)
    work.stop()
    wanted = {key for key in mysql_site.table() if int(key) >= 100}
    eventually(lambda: wanted <= replay([one for one in read_jsonl(out) if one["table"] == "t"]).keys())
    ids = snapshot_rows(out)
    assert len(ids) == len(set(ids))
    assert min(map(int, ids)) >= 100
    assert not any(snapshot_rows(out, table) for table in others)
    process.command("resync", "shop", f"{mysql_site.schema}.other.", "--columns", "id")
    eventually(lambda: sum(len(one["data"]) for one in read_jsonl(out) if one["table"] in others) == 900)
    process.wait("shop", done)
    assert all(one["data"][0].keys() == {"id"} for one in read_jsonl(out) if one["table"] in others)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["nothing"], "no captured table matches 'nothing'"),
        (["{}.t", "--where", "idd > 5"], "can't be read so: "),
        (["{}.t", "--where", "id > 5) OR (1"], "can't be read so: "),
        (["{}.t", "--columns", "id,colour"], "has no column colour"),
        (["{}.("], "tables: "),
        ([], "say which table, or --all"),
    ],
)
def test_a_resync_that_can_not_be_made_is_refused_in_a_sentence(
    mysql_site: Site, start: Any, words: list[str], answer: str
) -> None:
    fill(mysql_site, 10)
    process = start(mysql_site)
    code, text = process.command("resync", "shop", *(word.format(mysql_site.schema) for word in words))
    assert code == 1
    assert answer in text
    assert "Traceback" not in text


def test_statements_in_the_midst_of_a_snapshot_lose_no_row(site: Site, daemon: Any, out: Path, writers: Any) -> None:
    """Columns come and go, tables get other names and character sets, and are made empty, while they are read."""
    for table in ("a", "b", "t", "u", "z"):
        fill(site, 3_000, table)
    sink = f'type = "jsonl"\npath = "{out}"'
    source = slowly(3_000) + "snapshot_parallelism = 3\n"
    process = daemon(shop=destination_toml(site.server, site.schema, sink, snapshot="initial", source=source)).start()
    process.wait("shop", reading(1_000))
    site.run("TRUNCATE TABLE a", "INSERT INTO a VALUES (1, 'new')", "RENAME TABLE u TO aa, b TO bb")
    process.wait("shop", lambda status: bool(status["snapshot"]) and f"{site.schema}.t" in status["snapshot"]["tables"])
    site.run("ALTER TABLE t ADD colour VARCHAR(10) DEFAULT 'red', DROP COLUMN name, ADD name TEXT")
    site.run("UPDATE t SET name = 'later' WHERE id < 100", "ALTER TABLE t CONVERT TO CHARACTER SET latin1")
    site.run("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (colour, id)", "DROP TABLE z")
    process.wait("shop", done)
    for table in ("a", "aa", "bb", "t"):
        wanted = site.table(table)
        names = {"aa": {"aa", "u"}, "bb": {"bb", "b"}}.get(table, {table})
        eventually(lambda: published(out, names).items() >= wanted.items())  # noqa: B023


def published(out: Path, tables: set[str]) -> Any:
    """What a consumer has of a table under all its names; a TRUNCATE takes no row away."""
    return replay([one for one in read_jsonl(out) if one["table"] in tables and one["type"] != "DELETE"])


@pytest.mark.parametrize("paused", [False, True])
def test_a_table_that_the_filter_leaves_out_by_now_is_read_no_more(
    mysql_site: Site, daemon: Any, out: Path, paused: bool
) -> None:
    for table, rows in (("a", 3_000), ("t", 30_000), ("z", 3_000)):
        fill(mysql_site, rows, table)
    sink, schema = f'type = "jsonl"\npath = "{out}"', mysql_site.schema
    text = destination_toml(mysql_site.server, schema, sink, snapshot="initial", source=slowly(2_000))
    process = daemon(shop=text).start()
    process.wait("shop", reading(3_500))
    if paused:
        process.command("snapshot", "pause", "shop")
    file = process.folder / "destinations" / "shop.toml"
    file.write_text(text.replace(f"{schema}\\\\..*", f"{schema}\\\\.(b|z)"))
    os.kill(process.pid, signal.SIGHUP)
    eventually(lambda: "settings" in process.log.read_text() or "changed" in process.log.read_text())
    if paused:
        process.wait("shop", lambda status: status["state"] == "PAUSED")
        eventually(lambda: process.command("snapshot", "resume", "shop")[0] == 0)
    process.wait("shop", done)
    assert "a table is read no more" in process.log.read_text()
    count = {table: sum(len(one["data"]) for one in read_jsonl(out) if one["table"] == table) for table in "tz"}
    assert count["t"] < 30_000
    assert count["z"] == 3_000


def test_a_table_gets_another_name_before_its_turn_has_come(mysql_site: Site, daemon: Any, out: Path) -> None:
    for table in ("a", "m"):
        fill(mysql_site, 1_000, table)
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial", source=slowly(1_000))
    process = daemon(shop=text).start()
    process.wait("shop", reading(200))
    mysql_site.run("RENAME TABLE m TO z")
    process.wait("shop", done)
    assert_equal(mysql_site, out, "a")
    assert_equal(mysql_site, out, "z")


def test_a_regex_of_a_resync_that_takes_too_long_ends_the_resync_alone(mysql_site: Site, start: Any, out: Path) -> None:
    slow = ".*[cd][uv][st](\\w|\\w\\w|\\w\\w\\w)*\\d"
    fill(mysql_site, 10, "customer_order_positions_archive_of_last_year")
    process = start(mysql_site)
    wait_for_table(mysql_site, "headrace.signal")
    arguments = json.dumps({"tables": slow}).replace("\\", "\\\\")
    mysql_site.run(
        f"INSERT INTO headrace.signal (destination, command, arguments) VALUES ('shop', 'resync', '{arguments}')"
    )
    eventually(lambda: "the resync is given up" in process.log.read_text())
    mysql_site.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (7)")
    eventually(lambda: [one["data"] for one in read_jsonl(out) if one["table"] == "t"] == [[{"id": "7"}]])
    process.wait("shop", lambda status: (status["state"], [*status["troubles"]]) == ("DEGRADED", ["signal"]))


def test_a_row_in_the_signal_table_asks_for_a_resync(mysql_site: Site, start: Any, out: Path) -> None:
    fill(mysql_site, 100)
    process = start(
        mysql_site, filters="[[filter.mask]]\ntables = '.*'\ncolumns = 'name'\nmask = 'truncate'\nlength = 5"
    )
    wait_for_table(mysql_site, "headrace.signal")
    add = "INSERT INTO headrace.signal (destination, command, arguments) VALUES "
    condition = f'{{"tables": "{mysql_site.schema}.t", "where": "id < 20"}}'
    mysql_site.run(f"{add} ('shop', 'resync', '{condition}'), ('another', 'resync', '{condition}')")
    eventually(lambda: snapshot_rows(out) == [str(2 * n) for n in range(10)])
    mysql_site.run(f"{add} ('shop', 'resinc', ''), ('shop', 'resync', 'no json')")
    seen = process.wait("shop", lambda status: "signal" in status["troubles"])
    assert "is refused" in seen["troubles"]["signal"]
    mysql_site.run(f"{add} ('shop', 'resync', '{condition}')")
    process.wait_state("shop", "STREAMING")
    eventually(lambda: len(snapshot_rows(out)) == 20)
    for where, why in (
        ("(SELECT COUNT(*) FROM mysql.user) > 1", "should be a condition as in [[filter.where]]"),
        ("id = SLEEP(9)", "should be a condition as in [[filter.where]]"),
        ("name like 'f%'", "a rule of [filter] hides the column name"),
        (" ", "where is empty"),
    ):
        arguments = json.dumps({"tables": f"{mysql_site.schema}.t", "where": where}).replace("'", "''")
        mysql_site.run(f"{add} ('shop', 'resync', '{arguments}')")
        process.wait("shop", lambda status, why=why: why in status["troubles"].get("signal", ""))


def wait_for_table(site: Site, name: str) -> None:
    schema, table = name.split(".")
    query = f"SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{schema}' AND TABLE_NAME = '{table}'"
    eventually(lambda: bool(site.run(query)))


@pytest.mark.parametrize(
    ("mode", "start", "where"),
    [
        ("never", "latest", "at the end of the binlog"),
        ("schema_only", "latest", "at the end of the binlog"),
        ("auto", "END", "where [source] start says"),
    ],
)
def test_a_first_start_without_rows_says_so(
    mysql_site: Site, daemon: Any, out: Path, mode: str, start: str, where: str
) -> None:
    fill(mysql_site, 10)
    end = "{}:{}".format(*mysql_site.run("SHOW BINARY LOG STATUS")[0][:2])
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot=mode, start=start.replace("END", end))
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    (said,) = (
        json.loads(line) for line in process.log.read_text().splitlines() if '"first start' in line and "{" in line
    )
    assert said["event"].startswith(f"first start, {where}: rows that are there already are not published")
    assert (said["snapshot"], said["start"]) == ({"auto": "never"}.get(mode, mode), start.replace("END", end))
    mysql_site.run("INSERT INTO t VALUES (1, 'new')")
    eventually(lambda: [row["id"] for one in read_jsonl(out) for row in one["data"]] == ["1"])


@pytest.fixture(scope="module")
def plain(stack: Stack) -> Iterator[Any]:
    """MySQL as it comes in many places: without GTIDs, and with little metadata."""
    off = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF", "--binlog-row-metadata=MINIMAL")
    server = stack.mysql(None, *off, name="snapshot-plain")
    yield server
    server.kill()


def test_without_gtids_a_row_that_is_written_shows_how_far_commits_are_seen(
    plain: Any, daemon: Any, out: Path, writers: Any
) -> None:
    site = Site(plain, "written")
    fill(site)
    work = writers(site)
    sink = f'type = "jsonl"\npath = "{out}"'
    process = daemon(shop=destination_toml(plain, site.schema, sink, snapshot="initial")).start()
    process.wait("shop", done)
    work.stop()
    assert_equal(site, out)
    assert plain.sql("SELECT COUNT(*) FROM headrace.watermark") == [("1",)]
    site.close()


def test_check_says_where_a_source_without_gtids_can_not_give_a_first_snapshot(plain: Any, daemon: Any) -> None:
    process = daemon(shop=destination_toml(plain, "written", 'type = "null"', snapshot="initial"))
    plain.sql("SET GLOBAL read_only = 1")
    try:
        done = process.run("check")
    finally:
        plain.sql("SET GLOBAL read_only = 0")
    assert done.returncode == 1
    (line,) = (one for one in done.stdout.splitlines() if "shop: wrong" in one)
    assert "is read-only: tables are read after a row that headrace writes" in line
    assert "set gtid_mode = ON" in done.stdout
    plain.sql("CREATE DATABASE IF NOT EXISTS written; CREATE TABLE written.u (id INT PRIMARY KEY)")
    assert "snapshot: the first start publishes about" in process.run("check").stdout


def test_tables_are_taken_again_from_the_source_where_the_schema_history_went_wrong(
    plain: Any, daemon: Any, out: Path
) -> None:
    mysql_site = Site(plain, "anew")
    fill(mysql_site, 10)
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial")
    process = daemon(shop=text).start()
    process.wait("shop", done)
    mysql_site.run("SET sql_log_bin = 0", "ALTER TABLE t RENAME COLUMN name TO title", "SET sql_log_bin = 1")
    mysql_site.run("INSERT INTO t VALUES (1, 'new')")
    process.wait("shop", lambda status: status["reason"] == "schema_differs")
    assert process.terminate() == 0
    file = process.folder / "destinations" / "shop.toml"
    file.write_text(file.read_text().replace('"initial"', '"schema_only_recovery"'))
    process.start()
    eventually(lambda: any(row.get("title") == "new" for one in read_jsonl(out) for row in one["data"]))
    assert sum(len(one["data"]) for one in read_jsonl(out)) == 11
    mysql_site.close()


def test_a_table_without_a_key_is_read_in_one_statement_and_by_one_on_its_unique_key(
    site: Site, daemon: Any, out: Path
) -> None:
    fill(site, 5_000)
    site.run(
        "CREATE TABLE keyless (id INT, name VARCHAR(40))",
        "INSERT INTO keyless SELECT * FROM t",
        "CREATE TABLE `unique` (name VARCHAR(40) NOT NULL UNIQUE, id INT)",
        "INSERT INTO `unique` SELECT CONCAT('k', id), id FROM t",
        "DROP TABLE t",
    )
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(site.server, site.schema, sink, snapshot="initial", source=slowly(10_000))
    process = daemon(shop=text).start()
    process.wait("shop", reading(2_000))
    site.run("DELETE FROM keyless WHERE id = 8", "UPDATE keyless SET name = 'changed' WHERE id > 9000")
    site.run("UPDATE `unique` SET id = -1 WHERE name IN ('k4000', 'k9998')")
    process.wait("shop", done)
    messages = read_jsonl(out)
    rows = replay([one for one in messages if one["table"] == "keyless"])
    eventually(lambda: replay([one for one in read_jsonl(out) if one["table"] == "keyless"]) == site.table("keyless"))
    named = {row["name"]: row["id"] for one in read_jsonl(out) if one["table"] == "unique" for row in one["data"]}
    assert named == {name: str(number) for name, number in site.run("SELECT name, id FROM `unique`")}
    assert len(rows) == 4_999


def test_rows_that_the_stream_has_in_part_go_out_whole(mysql_site: Site, daemon: Any, out: Path) -> None:
    """With binlog_row_image = MINIMAL a change says only what changed; what was read is given with that."""
    site = mysql_site
    site.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    site.run("INSERT INTO t VALUES " + ", ".join(f"({number}, 1, 1)" for number in range(3_000)))
    sink = f'type = "jsonl"\npath = "{out}"'
    source = slowly(3_000) + 'row_image = "any"\n'
    process = daemon(shop=destination_toml(site.server, site.schema, sink, snapshot="initial", source=source)).start()
    change = site.session()
    change("SET binlog_row_image = MINIMAL")
    number = 0
    while process.health()[1].get("destinations", {}).get("shop", {}).get("snapshot") is not None or number < 50:
        number += 1
        change(f"UPDATE t SET a = a + 1 WHERE id % 50 = {number % 50}")
        change(f"UPDATE t SET b = b + 1 WHERE id % 50 = {(number + 7) % 50}")
    process.wait("shop", done)
    wanted = site.table()

    def merged() -> Any:
        rows: dict[str, dict[str, Any]] = {}
        for message in read_jsonl(out):
            for row in message["data"]:
                rows[row["id"]] = {**rows.get(row["id"], {}), **row}
        return rows

    eventually(lambda: merged() == wanted)


def test_reading_waits_while_the_server_is_busy_and_says_so(mysql_site: Site, daemon: Any, out: Path) -> None:
    fill(mysql_site, 5_000)
    sink = f'type = "jsonl"\npath = "{out}"'
    limit = "snapshot_max_threads_running = 3\n" + slowly(3_000)
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial", source=limit)
    busy = [threading.Thread(target=mysql_site.session(), args=("SELECT SLEEP(4)",)) for _ in range(4)]
    for thread in busy:
        thread.start()
    process = daemon(shop=text).start()
    seen = process.wait("shop", lambda status: bool(status["snapshot"]) and status["snapshot"]["state"] == "held back")
    assert "threads run" in seen["snapshot"]["reason"]
    assert seen["state"] == "SNAPSHOTTING"
    for thread in busy:
        thread.join()
    process.wait("shop", done)
    assert len(snapshot_rows(out)) == 5_000


def test_long_keys_and_sets_of_64_members_are_read_in_one_order(site: Site, daemon: Any, out: Path) -> None:
    """Servers sort by the beginnings of values, and compare some numbers with a sign."""
    fill(site, 2_000)
    members = ", ".join(f"'m{number}'" for number in range(64))
    site.run(
        "CREATE TABLE long_keys (id TEXT, PRIMARY KEY (id(700))) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "INSERT INTO long_keys SELECT CONCAT(REPEAT('x', 600), LPAD(id * 7919 % 100003, 6, '0'), id) FROM t",
        f"CREATE TABLE sets (id SET({members}) PRIMARY KEY)",
        "INSERT INTO sets SELECT CAST(id AS UNSIGNED) FROM t",
        "INSERT INTO sets SELECT CAST(id + 9223372036854775808 AS UNSIGNED) FROM t",
        "DROP TABLE t",
    )
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(site.server, site.schema, sink, snapshot="initial", source=slowly(20_000))
    process = daemon(shop=text).start()
    process.wait("shop", done)
    for table, rows in (("long_keys", 2_000), ("sets", 4_000)):
        ids = [row["id"] for one in read_jsonl(out) if one["table"] == table for row in one["data"]]
        assert (len(ids), len(set(ids))) == (rows, rows)


def test_a_statement_that_is_given_up_ends_on_the_server_too(mysql_site: Site, start: Any) -> None:
    fill(mysql_site, 1_000)
    process = start(mysql_site)
    assert process.command("resync", "shop", f"{mysql_site.schema}.t", "--where", "SLEEP(0.1) = id + 1")[0] == 0

    def runs() -> bool:
        rows = mysql_site.run("SELECT INFO FROM information_schema.PROCESSLIST WHERE INFO LIKE '%SLEEP(0.1)%'")
        return any("PROCESSLIST" not in row[0] for row in rows)

    eventually(runs)
    assert process.command("snapshot", "cancel", "shop")[0] == 0
    eventually(lambda: not runs())
