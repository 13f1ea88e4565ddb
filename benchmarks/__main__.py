"""`scripts/bench`: runs every measurement several times, prints a table with the targets, writes JSON."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.workloads import Filler, Workload
from devstack import Stack

Figures = dict[str, float]
SLOW_SINK = 40_000_000
"""Bytes a second that the slow sink takes: about half of what one core makes."""
ROCKETMQ_MESSAGES = 8_000
RABBITMQ_MESSAGES = 60_000
SEVERAL = {"live": 7, "rows": 200_000}
"""Destinations that stream the same table at the same time, and how many of its rows each."""


@dataclass(slots=True)
class Line:
    """One line of the table: what is measured, on which workload, and what it should reach."""

    name: str
    kind: str
    workload: Workload
    figure: str
    target: float | None = None
    job: dict[str, Any] = field(default_factory=dict)
    runs: list[Figures] = field(default_factory=list)

    @property
    def value(self) -> float:
        """The median of the figure that counts."""
        return statistics.median(run[self.figure] for run in self.runs)

    @property
    def met(self) -> str:
        """Whether the target is reached; memory is to stay below its own."""
        if self.target is None:
            return ""
        good = self.value <= self.target if self.figure == "rss_mb" else self.value >= self.target
        return "yes" if good else "NO"


def lines(w: dict[str, Workload]) -> list[Line]:
    """All measurements; the figure is per CPU second where the target is, per second of the clock elsewhere."""
    cpu, clock = "rows_per_cpu_second", "rows_per_second"
    each, once = {"rows_per_message": 1}, {"kafka_sink": {"delivery": "exactly_once"}}
    spread = {"to_kafka": True, **each, "partitions": 8}
    return [
        Line("raw packets, read and counted", "packets", w["bulk"], cpu),
        Line("bulk, to JSON", "pipeline", w["bulk"], cpu, 250_000),
        Line("bulk with JSON column, to JSON", "pipeline", w["bulk_json"], cpu, 100_000),
        Line("binary JSON to text, small documents", "json", w["bulk_json"], cpu, 150_000),
        Line("one-row transactions, to JSON", "pipeline", w["singles"], cpu, 50_000),
        Line("bulk in compressed transactions, to JSON", "pipeline", w["bulk_zstd"], cpu),
        Line("bulk, to Debezium's format", "pipeline", w["bulk"], cpu, None, {"format": "debezium"}),
        Line("mysql-replication, bulk, decoded only", "reference", w["bulk"], cpu),
        Line("mysql-replication, one-row, decoded only", "reference", w["singles"], cpu),
        Line(
            "ready 9 kB messages into Kafka",
            "kafka",
            w["bulk"],
            clock,
            None,
            {"value_bytes": 9000, "rows_per_value": 34},
        ),
        Line(
            "ready 600-byte messages into Kafka",
            "kafka",
            w["bulk"],
            clock,
            None,
            {"value_bytes": 600, "rows_per_value": 1},
        ),
        Line("bulk into Kafka, a message a rows event", "pipeline", w["bulk"], clock, 150_000, {"to_kafka": True}),
        Line("bulk into Kafka, a message a row", "pipeline", w["bulk"], clock, 80_000, {"to_kafka": True, **each}),
        Line("the same over 8 partitions by key", "pipeline", w["bulk"], clock, 70_000, spread),
        Line("one-row transactions into Kafka", "pipeline", w["singles"], clock, 40_000, {"to_kafka": True}),
        Line("bulk into Kafka, exactly once", "pipeline", w["bulk"], clock, None, {"to_kafka": True, **once}),
        Line("one-row transactions, exactly once", "pipeline", w["singles"], clock, None, {"to_kafka": True, **once}),
        Line(
            "one-row messages into RabbitMQ, classic queue",
            "rabbitmq",
            w["bulk"],
            clock,
            15_000,
            {"queue_type": "classic"},
        ),
        Line("the same, quorum queue", "rabbitmq", w["bulk"], clock, 15_000, {"queue_type": "quorum"}),
        Line("one-row messages into RocketMQ, 16 groups", "rocketmq", w["bulk"], clock, None, {"groups": 16}),
        Line("the same, one group", "rocketmq", w["bulk"], clock, None, {"groups": 1}),
        Line("memory (MB), one transaction into Kafka", "pipeline", w["large"], "rss_mb", 150, {"to_kafka": True}),
        Line("seven destinations in one process", "several", w["bulk"], clock, None, {**SEVERAL, "dead": 0}),
        Line("the same beside three dead ones", "several", w["bulk"], clock, None, {**SEVERAL, "dead": 3}),
    ]


def large_lines(w: dict[str, Workload]) -> list[Line]:
    """Transactions that no memory holds, behind a sink that is slower than the source."""
    slow = {"sink_bytes_per_second": SLOW_SINK}
    made = []
    for key, what in (("huge", "10 million rows in one transaction"), ("wide", "1 GB in one statement")):
        memory = Line(f"memory (MB), {what}", "pipeline", w[key], "rss_mb", 150, slow)
        made += [memory, Line(what, "pipeline", w[key], "rows_per_second", None, slow, memory.runs)]
    return made


@dataclass(frozen=True, slots=True)
class Servers:
    """What runs for the measurements."""

    source: Any
    kafka: Any = None
    rabbitmq: Any = None
    rocketmq: Any = None


def run(line: Line, servers: Servers, sizes: dict[str, int]) -> None:
    """One run in a process of its own."""
    job = {"kind": line.kind, "source": servers.source.connection(), "topic": f"bench-{uuid.uuid4().hex[:8]}"}
    job |= line.workload.to_dict() | line.job | {"bytes": sizes[line.workload.file]}
    if line.kind == "kafka" or job.get("to_kafka"):
        job["kafka"] = servers.kafka.bootstrap_servers
    if line.kind == "rabbitmq":
        address = (servers.rabbitmq.host, servers.rabbitmq.port)
        job |= {"rabbitmq": address, "messages": RABBITMQ_MESSAGES, "value_bytes": 600}
    if line.kind == "rocketmq":
        servers.rocketmq.create_topic(job["topic"], 8, "FIFO")
        job |= {"rocketmq": servers.rocketmq.endpoints, "messages": ROCKETMQ_MESSAGES, "value_bytes": 600}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", json.dumps(job)], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"bench: '{line.name}' failed:\n{done.stderr[-3000:]}")
    line.runs.append(json.loads(done.stdout.splitlines()[-1]))


def table(measured: list[Line]) -> str:
    """Markdown, for docs/benchmarks.md and the eye."""
    out = ["| measurement | median | least..most | target | met |", "|---|---:|---:|---:|---|"]
    for line in measured:
        values = [r[line.figure] for r in line.runs]
        unit = {"rows_per_cpu_second": " rows/CPU s", "rows_per_second": " rows/s", "rss_mb": " MB"}[line.figure]
        target = f"{line.target:,.0f}" if line.target else ""
        span = f"{min(values):,.0f}..{max(values):,.0f}"
        out.append(f"| {line.name} | {line.value:,.0f}{unit} | {span} | {target} | {line.met} |")
    return "\n".join(out)


def main() -> int:
    """The command; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one run: does it work at all")
    parser.add_argument("--large", action="store_true", help="only the large transactions; minutes, and 15 GB of disk")
    parser.add_argument("--json", type=Path, default=Path(".cache/bench.json"), help="where the figures are written")
    options = parser.parse_args()
    scale, runs = (10, 1) if options.quick else (1, options.runs)
    measured = measure_large(runs, scale) if options.large else measure_all(runs, scale)
    text = table(measured)
    if not options.large:
        text += compared(measured)
    print(text)
    report = {
        "machine": f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}",
        "lines": [{"name": m.name, "figure": m.figure, "target": m.target, "runs": m.runs} for m in measured],
    }
    options.json.write_text(json.dumps(report, indent=1))
    return int(any(line.met == "NO" for line in measured))


def measure_all(runs: int, scale: int) -> list[Line]:
    """Every line of `lines`."""
    with Stack(lasting=True) as stack:
        server = stack.mysql(None, "--max-binlog-size=1073741824", "--binlog-expire-logs-seconds=0")
        kafka = stack.kafka()
        print("bench: filling the tables", flush=True)
        filler = Filler(server)
        w = {
            "bulk": filler.bulk("bulk", 600_000 // scale),
            "bulk_json": filler.bulk("bulk_json", 300_000 // scale, json=True),
            "singles": filler.singles("singles", 120_000 // scale),
            "bulk_zstd": filler.compressed("bulk_zstd", 300_000 // scale),
            "large": filler.one_transaction("large", 2_000_000 // scale),
        }
        filler.close()
        measured = lines(w)
        for line in measured:
            if line.kind == "several":
                line.job["rows"] //= scale
        run_all(measured, runs, Servers(server, kafka, stack.rabbitmq(), stack.rocketmq()))
    return measured


def measure_large(runs: int, scale: int) -> list[Line]:
    """Every line of `large_lines`; needs some 15 GB of disk."""
    options = ("--innodb-redo-log-capacity=2G", "--innodb-buffer-pool-size=1G", "--skip-innodb-doublewrite")
    with Stack(lasting=True) as stack:
        server = stack.mysql(None, "--max-binlog-size=1073741824", "--binlog-expire-logs-seconds=0", *options)
        print("bench: filling the tables", flush=True)
        filler = Filler(server)
        w = {
            "huge": filler.one_large_transaction("huge", 10_000_000 // scale),
            "wide": filler.one_statement("wide", 5_000_000 // scale),
        }
        filler.close()
        measured = large_lines(w)
        run_all(measured, runs, Servers(server))
    return measured


def run_all(measured: list[Line], runs: int, servers: Servers) -> None:
    """All lines in turn, several times, so that a slow moment of the machine does not hit one line alone."""
    sizes = {row[0]: int(row[1]) for row in servers.source.sql("SHOW BINARY LOGS")}
    for number in range(runs):
        for line in measured:
            if len(line.runs) > number:
                continue  # it shares the runs of the line before
            print(f"bench: run {number + 1} of {runs}: {line.name}", flush=True)
            run(line, servers, sizes)


def compared(measured: list[Line]) -> str:
    """How many times as fast as the reference reader."""
    reference = {line.workload.name: line.value for line in measured if line.kind == "reference"}
    text = ""
    for name in ("bulk", "singles"):  # the first of several
        ours = next(x.value for x in measured if x.kind == "pipeline" and x.workload.name == name)
        text += f"\n\n{name}: {ours / reference[name]:.1f} times mysql-replication, JSON included (target 5)"
    return text


if __name__ == "__main__":
    sys.exit(main())
