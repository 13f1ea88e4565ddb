"""`headrace-spark rebuild`: fills an index again from the tables."""

from __future__ import annotations

import argparse

from headrace_common.arguments import duration
from headrace_documents.cli import CommandLine
from headrace_documents.elastic.cluster import Cluster
from headrace_spark.cli.common import reported, required_source, spark_with_source
from headrace_spark.settings import Settings


def add(line: CommandLine) -> None:
    command = line.add("rebuild", "refill an index from the tables, while the consumer runs", _run)
    command.add_argument("--index", required=True, metavar="NAME", help="the index, as searches name it")
    command.add_argument("--resume", action="store_true", help="go on with a rebuild that was ended before its end")
    command.add_argument("--abort", action="store_true", help="give a rebuild up; the new index is deleted")
    command.add_argument("--offline", action="store_true", help="the consumer does not run until the rebuild is done")
    command.add_argument("--keep-old", action="store_true", help="do not delete the index that had the name")
    command.add_argument("--accept-refused", action="store_true", help="go on without rows that do not fit")
    command.add_argument(
        "--wait", type=duration, default=600.0, metavar="TIME", help="how long to wait for the consumer; default 10m"
    )


def _run(settings: Settings, options: argparse.Namespace) -> int:
    name = options.index.lower()
    with reported(settings, "What was done stays: go on with --resume"), Cluster(settings.elasticsearch) as cluster:
        if options.abort:
            from headrace_spark.rebuild.rebuild import abort

            abort(settings, cluster, name)
        else:
            _rebuild(settings, cluster, name, options)
    return 0


def _rebuild(settings: Settings, cluster: Cluster, name: str, options: argparse.Namespace) -> None:
    from headrace_spark.rebuild.rebuild import Rebuild, Wishes

    source = required_source(settings, options.config)
    wishes = Wishes(options.resume, options.offline, options.keep_old, options.accept_refused, options.wait)
    with spark_with_source(settings) as spark:
        Rebuild(settings, source, spark, cluster, name, wishes).run()
