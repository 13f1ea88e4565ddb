"""Texts with codes that have no Unicode character: what is published of them, in the stream and in snapshots."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.site import Site
from tests.support import DaemonProcess, destination_toml, read_jsonl

pytestmark = pytest.mark.server
TROUBLE = "undecodable_text"
BAD = "x'61A140'"
"""In gbk: an `a`, and a code that has no Unicode character."""


def test_such_texts_are_published_stop_the_destination_or_are_left_out_as_the_operator_says(
    site: Site, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10) CHARACTER SET gbk, big MEDIUMTEXT CHARACTER SET gbk)",
        f"INSERT INTO t VALUES (1, 'old', NULL), (2, {BAD}, CONCAT(REPEAT('a', 300000), {BAD}))",
    )

    def destination(name: str, *, source: str = "", filters: str = "", snapshot: str = "initial") -> str:
        sink = f'type = "jsonl"\npath = "{tmp_path / name}"'
        text = destination_toml(site.server, site.schema, sink, source=source, snapshot=snapshot)
        return text.replace("[route]", f"{filters}\n[route]")

    size = 200_000
    stop = 'undecodable_text = "stop"'
    columns = f"exclude_columns = '{site.schema}\\.t:v/big'"
    process = daemon(
        shows=destination("shows"),
        stops=destination("stops", source=stop),
        streams=destination("streams", source=stop, snapshot="never"),
        excludes=destination("excludes", source=stop, filters=columns),
        skips=destination("skips", source=stop, filters='table_errors = "skip"'),
    ).start()
    for name in ("shows", "excludes", "skips"):
        process.wait(name, lambda status: status["snapshots_ended"])
    process.wait_state("streams", "STREAMING")
    status = process.wait("stops", lambda status: status["state"] == "FAILED")
    assert f"rows that were read from {site.schema}.t: a text in column `v` has codes" in status["message"]
    assert "exclude_columns" in status["message"]
    site.run(
        f"INSERT INTO t VALUES (3, {BAD}, CONCAT(REPEAT('b', 60000), {BAD}))",
        f"INSERT INTO t VALUES (4, 'new', CONCAT(REPEAT('b', {size}), {BAD}))",
        "INSERT INTO t VALUES (5, 'last', NULL)",
    )
    status = process.wait("streams", lambda status: status["state"] == "FAILED")
    assert f"rows of {site.schema}.t: a text in column `v` has codes" in status["message"]
    assert 'undecodable_text = "replace"' in status["message"]

    def rows(name: str) -> list[list[str | None]]:
        found = read_jsonl(tmp_path / name)
        return [[row["id"], *(row[c] for c in ("v", "big") if c in row)] for one in found for row in one["data"]]

    big = "b" * size + "a?"
    expected = [
        ["1", "old", None],
        ["2", "a?", "a" * 300_001 + "?"],
        ["3", "a?", "b" * 60_000 + "a?"],
        ["4", "new", big],
        ["5", "last", None],
    ]
    status = process.wait("shows", lambda status: status["rows"] >= 5 and TROUBLE in status["troubles"])
    assert sorted(rows("shows")) == expected
    process.wait("excludes", lambda status: status["rows"] >= 5)
    assert sorted(rows("excludes")) == [[str(i)] for i in range(1, 6)]
    process.wait("skips", lambda status: status["rows"] >= 2)
    assert sorted(rows("skips")) == [expected[0], expected[4]]

    name = f"{site.schema}.t"
    status = process.wait("shows", lambda status: status["undecodable_texts"] == 5)
    assert status["state"] == "DEGRADED"
    assert f"2 in {name}.v, 3 in {name}.big" in status["troubles"][TROUBLE]
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics", timeout=5) as answer:
        assert b'headrace_undecodable_texts_total{destination="shows"} 5' in answer.read()
    for name in ("excludes", "skips"):
        status = process.wait(name, lambda status: status["state"] == "STREAMING")
        assert status["troubles"] == {}


@pytest.mark.parametrize("site", ["mysql"], indirect=True)
def test_large_ones_in_a_snapshot_and_next_to_a_large_document_that_is_changed_in_part_are_published(
    site: Site, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    sink = f'type = "jsonl"\npath = "{tmp_path / "out"}"'
    site.run(
        "CREATE TABLE u (id INT PRIMARY KEY, v MEDIUMTEXT CHARACTER SET gbk)",
        f"INSERT INTO u VALUES (1, CONCAT(REPEAT('b', 200000), {BAD}))",
    )
    process = daemon(shop=destination_toml(site.server, site.schema, sink, snapshot="initial")).start()
    status = process.wait("shop", lambda status: (status["undecodable_texts"], status["rows"]) == (1, 1))
    assert f"1 in {site.schema}.u.v" in status["troubles"][TROUBLE]
    assert [row["v"] for one in read_jsonl(tmp_path / "out") for row in one["data"]] == ["b" * 200_000 + "a?"]
    site.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10) CHARACTER SET gbk, d JSON)",
        f"INSERT INTO t VALUES (1, {BAD}, JSON_OBJECT('long', REPEAT('x', 200000), 'n', 0))",
        "SET binlog_row_value_options = PARTIAL_JSON",
        "UPDATE t SET d = JSON_SET(d, '$.n', 1)",
    )
    process.wait("shop", lambda status: status["rows"] >= 3)
    (changed,) = read_jsonl(tmp_path / "out")[-1]["data"]
    assert (changed["v"], json.loads(changed["d"])["n"]) == ("a?", 1)
