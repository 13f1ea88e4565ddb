"""Finds fields of an index whose types differ from those that columns need: Elasticsearch can't change a field's
type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace_documents.elastic.mappings import Properties, differing, merged, names
from headrace_documents.indexes.settings import IndexSettings, JoinSettings, RowFields
from headrace_documents.settings import ElasticsearchSettings


class Conflict(NamedTuple):
    """A field of an index with another type than wanted."""

    target: str
    field: str
    has: str
    wants: str

    def __str__(self) -> str:
        return f"{self.field} is {self.has}, and {self.wants} is wanted"


class Wanted:
    """The configuration of the fields of one declared index."""

    def __init__(self, elastic: ElasticsearchSettings, index: IndexSettings) -> None:
        self._given = merged(
            index.mappings.get("properties", {}), elastic.index_body()["mappings"].get("properties", {})
        )
        self.chosen = frozenset(names(self._given)) | _typed(index)
        """Fields with a configured type: no change of a column changes it."""

    def properties(self, of_columns: Iterable[Properties]) -> Properties:
        """Returns the mapping for a new index, for fields with these mappings by their columns."""
        made = self._given
        for one in of_columns:
            made = merged(made, one)
        return made

    def conflicts(
        self, name: str, of_columns: Iterable[Properties], mappings: Iterable[dict[str, Any]]
    ) -> frozenset[Conflict]:
        """Returns the fields with another type in any of the mappings, those of the indexes of `name`."""
        wanted = self.properties(of_columns)
        return frozenset(
            Conflict(name, *found) for mapping in mappings for found in differing(wanted, mapping.get("properties", {}))
        )


def _typed(index: IndexSettings) -> frozenset[str]:
    """Returns the fields that have their own type, as their documents have them."""
    before = {"": ""}
    found = _typed_fields(index, "")
    for join in index.join:
        place = before[join.parent]
        before[join.name] = place if join.shape == "fields" else f"{place}{join.name}."
        found |= _typed_fields(join, before[join.name])
    return found


def _typed_fields(fields: RowFields, place: str) -> frozenset[str]:
    prefix = place + (fields.field_prefix if isinstance(fields, JoinSettings) else "")
    return frozenset(f"{prefix}{name}" for name, one in fields.fields.items() if one.type or "type" in one.mapping)
