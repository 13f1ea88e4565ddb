"""Works out, once a table layout, what happens to the table's changes on their way out: see cutting."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.errors import NotUnderstood
from headrace.model import ABSENT, Column, Row, TableSchema
from headrace.pipeline.projection import KeyBytes, TablePlan
from headrace.pipeline.routing import Route, Routing
from headrace.ports.format import KeyedFormat, PerLayout, ValueFormat
from headrace.rules.columns import ColumnRules
from headrace.rules.masks import Mask
from headrace.rules.patterns import Pattern, compile_filter
from headrace.rules.predicates import Predicate, parse
from headrace.settings.destination import DestinationSettings

Mapped = Callable[[Any], Any]


class Planner:
    """The plans of one destination. A rule that does not fit a table's columns stops the destination when rows of the
    table come by: what it was meant to hide or to drop must not go out."""

    def __init__(self, settings: DestinationSettings, fmt: ValueFormat | KeyedFormat | None = None) -> None:
        self.routing = Routing(settings)
        self._format = fmt
        wanted = settings.filter
        self._include = ColumnRules.parse(wanted.include_columns)
        self._exclude = ColumnRules.parse(wanted.exclude_columns, "filter.exclude_columns")
        self._where = [(compile_filter(one.tables, "filter.where"), parse(one.rows)) for one in wanted.where]
        self._masks = [(compile_filter(one.tables, "filter.mask"), one.columns, one.rule) for one in wanted.mask]
        self._secret = "".join(one.salt.get_secret_value() for one in wanted.mask).encode()
        """Makes hashes of hidden keys, where there is one."""
        self.of = PerLayout(self.plan).of

    def plan(self, schema: TableSchema) -> TablePlan:
        """For one layout, made anew. Raises NotUnderstood."""
        try:
            route = self.routing.route(schema.schema, schema.table)
            published, project, masked = self._projection(schema)
            left_out = set(range(len(schema.columns))) - set(self._kept(schema))
            keys = _key_columns(schema, route)
            return TablePlan(
                route,
                schema,
                published,
                project=project,
                keeps=self._condition(schema),
                address=partial(self.routing.address, route),
                key_columns=keys,
                key_bytes=self._record_key(schema, route),
                canal_hash=self.routing.hash == "canal",
                database=schema.schema if self.routing.hashes_database else None,
                hidden_key=bool((masked | left_out) & set(keys)),
                secret=self._secret,
            )
        except ValueError as error:
            raise NotUnderstood(
                f"the configuration does not fit the table {schema.name}: {error}",
                remedy="mend [filter] or [route]; `headrace check` names every rule that does not fit",
            ) from error

    def _record_key(self, schema: TableSchema, route: Route) -> KeyBytes | None:
        """Where messages have a record's key of their own, that is what Kafka's partitioner would hash."""
        by_primary_key = route.key is None or route.key.kind == "primary_key"
        if isinstance(self._format, KeyedFormat) and schema.keys and by_primary_key:
            return self._format.record_key(schema)
        return None

    def _condition(self, schema: TableSchema) -> Callable[[Row], bool | None] | None:
        predicate: Predicate | None = next((one for tables, one in self._where if _names(tables, schema)), None)
        return predicate.bind(schema.columns) if predicate is not None else None

    def _projection(self, schema: TableSchema) -> tuple[TableSchema, Callable[[Row], Row] | None, set[int]]:
        """The published layout, what makes its rows, and which columns are masked."""
        kept = self._kept(schema)
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
        wanted = self._include.choose(schema.schema, schema.table)
        unwanted = self._exclude.choose(schema.schema, schema.table) or frozenset()
        for name in sorted((wanted or frozenset()) | unwanted):
            _place(schema, name)
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


def _names(tables: Sequence[Pattern], schema: TableSchema) -> bool:
    return any(pattern.fullmatch(schema.name) for pattern in tables)


def _key_columns(schema: TableSchema, route: Route) -> tuple[int, ...]:
    """The columns that tell which rows have to stay in order."""
    if route.key is not None and route.key.kind == "columns":
        return tuple(_place(schema, name) for name in route.key.columns)
    return schema.keys


def _place(schema: TableSchema, name: str) -> int:
    names = [column.name.lower() for column in schema.columns]
    if name.lower() in names:
        return names.index(name.lower())
    near = difflib.get_close_matches(name.lower(), names, 1)
    raise ValueError(f"it has no column {name}" + (f"; did you mean {near[0]}?" if near else ""))


def _projector(kept: Sequence[int], maps: dict[int, Mapped]) -> Callable[[Row], Row]:
    """A function generated for the layout; its source holds only numbers and identifiers made here."""
    constants: dict[str, Any] = {f"f{i}": _guarded(function) for i, function in maps.items()}
    cells = [f"f{i}(r[{i}])" if i in maps else f"r[{i}]" for i in kept]
    exec(
        compile(f"def project(r):\n    return ({''.join(f'{cell}, ' for cell in cells)})\n", "<row>", "exec"), constants
    )
    project: Callable[[Row], Row] = constants["project"]
    return project


def _guarded(function: Mapped) -> Mapped:
    return lambda value: value if value is None or value is ABSENT else function(value)
