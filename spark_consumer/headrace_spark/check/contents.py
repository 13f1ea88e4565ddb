"""What the messages lead to: the tables of each index, and possible dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace_documents.cli import Findings
from headrace_documents.elastic.mappings import merged
from headrace_documents.errors import MessageError
from headrace_documents.indexes.plans import Indexes
from headrace_documents.indexes.projection import UnfitTable
from headrace_documents.indexes.settings import PLACEHOLDER, IndexSettings
from headrace_documents.indexes.types import Property
from headrace_documents.joins.tree import JoinTrees
from headrace_documents.messages import actions
from headrace_spark.check.sample import Sample, Table
from headrace_spark.settings import Settings

_SHOWN = 10


@dataclass
class Wanted:
    """An index that configuration and messages lead to. `settings` is None if no [[index]] declares it."""

    settings: IndexSettings | None
    owner: tuple[str, ...] = ()
    properties: dict[str, Property] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)


def check_messages(findings: Findings, settings: Settings, sample: Sample) -> dict[str, Wanted]:
    """Checks the messages that were read; returns the indexes by name, also those that only the configuration names."""
    wanted: dict[str, Wanted] = {}
    for one in settings.index:
        if not PLACEHOLDER.search(one.name):
            wanted[one.name.lower()] = Wanted(one)
    if sample.formats:
        findings.ok("messages", ", ".join(f"{count} of {name}" for name, count in sample.formats.most_common()))
    if sample.unplaced:
        findings.warn(
            "messages",
            f"{sample.unplaced} have no _pos: the order of changes rests on the seconds of their commits",
            "publish with headrace where that matters; see docs/spark.md#formats",
        )
    for text, (count, where) in list(sample.problems.items())[:_SHOWN]:
        findings.warn("messages", f"{count} would become dead letters: {text} (first: {where})")
    tombstones = settings.elasticsearch.deletes == "tombstone"
    indexes = Indexes(settings.index, tombstones=tombstones)
    trees = JoinTrees(settings.index, tombstones=tombstones)
    nobody = []
    for table in sample.tables.values():
        try:
            if not _check_table(findings, settings, indexes, trees, table, wanted):
                nobody.append(table.full)
        except UnfitTable as error:
            findings.wrong(f"table {table.full}", str(error), "correct [[index]]: nothing is written before that")
        except MessageError as error:
            findings.warn(f"table {table.full}", f"its rows become dead letters: {error}", _remedy(str(error)))
    if nobody:
        findings.warn(
            "messages",
            f"no [[index]] has {_names(nobody)}: their rows are passed over",
            "add them to the `tables` of an [[index]], if they are wanted",
        )
    return wanted


def _check_table(
    findings: Findings,
    settings: Settings,
    indexes: Indexes,
    trees: JoinTrees,
    table: Table,
    wanted: dict[str, Wanted],
) -> bool:
    """Returns whether any index takes the table. Raises UnfitTable and MessageError."""
    about, message = f"table {table.full}", table.rows
    if message is None:
        return True
    plans = indexes.plans(message)
    targets: list[str] = []
    for plan in plans:
        known = wanted.setdefault(plan.target, Wanted(plan.settings))
        known.owner = plan.owner
        known.properties |= {**plan.properties, **plan.settings.mappings.get("properties", {})}
        known.tables.append(table.full)
        targets.append(plan.target)
        plan.actions(message)
    members = trees.plans(message)
    for member in members:
        tree = member.tree
        known = wanted.setdefault(tree.target, Wanted(tree.settings))
        own = tree.settings.mappings.get("properties", {})
        known.properties = merged(merged(own, known.properties), member.properties)
        known.tables.append(table.full)
        targets.append(tree.target)
        list(member.changes(message))
    if not plans and not members:
        if not settings.takes_others:
            return False
        first = actions(message, settings.elasticsearch.rules())[0]
        known = wanted.setdefault(first.target, Wanted(None))
        known.owner = first.owner
        known.tables.append(table.full)
        targets.append(first.target)
    if table.partial:
        findings.warn(
            about,
            f"{table.partial} of its rows lack columns and become dead letters",
            "set binlog_row_image = FULL at the source",
        )
    key = f"primary key {', '.join(table.keys)}" if table.keys else "no primary key"
    findings.ok(about, f"{key}; goes into {', '.join(targets)}")
    return True


def _remedy(text: str) -> str:
    if "no primary key" in text:
        return "give the table a primary key, or an [[index]] with `id`"
    return "set binlog_row_image = FULL at the source" if "binlog_row_image" in text else ""


def _names(names: Iterable[Any]) -> str:
    names = sorted(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
