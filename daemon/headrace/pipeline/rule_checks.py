"""Checks a destination's rules against the existing tables: rules that match no table, or not its columns."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.errors import HeadraceError
from headrace.model import TableSchema
from headrace.pipeline.projection import Projections
from headrace.ports.finding import Finding, failed, ok, warning
from headrace.ports.format import KeyedFormat, ValueFormat
from headrace.rules.columns import parse_columns
from headrace.rules.keys import parse_keys
from headrace.rules.patterns import compile_filter
from headrace.rules.topics import TopicRules, parse_partitions
from headrace.settings.destination import DestinationSettings

Tables = Mapping[tuple[str, str], TableSchema]


def check_rules(settings: DestinationSettings, fmt: ValueFormat | KeyedFormat, tables: Tables) -> list[Finding]:
    """Checks the rules against `tables`: all of the source, by schema and table. A rule that matches no table is a
    warning, because it may match a later one; a rule that does not fit an existing table would stop the destination."""
    projections = Projections(settings, fmt)
    captured = {name: schema for name, schema in tables.items() if projections.captures(*name)}
    found = _misfits(projections, captured)
    found += _idle_filters(settings, tables, captured)
    found += _idle_routes(settings, projections, captured)
    if not captured:
        found.append(warning("filter", "no table of the source is published now", _why_nothing(settings)))
    if not found:
        count = f"{len(captured)} tables are" if len(captured) > 1 else "1 table is"
        found.append(ok("rules", f"every rule fits; {count} published"))
    return found


def _misfits(projections: Projections, captured: Tables) -> list[Finding]:
    found = []
    for name, schema in sorted(captured.items()):
        try:
            projections.project(schema)
            projections.address(projections.route(*name), 0)
        except HeadraceError as error:
            found.append(failed("rules", error))
    return found


def _idle_filters(settings: DestinationSettings, tables: Tables, captured: Tables) -> list[Finding]:
    wanted = settings.filter
    found = _unused("filter.include", wanted.include, tables) + _unused("filter.exclude", wanted.exclude, tables)
    for number, where in enumerate(wanted.where):
        found += _unused(f"filter.where[{number}].tables", where.tables, captured)
    for number, mask in enumerate(wanted.mask):
        found += _unused(f"filter.mask[{number}].tables", mask.tables, captured)
        for name in mask.columns:
            if not _has_column(mask.tables, name, captured):
                found.append(warning(f"filter.mask[{number}].columns", f"no table that it names has a column {name}"))
    for key in ("include_columns", "exclude_columns"):
        rules = parse_columns(getattr(wanted, key))
        used = {rule.rule for name in captured if (rule := rules.first(".".join(name))) is not None}
        found += [_idle(f"filter.{key}", rule) for rule in rules.rules if rule not in used]
    return found


def _idle_routes(settings: DestinationSettings, projections: Projections, captured: Tables) -> list[Finding]:
    route = settings.route
    chosen = [projections.route(*name) for name in captured]
    topics = TopicRules.parse(route.dynamic_topic, names=settings.sink.capabilities.topic_names).rules
    used = {one.topic_rule for one in chosen}
    found = [_idle("route.dynamic_topic", rule) for rule in topics if rule not in used]
    used = {one.key.rule for one in chosen if one.key is not None}
    keys = parse_keys(route.partition_hash).rules
    found += [_idle("route.partition_hash", rule) for rule in keys if rule not in used]
    counts = parse_partitions(route.dynamic_topic_partitions)
    named = {one.topic.removeprefix(route.topic_prefix) for one in chosen}
    used = {count.rule for topic in named if (count := counts.first(topic)) is not None}
    return found + [_idle("route.dynamic_topic_partitions", rule) for rule in counts.rules if rule not in used]


def _unused(key: str, text: str, tables: Tables) -> list[Finding]:
    names = [".".join(name) for name in tables]
    return [_idle(key, one.pattern) for one in compile_filter(text) if not any(map(one.fullmatch, names))]


def _has_column(text: str, column: str, captured: Tables) -> bool:
    patterns = compile_filter(text)
    return any(
        any(one.name.lower() == column.lower() for one in schema.columns)
        for name, schema in captured.items()
        if any(pattern.fullmatch(".".join(name)) for pattern in patterns)
    )


def _why_nothing(settings: DestinationSettings) -> str:
    if "\\\\" in settings.filter.include:
        return r"filter.include has \\ in it: in TOML a backslash is doubled in \"...\", and single in '...'"
    return "check [filter] include and exclude"


def _idle(key: str, rule: str) -> Finding:
    return warning(key, f"the rule {rule} decides about no table that there is now")
