"""Rows of tables as the stream has them, with the fields that Spark computes for an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark import RDD
from pyspark.sql import SparkSession

from headrace_documents.formats.changes import Rows
from headrace_documents.indexes.settings import PLACEHOLDER
from headrace_spark.batch.expressions import Expressions
from headrace_spark.settings.settings import Settings
from headrace_spark.source.reading import KeyRange, RowMaker, TableReader
from headrace_spark.source.tables import SourceTable


class RowMessages:
    """Makes messages of what TableRows has read; it is sent to the tasks."""

    def __init__(self, table: SourceTable, expressions: Expressions) -> None:
        self._maker, self._expressions = RowMaker(table), expressions

    def of(self, given: Iterable[Any]) -> Iterator[Rows]:
        """All of them as inserted rows, a few in each."""
        if self._expressions:
            return self._maker.together(self._expressions.rows(given))
        return self._maker.messages(given)


class TableRows:
    """Reads rows for one index."""

    def __init__(self, settings: Settings, spark: SparkSession, name: str) -> None:
        """Raises ExpressionError."""
        own = [one for one in settings.index if one.name.lower() == name or PLACEHOLDER.search(one.name)]
        self._expressions = Expressions(settings.model_copy(update={"index": own}), spark)

    def read(self, reader: TableReader, ranges: Sequence[KeyRange]) -> RDD[Any]:
        """The rows in the ranges, a task a range. Raises SourceError."""
        rows = reader.read(ranges)
        if not self._expressions:
            return rows
        return self._expressions.of_rows(rows.mapPartitions(RowMaker(reader.table).rows))

    def messages(self, table: SourceTable) -> RowMessages:
        """What makes messages of the rows of a table."""
        return RowMessages(table, self._expressions)
