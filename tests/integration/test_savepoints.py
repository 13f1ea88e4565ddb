"""Savepoints on real servers: what a transaction has rolled back to is in no message."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from tests import versions
from tests.binlogs import connect, new_file
from tests.site import Site, equal
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server
MIXED = (
    "BEGIN", "INSERT INTO t VALUES (2, 'kept')", "SAVEPOINT a", "INSERT INTO t VALUES (3, 'gone')",
    "INSERT INTO log VALUES (3)", "ROLLBACK TO a", "COMMIT",
)  # fmt: skip
NESTED = (
    "BEGIN", "INSERT INTO log VALUES (4)", "SAVEPOINT `we``ird`", "INSERT INTO t VALUES (4, 'kept')",
    "SAVEPOINT `名`", "INSERT INTO t VALUES (5, 'gone')", "SAVEPOINT b", "UPDATE t SET v = 'gone' WHERE id = 4",
    "INSERT INTO log VALUES (5)", "ROLLBACK TO `名`", "INSERT INTO t VALUES (6, 'kept')",
    "SAVEPOINT B", "DELETE FROM t WHERE id = 6", "ROLLBACK TO SAVEPOINT b",
    "SAVEPOINT `we``ird`", "INSERT INTO t VALUES (7, 'gone')", "INSERT INTO log VALUES (7)",
    "ROLLBACK WORK TO `we``ird`", "RELEASE SAVEPOINT `we``ird`", "INSERT INTO t VALUES (8, 'kept')", "COMMIT",
)  # fmt: skip


@pytest.mark.parametrize("kind", versions.SQL)
def test_what_a_transaction_has_rolled_back_to_a_savepoint_is_in_no_message(
    kind: str, stack: Stack, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    """MySQL refuses such statements where GTIDs are enforced, and is started without."""
    off = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF") if kind.startswith("mysql") else ()
    server = stack.sql(kind, None, *off, name=f"{kind}-savepoints", server_id=9)
    with connect(server) as connection, connection.cursor() as cursor:
        _run(kind, server, cursor, daemon, out)
    server.kill()


def _run(kind: str, server: Any, cursor: Any, daemon: Callable[..., DaemonProcess], out: Path) -> None:
    schema = f"savepoints_{kind}"
    cursor.execute(f"CREATE DATABASE {schema}")
    cursor.execute(f"USE {schema}")
    cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20)) ENGINE = InnoDB")
    cursor.execute("CREATE TABLE log (id INT) ENGINE = MyISAM")
    path = new_file(server, cursor)
    process = daemon(shop=destination_toml(server, schema, f'type = "jsonl"\npath = "{out}"')).start()
    process.wait_state("shop", "STREAMING")
    for statement in (*MIXED, *NESTED, "INSERT INTO t VALUES (999, 'last')"):
        cursor.execute(statement)
    cursor.execute(f"SHOW BINLOG EVENTS IN '{path.name}'")
    texts = [str(row[5]) for row in cursor.fetchall()]
    assert kind.startswith("mariadb") == any("ROLLBACK TO" in text for text in texts), "what this is about"
    rows = lambda table: [row["id"] for m in read_jsonl(out) if m["table"] == table for row in m["data"]]  # noqa: E731
    eventually(lambda: "999" in rows("t"))
    assert rows("t") == ["2", "4", "6", "8", "999"]
    assert rows("log") == ["3", "4", "5", "7"], "what can't be rolled back"
    assert all(m["type"] == "INSERT" for m in read_jsonl(out))


def test_an_xa_transaction_goes_back_to_its_savepoints(
    site: Site, start: Callable[..., DaemonProcess], out: Path
) -> None:
    start(site)
    site.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))", "CREATE TABLE log (id INT) ENGINE = MyISAM")
    name, run = f"'{site.schema}s'", site.session()
    run(f"XA START {name}", "INSERT INTO t VALUES (1, 'kept')", "SAVEPOINT a", "INSERT INTO t VALUES (2, 'gone')")
    if site.is_mariadb:
        run("INSERT INTO log VALUES (2)")
    run("ROLLBACK TO a", "INSERT INTO t VALUES (3, 'kept')", f"XA END {name}", f"XA PREPARE {name}")
    run(f"XA COMMIT {name}")
    equal(site, out)
    assert [row["id"] for m in read_jsonl(out) if m["table"] == "t" for row in m["data"]] == ["1", "3", "999999"]
