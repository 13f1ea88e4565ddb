"""The status in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from headrace_documents.http import Metrics
from headrace_spark.status.counting import Histogram
from headrace_spark.status.outages import ELASTICSEARCH, KAFKA, QUERY, SPARK
from headrace_spark.status.status import State, Status

PREFIX = "headrace_spark_"
_NUMBERS = {
    "messages": "Messages of Kafka that are done.",
    "rows": "Rows in these messages.",
    "bytes": "Bytes of these messages.",
    "dead_letters": "Messages that became dead letters.",
    "passed_over": "Rows of tables that no index names.",
    "ddl_ignored": "Statements about tables that were passed over.",
}


class SparkMetrics(Metrics):
    """The metrics for Prometheus."""

    def __init__(self, status: Status) -> None:
        self._status = status
        super().__init__(PREFIX)

    def collect(self) -> Iterator[Metric]:
        """Yields all metrics."""
        status, total = self._status, self._status.total
        yield self.states(status.state, State)
        yield self.gauge("start_time_seconds", "Start of the process, since 1970.", status.started_at)
        for name, text in _NUMBERS.items():
            yield self.counter(name, text, total.numbers[name])
        yield from self._rebuilds()
        yield self.counter("batches", "Batches that are done.", status.batches)
        yield self.counter("retries", "Tries to reach Elasticsearch or Kafka, or to run the query, that failed.",
                       status.outages.retries)  # fmt: skip
        yield self.counter("query_failures", "Failures of the query.", status.failures)
        yield self.counter("outages", "Outages that were reported.", status.outages.count)
        yield self.counter("lost_messages", "Messages that Kafka deleted before they were read.", status.lost_messages)
        yield self.gauge("batch_limit_messages", "Messages that a batch has at most.", status.limit)
        yield self.gauge("silent_seconds", "Time without a sign of life.", status.silent)
        yield from self._names()
        yield from self._lag()
        yield from self._outages()
        yield _histogram("batch_seconds", "Time of a batch.", status.batch_seconds)
        yield _histogram("bulk_seconds", "Time until the answer to a bulk request.", total.bulk)
        text = "From the commit in MySQL to the answer of the bulk request that wrote the message."
        yield _histogram("commit_to_written_seconds", text, total.delay)

    def _rebuilds(self) -> Iterator[Metric]:
        """Yields those of indexes that are filled again."""
        text = "Messages that were held until an index is refilled; of joins, documents."
        held = CounterMetricFamily(f"{PREFIX}held", text, labels=("index",))
        for index, count in list(self._status.total.held.items()):
            held.add_metric((index,), count)
        yield held
        pages = self._status.rebuilds()
        for name, text, key in (
            ("rebuild_rows", "Rows that were read for an index that is refilled.", "rows"),
            ("rebuild_rows_expected", "Rows that its tables have, as the server thinks.", "rows_about"),
            ("rebuild_failed_tries", "Tries to refill an index that failed, since the last one that did not.",
             "tries"),
        ):  # fmt: skip
            family = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=("index",))
            for index, page in pages.items():
                family.add_metric((index,), page.get(key, 0))
            yield family

    def _names(self) -> Iterator[Metric]:
        total = self._status.total
        rows = CounterMetricFamily(f"{PREFIX}table_rows", "Rows, by table.", labels=("table",))
        for table, count in list(total.tables.items()):
            rows.add_metric((table,), count)
        yield rows
        text = "Documents by index and by result: indexed, deleted, stale or rejected."
        documents = CounterMetricFamily(f"{PREFIX}documents", text, labels=("index", "result"))
        for (index, result), count in list(total.indexes.items()):
            documents.add_metric((index, result), count)
        yield documents

    def _lag(self) -> Iterator[Metric]:
        status = self._status
        lag = GaugeMetricFamily(f"{PREFIX}lag_messages", "Messages that wait.", labels=("topic", "partition"))
        for (topic, partition), count in status.lags.items():
            lag.add_metric((topic, str(partition)), count)
        yield lag
        for name, text, value in (
            ("lag_seconds", "Age of the oldest message that waits; 0 where none waits.", status.lag_seconds),
            ("oldest_unread_commit_timestamp_seconds", "When it was committed, since 1970.", status.oldest_seconds),
            ("catch_up_seconds", "Until all that waits is done, at the present rate.", status.eta_seconds),
        ):
            family = GaugeMetricFamily(f"{PREFIX}{name}", text)
            if value is not None:
                family.add_metric((), value)
            yield family

    def _outages(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            f"{PREFIX}outage_seconds", "How long an outage has lasted; 0 where there is none.", labels=("system",)
        )
        lasting = {one.system: self._status.outages.seconds(one) for one in self._status.outages.current()}
        for system in (ELASTICSEARCH, KAFKA, SPARK, QUERY):
            family.add_metric((system,), lasting.get(system, 0.0))
        yield family


def _histogram(name: str, text: str, counted: Histogram) -> Metric:
    bounds = [*map(str, counted.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(counted.counts), strict=True))
    return HistogramMetricFamily(f"{PREFIX}{name}", text, buckets=buckets, sum_value=counted.total)
