"""Compares documents of several tables with what the kept rows make."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import structlog
from pyspark.sql import SparkSession

from headrace_documents.documents import DELETED
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.elastic.join_store import ElasticDocuments, ElasticRows, root_documents
from headrace_documents.joins.composing import Composer, rootless
from headrace_documents.joins.tree import Document, JoinTree
from headrace_spark.rebuild.filling import Target, TargetTask
from headrace_spark.settings import Settings
from headrace_spark.verify.comparing import difference_of
from headrace_spark.verify.differences import Compared, Difference, Differences, Place
from headrace_spark.verify.rechecks import Rechecks
from headrace_spark.verify.report import KEPT, Report

_COMPARED = 100
"""Documents that are read together: with a list of many rows each is large."""
_IDS = 1000


class CompareComposed(TargetTask):
    """Compares documents, given by ids and routings. `before` are the differences of an earlier check; with `repair`
    those that have not changed are composed again. The stream does the same: the one that read the rows later wins."""

    def __init__(
        self, settings: Settings, name: str, before: Differences | None = None, *, repair: bool = False
    ) -> None:
        super().__init__(settings, name, name)
        self._before, self._repairs = before or {}, repair

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[Compared]:
        tree, left = target.tree, iter(given)
        assert tree is not None
        composer = Composer(tree, ElasticRows(tree, writer), ElasticDocuments(tree, writer))
        total = Compared()
        while page := [Document(*one) for one in islice(left, _COMPARED)]:
            total = total.plus(self._page(tree, writer, composer, page))
        yield total

    def _page(self, tree: JoinTree, writer: BulkWriter, composer: Composer, page: list[Document]) -> Compared:
        ids, routings, index = [one.id for one in page], [one.routing for one in page], tree.target
        answers = writer.ask(index, lambda: writer.cluster.get_many(index, ids, source=True, routings=routings))
        there = dict(zip(page, answers, strict=True))
        differences: list[Difference] = []
        found = refused = 0
        for document, body, why in composer.bodies(page):
            answer = there[document]
            if why:
                refused += 1
                continue
            if body is not None and DELETED in body:
                body = None
            source = answer.get("_source")
            source = None if source is None or DELETED in source else source
            found += body is not None and source is not None
            difference = difference_of(*document, body, answer, source)
            if difference is not None:
                differences.append(difference)
        same = [Document(*one.place) for one in differences if one.is_written_as(self._before.get(one.place))]
        repaired = 0
        if self._repairs and same:
            repaired = len(same) - len(list(composer.run(same)))
        return Compared(len(page), found, refused, repaired, False, tuple(differences))


class Rootless(TargetTask):
    """Returns those of the given documents (ids and routings) of which no row is kept."""

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name, name)

    def _work(self, given: Iterable[Any], target: Target, writer: BulkWriter) -> Iterator[tuple[str, str]]:
        tree, left = target.tree, iter(given)
        assert tree is not None
        rows = ElasticRows(tree, writer)
        while page := [Document(*one) for one in islice(left, _IDS)]:
            yield from rootless(rows, page)


log = structlog.get_logger("headrace_spark.verify.verify")
_PAGE = 2000
_TOGETHER = 20_000
"""Documents of one step."""


class ComposedDocuments:
    """The documents of one index with joins. The kept rows have been compared with the tables before."""

    def __init__(
        self, settings: Settings, spark: SparkSession, writer: BulkWriter, target: Target, again: Rechecks,
        report: Report,
    ) -> None:  # fmt: skip
        assert target.tree is not None
        self._settings, self._spark, self._writer, self._cluster = settings, spark, writer, writer.cluster
        self._name, self._tree, self._again, self._report = target.name, target.tree, again, report

    def run(self, tasks: int, sample: int) -> None:
        """Compares all of them, or `sample` of them, and composes the differing ones again. If there are more
        differences than are kept it begins again, while some are repaired."""
        # Here documents are counted; before, rows were.
        self._report.kept_rows = True
        while True:
            self._refresh(self._tree.rows_index)
            self._report.documents = 0
            found, more = self._differences(tasks, sample)
            repaired = self._again.at(found.values(), lambda before: self._compare_again(tasks, before))
            if not more or not repaired:
                self._report.more = self._report.more or more
                return

    def _differences(self, tasks: int, sample: int) -> tuple[Differences, bool]:
        """Returns the differences of the documents that rows make, and then of those that none makes; true if that is
        not all."""
        found: Differences = {}
        with closing(root_documents(self._cluster, self._tree)) as roots:
            documents: Iterator[Place] = islice(roots, sample or None)
            while some := list(islice(documents, _TOGETHER)):
                compared = self._compare(tasks, some)
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
                found |= {one.place: one for one in self._compare(tasks, without.collect()).differences}
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

    def _compare(self, tasks: int, places: Iterable[Place], before: Differences | None = None) -> Compared:
        compare = CompareComposed(self._settings, self._name, before, repair=self._again.repair)
        total, some = Compared(), list(places)
        if some:
            for part in self._spark.sparkContext.parallelize(some, tasks).mapPartitions(compare).collect():
                total = total.plus(part)
        return total

    def _compare_again(self, tasks: int, before: Differences) -> Compared:
        self._refresh(self._tree.rows_index)
        return self._compare(tasks, list(before), before)
