"""Memory and state store over a long time: tables that the server keeps reopening, and tables that are created and
dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pymysql

from benchmarks.daemon import Daemon, running
from benchmarks.report import Table
from benchmarks.workloads import SCHEMA
from devstack import Stack
from devstack.servers.mysql import MysqlServer

TABLES = 5_000
STAGING = 50
_MYSQL = (
    "--innodb-flush-log-at-trx-commit=0",
    "--skip-innodb-doublewrite",
    "--table-open-cache=400",
    "--table-definition-cache=400",
    "--innodb-buffer-pool-size=512M",
)
_STEPS = 10
"""Checks of memory and state store, one after each such part of the rounds."""
_WRITERS = 4
_POLL = 0.5
_COLUMNS = ", ".join(["id BIGINT PRIMARY KEY", *(f"c{number} VARCHAR(40) DEFAULT 'x'" for number in range(19))])
_ROWS = 10
"""Rows of a round."""
Round = Callable[[int], Iterator[str]]


def level(rounds: int, only: str = "") -> Table:
    """Runs this many rounds of each whose name contains `only`, in the default format and with the default metadata,
    into no sink."""
    table = Table(f"{rounds:,} rounds")
    with Stack(lasting=True) as stack:
        server = stack.mysql(None, *_MYSQL)
        _run(server, 1, lambda _: iter([f"CREATE DATABASE {SCHEMA}"]))
        whats: list[tuple[str, str, Round]] = [
            (f"{STAGING} staging tables of 20 columns", "stage", lambda i: _stage(f"stage{i % STAGING}", i)),
            ("staging tables that each have a name of their own", "own", lambda i: _stage(f"own{i}", i)),
            (f"{TABLES:,} tables, a row into each in turn", "many", _insert),
        ]
        for what, prefix, statements in whats:
            if only.lower() not in what:
                continue
            if statements is _insert:
                _run(server, TABLES, lambda i: iter([f"CREATE TABLE {SCHEMA}.many{i} ({_COLUMNS})"]))
            source = {**server.connection(), "start": "latest", "tls": "disabled", "snapshot": "never"}
            made = {"source": source, "filter": {"include": rf"{SCHEMA}\.{prefix}.*"}, "sink": {"type": "null"}}
            with running({prefix: made}) as daemon:  # its heartbeat row exists forever
                daemon.until(lambda now: now.streaming > 0, _POLL)
                table.add(what, _steps(daemon, server, what, rounds, statements))
    return table


def _insert(number: int) -> Iterator[str]:
    for one in range(number * _ROWS, (number + 1) * _ROWS):
        yield f"INSERT INTO {SCHEMA}.many{one % TABLES} (id) VALUES ({one})"


def _stage(name: str, number: int) -> Iterator[str]:
    yield f"CREATE TABLE {SCHEMA}.{name} ({_COLUMNS})"
    yield f"INSERT INTO {SCHEMA}.{name} (id) VALUES {', '.join(f'({number * _ROWS + one})' for one in range(_ROWS))}"
    yield f"DROP TABLE {SCHEMA}.{name}"


def _steps(daemon: Daemon, server: MysqlServer, what: str, rounds: int, statements: Round) -> dict[str, float]:
    """Reports after each part of the rounds what the daemon uses; returns the figures of the first part and of the
    last."""
    part, first, begun = rounds // _STEPS, 0.0, time.monotonic()
    for step in range(_STEPS):
        _run(server, part, statements, step * part)
        wanted = (step + 1) * part * _ROWS
        now = daemon.until(lambda now, wanted=wanted: now.rows >= wanted, _POLL)  # type: ignore[misc]
        first = first or now.memory / 1e6
        size = daemon.state_bytes / 1e6
        print(
            f"bench: {what}: {(step + 1) * part:,} rounds, {time.monotonic() - begun:,.0f} s, "
            f"{now.memory / 1e6:.0f} MB, state store {size:.1f} MB",
            flush=True,
        )
    return {"first_mb": first, "last_mb": now.memory / 1e6, "state_mb": size}


def _run(server: MysqlServer, rounds: int, statements: Round, start: int = 0) -> None:
    """Runs the statements of this many rounds, by several sessions; statements with the same name are run by one of
    them."""

    def write(writer: int) -> None:
        connection = pymysql.connect(**server.connection("root"), autocommit=True)
        with connection, connection.cursor() as cursor:
            for number in range(start, start + rounds):
                if number % STAGING % _WRITERS == writer:
                    for statement in statements(number):
                        cursor.execute(statement)

    with ThreadPoolExecutor(_WRITERS) as writers:
        list(writers.map(write, range(_WRITERS)))
