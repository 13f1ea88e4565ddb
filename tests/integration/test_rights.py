"""An account that may read some tables, or some columns, alone: what it can't read whole is left out and named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site import Site
from tests.snapshots import done
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server
TROUBLE = "unreadable_tables"


@pytest.fixture
def few(site: Site) -> Iterator[str]:
    """An account that may read table t, two columns of `part`, and nothing of `hidden`; its name."""
    monitor = "BINLOG MONITOR, SLAVE MONITOR" if site.is_mariadb else "REPLICATION CLIENT"
    name = f"few{site.schema[2:]}"
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE part (id INT PRIMARY KEY, secret INT, v INT)",
        "CREATE TABLE hidden (id INT PRIMARY KEY, v INT)",
        "INSERT INTO t VALUES (1, 10)",
        "INSERT INTO part VALUES (1, 20, 30)",
        "INSERT INTO hidden VALUES (1, 40)",
        f"CREATE USER {name}@'%' IDENTIFIED BY 'canal'",
        f"GRANT REPLICATION SLAVE, {monitor} ON *.* TO {name}@'%'",
        f"GRANT SELECT, INSERT, UPDATE, CREATE ON headrace.* TO {name}@'%'",
        f"GRANT SELECT ON t TO {name}@'%'",
        f"GRANT SELECT (id, v), INSERT ON part TO {name}@'%'",
    )
    yield name
    site.run(f"DROP USER {name}@'%'")


def seen(out: Path, table: str) -> list[dict[str, Any]]:
    return [row for one in read_jsonl(out) if one["table"] == table for row in one["data"]]


def test_what_the_account_may_not_read_whole_is_left_out_and_named_until_it_may(
    site: Site, few: str, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(site.server, site.schema, sink, snapshot="initial").replace('"canal"', f'"{few}"', 1)
    process = daemon(shop=text)
    part, hidden = f"{site.schema}.part", f"{site.schema}.hidden"
    code, printed = process.command("check")
    assert code == 1, "a first start can't publish the rows of the table"
    assert f"{few} may not read whole rows of {part}, which snapshots leave out" in printed
    assert f"GRANT SELECT ON `{site.schema}`.`part` TO '{few}'@'%';" in printed
    assert f"{few} has SELECT on single tables of {site.schema}, and sees no others" in printed

    process.start()
    status = process.wait("shop", lambda status: done(status) or TROUBLE in status["troubles"])
    process.wait("shop", lambda status: status["snapshot"] is None)
    assert seen(out, "t") == [{"id": "1", "v": "10"}]
    assert seen(out, "part") == [], "rows without a column that nobody may see would replace whole ones"
    assert part in status["troubles"][TROUBLE]
    site.run("UPDATE part SET v = 31", "UPDATE hidden SET v = 41")
    eventually(lambda: bool(seen(out, "hidden")))
    assert seen(out, "part") == [{"id": "1", "secret": "20", "v": "31"}]
    status = process.wait("shop", lambda status: hidden in status["troubles"].get(TROUBLE, ""))
    assert status["state"] == "DEGRADED"
    assert f"GRANT SELECT ON `{site.schema}`.`hidden` TO '{few}'@'%';" in status["troubles"][TROUBLE]
    lines = [json.loads(line) for line in process.log.read_text().splitlines() if line.startswith("{")]
    reported = {line["table"] for line in lines if "may not read whole rows" in line["event"]}
    assert reported == {part, hidden}

    def stored() -> bool:
        return hidden in process.command("check")[1]

    eventually(stored)
    checked = process.run("verify", "shop", "--json", "--settle", "300ms")
    tables = {one["table"]: one for one in json.loads(checked.stdout)["tables"]}
    assert checked.returncode == 1
    assert {name: one["equal"] for name, one in tables.items()} == {
        f"{site.schema}.t": True,
        part: False,
        hidden: False,
    }
    assert "GRANT SELECT" in tables[part]["unreadable"]
    code, printed = process.command("resync", "shop", part)
    assert code != 0
    assert f"the account may not read whole rows of {part}" in printed

    site.run(f"GRANT SELECT ON part TO {few}@'%'", f"GRANT SELECT ON hidden TO {few}@'%'")
    process.wait("shop", lambda status: TROUBLE not in status["troubles"])
    for table in (part, hidden):
        assert process.command("resync", "shop", table)[0] == 0
    eventually(lambda: (len(seen(out, "part")), len(seen(out, "hidden"))) == (2, 2))
    assert seen(out, "part")[-1] == {"id": "1", "secret": "20", "v": "31"}
    assert seen(out, "hidden")[-1] == {"id": "1", "v": "41"}
    process.wait("shop", lambda status: status["snapshot"] is None and not status["troubles"])
    checked = process.run("verify", "shop", "--settle", "300ms")
    assert checked.returncode == 0, checked.stdout + checked.stderr
