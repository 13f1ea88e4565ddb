"""Turns rows into documents of the indexes that [[index]] declares: a plan for each index, table and set of types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace_documents.documents import (
    MAX_ID_BYTES,
    TOMBSTONE,
    Action,
    Rules,
    document_id,
    index_name,
    index_owner,
)
from headrace_documents.errors import MessageError
from headrace_documents.formats.changes import Row, Rows
from headrace_documents.indexes.projection import Projection, Template
from headrace_documents.indexes.settings import IndexSettings

_PLAIN = Rules()


class Identity:
    """Document id and routing of the rows of one table in one index."""

    def __init__(self, settings: IndexSettings, database: str, table: str, types: Mapping[str, str]) -> None:
        """Raises UnfitTable."""
        self._settings, self._table = settings, f"{database}.{table}"
        self._id = Template(settings.id, database, table, types, f"id of index {settings.name}")
        self._routing = Template(settings.routing, database, table, types, f"routing of index {settings.name}")
        self.columns = frozenset((*self._id.columns, *self._routing.columns))

    def of(self, keys: Sequence[str], row: Row) -> tuple[str, str]:
        """Returns id and routing. Raises MessageError."""
        routing = self._routing.of(row) if self._settings.routing else ""
        if not self._settings.id:
            if not keys:
                raise MessageError(f"table {self._table} has no primary key, and index {self._settings.name} no id")
            return document_id(keys, row, _PLAIN), routing
        name = self._id.of(row)
        if len(name.encode()) > MAX_ID_BYTES:
            raise MessageError(f"the document id is longer than {MAX_ID_BYTES} bytes")
        return name, routing


class IndexPlan:
    """How rows of one table become documents of one index. `properties` is the mapping of its fields, as far as
    known."""

    def __init__(
        self, settings: IndexSettings, database: str, table: str, types: Mapping[str, str], *, tombstones: bool
    ) -> None:
        """Raises UnfitTable, and MessageError if no index can have the name."""
        self.settings = settings
        self.target = index_name(settings.name, database, table)
        self.owner = index_owner(settings.name, database, table)
        self._gone = TOMBSTONE if tombstones else None
        self._identity = Identity(settings, database, table, types)
        self._projection = Projection(
            settings,
            settings.types(),
            types,
            place=(settings.name, ""),
            what=f"index {settings.name}",
            table=f"{database}.{table}",
            further=self._identity.columns,
        )
        self.properties = self._projection.properties
        self.table = f"{database}.{table}"
        if settings.table_field:
            self.properties = {**self.properties, settings.table_field: {"type": "keyword"}}

    def actions(self, message: Rows) -> list[Action]:
        """Returns the actions for documents. Raises MessageError, and then nothing of the message may be applied."""
        made: list[Action] = []
        identity, projection = self._identity.of, self._projection
        for i, (row, old) in enumerate(zip(message.rows, message.olds, strict=True)):
            version = message.version + i * message.step
            name, routing = identity(message.keys, row)
            if message.operation == "DELETE":
                made.append(Action(self.target, name, version, self._gone, i, self.owner, routing))
                continue
            if old is not None and (before := identity(message.keys, {**row, **old})) != (name, routing):
                made.append(Action(self.target, before[0], version, self._gone, i, self.owner, before[1]))
            body = self._gone if projection.is_deleted(row) else projection.fields(row, i)
            if self.settings.table_field and body is not None:
                body = {**body, self.settings.table_field: self.table}
            made.append(Action(self.target, name, version, body, i, self.owner, routing))
        return made


class Indexes:
    """The declared indexes without joins."""

    def __init__(self, settings: Sequence[IndexSettings], *, tombstones: bool = False) -> None:
        self._settings = [(one, [re.compile(text) for text in one.tables]) for one in settings if not one.join]
        self._tombstones = tombstones
        self._plans: dict[tuple[Any, ...], tuple[IndexPlan, ...]] = {}

    def plans(self, message: Rows) -> tuple[IndexPlan, ...]:
        """Returns the plans of the indexes that have the message's table. Raises UnfitTable and MessageError."""
        if not self._settings:
            return ()
        key = message.database, message.table, tuple(message.types.items())
        known = self._plans.get(key)
        if known is None:
            known = self._plans[key] = tuple(
                IndexPlan(one, message.database, message.table, dict(message.types), tombstones=self._tombstones)
                for one in self.having(message.database, message.table)
            )
        return known

    def having(self, database: str, table: str) -> list[IndexSettings]:
        """Returns the indexes that have a table."""
        name = f"{database}.{table}"
        return [one for one, patterns in self._settings if any(pattern.fullmatch(name) for pattern in patterns)]
