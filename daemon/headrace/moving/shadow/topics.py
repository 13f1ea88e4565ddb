"""The topics of two systems for a destination's changes, and the readers and rules for their messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.errors import ConfigError
from headrace.model import TableSchema
from headrace.moving.shadow import canal_rules, debezium_rules
from headrace.moving.shadow.changes import Reader, debezium_changes
from headrace.moving.shadow.comparison import Alone, Explain
from headrace.pipeline.projection import Projections
from headrace.settings.destination import DestinationSettings


def rules_of(chosen: DestinationSettings) -> tuple[Reader, Explain, Alone]:
    """Returns the reader of messages of the destination's format, and the rules for differences. Raises ConfigError."""
    match chosen.message.format:
        case "canal":
            message: Any = chosen.message
            rules = canal_rules.CanalRules(message.binary_text, enum_index=message.enum_index)
            return rules.read, rules.explain, rules.alone
        case "debezium" if not chosen.message.debezium.unwrap:  # type: ignore[attr-defined]
            return debezium_changes, debezium_rules.explain, debezium_rules.alone
    raise ConfigError([f"{chosen.name}: messages of format {chosen.message.format} can't be compared with others"])


def topics_of(
    chosen: DestinationSettings, projections: Projections, tables: Iterable[TableSchema]
) -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    """Returns the topics of both systems, (old, ours), for captured tables and the format's own messages; and the keys
    of these tables, as a Reader needs them."""
    tables = [*tables]
    topics = {projections.route(one.schema, one.table).topic for one in tables} | chosen.message.capabilities.topics
    topics.add(chosen.route.topic)
    keys_of = {one.name: [one.columns[i].name for i in one.keys] for one in tables}
    return [(topic.removeprefix(chosen.route.topic_prefix), topic) for topic in sorted(topics)], keys_of
