"""Which tables are captured, and to which topic, key and partitions each one's changes go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headrace.rules.hashes import canal_table_partition, kafka_partition
from headrace.rules.keys import KeyRule, KeyRules
from headrace.rules.topics import TopicPartitions, TopicRules
from headrace.settings.destination import DestinationSettings

OWN_SCHEMA = "headrace"
"""headrace's own tables live here and are never published, whatever the filter says."""
OWN_TABLES = frozenset({"headrace_failed_message", "headrace_failed_owner"})
"""Nor are these, which live where [failed] says."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where the changes of one table go, and which rules said so ("" for a default)."""

    schema: str
    table: str
    topic: str
    topic_rule: str
    partition: int
    """Of all its messages, unless `key` spreads them."""
    partitions: int
    """Of the topic, as far as [route] spreads over them."""
    key: KeyRule | None
    """What decides on the partition; None: `partition` does."""

    @property
    def spreads(self) -> bool:
        """Whether rows of the table go to several partitions."""
        return self.key is not None and self.key.kind != "table" and self.partitions > 1


class Routing:
    """The rules of one destination, compiled once."""

    def __init__(self, settings: DestinationSettings) -> None:
        self._include = settings.filter.include_patterns
        self._exclude = settings.filter.exclude_patterns
        route = settings.route
        self._topic, self._partition, self._partitions = route.topic, route.partition, route.partitions
        self._topics = TopicRules.parse(route.dynamic_topic, names=settings.sink.capabilities.topic_names)
        self._keys = KeyRules.parse(route.partition_hash)
        self._counts = TopicPartitions.parse(route.dynamic_topic_partitions)
        self.hash, self.hashes_database = route.hash, route.canal_hash_database
        self._ddl_everywhere = route.ddl_partition == "all"
        self._address = settings.sink.capabilities.address
        self.widest = max(self._partitions, self._counts.most) if route.partition_hash else 1
        """Over how many partitions a topic is spread at most."""
        self.captures = lru_cache(maxsize=10_000)(self._captures)
        self.route = lru_cache(maxsize=10_000)(self._route)

    def _captures(self, schema: str, table: str) -> bool:
        """Whether rows of the table are published."""
        if schema == OWN_SCHEMA or table in OWN_TABLES:
            return False
        name = f"{schema}.{table}"
        if self._include and not any(pattern.fullmatch(name) for pattern in self._include):
            return False
        return not any(pattern.fullmatch(name) for pattern in self._exclude)

    def _route(self, schema: str, table: str) -> Route:
        """Of a table, or with "" of what is about the whole schema, or about none."""
        choice = self._topics.choose(schema, table) if schema else None
        topic, rule = (choice.topic, choice.rule) if choice is not None else (self._topic, "")
        partitions = self._counts.of(topic) or self._partitions
        key = self._keys.choose(schema, table) if table and partitions > 1 else None
        partition = self._partition
        if key is not None and key.kind == "table":
            name = f"{schema}.{table}"
            if self.hash == "canal":
                partition = canal_table_partition(table, partitions)
            else:
                partition = kafka_partition(name.encode(), partitions)
        return Route(schema, table, topic, rule, partition, partitions, key)

    def address(self, route: Route, partition: int) -> str:
        """What a sink takes for a topic: the topic, or the routing key that is made of it."""
        return self._address.render(topic=route.topic, schema=route.schema, table=route.table, partition=str(partition))

    def statement_places(self, schema: str, table: str) -> tuple[list[tuple[str, int]], bool]:
        """Address and partition of each copy of a statement; and whether rows of its topic go to several partitions,
        so that it has to wait for them, and they for it."""
        route = self.route(schema, table)
        spreads = route.partitions > 1 and bool(self._keys.rules)
        everywhere = spreads and self._ddl_everywhere
        partitions = range(route.partitions) if everywhere else (route.partition,)
        return [(self.address(route, partition), partition) for partition in partitions], spreads
