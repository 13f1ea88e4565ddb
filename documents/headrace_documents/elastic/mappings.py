"""The `properties` of mappings, a tree of fields with their own `properties`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.products import Elasticsearch, OpenSearch
from headrace_documents.errors import SettingsError
from headrace_documents.indexes.settings import IndexSettings
from headrace_documents.indexes.types import Property
from headrace_documents.settings import ElasticsearchSettings

Properties = dict[str, Property]


def merged(known: Mapping[str, Property], more: Mapping[str, Property]) -> Properties:
    """Returns all fields of both; a field in both has the parameters of `known`, and the fields of both."""
    made = dict(known)
    for name, one in more.items():
        there = made.get(name)
        if there is None:
            made[name] = one
        elif "properties" in there and "properties" in one:
            made[name] = {**there, "properties": merged(there["properties"], one["properties"])}
    return made


def missing(wanted: Mapping[str, Property], there: Mapping[str, Property]) -> Properties:
    """Returns the wanted fields that are missing."""
    made: Properties = {}
    for name, one in wanted.items():
        known = there.get(name)
        if known is None:
            made[name] = one
        elif "properties" in one and (more := missing(one["properties"], known.get("properties", {}))):
            made[name] = {**({"type": known["type"]} if "type" in known else {}), "properties": more}
    return made


def differing(
    wanted: Mapping[str, Property], there: Mapping[str, Property], path: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yields fields of another type than wanted: their names, their types, and those wanted."""
    for name, one in wanted.items():
        known = there.get(name)
        if known is None:
            continue
        has, wants = _type_of(known), _type_of(one)
        if has != wants:
            yield path + name, has, wants
        elif "properties" in one:
            yield from differing(one["properties"], known.get("properties", {}), f"{path}{name}.")


def names(properties: Mapping[str, Any], path: str = "") -> list[str]:
    """Returns the names of all fields; nested ones have the names of the fields above them first."""
    made: list[str] = []
    for name, one in properties.items():
        made += names(one["properties"], f"{path}{name}.") if "properties" in one else [path + name]
    return sorted(made)


def _type_of(one: Property) -> str:
    return str(one.get("type", "object"))


_NOT_EVERYWHERE = Elasticsearch.since.keys() | OpenSearch.since.keys()


def lacking(cluster: Cluster, mappings: dict[str, Any]) -> list[str]:
    """Returns fields whose type the product lacks, a sentence each. The product is requested only if there are types
    that not every version has. Raises ApiError and TransportError."""
    found = []
    for name, mapping_type in types_in(mappings):
        if mapping_type in _NOT_EVERYWHERE and (why := cluster.product.lacks(mapping_type)):
            found.append(f"field {name}: {why}")
    return found


def types_in(mapping: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yields names of fields with their types, at any depth."""
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
