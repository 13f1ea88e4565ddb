"""One batch: the steps that Spark's tasks do, and the dead letters that come of them.

In the first each task works through its messages. Where rows of joins were touched or tables emptied two more follow,
see joining.py.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from headrace_documents import logs
from headrace_documents.changes import Row
from headrace_documents.cluster import Cluster
from headrace_documents.elastic import BulkWriter
from headrace_spark.counting import Adding, Counts
from headrace_spark.expressions import Expressions
from headrace_spark.joining import Emptied, Joining, RefusedDocument, Touch
from headrace_spark.letters import Origin
from headrace_spark.report_socket import Address
from headrace_spark.reports import Reporter
from headrace_spark.settings import Settings
from headrace_spark.worker import DeadLetter, Record, Worker, dead_letter
from headrace_spark.writing import PatientWriter

_Made = DeadLetter | Touch | Emptied | RefusedDocument
_LETTERS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
    ]
)
_ORIGINS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("reason", StringType()),
    ]
)
_STORED = StorageLevel.MEMORY_AND_DISK
"""What is lost from memory would be worked through once more."""
COLUMNS = ("key", "value", "topic", "partition", "offset", "headers")
"""Of the frame that Batch takes, in this order."""


class Batch:
    """The messages of one batch. `patience` is that of PatientWriter, `reports` where tasks report to."""

    def __init__(
        self,
        settings: Settings,
        frame: DataFrame,
        number: int,
        patience: float | None,
        reports: Address | None = None,
        expressions: Expressions | None = None,
    ) -> None:
        self._settings, self._frame, self._number = settings, frame, number
        self._patience, self._reports, self._expressions = patience, reports, expressions
        self._context = frame.sparkSession.sparkContext
        self._counts = self._context.accumulator(Counts(), Adding())

    @property
    def counts(self) -> Counts:
        """All that was counted."""
        return self._counts.value

    def write(self, save: Callable[[DataFrame], None]) -> None:
        """Does all of it; `save` is given the dead letters, twice at most."""
        made = self._records().mapPartitions(self._step(_Apply)).persist(_STORED)
        try:
            save(self._letters(made.filter(_is_letter)))
            if self.counts.numbers["touched"] or self.counts.numbers["emptied"]:
                self._follow(made.filter(_is_no_letter), save)
        finally:
            made.unpersist()

    def _records(self) -> RDD[Any]:
        expressions = self._expressions
        if not expressions:
            return self._frame.rdd.map(record_of)
        rows = expressions.computed(self._frame).rdd
        return rows.mapPartitions(expressions.messages).map(lambda found: record_of(found[0], found[1]))

    def _step(self, kind: type[_Step]) -> _Step:
        return kind(self._settings, self._counts, self._number, self._patience, self._reports)

    def _follow(self, made: RDD[Any], save: Callable[[DataFrame], None]) -> None:
        for step in (_Resolve, _Compose):
            made = _shuffled(made, self._context.defaultParallelism).mapPartitions(self._step(step))
        refused = made.persist(_STORED)
        try:
            if refused.count():
                save(self._letters(self._refused(refused)))
        finally:
            refused.unpersist()

    def _refused(self, refused: RDD[Any]) -> RDD[Any]:
        """One dead letter a message, however many of the documents that it touched were refused: the message is read
        once more."""
        reasons = refused.map(_by_origin).reduceByKey(_more).map(lambda found: (*found[0], _reason(*found[1])))
        origins = self._frame.sparkSession.createDataFrame(reasons, _ORIGINS, verifySchema=False)
        joined = self._frame.join(origins, ["topic", "partition", "offset"]).select(*COLUMNS, "reason")
        number = self._number
        return joined.rdd.map(lambda row: dead_letter(record_of(row[:-1]), row[-1], number))

    def _letters(self, letters: RDD[Any]) -> DataFrame:
        return self._frame.sparkSession.createDataFrame(letters, _LETTERS, verifySchema=False)


def record_of(row: Iterable[Any], computed: Sequence[Row] = ()) -> Record:
    """The message of a row of the frame."""
    key, value, topic, partition, offset, headers = row
    known = headers and [(name, data) for name, data in headers]
    return Record(key, value, topic, partition, offset, known, computed)


class _Step:
    """A function that Spark sends to its tasks: the settings travel with it, the connections are made over there."""

    def __init__(
        self,
        settings: Settings,
        counts: Accumulator[Counts],
        number: int,
        patience: float | None,
        reports: Address | None,
    ) -> None:
        self._settings, self._counts, self._number = settings, counts, number
        self._patience, self._reports = patience, reports

    def __call__(self, given: Iterable[Any]) -> Iterator[_Made]:
        # JSON, whatever the driver writes: it reads these lines, and writes them in its own form.
        logs.configure("json")
        logging.getLogger("elastic_transport").setLevel(logging.ERROR)  # what fails is told by reports
        elastic, counts = self._settings.elasticsearch, Counts()
        with Cluster(elastic) as cluster:
            writer = PatientWriter(elastic, cluster, counts, Reporter(self._reports), patience=self._patience)
            yield from self._work(given, writer, counts)
        self._counts.add(counts)

    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        raise NotImplementedError


class _Apply(_Step):
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        worker = Worker(self._settings, writer, self._number, counts)
        yield from worker.run(given)
        worker.totals()


class _Resolve(_Step):
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        joining = Joining(self._settings, writer)
        yield from joining.resolve(given)
        joining.count(counts)


class _Compose(_Step):
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        joining = Joining(self._settings, writer)
        yield from joining.compose(given)
        joining.count(counts)


def _shuffled(made: RDD[Any], tasks: int) -> RDD[Any]:
    return made.map(lambda one: (_place(one), one)).partitionBy(tasks, lambda place: place).values()


def _place(one: Touch | Emptied) -> int:
    """What leads to the same document goes to the same task, and so does what empties the same index."""
    if isinstance(one, Emptied):
        key = one.emptying.target
    else:
        key = f"{one.target} {one.token} {one.id} {one.routing}"
    return zlib.crc32(key.encode())


def _is_letter(one: _Made) -> bool:
    return isinstance(one, DeadLetter)


def _is_no_letter(one: _Made) -> bool:
    return not isinstance(one, DeadLetter)


def _by_origin(one: RefusedDocument) -> tuple[Origin, tuple[int, str]]:
    return one.origin, (1, one.reason)


def _more(one: tuple[int, str], other: tuple[int, str]) -> tuple[int, str]:
    return one[0] + other[0], min(one[1], other[1])


def _reason(count: int, first: str) -> str:
    return f"{first} (and {count - 1} more documents)" if count > 1 else first
