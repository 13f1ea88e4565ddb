"""The options of `scripts/bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = "W1 and W2L as a race against mysql-replication, and by stage; more by its options."
SNAPSHOT_ROWS = 1_000_000
ROUNDS = 100_000


def parse(words: list[str]) -> argparse.Namespace:
    """Parses the command line. Without a measurement it is the race."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=DESCRIPTION)
    add = parser.add_argument
    what = [
        add("--all", action="store_true", help="race, latency, idle, many, first start: what the docs begin with"),
        add("--race", action="store_true", help="W1 and W2L in each way, and by stage (the default)"),
        add("--compare", metavar="REF", help="W1 and W2L with this commit and as it is here, in alternating pairs"),
        add("--latency", action="store_true", help="from commit to Kafka, at a steady rate"),
        add("--idle", action="store_true", help="destinations that have nothing to do"),
        add("--many", action="store_true", help="destinations that all catch up"),
        add("--first-start", action="store_true", help="at an old position, 1 GB before the end"),
        add("--peers", action="store_true", help="other programs over W1 and W2L; built by go, cargo and Java"),
        add("--commits", action="store_true", help="how long a commit takes that waits for headrace"),
        add("--brokers", action="store_true", help="ready messages into RabbitMQ and RocketMQ"),
        add("--large", action="store_true", help="transactions that no memory holds; minutes, and 15 GB of disk"),
        add("--snapshot", action="store_true", help="the reading of tables, and what it costs the stream"),
        add("--level", action="store_true", help="memory over many tables and statements; an hour"),
        add("--spark", action="store_true", help="the Spark consumer, from Kafka into Elasticsearch"),
        add("--show", type=Path, metavar="FILE", help="prints the tables of such a file of figures"),
    ]
    add("--runs", type=int, help="runs of each measurement, or pairs (default 3, of pairs 5)")
    add("--scale", type=int, default=1, metavar="N", help="an Nth of the rows")
    add("--quick", action="store_true", help="a 20th of the rows, one run: does it work at all")
    add(
        "--only",
        default="",
        metavar="TEXT",
        help="of race, peers, pairs, --level: lines whose names have it: 'W2L'",
    )
    add("--rows", type=int, default=SNAPSHOT_ROWS, help="rows of the table that --snapshot reads (default %(default)s)")
    add("--rounds", type=int, default=ROUNDS, help="of each of --level (default %(default)s)")
    add("--json", type=Path, default=Path(".cache/bench.json"), help="where the figures go (default %(default)s)")
    add("--record", action="store_true", help="takes the figures over into docs/figures.json and docs/benchmarks.md")
    options = parser.parse_args(words)
    if options.record and (options.quick or options.scale > 1 or options.only or options.compare):
        parser.error("--record takes whole measurements of this commit: without --quick, --scale, --only, --compare")
    if not any(getattr(options, one.dest) for one in what):
        options.race = True
    if options.all:
        options.race = options.latency = options.idle = options.many = options.first_start = True
    options.runs = options.runs or (5 if options.compare else 3)
    return options
