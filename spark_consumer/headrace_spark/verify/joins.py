"""Documents of several tables, beside what the rows that are kept make of them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice

import structlog
from pyspark.sql import SparkSession

from headrace_documents.documents import DELETED
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.join_store import root_documents
from headrace_spark.rebuild.filling import Target
from headrace_spark.settings.settings import Settings
from headrace_spark.verify.comparing_joins import CompareComposed, Rootless
from headrace_spark.verify.differences import Compared, Differences, Place
from headrace_spark.verify.looking_again import LookingAgain
from headrace_spark.verify.report import KEPT, Report

log = structlog.get_logger("headrace_spark.verify.verify")
_PAGE = 2000
_TOGETHER = 20_000
"""Documents of one step."""


class ComposedDocuments:
    """Of one index with joins. The rows that are kept have been compared with the tables before."""

    def __init__(
        self, settings: Settings, spark: SparkSession, writer: BulkWriter, target: Target, again: LookingAgain,
        report: Report,
    ) -> None:  # fmt: skip
        assert target.tree is not None
        self._settings, self._spark, self._writer, self._cluster = settings, spark, writer, writer.cluster
        self._name, self._tree, self._again, self._report = target.name, target.tree, again, report

    def run(self, tasks: int, sample: int) -> None:
        """Compares all of them, or so many, and composes anew what differs. When there are more differences than are
        held it begins anew, as long as some are put right."""
        # What rows make of documents is counted here; before, rows were.
        self._report.kept_rows = True
        while True:
            self._refresh(self._tree.rows_index)
            self._report.documents = 0
            found, more = self._differences(tasks, sample)
            repaired = self._again.at(found.values(), lambda before: self._look_again(tasks, before))
            if not more or not repaired:
                self._report.more = self._report.more or more
                return

    def _differences(self, tasks: int, sample: int) -> tuple[Differences, bool]:
        """Of the documents that rows make, and then of those that none makes; true when that is not all."""
        found: Differences = {}
        with closing(root_documents(self._cluster, self._tree)) as roots:
            documents: Iterator[Place] = islice(roots, sample or None)
            while some := list(islice(documents, _TOGETHER)):
                compared = self._look(tasks, some)
                self._report.documents += compared.found
                self._report.refused += compared.refused
                found |= {one.place: one for one in compared.differences}
                log.info("composed documents are compared", index=self._name, documents=self._report.documents)
                if len(found) >= KEPT:
                    return found, True
        if sample:
            return found, False
        self._refresh(self._tree.target)
        with closing(self._documents()) as documents_there:
            while some := list(islice(documents_there, _TOGETHER)):
                without = self._spark.sparkContext.parallelize(some, tasks).mapPartitions(
                    Rootless(self._settings, self._name)
                )
                found |= {one.place: one for one in self._look(tasks, without.collect()).differences}
                if len(found) >= KEPT:
                    return found, True
        return found, False

    def _documents(self) -> Generator[Place, None, None]:
        with closing(self._cluster.search_pages(self._tree.target, size=_PAGE, source=[DELETED])) as pages:
            for page in pages:
                for hit in page:
                    if DELETED not in hit["_source"]:
                        yield hit["_id"], hit.get("_routing", "")

    def _refresh(self, index: str) -> None:
        self._writer.ask(index, lambda: self._cluster.refresh(index))

    def _look(self, tasks: int, places: Iterable[Place], before: Differences | None = None) -> Compared:
        compare = CompareComposed(self._settings, self._name, before, repair=self._again.repair)
        total, some = Compared(), list(places)
        if some:
            for part in self._spark.sparkContext.parallelize(some, tasks).mapPartitions(compare).collect():
                total = total.plus(part)
        return total

    def _look_again(self, tasks: int, before: Differences) -> Compared:
        self._refresh(self._tree.rows_index)
        return self._look(tasks, list(before), before)
