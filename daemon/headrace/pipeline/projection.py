"""The compiled rules of one destination: which tables are captured, where their changes go, and which columns."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from headrace.errors import NotUnderstood
from headrace.model import Column, Operation, Row, RowsChange, TableSchema
from headrace.pipeline.table_projection import KeyBytes, Route, TableProjection
from headrace.ports.format import KeyedFormat, ValueFormat, per_schema
from headrace.rules.columns import parse_columns
from headrace.rules.hashes import canal_table_partition, kafka_partition
from headrace.rules.keys import parse_keys
from headrace.rules.masks import Mask
from headrace.rules.patterns import Pattern, compile_filter
from headrace.rules.predicate_parser import Node, parse_condition
from headrace.rules.predicate_sql import columns_of
from headrace.rules.predicates import bind, compared_columns, native_condition
from headrace.rules.topics import TopicRules, parse_partitions
from headrace.settings.destination import DestinationSettings

OWN_SCHEMA = "headrace"
"""The schema of headrace's own tables, which are never published, whatever the filter says."""
OWN_TABLES = frozenset({"headrace_parked_message", "headrace_parking_owner"})
"""Own tables in the schema that [parking] names. They are never published either."""
Mapped = Callable[[Any], Any]


class Projections:
    """The rules of [filter] and [route], and the projection of each table schema.

    A rule that does not fit a table's columns stops the destination at the first rows of the table: data that it was
    meant to hide or drop must not be published."""

    def __init__(self, settings: DestinationSettings, fmt: ValueFormat | KeyedFormat | None = None) -> None:
        self._format = fmt
        wanted = settings.filter
        self._tables = compile_filter(wanted.include, "filter.include")
        self._not_tables = compile_filter(wanted.exclude, "filter.exclude")
        self._default = route = settings.route
        self._topics = TopicRules.parse(
            route.dynamic_topic, names=settings.sink.capabilities.topic_names, prefix=route.topic_prefix
        )
        self._keys = parse_keys(route.partition_hash)
        self._counts = parse_partitions(route.dynamic_topic_partitions)
        self._address = settings.sink.capabilities.address
        counts = [route.partitions, *(one.partitions for _, one in self._counts.entries)]
        self.widest = max(counts) if route.partition_hash else 1
        """The largest number of partitions that a topic is spread over."""
        self.captures = lru_cache(maxsize=10_000)(self._captures)
        self.route = lru_cache(maxsize=10_000)(self._route)
        self._include = parse_columns(wanted.include_columns)
        self._exclude = parse_columns(wanted.exclude_columns, "filter.exclude_columns")
        self._where = [(compile_filter(one.tables, "filter.where"), parse_condition(one.rows)) for one in wanted.where]
        self._masks = [(compile_filter(one.tables, "filter.mask"), one.columns, one.rule) for one in wanted.mask]
        self._left_out = frozenset(Operation(one.upper()) for one in wanted.left_out)
        self._skips_unchanged = wanted.unchanged_updates == "skip"
        self._enum_index = settings.message.capabilities.enum_index
        self._secret = wanted.salts
        """Makes hashes of hidden keys, if configured."""
        self.of = per_schema(self.project)

    def project(self, schema: TableSchema) -> TableProjection:
        """Returns a new projection of one schema. Raises NotUnderstood."""
        try:
            route = self.route(schema.schema, schema.table)
            kept = self._kept(schema)
            published, project, masked = self._projection(schema, kept)
            if self._format is not None:
                self._format.check(published)
            left_out = set(range(len(schema.columns))) - set(kept)
            keys, condition = _key_columns(schema, route), self._where_of(schema)
            return TableProjection(
                route,
                schema,
                published,
                project=project,
                keeps=bind(condition, schema.columns) if condition is not None else None,
                address=partial(self.address, route),
                key_columns=keys,
                key_bytes=self._record_key(schema, route),
                canal_hash=self._default.hash == "canal",
                database=schema.schema if self._default.canal_hash_database else None,
                hidden_key=bool((masked | left_out) & set(keys)),
                secret=self._secret,
                condition=frozenset(columns_of(condition)) if condition is not None else frozenset(),
                kept=kept,
                masks=self._native_masks(schema, masked),
                native_condition=self._native_condition(schema, condition),
                read_columns=[*self._compared(schema, condition), *self._read_by_masks(schema, masked)],
                left_out=self._left_out,
                skips_unchanged=self._skips_unchanged,
            )
        except ValueError as error:
            raise NotUnderstood(
                f"the configuration does not fit the table {schema.name}: {error}",
                remedy="correct [filter], [route] or [message]; `headrace check` names every rule that does not fit",
            ) from error

    def _record_key(self, schema: TableSchema, route: Route) -> KeyBytes | None:
        """Returns what Kafka's partitioner would hash, if messages have a record key of their own."""
        by_primary_key = route.key is None or route.key.kind == "primary_key"
        if isinstance(self._format, KeyedFormat) and schema.keys and by_primary_key:
            return self._format.record_key(schema)
        return None

    def _compared(self, schema: TableSchema, condition: Node | None) -> list[int]:
        """Returns the columns whose values a condition reads."""
        return [_index_of(schema, name) for name in compared_columns(condition)] if condition is not None else []

    def _read_by_masks(self, schema: TableSchema, masked: Iterable[int]) -> list[int]:
        """Returns the masked columns whose values determine what is published."""
        masks = [(i, self._mask(schema, schema.columns[i])) for i in masked]
        return [i for i, mask in masks if mask is not None and mask.reads]

    def _native_masks(self, schema: TableSchema, masked: Iterable[int]) -> dict[int, tuple[Any, ...]]:
        masks = {i: self._mask(schema, schema.columns[i]) for i in masked}
        columns, by_number = schema.columns, self._enum_index
        return {i: mask.native(columns[i], enum_index=by_number) for i, mask in masks.items() if mask is not None}

    def _native_condition(self, schema: TableSchema, condition: Node | None) -> tuple[Any, ...] | None:
        columns, by_number = schema.columns, self._enum_index
        return native_condition(condition, columns, enum_index=by_number) if condition is not None else None

    def _where_of(self, schema: TableSchema) -> Node | None:
        return next((one for tables, one in self._where if _names(tables, schema)), None)

    def _projection(
        self, schema: TableSchema, kept: Sequence[int]
    ) -> tuple[TableSchema, Callable[[Row], Row] | None, set[int]]:
        """Returns the published table schema, the function that makes its rows, and the masked columns."""
        columns, maps = list(schema.columns), dict[int, Mapped]()
        for i, column in enumerate(schema.columns):
            mask = self._mask(schema, column)
            if mask is not None:
                columns[i], maps[i] = mask.bind(column, key=i in schema.keys)
        if len(kept) == len(columns) and not maps:
            return schema, None, set()
        published = replace(
            schema,
            columns=tuple(columns[i] for i in kept),
            keys=tuple(kept.index(i) for i in schema.keys),
        )
        return published, _projector(kept, maps), set(maps)

    def _kept(self, schema: TableSchema) -> list[int]:
        include, exclude = self._include.first(schema.name), self._exclude.first(schema.name)
        wanted = include.columns if include is not None else None
        unwanted = exclude.columns if exclude is not None else frozenset()
        for name in sorted((wanted or frozenset()) | unwanted):
            _index_of(schema, name)
        return [
            i
            for i, column in enumerate(schema.columns)
            if i in schema.keys
            or ((wanted is None or column.name.lower() in wanted) and column.name.lower() not in unwanted)
        ]

    def _mask(self, schema: TableSchema, column: Column) -> Mask | None:
        for tables, columns, mask in self._masks:
            if any(name.lower() == column.name.lower() for name in columns) and _names(tables, schema):
                return mask
        return None

    # -- where it goes ----------------------------------------------------------------------------------------------

    def _captures(self, schema: str, table: str) -> bool:
        """Returns whether rows of the table are published."""
        if schema == OWN_SCHEMA or table in OWN_TABLES:
            return False
        name = f"{schema}.{table}"
        if self._tables and not any(pattern.fullmatch(name) for pattern in self._tables):
            return False
        return not any(pattern.fullmatch(name) for pattern in self._not_tables)

    def _route(self, schema: str, table: str) -> Route:
        """Returns the route of a table; with "" that of what is about the whole schema, or about none."""
        topic, rule = self._topics.choose(schema, table) or (self._default.topic, "")
        count, name = self._counts.first(topic.removeprefix(self._default.topic_prefix)), f"{schema}.{table}"
        partitions = count.partitions if count is not None else self._default.partitions
        key = self._keys.first(name) if table and partitions > 1 else None
        partition = self._default.partition
        if key is not None and key.kind == "table":
            if self._default.hash == "canal":
                partition = canal_table_partition(table, partitions)
            else:
                partition = kafka_partition(name.encode(), partitions)
        return Route(schema, table, topic, rule, partition, partitions, key)

    def address(self, route: Route, partition: int) -> str:
        """Returns the topic that the sink receives, or the routing key that is made of it."""
        return self._address.render(topic=route.topic, schema=route.schema, table=route.table, partition=str(partition))

    def topic_of(self, schema: str, table: str) -> str:
        """Returns the address that the rows of a table go to."""
        route = self.route(schema, table)
        return self.address(route, route.partition)

    def shows(self, schema: TableSchema) -> Callable[[Row], bool] | None:
        """Returns a function that says whether a row is published; None if all rows of the table are. Raises
        NotUnderstood."""
        projection = self.of(schema)
        return projection.shows if projection.conditional else None

    def decides(self, schema: TableSchema) -> frozenset[str]:
        """Returns the columns, in lower case, that decide whether and where a row of the table is published. Raises
        NotUnderstood."""
        return self.of(schema).decides

    def published(self, change: RowsChange) -> Sequence[RowsChange]:
        """Returns the published parts of a change, if the operations of [filter] decide on them. Raises
        NotUnderstood."""
        projection = self.of(change.schema)
        if not projection.selective:
            return (change,)
        change.settle(projection.read_columns)
        return [part for _, part in projection.slice(change)]

    def statement_targets(self, schema: str, table: str) -> tuple[list[tuple[str, int]], bool]:
        """Returns address and partition of each copy of a statement; and whether rows of its topic go to several
        partitions, so that it must wait for them, and they for it."""
        route = self.route(schema, table)
        spreads = route.partitions > 1 and bool(self._keys.rules)
        everywhere = spreads and self._default.ddl_partition == "all"
        partitions = range(route.partitions) if everywhere else (route.partition,)
        return [(self.address(route, partition), partition) for partition in partitions], spreads


def _names(tables: Sequence[Pattern], schema: TableSchema) -> bool:
    return any(pattern.fullmatch(schema.name) for pattern in tables)


def _key_columns(schema: TableSchema, route: Route) -> tuple[int, ...]:
    """Returns the columns that determine which rows must stay in order."""
    if route.key is not None and route.key.kind == "columns":
        return tuple(_index_of(schema, name) for name in route.key.columns)
    return schema.keys


def _index_of(schema: TableSchema, name: str) -> int:
    names = [column.name.lower() for column in schema.columns]
    if name.lower() in names:
        return names.index(name.lower())
    near = difflib.get_close_matches(name.lower(), names, 1)
    raise ValueError(f"it has no column {name}" + (f"; did you mean {near[0]}?" if near else ""))


def _projector(kept: Sequence[int], maps: dict[int, Mapped]) -> Callable[[Row], Row]:
    """Returns a function generated for the table schema; its source has only numbers and identifiers made here."""
    constants: dict[str, Any] = {f"f{i}": function for i, function in maps.items()}
    cells = [f"f{i}(r[{i}])" if i in maps else f"r[{i}]" for i in kept]
    exec(
        compile(f"def project(r):\n    return ({''.join(f'{cell}, ' for cell in cells)})\n", "<row>", "exec"), constants
    )
    project: Callable[[Row], Row] = constants["project"]
    return project
