"""`scripts/bench`: runs every measurement several times, prints a table with the targets, writes JSON."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path

from benchmarks.consumer import measure_consumer
from benchmarks.lines import Line, Servers, run_all, table
from benchmarks.snapshots import ROWS, measure_snapshot
from benchmarks.workloads import Filler, Workload
from devstack import Stack

SLOW_SINK = 40_000_000
"""Bytes a second that the slow sink takes: about half of what one core makes."""
SEVERAL = {"live": 7, "rows": 200_000}
"""Destinations that stream the same table at the same time, and how many of its rows each."""


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


def main() -> int:
    """The command; returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each measurement (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, one run: does it work at all")
    parser.add_argument("--large", action="store_true", help="only the large transactions; minutes, and 15 GB of disk")
    parser.add_argument(
        "--snapshot", action="store_true", help="only the reading of tables, and what it costs the stream"
    )
    parser.add_argument("--spark", action="store_true", help="only the Spark consumer, from Kafka into Elasticsearch")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the table that is read (default %(default)s)")
    parser.add_argument("--json", type=Path, default=Path(".cache/bench.json"), help="where the figures are written")
    options = parser.parse_args()
    scale, runs = (10, 1) if options.quick else (1, options.runs)
    measured, text = [], ""
    if options.spark:
        measured = measure_consumer(runs, scale)
    elif options.large:
        measured = measure_large(runs, scale)
    elif not options.snapshot:
        measured = measure_all(runs, scale)
        text = compared(measured)
    if not (options.large or options.spark):
        measured += measure_snapshot(runs, options.rows // scale)
    text = table(measured) + text
    print(text)
    report = {
        "machine": f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}",
        "lines": [m.to_dict() for m in measured],
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
