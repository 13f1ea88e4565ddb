"""Commands that take long say on a terminal how far they are, and nothing in a pipe."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proxy import Proxy
from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl
from tests.terminals import COMMAND, line_by_line, shown

pytestmark = pytest.mark.server


def test_a_search_for_a_position_shows_the_share_of_the_file_the_rate_and_the_time_left(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path, tmp_path: Path
) -> None:
    site = mysql_site
    process = daemon(shop=destination_toml(site.server, site.schema, f'type = "jsonl"\npath = "{out}"')).start()
    process.wait_state("shop", "STREAMING")
    assert process.terminate() == 0
    site.run("FLUSH BINARY LOGS", "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v LONGTEXT)")
    for _ in range(40):
        site.run("INSERT INTO t (v) VALUES (REPEAT('x', 1000000))")
    site.run("DO SLEEP(1.1)")
    ((now,),) = site.run("SELECT DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%sZ')")
    site.run("INSERT INTO t (v) VALUES ('last')")
    ((file, *_),) = site.run("SHOW BINARY LOGS")[-1:]
    words = ("position", "set", "--config", "headrace.toml", "shop", now, "--yes")

    said = shown(COMMAND, *words, terminal="none", output=tmp_path / "pipe", folder=process.folder)
    assert said == ""
    assert f"position is {file}:" in (tmp_path / "pipe").read_text()
    assert "reading" not in (tmp_path / "pipe").read_text()

    seen = line_by_line(shown(COMMAND, *words, terminal="error", output=tmp_path / "out", folder=process.folder))
    assert {line.split()[1] for line in seen} == {file}
    assert re.search(r" \d+% \d+\.\d/4\d\.\d MB [\d.]+ MB/s 0:00:0\d", seen[-1]), seen
    assert f"position is {file}:" in (tmp_path / "out").read_text()


def long_ago_and_now(site: Site) -> tuple[str, str]:
    """A binlog of 40 MB; its name, and a time behind it."""
    site.run("FLUSH BINARY LOGS", "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v LONGTEXT)")
    for _ in range(40):
        site.run("INSERT INTO t (v) VALUES (REPEAT('x', 1000000))")
    site.run("DO SLEEP(1.1)")
    ((now,),) = site.run("SELECT DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%sZ')")
    site.run("INSERT INTO t (v) VALUES ('last')")
    ((file, *_),) = site.run("SHOW BINARY LOGS")[-1:]
    return str(file), str(now)


@pytest.mark.long
def test_a_search_that_a_running_daemon_does_shows_the_same(
    mysql_site: Site, daemon: Callable[..., DaemonProcess], out: Path, tmp_path: Path
) -> None:
    site = mysql_site
    with Proxy(site.server.host, site.server.port) as proxy:
        process = daemon(shop=destination_toml(proxy, site.schema, f'type = "jsonl"\npath = "{out}"')).start()
        process.wait_state("shop", "STREAMING")
        file, now = long_ago_and_now(site)
        eventually(lambda: len(read_jsonl(out)) == 41)
        proxy.limit(20_000_000)
        words = ("position", "set", "--config", "headrace.toml", "shop", now, "--yes")
        assert shown(COMMAND, *words, terminal="none", output=tmp_path / "pipe", folder=process.folder) == ""
        assert "reading" not in (tmp_path / "pipe").read_text()

        said = shown(COMMAND, *words, terminal="error", output=tmp_path / "out", folder=process.folder)
        seen = [line for search in said.splitlines() for line in line_by_line(search)]  # to be shown, and to be done
        reported = [line for line in seen if line.startswith(f"reading {file} ")]
        assert re.search(r" \d+% \d+\.\d/4\d\.\d MB [\d.]+ MB/s 0:00:0\d", reported[-1]), seen
        assert f"position is {file}:" in (tmp_path / "out").read_text()
        assert process.wait_state("shop", "STREAMING")["search"] is None
        assert process.terminate() == 0


@pytest.mark.long
def test_decode_from_a_time_shows_the_search_for_where_that_is(mysql_site: Site, tmp_path: Path) -> None:
    site = mysql_site
    file, now = long_ago_and_now(site)
    with Proxy(site.server.host, site.server.port) as proxy:
        proxy.limit(20_000_000)
        account = ("--port", str(proxy.port), "--user", "canal", "--password-env", "TEST_PASSWORD")
        words = ("decode", "--host", proxy.host, *account, "--table", f"{site.schema}\\..*", "--from", now)
        assert shown(COMMAND, *words, terminal="none", output=tmp_path / "pipe") == ""
        seen = line_by_line(shown(COMMAND, *words, terminal="error", output=tmp_path / "out"))
    reported = [line for line in seen if line.startswith(f"reading {file} ")]
    assert re.search(r" \d+% \d+\.\d/4\d\.\d MB [\d.]+ MB/s 0:00:0\d", reported[-1]), seen
    assert seen[-1].startswith("decoding "), seen
    assert (tmp_path / "out").read_bytes().count(b"\n") == (tmp_path / "pipe").read_bytes().count(b"\n") == 1


def test_verify_shows_the_share_of_the_messages_and_then_of_the_rows(
    mysql_site: Site, start: Callable[..., DaemonProcess], out: Path, tmp_path: Path
) -> None:
    site = mysql_site
    process = start(site, more="[message]\nrows_per_message = 1")
    site.run(
        "SET cte_max_recursion_depth = 20000",
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(600))",
        "INSERT INTO t WITH RECURSIVE n AS (SELECT 1 AS id UNION ALL SELECT id + 1 FROM n WHERE id < 20000) "
        "SELECT id, REPEAT('x', 500) FROM n",
    )
    eventually(lambda: sum(len(one["data"]) for one in read_jsonl(out) if one["type"] == "INSERT") == 20_000)
    words = ("verify", "--config", "headrace.toml", "shop")
    assert shown(COMMAND, *words, terminal="none", output=tmp_path / "pipe", folder=process.folder) == ""
    assert (tmp_path / "pipe").read_text().startswith(f"{site.schema}.t: equal (20,000 rows")

    seen = line_by_line(shown(COMMAND, *words, terminal="error", output=tmp_path / "out", folder=process.folder))
    for what in ("messages", "rows"):
        reported = [line for line in seen if line.startswith(f"{site.schema}.t, {what}")]
        assert re.search(r" \d+% [\d,]+ ", reported[-1]), seen
    assert re.search(r" 100% 20,000 [\d,]+/s 0:00:00", seen[-1]), seen
    assert (tmp_path / "out").read_text() == (tmp_path / "pipe").read_text()
    assert process.terminate() == 0


def test_decode_shows_the_share_of_what_the_server_has_now(mysql_site: Site, tmp_path: Path) -> None:
    site = mysql_site
    site.run("FLUSH BINARY LOGS", "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v LONGTEXT)")
    ((first, *_),) = site.run("SHOW BINARY LOGS")[-1:]
    for _ in range(12):
        site.run("INSERT INTO t (v) VALUES (REPEAT('x', 1000000))")
    site.run("FLUSH BINARY LOGS")
    for _ in range(12):
        site.run("INSERT INTO t (v) VALUES (REPEAT('x', 1000000))")
    account = ("--port", str(site.server.port), "--user", "canal", "--password-env", "TEST_PASSWORD")
    words = ("decode", "--host", site.server.host, *account, "--table", f"{site.schema}\\..*", "--from", f"{first}:4")
    assert shown(COMMAND, *words, terminal="none", output=tmp_path / "pipe") == ""
    seen = line_by_line(shown(COMMAND, *words, terminal="error", output=tmp_path / "out"))
    assert re.search(r" 100% 2\d\.\d/2\d\.\d MB [\d.]+ MB/s 0:00:0\d", seen[-1]), seen
    assert (tmp_path / "out").read_bytes().count(b"\n") == (tmp_path / "pipe").read_bytes().count(b"\n") == 25
