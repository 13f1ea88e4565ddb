"""The snapshot: how fast a table is read, compared with others that read the same one, and its cost for the stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import others
from benchmarks.lines import Line, Servers, run_all
from benchmarks.workloads import Filler, Workload
from devstack import Stack
from devstack.errors import Unavailable
from devstack.servers.mysql import MysqlServer

_ROWS_PER_TRANSACTION = 1000
_TRICKLE = 100
"""Rows per second, each a transaction, whose latency is measured."""
_CLOCK, _CPU = "rows_per_second", "rows_per_cpu_second"


def measure_snapshot(runs: int, rows: int) -> list[Line]:
    """Measures every line about reading a table of this many rows."""
    options = ("--innodb-redo-log-capacity=2G", "--innodb-buffer-pool-size=1G", "--skip-innodb-doublewrite")
    with Stack(lasting=True) as stack:
        server = stack.mysql(None, "--max-binlog-size=1073741824", *options)
        print("bench: filling the table that is read", flush=True)
        filler = Filler(server)
        filler.relax()
        stored = filler.stored("stored", rows)
        live = filler.logged_only("live", _ROWS_PER_TRANSACTION)
        trickle = filler.stamped("trickle")
        filler.close()
        measured = [
            *_reading(server, stored),
            *_others(stack, server, stored),
            *_during(server, stored, live, trickle),
        ]
        run_all(measured, runs, Servers(server))
    return measured


def _pair(name: str, kind: str, workload: Workload, target: float | None, job: dict[str, Any]) -> list[Line]:
    """Returns two figures of the same runs."""
    line = Line(name, kind, workload, _CLOCK, target, job)
    return [line, Line("the same, by CPU time", kind, workload, _CPU, None, job, line.runs)]


def _reading(server: MysqlServer, stored: Workload) -> list[Line]:
    source = {**server.connection(), "start": "latest", "snapshot": "initial"}
    made = []
    for form, name, target in (("canal", "Canal", 100_000), ("debezium", "Debezium", None)):
        job = {"source": source, "format": form, "heartbeat": False}
        made += _pair(f"initial snapshot, {name}'s format", "pipeline", stored, target, job)
    return made


def _others(stack: Stack, server: MysqlServer, stored: Workload) -> list[Line]:
    made = _pair("SELECT * with aiomysql's SSCursor", "cursor", stored, None, {})
    made += _if_there(
        "mysqldump to /dev/null", "program", stored, lambda: {"command": others.mysqldump(server, stored.table)}
    )

    def debezium(more: dict[str, str]) -> dict[str, Any]:
        command = others.debezium(stack.cache)
        return {"command": command, "properties": others.debezium_properties(server, stored.table, more)}

    name = f"Debezium {others.DEBEZIUM}, initial snapshot"
    made += _if_there(name, "debezium", stored, lambda: debezium({}))
    made += _if_there(f"{name}, tuned", "debezium", stored, lambda: debezium(others.TUNED))
    return made


def _if_there(name: str, kind: str, workload: Workload, job: Callable[[], dict[str, Any]]) -> list[Line]:
    """Returns the lines, or one that says why they are left out."""
    try:
        return _pair(name, kind, workload, None, job())
    except Unavailable as error:
        print(f"bench: left out: {name}: {error}", flush=True)
        return [Line(name, kind, workload, _CLOCK, missing=str(error))]


def _during(server: MysqlServer, stored: Workload, live: list[str], trickle: list[str]) -> list[Line]:
    source = {**server.connection(), "start": "latest", "snapshot": "never"}
    common = {"source": source, "root": server.connection("root"), "heartbeat": False}
    stream = {
        **common,
        "statements": live,
        "rows_per_transaction": _ROWS_PER_TRANSACTION,
        "filter": {"include": r"bench\.(live|stored)"},
    }
    few = {**common, "statements": trickle, "rate": _TRICKLE, "filter": {"include": r"bench\.(trickle|stored)"}}
    first = Line("a stream that always has more, alone", "stream_during", stored, _CLOCK, None, stream)
    alone = Line(f"{_TRICKLE} one-row transactions a second: median", "latency_during", stored, "p50_ms", None, few)

    def more(line: Line, name: str, figure: str, target: float | None = None) -> Line:
        return Line(name, line.kind, stored, figure, target, line.job, line.runs)

    return [
        first,
        more(first, "the same stream during a resync", "during_rows_per_second"),
        more(first, "of its pace alone", "ratio", 0.75),
        more(first, "the same by CPU time", "cpu_ratio"),
        more(first, "the resync meanwhile", "snapshot_rows_per_second"),
        more(first, "share of the time in which nothing was left to stream", "during_starved"),
        alone,
        more(alone, "99 of 100 below", "p99_ms"),
        more(alone, "during a resync: median", "during_p50_ms"),
        more(alone, "99 of 100 below", "during_p99_ms"),
        more(alone, "the resync meanwhile", "snapshot_rows_per_second"),
    ]
