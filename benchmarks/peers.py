"""`scripts/bench --peers`: other programs over the same binlogs, built from their own packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import others, tables, yardstick
from benchmarks.race import KAFKA, NULL, PYTHON, Servers, entries, reported, run, topic
from benchmarks.report import Table
from benchmarks.workloads import W1_ROWS, W2L_ROWS, Filler, Workload
from devstack.cache import Cache
from devstack.errors import Unavailable
from devstack.progress import say

_SOURCES = Path(__file__).parent
_LIMIT = 900.0
_WAYS = (KAFKA, PYTHON, NULL)
_STREAMING = {
    **others.TUNED,
    "snapshot.mode": "recovery",  # tables as they are now; rows from the given position on
    "tombstones.on.delete": "false",  # a record a row
    "event.processing.failure.handling.mode": "fail",
}


@dataclass(frozen=True, slots=True)
class Peer:
    """A program of another project. `run` returns its figures: rows_per_second and cpu_us."""

    name: str
    run: Callable[[Servers, Workload], dict[str, float]]


def measure(servers: Servers, runs: int, scale: int, only: str) -> Table:
    """Runs headrace, mysql-replication and the peers in turn. A peer that can't be built is named below the table."""
    fills = {"W1": (Filler.w1, W1_ROWS, _WAYS), "W2L": (Filler.w2l, W2L_ROWS, _WAYS)}
    chosen, table, missing = entries(servers, scale, only, fills), Table("workload"), dict[str, str]()
    workloads = {entry.workload.name: entry for entry in chosen}
    for number in range(runs):
        for workload, of in workloads.items():
            for entry in (one for one in chosen if one.workload.name == workload):
                reported(number, runs, entry.name)
                table.add(entry.name, run(entry))
            reported(number, runs, of.yardstick)
            table.add(of.yardstick, yardstick.measure(of.servers.source, of.workload))
            for peer in _PEERS:
                if peer.name not in missing:
                    name = f"{workload.upper()}, {peer.name}"
                    reported(number, runs, name)
                    try:
                        table.add(name, peer.run(of.servers, of.workload))
                    except Unavailable as error:
                        missing[peer.name] = str(error)
    for name, figures in table.rows.items():
        base = table.median(workloads[name.partition(",")[0].lower()].yardstick, "rows_per_second")
        figures["times"] = [one / base for one in figures["rows_per_second"]]
    table.notes += [f"{name}: {why}" for name, why in missing.items()]
    return table


def _program(cache: Cache, name: str, tool: str, build: Callable[[Path], Sequence[str]]) -> Path:
    """Returns a program of this folder, built if it is not there yet. `build` returns the command that builds the
    sources into a folder, as `program`."""
    sources = sorted(path for path in (_SOURCES / name).rglob("*") if path.is_file())
    found = shutil.which(tool)
    if found is None:
        raise Unavailable(f"it is built by {tool}, which this machine does not have")

    def make(fresh: Path) -> None:
        say(f"building {name}, which takes a minute or two ...")
        work = fresh / "work"
        work.mkdir()
        own = {"GOPATH": str(work / "go"), "GOCACHE": str(work / "cache"), "GOFLAGS": "-modcacherw -buildvcs=false"}
        done = subprocess.run(
            [found, *build(fresh)],
            cwd=_SOURCES / name,
            env={**os.environ, **own, "CARGO_TARGET_DIR": str(work)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Unavailable(f"{tool} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        if (made := work / "release" / name).exists():
            shutil.copy(made, fresh / "program")
        shutil.rmtree(work)

    revision = zlib.crc32(b"".join(path.read_bytes() for path in sources))
    return cache.install(name, f"{name} {revision}", make) / "program"


def _run(program: Path, servers: Servers, workload: Workload, **more: Any) -> dict[str, float]:
    job = {**servers.source, "file": workload.file, "table": workload.table, "rows": workload.rows, **more}
    done = subprocess.run([program, json.dumps(job)], capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode:
        raise SystemExit(f"bench: {program.parent.name} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _go_mysql(servers: Servers, workload: Workload) -> dict[str, float]:
    program = _program(servers.cache, "go-mysql", "go", lambda into: ["build", "-o", str(into / "program"), "."])
    return _run(program, servers, workload)


def _rust_mysql(servers: Servers, workload: Workload) -> dict[str, float]:
    program = _program(servers.cache, "rust-mysql", "cargo", lambda _: ["build", "-q", "--release", "--locked"])
    with topic(servers) as name:
        return _run(program, servers, workload, kafka=servers.kafka.bootstrap_servers, topic=name)


def _debezium(servers: Servers, workload: Workload) -> dict[str, float]:
    properties = others.debezium_properties(servers.mysql, workload.table, _STREAMING)
    before = servers.mysql.sql(f"SHOW BINLOG EVENTS IN '{workload.file}' LIMIT 2")[1][5]
    offset = {"file": workload.file, "pos": 4, "gtids": before.replace("\\n", "")}
    job = {"command": others.debezium(servers.cache), "properties": properties, "rows": workload.rows}
    figures = tables.debezium({**job, "begin": json.dumps(offset)})
    return {"rows_per_second": figures["rows_per_second"], "cpu_us": 1e6 / figures["rows_per_cpu_second"]}


_PEERS = (
    Peer("go-mysql, decoding only", _go_mysql),
    Peer("the crate mysql and librdkafka, into Kafka", _rust_mysql),
    Peer(f"Debezium's engine {others.DEBEZIUM}, JSON without schemas, no Kafka", _debezium),
)
