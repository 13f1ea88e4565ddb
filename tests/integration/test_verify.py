"""`headrace verify` on real servers: what it finds, what it does not invent, and how what it offers mends the rest."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server
QUICK = ("--settle", "500ms")


def verify(process: DaemonProcess, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and what was found of table t."""
    done = process.run("verify", "shop", "--json", *QUICK, *words)
    assert done.stdout, done.stderr
    (table,) = json.loads(done.stdout)["tables"]
    return done.returncode, table


def fill(site: Site, rows: int = 100) -> None:
    """Rows with ids 1, 2, 3 ... of many types."""
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40), price DECIMAL(10,2), at TIMESTAMP(3) NULL, f DOUBLE, "
        "kind ENUM('a','b'), raw VARBINARY(9), doc JSON) CHARACTER SET utf8mb4"
    )
    values = ",".join(
        f"({n}, '行 {n}', {n}.5, '2026-01-31 12:00:00.125', {n} / 3, 'b', x'00ff', '{{\"a\": [{n}, 1.5]}}')"
        for n in range(1, rows + 1)
    )
    site.run(f"INSERT INTO t VALUES {values}")


def unlogged(site: Site, *statements: str) -> None:
    """Changes of which no message will come."""
    site.session()("SET sql_log_bin = 0", *statements)


def caught_up(out: Path, rows: int) -> None:
    eventually(lambda: sum(len(one["data"]) for one in read_jsonl(out)) >= rows)


def run_offered(process: DaemonProcess, command: str) -> None:
    """Runs a command as it was printed for a shell, and waits until the daemon has done it."""
    words = shlex.split(command)
    assert words[:3] == ["headrace", "resync", "shop"]
    assert process.run(*words[1:]).returncode == 0
    process.wait("shop", lambda status: status["state"] == "STREAMING" and status["snapshot"] is None)


@pytest.mark.parametrize("format", ["canal", "debezium"])
def test_a_file_equals_its_table_and_what_is_lost_changed_or_extra_is_found_and_mended(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path, format: str, tmp_path: Path
) -> None:
    site = mysql_site
    process = start(site, more=f'[message]\nformat = "{format}"\nrows_per_message = 1')
    fill(site)
    site.run(
        "UPDATE t SET name = 'again' WHERE id <= 10",
        "DELETE FROM t WHERE id = 11",
        "UPDATE t SET id = 500 WHERE id = 12",
    )
    eventually(lambda: b'"500"' in (text := out.read_bytes()) or b'"id":500' in text)

    status, table = verify(process)
    assert (status, table["equal"], table["source_rows"], table["consumer_rows"]) == (0, True, 99, 99)

    unlogged(
        site, "UPDATE t SET price = 1 WHERE id = 20", "DELETE FROM t WHERE id = 30", "INSERT INTO t (id) VALUES (40000)"
    )
    extra = tmp_path / "extra"
    status, table = verify(process, "--range-rows", "10", "--extra", str(extra))
    assert status == 1
    assert (table["missing"], table["different"], table["extra"]) == (1, 1, 1)
    assert [one["keys"] for one in table["ranges"]] == [["20"], ["40000"]]
    assert table["extra_keys"] == ["30"]
    assert extra.read_text() == f"{site.schema}.t\t30\n"

    for one in table["ranges"]:
        run_offered(process, one["command"])
    site.run("INSERT INTO t (id) VALUES (30)", "DELETE FROM t WHERE id = 30")
    eventually(lambda: verify(process)[0] == 0)
