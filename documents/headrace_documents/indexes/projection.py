"""The projection of a table: the fields of its rows in documents, with their mappings and values."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from headrace_documents.errors import ConsumerError, MessageError
from headrace_documents.formats.changes import Row
from headrace_documents.indexes.settings import PLACEHOLDER, FieldSettings, RowFields, computed_column
from headrace_documents.indexes.types import Property, TypeRules, field_type, json_value

Convert = Callable[[str], Any]
_NOT_A_POINT = "is no POINT"
_POINT = struct.Struct("<dd")
_BY_NAME = FieldSettings.model_validate({})
"""The column of the field's name, by its type."""


class UnfitTable(ConsumerError):
    """The configuration names a column that the table does not have: nothing is written until one of the two is
    fixed."""


class LacksColumn(UnfitTable):
    """By its message a table of a join lacks a column of `on`. The message is old, or another program's, or the
    configuration is wrong: `check` finds out by the newest messages. No row of it can be kept, so it is a dead
    letter."""


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
        """Returns the text for a row. Raises MessageError if a column is NULL or absent."""
        made = [self._literals[0]]
        for column, literal in zip(self.columns, self._literals[1:], strict=True):
            value = row.get(column)
            if value is None:
                raise MessageError(f"{self._what} needs column {column!r}, which has no value in the row")
            made += (str(value), literal)
        return "".join(made)


class Projection:
    """The fields of a table. `properties` is their mapping, as far as known. `types` are the columns of the table,
    empty if the messages do not have them; `further` are columns that are needed besides those of fields."""

    def __init__(
        self,
        settings: RowFields,
        rules: TypeRules,
        types: Mapping[str, str],
        *,
        place: tuple[str, str],
        what: str,
        table: str,
        prefix: str = "",
        further: frozenset[str] = frozenset(),
    ) -> None:
        """`place` is the name of the index and of the join; `what` is the configuration's name for it, such as "index
        services". Raises UnfitTable."""
        self.computed = False
        """Whether there are fields that Spark computes."""
        self._place = place
        self.properties: dict[str, Property] = {}
        self._rules, self._types, self._what, self._prefix = rules, types, what, prefix
        self._fields: list[tuple[str, str, Convert | None]] = []
        self._points: list[tuple[str, str, str]] = []
        self._constants: dict[str, Any] = {}
        self._passed = _passed(settings) if settings.columns == "all" and not types else None
        """Columns that become no field of their own, if only the row shows which others there are."""
        self._add_fields(settings)
        soft = settings.soft_delete
        self._soft = (soft.column, frozenset(soft.values)) if soft is not None else None
        needed = {column for _, column, _ in self._fields if column[:1] != "\0"} | {
            one for point in self._points for one in point[1:]
        }
        needed |= further | ({soft.column} if soft is not None else set())
        self._needed = frozenset(needed)
        if types and (missing := sorted(needed - types.keys())):
            raise UnfitTable(f"{what} names column {missing[0]!r}, and {table} has none of that name")

    def is_deleted(self, row: Row) -> bool:
        """Returns whether the row counts as deleted although it exists."""
        return self._soft is not None and str(row.get(self._soft[0])) in self._soft[1]

    def fields(self, row: Row, number: int) -> dict[str, Any]:
        """Returns the fields of a row; `number` is its index in the message. Raises MessageError."""
        made = dict(self._constants)
        if (passed := self._passed) is not None:
            made |= {self._prefix + one: row[one] for one in row if one not in passed and one[:1] != "\0"}
        try:
            for name, column, convert in self._fields:
                value = row[column]
                made[name] = convert(value) if convert is not None and isinstance(value, str) else value
            for name, latitude, longitude in self._points:
                lat, lon = row[latitude], row[longitude]
                made[name] = None if lat is None or lon is None else {"lat": float(lat), "lon": float(lon)}
        except KeyError:
            if missing := ", ".join(sorted(self._needed - row.keys())):
                raise MessageError(
                    f"row {number} is not whole, it lacks {missing}: the source needs binlog_row_image=FULL"
                ) from None
            raise MessageError(f"{self._what} has fields that Spark computes: headrace-spark alone has them") from None
        except ValueError as error:
            raise MessageError(f"row {number} does not fit {self._what}: {error}") from None
        return made

    def _add_fields(self, settings: RowFields) -> None:
        if settings.columns == "all":
            passed = _passed(settings)
            for column in self._types:
                if column not in passed:
                    self._add(column, _BY_NAME)
        for name, field in settings.fields.items():
            self._add(name, field)

    def _add(self, name: str, field: FieldSettings) -> None:
        mapping: Property | None = None
        shown = self._prefix + name
        if field.geo_point is not None:
            self._points.append((shown, *field.geo_point))
            mapping = {"type": "geo_point"}
        elif field.constant is not None:
            self._constants[shown] = field.constant
        elif field.sql:
            self.computed = True
            self._fields.append((shown, computed_column(*self._place, name), None))
        else:
            mapping = self._add_column(shown, field.column or name, field)
        if field.type:
            mapping = {"type": field.type} if mapping is None or mapping["type"] != field.type else mapping
        if mapping is not None or field.mapping:
            self.properties[shown] = {**(mapping or {}), **field.mapping}

    def _add_column(self, name: str, column: str, field: FieldSettings) -> Property | None:
        known = field_type(self._types.get(column, ""), self._rules)
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


def _passed(settings: RowFields) -> set[str]:
    used = {one.column or name for name, one in settings.fields.items() if _is_of_column(one)}
    return used | {*settings.drop, *settings.fields}


def _is_of_column(field: FieldSettings) -> bool:
    return field.geo_point is None and field.constant is None and not field.sql


def _split(separator: str, text: str) -> list[str]:
    return [part.strip() for part in text.split(separator)] if text else []


def point(text: str) -> dict[str, float]:
    """Reads a POINT in base64: four bytes of SRID, and OGC's well-known binary; x is the longitude. Raises
    ValueError."""
    raw = base64.b64decode(text, validate=True)
    if len(raw) != 25 or raw[4] != 1 or raw[5:9] != b"\1\0\0\0":
        raise ValueError(_NOT_A_POINT)
    longitude, latitude = _POINT.unpack_from(raw, 9)
    return {"lat": latitude, "lon": longitude}
