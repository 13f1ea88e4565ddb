"""Documents without a row, or kept rows that are in no table: found by the ids of both sides."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

import structlog
from pyspark import StorageLevel
from pyspark.sql import SparkSession

from headrace_documents.documents import DELETED
from headrace_documents.elastic.bulk import BulkWriter, Swap
from headrace_documents.elastic.join_store import ElasticRows
from headrace_documents.errors import ApiError, TransportError, ask
from headrace_spark.rebuild.filling import RowMessages, TableRows, Target, TargetTask, actions_of
from headrace_spark.settings import Settings
from headrace_spark.source.reading import TableReader
from headrace_spark.verify.comparing import compose
from headrace_spark.verify.differences import DOCUMENT, EXTRA, ROW, Compared, Difference, Differences, Place
from headrace_spark.verify.rechecks import Rechecks
from headrace_spark.verify.report import KEPT, Report

_IDS = 5000

LastWrite = tuple[int, int, int]
"""Version, number and term of the last write of a document."""


class RowIds(TargetTask):
    """The ids of a table's rows. A row that can't be a document has none."""

    def __init__(self, settings: Settings, name: str, messages: RowMessages) -> None:
        super().__init__(settings, name, name)
        self._messages = messages

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[tuple[Place, None]]:
        for message in self._messages.of(given):
            for action in actions_of(target.actions, message)[0]:
                yield (action.id, action.routing), None


class DocumentIds(TargetTask):
    """The ids of all documents except the marks of deleted ones; or of the rows that are kept for joins, and belong to
    something. `tables` are those that are compared: documents of others are left out. It receives the parts that it
    reads, and their moment: (number, how many there are, moment)."""

    def __init__(self, settings: Settings, name: str, tables: Collection[str], field: str) -> None:
        """`field` is the one with the table, "" for none."""
        super().__init__(settings, name, name)
        self._tables, self._field = frozenset(tables), field

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[tuple[Place, LastWrite]]:
        tree, field = target.tree, self._field
        index = target.into if tree is None else tree.rows_index
        source = [one for one in (DELETED, field, "j" if tree is not None else "") if one]
        search = partial(writer.cluster.search_pages, index, size=_IDS, source=source, version=True, seq_no=True)
        for number, parts, moment in given:
            with closing(search(part=(number, parts), moment=moment)) as pages:
                while page := ask(index, partial(next, pages, None)):
                    for hit in page:
                        has = hit["_source"]
                        if DELETED in has or (tree is not None and not has.get("j")):
                            continue
                        if not field or has.get(field) in self._tables:
                            last = hit["_version"], hit["_seq_no"], hit["_primary_term"]
                            yield (hit["_id"], hit.get("_routing", "")), last


log = structlog.get_logger("headrace_spark.verify.verify")
_PAGE = 1000
_IDS_OF_A_TASK = 500_000


class Extra:
    """The extra documents of one index."""

    def __init__(
        self, settings: Settings, spark: SparkSession, writer: BulkWriter, target: Target, again: Rechecks,
        report: Report,
    ) -> None:  # fmt: skip
        self._settings, self._spark, self._writer, self._target = settings, spark, writer, target
        self._cluster = writer.cluster
        self._again, self._report = again, report
        self._index = target.into if target.tree is None else target.tree.rows_index

    def writes(self) -> int | None:
        """Returns how many writes the index has had; None if unknown."""
        try:
            found = self._cluster.call("GET", (self._index, "_stats", "indexing"))["_all"]["primaries"]["indexing"]
            return int(found["index_total"]) + int(found["delete_total"])
        except (ApiError, TransportError, KeyError):
            return None

    def are_none(self, writes: int) -> bool:
        """Returns whether nobody has written since `writes` were counted, and there are as many documents as were found
        for rows. Then there are no others, and the ids need not be compared."""
        if self._target.tree is not None or self._settings.elasticsearch.deletes != "remove":
            return False
        self._refresh()
        count = self._writer.ask(self._index, lambda: self._cluster.call("GET", (self._index, "_count")))["count"]
        if int(count) != self._report.documents:
            return False
        return self.writes() == writes

    def run(self, rows: TableRows, readers: list[TableReader], at_once: int) -> None:
        """Finds them, and with `repair` deletes those that nobody has written since."""
        while True:
            self._refresh()
            found = self._without_row(rows, readers, at_once)
            if self._again.repair and self._report.refused and found:
                log.warning(
                    "documents without a row are not deleted: they may be those of rows that can't be documents",
                    index=self._index,
                    rows=self._report.refused,
                )
            repaired = self._again.at([self._difference(*one) for one in found.items()], partial(self._recheck, found))
            if len(found) <= KEPT:
                return
            if not repaired:
                self._report.more = True
                return

    def _difference(self, place: Place, last: LastWrite) -> Difference:
        of = DOCUMENT if self._target.tree is None else ROW
        return Difference(of, EXTRA, *place, (), 0, last[0])

    def _without_row(self, rows: TableRows, readers: list[TableReader], at_once: int) -> dict[Place, LastWrite]:
        """Returns some of them, at most KEPT + 1."""
        # The documents are read first: a row that is inserted between the two has no document yet.
        context = self._spark.sparkContext
        name, tables = self._target.name, [str(one.table) for one in readers]
        read = DocumentIds(self._settings, name, tables, self._table_field())
        with self._cluster.moment(self._index) as moment:
            parts = [(number, at_once, moment) for number in range(at_once)]
            documents = context.parallelize(parts, at_once).mapPartitions(read).persist(StorageLevel.DISK_ONLY)
            try:
                count = documents.count()
                ids = context.union([self._row_ids(rows, one) for one in readers]).coalesce(at_once)
                left = documents.subtractByKey(ids, max(at_once, count // _IDS_OF_A_TASK + 1))
                return dict(left.take(KEPT + 1))
            finally:
                documents.unpersist()

    def _row_ids(self, rows: TableRows, reader: TableReader) -> Any:
        ids = RowIds(self._settings, self._target.name, rows.messages(reader.table))
        return rows.read(reader, list(reader.ranges())).mapPartitions(ids)

    def _table_field(self) -> str:
        if self._target.tree is not None:
            return "t"
        own = [one for one in self._settings.index if one.table_field and one.name.lower() == self._target.name]
        return own[0].table_field if own else ""

    def _recheck(self, found: dict[Place, LastWrite], _: Differences) -> Compared:
        """Returns those that are unchanged. A document that was written since may have a row by now."""
        there = {place: last for place, last in self._there(found) if found[place] == last}
        repaired = 0
        if self._again.repair and not self._report.refused:
            repaired = self._delete(there)
        return Compared(repaired=repaired, differences=tuple(self._difference(*one) for one in there.items()))

    def _there(self, found: Iterable[Place]) -> Iterable[tuple[Place, LastWrite]]:
        left = iter(found)
        while some := list(islice(left, _PAGE)):
            ids, routings = zip(*some, strict=True)
            request = partial(self._cluster.get_many, self._index, ids, False, routings)
            answers = self._writer.ask(self._index, request)
            for place, one in zip(some, answers, strict=True):
                if one["found"]:
                    yield place, (one["_version"], one["_seq_no"], one["_primary_term"])

    def _delete(self, extra: dict[Place, LastWrite]) -> int:
        left, repaired = iter(extra.items()), 0
        while some := list(islice(left, _PAGE)):
            touched = self._touched([place[0] for place, _ in some])
            beaten, rejected = self._writer.swap([_swap(self._index, *one) for one in some])
            repaired += len(some) - len(beaten) - len(rejected)
            if self._target.tree is not None:
                compose(self._target.tree, self._writer, touched)
        return repaired

    def _refresh(self) -> None:
        self._writer.ask(self._index, lambda: self._cluster.refresh(self._index))

    def _touched(self, names: list[str]) -> list[Any]:
        """Returns what kept rows touch."""
        if (tree := self._target.tree) is None:
            return []
        return [one for row in ElasticRows(tree, self._writer).get(names) for one in row.touched()]


def _swap(index: str, place: Place, last: LastWrite) -> Swap:
    name, routing = place
    where = {"_index": index, "_id": name, "if_seq_no": last[1], "if_primary_term": last[2]}
    return Swap(where | ({"routing": routing} if routing else {}), None)
