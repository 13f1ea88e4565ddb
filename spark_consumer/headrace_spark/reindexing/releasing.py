"""Messages that were held become dead letters: Spark's tasks read them, so that the driver has their ids only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

from pyspark.sql import DataFrame, SparkSession

from headrace_documents import logs
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.batch.batch import LETTERS
from headrace_spark.batch.worker import tell
from headrace_spark.letters.held import DeadLetter, HeldMessages, held_index, letter_of

_TOGETHER = 50
"""Messages that a task has in hand."""


class _Read:
    """A function that Spark sends to its tasks."""

    def __init__(self, settings: ElasticsearchSettings, name: str) -> None:
        self._settings, self._index = settings, held_index(name)

    def __call__(self, given: Iterable[str]) -> Iterator[DeadLetter]:
        logs.configure("json")
        ids = list(given)
        with Cluster(self._settings) as cluster:
            for start in range(0, len(ids), _TOGETHER):
                for one in cluster.get_many(self._index, ids[start : start + _TOGETHER]):
                    if one["found"]:
                        letter = letter_of(one["_source"])
                        tell(letter)
                        yield letter


def release(
    spark: SparkSession,
    settings: ElasticsearchSettings,
    cluster: Cluster,
    name: str,
    present: Sequence[str],
    save: Callable[[DataFrame], None],
) -> int:
    """Makes dead letters of the messages that are held for an index, but for those whose documents one of the indexes
    `present` has; how many. A kill in the midst of it writes some of them twice, with the same ids. Raises ApiError,
    TransportError and what Spark raises."""
    held = HeldMessages(cluster, settings, name)
    count = 0
    with closing(held.ids(present, others=True)) as pages:
        for page in pages:
            read = spark.sparkContext.parallelize(page, 2).mapPartitions(_Read(settings, name))
            save(spark.createDataFrame(read, LETTERS, verifySchema=False))
            held.forget(page)
            count += len(page)
    with closing(held.ids(present, others=False)) as pages:
        for page in pages:
            held.forget(page)
    return count
