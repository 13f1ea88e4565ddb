"""The network between source and daemon fails in every way that a proxy can play: noticed in time, and nothing lost."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proxy import Proxy
from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

QUICK = 'heartbeat = "1s"\nstall_after = "3s"'


def jsonl(path: Path) -> str:
    return f'type = "jsonl"\npath = "{path}"'


def ids(path: Path) -> list[int]:
    return [int(row["id"]) for message in read_jsonl(path) for row in message["data"]]


def insert(site: Site, first: int, last: int, *, size: int = 10, a_statement: int = 200) -> None:
    """Rows first..last of `size` bytes each, a transaction for so many of them."""
    for low in range(first, last + 1, a_statement):
        numbers = range(low, min(low + a_statement, last + 1))
        site.run("INSERT INTO t VALUES " + ",".join(f"({number}, REPEAT('x', {size}))" for number in numbers))


def table(site: Site) -> None:
    site.run("CREATE TABLE t (id INT PRIMARY KEY, pad VARCHAR(2000))")


def metrics(process: DaemonProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def failures(process: DaemonProcess) -> dict[str, str]:
    """The state of each destination whose failure the log tells."""
    lines = process.log.read_text().rpartition("\n")[0].splitlines()  # without one that is being written
    reported = [entry for entry in map(json.loads, lines) if entry["event"] == "destination failed"]
    return {entry["destination"]: entry["state"] for entry in reported}


def test_packets_dropped_in_silence_are_noticed_within_fifteen_seconds_by_default(
    mysql: Any, mariadb: Any, daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    """Of MySQL and of MariaDB at the same time, while a third destination beside them streams on."""
    sites = {name: Site(server, f"net_{name}") for name, server in (("mysql", mysql), ("mariadb", mariadb))}
    outs = {name: tmp_path / f"{name}.jsonl" for name in (*sites, "direct")}
    for site in sites.values():
        table(site)
    with Proxy(mysql.host, mysql.port) as one, Proxy(mariadb.host, mariadb.port) as two:
        proxies = {"mysql": one, "mariadb": two}
        files = {name: destination_toml(proxy, f"net_{name}", jsonl(outs[name])) for name, proxy in proxies.items()}
        process = daemon(direct=destination_toml(mysql, "net_mysql", jsonl(outs["direct"])), **files).start()
        for name in outs:
            process.wait_state(name, "STREAMING")
        for site in sites.values():
            insert(site, 1, 10)
        for out in outs.values():
            eventually(lambda out=out: len(ids(out)) == 10)
        for proxy in proxies.values():
            proxy.blackhole()
        begun = time.monotonic()
        for site in sites.values():
            insert(site, 11, 20)
        for name in proxies:
            # STALLED itself may be over when we look: a new attempt, which is STARTING, follows within a second.
            process.wait(
                name, lambda s: "no byte came from the source" in s["last_error"], 15 - (time.monotonic() - begun)
            )
            state = f'headrace_state{{destination="{name}",state="STREAMING"}} 0.0'
            eventually(lambda state=state: state in metrics(process))  # type: ignore[misc]  # may be a second old
        wanted = dict.fromkeys(proxies, "STALLED")
        eventually(lambda: failures(process) == wanted, 10, lambda: str(failures(process)))  # told once a run is over
        code, body = process.health()
        assert (code, body["destinations"]["direct"]["state"]) == (503, "STREAMING")
        assert ids(outs["direct"]) == list(range(1, 21))
        for proxy in proxies.values():
            proxy.thaw()
        for name in proxies:
            process.wait_state(name, "STREAMING", 60)
        for site in sites.values():
            insert(site, 21, 30)
        for out in outs.values():
            eventually(lambda out=out: ids(out)[-1] == 30)
            assert ids(out) == list(range(1, 31))
        assert process.terminate() == 0
    for site in sites.values():
        site.close()


@pytest.mark.parametrize("reset", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_connection_cut_in_the_middle_of_a_packet_costs_no_row_and_doubles_none(
    reset: bool, mysql_site: Site, out: Path, daemon: Callable[..., DaemonProcess]
) -> None:
    table(mysql_site)
    moments = random.Random(7 + reset)
    with Proxy(mysql_site.server.host, mysql_site.server.port) as proxy:
        process = daemon(shop=destination_toml(proxy, mysql_site.schema, jsonl(out))).start()
        process.wait_state("shop", "STREAMING")
        last = 0
        for number in range(1, 5):
            proxy.cut(moments.randrange(1, 300_000), reset=reset)
            while not proxy.has_cut:
                insert(mysql_site, last + 1, last + 1000, size=200)
                last += 1000
            process.wait("shop", lambda status, number=number: status["restarts"] + status["reconnects"] >= number)
            process.wait_state("shop", "STREAMING")
        eventually(lambda: ids(out)[-1] == last, 30, process.log.read_text)
        assert ids(out) == list(range(1, last + 1))
        assert process.terminate() == 0


@pytest.mark.long
def test_a_link_that_freezes_for_a_moment_is_no_failure(
    mysql_site: Site, out: Path, daemon: Callable[..., DaemonProcess]
) -> None:
    table(mysql_site)
    with Proxy(mysql_site.server.host, mysql_site.server.port) as proxy:
        process = daemon(shop=destination_toml(proxy, mysql_site.schema, jsonl(out))).start()
        process.wait_state("shop", "STREAMING")
        proxy.freeze()
        insert(mysql_site, 1, 100)
        time.sleep(4)  # less than any limit: what this test is about
        assert ids(out) == []
        proxy.thaw()
        eventually(lambda: ids(out) == list(range(1, 101)))
        status = process.wait_state("shop", "STREAMING")
        assert (status["restarts"], status["reconnects"], status["last_error"]) == (0, 0, "")
        assert process.terminate() == 0


@pytest.mark.parametrize("trouble", ["slow", "late"])
@pytest.mark.long
def test_a_slow_link_with_a_large_backlog_is_not_a_stall(
    trouble: str, mysql_site: Site, out: Path, daemon: Callable[..., DaemonProcess]
) -> None:
    """`late`: every piece comes a second later. Both take several times the limits that the settings give."""
    table(mysql_site)
    with Proxy(mysql_site.server.host, mysql_site.server.port) as proxy:
        process = daemon(shop=destination_toml(proxy, mysql_site.schema, jsonl(out), source=QUICK)).start()
        process.wait_state("shop", "STREAMING")
        if trouble == "slow":
            proxy.limit(300_000)
            rows, least = 2000, 9.0
        else:
            proxy.delay(1.0)
            rows, least = 500, 1.0
        begun = time.monotonic()
        insert(mysql_site, 1, rows, size=1500)
        seen: list[tuple[str, int, int]] = []

        def done() -> bool:
            status = process.health()[1]["destinations"]["shop"]
            seen.append((status["state"], status["restarts"], status["reconnects"]))
            return ids(out)[-1:] == [rows]

        eventually(done, 90, process.log.read_text)
        assert time.monotonic() - begun > least
        assert set(seen) == {("STREAMING", 0, 0)}
        assert ids(out) == list(range(1, rows + 1))
        assert process.terminate() == 0
