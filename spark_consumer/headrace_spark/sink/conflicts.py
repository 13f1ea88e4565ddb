"""A column has changed its type, as a task sees it: the index has another one, and may refuse documents because of it.

A message that only the old index refuses is no dead letter while the index is filled again: it is held, see held.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.mapping_conflicts import Conflict, Wanted
from headrace_documents.elastic.mappings import Properties
from headrace_documents.indexes.settings import IndexSettings
from headrace_spark.settings import Settings, reindexed
from headrace_spark.status.counting import Counts, Sighting

_MOST = 100
"""Different mappings of the columns of one index that a task compares."""


class Watch(NamedTuple):
    """The driver's facts for the tasks of a batch. `known` are indexes that already have a conflict, or are filled
    again. `given_up` are the conflicts for which nothing is done."""

    known: frozenset[str] = frozenset()
    given_up: frozenset[Conflict] = frozenset()


class Conflicts:
    """The conflicts of one task. `counts` takes what it finds."""

    def __init__(self, settings: Settings, writer: BulkWriter, counts: Counts, watch: Watch) -> None:
        self._elastic, self._writer, self._counts = settings.elasticsearch, writer, counts
        self._indexes: Mapping[str, IndexSettings] = reindexed(settings)
        self._known, self._given_up = set(watch.known & self._indexes.keys()), watch.given_up
        self._wanted: dict[str, Wanted] = {}
        self._columns: dict[str, dict[str, list[Properties]]] = {}
        """By index and table: the mappings that columns need."""
        self._new = set[str]()

    def columns(self, index: str, table: str, properties: Properties) -> None:
        """Records the mappings that columns of `table` need."""
        if index not in self._indexes:
            return
        several = self._columns.setdefault(index, {}).setdefault(table, [])
        if len(several) < _MOST and properties not in several:
            several.append(properties)
            self._new.add(index)

    def compare_new(self) -> None:
        """Compares new mappings with the indexes, which exist by now. Raises BulkError."""
        for index in self._new:
            self._compare(index)
        self._new.clear()

    def hold(self, refused: Iterable[str]) -> list[str]:
        """Returns the indexes for which a message is held whose documents were refused by `refused`; none if one of
        these has no conflict, so that a document is the cause. Raises BulkError."""
        indexes = list(dict.fromkeys(refused))
        return indexes if all(self._holds(one) for one in indexes) else []

    def _holds(self, index: str) -> bool:
        if index not in self._indexes:
            return False
        if index not in self._known and self._compare(index):
            self._known.add(index)
        return index in self._known

    def _compare(self, index: str) -> bool:
        """Returns whether there is a conflict for which something must be done. Those of fields with a configured type
        count if documents are refused."""
        cluster = self._writer.cluster
        mappings = list(self._writer.ask(index, lambda: cluster.mappings(index)).values())
        if index not in self._wanted:
            self._wanted[index] = Wanted(self._elastic, self._indexes[index])
        wanted, found = self._wanted[index], set[Conflict]()
        for table, several in self._columns.get(index, {}).items():
            for properties in several:
                of_table = wanted.conflicts(index, [properties], mappings)
                found |= of_table
                self._counts.conflicts.update(Sighting(one, table, one.field in wanted.chosen) for one in of_table)
        return bool(found - self._given_up)
