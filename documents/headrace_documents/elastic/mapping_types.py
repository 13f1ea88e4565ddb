"""Mapping types that the product at hand lacks: found before an index is made of them, those that are declared at the
start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.products import Elasticsearch, OpenSearch
from headrace_documents.errors import SettingsError
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.settings import ElasticsearchSettings

_NOT_EVERYWHERE = Elasticsearch.since.keys() | OpenSearch.since.keys()


def lacking(cluster: Cluster, mappings: dict[str, Any]) -> list[str]:
    """Fields whose type the product lacks, a sentence each. The product is asked for only when there are types that not
    every version has. Raises ApiError and TransportError."""
    found = []
    for name, mapping_type in types_in(mappings):
        if mapping_type in _NOT_EVERYWHERE and (why := cluster.product.lacks(mapping_type)):
            found.append(f"field {name}: {why}")
    return found


def types_in(mapping: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Names of fields with their types, at any depth."""
    for part in ("properties", "fields"):
        for name, one in (mapping.get(part) or {}).items():
            if isinstance(one, dict):
                yield f"{above}{name}", str(one.get("type", "object"))
                yield from types_in(one, f"{above}{name}.")


def check_declared(cluster: Cluster, settings: ElasticsearchSettings, indexes: Sequence[IndexSettings]) -> None:
    """Raises SettingsError with all declared fields whose type the product lacks; ApiError and TransportError."""
    declared = [("[elasticsearch] mappings_file", settings.index_body()["mappings"])]
    for index in indexes:
        fields = {name: {"type": one.type, **one.mapping} for name, one in index.fields.items() if one.type}
        declared += [(f"[[index]] {index.name}", index.mappings), (f"[[index]] {index.name}", {"properties": fields})]
    problems = [f"{where}: {why}" for where, mappings in declared for why in lacking(cluster, mappings)]
    if problems:
        raise SettingsError(list(dict.fromkeys(problems)))
