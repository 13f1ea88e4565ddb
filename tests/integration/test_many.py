"""Ten destinations in one daemon, three of them dead, each in its way: all speak for themselves, seven stream on."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack.ports import free_port
from headrace.adapters.sqlite.state import SqliteStore
from headrace.model import Position
from headrace.ports.state import StateChange
from tests.site import Site
from tests.support import DaemonProcess, destination_toml, eventually, read_jsonl

pytestmark = pytest.mark.server

NUMBER = 10
ROWS = 2000


@pytest.fixture
def sites(mysql: Any) -> Iterator[list[Site]]:
    made = [Site(mysql, f"s{number}") for number in range(NUMBER)]
    for site in made:
        site.run("CREATE TABLE t (id INT PRIMARY KEY, pad VARCHAR(100))")
    yield made
    for site in made:
        site.close()


def ids(path: Path) -> list[int]:
    return [int(row["id"]) for message in read_jsonl(path) for row in message["data"]]


async def store_position(process: DaemonProcess, destination: str, position: Position) -> None:
    """As if an earlier run had left it."""
    store = SqliteStore(process.folder / "var" / "headrace.db")
    await store.open()
    guard = await store.begin_epoch(destination)
    await store.commit(destination, guard, StateChange(position))
    await store.close()


def test_ten_destinations_three_of_them_dead(
    mysql: Any, sites: list[Site], daemon: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    outs = [tmp_path / f"{site.schema}.jsonl" for site in sites]
    files = {
        site.schema: destination_toml(mysql, site.schema, f'type = "jsonl"\npath = "{out}"')
        for site, out in zip(sites, outs, strict=True)
    }
    files["s7"] = files["s7"].replace("${TEST_PASSWORD}", "wrong")
    files["s8"] = files["s8"].replace(f"port = {mysql.port}", f"port = {free_port()}")
    dead = {"s7": ("FAILED", "source"), "s8": ("FAILED", "source"), "s9": ("POSITION_LOST", "source")}
    says = {"s7": "refuses user 'canal'", "s8": "can't be reached", "s9": "mysql-bin.000000"}
    process = daemon(**files)
    asyncio.run(store_position(process, "s9", Position(mysql.sql("SELECT @@server_uuid")[0][0], "mysql-bin.000000", 4)))
    process.start()
    living = [site for site in sites if site.schema not in dead]
    for site in living:
        process.wait_state(site.schema, "STREAMING")
    for name, wanted in dead.items():
        status = process.wait(
            name, lambda status, wanted=wanted: status["restarts"] > 0 and status["state"] == wanted[0]
        )
        assert (status["state"], status["reason"]) == wanted
        assert says[name] in status["last_error"]
        assert "wrong" not in str(status)

    for first in range(1, ROWS + 1, 100):  # in turns, so that all are busy at the same time
        for site in sites:
            values = ",".join(f"({number}, '{site.schema}')" for number in range(first, first + 100))
            site.run(f"INSERT INTO t VALUES {values}")
    for site, out in zip(living, outs, strict=False):
        eventually(lambda out=out: len(ids(out)) >= ROWS, 30, process.log.read_text)
        assert ids(out) == list(range(1, ROWS + 1))
        assert {message["database"] for message in read_jsonl(out)} == {site.schema}

    code, body = process.health()
    assert (code, body["status"]) == (503, "failing")
    assert list(body["destinations"]) == [site.schema for site in sites]
    for site in living:
        status = body["destinations"][site.schema]
        assert (status["state"], status["restarts"], status["lost"]) == ("STREAMING", 0, "")
    assert body["destinations"]["s9"]["lost"] == "position_purged"
    with urllib.request.urlopen(f"http://127.0.0.1:{process.port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    healthy = dict(re.findall(r'headrace_healthy\{destination="(s\d)"\} (\d)', text))
    assert healthy == {site.schema: str(int(site.schema not in dead)) for site in sites}
    confirmed = dict(re.findall(r'headrace_rows_total\{destination="(s\d)"\} ([\d.]+)', text))
    assert {name: float(value) for name, value in confirmed.items()} == {
        site.schema: 0.0 if site.schema in dead else ROWS for site in sites
    }
    ids_of_ours = {status["source"]["server_id"] for status in body["destinations"].values()}
    assert len(ids_of_ours - {0}) >= len(living)

    # One of the dead is put right: it begins at once, beside the others.
    (process.folder / "destinations" / "s7.toml").write_text(files["s7"].replace("wrong", "${TEST_PASSWORD}"))
    process.wait_state("s7", "STREAMING")
    sites[7].run("INSERT INTO t VALUES (0, 'late')")
    eventually(lambda: ids(outs[7])[-1:] == [0])
    assert process.terminate() == 0
