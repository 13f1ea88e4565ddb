"""Fixtures of several files here: column types on a server of their own, sites with a daemon that streams them, and a
root in ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devstack import Stack
from headrace.model import Position
from headrace.mysql.snapshot.reader import MysqlTableReader
from tests import versions
from tests.lock_bench import SERVICES, Keeper
from tests.site import Site
from tests.snapshots import Writers
from tests.support import DaemonProcess, destination_toml
from tests.table_reads import reader_of
from tests.type_bench import Bench, open_bench


@pytest.fixture(scope="module", params=versions.SQL)
def bench(request: pytest.FixtureRequest, stack: Stack) -> Iterator[Bench]:
    yield from open_bench(request, stack)


@pytest.fixture(params=SERVICES)
async def keeper(request: pytest.FixtureRequest) -> AsyncIterator[Keeper]:
    """A root of the test's own on the shared servers of a lock service; sessions that a test opens there end with
    it."""
    made = Keeper(request.param, request.getfixturevalue(request.param))
    yield made
    await made.close()


@pytest.fixture(scope="session")
def hurt_kafka(session_stack: Stack) -> Any:
    """One that tests may freeze; the others go on with theirs."""
    return session_stack.kafka(name="hurt")


@pytest.fixture
async def zoo(zookeeper: Any) -> AsyncIterator[Keeper]:
    """The same, of ZooKeeper in any case."""
    made = Keeper("zookeeper", zookeeper)
    yield made
    await made.close()


@pytest.fixture(params=versions.SINCE_57)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(request.getfixturevalue(request.param), f"ev{abs(hash(tmp_path)) % 10**9}")
    yield made
    made.close()


@pytest.fixture
def mysql_site(mysql: Any, tmp_path: Path) -> Iterator[Site]:
    mysql.sql("DROP DATABASE IF EXISTS headrace")  # the heartbeat row of another test's destination of this name
    made = Site(mysql, f"ev{abs(hash(tmp_path)) % 10**9}")
    yield made
    made.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def start(daemon: Callable[..., DaemonProcess], out: Path) -> Callable[..., DaemonProcess]:
    """A daemon that streams the site into `out`."""

    def go(site: Site, filters: str = "", **more: Any) -> DaemonProcess:
        sink = f'type = "jsonl"\npath = "{out}"'
        text = destination_toml(site.server, site.schema, sink, **more)
        process = daemon(shop=text.replace("[route]", f"{filters}\n[route]")).start()
        process.wait_state("shop", "STREAMING")
        return process

    return go


@pytest.fixture
def writers() -> Iterator[Callable[..., Writers]]:
    made: list[Writers] = []

    def go(site: Site, **more: Any) -> Writers:
        made.append(Writers(site, **more))
        return made[-1]

    yield go
    for one in made:
        one.stop()


@pytest.fixture
async def reading(bench: Bench) -> AsyncIterator[Callable[..., Any]]:
    made: list[MysqlTableReader] = []

    async def open_one(**settings: Any) -> tuple[MysqlTableReader, Position]:
        reader, end = await reader_of(bench.server, **settings)
        made.append(reader)
        return reader, end

    yield open_one
    for reader in made:
        await reader.close()
