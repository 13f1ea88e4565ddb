"""`headrace shadow`: compares what another system publishes with what a destination publishes at the same time."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from headrace.cli.common import add_config, aligned, destination, print_json
from headrace.cli.wiring import Wiring, new_format
from headrace.errors import ConfigError
from headrace.moving.shadow.comparison import Comparison, Finding
from headrace.moving.shadow.stretch import Stretch
from headrace.moving.shadow.topics import rules_of, topics_of
from headrace.pipeline.projection import Projections
from headrace.ports.replay import Replay
from headrace.settings.destination import DestinationSettings, Settings
from headrace_common.arguments import duration
from headrace_common.printable import printable_lines

DESCRIPTION = (
    "Compares the messages of another system with those of a destination that publishes the same, into topics with "
    "[route] topic_prefix: row by row, in order, over a stretch of live traffic. Nothing is changed. Exit status 0: "
    "all differences have a rule that explains them; 1: some have none, or nothing could be compared; 2: the "
    "configuration or the command is wrong. See docs/moving.md."
)
_PAGES = {"canal": "docs/canal-differences.md", "debezium": "docs/debezium-format.md"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = DESCRIPTION
    add_config(parser)
    parser.add_argument("name", metavar="DEST", help="the destination")
    parser.add_argument(
        "--for",
        dest="stretch",
        type=duration,
        default=60.0,
        metavar="DURATION",
        help="how long new changes are compared, after those that are there (default: 1m)",
    )
    parser.add_argument(
        "--settle",
        type=duration,
        default=10.0,
        metavar="DURATION",
        help="how long a system may take to publish the last changes; later they are missing (default: 10s)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(call=command)


async def command(settings: Settings, given: argparse.Namespace) -> int:
    """Compares; returns the exit status."""
    chosen = destination(settings, given.name)
    if not chosen.route.topic_prefix:
        raise ConfigError(
            [f"{chosen.name}: route.topic_prefix is empty, so the destination publishes into the old system's topics"]
        )
    reader, explain, alone = rules_of(chosen)
    comparison = Comparison(explain, alone)
    wiring = Wiring(settings, command=True)
    source, projections = wiring.inspection(chosen), Projections(chosen, new_format(chosen))
    now = await source.now_ms()
    tables = await source.tables(projections.captures)
    pairs, keys_of = topics_of(chosen, projections, tables.values())

    def open_topic(topic: str, since_ms: int) -> Replay:
        return wiring.replay(chosen, topic, since_ms)

    try:
        stretch = Stretch(pairs, open_topic, lambda message, ours: reader(message, keys_of, ours), comparison)
    except LookupError as error:
        raise ConfigError([f"{chosen.name}: {error.args[0]}"]) from error
    try:
        await stretch.follow(source.now_ms, given.stretch, given.settle)
    finally:
        await stretch.close()
    seconds = (await source.now_ms() - now) / 1000
    if given.json:
        print_json(_dict(chosen.name, pairs, comparison))
    else:
        _print(chosen, pairs, comparison, seconds)
    return 0 if comparison.counts["pairs"] and not comparison.unexplained else 1


# -- output -------------------------------------------------------------------------------------------------------


def _print(chosen: DestinationSettings, pairs: list[tuple[str, str]], found: Comparison, seconds: float) -> None:
    counts = found.counts
    topics = f"{len(pairs)} topic{'s' if len(pairs) > 1 else ''}"
    print(
        f"{chosen.name}: {counts['old']:,} changes of the old system and {counts['new']:,} of headrace in {topics}, "
        f"{seconds:.0f} s"
    )
    rows = [("compared", f"{counts['pairs']:,}, of which {counts['equal']:,} are equal in every field")]
    for name, text in (
        ("before", "of the old system from before headrace began"),
        ("after", "after the end, where one system is not there yet"),
        ("again", "that a system sent again"),
    ):
        if counts[name]:
            rows.append(("left out", f"{counts[name]:,} {text}"))
    for name, latencies in zip(("old system", "headrace"), found.latencies, strict=True):
        if latencies:
            middle, late = _percentile(latencies, 50), _percentile(latencies, 99)
            rows.append(("latency", f"{name}: half within {middle:,} ms of the commit, 99 % within {late:,} ms"))
    print(aligned(rows))
    explained = [one for one in found.findings if one.rule is not None]
    if explained:
        print(f"explained by {_PAGES[chosen.message.format]}:")
        print(aligned([(f"{one.count:,}", one.rule or "", one.table, one.what) for one in explained]))
    unexplained = [one for one in found.findings if one.rule is None]
    for one in unexplained:
        print(printable_lines(f"UNEXPLAINED: {one.count:,} of {one.table}: {one.what}; such as {one.example}"))
    if not counts["pairs"]:
        print("nothing could be compared: no change came from both systems")
    elif not unexplained:
        print("nothing is unexplained")


def _percentile(latencies: Counter[int], percent: int) -> int:
    wanted, seen = sum(latencies.values()) * percent / 100, 0
    for value in sorted(latencies):
        seen += latencies[value]
        if seen >= wanted:
            return value
    return 0


def _dict(name: str, pairs: list[tuple[str, str]], found: Comparison) -> dict[str, Any]:
    latency = {
        side: {f"p{percent}_ms": _percentile(values, percent) for percent in (50, 99)} if values else None
        for side, values in zip(("old", "headrace"), found.latencies, strict=True)
    }
    return {
        "destination": name,
        "topics": [{"old": old, "headrace": ours} for old, ours in pairs],
        "changes": dict(found.counts),
        "latency": latency,
        "differences": [_finding(one) for one in found.findings],
        "unexplained": found.unexplained,
    }


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "rule": one.rule,
        "table": one.table,
        "what": one.what,
        "count": one.count,
        "example": one.example,
    }
