"""Compares an index with its tables while both change, and repairs differences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import islice

import structlog
from pyspark.sql import SparkSession

from headrace_documents.documents import index_name
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.errors import ConsumerError
from headrace_documents.indexes.plans import Indexes
from headrace_documents.indexes.settings import PLACEHOLDER
from headrace_spark.checkpoint import ConsumerPosition
from headrace_spark.rebuild.filling import TableRows, Target
from headrace_spark.settings import Settings, SourceSettings
from headrace_spark.sink.writer import PatientWriter
from headrace_spark.source.connection import Source
from headrace_spark.source.reading import KeyRange, TableReader
from headrace_spark.source.tables import table_names
from headrace_spark.status.counting import Counts
from headrace_spark.status.task_reports import OfCommand
from headrace_spark.verify.comparing import Compare
from headrace_spark.verify.differences import Compared, Difference, Differences
from headrace_spark.verify.extra import Extra
from headrace_spark.verify.joins import ComposedDocuments
from headrace_spark.verify.rechecks import CHECKS, Rechecks, Settle
from headrace_spark.verify.report import Report

log = structlog.get_logger(__name__)
_TOGETHER = 64
"""Ranges with differences that are checked again together."""
_MOST = 5000
"""Differences in them."""


class VerifyError(ConsumerError):
    """The index can't be compared."""


class Verify:
    """Compares indexes. With `sample` it checks about this many rows of each table, and no documents without one."""

    def __init__(
        self, settings: Settings, source: SourceSettings, spark: SparkSession, cluster: Cluster, settle: Settle, *,
        sample: int,
    ) -> None:  # fmt: skip
        self._settings, self._source_settings, self._spark, self._cluster = settings, source, spark, cluster
        self._settle, self._sample = settle, sample
        self._consumer = ConsumerPosition(settings, spark)

    def declared(self) -> list[str]:
        """Returns the names of all declared indexes; those with {database} or {table} for the existing tables. Raises
        VerifyError and SourceError."""
        names = dict.fromkeys(one.name.lower() for one in self._settings.index if not PLACEHOLDER.search(one.name))
        if any(PLACEHOLDER.search(one.name) for one in self._settings.index):
            indexes = Indexes(self._settings.index)
            with closing(Source(self._source_settings, self._spark.sparkContext._jvm)) as source:
                for table in table_names(source):
                    names |= dict.fromkeys(index_name(one.name, *table) for one in indexes.having(*table))
        if not names:
            raise VerifyError("no table of the source has rows in an index of [[index]]")
        return list(names)

    def run(self, name: str) -> Report:
        """Compares one index. Raises VerifyError, SourceError, ExpressionError and the errors of
        headrace_documents.errors."""
        target, report = Target(self._settings, name, name), Report(name)
        with closing(Source(self._source_settings, self._spark.sparkContext._jvm)) as source:
            tables = target.tables(source)
            if not tables:
                raise VerifyError(f"no table of the source has rows in index {name}: check [[index]] and the name")
            readers = [TableReader(self._spark, source, one, self._source_settings.partition_rows) for one in tables]
            indexes = [name] if target.tree is None else [name, target.tree.rows_index]
            if absent := [one for one in indexes if not self._cluster.exists(one)]:
                if any(not reader.is_empty() for reader in readers):
                    report.absent = absent[0]
                return report
            self._compare(target, readers, report)
        return report

    def _compare(self, target: Target, readers: list[TableReader], report: Report) -> None:
        settings, readers_at_once = self._settings, self._source_settings.readers
        rows = TableRows(settings, self._spark, target.name)
        again = Rechecks(self._settle, self._consumer, report)
        patience = settings.spark.patience
        writer = PatientWriter(settings.elasticsearch, self._cluster, Counts(), OfCommand(), patience=patience)
        extra = Extra(settings, self._spark, writer, target, again, report)
        before = extra.writes()
        for reader in readers:
            _Rows(settings, rows, reader, readers_at_once, again, report, target.name).run(self._sample)
        if not self._sample and not (before is not None and extra.are_none(before)):
            extra.run(rows, readers, readers_at_once)
        if target.tree is not None:
            ComposedDocuments(settings, self._spark, writer, target, again, report).run(readers_at_once, self._sample)


class _Rows:
    """Compares the rows of one table with their documents, or with the kept rows."""

    def __init__(
        self, settings: Settings, rows: TableRows, reader: TableReader, at_once: int, again: Rechecks,
        report: Report, name: str,
    ) -> None:  # fmt: skip
        self._settings, self._rows, self._reader, self._at_once = settings, rows, reader, at_once
        self._again, self._report, self._name = again, report, name
        self._held: list[tuple[KeyRange, Compared]] = []
        """Ranges with differences."""

    def run(self, sample: int) -> None:
        """Compares all of them, or about `sample`, spread over the table."""
        ranges = islice(self._reader.ranges(), 0, None, self._step(sample))
        while some := list(islice(ranges, self._at_once)):
            for one, compared in zip(some, self._compare(some), strict=True):
                self._report.rows += compared.rows
                self._report.refused += compared.refused
                self._report.documents += compared.found
                if compared.differences:
                    self._held.append((one, compared))
            if len(self._held) >= _TOGETHER or sum(len(one.differences) for _, one in self._held) >= _MOST:
                self._settle()
            log.info("compared", index=self._name, table=str(self._reader.table), rows=self._report.rows)
        self._settle()

    def _step(self, sample: int) -> int:
        if not sample:
            return 1
        return max(1, self._reader.estimate() // max(sample, self._reader.partition_rows))

    def _compare(self, ranges: list[KeyRange], before: Differences | None = None) -> list[Compared]:
        """Returns what is found in each range."""
        table = self._reader.table
        compare = Compare(
            self._settings, self._name, table, self._rows.messages(table), before, repair=self._again.repair
        )
        return list(self._rows.read(self._reader, ranges).mapPartitions(compare).collect())

    def _settle(self) -> None:
        """Checks the differing ranges again. One with more differences than a task reports begins again, while some are
        repaired, so that a busy table is not taken for a wrong one."""
        held, self._held = self._held, []
        left = CHECKS
        while held:
            ranges = [one for one, _ in held]
            known = len(self._report.found)
            repaired = self._again.at(self._differences(held), partial(self._ranges_again, ranges))
            wide = [one for one, compared in held if compared.more]
            if not wide:
                return
            left -= not repaired
            if left <= 0 or len(self._report.found) > known:
                self._report.more = True
                return
            held = [pair for pair in zip(wide, self._each(wide), strict=True) if pair[1].differences]

    @staticmethod
    def _differences(held: list[tuple[KeyRange, Compared]]) -> Iterator[Difference]:
        for _, compared in held:
            yield from compared.differences

    def _ranges_again(self, ranges: list[KeyRange], before: Differences) -> Compared:
        total = Compared()
        for compared in self._each(ranges, before):
            total = total.plus(compared)
        return total

    def _each(self, ranges: list[KeyRange], before: Differences | None = None) -> list[Compared]:
        made: list[Compared] = []
        for start in range(0, len(ranges), self._at_once):
            made += self._compare(ranges[start : start + self._at_once], before)
        return made
