"""Statements on real servers that are told apart by more than their first and last words, and very long ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.site import Site, equal, wait_for
from tests.support import DaemonProcess, eventually, read_messages

pytestmark = pytest.mark.server


def test_a_routine_whose_body_begins_a_transaction_stops_nothing(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(site)
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE PROCEDURE p() START TRANSACTION",
        "CREATE EVENT e ON SCHEDULE EVERY 1 YEAR DO START TRANSACTION",
        "CREATE TABLE u (id INT PRIMARY KEY) -- then START TRANSACTION",
        "INSERT INTO t VALUES (1, 'behind')",
    )
    equal(site, out)
    assert process.health()[1]["destinations"]["shop"]["state"] == "STREAMING"


def test_a_statement_of_half_a_megabyte_is_followed(site: Site, start: Callable[..., DaemonProcess], out: Path) -> None:
    start(site)
    parts = [f"PARTITION p{n} VALUES IN ({','.join(map(str, range(n * 1500, n * 1500 + 1500)))})" for n in range(50)]
    parts.append("PARTITION last VALUES IN (999999)")
    site.run(
        f"CREATE TABLE t (id INT, v VARCHAR(20)) PARTITION BY LIST (id) ({', '.join(parts)})",
        "INSERT INTO t VALUES (1, 'before')",
        f"ALTER TABLE t ADD w INT /* {'x' * 200_000} */",
        "INSERT INTO t VALUES (2, 'behind', 3)",
    )
    site.run("INSERT INTO t (id) VALUES (999999)")
    wait_for(out, "999999")
    rows = [m["data"][0] for m in read_messages(out) if m["table"] == "t" and m["type"] == "INSERT"]
    assert rows[:2] == [{"id": "1", "v": "before"}, {"id": "2", "v": "behind", "w": "3"}]
    ddl = [m for m in read_messages(out) if m["isDdl"]]
    assert [m["type"] for m in ddl] == ["CREATE", "ALTER"]
    assert len(ddl[0]["sql"]) > 400_000


def test_no_statement_that_carries_a_password_reaches_a_topic_or_a_log(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    site.run("FLUSH BINARY LOGS")
    process = start(site, "dcl = true")
    user = f"u{site.schema[:20]}"
    server = f"s{site.schema}"
    foreign = f"CREATE SERVER {server} FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1', PASSWORD 'geheim-1')"
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        f"CREATE USER {user}@localhost IDENTIFIED BY 'geheim-2'",
        f"SET PASSWORD FOR {user}@localhost = " + ("PASSWORD('geheim-3')" if site.is_mariadb else "'geheim-3'"),
        f"ALTER USER {user}@localhost IDENTIFIED BY 'geheim-4'",
        f"GRANT SELECT ON {site.schema}.* TO {user}@localhost",
        f"/* before */ {foreign}",
        f"ALTER SERVER {server} OPTIONS (PASSWORD 'geheim-5')",
        f"DROP SERVER {server}",
        "SET sql_mode = ''",  # else an engine that is not there is an error
        "CREATE TABLE far (id INT) ENGINE=FEDERATED CONNECTION='mysql:\\/\\/u:geheim-6@h/d/t'",
        """CREATE TABLE wide (id INT) ENGINE=SPIDER COMMENT='srv "s", password "geheim-7"'""",
        "CREATE TABLE near (id INT) COMMENT='no secret'",
    )
    file = site.run("SHOW BINARY LOGS")[-1][0]
    texts = [str(row[5]) for row in site.run(f"SHOW BINLOG EVENTS IN '{file}'")]
    assert any("IDENTIFIED" in text for text in texts), "the source has written them"
    hashes = {
        part for text in texts if user in text for part in re.findall(r"AS '([^']{20,})'|'(\*[0-9A-F]{40})'", text)
    }
    equal(site, out)
    site.run(f"DROP USER {user}@localhost")
    reported = out.read_text() + process.log.read_text()
    assert f"GRANT SELECT ON {site.schema}" in reported.replace("`", "")
    assert "geheim" not in reported
    for pair in hashes:
        assert not any(part and part in reported for part in pair)
    assert "CREATE TABLE near" in reported
    assert process.log.read_text().count("its text may hold a password") == 2
    assert "IDENTIFIED" not in reported
    assert "CREATE SERVER" not in reported


def test_rows_that_change_without_events_are_a_trouble_with_what_to_do(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    process = start(site)
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE parts (id INT PRIMARY KEY) PARTITION BY LIST (id) (PARTITION a VALUES IN (1))",
        "CREATE TABLE single (id INT PRIMARY KEY)",
        "INSERT INTO single VALUES (1)",
    )
    eventually(lambda: len([m for m in read_messages(out) if m["table"] == "single"]) == 2)
    assert process.wait_state("shop", "STREAMING")["troubles"] == {}
    site.run("ALTER TABLE parts EXCHANGE PARTITION a WITH TABLE single")
    found = process.wait("shop", lambda s: "unlogged_rows" in s["troubles"] and s["state"] == "DEGRADED")
    assert f"rows of {site.schema}.parts and {site.schema}.single changed at " in found["troubles"]["unlogged_rows"]
    assert "bring over by other means" in found["troubles"]["unlogged_rows"]
    site.run("ALTER TABLE single DISCARD TABLESPACE")
    process.wait("shop", lambda s: "DISCARD" in s["troubles"]["unlogged_rows"])
    equal(site, out)
    assert [m["type"] for m in read_messages(out) if m["isDdl"]][-2:] == ["ALTER", "ALTER"]


def test_duplicates_that_alter_ignore_removes_are_a_trouble_too(
    mariadb: Any, tmp_path: Path, start: Callable[..., DaemonProcess], out: Path
) -> None:
    site = Site(mariadb, f"ev{abs(hash(tmp_path)) % 10**9}")
    try:
        process = start(site)
        site.run(
            "CREATE TABLE t (id INT)",
            "INSERT INTO t VALUES (1), (1)",
            "ALTER TABLE t ADD v INT, ADD KEY (v)",
            "ALTER IGNORE TABLE t ADD UNIQUE (id)",
        )
        found = process.wait("shop", lambda s: "unlogged_rows" in s["troubles"])["troubles"]["unlogged_rows"]
        assert found.count("ALTER IGNORE") == 1
        assert "ADD UNIQUE" in found
        again = "INSERT INTO t (id, v) VALUES (2, 3), (4, NULL)"
        site.run(again, "ALTER IGNORE TABLE t MODIFY v INT UNIQUE")
        process.wait("shop", lambda s: "MODIFY v" in s["troubles"]["unlogged_rows"])
        site.run("DELETE FROM t", again, "ALTER IGNORE TABLE t ADD w INT DEFAULT 1 UNIQUE")
        process.wait("shop", lambda s: "ADD w" in s["troubles"]["unlogged_rows"])
    finally:
        site.close()


def test_variables_for_one_statement_do_not_hide_its_ddl(
    mariadb: Any, tmp_path: Path, start: Callable[..., DaemonProcess], out: Path
) -> None:
    before = mariadb.sql("SELECT @@global.binlog_row_metadata")[0][0]
    mariadb.sql("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    site = Site(mariadb, f"ev{abs(hash(tmp_path)) % 10**9}")
    try:
        start(site)
        site.run(
            "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)",
            "SET STATEMENT lock_wait_timeout = 5 FOR ALTER TABLE t RENAME COLUMN a TO x, RENAME COLUMN b TO a",
            "INSERT INTO t VALUES (1, 2, 3)",
        )
        wait_for(out, "1")
        assert [m["type"] for m in read_messages(out) if m["isDdl"]] == ["CREATE", "ALTER"]
        [row] = [m["data"][0] for m in read_messages(out) if m["type"] == "INSERT"]
        assert row == {"id": "1", "x": "2", "a": "3"}
    finally:
        site.close()
        mariadb.sql(f"SET GLOBAL binlog_row_metadata = '{before}'")
