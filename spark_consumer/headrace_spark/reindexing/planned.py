"""The mapping that an index would have if it were made now, of the types that the tables have now."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from pyspark import SparkContext

from headrace_documents.elastic.cluster import Cluster
from headrace_documents.elastic.mapping_conflicts import Conflict, Wanted
from headrace_documents.errors import ApiError
from headrace_spark.rebuild.filling import Target
from headrace_spark.settings.settings import Settings
from headrace_spark.settings.source import SourceSettings
from headrace_spark.source.connection import Source, SourceError


class Planned:
    """What the tables of the source ask for."""

    def __init__(self, settings: Settings, source: SourceSettings, context: SparkContext, cluster: Cluster) -> None:
        self._settings, self._source, self._context, self._cluster = settings, source, context, cluster

    def conflicts(self, name: str, tables: Iterable[str], *, chosen: bool) -> frozenset[Conflict]:
        """What a new index would have of another type than the one that has the name; `tables` are those whose rows
        have shown a conflict. Fields whose type the configuration says count with `chosen` only. Raises SourceError,
        ApiError, TransportError, UnfitTable and MessageError."""
        [index] = [one for one in self._settings.index if one.name.lower() == name]
        try:
            mappings = list(self._cluster.mappings(name).values())
        except ApiError as error:
            if error.status != 404:
                raise
            return frozenset()
        target = Target(self._settings, name, name)
        with closing(Source(self._source, self._context._jvm)) as source:
            found = target.tables(source)
        if missing := sorted(set(tables) - {str(one) for one in found}):
            raise SourceError(
                f"the source shows no table {missing[0]}, whose rows have come: has the account of [source] SELECT on "
                "it, and is it the server of the stream?"
            )
        wanted = Wanted(self._settings.elasticsearch, index)
        of_columns = [properties for table in found for properties in target.properties(table)]
        conflicts = wanted.conflicts(name, of_columns, mappings)
        return frozenset(one for one in conflicts if chosen or one.field not in wanted.chosen)
