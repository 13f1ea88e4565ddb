"""Rows counted by table, of a real server: they equal what was done."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually

pytestmark = pytest.mark.server

STRANGE = 'say "hi"\nand {go}\\'


def get(process: DaemonProcess, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port}{path}", timeout=5) as answer:
        return str(answer.read().decode())


def in_metrics(process: DaemonProcess) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for family in text_string_to_metric_families(get(process, "/metrics")):
        for sample in family.samples:
            if sample.name == "headrace_table_rows_total":
                found.setdefault(sample.labels["table"], {})[sample.labels["operation"]] = int(sample.value)
    return found


def in_api(process: DaemonProcess) -> list[dict[str, Any]]:
    return list(json.loads(get(process, "/api/v1/destinations/shop/tables"))["tables"])


def counts(inserted: int, updated: int, deleted: int, snapshot: int) -> dict[str, int]:
    return {"insert": inserted, "update": updated, "delete": deleted, "snapshot": snapshot}


def test_what_is_counted_of_each_table_is_what_was_done_to_it(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    quoted = f"`{STRANGE}`"
    mysql_site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))",
        f"CREATE TABLE {quoted} (id INT PRIMARY KEY)",
        "CREATE TABLE hidden (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1, 'there'), (2, 'there'), (3, 'there')",
    )
    sink = f'type = "jsonl"\npath = "{out}"'
    text = destination_toml(mysql_site.server, mysql_site.schema, sink, snapshot="initial")
    process = daemon(shop=text.replace("[filter]", '[filter]\nexclude = ".*\\\\.hidden"')).start()
    process.wait("shop", lambda status: status["state"] == "STREAMING" and status["snapshot"] is None)
    mysql_site.run(
        "INSERT INTO t SELECT 100 + a.id * 10 + b.id, 'new' FROM t a, t b",
        "UPDATE t SET name = 'changed' WHERE id > 100",
        "DELETE FROM t WHERE id < 3",
        "INSERT INTO hidden VALUES (1), (2)",
        "BEGIN",
        "INSERT INTO t VALUES (500, 'never')",
        "ROLLBACK",
        f"INSERT INTO {quoted} VALUES (1)",
        f"INSERT INTO {quoted} VALUES (2)",
        f"UPDATE {quoted} SET id = 3 WHERE id = 1",
        "ALTER TABLE t ADD COLUMN more INT",
        "INSERT INTO t (id) VALUES (900)",
    )
    # 3 read, 9 + 1 inserted, 9 updated, 2 deleted; and of the other 2 inserted, 1 updated
    status = process.wait("shop", lambda status: status["rows"] == 3 + 10 + 9 + 2 + 2 + 1)
    wanted = {"t": counts(10, 9, 2, 3), STRANGE: counts(2, 1, 0, 0)}
    assert in_metrics(process) == wanted
    page = in_api(process)
    assert [(one["database"], one["table"]) for one in page] == [(mysql_site.schema, "t"), (mysql_site.schema, STRANGE)]
    for one in page:
        assert counts(one["inserted"], one["updated"], one["deleted"], one["snapshot"]) == wanted[one["table"]]
    assert sum(sum(found.values()) for found in wanted.values()) == status["rows"]
    assert page[0]["last_at"] >= page[1]["last_at"]

    # The counts go on over runs.
    assert process.command("pause", "shop")[0] == 0
    mysql_site.run("DELETE FROM t WHERE id = 900")
    assert process.command("resume", "shop")[0] == 0
    process.wait("shop", lambda status: status["rows"] == 28)
    # What /metrics says may be a second old.
    eventually(lambda: in_metrics(process) == wanted | {"t": counts(10, 9, 3, 3)})
    assert process.terminate() == 0


def test_many_tables_are_distinguished_up_to_the_limit_and_counted_all(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path
) -> None:
    for number in range(12):
        mysql_site.run(f"CREATE TABLE t{number} (id INT PRIMARY KEY)")
    sink = f'type = "jsonl"\npath = "{out}"'
    process = daemon(shop=destination_toml(mysql_site.server, mysql_site.schema, sink))
    file = process.folder / "headrace.toml"
    file.write_text(file.read_text().replace("[http]", "[http]\ntables = 5"))
    process.start().wait_state("shop", "STREAMING")
    for number in range(12):
        mysql_site.run(f"INSERT INTO t{number} VALUES (1), (2)")
    process.wait("shop", lambda status: status["rows"] == 24)
    found = in_metrics(process)
    assert found.pop("(others)") == counts(14, 0, 0, 0)
    assert found == {f"t{number}": counts(2, 0, 0, 0) for number in range(5)}
    assert process.terminate() == 0
