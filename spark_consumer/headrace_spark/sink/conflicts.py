"""Where a column has changed its type, as a task sees it: the index has another one, and may refuse documents for it.

What only the old index refuses is no dead letter while the index is filled anew: the message is held, see held.py.
"""

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
    """What the driver tells the tasks of a batch. `known` are indexes that have a conflict already, or are filled anew.
    `given_up` are the conflicts for which nothing is to be done."""

    known: frozenset[str] = frozenset()
    given_up: frozenset[Conflict] = frozenset()


class Conflicts:
    """Of one task. `counts` takes what it finds."""

    def __init__(self, settings: Settings, writer: BulkWriter, counts: Counts, watch: Watch) -> None:
        self._elastic, self._writer, self._counts = settings.elasticsearch, writer, counts
        self._indexes: Mapping[str, IndexSettings] = reindexed(settings)
        self._known, self._given_up = set(watch.known & self._indexes.keys()), watch.given_up
        self._wanted: dict[str, Wanted] = {}
        self._columns: dict[str, dict[str, list[Properties]]] = {}
        """By index and table: the mappings that columns have asked for."""
        self._new = set[str]()

    def columns(self, index: str, table: str, properties: Properties) -> None:
        """Rows of `table` come whose columns ask for these mappings."""
        if index not in self._indexes:
            return
        several = self._columns.setdefault(index, {}).setdefault(table, [])
        if len(several) < _MOST and properties not in several:
            several.append(properties)
            self._new.add(index)

    def look(self) -> None:
        """Compares what is new with the indexes, which have been made by now. Raises BulkError."""
        for index in self._new:
            self._compare(index)
        self._new.clear()

    def hold(self, refused: Iterable[str]) -> list[str]:
        """The indexes for which a message is held of which documents were refused by `refused`; none when one of these
        has no conflict, so that a document is to blame. Raises BulkError."""
        indexes = list(dict.fromkeys(refused))
        return indexes if all(self._holds(one) for one in indexes) else []

    def _holds(self, index: str) -> bool:
        if index not in self._indexes:
            return False
        if index not in self._known and self._compare(index):
            self._known.add(index)
        return index in self._known

    def _compare(self, index: str) -> bool:
        """Whether there is a conflict for which something is to be done. Those of fields whose type the configuration
        says count where documents are refused."""
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
