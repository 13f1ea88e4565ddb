"""A resync as its operator sees it: what is said at once, while it is waited for, and when it can't be done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.site import Site
from tests.snapshots import done, fill, slowly
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

Start = Callable[..., DaemonProcess]


def test_an_accepted_resync_is_in_health_at_once_and_waiting_ones_are_listed(
    mysql_site: Site, start: Start, out: Path
) -> None:
    fill(mysql_site, 4_000)
    process = start(mysql_site, source=slowly(500))
    table = f"{mysql_site.schema}.t"
    assert process.command("resync", "shop", table)[0] == 0
    shown = process.health()[1]["destinations"]["shop"]["snapshot"]
    assert shown["queue"][0]["only"] == table
    for number in range(8):  # each is seen by the next question
        assert process.command("resync", "shop", "--where", f"id = {number}", table)[0] == 0
        shown = process.health()[1]["destinations"]["shop"]["snapshot"]
        assert shown["queue"][-1]["where"] == f"id = {number}"
    assert shown["waiting"] == 8
    text = process.command("snapshot", "status", "shop")[1]
    for one in shown["queue"][1:]:
        assert f"{one['id']}" in text
        assert f"resync, {table}, where {one['where']}" in text
    assert process.command("snapshot", "pause", "shop")[0] == 0
    facts = process.health()[1]["destinations"]["shop"]["snapshot"]
    assert (facts["state"], facts["eta_seconds"]) == ("paused", None)
    assert process.terminate() == 0


def test_who_waits_for_a_resync_hears_how_it_ends_also_over_a_restart(
    mysql_site: Site, start: Start, out: Path
) -> None:
    fill(mysql_site, 1_000)
    process = start(mysql_site, source=slowly(1_000))
    table = f"{mysql_site.schema}.t"
    code, text = process.command("resync", "shop", "--wait", table)
    assert (code, text.splitlines()[-1].endswith(": done")) == (0, True), text
    assert sum(len(one["data"]) for one in read_jsonl(out)) == 1_000

    answers: list[tuple[int, str]] = []

    def wait(*words: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.append(process.command(*words)))
        thread.start()
        return thread

    assert process.command("resync", "shop", table)[0] == 0
    id = process.health()[1]["destinations"]["shop"]["snapshot"]["id"]
    waiting = wait("snapshot", "wait", "shop", "--id", id)
    process.wait("shop", lambda status: bool(status["snapshot"]) and status["snapshot"]["rows"] > 100)
    process.kill()
    process.start()
    waiting.join(60)
    assert answers[0][0] == 0, answers
    assert ": done\n" in answers[0][1]

    assert process.command("resync", "shop", table)[0] == 0
    id = process.health()[1]["destinations"]["shop"]["snapshot"]["id"]
    waiting = wait("snapshot", "wait", "shop", "--id", id)
    eventually(lambda: process.command("snapshot", "cancel", "shop", "--id", id)[0] == 0)
    waiting.join(60)
    assert (answers[1][0], ": cancelled\n" in answers[1][1]) == (1, True), answers[1]
    process.wait("shop", done)
    code, text = process.command("snapshot", "wait", "shop")
    assert (code, text) == (0, "shop: no table is read\n")
    assert process.command("snapshot", "wait", "shop", "--id", "never-there")[0] == 1
    assert process.terminate() == 0


def test_a_view_a_table_outside_the_filter_a_missing_right_and_an_unknown_table_are_distinguished(
    mysql_site: Site, daemon: Start, out: Path
) -> None:
    server, schema = mysql_site.server, mysql_site.schema
    fill(mysql_site, 10)
    mysql_site.run(
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE TABLE outside (id INT PRIMARY KEY)",
        "CREATE TABLE closed (id INT PRIMARY KEY)",
        "CREATE USER IF NOT EXISTS few@'%' IDENTIFIED BY 'canal'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO few@'%'",
        f"GRANT SELECT ON {schema}.t TO few@'%'",
        f"GRANT SELECT, SHOW VIEW ON {schema}.v TO few@'%'",
        f"GRANT SELECT ON {schema}.outside TO few@'%'",
        "GRANT ALL ON headrace.* TO few@'%'",
    )
    text = destination_toml(server, schema, f'type = "jsonl"\npath = "{out}"')
    text = text.replace('user = "canal"', 'user = "few"').replace(f'"{schema}\\\\..*"', f'"{schema}\\\\.[^o].*"')
    process = daemon(shop=text).start()
    process.wait_state("shop", "STREAMING")
    mysql_site.run(f"REVOKE SELECT ON {schema}.t FROM few@'%'", f"GRANT INSERT ON {schema}.t TO few@'%'")
    said = {
        "t": f"the account may not read whole rows of {schema}.t",
        "v": f"{schema}.v is a view",
        "outside": f"{schema}.outside is not captured: [filter] leaves it out",
        "closed": f"the account few may not read {schema}.closed, if there is such a table",
        "unknown": f"the account few may not read {schema}.unknown, if there is such a table",
    }
    for table, words in said.items():
        code, text = process.command("resync", "shop", f"{schema}.{table}")
        assert (code, words in text) == (1, True), text
    mysql_site.run(f"GRANT SELECT ON {schema}.* TO few@'%'")
    code, text = process.command("resync", "shop", f"{schema}.unknown")
    assert (code, f"the source has no table {schema}.unknown" in text) == (1, True), text
    assert process.terminate() == 0
    mysql_site.run("DROP USER few@'%'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"tables": "SCHEMA.v"}', "is a view"),
        ('{"tables": "SCHEMA.unknown"}', "the source has no table"),
        ('{"tables": "SCHEMA.t", "where": "idd > 5"}', "is none that the source takes"),
        ('{"tables": "SCHEMA.t", "columns": ["colour"]}', "has no column colour"),
    ],
)
def test_a_signal_that_can_not_be_done_is_a_trouble(mysql_site: Site, start: Start, arguments: str, words: str) -> None:
    fill(mysql_site, 10)
    mysql_site.run("CREATE VIEW v AS SELECT * FROM t")
    process = start(mysql_site)
    eventually(
        lambda: bool(mysql_site.run("SELECT 1 FROM information_schema.TABLES WHERE TABLE_NAME = 'signal' LIMIT 1"))
    )
    given = arguments.replace("SCHEMA", mysql_site.schema)
    mysql_site.run(
        f"INSERT INTO headrace.signal (destination, command, arguments) VALUES ('shop', 'resync', '{given}')"
    )
    seen = process.wait("shop", lambda status: "signal" in status["troubles"])
    assert words in seen["troubles"]["signal"]
    assert "given up" in seen["snapshots_ended"][0]["outcome"]
    assert seen["state"] == "DEGRADED" or process.wait_state("shop", "DEGRADED")
    assert process.terminate() == 0


def test_progress_never_says_100_percent_of_a_table_that_has_more_than_was_estimated(
    mysql_site: Site, daemon: Any, out: Path
) -> None:
    fill(mysql_site, 1_000)
    mysql_site.run(
        "ALTER TABLE t STATS_AUTO_RECALC = 0",
        "ANALYZE TABLE t",
        "INSERT INTO t SELECT id + 1, 'first' FROM t",
        "SET SESSION information_schema_stats_expiry = 0",
    )
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial", source=slowly(400))
    process = daemon(shop=text).start()
    seen: list[tuple[int, float | None, float | None]] = []

    def is_done(status: dict[str, Any]) -> bool:
        if facts := status["snapshot"]:
            seen.append((facts["rows"], facts["percent"], facts["eta_seconds"]))
        return done(status)

    process.wait("shop", is_done, 60)
    assert any(percent is not None for _, percent, _ in seen)
    late = [one for one in seen if 1_000 <= one[0] < 2_000]
    assert late
    assert all(percent is None and eta is None for _, percent, eta in late)


def test_before_the_first_start_a_command_says_that_no_daemon_answers(mysql_site: Site, daemon: Any) -> None:
    process = daemon(shop=destination_toml(mysql_site.server, mysql_site.schema, 'type = "null"'))
    code, text = process.command("resync", "shop", "--all")
    assert code == 1
    assert "no daemon answers at" in text
    assert "token" not in text


def test_a_resync_of_some_columns_has_those_too_that_a_condition_asks_for(
    mysql_site: Site, start: Start, out: Path
) -> None:
    mysql_site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, city VARCHAR(9), price INT, note INT)",
        "INSERT INTO t VALUES (1, 'here', 10, 5), (2, 'there', 20, 5)",
    )
    process = start(mysql_site, filters="[[filter.where]]\ntables = '.*'\nrows = 'city = \"here\"'")
    code, text = process.command("resync", "shop", f"{mysql_site.schema}.t", "--columns", "price", "--wait")
    assert (code, text.splitlines()[-1].endswith(": done")) == (0, True), text
    assert [row for one in read_jsonl(out) for row in one["data"]] == [{"id": "1", "city": "here", "price": "10"}]
    assert process.terminate() == 0
