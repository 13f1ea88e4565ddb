"""`scripts/bench`: W1 and W2L as a race against mysql-replication, and by stage; more by its options."""

from __future__ import annotations

import argparse
import sys

from benchmarks import commits, fleet, peers, report, stages
from benchmarks.compare import check_out, compare
from benchmarks.daemon import ROOT
from benchmarks.level import level
from benchmarks.lines import Line, Lines, Servers, run_all
from benchmarks.options import parse
from benchmarks.race import entries, race, servers
from benchmarks.report import Table
from benchmarks.snapshots import measure_snapshot
from benchmarks.workloads import W1_ROWS, Filler, Workload
from devstack import Stack

SLOW_SINK = 40_000_000
"""Bytes per second of the slow sink: about half of what one core produces."""
_OLD_BYTES = 1_000_000_000
FIGURES, PAGE = ROOT / "docs" / "figures.json", ROOT / "docs" / "benchmarks.md"
_SECONDS = 30.0
"""Seconds for which steady work is measured."""


def main() -> int:
    """Runs the command; returns 1 if a target is missed."""
    options = parse(sys.argv[1:])
    if options.show is not None:
        print(report.show(options.show))
        return 0
    if options.quick:
        options.scale, options.runs = options.scale * 20, 1
    sections = measure_daemon(options)
    if options.level:
        sections["level"] = level(options.rounds // options.scale, options.only)
    if options.brokers:
        sections["brokers"] = Lines(measure_brokers(options.runs, options.scale))
    if options.large:
        sections["large"] = Lines(measure_large(options.runs, options.scale))
    if options.snapshot:
        sections["snapshot"] = Lines(measure_snapshot(options.runs, options.rows // options.scale))
    if options.spark:
        from benchmarks.consumer import measure_consumer  # imports Spark

        sections["spark"] = Lines(measure_consumer(options.runs, options.scale))
    print("\n\n".join(one.markdown() for one in sections.values()))
    report.write(options.json, sections)
    if options.record:
        report.record(FIGURES, PAGE, options.json)
    return int(any(line.met == "NO" for one in sections.values() if isinstance(one, Lines) for line in one))


def measure_daemon(options: argparse.Namespace) -> dict[str, Table | Lines]:
    """Returns the requested measurements of the daemon as a process, all on the same servers."""
    runs, scale, made = options.runs, options.scale, dict[str, Table | Lines]()
    known = ("race", "compare", "peers", "commits", "latency", "idle", "many", "first_start")
    if not any(getattr(options, name) for name in known):
        return made
    seconds = _SECONDS if scale == 1 else 5.0
    other = check_out(options.compare) if options.compare else None  # or it fails before the servers are started
    with servers() as both:
        if options.race or other is not None:
            chosen = entries(both, scale, options.only)
            if options.race:
                made["race"] = raced = race(chosen, runs)
                if (split := stages.split(chosen, raced, runs)).rows:
                    made["stages"] = split
            if other is not None:
                made["ratios"], made["both commits"] = compare(chosen, other, options.compare, runs)
        if options.peers:
            made["peers"] = peers.measure(both, runs, scale, options.only)
        if options.commits:
            made["commits"] = commits.measure(both, runs, scale)
        if options.latency:
            made["latency"] = fleet.latency(both, runs, seconds)
        if options.idle:
            made["idle"] = fleet.idle(both, runs, seconds)
        if options.many:
            filler = Filler(both.mysql)
            made["many"] = fleet.many(both, filler.w1(W1_ROWS // scale, "many"), runs, seconds)
            filler.close()
        if options.first_start:
            made["first start"] = fleet.first_start(both, runs, _OLD_BYTES // scale)
    return made


def measure_brokers(runs: int, scale: int) -> list[Line]:
    """Measures the limit of sending to brokers other than Kafka."""
    clock, messages = "rows_per_second", Workload("messages", "", 0)
    made = [
        Line(f"one-row messages into RabbitMQ, {kind} queue", "rabbitmq", messages, clock, 15_000, {"queue_type": kind})
        for kind in ("classic", "quorum")
    ]
    made += [
        Line(f"one-row messages into RocketMQ, {many}", "rocketmq", messages, clock, None, {"groups": groups})
        for many, groups in (("16 groups", 16), ("one group", 1))
    ]
    with Stack(lasting=True) as stack:
        run_all(made, runs, Servers(rabbitmq=stack.rabbitmq(), rocketmq=stack.rocketmq(), scale=scale))
    return made


def large_lines(w: dict[str, Workload]) -> list[Line]:
    """Returns the lines for transactions that do not fit into memory, with a sink that is slower than the source."""
    slow = {"sink_bytes_per_second": SLOW_SINK}
    made = []
    for key, what in (("huge", "10 million rows in one transaction"), ("wide", "1 GB in one statement")):
        memory = Line(f"memory (MB), {what}", "pipeline", w[key], "rss_mb", 150, slow)
        made += [memory, Line(what, "pipeline", w[key], "rows_per_second", None, slow, memory.runs)]
    into_kafka = {"to_kafka": True}
    made.append(Line("memory (MB), 2 million rows, into Kafka", "pipeline", w["large"], "rss_mb", 150, into_kafka))
    return made


def measure_large(runs: int, scale: int) -> list[Line]:
    """Measures every line of `large_lines`; needs about 15 GB of disk."""
    options = ("--innodb-redo-log-capacity=2G", "--innodb-buffer-pool-size=1G", "--skip-innodb-doublewrite")
    with Stack(lasting=True) as stack:
        server = stack.mysql(None, "--max-binlog-size=1073741824", "--binlog-expire-logs-seconds=0", *options)
        print("bench: filling the tables", flush=True)
        filler = Filler(server)
        w = {
            "large": filler.one_transaction("large", 2_000_000 // scale),
            "huge": filler.one_large_transaction("huge", 10_000_000 // scale),
            "wide": filler.one_statement("wide", 5_000_000 // scale),
        }
        filler.close()
        measured = large_lines(w)
        run_all(measured, runs, Servers(server, stack.kafka()))
    return measured


if __name__ == "__main__":
    sys.exit(main())
