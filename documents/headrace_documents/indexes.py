"""From rows to documents of the indexes that [[index]] declares: a plan for each index, table and set of types."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace_documents.changes import Row, Rows
from headrace_documents.documents import (
    MAX_ID_BYTES,
    TOMBSTONE,
    Action,
    Rules,
    document_id,
    index_name,
    index_owner,
)
from headrace_documents.errors import ConsumerError, MessageError
from headrace_documents.index_settings import PLACEHOLDER, FieldSettings, IndexSettings
from headrace_documents.types import Property, field_type, json_value

Convert = Callable[[str], Any]
_NOT_A_POINT = "is no POINT"
_POINT = struct.Struct("<dd")
_PLAIN = Rules()
_BY_NAME = FieldSettings.model_validate({})
"""The column of the field's name, by its type."""


class UnfitTable(ConsumerError):
    """An index names a column that the table has not: nothing is written until one of the two is put right."""


class Template:
    """A text with columns in braces, for one table."""

    def __init__(self, text: str, database: str, table: str, columns: Mapping[str, str], what: str) -> None:
        text = text.replace("{database}", database).replace("{table}", table)
        parts = PLACEHOLDER.split(text)
        self._literals, self.columns = parts[0::2], parts[1::2]
        self._what = what
        if columns and (strange := [one for one in self.columns if one not in columns]):
            raise UnfitTable(f"{what} names {{{strange[0]}}}, and {database}.{table} has no such column")

    def of(self, row: Mapping[str, Any]) -> str:
        """The text for a row. Raises MessageError when a column is NULL or absent."""
        made = [self._literals[0]]
        for column, literal in zip(self.columns, self._literals[1:], strict=True):
            value = row.get(column)
            if value is None:
                raise MessageError(f"{self._what} needs column {column!r}, which has no value in the row")
            made += (str(value), literal)
        return "".join(made)


class IndexPlan:
    """How rows of one table become documents of one index. `properties` is the mapping of its fields, as far as it is
    known."""

    def __init__(
        self, settings: IndexSettings, database: str, table: str, types: Mapping[str, str], *, tombstones: bool
    ) -> None:
        """Raises UnfitTable, and MessageError when no index can have the name."""
        self.settings = settings
        self.target = index_name(settings.name, database, table)
        self.owner = index_owner(settings.name, database, table)
        self.properties: dict[str, Property] = {}
        self._gone = TOMBSTONE if tombstones else None
        self._table, self._types = f"{database}.{table}", types
        self._fields: list[tuple[str, str, Convert | None]] = []
        self._points: list[tuple[str, str, str]] = []
        self._constants: dict[str, Any] = {}
        self._id = Template(settings.id, database, table, types, f"id of index {settings.name}")
        self._routing = Template(settings.routing, database, table, types, f"routing of index {settings.name}")
        self._add_fields()
        soft = settings.soft_delete
        self._soft = (soft.column, frozenset(soft.values)) if soft is not None else None
        needed = {column for _, column, _ in self._fields} | {one for point in self._points for one in point[1:]}
        needed |= {*self._id.columns, *self._routing.columns} | ({soft.column} if soft is not None else set())
        self._needed = frozenset(needed)
        if types and (missing := sorted(needed - types.keys())):
            raise UnfitTable(
                f"index {settings.name} names column {missing[0]!r}, and {self._table} has none of that name"
            )

    def actions(self, message: Rows) -> list[Action]:
        """What is to be done to documents. Raises MessageError, and then nothing of the message may be applied."""
        made: list[Action] = []
        for i, (row, old) in enumerate(zip(message.rows, message.olds, strict=True)):
            version = message.version + i * message.step
            name, routing = self._identity(message.keys, row)
            if message.operation == "DELETE":
                made.append(Action(self.target, name, version, self._gone, i, self.owner, routing))
                continue
            if old is not None and (before := self._identity(message.keys, {**row, **old})) != (name, routing):
                made.append(Action(self.target, before[0], version, self._gone, i, self.owner, before[1]))
            body = self._gone if self._is_deleted(row) else self._document(row, i)
            made.append(Action(self.target, name, version, body, i, self.owner, routing))
        return made

    def _identity(self, keys: Sequence[str], row: Row) -> tuple[str, str]:
        """Document id and routing."""
        routing = self._routing.of(row) if self.settings.routing else ""
        if not self.settings.id:
            if not keys:
                raise MessageError(f"table {self._table} has no primary key, and index {self.settings.name} no id")
            return document_id(keys, row, _PLAIN), routing
        name = self._id.of(row)
        if len(name.encode()) > MAX_ID_BYTES:
            raise MessageError(f"the document id is longer than {MAX_ID_BYTES} bytes")
        return name, routing

    def _is_deleted(self, row: Row) -> bool:
        return self._soft is not None and str(row.get(self._soft[0])) in self._soft[1]

    def _document(self, row: Row, number: int) -> dict[str, Any]:
        body = dict(self._constants)
        try:
            for name, column, convert in self._fields:
                value = row[column]
                body[name] = convert(value) if convert is not None and isinstance(value, str) else value
            for name, latitude, longitude in self._points:
                lat, lon = row[latitude], row[longitude]
                body[name] = None if lat is None or lon is None else {"lat": float(lat), "lon": float(lon)}
        except KeyError:
            missing = ", ".join(sorted(self._needed - row.keys()))
            raise MessageError(
                f"row {number} is not whole, it lacks {missing}: the source needs binlog_row_image=FULL"
            ) from None
        except ValueError as error:
            raise MessageError(f"row {number} does not fit index {self.settings.name}: {error}") from None
        return body

    # -- fields ---------------------------------------------------------------------------------------------------

    def _add_fields(self) -> None:
        settings = self.settings
        used = {one.column or name for name, one in settings.fields.items() if _is_of_column(one)}
        if settings.columns == "all":
            for column in self._types:
                if column not in used and column not in settings.drop and column not in settings.fields:
                    self._add(column, _BY_NAME)
        for name, field in settings.fields.items():
            self._add(name, field)

    def _add(self, name: str, field: FieldSettings) -> None:
        mapping: Property | None = None
        if field.geo_point is not None:
            self._points.append((name, *field.geo_point))
            mapping = {"type": "geo_point"}
        elif field.constant is not None:
            self._constants[name] = field.constant
        else:
            mapping = self._add_column(name, field)
        if field.type:
            mapping = {"type": field.type} if mapping is None or mapping["type"] != field.type else mapping
        if mapping is not None or field.mapping:
            self.properties[name] = {**(mapping or {}), **field.mapping}

    def _add_column(self, name: str, field: FieldSettings) -> Property | None:
        column = field.column or name
        known = field_type(self._types.get(column, ""), self.settings.types())
        mapping, convert = known.mapping, known.convert
        if field.convert == "text":
            mapping, convert = {"type": "keyword"}, None
        elif field.convert == "json":
            mapping, convert = None, json_value
        elif field.convert == "split":
            mapping, convert = {"type": "keyword"}, partial(_split, field.separator)
        elif field.convert == "geo_point":
            mapping, convert = {"type": "geo_point"}, point
        self._fields.append((name, column, convert))
        return mapping


def _is_of_column(field: FieldSettings) -> bool:
    return field.geo_point is None and field.constant is None


def _split(separator: str, text: str) -> list[str]:
    return [part.strip() for part in text.split(separator)] if text else []


def point(text: str) -> dict[str, float]:
    """A POINT in base64: four bytes of SRID, and OGC's well-known binary; x is the longitude. Raises ValueError."""
    raw = base64.b64decode(text, validate=True)
    if len(raw) != 25 or raw[4] != 1 or raw[5:9] != b"\1\0\0\0":
        raise ValueError(_NOT_A_POINT)
    longitude, latitude = _POINT.unpack_from(raw, 9)
    return {"lat": latitude, "lon": longitude}


class Indexes:
    """The indexes that [[index]] declares."""

    def __init__(self, settings: Sequence[IndexSettings], *, tombstones: bool = False) -> None:
        self._settings = [(one, [re.compile(text) for text in one.tables]) for one in settings]
        self._tombstones = tombstones
        self._plans: dict[tuple[Any, ...], tuple[IndexPlan, ...]] = {}

    def plans(self, message: Rows) -> tuple[IndexPlan, ...]:
        """Those of the indexes that have the message's table. Raises UnfitTable and MessageError."""
        key = message.database, message.table, tuple(message.types.items())
        known = self._plans.get(key)
        if known is None:
            name = f"{message.database}.{message.table}"
            known = self._plans[key] = tuple(
                IndexPlan(one, message.database, message.table, dict(message.types), tombstones=self._tombstones)
                for one, patterns in self._settings
                if any(pattern.fullmatch(name) for pattern in patterns)
            )
        return known
