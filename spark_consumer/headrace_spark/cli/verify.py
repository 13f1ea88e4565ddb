"""`headrace-spark verify`: compares indexes with their tables, and repairs differences."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from headrace_common.arguments import duration, positive
from headrace_common.printable import printable, printable_json
from headrace_documents.cli import CommandLine
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ConsumerError, SettingsError
from headrace_spark.cli.common import reported, required_source, spark_with_source
from headrace_spark.settings import Settings
from headrace_spark.verify.differences import DOCUMENT

if TYPE_CHECKING:
    from headrace_spark.verify.report import Report

_WILD = frozenset("*?,")


def add(line: CommandLine) -> None:
    command = line.add("verify", "compare indexes with their tables, while the consumer runs", _run)
    command.add_argument(
        "--index", action="append", metavar="NAME", help="an index, as searches name it; default: all [[index]]"
    )
    command.add_argument("--sample", type=positive, default=0, metavar="N", help="compare about N rows of each table")
    command.add_argument("--repair", action="store_true", help="write what is missing or different, delete the rest")
    command.add_argument("--limit", type=positive, default=100, metavar="N", help="most differences shown; default 100")
    command.add_argument(
        "--settle", type=duration, default=5.0, metavar="TIME", help="when to check again what differs; default 5s"
    )
    command.add_argument(
        "--wait", type=duration, default=60.0, metavar="TIME", help="how long to wait for the consumer; default 1m"
    )
    command.add_argument("--json", action="store_true", help="print one object for each index")


def _run(settings: Settings, options: argparse.Namespace) -> int:
    try:
        return _verify(settings, options)
    except ConsumerError as error:
        raise _NotComparedError(str(error)) from None


class _NotComparedError(ConsumerError):
    """The differences are unknown: that is neither 0 nor 1."""

    exit_code = 2


def _verify(settings: Settings, options: argparse.Namespace) -> int:
    from headrace_spark.verify.rechecks import Settle
    from headrace_spark.verify.verify import Verify

    source, names = required_source(settings, options.config), _names(settings, options)
    equal = True
    with (
        reported(settings, "Nothing of what was repaired is lost: begin again"),
        Cluster(settings.elasticsearch) as cluster,
        spark_with_source(settings) as spark,
    ):
        settle = Settle(options.settle, options.wait, options.repair)
        verify = Verify(settings, source, spark, cluster, settle, sample=options.sample)
        for name in names or verify.declared():
            report = verify.run(name)
            equal = equal and report.equal
            _print(report, options)
    return 0 if equal else 1


def _names(settings: Settings, options: argparse.Namespace) -> list[str]:
    """Returns the indexes that the command names; none for all."""
    names = [name.lower() for name in options.index or ()]
    if strange := [name for name in names if not _WILD.isdisjoint(name)]:
        raise SettingsError([f"--index {strange[0]}: one name without wildcards; give --index again for another"])
    if not names and not settings.index:
        raise SettingsError([f"{options.config} has no [[index]]: say with --index which to compare"])
    return names


def _print(report: Report, options: argparse.Namespace) -> None:
    page = report.page()
    page["differences"] = page["differences"][: options.limit]
    if options.json:
        print(printable_json(page), flush=True)
        return
    for line in report.lines():
        print(printable(line))
    for one in page["differences"]:
        fields = f": {', '.join(one['fields'])}" if one["fields"] else ""
        of = "" if one["of"] == DOCUMENT else f"{one['of']} "
        print(printable(f"  {one['kind']} {of}{one['id']}{fields}"), flush=True)
