"""`scripts/bench --commits`: how long a commit takes that waits for a semi-synchronous replica."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from tempfile import TemporaryDirectory

import pymysql

from benchmarks.daemon import running
from benchmarks.race import KAFKA, NULL, Servers, destination, reported, topic
from benchmarks.report import Table
from benchmarks.workloads import SCHEMA
from devstack.servers.mysql import MysqlServer

_COMMITS, _WARM = 3_000, 100
"""Commits of a run, and those before them that are not counted."""
_LIMIT = 60.0
_ON = """
INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so';
SET GLOBAL rpl_semi_sync_source_timeout = 60000;
SET GLOBAL rpl_semi_sync_source_enabled = 1;
"""


def measure(servers: Servers, runs: int, scale: int) -> Table:
    """Returns milliseconds of a commit of one row, by one client, with different replicas that it waits for."""
    count = max(_COMMITS // scale, 100)
    table = Table(f"commit of one row, {count:,} in a row by one client")
    with ExitStack() as stack:
        sources = {name: stack.enter_context(replicated(servers)) for name, replicated in _CASES.items()}
        for number in range(runs):
            for name, source in sources.items():
                reported(number, runs, f"commits, {name}")
                table.add(name, _commits(source, count))
        for name, source in sources.items():
            if _status(source, "no_tx") > 0:
                raise SystemExit(f"bench: {name}: commits did not wait")
    return table


def _commits(source: MysqlServer, count: int) -> dict[str, float]:
    took = []
    with pymysql.connect(**source.connection("root"), autocommit=True) as connection, connection.cursor() as cursor:
        for number in range(-_WARM, count):
            begun = time.perf_counter()
            cursor.execute(f"INSERT INTO {SCHEMA}.commits (v) VALUES (REPEAT('v', 100))")
            if number >= 0:
                took.append((time.perf_counter() - begun) * 1e3)
    cuts = statistics.quantiles(took, n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


def _with_table(servers: Servers) -> Servers:
    """Returns the servers with a MySQL server of their own that has the table."""
    own = servers.apart()
    own.mysql.sql(
        f"CREATE DATABASE {SCHEMA}; CREATE TABLE {SCHEMA}.commits (id INT AUTO_INCREMENT PRIMARY KEY, v TEXT)"
    )
    return own


def _status(source: MysqlServer, what: str) -> int:
    rows = source.sql(f"SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_source_{what}'")
    return int(rows[0][1]) if rows else 0


def _until_replicated(source: MysqlServer) -> None:
    deadline = time.monotonic() + _LIMIT
    while not _status(source, "clients"):
        if time.monotonic() > deadline:
            raise SystemExit("bench: no semi-synchronous replica came")
        time.sleep(0.1)


@contextmanager
def _alone(servers: Servers) -> Iterator[MysqlServer]:
    yield _with_table(servers).mysql


@contextmanager
def _mysqls_own(servers: Servers) -> Iterator[MysqlServer]:
    source, replica = _with_table(servers).mysql, servers.new_mysql()
    source.sql(_ON)
    replica.sql(
        "INSTALL PLUGIN rpl_semi_sync_replica SONAME 'semisync_replica.so';"
        "SET GLOBAL rpl_semi_sync_replica_enabled = 1; SET GLOBAL server_id = 2;"
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{source.host}', SOURCE_PORT={source.port}, SOURCE_USER='root',"
        f" SOURCE_PASSWORD='{source.root_password}', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1; START REPLICA"
    )
    _until_replicated(source)
    yield source


@contextmanager
def _headrace(servers: Servers, acknowledges: str) -> Iterator[MysqlServer]:
    own = _with_table(servers)
    own.mysql.sql(_ON)
    with ExitStack() as stack:
        name = stack.enter_context(topic(own))
        way = KAFKA if acknowledges == "sink" else NULL
        made = destination(own, name, rf"{SCHEMA}\.commits", "latest", way)
        made["source"]["semi_sync"] = acknowledges
        if acknowledges == "archive":
            made["archive"] = {"path": stack.enter_context(TemporaryDirectory(dir=own.cache.root))}
        stack.enter_context(running({name: made}))
        _until_replicated(own.mysql)
        yield own.mysql


_CASES: dict[str, Callable[[Servers], AbstractContextManager[MysqlServer]]] = {
    "no replica": _alone,
    "a semi-synchronous replica of MySQL": _mysqls_own,
    'headrace, semi_sync = "archive"': lambda servers: _headrace(servers, "archive"),
    'headrace, semi_sync = "sink", into Kafka': lambda servers: _headrace(servers, "sink"),
}
