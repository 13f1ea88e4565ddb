"""One batch: the steps of Spark's tasks, and the resulting dead letters.

In the first each task works through its messages. If rows of joins were affected or tables truncated two more follow,
see joining.py."""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pyspark import RDD, Accumulator, StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from headrace_documents import logs
from headrace_documents.elastic.bulk import BulkWriter
from headrace_documents.formats.changes import Row
from headrace_spark.dead_letters.held import DEAD_LETTERS, Held, hold
from headrace_spark.dead_letters.records import DeadLetter, Origin, report
from headrace_spark.settings import Settings
from headrace_spark.sink.writer import Context, SparkTask
from headrace_spark.status.counting import Adding, Counts
from headrace_spark.transform.expressions import Expressions
from headrace_spark.transform.joining import Joining, RefusedDocument, Touch, Truncated
from headrace_spark.transform.worker import Record, Worker, dead_letter

_Made = DeadLetter | Held | Touch | Truncated | RefusedDocument
_ORIGINS = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("reason", StringType()),
        StructField("held", ArrayType(StringType())),
    ]
)
_STORED = StorageLevel.MEMORY_AND_DISK
"""Partitions that memory loses would be worked through once more."""
COLUMNS = ("key", "value", "topic", "partition", "offset", "headers")
"""The columns of Batch's frame, in this order."""


class Batch:
    """The messages of one batch."""

    def __init__(
        self, settings: Settings, frame: DataFrame, context: Context, expressions: Expressions | None = None
    ) -> None:
        self._settings, self._frame, self._context, self._expressions = settings, frame, context, expressions
        spark = frame.sparkSession.sparkContext
        self._tasks, self._counts = spark.defaultParallelism, spark.accumulator(Counts(), Adding())

    @property
    def counts(self) -> Counts:
        """Returns all counts."""
        return self._counts.value

    def write(self, save: Callable[[DataFrame], None]) -> None:
        """Writes the batch; `save` receives the dead letters, at most four times. Those of messages come last: a task
        or a batch that fails and begins again would write them a second time."""
        made = self._records().mapPartitions(self._step(_Apply)).persist(_STORED)
        try:
            made.count()
            letters = self.counts.numbers["dead_letters"]
            self._hold(made, save)
            if self.counts.numbers["touched"] or self.counts.numbers["truncated"]:
                self._follow(made.filter(_is_followed), save)
            if letters:
                save(self._letters(made.filter(_is_letter)))
        finally:
            made.unpersist()

    def _records(self) -> RDD[Any]:
        expressions = self._expressions
        if not expressions:
            return self._frame.rdd.map(record_of)
        rows = expressions.computed(self._frame).rdd
        return rows.mapPartitions(expressions.messages).map(lambda found: record_of(found[0], found[1]))

    def _step(self, kind: type[_Step]) -> _Step:
        return kind(self._settings, self._context, self._counts)

    def _hold(self, made: RDD[Any], save: Callable[[DataFrame], None]) -> None:
        """Stores the messages that wait, before the checkpoint records the batch."""
        if self.counts.held:
            save(self._letters(made.filter(_is_held).mapPartitions(self._step(_Hold))))

    def _follow(self, given: RDD[Any], save: Callable[[DataFrame], None]) -> None:
        # Facts from the rows of this batch apply to the documents that are composed from them.
        watch = self._context.watch
        seen = {one.conflict.target for one in self.counts.conflicts if one.conflict not in watch.given_up}
        self._context = self._context._replace(watch=watch._replace(known=watch.known | seen))
        made = given
        for step in (_Resolve, _Compose):
            made = _shuffled(made, self._tasks).mapPartitions(self._step(step))
        refused = made.persist(_STORED)
        try:
            if refused.count():
                of_messages = self._refused(refused).persist(_STORED)
                try:
                    save(self._letters(of_messages.filter(_is_letter)))
                    self._hold(of_messages, save)
                finally:
                    of_messages.unpersist()
            elif self.counts.numbers["truncated"]:
                # If a document was refused, a retried statement must find what it affected.
                given.filter(_is_truncated).mapPartitions(self._step(_Sweep)).count()
        finally:
            refused.unpersist()

    def _refused(self, refused: RDD[Any]) -> RDD[Any]:
        """Returns one dead letter a message, however many of its documents were refused, or a held message: it is read
        once more."""
        reasons = refused.map(_by_origin).reduceByKey(_more).map(lambda found: (*found[0], *_reason(*found[1])))
        origins = self._frame.sparkSession.createDataFrame(reasons, _ORIGINS, verifySchema=False)
        joined = self._frame.join(origins, ["topic", "partition", "offset"]).select(*COLUMNS, "reason", "held")
        number, dual_writes = self._context.batch, self._context.dual_writes

        def made(row: Any) -> Iterator[DeadLetter | Held]:
            record, reason = record_of(row[:-2]), row[-2]
            if not row[-1]:
                yield dead_letter(record, reason, number)
            for index in row[-1]:
                yield Held(index, dual_writes.get(index, ""), dead_letter(record, reason, number))

        return joined.rdd.flatMap(made)

    def _letters(self, letters: RDD[Any]) -> DataFrame:
        return self._frame.sparkSession.createDataFrame(
            letters.mapPartitions(_reported), DEAD_LETTERS, verifySchema=False
        )


def _reported(letters: Iterable[DeadLetter]) -> Iterator[DeadLetter]:
    """Logs dead letters as they are written."""
    logs.configure("json")
    for one in letters:
        report(one)
        yield one


def record_of(row: Iterable[Any], computed: Sequence[Row] = ()) -> Record:
    """Returns the message of a row of the frame."""
    key, value, topic, partition, offset, headers = row
    known = headers and [(name, data) for name, data in headers]
    return Record(key, value, topic, partition, offset, known, computed)


class _Step(SparkTask):
    def __init__(self, settings: Settings, context: Context, counts: Accumulator[Counts]) -> None:
        super().__init__(settings, context)
        self._counts = counts

    def _run(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        yield from self._work(given, writer, counts)
        self._counts.add(counts)

    @abstractmethod
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        """Does the work; `counts` are added to the batch's if it has succeeded."""


class _Apply(_Step):
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        worker = Worker(self._settings, writer, self._context, counts)
        yield from worker.run(given)
        worker.totals()


class _Resolve(_Step):
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        joining = Joining(self._settings, writer, self._context)
        yield from joining.resolve(given)
        joining.count(counts)


class _Compose(_Step):
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        joining = Joining(self._settings, writer, self._context)
        yield from joining.compose(given)
        joining.count(counts)


class _Sweep(_Step):
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        Joining(self._settings, writer, self._context).sweep(given)
        yield from ()


class _Hold(_Step):
    def _work(self, given: Iterable[Any], writer: BulkWriter, counts: Counts) -> Iterator[_Made]:
        for one in hold(writer, self._settings.elasticsearch, given):
            counts.numbers["dead_letters"] += 1
            yield one


def _shuffled(made: RDD[Any], tasks: int) -> RDD[Any]:
    return made.map(lambda one: (_place(one), one)).partitionBy(tasks, lambda place: place).values()


def _place(one: Touch | Truncated) -> int:
    """Returns the task: all touches of one document go to the same task, and so do truncations of one index."""
    if isinstance(one, Truncated):
        key = one.truncation.target
    else:
        key = f"{one.target} {one.token} {one.id} {one.routing}"
    return zlib.crc32(key.encode())


def _is_letter(one: _Made) -> bool:
    return isinstance(one, DeadLetter)


def _is_held(one: _Made) -> bool:
    return isinstance(one, Held)


def _is_truncated(one: _Made) -> bool:
    return isinstance(one, Truncated)


def _is_followed(one: _Made) -> bool:
    return isinstance(one, Touch | Truncated)


_Refusals = tuple[int, str, tuple[str, ...]]
"""Number of documents, the first reason, and the indexes for which the message is held; "" is among them for a document
that is a dead letter."""


def _by_origin(one: RefusedDocument) -> tuple[Origin, _Refusals]:
    return one.origin, (1, one.reason, (one.held,))


def _more(one: _Refusals, other: _Refusals) -> _Refusals:
    return one[0] + other[0], min(one[1], other[1]), tuple(sorted({*one[2], *other[2]}))


def _reason(count: int, first: str, held: tuple[str, ...]) -> tuple[str, list[str]]:
    """Returns the reason, and the indexes for which the message is held: none if one document is the cause."""
    reason = f"{first} (and {count - 1} more documents)" if count > 1 else first
    return reason, [] if "" in held else list(held)
